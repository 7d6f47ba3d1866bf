//! mount(8), fstab, remounting, options, images at unmount, users without privileges.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;

use crate::lab::{self, kill_and_wait, program, wait_until, Lab, Process, NOBODY};
use crate::{tree, Outcome, Test};

pub const TESTS: &[Test] = &[
    ("mounting::a_mount_that_may_not_open_enough_files_fails", few_files),
    ("mounting::memory_that_was_deleted", memory_deleted),
    ("mounting::mount_8_finds_the_helpers", helpers),
    ("mounting::a_line_of_fstab_works", fstab),
    ("mounting::remount_changes_flags", remount),
    ("mounting::remount_takes_flags_away", remount_away),
    ("mounting::remount_knows_strictatime", remount_strict),
    ("mounting::read_only_is_read_only", read_only),
    ("mounting::access_times_follow_the_options", access_times),
    ("mounting::extended_attributes_can_be_left_out", noxattr),
    ("mounting::umount_waits_for_the_server", umount_waits),
    ("mounting::what_the_pool_lies_on_can_be_unmounted_after_it", below_is_free),
    ("mounting::umount_says_where_a_pool_stays_mounted", stays_mounted),
    ("mounting::a_killed_mount_can_be_unmounted_and_mounted_again", killed),
    ("mounting::a_server_that_is_being_killed_is_waited_for", being_killed),
    ("mounting::a_server_that_is_killed_as_it_starts_ends", killed_at_start),
    ("mounting::sigterm_unmounts_and_saves", sigterm_saves),
    ("mounting::sigterm_closes_what_is_mounted_elsewhere_or_no_more", sigterm_elsewhere),
    ("mounting::unmounting_saves_and_the_image_restores", unmount_saves),
    ("mounting::an_image_in_the_pool_itself_is_refused", image_in_itself),
    ("mounting::an_image_in_place_of_the_pool_is_refused", image_over_pool),
    ("mounting::umount_says_who_may", unmounting_for_others),
    ("mounting::umount_tells_how_the_server_ended", tells_how_it_ended),
    ("mounting::several_make_one_pool_at_once", at_once),
    ("mounting::up_makes_mounts_and_finds", up),
    ("mounting::both_transports_work", transports),
    ("mounting::a_user_without_privileges_mounts", unprivileged),
    ("mounting::install_puts_everything_in_place", install),
];

fn helpers() -> Outcome {
    let lab = Lab::with_pool("64M");
    lab.install_helpers()?;
    let mnt = lab.text("mnt");
    for kind in ["conquest", "fuse.conquest"] {
        lab::ok(&mut program("mount", &["-t", kind, "-o", "noatime,nosuid", &lab.pool(), &mnt]));
        std::fs::write(lab.mnt().join("f"), kind).expect("write");
        let options = flags(&lab.mnt());
        assert!(options.contains("noatime") && options.contains("nosuid"), "{options}");
        lab::ok(&mut program("umount", &[&mnt]));
        wait_until_closed(&lab);
    }
    if Path::new("/sbin/mount.fuse3").exists() {
        let path = format!("{}:/usr/bin:/bin:/usr/sbin", lab.text("prefix/bin"));
        let source = format!("conquest#{}", lab.pool());
        lab::ok(program("/sbin/mount.fuse3", &[&source, &mnt, "-o", "rw"]).env("PATH", path));
        assert_eq!(std::fs::read(lab.mnt().join("f")).expect("read"), b"fuse.conquest");
        lab.umount();
    }
    let ran = Command::new("mount").args(["-t", "conquest", "/no/such/pool", &mnt]).output().expect("mount");
    lab::Ran::from(ran).is_refusal(1, &["no pool", "conquest list"], "mount -t conquest of nothing");
    Ok(())
}

fn noxattr() -> Outcome {
    use rustix::fs::{getxattr, setxattr, XattrFlags};
    let lab = Lab::with_pool("32M");
    let file = lab.mnt().join("f");
    let get = || getxattr(&file, "user.a", &mut [0u8; 8][..]);
    let set = || setxattr(&file, "user.a", b"text", XattrFlags::empty());
    lab.mount();
    std::fs::write(&file, "content").expect("write");
    assert_eq!((set(), get()), (Ok(()), Ok(4)));
    lab.refused(1, &["mount", &lab.pool(), &lab.text("mnt"), "-o", "remount,noxattr"], &["noxattr", "unmount"]);
    lab.umount();
    lab.mount_with("noxattr");
    for _ in 0..2 {
        assert_eq!((set(), get()), (Err(rustix::io::Errno::OPNOTSUPP), Err(rustix::io::Errno::OPNOTSUPP)));
    }
    assert_eq!(std::fs::read(&file).expect("read"), b"content");
    lab.umount();
    lab.mount();
    assert_eq!(get(), Ok(4), "it is there still");
    lab.umount();
    lab.check();
    Ok(())
}

fn fstab() -> Outcome {
    let lab = Lab::with_pool("64M");
    lab.install_helpers()?;
    let fstab = lab.text("fstab");
    let line = format!(
        "{} {} conquest defaults,noatime,nofail,x-systemd.requires=local-fs.target 0 0\n",
        lab.pool(),
        lab.text("mnt")
    );
    std::fs::write(&fstab, line).expect("fstab");
    lab::ok(&mut program("mount", &["-T", &fstab, "-a"]));
    std::fs::write(lab.mnt().join("f"), "x").expect("write");
    assert!(flags(&lab.mnt()).contains("noatime"));
    lab::ok(&mut program("mount", &["-T", &fstab, "-o", "remount,ro", &lab.text("mnt")]));
    assert!(std::fs::write(lab.mnt().join("g"), "x").is_err());
    lab.umount();
    Ok(())
}

/// The flags of the mount at `dir`.
fn flags(dir: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let line = mounts.lines().rev().find(|l| l.split(' ').nth(4) == dir.to_str()).expect("a mount");
    line.split(' ').nth(5).expect("options").to_string()
}

fn wait_until_closed(lab: &Lab) {
    wait_until(Duration::from_secs(20), "the server closes the pool", || lab.server_of(&lab.mnt()).is_none());
}

/// With the helper, and with mount(8) alone (`-i`): the server follows the kernel's flags.
fn remount() -> Outcome {
    let lab = Lab::with_pool("64M");
    lab.install_helpers()?;
    let mnt = lab.text("mnt");
    let file = lab.mnt().join("f");
    for internal in [false, true] {
        lab.mount_with(if internal { "ro" } else { "nosuid" });
        let remount = |options: &str| {
            let options = format!("remount,{options}");
            let args = ["-o", &options, &mnt, "-i"];
            lab::ok(&mut program("mount", &args[..3 + usize::from(internal)]))
        };
        if !internal {
            std::fs::write(&file, "before").expect("write");
            remount("ro");
            let now = flags(&lab.mnt());
            assert!(now.starts_with("ro") && now.contains("nosuid"), "{now}");
        }
        let refused = std::fs::write(&file, "no").expect_err("a read-only mount");
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
        remount("rw,noatime");
        assert!(flags(&lab.mnt()).starts_with("rw,") && flags(&lab.mnt()).contains("noatime"));
        std::fs::write(&file, "again").expect("write to a mount that is writable again");
        wait_until(Duration::from_secs(5), "the server follows", || !updates_atime(&file));
        // mount(8) alone keeps noatime with relatime, on any file system.
        remount(if internal { "strictatime" } else { "relatime" });
        assert!(!flags(&lab.mnt()).contains("noatime"), "{}", flags(&lab.mnt()));
        wait_until(Duration::from_secs(5), "the server follows", || updates_atime(&file));
        lab.umount();
    }
    lab.check();
    Ok(())
}

/// Options that mount(8) leaves out are removed; options that `conquest mount` does not name stay.
fn remount_away() -> Outcome {
    let lab = Lab::with_pool("16M");
    lab.install_helpers()?;
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    lab.mount_with("nosuid,nodev,noexec,nodiratime");
    let by_mount = |options: &str| lab::ok(&mut program("mount", &["-o", &format!("remount,{options}"), &mnt]));
    for (option, flag) in [("suid", "nosuid"), ("dev", "nodev"), ("exec", "noexec"), ("diratime", "nodiratime")] {
        assert!(flags(&lab.mnt()).contains(flag), "{}", flags(&lab.mnt()));
        by_mount(option);
        assert!(!flags(&lab.mnt()).contains(flag), "{option}: {}", flags(&lab.mnt()));
    }
    lab::ok(&mut program("mount", &["-i", "-o", "remount,nosymfollow,nosuid", &mnt]));
    lab.ok(&["mount", &pool, &mnt, "-o", "remount,noexec"]);
    let now = flags(&lab.mnt());
    assert!(["nosymfollow", "nosuid", "noexec"].iter().all(|flag| now.contains(flag)), "{now}");
    by_mount("noatime");
    let now = flags(&lab.mnt());
    assert!(["nosymfollow", "nosuid", "noexec", "noatime"].iter().all(|flag| now.contains(flag)), "{now}");
    lab.umount();
    Ok(())
}

fn remount_strict() -> Outcome {
    let lab = Lab::with_pool("16M");
    lab.install_helpers()?;
    let (pool, mnt, file) = (lab.pool(), lab.text("mnt"), lab.mnt().join("f"));
    lab.mount();
    std::fs::write(&file, "text").expect("write");
    let follows =
        |strict: bool| wait_until(Duration::from_secs(5), "the server follows", || notes_all(&file) == strict);
    follows(false);
    lab.ok(&["mount", &pool, &mnt, "-o", "remount,strictatime"]);
    follows(true);
    lab.ok(&["mount", &pool, &mnt, "-o", "remount,nosuid"]);
    assert!(notes_all(&file), "what is not named stays");
    lab.ok(&["mount", &pool, &mnt, "-o", "remount,relatime"]);
    follows(false);
    lab::ok(&mut program("mount", &["-o", "remount,strictatime", &mnt]));
    follows(true);
    lab.umount();
    lab.mount_with("strictatime");
    assert!(notes_all(&file));
    lab::ok(&mut program("mount", &["-o", "remount,relatime", &mnt]));
    follows(false);
    lab.umount();
    Ok(())
}

/// Is the second of two accesses noted too?
fn notes_all(file: &Path) -> bool {
    let access = || {
        std::thread::sleep(Duration::from_millis(20));
        read_past_the_cache(file);
        file.metadata().and_then(|found| found.accessed()).expect("stat")
    };
    access() != access()
}

/// Is a read noted that follows a change after the last access?
pub fn updates_atime(file: &Path) -> bool {
    std::fs::write(file, "some text").expect("write");
    age(file);
    read_past_the_cache(file);
    file.metadata().expect("stat").atime() > LONG_AGO as i64
}

const LONG_AGO: u64 = 1_000_000;

/// Sets a change shortly after the last access, both long ago.
fn age(file: &Path) {
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(LONG_AGO);
    let times = std::fs::FileTimes::new().set_accessed(old).set_modified(old + Duration::from_secs(10));
    File::options().write(true).open(file).and_then(|f| f.set_times(times)).expect("set times");
}

/// A read from the kernel's cache is no access that a server could see.
fn read_past_the_cache(file: &Path) {
    let file = File::open(file).expect("open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
    std::io::read_to_string(file).expect("read");
}

fn read_only() -> Outcome {
    let lab = Lab::mounted("64M");
    std::fs::write(lab.mnt().join("f"), "here").expect("write");
    lab.umount();
    lab.mount_with("ro");
    assert_eq!(std::fs::read(lab.mnt().join("f")).expect("read"), b"here");
    for refused in [
        std::fs::write(lab.mnt().join("f"), "no"),
        std::fs::write(lab.mnt().join("g"), "no"),
        std::fs::remove_file(lab.mnt().join("f")),
        std::fs::create_dir(lab.mnt().join("d")),
    ] {
        let errno = refused.expect_err("a read-only mount").raw_os_error();
        assert_eq!(errno, Some(rustix::io::Errno::ROFS.raw_os_error()));
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// relatime: once after a change; noatime: never; strictatime: at each read that reaches the server; nodiratime: not
/// for directories.
fn access_times() -> Outcome {
    let lab = Lab::with_pool("64M");
    let file = lab.mnt().join("f");
    for (options, updated) in [("relatime", true), ("noatime", false), ("strictatime", true)] {
        lab.mount_with(options);
        assert_eq!(updates_atime(&file), updated, "{options}");
        lab.umount();
    }
    let dir = lab.mnt().join("d");
    lab.mount();
    std::fs::create_dir(&dir).expect("mkdir");
    lab.umount();
    for (options, updated) in [("relatime", true), ("nodiratime", false), ("strictatime,nodiratime", false)] {
        lab.mount_with(options);
        assert_eq!(listing_updates_atime(&dir), updated, "{options}");
        lab.umount();
    }
    lab.mount_with("nodiratime");
    lab::ok(&mut program("mount", &["-o", "remount,diratime", &lab.text("mnt")]));
    wait_until(Duration::from_secs(10), "it is remounted", || listing_updates_atime(&dir));
    lab::ok(&mut program("mount", &["-o", "remount,nodiratime", &lab.text("mnt")]));
    wait_until(Duration::from_secs(10), "and back", || !listing_updates_atime(&dir));
    Ok(())
}

fn listing_updates_atime(dir: &Path) -> bool {
    let old = std::time::SystemTime::UNIX_EPOCH;
    let handle = File::open(dir).expect("open");
    handle.set_times(std::fs::FileTimes::new().set_accessed(old)).expect("an old time");
    std::fs::read_dir(dir).expect("open").for_each(|entry| drop(entry.expect("an entry")));
    std::fs::metadata(dir).and_then(|m| m.accessed()).expect("it is there") != old
}

/// At once, by a server that ended in order, and by one that was killed.
fn below_is_free() -> Outcome {
    let lab = Lab::new();
    let below = lab.loop_ext4()?;
    let (pool, mnt, disk) = (lab.text("ext4/pool"), lab.text("mnt"), lab.text("ext4/disk:64M"));
    for medium in ["logged", "battery"] {
        lab.ok(&["format", &pool, "--nvram", "32M", "--medium", medium, "--disk", &disk]);
        for killed in [false, false, true] {
            lab.ok(&["mount", &pool, &mnt]);
            lab::write_seeded(&lab.path("mnt/large"), 1, 4 << 20);
            let table = serde_json::from_str::<serde_json::Value>(&lab.ok(&["status", &pool, "--json"])).expect("JSON");
            let server =
                table["sessions"].as_array().expect("sessions").iter().find(|session| session["role"] == "mount");
            let server = server.and_then(|server| server["pid"].as_i64()).expect("a server");
            if killed {
                kill_and_wait(rustix::process::Pid::from_raw(server as i32).expect("a process"), Signal::KILL);
            }
            lab.umount();
            lab::ok(&mut program("umount", &[&below.to_string_lossy()]));
            lab::ok(program("mount", &["-o", "loop", &lab.text("ext4.img")]).arg(&below));
        }
        lab.ok(&["destroy", &pool]);
    }
    Ok(())
}

fn umount_waits() -> Outcome {
    let lab = Lab::mounted("64M");
    let server = Process::open(lab.server());
    lab.umount();
    assert!(server.has_ended(), "the server still runs");
    lab.refused(1, &["umount", &lab.text("mnt")], &["no pool is mounted"]);
    lab.mount();
    let busy = File::create(lab.mnt().join("open")).expect("create");
    lab.refused(1, &["umount", &lab.text("mnt")], &["in use"]);
    drop(busy);
    lab.umount();
    Ok(())
}

/// A second directory, or a container, keeps the file system.
fn stays_mounted() -> Outcome {
    let lab = Lab::mounted("64M");
    std::fs::create_dir(lab.path("second")).expect("mkdir");
    let (mnt, second) = (lab.text("mnt"), lab.text("second"));
    lab::ok(&mut program("mount", &["--bind", &mnt, &second]));
    assert!(lab.ok(&["umount", &mnt]).contains(&format!("stays mounted at {second}")));
    lab::ok(&mut program("umount", &[&second]));
    wait_until_closed(&lab);

    lab.mount();
    let sleep = ["--mount", "--propagation", "private", "sleep", "1000"];
    let mut container = Command::new("unshare").args(sleep).stdout(Stdio::null()).spawn().expect("unshare");
    let pid = container.id();
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let is_apart = || namespace(pid) != namespace(std::process::id());
    wait_until(Duration::from_secs(10), "the container has its own mounts", is_apart);
    let remedy = format!("`nsenter --mount --target {pid} umount {mnt}`");
    lab.refused(1, &["umount", &mnt], &["server goes on", "(sleep)", &remedy]);
    container.kill().and_then(|()| container.wait()).expect("the end of the container");
    wait_until_closed(&lab);
    lab.mount();
    lab.umount();
    lab.check();
    Ok(())
}

fn killed() -> Outcome {
    let lab = Lab::mounted("64M");
    for round in 0..6 {
        let file = lab.mnt().join(format!("f{round}"));
        std::fs::write(&file, "kept").expect("write");
        lab.kill9();
        let gone = file.metadata().expect_err("no server");
        assert!(lab::is_gone(&gone), "{gone}");
        match round % 3 {
            0 => lab.umount(),
            1 => drop(lab::ok(&mut program("umount", &[&lab.text("mnt")]))),
            _ => {}
        }
        lab.mount();
        assert_eq!(std::fs::read(&file).expect("read"), b"kept");
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// The test does not wait for the end of the process. It exists for some time yet, with memory that takes a while to
/// free, and so does its mount, which answers ECANCELED over io_uring.
fn being_killed() -> Outcome {
    let lab = Lab::with_pool("256M");
    let (pool, mnt, file) = (lab.pool(), lab.text("mnt"), lab.mnt().join("f"));
    for transport in ["uring", "dev"] {
        let options = format!("transport={transport}");
        if lab.run(&["mount", &pool, &mnt, "-o", &options]).code != 0 {
            println!("note: {transport} cannot be had here");
            continue;
        }
        lab::write_seeded(&file, 1, 100 << 20);
        for round in 0..6 {
            let server = lab.server();
            rustix::process::kill_process(server, Signal::KILL).expect("kill");
            match round % 3 {
                0 => assert!(lab.ok(&["up", "--pool", &pool, &mnt, "-o", &options]).starts_with("mounted")),
                1 => drop(lab.ok(&["mount", &pool, &mnt, "-o", &options])),
                _ => {
                    lab.umount();
                    lab.mount_with(&options);
                }
            }
            assert_eq!(file.metadata().expect("stat").len(), 100 << 20);
            assert_ne!(lab.server(), server);
        }
        // A server that is alive is not being killed.
        let start = Instant::now();
        assert!(lab.ok(&["up", "--pool", &pool, &mnt]).contains("already mounted"));
        lab.refused(1, &["mount", &pool, &mnt], &["already mounted"]);
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        lab.umount();
    }
    lab.check();
    Ok(())
}

/// A server that waited for its own mount could not end, and its descriptors stayed open.
fn killed_at_start() -> Outcome {
    let lab = Lab::with_pool("16M");
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    for transport in ["dev", "uring"] {
        let options = format!("transport={transport}");
        if lab.run(&["mount", &pool, &mnt, "-o", &options]).code != 0 {
            println!("note: {transport} cannot be had here");
            continue;
        }
        lab.umount();
        for round in 0..40 {
            let mut server = lab.command(&["mount", "-f", &pool, &mnt, "-o", &options]);
            let mut server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a server");
            wait_at_once(Duration::from_secs(60), "it is mounted", || is_mounted(&mnt));
            std::thread::sleep(Duration::from_micros(round * 150));
            server.kill().expect("kill");
            let has_ended = || server.try_wait().expect("its end").is_some();
            wait_until(Duration::from_secs(10), "the killed server ends", has_ended);
            if round % 4 == 0 {
                lab.ok(&["mount", &pool, &mnt, "-o", &options]);
                std::fs::write(lab.mnt().join("f"), "works").expect("write");
            }
            lab.umount();
        }
    }
    lab.check();
    Ok(())
}

fn is_mounted(dir: &str) -> bool {
    std::fs::read_to_string("/proc/self/mounts").expect("mounts").lines().any(|m| m.split(' ').nth(1) == Some(dir))
}

/// As `wait_until`, without a pause between the checks.
fn wait_at_once(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "waited {limit:?} until {what}");
    }
}

fn sigterm_saves() -> Outcome {
    let lab = Lab::with_pool("64M");
    let image = lab.path("image");
    for signal in [Signal::TERM, Signal::INT] {
        lab.mount_with(&format!("save={}", image.display()));
        lab::write_seeded(&lab.mnt().join("f"), 1, 300_000);
        kill_and_wait(lab.server(), signal);
        assert!(lab.mnt().join("f").symlink_metadata().is_err(), "still mounted");
        assert!(image.metadata().is_ok_and(|m| m.len() > 0), "no image after {signal:?}");
        std::fs::remove_file(&image).expect("remove the image");
    }
    lab.check();
    Ok(())
}

/// Its mount is out of the table: after `umount -l`, or because it exists only in another mount namespace.
fn sigterm_elsewhere() -> Outcome {
    let lab = Lab::with_pool("64M");
    for in_container in [false, true] {
        lab.mount();
        let server = lab.server();
        let sleep = ["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 1000"];
        let container = in_container.then(|| {
            let mut container = Command::new("unshare").args(sleep).stdout(Stdio::piped()).spawn().expect("unshare");
            container.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("it has its own mounts");
            container
        });
        let open = (!in_container).then(|| File::create(lab.mnt().join("open")).expect("create"));
        lab::ok(&mut program("umount", &["-l", &lab.text("mnt")]));
        kill_and_wait(server, Signal::TERM);
        drop(open);
        if let Some(mut container) = container {
            container.kill().and_then(|()| container.wait()).expect("the end of the container");
        }
        assert_eq!(lab.status()["sweep_pending"], false, "in a container: {in_container}");
    }
    lab.check();
    Ok(())
}

fn unmount_saves() -> Outcome {
    let lab = Lab::with_pool("64M");
    let image = lab.text("image");
    lab.mount_with(&format!("save={image}"));
    for n in 0..50 {
        lab::write_seeded(&lab.mnt().join(format!("f{n}")), n, 10_000 * n as usize / 3);
    }
    let before = tree::describe(&lab.mnt());
    lab.umount();
    std::fs::remove_dir_all(lab.path("pool")).expect("lose the pool");
    lab.ok(&["restore", &lab.pool(), &image]);
    lab.mount();
    tree::assert_same(&before, &tree::describe(&lab.mnt()), "restored from an image");
    // An image of a pool in use, restored beside it.
    lab.ok(&["save", &lab.text("mnt"), &lab.text("second")]);
    lab.refused(1, &["restore", &lab.pool(), &image], &["mounted", "umount"]);
    lab.umount();
    lab.refused(1, &["restore", &lab.pool(), &image], &["--force"]);
    lab.ok(&["restore", &lab.pool(), &lab.text("second"), "--force"]);
    lab.mount();
    tree::assert_same(&before, &tree::describe(&lab.mnt()), "restored from the second image");
    lab.umount();
    lab.check();
    Ok(())
}

fn up() -> Outcome {
    let lab = Lab::new();
    let (pool, dir) = (lab.pool(), lab.text("up"));
    let up = ["up", "--pool", &pool, "--size", "64M", &dir];
    let said = lab.ok(&up);
    assert!(said.contains("made a pool") && said.contains("mounted"), "{said}");
    std::fs::write(lab.path("up/f"), "mine").expect("write");
    let said = lab.ok(&up);
    assert!(said.contains("already mounted"), "{said}");
    let said = lab.ok(&["up", "--pool", &pool]);
    assert!(said.contains("already mounted") && said.contains(&dir), "{said}");
    lab.ok(&["umount", &dir]);
    lab.ok(&up);
    assert_eq!(std::fs::read(lab.path("up/f")).expect("read"), b"mine");
    let server = lab.server_of(&lab.path("up")).expect("a server");
    kill_and_wait(server, Signal::KILL);
    lab.ok(&up);
    assert_eq!(std::fs::read(lab.path("up/f")).expect("read"), b"mine");
    lab.ok(&["umount", &dir]);
    lab.refused(1, &["up", "--pool", &pool, "/sys/fs/cgroup/pids"], &["another file system"]);
    Ok(())
}

fn transports() -> Outcome {
    let lab = Lab::with_pool("64M");
    let mut tried = Vec::new();
    for (option, name) in [("dev", "/dev/fuse"), ("uring", "io_uring")] {
        let ran = lab.run(&["mount", &lab.pool(), &lab.text("mnt"), "-o", &format!("transport={option}")]);
        if ran.code != 0 {
            assert_eq!(option, "uring", "{}", ran.err);
            assert!(ran.err.contains("io_uring"), "{}", ran.err);
            println!("note: {}", ran.err.trim());
            continue;
        }
        assert_eq!(lab.status()["sessions"][0]["transport"], name);
        lab::write_seeded(&lab.mnt().join(option), 7, 3_000_000);
        tried.push(tree::describe(&lab.mnt()));
        lab.umount();
    }
    lab.refused(2, &["mount", &lab.pool(), &lab.text("mnt"), "-o", "transport=pigeon"], &["pigeon", "uring"]);
    lab.refused(2, &["mount", &lab.pool(), &lab.text("mnt"), "-o", "frobnicate"], &["frobnicate"]);
    lab.check();
    Ok(())
}

fn unprivileged() -> Outcome {
    lab::require("fusermount3")?;
    lab::require("setpriv")?;
    let lab = Lab::new();
    lab.let_users_mount()?;
    let (home, dir) = (lab.text("home"), lab.text("home/mnt"));
    lab::ok(&mut program("install", &["-d", "-o", "65534", "-g", "65534", &home, &dir]));
    let pool = lab.text("home/pool");
    let as_nobody = |args: &[&str]| {
        let ran = lab.run_as(&NOBODY, args);
        assert_eq!(ran.code, 0, "{args:?} as nobody: {}{}", ran.out, ran.err);
    };
    as_nobody(&["format", &pool, "--nvram", "64M"]);
    as_nobody(&["mount", &pool, &dir]);
    let shell = format!("echo mine > {dir}/f && cat {dir}/f && stat -c %u {dir}/f");
    let said = lab::ok(&mut program(NOBODY[0], &[&NOBODY[1..], &["sh", "-c", &shell]].concat()));
    assert_eq!(said, "mine\n65534\n");
    // The server is asked, because the kernel would refuse.
    as_nobody(&["mount", &pool, &dir, "-o", "remount,durability=strict,commit=7"]);
    let status = lab.run_as(&NOBODY, &["status", &dir, "-v"]).out;
    assert!(status.contains("durability strict, commits every 7 s"), "{status}");
    let refused = lab.run_as(&NOBODY, &["mount", &pool, &dir, "-o", "remount,noatime,commit=8"]);
    assert!(refused.code == 1 && refused.err.contains("not permitted"), "{}{}", refused.out, refused.err);
    as_nobody(&["umount", &dir]);
    as_nobody(&["fsck", &pool]);
    lab::ok(&mut program("umount", &["/dev/fuse"]));
    Ok(())
}

fn install() -> Outcome {
    let lab = Lab::new();
    lab.ok(&["install", "--prefix", &lab.text("prefix"), "--helpers", &lab.text("helpers")]);
    for file in ["prefix/bin/conquest", "helpers/mount.conquest", "helpers/mount.fuse.conquest"] {
        let said = lab::ok(program(&lab.text(file), &["--help"]).stdin(Stdio::null()));
        assert!(said.contains("conquest"), "{file}: {said}");
    }
    for file in ["man/man1/conquest.1", "man/man1/conquest-mount.1", "bash-completion/completions/conquest"] {
        assert!(lab.path("prefix/share").join(file).metadata().is_ok_and(|m| m.len() > 100), "{file}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(lab.ok(&["completions", shell]).contains("conquest"), "{shell}");
    }
    Ok(())
}

/// Processes continue with memory that was deleted under them, and close the pool in order. Unmounting once did not
/// wait for that, and mounting again was refused.
fn memory_deleted() -> Outcome {
    let lab = Lab::mounted("32M");
    for round in 0..3 {
        let region = PathBuf::from(lab.status()["nvram"].as_str().expect("a path"));
        let name = region.to_str().and_then(|path| path.strip_suffix("-region")).expect("a region").to_owned();
        let runtime = ["", "-marks"].iter().map(|end| PathBuf::from(format!("{name}{end}")));
        for file in runtime.take(round).chain([region]) {
            std::fs::remove_file(file).expect("delete");
        }
        std::fs::write(lab.mnt().join(format!("after{round}")), "all the same").expect("write");
        lab.refused(2, &["status", &lab.pool()], &["processes work on the pool", "deleted"]);
        lab.umount();
        lab.mount();
        assert_eq!(std::fs::read(lab.mnt().join(format!("after{round}"))).expect("read"), b"all the same");
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// The pool stands still while it is saved: saving an image to its own mount once waited for ever.
fn image_in_itself() -> Outcome {
    let lab = Lab::mounted("16M");
    let (inside, bound) = (lab.mnt().join("dir"), lab.path("bound"));
    std::fs::create_dir(&inside).and_then(|()| std::fs::create_dir(&bound)).expect("mkdir");
    assert!(program("mount", &["--bind", &lab.text("mnt/dir"), &lab.text("bound")]).status().expect("mount").success());
    for dir in [lab.mnt(), inside, bound.clone()] {
        let image = dir.join("image").to_string_lossy().into_owned();
        lab.refused(1, &["save", &lab.pool(), &image], &["lies in the pool itself", "elsewhere"]);
    }
    assert_eq!(std::fs::read_dir(&bound).expect("list").count(), 0);
    lab.ok(&["save", &lab.pool(), &lab.text("image")]);
    assert!(program("umount", &[&lab.text("bound")]).status().expect("umount").success());
    lab.umount();
    Ok(())
}

/// The image was once written, also when unmounting, and then the pool could not be opened.
fn image_over_pool() -> Outcome {
    let lab = Lab::new();
    let (pool, mnt, ram) = (lab.pool(), lab.text("mnt"), lab.text("ram"));
    let words = &["a part of the pool itself", "choose another file"];
    let mirror = ["--nvram", &ram, "--size", "16M", "--mirror", &lab.text("mirror")];
    for format in [&["--nvram", "16M"][..], &mirror] {
        lab.ok(&[&["format", &pool, "--force"][..], format].concat());
        // A mirrored backing is made when the pool is first opened.
        lab.mount();
        lab.umount();
        let backing = if format.len() > 2 { "mirror" } else { "pool" };
        let bound = lab.text("bound");
        std::fs::create_dir_all(&bound).expect("mkdir");
        lab::ok(&mut program("mount", &["--bind", &lab.text(backing), &bound]));
        let mut parts = vec![lab.text("pool/pool.toml"), lab.text("bound/image")];
        parts.extend(["image", "redo-0", "redo-1"].map(|name| lab.text(&format!("{backing}/{name}"))));
        if backing == "mirror" {
            parts.push(ram.clone());
        }
        for part in &parts {
            lab.refused(1, &["save", &pool, part], words);
            lab.refused(1, &["mount", &pool, &mnt, "-o", &format!("save={part}")], words);
            lab.refused(1, &["up", "--pool", &pool, &mnt, "-o", &format!("save={part}")], words);
        }
        lab.mount();
        lab.refused(1, &["save", &mnt, &parts[0]], words);
        lab.refused(1, &["mount", &pool, &mnt, "-o", &format!("remount,save={}", parts[0])], &["save="]);
        lab.umount();
        lab::ok(&mut program("umount", &[&bound]));
        lab.check();
    }
    // Nor at a path that no mount would ever show.
    std::fs::create_dir(lab.mnt().join("dir")).expect("mkdir");
    for file in ["mnt/image", "mnt/dir/image"] {
        let save = format!("save={}", lab.text(file));
        lab.refused(1, &["mount", &pool, &mnt, "-o", &save], &["save=", "under the mount", "elsewhere"]);
    }
    lab.refused(1, &["mount", &pool, &mnt, "-o", "save=/dev/null"], &["no regular file"]);
    Ok(())
}

/// It once printed nothing at all.
fn unmounting_for_others() -> Outcome {
    lab::require("fusermount3")?;
    lab::require("setpriv")?;
    let lab = Lab::mounted("16M");
    let ran = lab.run_as(&NOBODY, &["umount", &lab.text("mnt")]);
    ran.is_refusal(1, &["not permitted", "root", "who mounted it"], "umount by another user");
    lab.umount();
    Ok(())
}

/// Failures of the server at its end once stood in its log alone, and `umount` succeeded.
fn tells_how_it_ended() -> Outcome {
    let lab = Lab::with_pool("16M");
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    for (save, words) in
        [("no/such/dir/image", "No such file"), ("mnt", "is a directory"), ("pool/pool.toml/image", "is not a dir")]
    {
        let options = format!("save={}", lab.text(save));
        lab.refused(1, &["mount", &pool, &mnt, "-o", &options], &["save=", words]);
    }
    std::fs::create_dir(lab.path("images")).expect("mkdir");
    lab.mount_with(&format!("save={}", lab.text("images/image")));
    std::fs::write(lab.mnt().join("first"), "kept").expect("write");
    std::fs::remove_dir(lab.path("images")).expect("rmdir");
    lab.refused(1, &["umount", &mnt], &["unmounted, but cannot save", "images/image", "`conquest save"]);

    lab.mount();
    assert_eq!(std::fs::read_to_string(lab.mnt().join("first")).expect("read"), "kept");
    lab.umount();

    let lab = Lab::on_small_disk("32M", "40M")?;
    let mnt = lab.text("mnt");
    lab.mount();
    let filler = lab.fill_disk();
    for n in 0..6 {
        // The backing may fail before all files exist.
        let _ = File::create(lab.mnt().join(format!("big{n}"))).and_then(|mut f| f.write_all(&[9; 3 << 20]));
    }
    let before = tree::describe(&lab.mnt());
    lab.refused(1, &["umount", &mnt], &["unmounted, but", "its backing", "lacks", "`conquest save"]);
    std::fs::remove_file(filler).expect("remove");
    lab.mount();
    tree::assert_same(&before, &tree::describe(&lab.mnt()), "from memory");
    lab.umount();
    lab.check();

    let lab = Lab::new();
    let (mnt, mirror) = (lab.text("mnt"), lab.text("mirror"));
    lab.ok(&["format", &lab.pool(), "--medium", "battery", "--nvram", "8M", "--mirror", &mirror]);
    lab.mount();
    std::fs::remove_file(lab.path("mirror/image")).expect("remove");
    let _ = std::fs::write(lab.mnt().join("file"), "in it");
    let ran = lab.run(&["umount", &mnt]);
    ran.is_refusal(
        1,
        &["unmounted, but", &format!("its backing in {mirror} lacks"), "`conquest save"],
        "a mirror is lost",
    );
    assert!(!ran.err.contains("machine stops"), "{}", ran.err);
    lab.mount();
    assert!(lab.mnt().join("file").exists());
    lab.umount();
    Ok(())
}

/// Several commands at once destroyed each other's half-made pools, and left no pool, or one that could not be opened.
fn at_once() -> Outcome {
    let lab = Lab::new();
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    let run_all = |args: &[&str]| -> Vec<i32> {
        std::thread::scope(|scope| {
            let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| lab.run(args).code)).collect();
            runs.into_iter().map(|run| run.join().expect("no panic")).collect()
        })
    };
    let first = lab.text("first");
    let mut made = run_all(&["format", &first, "--nvram", "8M"]);
    made.sort();
    assert_eq!(made, [0, 1, 1, 1], "one makes it, the others find it");
    lab.ok(&["fsck", &first]);
    assert_eq!(run_all(&["up", "--pool", &pool, "--size", "8M", &mnt]), [0; 4]);
    std::fs::write(lab.mnt().join("file"), "in it").expect("write");
    lab.umount();
    assert!(!lab.mnt().join("file").exists(), "it was mounted once");
    lab.mount();
    assert_eq!(std::fs::read(lab.mnt().join("file")).expect("read"), b"in it");
    lab.umount();
    lab.check();
    Ok(())
}

/// The mount was once reported as ready, and a queue that could not start ended it at once.
fn few_files() -> Outcome {
    lab::require("prlimit")?;
    let lab = Lab::with_pool("16M");
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    let mount = |limit: &str| lab.run_as(&["prlimit", &format!("--nofile={limit}")], &["mount", &pool, &mnt]);
    let mut mounted = Vec::new();
    for limit in (16..48).step_by(2) {
        let ran = mount(&limit.to_string());
        mounted.push(ran.code == 0);
        match ran.code {
            0 => {
                std::fs::write(lab.mnt().join("file"), "text").unwrap_or_else(|e| panic!("limit {limit}: {e}"));
                lab.umount();
            }
            _ => ran.is_refusal(1, &["cannot"], &format!("limit {limit}")),
        }
    }
    assert!(!mounted[0] && mounted.last() == Some(&true), "{mounted:?}");
    assert_eq!(mount("20:1024").code, 0, "what it may have it takes");
    lab.umount();
    lab.check();
    Ok(())
}
