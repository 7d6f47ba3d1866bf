//! A pool has one file system, which may be mounted at several mount points: their common and their own properties, and
//! their fate when the server ends, is killed, or belongs to another user.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::lab::{self, kill_and_wait, program, wait_until, Lab, Process, NOBODY};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("places::a_second_place_is_the_same_mount_with_flags_of_its_own", second_place),
    ("places::what_is_the_servers_is_changed_by_a_remount_only", servers_options),
    ("places::umount_takes_one_place_or_all_and_the_last_ends_the_server", umount),
    ("places::those_of_a_killed_server_are_all_mounted_again", killed),
    ("places::up_mounts_again_what_a_killed_server_left", up_again),
    ("places::nothing_is_written_below_while_a_dead_mount_is_replaced", none_below),
    ("places::a_remount_mounts_again_what_is_dead", remount_again),
    ("places::the_device_is_the_same_at_each_mount", same_device),
    ("places::a_dead_mount_that_cannot_be_taken_away_is_covered", covered),
    ("places::a_part_that_was_bound_is_mounted_again_too", part),
    ("places::several_that_mount_at_once_get_one_server", at_once),
    ("places::a_user_without_root_gets_the_path", unprivileged),
    ("places::what_is_in_another_namespace_is_refused", other_namespace),
    ("places::what_was_taken_away_in_use_is_refused", taken_away),
    ("places::a_signal_ends_all_of_them", sigterm),
    ("places::a_place_is_remounted_alone", remount),
    ("places::access_times_are_noted_as_most_as_a_place_wants", access_times),
];

/// A lab with a pool that is mounted at `mnt`, and directories for further mount points.
fn lab(others: &[&str]) -> Lab {
    let lab = Lab::mounted("64M");
    others.iter().for_each(|name| std::fs::create_dir(lab.path(name)).expect("mkdir"));
    lab
}

/// The mount points in `status`, with their flags.
fn places(lab: &Lab) -> Vec<(String, String)> {
    let status = lab.status();
    let text = |place: &serde_json::Value, key: &str| place[key].as_str().expect(key).to_string();
    let places = status["places"].as_array().expect("places").iter();
    places.map(|place| (text(place, "dir"), text(place, "options"))).collect()
}

fn dirs(lab: &Lab) -> Vec<String> {
    places(lab).into_iter().map(|(dir, _)| dir).collect()
}

fn flags_at(lab: &Lab, name: &str) -> String {
    let dir = lab.text(name);
    places(lab).into_iter().find(|(at, _)| *at == dir).expect("a place").1
}

fn servers(lab: &Lab) -> usize {
    let status = lab.status();
    let sessions = status["sessions"].as_array().expect("sessions");
    sessions.iter().filter(|session| session["role"] == "mount").count()
}

fn second_place() -> Outcome {
    let lab = lab(&["second", "third"]);
    let (pool, mnt, second) = (lab.pool(), lab.text("mnt"), lab.text("second"));
    std::fs::write(lab.mnt().join("f"), "here").expect("write");
    let server = lab.server();
    let times = (0..5).map(|_| {
        let start = Instant::now();
        lab.ok(&["mount", &pool, &second, "-o", "ro,nosuid,noexec"]);
        let took = start.elapsed();
        lab.ok(&["umount", &second]);
        took
    });
    println!("note: a second place took {:?} at best", times.min().expect("some"));
    lab.ok(&["mount", &pool, &second, "-o", "ro,nosuid,noexec"]);
    assert_eq!((lab.server(), servers(&lab)), (server, 1), "no server was started");
    assert_eq!(dirs(&lab), [mnt.clone(), second.clone()]);
    let said = lab.output(&["status", &second, "-v"]);
    assert!(said.contains(&mnt) && said.contains(&format!("{second} (ro,nosuid,noexec,")), "{said}");
    assert!(flags_at(&lab, "mnt").starts_with("rw,") && !flags_at(&lab, "mnt").contains("nosuid"));
    assert_eq!(std::fs::read(lab.path("second/f")).expect("read"), b"here");
    let refused = std::fs::write(lab.path("second/f"), "no").expect_err("a read-only place");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    std::fs::write(lab.mnt().join("f"), "there").expect("the first is writable");
    assert_eq!(std::fs::read(lab.path("second/f")).expect("read"), b"there");
    // One kernel and one file system: locks and pages are shared.
    let locked = File::open(lab.mnt().join("f")).expect("open");
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).expect("lock");
    let other = File::open(lab.path("second/f")).expect("open");
    let taken = rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(taken, Err(rustix::io::Errno::WOULDBLOCK));
    drop((locked, other));
    lab.refused(1, &["mount", &pool, &second], &["already mounted", "conquest umount"]);
    lab.refused(1, &["mount", "--foreground", &pool, &lab.text("third")], &["already", &mnt, "--foreground"]);
    lab.refused(1, &["mount", &pool, &lab.text("nowhere")], &["no such directory"]);
    // `up` finds mount points, and makes them.
    assert!(lab.ok(&["up", "--pool", &pool]).contains(&format!("at {mnt}\n")));
    assert!(lab.ok(&["up", "--pool", &pool, &lab.text("third")]).starts_with("mounted"));
    assert_eq!((dirs(&lab).len(), servers(&lab)), (3, 1));
    // A read-only first mount point does not make others read-only.
    lab.ok(&["umount", &pool]);
    lab.mount_with("ro");
    lab.ok(&["mount", &pool, &second]);
    std::fs::write(lab.path("second/f"), "again").expect("a writable place");
    assert!(std::fs::write(lab.mnt().join("f"), "no").is_err());
    lab.ok(&["umount", &pool]);
    lab.check();
    Ok(())
}

fn servers_options() -> Outcome {
    let lab = lab(&["second"]);
    let (pool, mnt, second) = (lab.pool(), lab.text("mnt"), lab.text("second"));
    let remount = |what: &str| format!("conquest mount {pool} {mnt} -o remount,{what}`");
    for (option, remedy) in [
        ("durability=strict", remount("durability=strict")),
        ("sync", remount("durability=strict")),
        ("commit=1", remount("commit=1")),
        ("save=/var/tmp/image", format!("conquest umount {pool}`")),
    ] {
        lab.refused(1, &["mount", &pool, &second, "-o", option], &[&mnt, "all its places", &remedy]);
    }
    let other = if lab.status()["sessions"][0]["transport"] == "io_uring" { "dev" } else { "uring" };
    let option = format!("transport={other}");
    lab.refused(1, &["mount", &pool, &second, "-o", &option], &[&option, "all its places"]);
    assert_eq!(dirs(&lab).len(), 1, "nothing was mounted");
    // Naming the value in effect is permitted.
    lab.ok(&["mount", &pool, &second, "-o", "durability=fsync,commit=5,allow_other"]);
    lab.ok(&["mount", &pool, &second, "-o", "remount,durability=strict"]);
    assert_eq!(lab.status()["sessions"][0]["durability"], "strict");
    lab.ok(&["umount", &pool]);
    Ok(())
}

fn umount() -> Outcome {
    let lab = lab(&["second", "third"]);
    let (pool, mnt, second, third) = (lab.pool(), lab.text("mnt"), lab.text("second"), lab.text("third"));
    let mount = |dir: &str| drop(lab.ok(&["mount", &pool, dir]));
    mount(&second);
    mount(&third);
    let server = Process::open(lab.server());
    // The first mount point is one of them.
    let said = lab.ok(&["umount", &mnt]);
    assert!(said.contains("stays mounted") && said.contains(&second) && said.contains(&third), "{said}");
    assert!(!server.has_ended() && dirs(&lab) == [second.clone(), third.clone()]);
    std::fs::write(lab.path("second/f"), "goes on").expect("write");
    wait_until(Duration::from_secs(5), "status names a place", || lab.server_of(&lab.path("second")).is_some());
    lab.refused(1, &["save", &second, &lab.text("third/image")], &["in the pool itself"]);
    lab.refused(1, &["umount", &second, "--release"], &["also mounted", &third, "--release`"]);
    let busy = File::open(lab.path("third/f")).expect("open");
    lab.refused(1, &["umount", &third], &["in use"]);
    drop(busy);
    assert!(lab.ok(&["umount", &second]).contains(&third));
    lab.umount_at(&third);
    assert!(server.has_ended(), "the last place ends the server");
    lab.refused(1, &["umount", &third], &["no pool is mounted"]);
    lab.refused(1, &["umount", &pool], &["not mounted"]);
    for release in [false, true] {
        lab.mount();
        mount(&second);
        let server = Process::open(lab.server());
        match release {
            false => drop(lab.ok(&["umount", &pool])),
            true => drop(lab.ok(&["umount", "--release", &pool])),
        }
        assert!(server.has_ended() && dirs(&lab).is_empty());
    }
    lab.check();
    Ok(())
}

fn killed() -> Outcome {
    let lab = lab(&["second", "third"]);
    let (pool, second, third) = (lab.pool(), lab.text("second"), lab.text("third"));
    lab.ok(&["mount", &pool, &second, "-o", "ro,nodev"]);
    std::fs::write(lab.mnt().join("f"), "kept").expect("write");
    for (round, dir) in [&third, &second, &third].into_iter().enumerate() {
        if round > 0 {
            lab.ok(&["umount", &third]);
        }
        lab.kill9();
        for place in ["mnt", "second"] {
            let gone = rustix::fs::statfs(lab.path(place)).map(drop).expect_err("no server");
            assert!(lab::is_gone(&gone.into()), "{place}: {gone}");
        }
        let before = dirs(&lab).len();
        let said = lab.ok(&["mount", &pool, dir, "-o", if *dir == second { "ro,nodev" } else { "rw" }]);
        assert!(said.starts_with("mounted again: "), "{said}");
        assert_eq!((dirs(&lab).len(), servers(&lab)), (before + usize::from(*dir == third), 1), "round {round}");
        for place in ["mnt", "second"] {
            assert_eq!(std::fs::read(lab.path(place).join("f")).expect("read"), b"kept", "round {round}");
        }
        let flags = flags_at(&lab, "second");
        assert!(flags.starts_with("ro,") && flags.contains("nodev"), "{flags}");
        assert!(flags_at(&lab, "mnt").starts_with("rw,"));
        if *dir == second {
            lab.ok(&["mount", &pool, &third]);
        }
    }
    // They can be unmounted one after another, also without a server.
    lab.kill9();
    for place in ["second", "mnt", "third"] {
        lab.umount_at(&lab.text(place));
    }
    lab.mount();
    assert_eq!(std::fs::read(lab.mnt().join("f")).expect("read"), b"kept");
    lab.umount();
    lab.check();
    Ok(())
}

fn up_again() -> Outcome {
    let lab = lab(&["second"]);
    let (pool, mnt, second) = (lab.pool(), lab.text("mnt"), lab.text("second"));
    lab.umount();
    lab.mount_with("nosuid");
    lab.ok(&["mount", &pool, &second, "-o", "ro"]);
    lab.kill9();
    let said = lab.output(&["status", &pool]);
    assert_eq!(said.matches("its server is gone").count(), 2, "{said}");
    let said = lab.ok(&["up", "--pool", &pool]);
    assert!(said.contains(&format!("at {mnt}")) && said.contains(&format!("mounted again: {second}")), "{said}");
    assert!(flags_at(&lab, "mnt").contains("nosuid") && flags_at(&lab, "second").starts_with("ro"));
    assert!(lab.ok(&["up", "--pool", &pool]).contains("already mounted"));
    lab.ok(&["umount", &pool]);
    lab.check();
    Ok(())
}

/// Makes files at `dir`, one after another, until `stop` is set. `safe` counts the durable ones, which have the numbers
/// below it.
fn make_files(dir: &Path, safe: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let name = dir.join(safe.load(Ordering::SeqCst).to_string());
        let made = File::create(name).and_then(|mut file| {
            std::io::Write::write_all(&mut file, b"safe")?;
            file.sync_all()
        });
        safe.fetch_add(u64::from(made.is_ok()), Ordering::SeqCst);
    }
}

/// A program that writes while a server is killed and replaced either writes to the pool or fails. Tested with each
/// command that replaces a server, at each mount point.
fn none_below() -> Outcome {
    let lab = lab(&["second"]);
    lab.install_helpers()?;
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    std::fs::create_dir(lab.mnt().join("dir")).expect("mkdir");
    lab::ok(&mut program("mount", &["--bind", &lab.text("mnt/dir"), &lab.text("second")]));
    let (first, second, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let again: [&dyn Fn(); 4] = [
        &|| lab.mount(),
        &|| drop(lab.ok(&["up", "--pool", &pool])),
        &|| drop(lab.ok(&["mount", &pool, &mnt, "-o", "remount,rw"])),
        &|| drop(lab::ok(&mut program("mount", &["-o", "remount,rw", &mnt]))),
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| make_files(&lab.mnt(), &first, &stop));
        scope.spawn(|| make_files(&lab.path("second"), &second, &stop));
        let rounds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for again in again {
                let before = [&first, &second].map(|safe| safe.load(Ordering::SeqCst));
                wait_until(Duration::from_secs(20), "files are made at both places", || {
                    [&first, &second].iter().zip(before).all(|(safe, before)| safe.load(Ordering::SeqCst) > before)
                });
                lab.kill9();
                again();
            }
        }));
        stop.store(true, Ordering::SeqCst);
        rounds.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    for (dir, safe) in [("mnt", &first), ("mnt/dir", &second)] {
        let missing = (0..safe.load(Ordering::SeqCst)).find(|n| !lab.path(dir).join(n.to_string()).exists());
        assert_eq!(missing, None, "a file in {dir} that was safe");
    }
    lab.ok(&["umount", &pool]);
    for place in ["mnt", "second"] {
        assert_eq!(std::fs::read_dir(lab.path(place)).expect("read").count(), 0, "{place} without a mount");
    }
    lab.check();
    Ok(())
}

/// As systemd requests it when a unit is reloaded.
fn remount_again() -> Outcome {
    let lab = lab(&[]);
    lab.install_helpers()?;
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    lab.ok(&["mount", &pool, &mnt, "-o", "remount,nosuid"]);
    std::fs::write(lab.mnt().join("f"), "kept").expect("write");
    lab.kill9();
    lab::ok(&mut program("mount", &["-o", "remount,noatime", &mnt]));
    assert_eq!(std::fs::read(lab.mnt().join("f")).expect("read"), b"kept");
    let flags = flags_at(&lab, "mnt");
    assert!(flags.contains("noatime") && flags.contains("nosuid"), "{flags}");
    lab.kill9();
    lab.ok(&["mount", &pool, &mnt, "-o", "remount,durability=strict"]);
    assert_eq!(lab.status()["sessions"][0]["durability"], "strict");
    assert_eq!(dirs(&lab), std::slice::from_ref(&mnt), "what was dead is gone");
    lab.umount();
    lab.refused(1, &["umount", &mnt], &["no pool is mounted"]);
    Ok(())
}

/// Otherwise `tar -g`, and others that record the device, take all files for new.
fn same_device() -> Outcome {
    let labs = [Lab::with_pool("16M"), Lab::with_file("16M")];
    let device = |lab: &Lab| {
        std::fs::metadata(lab.mnt()).map(|found| std::os::unix::fs::MetadataExt::dev(&found)).expect("stat")
    };
    labs.iter().for_each(Lab::mount);
    let before = labs.each_ref().map(device);
    if !std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|table| table.contains("fuseblk.conquest")) {
        return Err(crate::Skip("needs a kernel that tells servers of block devices of sync, and loop devices".into()));
    }
    assert_ne!(before[0], before[1]);
    labs.iter().for_each(Lab::umount);
    // In another order, and with another mount that takes the free numbers.
    let other = Lab::mounted("16M");
    labs[1].mount();
    labs[0].mount();
    assert_eq!(labs.each_ref().map(device), before);
    other.umount();
    labs.iter().for_each(Lab::umount);
    let minor = rustix::fs::minor(before[0]);
    wait_until(Duration::from_secs(5), "the device goes", || !Path::new(&format!("/sys/block/loop{minor}")).exists());
    Ok(())
}

/// As in a container whose mounts belong to another user, and on kernels that cannot mount beneath a mount (before
/// 6.5).
fn covered() -> Outcome {
    let lab = lab(&[]);
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    std::fs::write(lab.mnt().join("f"), "kept").expect("write");
    lab.kill9();
    let mut container = container(&["--user", "--map-root-user"]);
    let pid = container.id().to_string();
    let inside = ["nsenter", "--user", "--mount", "--target", &pid];
    for round in 0..2 {
        let mounted = lab.run_as(&inside, &["mount", &pool, &mnt]);
        assert_eq!(mounted.code, 0, "{}", mounted.err);
        assert_eq!(lab::ok(program(inside[0], &inside[1..]).args(["cat", &lab.text("mnt/f")])), "kept");
        let table = lab::ok(program(inside[0], &inside[1..]).args(["cat", "/proc/self/mountinfo"]));
        assert_eq!(table.matches(&format!(" {mnt} ")).count(), 2, "round {round}: {table}");
        let server = lab.status()["sessions"][0]["pid"].as_i64().expect("a server");
        if round == 0 {
            kill_and_wait(rustix::process::Pid::from_raw(server as i32).expect("a process"), Signal::KILL);
        }
    }
    let ended = lab.run_as(&inside, &["umount", &mnt]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    container.kill().and_then(|()| container.wait()).expect("the end of the container");
    lab.umount();
    lab.check();
    Ok(())
}

/// `mount --bind` of a directory keeps the server alive, and answers ENOTCONN after its end.
fn part() -> Outcome {
    let lab = lab(&["part"]);
    let (pool, part) = (lab.pool(), lab.text("part"));
    std::fs::create_dir(lab.mnt().join("dir")).expect("mkdir");
    std::fs::write(lab.mnt().join("dir/f"), "in it").expect("write");
    lab::ok(&mut program("mount", &["--bind", &lab.text("mnt/dir"), &part]));
    lab.kill9();
    lab.mount();
    assert_eq!(std::fs::read(lab.path("part/f")).expect("read"), b"in it");
    assert!(lab.ok(&["umount", &lab.text("mnt")]).contains(&part));
    lab.refused(1, &["mount", &pool, &lab.text("mnt")], &[&part, "part"]);
    lab.umount_at(&part);
    lab.mount();
    lab.umount();
    lab.check();
    Ok(())
}

fn at_once() -> Outcome {
    let lab = Lab::with_pool("64M");
    let pool = lab.pool();
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| std::fs::create_dir(lab.path(name)).expect("mkdir"));
    for round in 0..5 {
        let dirs: Vec<String> = names.iter().chain(["d"].iter()).map(|name| lab.text(name)).collect();
        let codes: Vec<i32> = std::thread::scope(|scope| {
            let runs: Vec<_> = dirs.iter().map(|dir| scope.spawn(|| lab.run(&["mount", &pool, dir]).code)).collect();
            runs.into_iter().map(|run| run.join().expect("no panic")).collect()
        });
        assert_eq!(codes[..3], [0; 3], "round {round}");
        assert_eq!(codes[3] + codes[4], 1, "round {round}: one place, once");
        assert_eq!((servers(&lab), self::dirs(&lab).len()), (1, 4), "round {round}");
        std::fs::write(lab.path("a/f"), round.to_string()).expect("write");
        assert_eq!(std::fs::read_to_string(lab.path("d/f")).expect("read"), round.to_string());
        match round % 2 {
            0 => drop(lab.ok(&["umount", &pool])),
            _ => {
                lab.kill(&lab.path("a"));
                names.iter().for_each(|name| lab.umount_at(&lab.text(name)));
            }
        }
    }
    lab.check();
    Ok(())
}

fn unprivileged() -> Outcome {
    lab::require("fusermount3")?;
    lab::require("setpriv")?;
    let lab = Lab::new();
    let home = lab.path("home");
    std::fs::create_dir(&home).expect("mkdir");
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).expect("chown");
    let (pool, first, second) = (lab.text("home/pool"), lab.text("home/first"), lab.text("home/second"));
    let run = |args: &[&str]| lab.run_as(&NOBODY, args);
    assert_eq!(run(&["format", &pool, "--nvram", "16M"]).code, 0);
    for dir in [&first, &second] {
        std::fs::create_dir(dir).expect("mkdir");
        std::os::unix::fs::chown(dir, Some(65534), Some(65534)).expect("chown");
    }
    // Any user may open the device, as udev makes it; containers often have one for root alone.
    let device = Path::new("/dev/fuse");
    let before = device.metadata().expect("stat").permissions();
    std::fs::set_permissions(device, std::fs::Permissions::from_mode(0o666)).expect("chmod");
    let mounted = run(&["mount", &pool, &first]);
    std::fs::set_permissions(device, before).expect("chmod");
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    let again = run(&["mount", &pool, &second]);
    again.is_refusal(1, &["mounted already", &first, "only root", "`sudo mount --bind"], "a user's second place");
    // Root does not act on the content of a user's directory.
    lab.refused(1, &["mount", &pool, &second], &["belongs to user 65534"]);
    lab::ok(&mut program("mount", &["--bind", &first, &second]));
    lab::ok(&mut program("umount", &[&second]));
    assert_eq!(run(&["umount", &first]).code, 0);
    Ok(())
}

/// A process with its own mount namespace.
fn container(also: &[&str]) -> std::process::Child {
    let sleep = ["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 1000"];
    let mut container = Command::new("unshare").args(also).args(sleep).stdout(Stdio::piped()).spawn().expect("unshare");
    container.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("it has its own mounts");
    container
}

fn other_namespace() -> Outcome {
    let lab = Lab::with_pool("64M");
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    let mut container = container(&[]);
    let pid = container.id().to_string();
    let inside = ["nsenter", "--mount", "--target", &pid];
    assert_eq!(lab.run_as(&inside, &["mount", &pool, &mnt]).code, 0);
    let server = lab.status()["sessions"][0]["pid"].to_string();
    let words = [format!("process {server}"), "another mount namespace".into(), format!("--target {server}")];
    lab.refused(1, &["mount", &pool, &mnt], &words.each_ref().map(String::as_str));
    assert_eq!(lab.run_as(&inside, &["umount", &mnt]).code, 0);
    container.kill().and_then(|()| container.wait()).expect("the end of the container");
    lab.mount();
    lab.umount();
    lab.check();
    Ok(())
}

/// `umount -l` of the last mount point while a file is open: the server goes on, but there is no mount to bind.
fn taken_away() -> Outcome {
    let lab = lab(&[]);
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    let open = File::create(lab.mnt().join("open")).expect("create");
    let server = lab.server();
    lab::ok(&mut program("umount", &["-l", &mnt]));
    let pid = server.as_raw_nonzero().to_string();
    lab.refused(1, &["mount", &pool, &mnt], &[&format!("process {pid}"), "umount -l", &format!("`kill {pid}`")]);
    drop(open);
    // The server ends now, and the next one waits for that.
    lab.mount();
    assert_ne!(lab.server(), server);
    lab.umount();
    lab.check();
    Ok(())
}

fn sigterm() -> Outcome {
    let lab = lab(&["second"]);
    lab.ok(&["mount", &lab.pool(), &lab.text("second")]);
    let mut busy = File::create(lab.path("second/busy")).expect("create");
    std::io::Write::write_all(&mut busy, b"in use").expect("write");
    kill_and_wait(lab.server(), Signal::TERM);
    assert!(dirs(&lab).is_empty() && !lab.path("second/busy").exists());
    drop(busy);
    lab.mount();
    assert_eq!(std::fs::read(lab.mnt().join("busy")).expect("read"), b"in use");
    lab.umount();
    lab.check();
    Ok(())
}

fn remount() -> Outcome {
    let lab = lab(&["second"]);
    let (pool, mnt, second) = (lab.pool(), lab.text("mnt"), lab.text("second"));
    lab.ok(&["mount", &pool, &second]);
    let remount = |dir: &str, words: &str| drop(lab.ok(&["mount", &pool, dir, "-o", &format!("remount,{words}")]));
    remount(&second, "ro,nosuid");
    assert!(flags_at(&lab, "second").starts_with("ro,nosuid"));
    assert!(flags_at(&lab, "mnt").starts_with("rw,relatime"));
    std::fs::write(lab.mnt().join("f"), "writable").expect("write");
    assert!(std::fs::write(lab.path("second/f"), "no").is_err());
    // With mount(8) alone the whole file system becomes read-only; making one mount point writable makes it writable
    // again.
    lab::ok(&mut program("mount", &["-i", "-o", "remount,ro", &mnt]));
    remount(&second, "rw");
    std::fs::write(lab.path("second/f"), "now").expect("write");
    assert!(std::fs::write(lab.mnt().join("f"), "no").is_err());
    remount(&mnt, "rw,sync");
    assert!(flags_at(&lab, "second").contains("sync"), "that is the file system's");
    assert_eq!(lab.status()["sessions"][0]["durability"], "strict");
    lab.ok(&["umount", &pool]);
    lab.check();
    Ok(())
}

fn access_times() -> Outcome {
    let lab = Lab::with_pool("16M");
    std::fs::create_dir(lab.path("second")).expect("mkdir");
    let (pool, second, file) = (lab.pool(), lab.text("second"), lab.mnt().join("f"));
    lab.mount_with("noatime");
    std::fs::write(&file, "text").expect("write");
    let follows = |notes: bool| {
        let what = if notes { "accesses are noted" } else { "no accesses are noted" };
        wait_until(Duration::from_secs(5), what, || crate::mounting::updates_atime(&file) == notes);
    };
    follows(false);
    lab.ok(&["mount", &pool, &second]);
    follows(true);
    lab.ok(&["mount", &pool, &second, "-o", "remount,noatime"]);
    follows(false);
    lab.ok(&["umount", &pool]);
    Ok(())
}
