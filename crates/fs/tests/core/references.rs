//! Inodes without name, numbers used again, and memory that comes back.

use std::sync::atomic::{AtomicBool, Ordering};

use conquest::{Caller, Pool, SetAttr, SetTime, ROOT};
use conquest_fs::layout::tag;
use conquest_fs::node::{Change, Fallocate, Rename, WriteFlags};
use conquest_fs::path::Open;
use rustix::io::Errno;

use crate::rig::*;

fn inode_bytes(pool: &Pool) -> u64 {
    pool.session().memory().allocated().unwrap()[usize::from(tag::INODE_BLOCK.0)]
}

/// A mount that ended kept references; no process could end the files unlinked meanwhile, and the pool
/// counted as closed properly, so nothing swept them.
#[test]
fn what_only_the_references_of_a_process_keep_ends_with_it() {
    let (dir, pool) = pool(8 * MIB);
    let other = open(&dir);
    let v = root(&pool);
    put(&v, "file", &[7; 5000]).unwrap();
    let ino = v.stat(b"file").unwrap().ino;
    other.retain(ino, 3).unwrap();
    v.unlink(b"file").unwrap();
    assert_eq!(pool.getattr(ino).unwrap().nlink, 0, "it lives");
    let mut buf = [0; 10];
    assert_eq!(other.read(ino, 4000, &mut buf).unwrap(), 10);
    drop(other);
    assert_errno(pool.getattr(ino), Errno::STALE);
    assert_tidy(&pool);
}

/// A mount looks names up before its thread for notifications of changes runs: stale lookups stayed.
#[test]
fn changes_before_the_first_look_are_reported() {
    let (dir, pool) = pool(8 * MIB);
    let other = open(&dir);
    let seen = root(&pool).mkdir(b"dir", 0o755).unwrap().ino;
    other.begin_watching().unwrap();
    other.retain(seen, 1).unwrap();
    let (mut changes, done) = (Vec::new(), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            put(&root(&pool), "dir/new", b"x").unwrap();
            done.store(true, Ordering::Release);
            other.stop_watching();
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!done.load(Ordering::Acquire), "it waits for who watches");
        other.watch(&mut |change| changes.push(change)).unwrap();
    });
    assert!(changes.contains(&Change::Directory(seen)), "{changes:?}");
}

/// Watches as a mount does while `act` runs, and recalls what a mount would. Returns all that it was notified of.
fn notified(other: &Pool, act: impl FnOnce() + Send) -> Vec<Change> {
    let mut changes = Vec::new();
    std::thread::scope(|s| {
        s.spawn(|| {
            act();
            other.stop_watching();
        });
        let watched = other.watch(&mut |change| {
            let recalled = match &change {
                Change::Directory(ino) | Change::Entry { parent: ino, .. } => Some(*ino),
                Change::Inode { ino, attr_only: false, .. } => Some(*ino),
                _ => None,
            };
            if let Some(ino) = recalled {
                other.session().begin_recall(ino);
                other.session().end_recall(ino);
            }
            changes.push(change);
        });
        watched.unwrap();
    });
    changes
}

/// Each name cost two notifications.
#[test]
fn a_directory_is_recalled_once() {
    let (dir, pool) = pool(8 * MIB);
    let other = open(&dir);
    let v = root(&pool);
    let seen = v.mkdir(b"dir", 0o755).unwrap().ino;
    put(&v, "dir/known", b"x").unwrap();
    let known = v.stat(b"dir/known").unwrap().ino;
    other.begin_watching().unwrap();
    other.retain(seen, 1).unwrap();
    other.retain(known, 1).unwrap();
    let changes = notified(&other, || {
        for n in 0..100 {
            put(&v, &format!("dir/{n}"), b"new").unwrap();
            v.rename(format!("dir/{n}").as_bytes(), b"dir/moved", Rename::Replace).unwrap();
            v.setattr(b"dir", &SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
        }
        v.unlink(b"dir/moved").unwrap();
        // What the watcher may have by its name it has to learn of.
        v.rename(b"dir/known", b"dir/by", Rename::Replace).unwrap();
        other.session().take_back(seen);
        v.unlink(b"dir/by").unwrap();
        put(&v, "dir/one more", b"").unwrap();
        other.session().take_back(seen);
        put(&v, "dir/another", b"").unwrap();
    });
    let entry = |name: &[u8]| Change::Entry { parent: seen, name: name.to_vec(), old: Some(known) };
    assert_eq!(changes, [Change::Directory(seen), entry(b"known"), entry(b"by"), Change::Directory(seen)]);
}

#[test]
fn a_file_is_recalled_once_but_for_its_size_and_what_is_computed_from_extended_attributes() {
    let (dir, pool) = pool(8 * MIB);
    let other = open(&dir);
    let v = root(&pool);
    put(&v, "file", &[7; 10_000]).unwrap();
    let ino = v.stat(b"file").unwrap().ino;
    other.begin_watching().unwrap();
    other.retain(ino, 1).unwrap();
    let write = |offset| pool.write(ino, offset, &[1; 100], WriteFlags::default()).unwrap();
    let set = |set: SetAttr| pool.setattr(ino, &set, &Caller::root()).unwrap();
    let changes = notified(&other, || {
        for n in 0..100 {
            write(n * 50);
            set(SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() });
            set(SetAttr { mode: Some(0o600 + n as u32 % 8), ..SetAttr::default() });
            set(SetAttr { size: Some(9000), ..SetAttr::default() });
        }
        write(9000);
        let any = conquest_fs::node::SetXattr::Any;
        pool.setxattr(ino, b"user.a", b"b", any, &Caller::root()).unwrap();
        set(SetAttr { mode: Some(0o777), ..SetAttr::default() });
        other.session().take_back(ino);
        write(0);
    });
    let change = |attr_only, grown| Change::Inode { ino, attr_only, grown };
    let (content, growth, attributes) = (change(false, false), change(false, true), change(true, false));
    assert_eq!(changes, [content.clone(), growth, attributes.clone(), attributes, content]);
}

/// The watcher may have by a name what that led to before the change before: the next one, of what it does not know, was done
/// before the watcher had the notification of the first.
#[test]
fn a_change_of_a_name_waits_for_the_one_before() {
    let (dir, pool) = pool(8 * MIB);
    let other = open(&dir);
    let v = root(&pool);
    put(&v, "name", b"x").unwrap();
    let known = v.stat(b"name").unwrap().ino;
    other.begin_watching().unwrap();
    other.retain(ROOT, 1).unwrap();
    other.retain(known, 1).unwrap();
    other.session().begin_recall(ROOT);
    other.session().end_recall(ROOT);
    let (removed, added) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut early = false;
    std::thread::scope(|s| {
        s.spawn(|| {
            v.unlink(b"name").unwrap();
            removed.store(true, Ordering::Release);
        });
        s.spawn(|| {
            eventually("the name is gone", || v.stat(b"name").is_err());
            put(&v, "other name", b"").unwrap();
            put(&v, "name", b"new").unwrap();
            added.store(true, Ordering::Release);
            eventually("both are done", || removed.load(Ordering::Acquire));
            other.stop_watching();
        });
        let watched = other.watch(&mut |_| {
            if !removed.load(Ordering::Acquire) && !early {
                eventually("others go on", || v.stat(b"name").is_ok());
                std::thread::sleep(std::time::Duration::from_millis(20));
                early |= added.load(Ordering::Acquire);
            }
        });
        watched.unwrap();
    });
    assert!(!early, "it was done while the watcher had the name still");
}

/// Content allocated before memory ran out was there, without a notification.
#[test]
fn what_a_failed_allocation_did_is_reported() {
    let (dir, pool) = pool(8 * MIB);
    let other = open(&dir);
    let ino = root(&pool).create(b"file", 0o600).unwrap().ino();
    other.begin_watching().unwrap();
    other.retain(ino, 1).unwrap();
    let mut changes = Vec::new();
    std::thread::scope(|s| {
        s.spawn(|| {
            let all = Fallocate::Allocate { keep_size: false };
            assert_errno(pool.fallocate(ino, all, 0, 100 * MIB), Errno::NOSPC);
            other.stop_watching();
        });
        other.watch(&mut |change| changes.push(change)).unwrap();
    });
    assert!(pool.getattr(ino).unwrap().size > 0, "pieces of it are there");
    let is_it =
        |change: &Change| matches!(change, Change::Inode { ino: of, attr_only: false, grown: true } if *of == ino);
    assert!(changes.iter().any(is_it), "{changes:?}");
}

#[test]
fn a_file_without_name_gets_one_or_ends() {
    let (_dir, pool) = pool(8 * MIB);
    let caller = Caller::root();
    let [kept, lost] = [0, 1].map(|_| pool.tmpfile(ROOT, 0o644, &caller).unwrap().ino);
    for ino in [kept, lost] {
        pool.write(ino, 0, &[1; 9000], WriteFlags::default()).unwrap();
    }
    assert_eq!(pool.link(kept, ROOT, b"named", &caller).unwrap().nlink, 1);
    pool.release(kept, 1);
    pool.release(lost, 1);
    assert_eq!(get(&root(&pool), "named").unwrap(), [1; 9000]);
    assert_errno(pool.getattr(lost), Errno::STALE);
    assert_tidy(&pool);
}

/// Two processes that open, write, close and unlink one name: each reader holds the file it opened.
#[test]
fn an_open_file_stays_itself_while_its_number_goes_round() {
    let (_dir, pool) = pool(32 * MIB);
    let v = root(&pool);
    put(&v, "f", b"0").unwrap();
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            for i in 0..20_000u32 {
                let _ = v.unlink(b"f");
                put(&v, "f", format!("{i}").as_bytes()).unwrap();
            }
        });
        while !writer.is_finished() {
            let Ok(file) = v.open(b"f", Open::new().read(true)) else { continue };
            let generation = file.attr().expect("what is open exists").generation;
            let mut buf = [0; 16];
            file.read_at(&mut buf, 0).expect("and can be read");
            assert_eq!(file.attr().unwrap().generation, generation);
        }
    });
    assert_tidy(&pool);
}

/// Blocks of inodes stayed for ever.
#[test]
fn memory_comes_back_after_mass_deletion() {
    let (_dir, pool) = pool(64 * MIB);
    let v = root(&pool);
    let before = inode_bytes(&pool);
    for d in 0..20 {
        v.mkdir(format!("d{d}").as_bytes(), 0o755).unwrap();
        for f in 0..1000 {
            put(&v, &format!("d{d}/f{f}"), b"").unwrap();
        }
    }
    assert!(inode_bytes(&pool) > before + 20_000 * 80);
    delete_all(&v, "");
    eventually("maintenance gives inode blocks back", || inode_bytes(&pool) <= before + 3 * 1296);
    assert_tidy(&pool);
    // Their numbers can be used again, and are not taken for the same inodes.
    put(&v, "again", b"x").unwrap();
    assert_tidy(&pool);
}

#[test]
fn generations_differ_when_a_block_is_made_anew() {
    let (_dir, pool) = pool(16 * MIB);
    let v = root(&pool);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..20 {
        for i in 0..100 {
            put(&v, &format!("f{i}"), b"").unwrap();
            let a = v.stat(format!("f{i}").as_bytes()).unwrap();
            assert!(seen.insert((a.ino, a.generation)), "{} {} came twice", a.ino, a.generation);
        }
        delete_all(&v, "");
        pool.sweep().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(8));
    }
    assert_tidy(&pool);
}
