//! Changes while a disk gets a write: between the write and the links to its places.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use exraid::Op;
use rng::Rng;

use super::rig::Rig;
use crate::node::WriteFlags;

const PAGE: usize = 4096;

/// Two files: the first small enough for one part, the second for several, so that the first part has been written, and is needed no
/// more, long before the flush.
fn two_files() -> (Rig, u64, Vec<u8>) {
    let rig = Rig::new(32 << 20, 64, 8 << 10);
    let (first, second, third) = (rig.create("first"), rig.create("second"), rig.create("third"));
    // The first write of a process has changed the labels already.
    rig.write(third, 0, &[1; 20 * PAGE]);
    assert!(rig.union().write_back(&*rig.fs, usize::MAX, None).expect("there is room") > 0);
    let bytes = Rng::new(1).bytes(25 * PAGE + 1000);
    rig.write(first, 0, &bytes);
    rig.write(second, 0, &Rng::new(2).bytes(900 * PAGE));
    (rig, first, bytes)
}

/// Calls `change` when the disk is about to flush a write-back, before anything leads there; evictable blocks are not in memory
/// then.
fn during_write_back(rig: &Rig, change: impl Fn(&crate::Fs) + Send + 'static) {
    let (fs, done) = (Arc::downgrade(&rig.fs), Arc::new(AtomicBool::new(false)));
    let was_called = done.clone();
    rig.disk.before(move |op| {
        if matches!(op, Op::Flush) && !done.swap(true, Ordering::SeqCst) {
            change(&fs.upgrade().expect("it is alive"));
        }
    });
    assert!(rig.union().write_back(&*rig.fs, usize::MAX, None).expect("there is room") > 0);
    assert!(was_called.load(Ordering::SeqCst));
    rig.evict_all();
}

/// Found by reading: the blocks of a part were under transfer no more once it had been written, though their places were not set
/// before all parts were, and flushed. Bytes appended meanwhile went to the block in place, which then counted as the content
/// on disk, and were lost with it.
#[test]
fn what_is_appended_while_its_block_is_written_is_there() {
    let (rig, file, mut bytes) = two_files();
    let (at, more) = (bytes.len() as u64, Rng::new(3).bytes(1000));
    let appended = more.clone();
    during_write_back(&rig, move |fs| {
        fs.write(file, at, &appended, WriteFlags::default()).expect("there is room");
    });
    bytes.extend(more);
    assert!(rig.read(file) == bytes, "what was appended is lost");
    rig.check(&[file, file + 1, file + 2], true, "appended");
}

/// The same block was freed and given to the same page again: it counted as the written content of the one before.
#[test]
fn what_is_written_over_twice_while_it_is_written_is_there() {
    for last in 11..19 {
        let (rig, file, mut bytes) = two_files();
        during_write_back(&rig, move |fs| {
            for seed in 10..=last {
                fs.write(file, PAGE as u64, &Rng::new(seed).bytes(PAGE), WriteFlags::default()).expect("there is room");
            }
        });
        bytes[PAGE..2 * PAGE].copy_from_slice(&Rng::new(last).bytes(PAGE));
        assert!(rig.read(file) == bytes, "an older version is there after {}", last - 9);
        rig.check(&[file, file + 1, file + 2], true, "written over");
    }
}

/// Found with fsx on a mount with 16 MiB: a call that found no memory while others were writing all dirty blocks was refused since the
/// disk is full, and so were all calls for a moment.
#[test]
fn who_finds_no_memory_waits_for_others_who_are_making_some() {
    const FILES: u64 = 3;
    let rig = Rig::new(6 << 20, 120, 64 << 10);
    let files: Vec<u64> = (0..FILES).map(|n| rig.create(&n.to_string())).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // As the thread of a pool does.
        let writer = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                rig.union().write_out(&rig.fs, 8192).expect("there is room");
            }
        });
        let all: Vec<_> = files
            .iter()
            .map(|file| {
                let rig = &rig;
                scope.spawn(move || {
                    for n in 0..24 {
                        rig.write(*file, n << 20, &Rng::new(*file * 100 + n).bytes(1 << 20));
                    }
                })
            })
            .collect();
        let ended: Vec<bool> = all.into_iter().map(|one| one.join().is_ok()).collect();
        done.store(true, Ordering::SeqCst);
        writer.join().expect("it does not panic");
        assert_eq!(ended, [true; FILES as usize]);
    });
    for file in files {
        let bytes: Vec<u8> = (0..24).flat_map(|n| Rng::new(file * 100 + n).bytes(1 << 20)).collect();
        assert!(rig.read(file) == bytes);
    }
}
