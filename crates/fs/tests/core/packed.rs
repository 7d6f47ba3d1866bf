//! Packed inodes behave as plain ones, for all calls, and while they are packed and unpacked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conquest::{Attr, Caller, Kind, OpenOptions, Pool, SetAttr, SetTime, Time};
use conquest_fs::layout::tag;
use conquest_fs::node::{Fallocate, Packed, Rename, SetXattr};
use conquest_fs::path::{Open, View};
use rustix::io::Errno;

use crate::rig::*;

/// Later than any time of a file.
const EVER: Time = Time(i64::MAX);

fn pack_all(pool: &Pool) -> Packed {
    pool.pack_inodes(0..pool.inode_blocks(), EVER, &|| true).unwrap()
}

/// A pool with something of everything.
fn sample() -> (tempfile::TempDir, Pool) {
    let (dir, pool) = pool(16 * MIB);
    fill(&pool);
    (dir, pool)
}

fn fill(pool: &Pool) {
    let v = root(pool);
    for d in 0..3 {
        v.mkdir(format!("d{d}").as_bytes(), 0o755).unwrap();
        for f in 0..30 {
            put(&v, &format!("d{d}/file{f}"), &vec![f as u8; f * 137]).unwrap();
        }
        v.symlink(b"file1", format!("d{d}/link").as_bytes()).unwrap();
        v.link(format!("d{d}/file2").as_bytes(), format!("hard{d}").as_bytes()).unwrap();
        let ino = v.stat(format!("d{d}/file3").as_bytes()).unwrap().ino;
        pool.setxattr(ino, b"user.some", &[4; 200], SetXattr::Any, &Caller::root()).unwrap();
        let set = SetAttr {
            mode: Some(0o600),
            uid: Some(1000 + d),
            mtime: Some(SetTime::At(Time(-5))),
            ..SetAttr::default()
        };
        v.setattr(format!("d{d}/file4").as_bytes(), &set).unwrap();
    }
    v.mknod(b"device", Kind::CharDevice, 0o644, 0x0103).unwrap();
    put(&v, "large", &vec![7; 3 << 20]).unwrap();
}

/// Path, attributes and content of everything.
fn all(pool: &Pool) -> Vec<(String, Attr, Vec<u8>)> {
    let v = root(pool);
    let mut found: Vec<_> = walk(&v, "", 8)
        .unwrap()
        .into_iter()
        .map(|(path, kind)| {
            let attr = v.lstat(path.as_bytes()).unwrap();
            let content = match kind {
                Kind::Regular => get(&v, &path).unwrap(),
                Kind::Symlink => v.readlink(path.as_bytes()).unwrap(),
                _ => pool.listxattr(attr.ino).unwrap(),
            };
            (path, attr, content)
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn quiet(pool: &tempfile::TempDir) -> Pool {
    Pool::open(pool.path(), &OpenOptions { noatime: true, ..OpenOptions::default() }).unwrap()
}

#[test]
fn they_are_what_they_were() {
    let (dir, pool) = sample();
    drop(pool);
    let pool = quiet(&dir);
    let (before, count) = (all(&pool), pool.count_inodes().unwrap());
    let packed = pack_all(&pool);
    assert_eq!(packed.inodes, count);
    assert!(packed.packed_bytes * 2 < packed.plain_bytes, "{packed:?}");
    assert_eq!(pool.packed_inodes().unwrap(), packed);
    assert_eq!(pack_all(&pool), Packed::default(), "there is nothing left to pack");
    let allocated = pool.session().memory().allocated().unwrap();
    let kept = 7 * 1296;
    assert_eq!((packed.blocks, allocated[usize::from(tag::INODE_BLOCK.0)]), (7, kept), "for unpacking in a full pool");
    assert_eq!(allocated[usize::from(tag::PACKED.0)], packed.packed_bytes);
    assert!(all(&pool) == before, "what is packed is the same");
    assert_eq!(pool.count_inodes().unwrap(), count);
    assert_tidy(&pool);
    drop(pool);
    let pool = quiet(&dir);
    assert!(all(&pool) == before, "also when it is opened again");
    for block in 0..count.div_ceil(16) {
        pool.unpack_inodes_beside(block * 16 + 1).unwrap();
    }
    assert_eq!(pool.packed_inodes().unwrap(), Packed::default());
    assert!(all(&pool) == before, "and when it is plain again");
    assert_tidy(&pool);
}

/// Every change, of inodes that are all packed before it.
#[test]
fn all_changes_unpack_what_they_change() {
    let (dir, eager) = sample();
    let other = format(16 * MIB);
    let usual = open(&other);
    fill(&usual);
    type Change = fn(&View) -> conquest_fs::Result<()>;
    let at = |path| v_ino(&eager, path);
    assert_eq!(at("d0/file1"), v_ino(&usual, "d0/file1"));
    let changes: &[Change] = &[
        |v| put(v, "d0/new", b"new"),
        |v| v.mkdir(b"d0/dir", 0o700).map(drop),
        |v| v.symlink(b"to", b"d0/sym").map(drop),
        |v| v.link(b"d0/file5", b"d1/five").map(drop),
        |v| v.unlink(b"d0/file6"),
        |v| v.unlink(b"d0/link"),
        |v| v.rmdir(b"d0/dir"),
        |v| v.rename(b"d0/file7", b"d1/file7", Rename::Replace),
        |v| v.rename(b"d0/file8", b"d2/file9", Rename::Exchange),
        |v| v.rename(b"d1", b"d2/d1", Rename::NoReplace),
        |v| v.rename(b"d2/file1", b"d2/white", Rename::Whiteout { replace: false }),
        |v| write(v, "d0/file9", 5, b"in the midst"),
        |v| write(v, "d0/file10", 100_000, b"far behind"),
        |v| v.open(b"d0/file11", Open::new().write(true))?.append(b"at the end").map(drop),
        |v| v.open(b"d0/file12", Open::new().write(true))?.set_len(7),
        |v| v.open(b"large", Open::new().write(true))?.set_len(1 << 20),
        |v| write(v, "large", 1000, &vec![9; 5 << 20]),
        |v| v.setattr(b"d0/file13", &SetAttr { mode: Some(0o4711), ..SetAttr::default() }).map(drop),
        |v| v.setattr(b"d0", &SetAttr { uid: Some(77), ..SetAttr::default() }).map(drop),
        |v| v.unlink(b"large"),
    ];
    for (n, change) in changes.iter().enumerate() {
        pack_all(&eager);
        for pool in [&usual, &eager] {
            change(&root(pool)).unwrap_or_else(|e| panic!("change {n}: {e}"));
        }
        let [a, b] = [&usual, &eager].map(|pool| all(pool).into_iter().map(timeless).collect::<Vec<_>>());
        for (a, b) in a.iter().zip(&b) {
            assert_eq!(a, b, "change {n}");
        }
        assert_eq!(a.len(), b.len(), "change {n}");
        assert_tidy(&eager);
    }
    let by_number = |pool: &Pool| {
        let ino = v_ino(pool, "d0/file14");
        pool.setxattr(ino, b"user.a", b"value", SetXattr::Create, &Caller::root()).unwrap();
        pool.removexattr(ino, b"user.a", &Caller::root()).unwrap();
        pool.setxattr(ino, b"user.conquest.durability", b"strict", SetXattr::Any, &Caller::root()).unwrap();
        pool.fallocate(ino, Fallocate::ZeroRange { keep_size: false }, 10, 50_000).unwrap();
        pool.fallocate(ino, Fallocate::PunchHole, 0, 8192).unwrap();
        pool.copy_range((ino, 0), (v_ino(pool, "d0/file15"), 0), 20_000).unwrap();
    };
    pack_all(&eager);
    by_number(&eager);
    assert_tidy(&eager);
    assert!(pack_all(&eager).blocks > 0);
    delete_all(&root(&eager), "");
    assert_tidy(&eager);
    drop((eager, usual));
    drop(dir);
}

fn v_ino(pool: &Pool, path: &str) -> u64 {
    root(pool).lstat(path.as_bytes()).unwrap().ino
}

fn write(v: &View, path: &str, at: u64, data: &[u8]) -> conquest_fs::Result<()> {
    v.open(path.as_bytes(), Open::new().write(true))?.write_all_at(data, at)
}

/// Without the differences of two pools: numbers that packing keeps from being used again, and the clock.
fn timeless((path, a, content): (String, Attr, Vec<u8>)) -> impl PartialEq + std::fmt::Debug {
    let rest = (a.kind, a.perm, a.nlink, a.uid, a.gid, a.rdev, a.size, a.blocks);
    (path, rest, content)
}

#[test]
fn reading_unpacks_nothing_and_its_times_are_kept() {
    let (_dir, pool) = sample();
    let v = root(&pool);
    let packed = pack_all(&pool);
    let before = v.stat(b"d0/file20").unwrap();
    let beside = || pool.session().memory().allocated().unwrap()[usize::from(tag::PACKING.0)];
    let profiles = beside();
    assert!(before.atime.0 <= before.mtime.0);
    std::thread::sleep(Duration::from_millis(20));
    get(&v, "d0/file20").unwrap();
    let after = v.stat(b"d0/file20").unwrap();
    assert!(after.atime.0 > before.atime.0, "relatime");
    assert_eq!(Attr { atime: before.atime, ..after }, before);
    let now = pool.packed_inodes().unwrap();
    assert_eq!((now.blocks, now.inodes, now.packed_bytes), (packed.blocks, packed.inodes, packed.packed_bytes + 128));
    assert_tidy(&pool);
    // Those beside it have theirs.
    assert_eq!(v.stat(b"d0/file21").unwrap().atime, v.stat(b"d0/file21").unwrap().btime);
    // Packed again: the time goes into the packed form.
    let again = pack_all(&pool);
    assert_eq!(again.blocks, 1);
    assert_eq!(v.stat(b"d0/file20").unwrap(), after);
    assert_eq!(beside(), profiles);
    // And with a change into the plain one.
    let set = SetAttr { atime: Some(SetTime::At(Time(1))), ..SetAttr::default() };
    v.setattr(b"d0/file20", &set).unwrap();
    assert_eq!(v.stat(b"d0/file20").unwrap().atime, Time(1));
    pack_all(&pool);
    get(&v, "d0/file20").unwrap();
    let read = v.stat(b"d0/file20").unwrap();
    v.setattr(b"d0/file20", &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    assert_eq!(v.stat(b"d0/file20").unwrap().atime, read.atime);
    assert_tidy(&pool);
}

#[test]
fn what_is_in_use_stays_plain() {
    let (_dir, pool) = pool(16 * MIB);
    let v = root(&pool);
    put(&v, "open", b"1").unwrap();
    let ino = v_ino(&pool, "open");
    pool.retain(ino, 1).unwrap();
    v.unlink(b"open").unwrap();
    assert_eq!(pack_all(&pool), Packed::default(), "it has no name");
    pool.release(ino, 1);
    assert_eq!(pool.pack_inodes(0..pool.inode_blocks(), Time(0), &|| true).unwrap(), Packed::default(), "all is young");
    assert_eq!(pool.pack_inodes(0..pool.inode_blocks(), EVER, &|| false).unwrap(), Packed::default(), "stopped");
    assert_eq!(pack_all(&pool).inodes, 1);
    put(&v, "new", b"2").unwrap();
    assert_tidy(&pool);
}

/// Numbers of packed blocks are given out once there are no others.
#[test]
fn free_numbers_of_packed_blocks_are_not_lost() {
    let (_dir, pool) = pool(4 * MIB);
    let v = root(&pool);
    let mut made = 0;
    while put(&v, &format!("f{made}"), b"").is_ok() {
        made += 1;
        if made % 1000 == 0 {
            pack_all(&pool);
        }
    }
    for n in (0..made).step_by(16) {
        v.unlink(format!("f{n}").as_bytes()).unwrap();
        pack_all(&pool);
    }
    let again = |n: &usize| {
        if n % 1600 == 0 {
            pack_all(&pool);
        }
        put(&v, &format!("f{n}"), b"").is_ok()
    };
    let again = (0..made).step_by(16).take_while(again).count();
    assert!(again > made / 20, "{again} of {made}");
    assert_tidy(&pool);
}

/// Packed inodes can be removed if memory is full, also if nothing but packed inodes is in it.
#[test]
fn a_full_pool_of_packed_inodes_can_be_emptied() {
    let (_dir, pool) = pool(4 * MIB);
    let v = root(&pool);
    for d in 0..40 {
        v.mkdir(format!("d{d}").as_bytes(), 0o755).unwrap();
        for f in 0..100 {
            put(&v, &format!("d{d}/f{f}"), b"some").unwrap();
        }
    }
    pack_all(&pool);
    // Compressible files would be compressed, as long as it makes room.
    let mut rng = rng::Rng::new(1);
    for size in [100_000, 1000, 1] {
        let mut n = 0;
        while v
            .create(format!("d0/fill{size}-{n}").as_bytes(), 0o644)
            .is_ok_and(|f| f.write_all_at(&rng.bytes(size), 0).is_ok())
        {
            n += 1;
            if n % 64 == 0 {
                pack_all(&pool);
            }
        }
    }
    pack_all(&pool);
    assert_clean(&pool);
    delete_all(&v, "");
    assert_tidy(&pool);
    put(&v, "again", &[7; 100_000]).unwrap();
}

/// The same where one in each block goes, and more blocks are packed than are looked at together.
#[test]
fn one_of_each_packed_block_can_be_removed_from_a_full_pool() {
    let (_dir, pool) = pool(28 * MIB);
    let v = root(&pool);
    for d in 0..90 {
        v.mkdir(format!("d{d}").as_bytes(), 0o755).unwrap();
        for f in 0..1000 {
            drop(v.create(format!("d{d}/f{f}").as_bytes(), 0o644).unwrap());
        }
    }
    pack_all(&pool);
    let mut rng = rng::Rng::new(1);
    for size in [100_000, 1000, 1] {
        let mut n = 0;
        while v
            .create(format!("d0/fill{size}-{n}").as_bytes(), 0o644)
            .is_ok_and(|f| f.write_all_at(&rng.bytes(size), 0).is_ok())
        {
            n += 1;
        }
    }
    pack_all(&pool);
    // From the end: the block packed in its place lies far from it.
    for d in (0..90).rev() {
        for f in (0..1000).step_by(16) {
            v.unlink(format!("d{d}/f{f}").as_bytes()).unwrap_or_else(|e| panic!("d{d}/f{f}: {e}"));
        }
    }
    assert_clean(&pool);
}

/// Readers see each inode as it is, and writers lose nothing, while blocks are packed and unpacked all the time.
#[test]
fn readers_and_writers_beside_a_packer() {
    let _watchdog = Watchdog::start("packing beside readers and writers", Duration::from_secs(120));
    let (_dir, pool) = pool(32 * MIB);
    let v = root(&pool);
    for n in 0..64 {
        put(&v, &format!("f{n}"), &vec![n as u8; 100 + n]).unwrap();
    }
    let (pool, stop) = (&pool, &AtomicBool::new(false));
    std::thread::scope(|s| {
        let stopper = StopOnDrop(stop);
        let packer = s.spawn(move || {
            let mut packed = 0;
            while !stop.load(Ordering::Relaxed) {
                packed += pack_all(pool).blocks;
            }
            packed
        });
        s.spawn(move || {
            let v = root(pool);
            for round in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let path = format!("f{}", round % 8 * 8);
                v.setattr(
                    path.as_bytes(),
                    &SetAttr { mtime: Some(SetTime::At(Time(round as i64))), ..SetAttr::default() },
                )
                .unwrap();
                assert_eq!(v.stat(path.as_bytes()).unwrap().mtime, Time(round as i64));
                put(&v, "name", b"").unwrap();
                v.unlink(b"name").unwrap();
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(move || {
                    let v = root(pool);
                    let mut read = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        for n in 0..64usize {
                            let attr = v.stat(format!("f{n}").as_bytes()).unwrap();
                            assert_eq!((attr.size, attr.kind, attr.nlink), (100 + n as u64, Kind::Regular, 1));
                            assert!(get(&v, &format!("f{n}")).unwrap() == vec![n as u8; 100 + n]);
                            read += 1;
                        }
                    }
                    read
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(4));
        drop(stopper);
        assert!(packer.join().unwrap() > 10);
        assert!(readers.into_iter().all(|r| r.join().unwrap() > 100));
    });
    assert_tidy(pool);
}

#[test]
fn a_damaged_block_costs_what_is_in_it_and_is_reported_by_name() {
    for at in [0u64, 16, 17, 40, 60, 90] {
        let (dir, pool) = sample();
        // No directory is in that block.
        let first = v_ino(&pool, "d1/file20") / 16 * 16;
        let before = all(&pool);
        pack_all(&pool);
        let region = pool.session().memory();
        let word = pool.inode_block_word(first / 16);
        let off = region.load(pram::Off::new(word)).unwrap() - conquest_fs::layout::PACKED;
        drop(pool);
        flip(dir.path(), off + at);
        let pool = open(&dir);
        let report = pool.fsck(false, &mut |_, _| {}).unwrap();
        let problems = report.problems.join("\n");
        assert!(problems.contains(&format!("packed inode block {}", first / 16)), "byte {at}: {problems}");
        // Reachable inodes are reported by name.
        if at != 0 && at != 16 {
            assert!(problems.contains("/d1/file"), "byte {at}: {problems}");
        }
        let report = pool.fsck(true, &mut |_, _| {}).unwrap();
        assert!(report.problems.iter().all(|p| !p.starts_with("still")), "byte {at}: {:?}", report.problems);
        assert_clean(&pool);
        // All else is there.
        let v = root(&pool);
        for (path, attr, content) in before.iter().filter(|(_, attr, _)| attr.ino / 16 * 16 != first) {
            if attr.kind == Kind::Regular {
                assert!(get(&v, path).unwrap() == *content, "byte {at}: {path}");
            }
        }
        put(&v, "more", b"more").unwrap();
        assert_clean(&pool);
    }
}

/// Changes a byte of a closed pool.
fn flip(dir: &std::path::Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(dir.join("nvram")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x24], at).unwrap();
}

#[test]
fn a_packed_inode_that_is_damaged_can_be_neither_read_nor_changed_unnoticed() {
    let (dir, pool) = sample();
    let ino = v_ino(&pool, "d1/file5");
    pack_all(&pool);
    let off = pool.session().memory().load(pram::Off::new(pool.inode_block_word(ino / 16))).unwrap()
        - conquest_fs::layout::PACKED;
    drop(pool);
    flip(dir.path(), off + 16 + 16 + 3);
    let pool = open(&dir);
    assert_errno(root(&pool).setattr(b"d1/file5", &SetAttr { mode: Some(0o600), ..SetAttr::default() }), Errno::UCLEAN);
}

#[test]
fn what_is_looked_at_again_and_again_is_what_it_is_by_now() {
    let (dir, pool) = sample();
    let other = Pool::open(dir.path(), &OpenOptions::default()).unwrap();
    let v = root(&pool);
    let mut expected: Vec<Attr> = (0..30).map(|f| v.stat(format!("d0/file{f}").as_bytes()).unwrap()).collect();
    for round in 0..12 {
        pack_all(if round % 2 == 0 { &pool } else { &other });
        // To the fourth look it is remembered.
        for _ in 0..4 {
            for (f, expected) in expected.iter().enumerate() {
                assert_eq!(v.stat(format!("d0/file{f}").as_bytes()).unwrap(), *expected);
            }
        }
        // Changed by whom it does not matter, nor that it is packed again before it is looked at, nor that only a read is noted.
        let (f, by) = (round % 30, if round % 3 == 0 { &pool } else { &other });
        let path = format!("d0/file{f}");
        let set = SetAttr { mtime: Some(SetTime::At(Time(round as i64))), ..SetAttr::default() };
        root(by).setattr(path.as_bytes(), &set).unwrap();
        if round % 4 == 0 {
            pack_all(&other);
        }
        expected[f] = root(&other).stat(path.as_bytes()).unwrap();
        assert_eq!(expected[f].mtime, Time(round as i64));
        let read = format!("d0/file{}", (f + 1) % 30);
        get(&root(&other), &read).unwrap();
        expected[(f + 1) % 30] = root(&other).stat(read.as_bytes()).unwrap();
    }
    drop(other);
    assert_tidy(&pool);
}

const TIMES: &[u8] = b"user.conquest.times";
const SECOND: i64 = 1_000_000_000;

fn set_times(pool: &Pool, path: &str, value: &[u8]) {
    pool.setxattr(v_ino(pool, path), TIMES, value, SetXattr::Any, &Caller::root()).unwrap();
}

fn times(a: &Attr) -> [i64; 4] {
    [a.mtime.0, a.ctime.0, a.atime.0, a.btime.0]
}

/// Rounded down, if the inode's setting says so.
fn in_seconds(a: &Attr) -> Attr {
    let [mtime, ctime, atime, btime] = times(a).map(|t| Time(t.div_euclid(SECOND) * SECOND));
    Attr { mtime, ctime, atime, btime, ..*a }
}

/// A tree of which one part keeps seconds, the other all.
fn coarse() -> (tempfile::TempDir, Pool) {
    let (dir, pool) = pool(16 * MIB);
    let v = root(&pool);
    v.mkdir(b"exact", 0o755).unwrap();
    v.mkdir(b"early", 0o755).unwrap();
    put(&v, "early/before", b"made before it was set").unwrap();
    set_times(&pool, "early", b"seconds");
    v.mkdir(b"early/below", 0o755).unwrap();
    for d in ["exact", "early/below"] {
        for f in 0..20 {
            put(&v, &format!("{d}/f{f}"), &[f; 100]).unwrap();
            let at = |t: i64| Some(SetTime::At(Time(t)));
            let n = i64::from(f);
            // Before 1970 too.
            let set = SetAttr {
                mtime: at((n - 9) * SECOND + n * 7_654_321),
                atime: at(n * SECOND + 1),
                ..SetAttr::default()
            };
            v.setattr(format!("{d}/f{f}").as_bytes(), &set).unwrap();
        }
        v.symlink(b"f1", format!("{d}/link").as_bytes()).unwrap();
    }
    drop(pool);
    let pool = quiet(&dir);
    (dir, pool)
}

#[test]
fn times_are_in_seconds_from_packing_on_where_that_is_set() {
    let (dir, pool) = coarse();
    let output = |path: &str, name: &str| pool.getxattr(v_ino(&pool, path), name.as_bytes()).ok();
    for (path, is) in [("exact/f1", false), ("early/before", false), ("early", true), ("early/below/f1", true)] {
        assert_eq!(output(path, "user.conquest.times"), is.then(|| b"seconds".to_vec()), "{path}");
        let effective = if is { &b"seconds"[..] } else { b"exact" };
        assert_eq!(output(path, "user.conquest.effective.times").as_deref(), Some(effective), "{path}");
    }
    let before = all(&pool);
    let is_set = |path: &str| path == "/early" || path.starts_with("/early/below");
    assert!(before.iter().filter(|(path, a, _)| is_set(path) && a.ctime.0 % SECOND != 0).count() > 20);
    assert!(pack_all(&pool).inodes >= 45);
    let expected: Vec<_> = before
        .iter()
        .map(|(path, a, content)| match is_set(path) {
            true => (path.clone(), in_seconds(a), content.clone()),
            false => (path.clone(), *a, content.clone()),
        })
        .collect();
    assert!(all(&pool) == expected, "rounded down, as one, where it is set and nowhere else");
    assert_tidy(&pool);
    // Reading notes the access time exactly, and nothing else; packed again, only that differs.
    drop(pool);
    let pool = open(&dir);
    let v = root(&pool);
    let was = v.stat(b"early/below/f3").unwrap();
    get(&v, "early/below/f3").unwrap();
    let read = v.stat(b"early/below/f3").unwrap();
    assert_eq!(Attr { atime: was.atime, ..read }, was);
    assert!(read.atime > was.atime);
    assert_eq!(pack_all(&pool).blocks, 1);
    assert_eq!(v.stat(b"early/below/f3").unwrap(), in_seconds(&read));
    drop(pool);
    let pool = quiet(&dir);
    let again: Vec<_> = all(&pool).into_iter().filter(|(path, ..)| path != "/early/below/f3").collect();
    assert!(again == expected.iter().filter(|(path, ..)| path != "/early/below/f3").cloned().collect::<Vec<_>>());
    // A change is exact, for the inode that it changes; the rest of the block stays as it was packed.
    let v = root(&pool);
    let at = Time(77 * SECOND + 7);
    let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
    let packed = v.stat(b"early/below/f4").unwrap();
    v.setattr(b"early/below/f4", &set).unwrap();
    let changed = v.stat(b"early/below/f4").unwrap();
    assert_eq!((changed.mtime, changed.btime), (at, packed.btime));
    let beside = expected.iter().find(|(path, ..)| path == "/early/below/f5").unwrap();
    assert_eq!(v.stat(b"early/below/f5").unwrap(), beside.1);
    assert!(pack_all(&pool).blocks > 0);
    assert_eq!(v.stat(b"early/below/f4").unwrap(), in_seconds(&changed));
    // Unset, it is exact from the next change on; the part that was rounded off is lost.
    set_times(&pool, "early/below/f4", b"exact");
    assert_eq!(pool.getxattr(v_ino(&pool, "early/below/f4"), TIMES).unwrap_err().errno(), Errno::NODATA);
    v.setattr(b"early/below/f4", &set).unwrap();
    pack_all(&pool);
    let exact = v.stat(b"early/below/f4").unwrap();
    assert_eq!((exact.mtime, exact.btime), (at, packed.btime));
    assert_tidy(&pool);
}

/// A second change within a second of the first would leave the same times, and a comparison of times would not see it.
#[test]
fn two_changes_never_have_the_same_times() {
    let (_dir, pool) = pool(16 * MIB);
    let v = root(&pool);
    v.mkdir(b"d", 0o755).unwrap();
    set_times(&pool, "d", b"seconds");
    put(&v, "d/f", b"0").unwrap();
    let now = || Time(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as i64);
    let (mut versions, mut packed) = (std::collections::BTreeMap::new(), 0);
    let begin = std::time::Instant::now();
    for n in 0u64.. {
        write(&v, "d/f", 0, &n.to_le_bytes()).unwrap();
        for _ in 0..20 {
            pool.pack_inodes_beside(v_ino(&pool, "d/f"), now()).unwrap();
            let is_packed = pool.packed_inodes().unwrap().blocks > 0;
            packed += u64::from(is_packed);
            let a = v.stat(b"d/f").unwrap();
            if is_packed {
                assert_eq!(in_seconds(&a), a);
                let earlier = *versions.entry((a.mtime.0, a.ctime.0)).or_insert(n);
                assert_eq!(earlier, n, "two contents with the times {:?}", times(&a));
            }
            std::thread::sleep(Duration::from_millis(if is_packed { 7 } else { 83 }));
        }
        if begin.elapsed() > Duration::from_secs(7) {
            break;
        }
    }
    assert!(packed > 3 && versions.len() > 1, "{packed} {versions:?}");
    assert_tidy(&pool);
}
