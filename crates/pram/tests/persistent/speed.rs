//! Not a test: `cargo test -p conquest-pram --test persistent -- speed --ignored --nocapture` prints the cost of
//! blocks, beside objects of the same size and beside a bare copy of the same bytes to the same memory.

use pram::heap::{Cursor, Which};
use pram::memory::BLOCK;
use pram::{Session, Tag};
use rustix::time::{clock_gettime, ClockId};

use crate::rig::{self, MIB};

/// Nanoseconds that this thread has run.
fn now() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

/// The median of some runs, per item.
fn median(items: u64, mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..9)
        .map(|_| {
            let start = now();
            run();
            (now() - start) / items as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn alloc(session: &Session) -> u64 {
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let block = tx.alloc_block(1, [1, 2]).unwrap();
    tx.commit().unwrap();
    block
}

fn free(session: &Session, block: u64) {
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    tx.free_block(block).unwrap();
    tx.commit().unwrap();
}

#[test]
#[ignore = "prints times, asserts none"]
fn of_blocks() {
    const BLOCKS: u64 = 200_000;
    let session = rig::private(1024 * MIB);
    session.memory().map().advise_huge();
    let pair = median(100_000, || (0..100_000).for_each(|_| free(&session, alloc(&session))));
    let object = median(100_000, || {
        for _ in 0..100_000 {
            let mut op = session.begin().unwrap();
            let mut tx = op.tx().unwrap();
            let off = tx.alloc(Tag(1), BLOCK).unwrap().off;
            tx.commit().unwrap();
            let mut tx = op.tx().unwrap();
            tx.free(off, Tag(1)).unwrap();
            tx.commit().unwrap();
        }
    });
    println!("allocate and free: block {pair:.0} ns, object of the same size {object:.0} ns");

    let mut blocks = Vec::new();
    let all = median(BLOCKS, || {
        blocks.drain(..).for_each(|block| free(&session, block));
        blocks.extend((0..BLOCKS).map(|_| alloc(&session)));
    });
    println!("free and allocate {BLOCKS} of them: {all:.0} ns each");
    // In random order, with few free blocks among many.
    let mut n = 0;
    let scattered = median(BLOCKS, || {
        for _ in 0..BLOCKS {
            n = (n + 61_199) % BLOCKS as usize;
            free(&session, blocks[n]);
            blocks[n] = alloc(&session);
        }
    });
    println!("free any of {BLOCKS}, and allocate: {scattered:.0} ns");

    let bytes = vec![7; BLOCK as usize];
    let order: Vec<u64> = (0..BLOCKS).map(|n| blocks[(n * 61_199 % BLOCKS) as usize]).collect();
    let stored = || {
        let mut op = session.begin().unwrap();
        for part in order.chunks(16) {
            let mut tx = op.tx().unwrap();
            part.iter().for_each(|block| tx.store_content(*block, &bytes).unwrap());
            tx.commit().unwrap();
        }
    };
    let bare = || order.iter().for_each(|block| session.memory().map().write(*block, &bytes).unwrap());
    let (stored, bare) = (median(BLOCKS, stored), median(BLOCKS, bare));
    println!("store 4 KiB: {stored:.0} ns, a bare copy {bare:.0} ns, {:.2} times", stored / bare);
    let change = median(BLOCKS, || {
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        n += 1;
        order.iter().for_each(|block| tx.begin_change(*block, n as u64).unwrap());
    });
    println!("note that one has changed: {change:.0} ns");

    for which in [Which::All, Which::Unplaced] {
        let mut seen = 0;
        let walk = median(BLOCKS, || {
            let mut cursor = Cursor::default();
            while session.heap().walk_blocks(which, &mut cursor, 64, &mut |_, d| seen += d.owner[1]).unwrap() {}
        });
        println!("walk over {which:?}: {walk:.1} ns for each block ({seen})");
    }
    let usage = median(1000, || (0..1000).for_each(|_| assert_eq!(session.heap().block_usage().used, BLOCKS)));
    println!("count them: {usage:.0} ns");
}
