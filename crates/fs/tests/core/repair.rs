//! Repairs while other processes have the pool open.

use std::sync::atomic::{AtomicBool, Ordering};

use conquest::{Ino, Pool, ROOT};
use conquest_fs::layout::{root as roots, Super, INODE, PER_BLOCK, TABLE};
use conquest_fs::node::Change;
use pram::Off;
use rustix::io::Errno;

use crate::rig::*;

/// Where the inode table refers to the second level, and that to the block, of an inode.
fn words(pool: &Pool, ino: Ino) -> [Off<u64>; 2] {
    let region = pool.session().memory();
    let at = region.load(region.root(roots::SUPER)).unwrap();
    let table: Super = region.read(Off::new(at)).unwrap();
    let block = ino / PER_BLOCK;
    let level1 = table.inodes.index(block / TABLE);
    [level1, Off::<u64>::new(region.load(level1).unwrap()).index(block % TABLE)]
}

/// A process kept the place of a second level of the inode table, and went on in it when a repair had taken it out of
/// the table and freed it.
#[test]
fn what_a_repair_takes_out_of_the_inode_table_is_gone_for_others() {
    let (dir, pool) = pool(8 * MIB);
    let other = open(&dir);
    put(&root(&pool), "before", b"x").unwrap();
    assert!(root(&other).stat(b"before").is_ok());
    let [level1, _] = words(&pool, ROOT);
    let seen = other.session().seen(ROOT);
    pool.session().memory().commit_word(level1, 12345).unwrap();
    assert!(!pool.fsck(true, &mut |_, _| {}).unwrap().repaired.is_empty());

    assert_ne!(other.session().seen(ROOT), seen, "who was reading there looks again");
    assert_errno(root(&other).stat(b"before"), Errno::NOENT);
    put(&root(&other), "after", b"y").unwrap();
    assert_eq!(get(&root(&pool), "after").unwrap(), b"y");
    assert_tidy(&pool);
    assert_tidy(&other);
}

/// A mount went on serving names that a repair had removed for want of a notification.
#[test]
fn a_repair_notifies_watchers() {
    let (dir, pool) = pool(8 * MIB);
    let other = open(&dir);
    put(&root(&pool), "lost", b"x").unwrap();
    let ino = root(&pool).stat(b"lost").unwrap().ino;
    other.begin_watching().unwrap();
    other.retain(ROOT, 1).unwrap();
    let [_, word] = words(&pool, ino);
    let block = pool.session().memory().load(word).unwrap();
    let length = Off::<u8>::new(block + ino % PER_BLOCK);
    assert_eq!(u64::from(pool.session().memory().read(length).unwrap()), INODE);
    pool.session().memory().commit_byte(length, 0).unwrap();

    let (mut changes, done) = (Vec::new(), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            assert!(!pool.fsck(true, &mut |_, _| {}).unwrap().repaired.is_empty());
            done.store(true, Ordering::Release);
            other.stop_watching();
        });
        other.watch(&mut |change| changes.push((change, done.load(Ordering::Acquire)))).unwrap();
    });
    let removed = Change::Entry { parent: ROOT, name: b"lost".to_vec(), old: None };
    assert!(changes.contains(&(removed, false)), "{changes:?}");
    assert!(changes.contains(&(Change::All, false)), "{changes:?}");
    assert_errno(root(&other).stat(b"lost"), Errno::NOENT);
}
