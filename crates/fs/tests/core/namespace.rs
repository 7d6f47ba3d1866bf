//! Names under several hands.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use conquest_fs::node::{Rename, SetXattr};
use conquest_fs::path::View;
use conquest_fs::{Caller, Kind, SetAttr, ROOT};
use rng::Rng;
use rustix::io::Errno;

use crate::rig::*;

#[test]
fn a_name_being_replaced_is_never_absent() {
    let (_dir, pool) = pool(32 * MIB);
    let v = root(&pool);
    put(&v, "name", b"content 0").unwrap();
    let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let content = get(&v, "name").expect("the name is always there");
                assert!(content.starts_with(b"content "), "{content:?}");
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _ends = StopOnDrop(&stop);
        let mut i = 0;
        // However busy the machine is, the two meet.
        while !reader.is_finished() && (i < 20_000 || looks.load(Ordering::Relaxed) < 1000) {
            i += 1;
            put(&v, "new", format!("content {i}").as_bytes()).unwrap();
            v.rename(b"new", b"name", Rename::Replace).unwrap();
        }
    });
    assert_tidy(&pool);
}

#[test]
fn a_whiteout_stays_where_a_name_was() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    let u = View::new(&pool, Caller { uid: 5, gid: 6, groups: &[], umask: 0, checked: false, owns: &[] });
    v.mkdir(b"d", 0o777).unwrap();
    v.setattr(b"d", &SetAttr { gid: Some(50), ..SetAttr::default() }).unwrap();
    v.mkdir(b"e", 0o777).unwrap();
    for name in ["d/a", "d/b", "e/c"] {
        put(&v, name, name.as_bytes()).unwrap();
    }
    assert_errno(v.rename(b"d/a", b"d/b", Rename::Whiteout { replace: false }), Errno::EXIST);
    assert_errno(v.rename(b"d/none", b"d/b", Rename::Whiteout { replace: true }), Errno::NOENT);
    assert_errno(u.rename(b"d/a", b"d/b", Rename::Whiteout { replace: true }), Errno::ACCESS);
    v.setattr(b"d", &SetAttr { mode: Some(0o2777), ..SetAttr::default() }).unwrap();
    v.setattr(b"e", &SetAttr { mode: Some(0o777), ..SetAttr::default() }).unwrap();
    u.rename(b"d/a", b"d/b", Rename::Whiteout { replace: true }).unwrap();
    u.rename(b"d/b", b"e/n", Rename::Whiteout { replace: false }).unwrap();
    assert_eq!(get(&v, "e/n").unwrap(), b"d/a");
    for name in [&b"d/a"[..], b"d/b"] {
        let left = v.stat(name).unwrap();
        assert_eq!((left.kind, left.perm, left.rdev, left.nlink), (Kind::CharDevice, 0, 0, 1));
        assert_eq!((left.uid, left.gid), (5, 50));
    }
    let links = v.stat(b"e").unwrap().nlink;
    v.rename(b"d", b"e/d", Rename::Whiteout { replace: false }).unwrap();
    assert_eq!(v.stat(b"d").unwrap().kind, Kind::CharDevice);
    assert_eq!(v.stat(b"e").unwrap().nlink, links + 1);
    assert_tidy(&pool);
}

#[test]
fn a_removed_directory_takes_and_leads_nowhere() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    let caller = Caller::root();
    v.mkdir(b"up", 0o755).unwrap();
    let gone = v.mkdir(b"up/gone", 0o755).unwrap().ino;
    put(&v, "file", b"").unwrap();
    let file = v.stat(b"file").unwrap().ino;
    pool.retain(gone, 1).unwrap();
    v.rmdir(b"up/gone").unwrap();
    v.rmdir(b"up").unwrap();
    assert_errno(pool.create(gone, b"x", Kind::Regular, 0o644, 0, &caller), Errno::NOENT);
    assert_errno(pool.tmpfile(gone, 0o644, &caller), Errno::NOENT);
    assert_errno(pool.symlink(gone, b"x", b"y", &caller), Errno::NOENT);
    assert_errno(pool.link(file, gone, b"x", &caller), Errno::NOENT);
    assert_errno(pool.rename((ROOT, b"file"), (gone, b"x"), Rename::Replace, &caller), Errno::NOENT);
    assert_errno(pool.rename((gone, b"x"), (ROOT, b"x"), Rename::Replace, &caller), Errno::NOENT);
    // Its parent is gone too, and the number may be in use again.
    assert_errno(pool.lookup(gone, b"..", &caller), Errno::NOENT);
    pool.release(gone, 1);
    assert_tidy(&pool);
}

#[test]
fn directories_moved_into_each_other_tie_no_cycle() {
    let (_dir, pool) = pool(32 * MIB);
    let v = root(&pool);
    let _dog = Watchdog::start("moving directories into each other", Duration::from_secs(60));
    for d in ["a", "b", "a/x", "b/y", "c"] {
        v.mkdir(d.as_bytes(), 0o755).unwrap();
    }
    let moves: [(&[u8], &[u8]); 6] =
        [(b"a", b"b/y/a"), (b"b/y/a", b"a"), (b"b", b"a/x/b"), (b"a/x/b", b"b"), (b"c", b"a/x/c"), (b"a/x/c", b"c")];
    std::thread::scope(|s| {
        for t in 0..3u64 {
            s.spawn(move || {
                let mut rng = Rng::new(t);
                for _ in 0..5_000 {
                    let (from, to) = moves[rng.below(6) as usize];
                    let how = if rng.below(4) == 0 { Rename::Exchange } else { Rename::NoReplace };
                    let _ = v.rename(from, to, how);
                }
            });
        }
    });
    assert_tidy(&pool);
    let reached = walk(&v, "", 10).unwrap().len();
    assert_eq!(reached, 5, "all directories hang below the root");
}

/// A call with several errors fails with the one that Linux checks first; bytes beyond a file's end overlap nothing.
/// (The model of the crash explorer, compared with Linux, found these.)
#[test]
fn the_first_of_several_errors_is_reported() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    v.mkdir(b"d", 0o755).unwrap();
    v.mkdir(b"e", 0o755).unwrap();
    put(&v, "d/f", &[7; 10_000]).unwrap();
    assert_errno(v.link(b"e", b"d/f"), Errno::EXIST);
    assert_errno(v.rename(b"d/f", b"d", Rename::Replace), Errno::NOTEMPTY);
    assert_errno(v.rename(b"d", b"d/none", Rename::Exchange), Errno::NOENT);
    assert_errno(v.rename(b"d", b"d/f", Rename::NoReplace), Errno::EXIST);
    let ino = |path: &str| v.stat(path.as_bytes()).unwrap().ino;
    let (d, f) = (ino("d"), ino("d/f"));
    assert_errno(pool.rename((d, b"none"), (f, b"x"), Rename::Replace, &Caller::root()), Errno::NOTDIR);
    assert_errno(pool.copy_range((d, 0), (d, 1), 10), Errno::ISDIR);
    assert_errno(pool.copy_range((f, 9990), (f, 9996), 1000), Errno::INVAL);
    assert_eq!(pool.copy_range((f, 20_000), (f, 20_005), 10).unwrap(), 0);
    assert_eq!(pool.copy_range((f, 9995), (f, 10_001), 10).unwrap(), 5);
    assert_eq!(v.stat(b"d/f").unwrap().size, 10_006);
    assert_tidy(&pool);
}

#[test]
fn links_are_counted_through_all_ways_to_rename() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    let nlink = |path: &str| v.lstat(path.as_bytes()).unwrap().nlink;
    for d in ["a", "b", "a/d", "b/e"] {
        v.mkdir(d.as_bytes(), 0o755).unwrap();
    }
    put(&v, "b/f", b"f").unwrap();
    v.rename(b"a/d", b"b/f", Rename::Exchange).unwrap();
    assert_eq!((nlink("a"), nlink("b")), (2, 4), "a directory and a file change places");
    v.rename(b"b/f", b"b/e", Rename::Replace).unwrap();
    assert_eq!(nlink("b"), 3, "a directory replaces another beside it");
    v.rename(b"b/e", b"a/e", Rename::NoReplace).unwrap();
    assert_eq!((nlink("a"), nlink("b")), (3, 2));
    v.mkdir(b"b/e", 0o755).unwrap();
    v.rename(b"a/e", b"b/e", Rename::Replace).unwrap();
    assert_eq!((nlink("a"), nlink("b")), (2, 3));
    assert_eq!(v.stat(b"b/e/..").unwrap().ino, v.stat(b"b").unwrap().ino, "`..` follows");
    assert_errno(v.rename(b"b", b"b/e/b", Rename::Replace), Errno::INVAL);
    assert_errno(v.rename(b"b/e", b"b", Rename::Replace), Errno::NOTEMPTY);
    assert_errno(v.rename(b"b/e", b"b", Rename::Exchange), Errno::INVAL);
    v.link(b"a/d", b"one").unwrap();
    v.rename(b"one", b"a/d", Rename::Replace).unwrap();
    assert_eq!(nlink("one"), 2, "two names of one file: nothing happens");
    assert_errno(v.rename(b"one", b"a/d", Rename::NoReplace), Errno::EXIST);
    assert_tidy(&pool);
}

/// The directory's number was used again while a path was being walked, and the rest of the path was looked up,
/// and created, in the new directory.
#[test]
fn a_walk_does_not_go_on_in_a_directory_that_got_the_number() {
    let (_dir, pool) = pool(32 * MIB);
    let v = root(&pool);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = v.create(b"d/f", 0o644);
            }
        });
        let _ends = StopOnDrop(&stop);
        for _ in 0..30_000 {
            v.mkdir(b"d", 0o755).unwrap();
            while v.rmdir(b"d").is_err() {
                let _ = v.unlink(b"d/f");
            }
            v.mkdir(b"e", 0o755).unwrap();
            assert!(v.read_dir(b"e").unwrap().next().is_none());
            v.rmdir(b"e").expect("nobody creates anything in e");
        }
    });
    assert_tidy(&pool);
}

/// The kernel leaves it to a FUSE server which names attributes may have: any went.
#[test]
fn attributes_are_in_a_namespace() {
    let (_dir, pool) = pool(8 * MIB);
    let root = Caller::root();
    let set = |name: &[u8]| pool.setxattr(ROOT, name, b"", SetXattr::Any, &root).map_err(|e| e.errno());
    let get = |name: &[u8]| pool.getxattr(ROOT, name).map_err(|e| e.errno());
    let remove = |name: &[u8]| pool.removexattr(ROOT, name, &root).map_err(|e| e.errno());
    // Whether the inode has any attributes makes no difference.
    for having in [false, true] {
        for name in [&b"user"[..], b"system.a", b"system.posix_acl_accessory", b"other.a", b"a"] {
            let refused = (set(name), get(name), remove(name));
            assert_eq!(refused, (Err(Errno::OPNOTSUPP), Err(Errno::OPNOTSUPP), Err(Errno::OPNOTSUPP)), "{name:?}");
        }
        for name in [&b"user."[..], b"trusted.", b"security."] {
            let refused = (set(name), get(name), remove(name));
            assert_eq!(refused, (Err(Errno::INVAL), Err(Errno::INVAL), Err(Errno::INVAL)), "{name:?}");
        }
        for name in [&b"user.b"[..], b"security.capability", b"system.posix_acl_access"] {
            assert_eq!(get(name), Err(Errno::NODATA), "{name:?}");
        }
        for name in [&b"user.a"[..], b"trusted.a", b"security.a"] {
            assert_eq!(get(name), if having { Ok(vec![]) } else { Err(Errno::NODATA) }, "{name:?}");
            assert_eq!(set(name), Ok(()));
        }
    }
}

#[test]
fn inodes_are_counted_by_statfs() {
    let (_dir, pool) = pool(8 * MIB);
    let view = root(&pool);
    let used = || {
        // A count is used for a while.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let st = pool.statfs();
        st.inodes - st.free_inodes
    };
    assert_eq!(used(), 1);
    for n in 0..100 {
        view.create(format!("f{n}").as_bytes(), 0o600).unwrap();
    }
    assert_eq!(used(), 101);
    for n in 0..50 {
        view.unlink(format!("f{n}").as_bytes()).unwrap();
    }
    assert_eq!(used(), 51);
}
