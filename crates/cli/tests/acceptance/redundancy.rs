//! The number of replicas of files, as it is set, inherited, carried and shown; and the usage of files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::Value;

use crate::lab::{self, program, wait_until, Lab, NOBODY};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("redundancy::settings_are_inherited_and_kept", inherited),
    ("redundancy::settings_are_carried_by_copies", carried),
    ("redundancy::commands_set_and_show_it", commands),
    ("redundancy::a_refusal_says_why", refused),
    ("redundancy::settings_survive_crashes_and_images", survives),
    ("redundancy::du_counts_what_is_on_disks_and_in_memory", accounting),
    ("redundancy::du_counts_by_owner_and_each_file_once", owners),
];

fn lab(disks: usize) -> Lab {
    let lab = Lab::new();
    lab.ok(&["format", &lab.pool(), "--nvram", "48M", "--disk", &format!("{}:100M", lab.text("disk"))]);
    lab.mount();
    for n in 1..disks {
        lab.ok(&["region", "add", &lab.pool(), &format!("{}:100M", lab.text(&format!("disk{n}")))]);
    }
    lab
}

/// An attribute of ours; none if it is not set.
fn get(path: &Path, name: &str) -> Option<String> {
    let mut value = [0; 512];
    match rustix::fs::lgetxattr(path, format!("user.conquest.{name}"), &mut value) {
        Ok(len) => Some(String::from_utf8(value[..len].to_vec()).expect("text")),
        Err(Errno::NODATA) => None,
        Err(e) => panic!("{}: {name}: {e}", path.display()),
    }
}

fn try_set(path: &Path, name: &str, value: &str) -> Result<(), Errno> {
    rustix::fs::lsetxattr(path, format!("user.conquest.{name}"), value.as_bytes(), XattrFlags::empty())
}

fn set(path: &Path, name: &str, value: &str) {
    try_set(path, name, value).unwrap_or_else(|e| panic!("{}: {name}={value}: {e}", path.display()));
}

fn listed(path: &Path) -> Vec<String> {
    let mut names = [0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names).expect("it can be listed");
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<String> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.sort();
    names
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[track_caller]
fn both(path: &Path, redundancy: Option<&str>, priority: Option<&str>) {
    let is = (get(path, "redundancy"), get(path, "priority"));
    assert_eq!((is.0.as_deref(), is.1.as_deref()), (redundancy, priority), "{}", path.display());
}

fn inherited() -> Outcome {
    let lab = lab(1);
    let mnt = lab.mnt();
    both(&mnt, None, None);
    assert_eq!(get(&mnt, "effective.redundancy").as_deref(), Some("none"));
    assert_eq!(get(&mnt, "effective.priority").as_deref(), Some("normal"));
    let dir = mnt.join("dir");
    fs::create_dir(&dir).expect("mkdir");
    fs::write(dir.join("before"), "text").expect("written");
    assert_eq!(try_set(&dir, "redundancy", "lazy:90m"), Err(Errno::INVAL));
    for (said, is) in [("mirror", "mirror:2"), ("lazy", "lazy:2m"), ("lazy:3600", "lazy:1h"), ("whole", "whole")] {
        set(&dir, "redundancy", said);
        both(&dir, Some(is), None);
    }
    for wrong in ["", "mirror:1", "mirror:5", "lazy:0", "lazy:61", "raid", "Mirror", "mirror:2\n"] {
        assert_eq!(try_set(&dir, "redundancy", wrong), Err(Errno::INVAL), "{wrong:?}");
        assert_eq!(try_set(&dir, "priority", wrong), Err(Errno::INVAL), "{wrong:?}");
    }
    for name in ["effective.redundancy", "effective.priority", "usage", "regions"] {
        assert_eq!(try_set(&dir, name, "none"), Err(Errno::PERM), "{name}");
    }
    set(&dir, "redundancy", "lazy:7s");
    set(&dir, "priority", "high");
    assert_eq!(listed(&dir), ["user.conquest.priority", "user.conquest.redundancy"]);

    // Existing files keep their own setting; a new file gets that of its directory at that moment.
    both(&dir.join("before"), None, None);
    fs::create_dir_all(dir.join("a/b")).expect("mkdir");
    fs::write(dir.join("a/b/file"), "text").expect("written");
    both(&dir.join("a/b/file"), Some("lazy:7s"), Some("high"));
    set(&dir, "redundancy", "mirror:4");
    both(&dir.join("a/b"), Some("lazy:7s"), Some("high"));
    set(&dir.join("a/b"), "redundancy", "none");
    fs::write(dir.join("a/b/none"), "text").expect("written");
    both(&dir.join("a/b/none"), Some("none"), Some("high"));

    // The setting does not depend on names.
    fs::rename(dir.join("a/b/file"), mnt.join("moved")).expect("renamed");
    fs::hard_link(mnt.join("moved"), dir.join("link")).expect("linked");
    both(&mnt.join("moved"), Some("lazy:7s"), Some("high"));
    both(&dir.join("link"), Some("lazy:7s"), Some("high"));
    set(&dir.join("link"), "priority", "low");
    both(&mnt.join("moved"), Some("lazy:7s"), Some("low"));
    fs::rename(dir.join("before"), dir.join("a/before")).expect("renamed");
    both(&dir.join("a/before"), None, None);

    rustix::fs::lremovexattr(mnt.join("moved"), "user.conquest.redundancy").expect("it is set");
    assert_eq!(rustix::fs::lremovexattr(mnt.join("moved"), "user.conquest.redundancy"), Err(Errno::NODATA));
    both(&dir.join("link"), None, Some("low"));
    assert_eq!(get(&mnt.join("moved"), "effective.redundancy").as_deref(), Some("memory"));
    lab.umount();
    lab.check();
    lab.mount();
    both(&dir.join("link"), None, Some("low"));
    both(&dir, Some("mirror:4"), Some("high"));
    Ok(())
}

fn carried() -> Outcome {
    let lab = lab(1);
    let from = lab.mnt().join("from");
    fs::create_dir(&from).expect("mkdir");
    set(&from, "redundancy", "mirror:3");
    fs::write(from.join("inherits"), "text").expect("written");
    fs::write(from.join("own"), "text").expect("written");
    set(&from.join("own"), "redundancy", "lazy:3h");
    set(&from.join("own"), "priority", "low");
    let mut copies = vec![lab.mnt().join("cp")];
    lab::ok(&mut program("cp", &["-a", &text(&from), &text(&copies[0])]));
    if lab::require("rsync").is_ok() {
        copies.push(lab.mnt().join("rsync"));
        lab::ok(&mut program("rsync", &["-aX", &format!("{}/", text(&from)), &text(&copies[1])]));
    }
    for copy in copies {
        both(&copy, Some("mirror:3"), None);
        both(&copy.join("inherits"), Some("mirror:3"), None);
        both(&copy.join("own"), Some("lazy:3h"), Some("low"));
    }
    Ok(())
}

/// The answer of `redundancy get --json` for a path.
fn shown(lab: &Lab, path: &Path) -> Value {
    let answer: Value = serde_json::from_str(&lab.ok(&["redundancy", "get", "--json", &text(path)])).expect("JSON");
    answer["paths"][0].clone()
}

fn commands() -> Outcome {
    let lab = lab(2);
    let mnt = lab.mnt();
    let dir = mnt.join("dir");
    fs::create_dir_all(dir.join("sub/deep")).expect("mkdir");
    fs::write(dir.join("sub/file"), "text").expect("written");
    symlink(mnt.join("outside"), dir.join("sub/link")).expect("linked");
    fs::write(mnt.join("outside"), "text").expect("written");
    let said = lab.ok(&["redundancy", "get", &text(&dir), &text(&dir.join("sub/file"))]);
    assert_eq!(said.matches("not set").count(), 2, "{said}");

    let ran = lab.run(&["redundancy", "set", "mirror", &text(&dir), "--recursive", "--priority", "high"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "two regions are enough");
    for name in ["", "sub", "sub/deep", "sub/file"] {
        both(&dir.join(name), Some("mirror:2"), Some("high"));
    }
    both(&mnt.join("outside"), None, None);
    let file = shown(&lab, &dir.join("sub/file"));
    assert_eq!(file["redundancy"], "mirror:2");
    assert_eq!(file["priority"], "high");
    assert_eq!(file["inherited_from"], text(&dir));
    assert_eq!(file["effective"], "memory");
    let said = lab.ok(&["redundancy", "get", &text(&dir.join("sub"))]);
    assert!(
        said.contains("mirror:2, as ") && said.contains("priority high") && said.contains("get: mirror:2"),
        "{said}"
    );

    // More than there are regions: the setting is made, with a warning.
    let ran = lab.run(&["redundancy", "set", "mirror:3", &text(&dir.join("sub"))]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("takes 3 regions and the pool has 2: there will be 2 replicas"), "{}", ran.err);
    both(&dir.join("sub"), Some("mirror:3"), Some("high"));
    both(&dir.join("sub/file"), Some("mirror:2"), Some("high"));
    assert_eq!(shown(&lab, &dir.join("sub/file"))["inherited_from"], Value::Null);

    // Some paths cannot be changed: all others are.
    let ran = lab.run(&["redundancy", "unset", &text(&mnt.join("gone")), &text(&dir), "/proc", "-r"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("/gone: No such file") && ran.err.contains("/proc is in no mounted pool"), "{}", ran.err);
    assert!(ran.err.contains("2 paths could not be changed"), "{}", ran.err);
    for name in ["", "sub", "sub/deep", "sub/file"] {
        both(&dir.join(name), None, None);
    }
    lab.ok(&["redundancy", "unset", &text(&dir)]);
    lab.umount();
    lab.check();
    Ok(())
}

fn refused() -> Outcome {
    let lab = lab(1);
    let file = lab.mnt().join("file");
    fs::write(&file, "text").expect("written");
    let path = text(&file);
    lab.refused(2, &["redundancy", "set", "mirror:9", &path], &["mirror:2", "mirror:4"]);
    lab.refused(2, &["redundancy", "set", "lazy:90s", &path], &["1 to 60 seconds", "whole minutes"]);
    lab.refused(2, &["redundancy", "set", "raid", &path], &["`none`", "`whole`", "`lazy:DELAY`"]);
    lab.refused(2, &["redundancy", "set", "whole", &path, "--priority", "urgent"], &["`low`", "`high`"]);
    lab.refused(2, &["redundancy", "set", "whole"], &["PATH"]);
    lab.refused(1, &["redundancy", "set", "whole", &lab.pool()], &["directory of a pool", "conquest mount"]);
    lab.refused(1, &["redundancy", "get", "/proc/version"], &["no mounted pool", "conquest list"]);
    lab.refused(1, &["du", "/proc/version"], &["no mounted pool", "conquest list"]);
    lab.refused(1, &["du", &text(&lab.mnt().join("gone"))], &["/gone", "No such file"]);
    both(&file, None, None);

    // Only the owner may set it.
    let ran = lab.run_as(&NOBODY, &["redundancy", "set", "whole", &path]);
    ran.is_refusal(1, &["cannot change the redundancy", "may not write"], "as nobody");
    both(&file, None, None);
    let ran = lab.run_as(&NOBODY, &["redundancy", "get", &path]);
    assert_eq!(ran.code, 0, "who may read it may ask: {}", ran.err);
    lab.umount();
    lab.mount_with("ro");
    lab.refused(1, &["redundancy", "set", "whole", &path], &["mounted read-only"]);
    lab.ok(&["redundancy", "get", &path]);
    lab.umount();

    let lab = Lab::mounted("8M");
    let ran = lab.run(&["redundancy", "set", "mirror", &text(&lab.mnt())]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("no disk") && ran.err.contains("conquest region add"), "{}", ran.err);
    Ok(())
}

fn survives() -> Outcome {
    let lab = lab(1);
    let file = lab.mnt().join("file");
    fs::write(&file, "text").expect("written");
    set(&file, "redundancy", "lazy:24h");
    set(&file, "priority", "low");
    fs::File::open(&file).and_then(|file| file.sync_all()).expect("durable");
    lab.kill9();
    lab.umount();
    lab.check();
    lab.mount();
    both(&file, Some("lazy:24h"), Some("low"));
    lab.umount();
    // After a power cut only the content on disk is left.
    lab::memory_of(Path::new(&lab.pool())).iter().for_each(|file| fs::remove_file(file).expect("it is there"));
    lab.mount();
    both(&file, Some("lazy:24h"), Some("low"));
    lab.umount();
    lab.check();
    Ok(())
}

/// The answer of `du --json`, for the first path.
fn du(lab: &Lab, path: &Path) -> Value {
    let answer: Value = serde_json::from_str(&lab.ok(&["du", "--json", "-s", &text(path)])).expect("JSON");
    assert_eq!(answer["paths"][0]["memory"], answer["total"]["memory"]);
    answer["paths"][0].clone()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// Waits until no content waits for its place on disk.
fn settle(lab: &Lab) {
    wait_until(Duration::from_secs(60), "all is written", || {
        rustix::fs::syncfs(fs::File::open(lab.mnt()).expect("there")).expect("written");
        number(&lab.status()["cache"], "dirty") == 0
    });
}

fn accounting() -> Outcome {
    let lab = lab(2);
    let mnt = lab.mnt();
    fs::create_dir(mnt.join("dir")).expect("mkdir");
    let mut rng = rng::Rng::new(5);
    let sizes = [0u64, 1, 5000, 900_000, 3 << 20, 20 << 20, 33 << 20];
    for (n, size) in sizes.into_iter().enumerate() {
        fs::write(mnt.join("dir").join(n.to_string()), rng.bytes(size as usize)).expect("written");
    }
    let sparse = fs::File::create(mnt.join("sparse")).expect("made");
    std::os::unix::fs::FileExt::write_at(&sparse, &rng.bytes(5 << 20), 1 << 40).expect("written");
    rustix::fs::fallocate(&sparse, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 2 << 20).expect("there is room");
    drop(sparse);
    settle(&lab);
    let (status, usage) = (lab.status(), du(&lab, &mnt));
    assert_eq!(number(&usage, "placed"), number(&status["segments"], "live"));
    assert_eq!(number(&usage, "promised"), number(&status["segments"], "promised"));
    assert_eq!(number(&usage, "cached"), number(&status["cache"], "clean"));
    assert_eq!(number(&usage, "waiting"), 0);
    assert_eq!(number(&usage, "disk"), number(&usage, "placed"), "one copy of each");
    assert_eq!(number(&usage, "inodes"), 3 + sizes.len() as u64);
    assert_eq!(number(&usage, "apparent"), sizes.iter().sum::<u64>() + (1 << 40) + (5 << 20));
    assert!(number(&usage, "placed") >= 61 << 20, "{usage}");
    assert!(number(&usage, "content") >= 905_001 && number(&usage, "content") < 1 << 20, "{usage}");
    assert!(number(&usage, "memory") < number(&status, "used"), "{usage}");

    // Some of the paths, and their sum.
    let dir = du(&lab, &mnt.join("dir"));
    let file = du(&lab, &mnt.join("dir/6"));
    assert!(number(&file, "placed") == 33 << 20 && number(&dir, "placed") > number(&file, "placed"));
    assert_eq!(number(&usage, "placed") - number(&dir, "placed"), 5 << 20);
    assert_eq!(get(&mnt.join("dir/6"), "effective.redundancy").as_deref(), Some("none"));
    assert_eq!(get(&mnt.join("dir/2"), "effective.redundancy").as_deref(), Some("memory"));

    // Written content first waits in memory.
    fs::write(mnt.join("new"), rng.bytes(2 << 20)).expect("written");
    let new = du(&lab, &mnt.join("new"));
    assert_eq!(number(&new, "waiting") + number(&new, "placed"), 2 << 20, "{new}");
    fs::remove_dir_all(mnt.join("dir")).expect("removed");
    settle(&lab);
    wait_until(Duration::from_secs(60), "what was removed is gone", || {
        number(&du(&lab, &mnt), "placed") == number(&lab.status()["segments"], "live")
    });
    let said = lab.ok(&["du", "-h", &text(&mnt)]);
    assert!(said.starts_with("apparent") && said.contains("1 TiB"), "{said}");
    lab.umount();
    lab.check();
    Ok(())
}

fn owners() -> Outcome {
    let lab = lab(1);
    let mnt = lab.mnt();
    fs::create_dir_all(mnt.join("a/b")).expect("mkdir");
    fs::write(mnt.join("a/b/file"), vec![1; 10_000]).expect("written");
    fs::hard_link(mnt.join("a/b/file"), mnt.join("a/again")).expect("linked");
    symlink("nowhere", mnt.join("a/link")).expect("linked");
    std::os::unix::fs::chown(mnt.join("a/b/file"), Some(4711), None).expect("given away");
    let all: Value =
        serde_json::from_str(&lab.ok(&["du", "--json", "-a", &text(&mnt.join("a")), &text(&mnt)])).expect("JSON");
    let paths: Vec<&str> =
        all["paths"].as_array().expect("paths").iter().filter_map(|one| one["path"].as_str()).collect();
    let files = |name: &str| paths.iter().filter(|path| path.ends_with(name)).count();
    assert_eq!(files("/file") + files("/again"), 1, "{paths:?}");
    assert_eq!(number(&all["paths"].as_array().expect("paths")[0], "inodes"), 1);
    let owners = all["owners"].as_array().expect("owners");
    let of = |uid: u64| owners.iter().find(|owner| owner["uid"] == uid).expect("an owner");
    assert_eq!((number(of(4711), "inodes"), number(of(4711), "apparent")), (1, 10_000));
    assert_eq!(of(0)["name"], "root");
    let said = lab.ok(&["du", "--by-owner", &text(&mnt)]);
    assert!(said.contains("owner") && said.contains("4711") && said.contains("root"), "{said}");

    // Without permission to look, the output names the uncounted paths.
    fs::set_permissions(mnt.join("a/b"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("chmod");
    let ran = lab.run_as(&NOBODY, &["du", "-s", &text(&mnt)]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("/a/b"), "{}", ran.err);
    assert!(ran.out.contains("apparent"), "{}", ran.out);
    Ok(())
}
