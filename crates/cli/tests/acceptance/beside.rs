//! A program that works on the pool directly, by the API, and the mount see the same files at once: the kernel gets a
//! notification of a change before the changing call returns.

use std::fs::{File, Permissions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::{chown, FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;

use conquest::{Caller, Pool, SetAttr};
use conquest_fs::node::Rename;
use conquest_fs::path::{Open, View};
use rng::Rng;
use rustix::fs::{
    copy_file_range, fallocate, getxattr, setxattr, utimensat, AtFlags, FallocateFlags, Timespec, Timestamps,
    XattrFlags, CWD,
};
use rustix::io::{pwritev2, ReadWriteFlags};
use rustix::mm::ProtFlags;

use crate::lab::{self, program, Lab};
use crate::like_others::{as_user, mode, USER};
use crate::page_cache::Mapping;
use crate::settings::seed;
use crate::{tree, Outcome, Test};

pub const TESTS: &[Test] = &[
    ("beside::changes_are_seen_at_once", changes_are_seen_at_once),
    ("beside::writers_on_both_sides_lose_nothing", writers_on_both_sides),
    ("beside::the_death_of_the_mount_is_noticed", death_of_the_mount),
    ("beside::a_file_is_no_more_its_former_owners", former_owner),
    ("beside::what_is_appended_follows_what_a_program_has_appended", growth),
    ("beside::a_file_that_a_program_has_cut_ends_there", cut),
    ("beside::what_is_just_made_is_as_a_program_leaves_it", just_made),
    ("beside::a_change_takes_rights_that_a_program_has_given", rights),
    ("beside::a_call_of_a_program_does_not_take_long", speed),
    ("beside::stores_to_a_mapping_and_writes_of_a_program_both_stay", mapped),
];

/// A lab whose pool is mounted at `mnt`, and opened by this process.
pub fn lab() -> (Lab, Pool) {
    let lab = Lab::mounted("256M");
    let pool = lab.open();
    (lab, pool)
}

pub fn root(pool: &Pool) -> View<'_> {
    View::new(pool, Caller::root())
}

pub fn close(lab: &Lab, pool: Pool) {
    drop(pool);
    lab.umount();
    lab.check();
}

fn content(view: &View, name: &str) -> Vec<u8> {
    let file = view.open(name.as_bytes(), Open::new().read(true)).expect("open");
    let mut bytes = vec![0; file.attr().expect("stat").size as usize];
    file.read_at(&mut bytes, 0).expect("read");
    bytes
}

fn append(view: &View, name: &str, bytes: &[u8]) {
    let how = Open::new().append(true).write(true).create(true).mode(0o644);
    view.open(name.as_bytes(), how).and_then(|file| file.append(bytes)).expect("append");
}

fn replace(view: &View, name: &str, bytes: &[u8]) {
    let how = Open::new().write(true).create(true).truncate(true).mode(0o644);
    view.open(name.as_bytes(), how).and_then(|file| file.write_all_at(bytes, 0)).expect("write");
}

/// Even if the file was written a moment ago.
fn cut() -> Outcome {
    let (lab, pool) = lab();
    let path = lab.mnt().join("f");
    let mut file = File::create(&path).expect("create");
    file.write_all(&[7; 10_000]).expect("write");
    root(&pool).setattr(b"f", &SetAttr { size: Some(100), ..SetAttr::default() }).expect("truncate");
    let reads = File::open(&path).expect("open");
    let end = rustix::fs::seek(&reads, rustix::fs::SeekFrom::End(0)).expect("seek");
    assert_eq!((end, std::fs::read(&path).expect("read").len()), (100, 100));
    drop((file, reads));
    close(&lab, pool);
    Ok(())
}

/// The reply that brings a file to the kernel must not override notifications that came since.
fn just_made() -> Outcome {
    let (lab, pool) = lab();
    for round in 0..1500 {
        let name = format!("f{round}");
        let path = lab.mnt().join(&name);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| loop {
                match root(&pool).open(name.as_bytes(), Open::new().append(true).write(true)) {
                    Ok(file) => break file.append(&[7; 100]).expect("append"),
                    Err(_) => std::hint::spin_loop(),
                }
            });
            drop(File::create_new(&path).expect("create"));
            other.join().expect("appended");
        });
        assert_eq!(std::fs::metadata(&path).expect("stat").len(), 100, "round {round}");
        assert_eq!(std::fs::read(&path).expect("read"), [7; 100], "round {round}");
    }
    close(&lab, pool);
    Ok(())
}

/// The kernel's cached names, attributes and content are never older than the changes of a program.
fn changes_are_seen_at_once() -> Outcome {
    let (lab, pool) = lab();
    let (view, here) = (root(&pool), lab.mnt().join("f"));
    for round in 0..300u64 {
        assert!(!here.exists(), "round {round}: a name that is not there");
        replace(&view, "f", &round.to_le_bytes());
        assert_eq!(std::fs::read(&here).expect("read"), round.to_le_bytes(), "round {round}: new content");
        view.open(b"f", Open::new().write(true))
            .and_then(|file| file.write_all_at(b"changed beyond", 4))
            .expect("write");
        assert_eq!(here.metadata().expect("stat").len(), 18, "round {round}: new size");
        assert_eq!(std::fs::read(&here).expect("read")[4..], *b"changed beyond", "round {round}: changed content");
        let file = File::options().write(true).open(&here).expect("open");
        file.write_all_at(b"back", 0).expect("write");
        assert_eq!(content(&view, "f")[..8], *b"backchan", "round {round}: what the mount wrote");
        let moved = lab.mnt().join("g");
        view.rename(b"f", b"g", Rename::Replace).expect("rename");
        assert!(!here.exists() && moved.exists(), "round {round}: renamed");
        std::fs::remove_file(&moved).expect("unlink");
        assert!(view.stat(b"g").is_err(), "round {round}: removed");
    }
    close(&lab, pool);
    Ok(())
}

/// Both sides append to the same files, atomically, and write files of their own.
fn writers_on_both_sides() -> Outcome {
    let (lab, pool) = lab();
    let mnt = lab.mnt();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            write_side(
                0,
                |log, line| {
                    let file = File::options().append(true).create(true).open(mnt.join(log));
                    file.and_then(|mut file| file.write_all(line)).expect("append");
                },
                |name, bytes| match bytes {
                    Some(bytes) => std::fs::write(mnt.join(name), bytes).expect("write"),
                    None => drop(std::fs::remove_file(mnt.join(name))),
                },
            )
        });
        scope.spawn(|| {
            let view = root(&pool);
            write_side(
                1,
                |log, line| append(&view, log, line),
                |name, bytes| match bytes {
                    Some(bytes) => replace(&view, name, bytes),
                    None => drop(view.unlink(name.as_bytes())),
                },
            )
        });
    });
    let logs = ["log0", "log1"].map(|name| std::fs::read_to_string(mnt.join(name)).expect("read"));
    let mut lines: Vec<&str> = logs.iter().flat_map(|log| log.lines()).collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 2 * OPS as usize, "each appended line is there once");
    for name in tree::describe(&mnt).keys().filter_map(|path| path.to_str()) {
        if mnt.join(name).is_file() {
            assert!(content(&root(&pool), name) == std::fs::read(mnt.join(name)).expect("read"), "{name}");
        }
    }
    close(&lab, pool);
    Ok(())
}

const OPS: u64 = 1500;

fn write_side(side: u64, append: impl Fn(&str, &[u8]), set: impl Fn(&str, Option<&[u8]>)) {
    let mut rng = Rng::new(seed() ^ side);
    for op in 0..OPS {
        // 32 bytes: the kernel may split an append across two pages into two requests, and the other side's append may
        // come between.
        append(&format!("log{}", rng.below(2)), format!("side {side} line {op:<19}\n").as_bytes());
        let file = format!("{side}-{}", rng.below(50));
        match rng.below(3) {
            0 => set(&file, None),
            _ => {
                let len = rng.below(9000) as usize;
                set(&file, Some(&rng.bytes(len)))
            }
        }
    }
}

/// A program continues after the mount is killed, and its changes are present when the pool is mounted again.
fn death_of_the_mount() -> Outcome {
    let (lab, pool) = lab();
    std::fs::write(lab.mnt().join("f"), "before").expect("write");
    lab.kill9();
    let start = std::time::Instant::now();
    replace(&root(&pool), "g", b"after");
    assert!(start.elapsed() < std::time::Duration::from_secs(4), "{:?}", start.elapsed());
    assert_eq!(content(&root(&pool), "f"), b"before");
    lab.mount();
    assert_eq!(std::fs::read(lab.mnt().join("g")).expect("read"), b"after");
    replace(&root(&pool), "g", b"seen");
    assert_eq!(std::fs::read(lab.mnt().join("g")).expect("read"), b"seen");
    close(&lab, pool);
    Ok(())
}

/// A change costs some messages once if the kernel has the content cached, and none otherwise.
fn speed() -> Outcome {
    let (lab, pool) = lab();
    let view = root(&pool);
    let median = |name: &str| {
        let file = view.create(name.as_bytes(), 0o644).expect("create");
        file.write_all_at(&[1; 4096], 0).expect("write");
        if name == "cached" {
            std::fs::read(lab.mnt().join(name)).expect("read");
        }
        let mut times: Vec<_> = (0..201)
            .map(|_| {
                let start = std::time::Instant::now();
                file.write_all_at(&[2; 64], 0).expect("write");
                start.elapsed()
            })
            .collect();
        times.sort();
        times[times.len() / 2]
    };
    let (cached, other) = (median("cached"), median("other"));
    println!("note: a write of a program takes {other:?}, of what the mount has cached {cached:?}");
    assert!(cached < other * 2, "no notification goes out of what is recalled: {other:?}, {cached:?}");
    close(&lab, pool);
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

/// A kernel that does not know the new owner yet would let the former owner change rights, and so regain access.
fn former_owner() -> Outcome {
    lab::require("setpriv")?;
    let (lab, pool) = lab();
    let (view, here) = (root(&pool), lab.mnt().join("f"));
    std::fs::write(&here, "text").expect("write");
    let to = |name: &str, owner: u32| {
        let set = SetAttr { uid: Some(owner), gid: Some(owner), ..SetAttr::default() };
        view.setattr(name.as_bytes(), &set).expect("chown");
    };
    let to_root = || {
        to("f", USER);
        here.metadata().expect("stat");
        to("f", 0);
        view.setattr(b"f", &SetAttr { mode: Some(0o644), ..SetAttr::default() }).expect("chmod");
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
        as_user(|| done = change(&here));
        assert_eq!(done.expect_err(name).raw_os_error(), Some(libc::EPERM), "{name}");
        let attr = here.metadata().expect("stat");
        assert_eq!((attr.uid(), attr.mode() & 0o7777), (0, 0o644), "{name}");
    }
    view.mkdir(b"sticky", 0o700).expect("mkdir");
    view.setattr(b"sticky", &SetAttr { mode: Some(0o1777), ..SetAttr::default() }).expect("chmod");
    view.rename(b"f", b"sticky/f", Rename::Replace).expect("rename");
    let here = lab.mnt().join("sticky/f");
    to("sticky/f", USER);
    here.metadata().expect("stat");
    to("sticky/f", 0);
    as_user(|| {
        let e = std::fs::remove_file(&here).expect_err("a sticky directory");
        assert_eq!(e.raw_os_error(), Some(libc::EPERM));
    });
    to("sticky/f", USER);
    here.metadata().expect("stat");
    to("sticky/f", 0);
    capable_users(&here);
    close(&lab, pool);
    Ok(())
}

/// Capabilities count only if their user namespace maps the file's owner.
fn capable_users(file: &Path) {
    let user = USER.to_string();
    let run = |before: &[&str], mode: &str| {
        let words = [&["--reuid", &user, "--clear-groups"], before, &["chmod", mode]].concat();
        program("setpriv", &words).arg(file).output().expect("setpriv").status.success()
    };
    assert!(!run(&["unshare", "--user", "--map-root-user"], "4777"), "the superuser of a namespace");
    assert_eq!(mode(file), 0o644);
    assert!(run(&["--inh-caps", "+fowner", "--ambient-caps", "+fowner"], "640"), "a user with the capability");
    assert_eq!(mode(file), 0o640);
}

/// A kernel that did not know the new end of a file overwrote content that a program had appended, and copied no
/// further than the old end.
fn growth() -> Outcome {
    let (lab, pool) = lab();
    let (view, path) = (root(&pool), lab.mnt().join("f"));
    let copy = File::create(lab.mnt().join("copy")).expect("create");
    // The position of the last byte in its page matters.
    for (round, len) in [20_000, 4095, 4096, 4097, 8193].into_iter().enumerate() {
        let mut text = vec![b'a'; 4000];
        replace(&view, "f", &text);
        let file = File::options().read(true).write(true).open(&path).expect("open");
        let appender = File::options().read(true).append(true).open(&path).expect("open");
        assert_eq!(std::fs::read(&path).expect("read"), text, "round {round}");
        let append = |text: &mut Vec<u8>, len: usize| {
            let more = vec![b'b' + text.len() as u8 % 8; len - text.len()];
            self::append(&view, "f", &more);
            text.extend(more);
        };
        append(&mut text, len);
        let copied = copy_file_range(&file, Some(&mut 4000), &copy, None, 1 << 20).expect("copy");
        assert_eq!(copied, len - 4000, "round {round}: all is copied");
        append(&mut text, len + 1);
        pwritev2(&file, &[IoSlice::new(b"end")], 0, ReadWriteFlags::APPEND).expect("append");
        text.extend(b"end");
        assert_eq!(content(&view, "f"), text, "round {round}: after RWF_APPEND");
        append(&mut text, len + 9000);
        (&appender).write_all(b"tail").expect("append");
        let mut tail = [0; 4];
        file.read_exact_at(&mut tail, text.len() as u64).expect("read");
        assert_eq!(&tail, b"tail", "round {round}");
        text.extend(b"tail");
        assert_eq!(std::fs::read(&path).expect("read"), text, "round {round}: after O_APPEND");
        assert_eq!(content(&view, "f"), text, "round {round}: after O_APPEND");
    }
    drop(copy);
    close(&lab, pool);
    Ok(())
}

/// The kernel takes set-id bits and capabilities from a changed file, but only those that it knows of.
fn rights() -> Outcome {
    let (lab, pool) = lab();
    let (view, here) = (root(&pool), lab.mnt().join("f"));
    std::fs::write(&here, "text").expect("write");
    let ino = view.setattr(b"f", &SetAttr { mode: Some(0o666), ..SetAttr::default() }).expect("chmod").ino;
    let file = File::options().read(true).write(true).open(&here).expect("open");
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
        view.setattr(b"f", &SetAttr { mode: Some(0o6777), ..SetAttr::default() }).expect("chmod");
        let any = conquest_fs::node::SetXattr::Any;
        pool.setxattr(ino, CAPABILITY.as_bytes(), &capability, any, &Caller::root()).expect("setxattr");
        as_user(change);
        assert_eq!(mode(&here), 0o777, "{name}");
        let left = getxattr(&here, CAPABILITY, &mut [0u8; 99][..]);
        assert_eq!(left, Err(rustix::io::Errno::NODATA), "{name}");
    }
    drop(file);
    close(&lab, pool);
    Ok(())
}

const CAPABILITY: &str = "security.capability";

/// Also where both are to one page, of which the kernel writes back the whole.
fn mapped() -> Outcome {
    let (lab, pool) = lab();
    let view = root(&pool);
    let path = lab.mnt().join("mapped");
    std::fs::write(&path, [b'.'; 4096]).expect("a file");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let mapping = Mapping::of(&file, 4096, ProtFlags::READ | ProtFlags::WRITE);
    let (stored, written) = (u64::from_ne_bytes(*b"stored!!"), u64::from_ne_bytes(*b"written!"));
    for n in 0..50 {
        mapping.word(n * 8).store(stored, Ordering::SeqCst);
        let direct = view.open("mapped", Open::new().write(true)).expect("open");
        direct.write_all_at(b"written!", 4088 - n as u64 * 8).expect("write");
        let seen = [n * 8, 4088 - n * 8].map(|at| mapping.word(at).load(Ordering::SeqCst));
        assert_eq!(seen, [stored, written], "{n}");
    }
    let found = content(&view, "mapped");
    assert!(found[..400].chunks(8).all(|word| word == b"stored!!"));
    assert!(found[4096 - 400..].chunks(8).all(|word| word == b"written!"));
    drop((mapping, file));
    close(&lab, pool);
    Ok(())
}
