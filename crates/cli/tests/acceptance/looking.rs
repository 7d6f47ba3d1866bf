//! Commands that only look at a pool change nothing of it, and show the truth to every user.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{chown, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::lab::{self, program, Lab, NOBODY};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("looking::nothing_of_a_pool_that_nobody_uses_changes", unused),
    ("looking::nothing_of_a_pool_whose_memory_was_given_back_is_loaded", released),
    ("looking::what_was_interrupted_is_not_finished", interrupted),
    ("looking::another_user_gets_a_refusal", another),
    ("looking::what_has_failed_is_no_success", failed),
    ("looking::what_would_be_lost_is_never_advised", advice),
    ("looking::texts_say_what_is_so", texts),
    ("looking::background_tasks_tell_what_they_do", tasks),
];

const USER: u32 = 65534;

/// How many bytes of a file are compared.
const MOST: u64 = 96 << 20;

type Facts = (u64, i64, i64, u64, Vec<u8>);

/// The files below `dir`, and in shared memory under the names of pools.
fn all_of(dir: &Path, uuid: &str) -> BTreeMap<PathBuf, Facts> {
    let below =
        |dir: &Path| fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let uuid = uuid.replace('-', "");
    let memory = below(Path::new("/dev/shm")).into_iter().filter(|path| path.to_string_lossy().contains(&uuid));
    let facts = |path: PathBuf| {
        let found = fs::metadata(&path).expect("it is there");
        // Files in shared memory have reserved addresses behind their content.
        let mut content = Vec::new();
        let file = fs::File::open(&path).map(|file| file.take(MOST));
        file.and_then(|mut file| if found.is_file() { file.read_to_end(&mut content) } else { Ok(0) }).expect("read");
        (path, (found.ino(), found.mtime(), found.mtime_nsec(), found.blocks(), content))
    };
    below(dir).into_iter().chain(memory).map(facts).collect()
}

fn uuid_of(lab: &Lab) -> String {
    let text = fs::read_to_string(lab.path("pool/pool.toml")).expect("it is there");
    let line = text.lines().find(|line| line.starts_with("uuid")).expect("a uuid");
    line.split('"').nth(1).expect("quoted").into()
}

fn look(lab: &Lab, code: i32) {
    let pool = lab.pool();
    for args in [
        &["status", &pool][..],
        &["status", &pool, "--json"],
        &["status", &pool, "--heap"],
        &["fsck", &pool],
        &["region", "list", &pool],
        &["region", "check", &pool, "0"],
        &["list"],
    ] {
        let ran = lab.run(args);
        let expected = if args[0] == "region" && args[1] == "check" { ran.code } else { code };
        assert_eq!(ran.code, expected, "{args:?}: {}{}", ran.out, ran.err);
    }
}

/// `status` once wrote all dirty content to the disk at its end, as the last process to leave.
fn unused() -> Outcome {
    for medium in ["logged", "battery"] {
        let lab = Lab::new();
        lab.ok(&[
            "format",
            &lab.pool(),
            "--nvram",
            "64M",
            "--medium",
            medium,
            "--disk",
            &format!("{}:128M", lab.text("disk")),
        ]);
        lab.mount();
        fs::write(lab.mnt().join("small"), b"small").expect("write");
        fs::write(lab.mnt().join("large"), vec![7; 8 << 20]).expect("write");
        // Killed, so that it has closed nothing.
        lab.kill9();
        lab::ok(&mut program("umount", &["-l", &lab.text("mnt")]));
        let uuid = uuid_of(&lab);
        let before = (all_of(&lab.path("pool"), &uuid), fs::read(lab.path("disk")).expect("read"));
        look(&lab, 0);
        let after = (all_of(&lab.path("pool"), &uuid), fs::read(lab.path("disk")).expect("read"));
        let differ: Vec<_> =
            after.0.iter().filter(|(path, facts)| before.0.get(*path) != Some(facts)).map(|(path, _)| path).collect();
        assert!(after == before, "{medium}: {differ:?} changed");
        let status = lab.status();
        assert!(status["cache"]["memory"].as_u64() > Some(0) && status["inodes"] == 3, "{medium}: {status}");
        lab.mount();
        assert_eq!(fs::read(lab.mnt().join("large")).expect("read"), vec![7; 8 << 20]);
        lab.umount();
        let before = all_of(&lab.path("pool"), &uuid);
        look(&lab, 0);
        assert!(all_of(&lab.path("pool"), &uuid) == before, "{medium}: closed");
        lab.ok(&["destroy", &lab.pool()]);
    }
    Ok(())
}

/// `status` and `fsck` once loaded all of the memory, and dropped it again.
fn released() -> Outcome {
    let lab = Lab::mounted("32M");
    fs::write(lab.mnt().join("file"), b"content").expect("write");
    lab.ok(&["umount", &lab.text("mnt"), "--release"]);
    let uuid = uuid_of(&lab);
    let before = all_of(&lab.path("pool"), &uuid);
    look(&lab, 0);
    assert!(all_of(&lab.path("pool"), &uuid) == before);
    let status = lab.ok(&["status", &lab.pool(), "-v"]);
    assert!(status.contains("given back") && status.contains("nobody"), "{status}");
    let checked = lab.check();
    assert_eq!((&checked["inodes"], &checked["clean"]), (&2.into(), &true.into()));
    fs::write(lab.path("pool/image"), "no image").expect("written");
    assert_eq!(lab.run(&["status", &lab.pool(), "-v"]).code, 1);
    assert_eq!(lab.run(&["fsck", &lab.pool()]).code, 2);
    Ok(())
}

/// Only a command that changes the pool finishes an interrupted one.
fn interrupted() -> Outcome {
    let lab = Lab::with_pool("16M");
    let other = lab.text("other");
    lab.ok(&["format", &other, "--nvram", "16M", "--disk", "none"]);
    fs::create_dir(lab.path("pool/.restored-whole")).expect("mkdir");
    for name in ["pool.toml", "image", "redo-0", "redo-1"] {
        fs::rename(lab.path("other").join(name), lab.path("pool/.restored-whole").join(name)).expect("moved");
    }
    let uuid = uuid_of(&lab);
    let before = all_of(&lab.path("pool"), &uuid);
    look(&lab, 0);
    assert!(all_of(&lab.path("pool"), &uuid) == before);
    assert!(lab.path("pool/.restored-whole/image").exists());
    lab.mount();
    assert!(!lab.path("pool/.restored-whole").exists());
    assert_ne!(uuid_of(&lab), uuid);
    lab.umount();
    lab.ok(&["destroy", &lab.pool()]);
    Ok(())
}

/// The output once claimed that healthy pools had no memory and no disk, and that their memory was nobody's.
fn another() -> Outcome {
    lab::require("setpriv")?;
    let lab = Lab::new();
    lab.ok(&["format", &lab.pool(), "--nvram", "16M", "--disk", &format!("{}:32M", lab.text("disk"))]);
    lab.mount();
    for args in [["region", "list", &lab.pool()].as_slice(), &["fsck", &lab.pool()]] {
        let ran = lab.run_as(&NOBODY, args);
        assert!(ran.code > 0 && ran.err.contains("ermission denied"), "{args:?}: {}{}", ran.out, ran.err);
        assert!(!ran.out.contains("NOT USED"), "{}", ran.out);
    }
    let listed = lab.run_as(&NOBODY, &["list"]).out;
    let line = |what: &str| listed.lines().find(|line| line.contains(what)).unwrap_or_default().to_string();
    // Its mount tells how it is.
    assert!(line(&lab.pool()).contains(" ok ") && line(&lab.pool()).contains(&lab.text("mnt")), "{listed}");
    for dir in [lab.pool(), lab.text("mnt")] {
        let ran = lab.run_as(&NOBODY, &["status", &dir]);
        assert!(ran.code == 0 && ran.out.contains("  ok  rw at "), "{}{}", ran.out, ran.err);
    }
    let memory = line(&uuid_of(&lab).replace('-', ""));
    assert!(memory.contains("user 0, who alone") && !memory.contains("destroy"), "{listed}");
    lab.umount();
    let listed = lab.run_as(&NOBODY, &["list"]).out;
    assert!(!listed.contains("  ok  "), "{listed}");
    let ran = lab.run_as(&NOBODY, &["status", &lab.pool()]);
    assert!(ran.code == 2 && ran.err.contains("ermission denied"), "{}{}", ran.out, ran.err);
    // Root also sees the owner of another user's pool.
    fs::create_dir(lab.path("home")).expect("mkdir");
    chown(lab.path("home"), Some(USER), Some(USER)).expect("chown");
    let theirs = lab.text("home/pool");
    let made = lab.run_as(&NOBODY, &["format", &theirs, "--nvram", "16M", "--disk", "none"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let listed = lab.ok(&["list"]);
    assert!(listed.contains("user 65534, who alone"), "{listed}");
    lab.refused(2, &["status", &theirs], &["belongs to user 65534"]);
    let destroyed = lab.run_as(&NOBODY, &["destroy", &theirs]);
    assert_eq!(destroyed.code, 0, "{}", destroyed.err);
    Ok(())
}

/// `status` once succeeded with a dead server, and with a lost region.
fn failed() -> Outcome {
    let lab = Lab::new();
    lab.ok(&["format", &lab.pool(), "--nvram", "16M", "--disk", &format!("{}:32M", lab.text("disk"))]);
    lab.mount();
    // The verdict is the first line, what is wrong comes next, and all of it fits on a screen.
    let verdict = |ran: &lab::Ran, health: &str| {
        let first = ran.out.lines().next().unwrap_or_default();
        assert!(first.starts_with(&format!("{}  {health}  ", lab.pool())), "{}{}", ran.out, ran.err);
        assert!(ran.out.lines().count() <= 15, "{}", ran.out);
        let wrong = ran.out.lines().nth(1).unwrap_or_default();
        assert!((ran.code, wrong.starts_with("! ")) == (i32::from(health != "ok"), health != "ok"), "{}", ran.out);
    };
    let listed = || {
        let text = lab.ok(&["list"]);
        text.lines().find(|line| line.trim_start().starts_with(&lab.pool())).map(String::from).unwrap_or_default()
    };
    verdict(&lab.run(&["status", &lab.pool()]), "ok");
    assert!(listed().contains("  ok  ") && listed().contains(" % "), "{}", listed());
    lab.kill9();
    let ran = lab.run(&["status", &lab.pool()]);
    verdict(&ran, "DEAD");
    assert!(ran.out.contains("its server is gone"), "{}", ran.out);
    assert!(listed().contains("  DEAD  "), "{}", listed());
    assert_eq!(lab.status()["health"], "dead");
    lab.mount();
    verdict(&lab.run(&["status", &lab.pool()]), "ok");
    lab.umount();
    fs::rename(lab.path("disk"), lab.path("away")).expect("renamed");
    verdict(&lab.run(&["status", &lab.pool()]), "DEGRADED");
    let ran = lab.run(&["status", &lab.pool(), "-v"]);
    assert!(ran.code == 1 && ran.out.contains("NOT USED"), "{}", ran.out);
    fs::rename(lab.path("away"), lab.path("disk")).expect("renamed");
    let report = lab.ok(&["fsck", &lab.pool()]);
    assert!(report.contains("checked: the memory") && report.ends_with("clean\n"), "{report}");
    lab.ok(&["destroy", &lab.pool()]);
    Ok(())
}

/// Advice about memory that is the last remnant of a pool, and about another user's files.
fn advice() -> Outcome {
    let lab = Lab::with_file("16M");
    let other = lab.text("other");
    fs::write(lab.path("thesis"), "text".repeat(9000)).expect("written");
    let thesis = lab.text("thesis");
    let ran = lab.run(&["format", &other, "--medium", "battery", "--nvram", &thesis, "--size", "16M"]);
    assert!(ran.code == 1 && ran.err.contains("holds data") && !ran.err.contains("--force"), "{}", ran.err);
    for dir in [lab.pool(), lab.text("mirror")] {
        if dir != lab.pool() {
            lab.ok(&[
                "format",
                &lab.text("second"),
                "--nvram",
                "16M",
                "--medium",
                "battery",
                "--disk",
                "none",
                "--mirror",
                &dir,
            ]);
            lab.ok(&["status", &lab.text("second"), "-v"]);
            lab.ok(&["mount", &lab.text("second"), &lab.text("mnt")]);
            lab.umount();
        }
        let before = all_of(Path::new(&dir), "no pool");
        let args =
            ["format", &other, "--nvram", "16M", "--medium", "battery", "--disk", "none", "--mirror", &dir, "--force"];
        lab.refused(1, &args, &["another pool"]);
        assert!(all_of(Path::new(&dir), "no pool") == before);
    }
    lab.ok(&["destroy", &lab.text("second")]);
    let gone = Lab::with_pool("16M");
    let memory = uuid_of(&gone).replace('-', "");
    fs::remove_dir_all(gone.path("pool")).expect("removed");
    let listed = gone.ok(&["list"]);
    let line = listed.lines().find(|line| line.contains(&memory)).expect("its memory").to_string();
    assert!(line.contains("conquest save") && !line.contains("conquest release"), "{line}");
    let region = line.split(' ').next().expect("a path").to_string();
    gone.ok(&["destroy", &region]);
    Ok(())
}

fn texts() -> Outcome {
    let lab = Lab::new();
    for size in ["5X", "16E", "100%"] {
        lab.refused(2, &["format", &lab.pool(), "--nvram", size], &["is not a size", &format!("./{size}")]);
    }
    lab.refused(
        1,
        &["format", &lab.pool(), "--nvram", "16M", "--disk", "/dev/conquest-none:64M"],
        &["is not there", "RAM"],
    );
    assert!(!Path::new("/dev/conquest-none").exists());
    let args = [
        "format",
        &lab.pool(),
        "--nvram",
        "16M",
        "--disk",
        &format!("{}:32M", lab.text("disk")),
        "--compression",
        "warm=10m",
    ];
    let made = lab.run(&args);
    assert_eq!(made.code, 0, "{}", made.err);
    assert!(made.err.contains("lies in RAM") && !made.out.contains("on disk in"), "{}{}", made.out, made.err);
    assert_eq!(lab.status()["compression"]["warm_after"], 600);
    lab.refused(1, &["region", "readmit", &lab.pool(), "9"], &["no region 9", "region list"]);
    // A server killed after its directory was removed leaves its marks; a server that ends in order leaves nothing.
    lab.mount();
    let memory = uuid_of(&lab).replace('-', "");
    fs::remove_dir_all(lab.path("pool")).expect("removed");
    lab.run(&["umount", &lab.text("mnt")]);
    lab.ok(&["list"]);
    let left: Vec<_> =
        fs::read_dir("/dev/shm").expect("a directory").flatten().map(|entry| entry.file_name()).collect();
    let left: Vec<_> = left.iter().filter(|name| name.to_string_lossy().contains(&memory)).collect();
    let region = left.iter().find(|name| name.to_string_lossy().ends_with("-region"));
    if let Some(region) = region {
        lab.ok(&["destroy", &Path::new("/dev/shm").join(region).to_string_lossy()]);
    }
    let still = fs::read_dir("/dev/shm").expect("a directory").flatten();
    let still: Vec<_> = still.filter(|entry| entry.file_name().to_string_lossy().contains(&memory)).collect();
    assert!(still.is_empty(), "{still:?}, of {left:?}");
    Ok(())
}

/// The state of the server's tasks while it lives; and that it has died, until another process has cleaned up.
fn tasks() -> Outcome {
    let lab = Lab::new();
    lab.ok(&["format", &lab.pool(), "--nvram", "16M", "--disk", &format!("{}:32M", lab.text("disk"))]);
    lab.mount();
    let server = |status: &Value| status["sessions"].as_array().expect("sessions")[0].clone();
    let task = |status: &Value, name: &str| {
        let tasks = server(status)["tasks"].as_array().expect("tasks").clone();
        tasks.into_iter().find(|task| task["name"] == name).unwrap_or_else(|| panic!("no {name}: {status}"))
    };
    let status = lab.status();
    assert_eq!(server(&status)["gone"], false);
    let names = ["commit", "checkpoint", "write-back", "rebuild", "compression", "preallocate", "reclaim"];
    for name in names {
        let task = task(&status, name);
        assert!(["running", "asleep", "waiting"].iter().any(|state| task["state"] == *state), "{task}");
        assert!(task["state"] == "running" || task["why"].as_str().is_some_and(|why| !why.is_empty()), "{task}");
        assert!(task["since"].as_f64().is_some_and(|since| since > 1.7e9), "{task}");
        assert!(task["last_error"].is_null() && task["progress"].is_null(), "{task}");
    }
    let runs = |status: &Value| task(status, "commit")["runs"].as_u64().expect("a number");
    lab::wait_until(Duration::from_secs(30), "commits are looked at", || runs(&lab.status()) > runs(&status));
    let text = lab.ok(&["status", &lab.pool(), "-v"]);
    for name in names {
        let line = text.lines().find(|line| line.starts_with(&format!("  {name} ")));
        let line = line.unwrap_or_else(|| panic!("no {name}: {text}"));
        assert!(["running for", "asleep for", "waiting for"].iter().any(|state| line.contains(state)), "{line}");
    }
    // Another process has the pool open and does not clean up: the first command sees the dead server, and cleans up
    // when it ends.
    let interval = conquest::CommitInterval::try_from(3600.0).expect("an interval");
    let how = conquest::OpenOptions { read_only: true, commit_interval: Some(interval), ..Default::default() };
    let reader = conquest::Pool::open(Path::new(&lab.pool()), &how).expect("it can be read");
    lab.kill9();
    let text = lab.output(&["status", &lab.pool(), "-v"]);
    assert!(text.contains("GONE without closing the pool") && text.contains("its server is gone"), "{text}");
    lab.mount();
    lab.kill9();
    let status = lab.status();
    let sessions = status["sessions"].as_array().expect("sessions");
    let gone = sessions.iter().find(|session| session["role"] == "mount").expect("a mount");
    assert!(gone["gone"] == true && gone["tasks"] == serde_json::json!([]), "{gone}");
    drop(reader);
    assert_eq!(lab.status()["sessions"], serde_json::json!([]));
    Ok(())
}
