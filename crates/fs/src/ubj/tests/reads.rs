//! Pages that readers bring into memory and hold there, and the errors that they find.

use std::sync::Arc;

use exraid::{Aligned, Buffers, Device, Request};
use rng::Rng;

use super::rig::Rig;
use crate::attr::Ino;
use crate::node::{ReadFlags, WriteFlags};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// A file of so many bytes that is on disk alone.
fn on_disk(rig: &Rig, name: &str, bytes: u64, seed: u64) -> Ino {
    let (ino, mut rng) = (rig.create(name), Rng::new(seed));
    for at in (0..bytes).step_by(MIB as usize) {
        rig.write(ino, at, &rng.bytes(MIB as usize));
        rig.union().write_all(&rig.fs).expect("there is room");
    }
    rig.union().move_to_disk(&rig.fs, ino).expect("there is room");
    assert_eq!(rig.blocks_of(ino), 0);
    ino
}

/// Reads all of a file, so many bytes at a time.
fn read(rig: &Rig, ino: Ino, piece: u64, flags: ReadFlags) {
    let (size, mut buf) = (rig.content(ino).size, vec![0; piece as usize]);
    for at in (0..size).step_by(piece as usize) {
        rig.fs.read_as(ino, at, &mut buf, flags).expect("it can be read");
    }
}

fn admitted(rig: &Rig) -> u64 {
    rig.union().status(rig.fs.session()).expect("it is mapped").admitted
}

#[test]
fn a_scan_does_not_evict_what_is_read_again_and_again() {
    const MEMORY: u64 = 32 * MIB;
    const HOT: u64 = 2 * MIB;
    let rig = Rig::new(MEMORY, 4 * MEMORY / MIB + 40, MIB);
    let hot = on_disk(&rig, "hot", HOT, 1);
    let scanned = on_disk(&rig, "scanned", 4 * MEMORY, 2);
    let plain = ReadFlags::default();
    read(&rig, hot, 64 << 10, plain);
    assert_eq!(rig.blocks_of(hot), 0, "what was read once takes no memory");
    read(&rig, hot, 64 << 10, plain);
    assert_eq!(rig.blocks_of(hot), HOT / PAGE, "what is read again does");
    let mut buf = vec![0; 64 << 10];
    for round in 0..3 {
        for at in (0..4 * MEMORY).step_by(buf.len()) {
            rig.fs.read(scanned, at, &mut buf).expect("it can be read");
            if at % MIB == 0 {
                read(&rig, hot, 64 << 10, plain);
                assert_eq!(rig.blocks_of(hot), HOT / PAGE, "round {round}, byte {at}");
            }
        }
        assert!(round > 0 || admitted(&rig) == HOT / PAGE, "the first scan brings nothing in");
    }
    let free = super::super::free_memory(rig.fs.session());
    assert!(free > MEMORY / 16, "{free} bytes are left to others");
    rig.check(&[hot, scanned], true, "after the scans");
    assert_eq!(rig.read(hot), Rng::new(1).bytes(HOT as usize));
}

#[test]
fn what_was_read_again_comes_in_after_it_left_the_process_too() {
    let rig = Rig::new(128 * MIB, 140, MIB);
    // More than a process keeps itself.
    let file = on_disk(&rig, "file", 64 * MIB, 3);
    read(&rig, file, MIB, ReadFlags::default());
    assert_eq!(rig.blocks_of(file), 0);
    read(&rig, file, MIB, ReadFlags::default());
    let (blocks, pages) = (rig.blocks_of(file), 64 * MIB / PAGE);
    assert!(blocks > pages * 9 / 10, "{blocks} of {pages}");
    let before = rig.union().status(rig.fs.session()).expect("it is mapped");
    read(&rig, file, MIB, ReadFlags::default());
    let after = rig.union().status(rig.fs.session()).expect("it is mapped");
    assert!(after.hits.missed - before.hits.missed <= pages - blocks);
    // About: pages on disk among the others take their reading elsewhere.
    assert!(after.hits.clean - before.hits.clean > pages / 2, "{:?} {:?}", before.hits, after.hits);
    rig.check(&[file], true, "after reading");
}

#[test]
fn what_a_kernel_keeps_and_what_is_read_in_small_pieces_stays_out() {
    let rig = Rig::new(64 * MIB, 40, MIB);
    let file = on_disk(&rig, "file", 4 * MIB, 4);
    let cached = ReadFlags { caller_caches: true, ..ReadFlags::default() };
    (0..3).for_each(|_| read(&rig, file, 128 << 10, cached));
    assert_eq!(rig.blocks_of(file), 0, "it is in the page cache");
    let other = on_disk(&rig, "other", 4 * MIB, 5);
    read(&rig, other, 512, ReadFlags::default());
    assert_eq!(rig.blocks_of(other), 0, "each page was read once, in eight pieces");
    read(&rig, other, 512, ReadFlags::default());
    assert_eq!(rig.blocks_of(other), 4 * MIB / PAGE);
}

#[test]
fn what_others_do_meanwhile_counts() {
    let rig = Rig::new(64 * MIB, 40, MIB);
    let file = on_disk(&rig, "file", 2 * MIB, 6);
    let mut bytes = Rng::new(6).bytes(2 * MIB as usize);
    read(&rig, file, MIB, ReadFlags::default());
    let mut rng = Rng::new(7);
    for round in 0..40 {
        let at = rng.below(2 * MIB - 5000) as usize;
        let len = 1 + rng.below(5000) as usize;
        let new = rng.bytes(len);
        rig.fs.write(file, at as u64, &new, WriteFlags::default()).expect("there is room");
        bytes[at..at + new.len()].copy_from_slice(&new);
        if round % 3 == 0 {
            rig.union().move_to_disk(&rig.fs, file).expect("there is room");
        }
        assert!(rig.read(file) == bytes, "round {round}");
        rig.check(&[file], true, "after reading");
    }
    assert!(admitted(&rig) > 0);
}

#[test]
fn what_could_not_be_read_is_tried_again() {
    let rig = Rig::new(64 * MIB, 40, MIB);
    let file = on_disk(&rig, "file", 2 * MIB, 8);
    let bytes = Rng::new(8).bytes(2 * MIB as usize);
    let page = &bytes[70 * PAGE as usize..][..PAGE as usize];
    let disk = rig.disk.disk.content().bytes(0..42 * MIB);
    let at = disk.chunks(PAGE as usize).position(|there| there == page).expect("it is there") as u64 * PAGE;
    let put = |content: &[u8]| {
        let mut memory = Aligned::zeroed(PAGE as usize);
        Arc::get_mut(&mut memory).expect("nobody else has it").bytes_mut().copy_from_slice(content);
        rig.disk.disk.run(Request::write(at, Buffers::whole(&memory))).result.expect("it is written");
    };
    put(&[0xee; PAGE as usize]);
    let mut buf = vec![0; MIB as usize];
    for _ in 0..2 {
        let failed = rig.fs.read(file, 0, &mut buf).expect_err("a page of it is damaged");
        assert_eq!(failed.errno(), rustix::io::Errno::IO);
    }
    assert_eq!(rig.fs.read(file, 69 * PAGE, &mut buf[..PAGE as usize]).expect("its neighbour is not"), PAGE as usize);
    put(page);
    assert!(rig.read(file) == bytes, "it was mended");
}
