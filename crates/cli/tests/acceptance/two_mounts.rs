//! Several processes on one pool see the same files at once.

use std::fs::{File, Permissions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::{chown, FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rng::Rng;

use rustix::fs::{
    copy_file_range, fallocate, getxattr, setxattr, utimensat, AtFlags, FallocateFlags, Timespec, Timestamps,
    XattrFlags, CWD,
};
use rustix::io::{pwritev2, ReadWriteFlags};

use crate::lab::{self, kill_and_wait, program, Lab};
use crate::like_others::{as_user, chmod, mode, USER};
use crate::settings::seed;
use crate::{tree, Outcome, Test};

pub const TESTS: &[Test] = &[
    ("two_mounts::changes_are_seen_at_once", changes_are_seen_at_once),
    ("two_mounts::writers_in_both_lose_nothing", writers_in_both_lose_nothing),
    ("two_mounts::the_death_of_one_leaves_the_other_working", death_of_one),
    ("two_mounts::a_file_is_no_more_its_former_owners", former_owner),
    ("two_mounts::what_is_appended_follows_what_the_other_has_appended", growth),
    ("two_mounts::a_file_that_the_other_has_cut_ends_there", cut),
    ("two_mounts::what_is_just_made_is_as_the_other_leaves_it", just_made),
    ("two_mounts::a_change_takes_rights_that_the_other_has_given", rights),
];

/// A lab whose pool is mounted at `mnt` and at `other`.
fn lab() -> Lab {
    let lab = Lab::mounted("256M");
    std::fs::create_dir(lab.path("other")).expect("mkdir");
    lab.mount_at(&lab.text("other"), "");
    lab
}

fn close(lab: &Lab) {
    lab.umount();
    lab.ok(&["umount", &lab.text("other")]);
    lab.check();
}

/// Also of one that was written past the page cache a moment ago.
fn cut() -> Outcome {
    let lab = lab();
    let (here, there) = (lab.mnt().join("f"), lab.path("other/f"));
    let mut file = File::create(&here).expect("create");
    file.write_all(&[7; 10_000]).expect("write");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            File::options().write(true).open(&there).expect("open").set_len(100).expect("truncate");
            let reads = File::open(&here).expect("open");
            let end = rustix::fs::seek(&reads, rustix::fs::SeekFrom::End(0)).expect("seek");
            (end, std::fs::read(&here).expect("read").len())
        });
        assert_eq!(other.join().expect("looked"), (100, 100));
    });
    drop(file);
    close(&lab);
    Ok(())
}

/// The reply that brings a file to a kernel must not count for more than what the other has told since.
fn just_made() -> Outcome {
    let lab = lab();
    let (here, there) = (lab.mnt(), lab.path("other"));
    for round in 0..1500 {
        let name = format!("f{round}");
        let (mine, theirs) = (here.join(&name), there.join(&name));
        std::thread::scope(|scope| {
            let append = scope.spawn(|| loop {
                match File::options().append(true).open(&theirs) {
                    Ok(mut file) => break file.write_all(&[7; 100]).expect("write"),
                    Err(_) => std::hint::spin_loop(),
                }
            });
            drop(File::create_new(&mine).expect("create"));
            append.join().expect("appended");
        });
        assert_eq!(std::fs::metadata(&mine).expect("stat").len(), 100, "round {round}");
        assert_eq!(std::fs::read(&mine).expect("read"), [7; 100], "round {round}");
    }
    close(&lab);
    Ok(())
}

/// Names, attributes and content that one mount has cached are never older than what the other did.
fn changes_are_seen_at_once() -> Outcome {
    let lab = lab();
    let (here, there) = (lab.mnt().join("f"), lab.path("other/f"));
    for round in 0..300u64 {
        assert!(!there.exists(), "round {round}: a name that is not there");
        std::fs::write(&here, round.to_le_bytes()).expect("write");
        assert_eq!(std::fs::read(&there).expect("read"), round.to_le_bytes(), "round {round}: new content");
        let file = File::options().write(true).open(&there).expect("open");
        file.write_all_at(b"changed beyond", 4).expect("write");
        assert_eq!(here.metadata().expect("stat").len(), 18, "round {round}: new size");
        assert_eq!(std::fs::read(&here).expect("read")[4..], *b"changed beyond", "round {round}: changed content");
        let moved = lab.mnt().join("g");
        std::fs::rename(&there, lab.path("other/g")).expect("rename");
        assert!(!here.exists() && moved.exists(), "round {round}: renamed");
        std::fs::remove_file(&moved).expect("unlink");
    }
    close(&lab);
    Ok(())
}

/// Appends from both sides to the same files, atomically, and files of each side.
fn writers_in_both_lose_nothing() -> Outcome {
    let lab = lab();
    let sides = [lab.mnt(), lab.path("other")];
    std::thread::scope(|scope| {
        for (side, dir) in sides.iter().enumerate() {
            scope.spawn(move || write_side(dir, side as u64));
        }
    });
    let logs = ["log0", "log1"].map(|name| std::fs::read_to_string(lab.mnt().join(name)).expect("read"));
    let mut lines: Vec<&str> = logs.iter().flat_map(|log| log.lines()).collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 2 * OPS as usize, "each appended line is there once");
    let (here, there) = (tree::describe(&sides[0]), tree::describe(&sides[1]));
    tree::assert_same(&here, &there, "the two mounts");
    close(&lab);
    Ok(())
}

const OPS: u64 = 1500;

fn write_side(dir: &Path, side: u64) {
    let mut rng = Rng::new(seed() ^ side);
    for op in 0..OPS {
        let log = dir.join(format!("log{}", rng.below(2)));
        let mut log = File::options().append(true).create(true).open(log).expect("open");
        // 32 bytes: the kernel may make two requests of what lies in two pages, and the other mount's may come between.
        log.write_all(format!("side {side} line {op:<19}\n").as_bytes()).expect("append");
        let file = dir.join(format!("{side}-{}", rng.below(50)));
        match rng.below(3) {
            0 => drop(std::fs::remove_file(&file)),
            _ => {
                let len = rng.below(9000) as usize;
                std::fs::write(&file, rng.bytes(len)).expect("write")
            }
        }
    }
}

fn death_of_one() -> Outcome {
    let lab = lab();
    std::fs::write(lab.mnt().join("f"), "before").expect("write");
    let other = lab.server_of(&lab.path("other")).expect("a server");
    kill_and_wait(other, rustix::process::Signal::KILL);
    std::fs::write(lab.mnt().join("g"), "after").expect("write");
    assert_eq!(std::fs::read(lab.mnt().join("f")).expect("read"), b"before");
    lab.check();
    lab.ok(&["umount", &lab.text("other")]);
    lab.mount_at(&lab.text("other"), "");
    assert_eq!(std::fs::read(lab.path("other/g")).expect("read"), b"after");
    close(&lab);
    Ok(())
}

/// An access ACL: the owner and `USER` may read and write.
fn acl() -> Vec<u8> {
    let entry =
        |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    let nobody = u32::MAX;
    let entries =
        [entry(1, 6, nobody), entry(2, 6, USER), entry(4, 0, nobody), entry(16, 6, nobody), entry(32, 0, nobody)];
    [2u32.to_le_bytes().to_vec(), entries.concat()].concat()
}

/// A kernel may not have been told whose a file is when it checks what its owner may: he could give it rights still.
fn former_owner() -> Outcome {
    lab::require("setpriv")?;
    let lab = lab();
    let (here, there) = (lab.mnt().join("f"), lab.path("other/f"));
    std::fs::write(&here, "text").expect("write");
    let to_root = || {
        chown(&here, Some(USER), Some(USER)).expect("chown");
        there.metadata().expect("stat");
        chown(&here, Some(0), Some(0)).expect("chown");
        chmod(&here, 0o644);
    };
    let past = || Timestamps {
        last_access: Timespec { tv_sec: 1, tv_nsec: 0 },
        last_modification: Timespec { tv_sec: 1, tv_nsec: 0 },
    };
    let acl = acl();
    type Change<'a> = &'a (dyn Fn(&Path) -> std::io::Result<()> + Sync);
    let changes: [(&str, Change); 4] = [
        ("chmod", &|path| std::fs::set_permissions(path, Permissions::from_mode(0o4777))),
        ("utimens", &|path| Ok(utimensat(CWD, path, &past(), AtFlags::empty())?)),
        ("an ACL", &|path| Ok(setxattr(path, "system.posix_acl_access", &acl, XattrFlags::empty())?)),
        ("chown", &|path| chown(path, Some(USER), None)),
    ];
    for (name, change) in changes {
        to_root();
        let mut done = Ok(());
        as_user(|| done = change(&there));
        assert_eq!(done.expect_err(name).raw_os_error(), Some(libc::EPERM), "{name}");
        let attr = here.metadata().expect("stat");
        assert_eq!((attr.uid(), attr.mode() & 0o7777), (0, 0o644), "{name}");
    }
    let sticky = lab.mnt().join("sticky");
    std::fs::create_dir(&sticky).expect("mkdir");
    chmod(&sticky, 0o1777);
    std::fs::rename(&here, sticky.join("f")).expect("rename");
    let (here, there) = (sticky.join("f"), lab.path("other/sticky/f"));
    chown(&here, Some(USER), None).expect("chown");
    there.metadata().expect("stat");
    chown(&here, Some(0), None).expect("chown");
    as_user(|| {
        let e = std::fs::remove_file(&there).expect_err("a sticky directory");
        assert_eq!(e.raw_os_error(), Some(libc::EPERM));
    });
    capable_users(&here, &there);
    close(&lab);
    Ok(())
}

/// Capabilities count where the file's owner is somebody of the user namespace that they hold in.
fn capable_users(here: &Path, there: &Path) {
    let user = USER.to_string();
    let run = |before: &[&str], mode: &str| {
        let words = [&["--reuid", &user, "--clear-groups"], before, &["chmod", mode]].concat();
        program("setpriv", &words).arg(there).output().expect("setpriv").status.success()
    };
    chown(here, Some(USER), None).expect("chown");
    there.metadata().expect("stat");
    chown(here, Some(0), None).expect("chown");
    assert!(!run(&["unshare", "--user", "--map-root-user"], "4777"), "the superuser of a namespace");
    assert_eq!(mode(here), 0o644);
    assert!(run(&["--inh-caps", "+fowner", "--ambient-caps", "+fowner"], "640"), "a user with the capability");
    assert_eq!(mode(here), 0o640);
}

/// A kernel that has not been told where a file ends wrote over what the other mount had appended, and copied no further.
fn growth() -> Outcome {
    let lab = lab();
    let (here, there) = (lab.mnt().join("f"), lab.path("other/f"));
    let copy = File::create(lab.path("other/copy")).expect("create");
    // It makes a difference where in its page the last byte is.
    for (round, len) in [20_000, 4095, 4096, 4097, 8193].into_iter().enumerate() {
        let mut text = vec![b'a'; 4000];
        std::fs::write(&here, &text).expect("write");
        let file = File::options().read(true).write(true).open(&there).expect("open");
        let appender = File::options().read(true).append(true).open(&there).expect("open");
        assert_eq!(std::fs::read(&there).expect("read"), text, "round {round}");
        let append = |text: &mut Vec<u8>, len: usize| {
            let more = vec![b'b' + text.len() as u8 % 8; len - text.len()];
            File::options().append(true).open(&here).and_then(|mut file| file.write_all(&more)).expect("append");
            text.extend(more);
        };
        append(&mut text, len);
        let copied = copy_file_range(&file, Some(&mut 4000), &copy, None, 1 << 20).expect("copy");
        assert_eq!(copied, len - 4000, "round {round}: all is copied");
        append(&mut text, len + 1);
        pwritev2(&file, &[IoSlice::new(b"end")], 0, ReadWriteFlags::APPEND).expect("append");
        text.extend(b"end");
        assert_eq!(std::fs::read(&here).expect("read"), text, "round {round}: after RWF_APPEND");
        append(&mut text, len + 9000);
        (&appender).write_all(b"tail").expect("append");
        let mut tail = [0; 4];
        file.read_exact_at(&mut tail, text.len() as u64).expect("read");
        assert_eq!(&tail, b"tail", "round {round}");
        text.extend(b"tail");
        assert_eq!(std::fs::read(&there).expect("read"), text, "round {round}: after O_APPEND");
        assert_eq!(std::fs::read(&here).expect("read"), text, "round {round}: after O_APPEND");
    }
    drop(copy);
    close(&lab);
    Ok(())
}

/// A kernel takes what a program may do from who changes it, but only what it knows of.
fn rights() -> Outcome {
    let lab = lab();
    let (here, there) = (lab.mnt().join("f"), lab.path("other/f"));
    std::fs::write(&here, "text").expect("write");
    chmod(&here, 0o666);
    let file = File::options().read(true).write(true).open(&there).expect("open");
    let write = || file.write_all_at(b"x", 0).expect("write");
    as_user(write);
    type Change<'a> = &'a (dyn Fn() + Sync);
    let changes: [(&str, Change); 3] = [
        ("write", &write),
        ("truncate", &|| file.set_len(9).expect("truncate")),
        ("fallocate", &|| fallocate(&file, FallocateFlags::empty(), 0, 100).expect("fallocate")),
    ];
    let capability = [&[1, 0, 0, 2, 0, 0x20][..], &[0; 14]].concat();
    for (name, change) in changes {
        chmod(&here, 0o6777);
        setxattr(&here, CAPABILITY, &capability, XattrFlags::empty()).expect("setxattr");
        as_user(change);
        assert_eq!(mode(&here), 0o777, "{name}");
        let left = getxattr(&here, CAPABILITY, &mut [0u8; 99][..]);
        assert_eq!(left, Err(rustix::io::Errno::NODATA), "{name}");
    }
    drop(file);
    close(&lab);
    Ok(())
}

const CAPABILITY: &str = "security.capability";
