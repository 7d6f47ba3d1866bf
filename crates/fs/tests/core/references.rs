//! Inodes without name, numbers used again, and memory that comes back.

use conquest::{Caller, Pool, ROOT};
use conquest_fs::layout::tag;
use conquest_fs::node::{Change, Fallocate, WriteFlags};
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
    let (mut changes, done) = (Vec::new(), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            put(&root(&pool), "dir/new", b"x").unwrap();
            done.store(true, std::sync::atomic::Ordering::Release);
            other.stop_watching();
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!done.load(std::sync::atomic::Ordering::Acquire), "it waits for who watches");
        other.watch(&mut |change| changes.push(change)).unwrap();
    });
    let is_it =
        |change: &Change| matches!(change, Change::Entry { parent, name } if (*parent, &name[..]) == (seen, b"new"));
    assert!(changes.iter().any(is_it), "{changes:?}");
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
