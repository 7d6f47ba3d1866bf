//! Long work ends its operation piece by piece: others pass in between, and still no caller sees a part of it.

use std::sync::atomic::{AtomicBool, Ordering};

use conquest::Pool;
use conquest_fs::node::Fallocate;
use conquest_fs::path::Open;

use crate::rig::{assert_tidy, pool, put, root, MIB};

const LEN: u64 = 24 * MIB;

/// How many operations `work` begins and ends.
fn operations(pool: &Pool, work: impl FnOnce()) -> u64 {
    let rt = pool.session().runtime();
    let ended = || (0..rt.slots()).map(|slot| rt.slot_state(slot).0 >> 32).sum::<u64>();
    let before = ended();
    work();
    ended() - before
}

#[test]
fn long_work_ends_its_operation_piece_by_piece() {
    let (_dir, pool) = pool(64 * MIB);
    let v = root(&pool);
    let file = v.create(b"f", 0o600).unwrap();
    let allocate = |how, at, len| pool.fallocate(file.ino(), how, at, len).unwrap();
    let bytes = vec![7; LEN as usize];
    // Pieces of so many bytes, so that none takes long.
    let whole = |what: &str, piece: u64, found: u64| {
        let least = LEN / piece - 1;
        assert!(found >= least, "{what}: {found} operations, should be {least} at least");
    };
    let (keep, extend) = (Fallocate::ZeroRange { keep_size: true }, Fallocate::Allocate { keep_size: false });
    whole("allocate", MIB / 2, operations(&pool, || allocate(extend, 0, LEN)));
    whole("write", MIB, operations(&pool, || file.write_all_at(&bytes, 0).unwrap()));
    whole("punch", 2 * MIB, operations(&pool, || allocate(Fallocate::PunchHole, 100, LEN - 200)));
    file.write_all_at(&bytes, 0).unwrap();
    whole("zero", MIB / 2, operations(&pool, || allocate(keep, 100, LEN)));
    file.write_all_at(&bytes, 0).unwrap();
    whole("insert", 2 * MIB, operations(&pool, || allocate(Fallocate::InsertRange, 4096, 8192)));
    whole("collapse", 2 * MIB, operations(&pool, || allocate(Fallocate::CollapseRange, 4096, 8192)));
    assert_eq!(file.attr().unwrap().size, LEN);
    whole("truncate", 2 * MIB, operations(&pool, || file.set_len(1000).unwrap()));
    assert_eq!(file.attr().unwrap().blocks, 8);
    file.write_all_at(&bytes, 0).unwrap();
    v.unlink(b"f").unwrap();
    whole("close", 2 * MIB, operations(&pool, || drop(file)));
    put(&v, "f", &bytes).unwrap();
    whole("unlink", 2 * MIB, operations(&pool, || v.unlink(b"f").unwrap()));
    put(&v, "f", &bytes).unwrap();
    put(&v, "g", b"new").unwrap();
    let replace = || v.rename(b"g", b"f", conquest_fs::node::Rename::Replace).unwrap();
    whole("rename", 2 * MIB, operations(&pool, replace));
    assert_tidy(&pool);
}

#[test]
fn long_appends_do_not_mix() {
    const EACH: usize = 3 << 20;
    let (_dir, pool) = pool(64 * MIB);
    root(&pool).create(b"f", 0o600).unwrap();
    std::thread::scope(|scope| {
        for n in 1..=4u8 {
            let pool = &pool;
            scope.spawn(move || {
                let file = root(pool).open(b"f", Open::new().write(true)).unwrap();
                // A short one, which waits for long ones of others.
                for len in [EACH, 1000, EACH] {
                    file.append(&vec![n; len]).unwrap();
                }
            });
        }
    });
    let found = crate::rig::get(&root(&pool), "f").unwrap();
    assert_eq!(found.len(), 4 * (2 * EACH + 1000));
    let mut at = 0;
    while at < found.len() {
        let run = found[at..].iter().take_while(|b| **b == found[at]).count();
        // Runs of one writer may follow each other.
        assert!([EACH, EACH + 1000, 2 * EACH + 1000, 1000, 2 * EACH].contains(&run), "{run} bytes of {}", found[at]);
        at += run;
    }
    assert_tidy(&pool);
}

/// A write to a file that is being cut goes on with that first; a reader sees the old file or the new one.
#[test]
fn nobody_sees_a_part_of_a_truncation() {
    let (_dir, pool) = pool(64 * MIB);
    let how = Open::new().read(true).write(true).create(true).mode(0o600);
    let file = root(&pool).open(b"f", how).unwrap();
    for round in 0..10 {
        file.write_all_at(&vec![1; LEN as usize], 0).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                file.set_len(0).unwrap();
                done.store(true, Ordering::SeqCst);
            });
            let writer = scope.spawn(|| {
                while file.attr().unwrap().size == LEN {
                    std::hint::spin_loop();
                }
                file.write_all_at(b"x", LEN - 1).unwrap();
            });
            let mut buf = vec![9; LEN as usize];
            while !done.load(Ordering::SeqCst) {
                let n = file.read_at(&mut buf, 0).unwrap();
                let cut = buf[..n].iter().position(|b| *b != 1).unwrap_or(n);
                assert!(n == 0 || cut == n || cut == 0, "{cut} of {n} bytes are old");
                assert!(cut > 0 || buf[..n.saturating_sub(1)].iter().all(|b| *b == 0));
            }
            writer.join().unwrap();
        });
        assert_eq!((file.attr().unwrap().size, file.attr().unwrap().blocks), (LEN, 8), "round {round}");
    }
    drop(file);
    root(&pool).unlink(b"f").unwrap();
    assert_tidy(&pool);
}
