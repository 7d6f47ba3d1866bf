//! No space at any point: nothing is half done, deletion works, memory comes back.

use std::time::Duration;

use conquest::{Caller, Pool, SetAttr};
use conquest_fs::node::{Fallocate, Rename, SetXattr, WriteFlags};
use conquest_fs::path::{Open, View};
use rng::Rng;
use rustix::io::Errno;

use crate::rig::*;

/// One random operation among a few names; fails only as the state of the names, or a full pool, allows.
fn step(pool: &Pool, v: &View, rng: &mut Rng) -> conquest_fs::Result<()> {
    let caller = Caller::root();
    let dir = format!("d{}", rng.below(4));
    let path = format!("{dir}/{}{}", "n".repeat(rng.below(60) as usize * 4), rng.below(30));
    let other = format!("d{}/o{}", rng.below(4), rng.below(30));
    let name = path.as_bytes();
    let len = 1u64 << rng.below(17);
    match rng.below(14) {
        0 => v.mkdir(dir.as_bytes(), 0o755).map(|_| ()),
        1 | 2 => put(v, &path, &vec![len as u8; len as usize]),
        3 => v.open(name, Open::new().append(true))?.append(&vec![1; len as usize]).map(|_| ()),
        4 => v.symlink(vec![b't'; 1 + len as usize % 4000], name).map(|_| ()),
        5 => v.link(name, other.as_bytes()).map(|_| ()),
        6 => v.rename(name, other.as_bytes(), if len % 3 == 0 { Rename::Exchange } else { Rename::Replace }),
        7 => v.mkdir(name, 0o755).map(|_| ()),
        8 => {
            let ino = v.lstat(name)?.ino;
            pool.setxattr(
                ino,
                format!("user.{}", len % 7).as_bytes(),
                &vec![2; len as usize % 5000],
                SetXattr::Any,
                &caller,
            )
        }
        9 => v.setattr(name, &SetAttr { size: Some(rng.below(200_000)), ..Default::default() }).map(|_| ()),
        10 => v.setattr(name, &SetAttr { mode: Some(rng.below(512) as u32), ..Default::default() }).map(|_| ()),
        11 => {
            let how = match rng.below(5) {
                0 => Fallocate::PunchHole,
                1 => Fallocate::ZeroRange { keep_size: false },
                2 => Fallocate::CollapseRange,
                3 => Fallocate::InsertRange,
                _ => Fallocate::Allocate { keep_size: true },
            };
            pool.fallocate(v.lstat(name)?.ino, how, rng.below(20) * 4096, (1 + rng.below(20)) * 4096)
        }
        12 => {
            let ino = pool.tmpfile(v.stat(dir.as_bytes())?.ino, 0o600, &caller)?.ino;
            let wrote = pool.write(ino, 0, &vec![3; len as usize], WriteFlags::default());
            let linked = wrote.and_then(|_| pool.link(ino, v.stat(dir.as_bytes())?.ino, &name[3..], &caller));
            pool.release(ino, 1);
            linked.map(|_| ())
        }
        _ => v.unlink(name),
    }
}

/// In a pool that has been emptied: all space beyond `used` bytes is free again, but for less than `kept` of tables.
#[track_caller]
fn assert_comes_back(pool: &Pool, used: u64, kept: u64, what: &str) {
    pool.sweep().unwrap();
    assert_tidy(pool);
    let left = pool.session().memory().allocated_bytes().unwrap() - used;
    assert!(left < kept, "{what}: {left} bytes did not come back");
}

/// A pool whose first block of inodes was in use looked for ever for a free one there: number 0, which is
/// never used, counted as free.
#[test]
fn files_without_content_fill_a_pool() {
    let _dog = Watchdog::start("filling a pool with empty files", Duration::from_secs(60));
    let (_dir, pool) = pool(2 * MIB);
    let v = root(&pool);
    let used = pool.session().memory().allocated_bytes().unwrap();
    for round in 0..2 {
        let mut made = 0;
        let end = loop {
            match v.create(format!("{made}").as_bytes(), 0o644) {
                Ok(_) => made += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(end.errno(), Errno::NOSPC, "round {round}: {end}");
        assert!(made > 3000, "{made} files");
        // Without names, down to the last inode.
        let mut nameless = Vec::new();
        let end = loop {
            match pool.tmpfile(conquest_fs::ROOT, 0o644, &Caller::root()) {
                Ok(attr) => nameless.push(attr.ino),
                Err(e) => break e,
            }
        };
        assert_eq!(end.errno(), Errno::NOSPC);
        nameless.into_iter().for_each(|ino| pool.release(ino, 1));
        assert_clean(&pool);
        assert_eq!(v.read_dir(b"").unwrap().count(), made);
        delete_all(&v, "");
    }
    assert_comes_back(&pool, used, 64 << 10, "two rounds");
}

#[test]
fn random_operations_in_a_full_pool_are_done_or_not() {
    let _dog = Watchdog::start("working in a full pool", Duration::from_secs(120));
    let mut full = 0;
    for seed in 0..12 {
        let (_dir, pool) = pool(if seed % 3 == 0 { MIB } else { 2 * MIB });
        let v = root(&pool);
        let used = pool.session().memory().allocated_bytes().unwrap();
        let mut rng = Rng::new(seed);
        for n in 0..2500 {
            match step(&pool, &v, &mut rng) {
                Err(e) if e.errno() == Errno::NOSPC => {
                    full += 1;
                    if full % 16 == 0 {
                        assert_tidy(&pool);
                    }
                }
                Err(e) if e.errno() == Errno::UCLEAN || e.errno() == Errno::STALE => {
                    panic!("seed {seed} step {n}: {e}")
                }
                _ => {}
            }
        }
        assert_tidy(&pool);
        delete_all(&v, "");
        assert_comes_back(&pool, used, 48 << 10, &format!("seed {seed}"));
    }
    assert!(full > 500, "the pools were full {full} times only");
}

/// Writes files until not a byte more fits, of bytes that nothing compresses: else room may be made when it is needed.
fn fill(v: &View) {
    let (mut size, mut n) = (1 << 16, 0_u64);
    while size > 0 {
        match put(v, &format!("fill{n}"), &Rng::new(n).bytes(size)) {
            Ok(()) => n += 1,
            Err(_) => size /= 2,
        }
    }
}

/// Large writes are made in a copy: where there was no room for it, they failed on memory that was reserved for them.
#[test]
fn memory_that_a_file_has_is_written_in_a_full_pool() {
    let (_dir, pool) = pool(6 * MIB);
    let v = root(&pool);
    let make = |name: &[u8], reserved| {
        let ino = v.create(name, 0o644).unwrap().ino();
        pool.fallocate(ino, Fallocate::Allocate { keep_size: false }, 0, reserved).unwrap();
        ino
    };
    let (large, small, sparse) = (make(b"large", 2 * MIB), make(b"small", 32_000), make(b"sparse", MIB));
    pool.fallocate(sparse, Fallocate::PunchHole, 100 << 10, 100 << 10).unwrap();
    fill(&v);

    let write = |ino, at, bytes: &[u8]| pool.write(ino, at, bytes, WriteFlags::default()).map(|_| ());
    let bytes = |n: u64, seed: u64| Rng::new(seed).bytes(n as usize);
    let mut want = vec![0; 2 << 20];
    for (n, (at, len)) in [(0, 2 * MIB), (5000, MIB), (777, 2 * MIB - 777), (1 << 20, 40_000)].into_iter().enumerate() {
        let new = bytes(len, n as u64);
        write(large, at, &new).unwrap();
        want[at as usize..][..new.len()].copy_from_slice(&new);
        assert!(get(&v, "large").unwrap() == want, "{len} bytes at {at}");
    }
    write(small, 0, &bytes(32_000, 9)).unwrap();
    assert!(get(&v, "small").unwrap() == bytes(32_000, 9));

    let new = bytes(MIB, 10);
    assert_errno(write(sparse, 0, &new), Errno::NOSPC);
    assert!(get(&v, "sparse").unwrap().iter().all(|b| *b == 0), "nothing, where there is not memory for all");
    let given_back = WriteFlags { write_back: true, ..WriteFlags::default() };
    assert_errno(pool.write(sparse, 0, &new, given_back), Errno::NOSPC);
    let got = get(&v, "sparse").unwrap();
    let (hole, after) = (100 << 10, 200 << 10);
    assert!(got[..hole] == new[..hole] && got[after..] == new[after..], "the kernel's pages, where there is memory");
    // The room left in the pool may do for some pages.
    let pages = || got[hole..after].chunks(4096).zip(new[hole..after].chunks(4096));
    assert!(pages().all(|(got, new)| got == new || got.iter().all(|b| *b == 0)));
    assert!(pages().any(|(got, new)| got != new));
    assert_clean(&pool);
}

/// When the pool is filled to the last byte, all files can be deleted, cut and renamed over. With incompressible bytes: cutting a compressed
/// file takes memory.
#[test]
fn deleting_works_in_a_pool_filled_to_the_last_byte() {
    let (_dir, pool) = pool(6 * MIB);
    let v = root(&pool);
    let caller = Caller::root();
    for d in 0..8 {
        v.mkdir(format!("d{d}").as_bytes(), 0o755).unwrap();
        for f in 0..100 {
            let path = format!("d{d}/a-name-of-some-length-{f}");
            put(&v, &path, &Rng::new(f as u64).bytes(10 + f * f % 3000)).unwrap();
            let ino = v.stat(path.as_bytes()).unwrap().ino;
            pool.setxattr(ino, b"user.x", &[1; 100], SetXattr::Any, &caller).unwrap();
        }
    }
    put(&v, "big", &Rng::new(1).bytes(300_000)).unwrap();
    fill(&v);
    assert_errno(put(&v, "d0/more", &[1; 1 << 16]), Errno::NOSPC);
    v.rename(b"d1/a-name-of-some-length-1", b"d1/a-name-of-some-length-2", Rename::Replace).unwrap();
    let ino = v.stat(b"d2/a-name-of-some-length-3").unwrap().ino;
    pool.removexattr(ino, b"user.x", &caller).unwrap();
    v.setattr(b"d3/a-name-of-some-length-50", &SetAttr { size: Some(1), ..Default::default() }).unwrap();
    v.setattr(b"big", &SetAttr { size: Some(5000), ..Default::default() }).unwrap();
    assert_clean(&pool);
    delete_all(&v, "");
    pool.sweep().unwrap();
    assert_tidy(&pool);
}

/// The undo log cannot take both ends of the range at once: that was ENOSPC in a pool that was nearly empty.
#[test]
fn a_hole_in_a_sparse_file_needs_no_more_log_than_there_is() {
    let (_dir, pool) = pool(6 * MIB);
    let file = root(&pool).create(b"sparse", 0o600).unwrap();
    let high = (1u64 << 51) - 1;
    let shift = |height: u32| 9 * (height - 1);
    let mut pages = vec![0, 1 << shift(6), 62 << shift(6), high];
    for h in 1..6 {
        let above = high >> (shift(h) + 9) << (shift(h) + 9);
        pages.extend([1 << shift(h), 511 << shift(h), above, above | 510 << shift(h)]);
    }
    for page in &pages {
        file.write_all_at(&[1; 4000], page * 4096).unwrap();
    }
    let (off, end) = (100, high * 4096 + 100);
    pool.fallocate(file.ino(), Fallocate::PunchHole, off, end - off).unwrap();
    let at = |off| {
        let mut byte = [9];
        pool.read(file.ino(), off, &mut byte).unwrap();
        byte[0]
    };
    assert!([off, end - 1].into_iter().chain(pages[1..].iter().map(|p| p * 4096)).all(|off| at(off) == 0));
    assert_eq!((at(off - 1), at(end)), (1, 1));
    let attr = file.attr().unwrap();
    assert_eq!((attr.size, attr.blocks), (high * 4096 + 4000, 2 * 8));
    assert!(pool.fsck(false, &mut |_, _| {}).unwrap().problems.is_empty());
}

/// One file can have all the room that statfs reports, in pools of any size and however full.
#[test]
fn a_file_of_the_size_that_is_available_fits() {
    for size in [4, 16, 50, 200] {
        let (_dir, pool) = pool(size * MIB);
        let v = root(&pool);
        for used in [0, 1, 300, 20_000] {
            (0..used % 1000).for_each(|i| put(&v, &format!("f{used}-{i}"), &vec![1; used]).unwrap());
            let file = v.create(b"large", 0o600).unwrap();
            let len = pool.statfs().available_blocks * u64::from(pool.statfs().block_size);
            assert!(len <= pool.statfs().free_blocks * 4096 && (len > 0 || size == 4), "{len} bytes of {size} MiB");
            let how = conquest_fs::node::Fallocate::Allocate { keep_size: false };
            if len > 0 {
                pool.fallocate(file.ino(), how, 0, len).unwrap_or_else(|e| panic!("{len} bytes of {size} MiB: {e}"));
            }
            drop(file);
            v.unlink(b"large").unwrap();
        }
    }
}
