//! Blocks beside the heap's objects: alone, from many threads, on media that lose unflushed stores, under transfer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Mutex;

use backing::save::{restore, restore_into, save};
use pram::heap::{Cursor, Usage, Which};
use pram::marks::Marks;
use pram::medium::{MediumKind, BATTERY, LOGGED};
use pram::memory::{Descriptor, Meta, BLOCK, BLOCK_TABLE, BLOCK_TABLE_BYTES, PER_CHUNK};
use pram::{Error, Mapping, Memory, Session, Tag, CHUNK};
use rng::Rng;

use crate::rig::{self, Lossy, KEYS, MIB, UUID};

const OWNER: [u64; 2] = [7, 70];

fn alloc(session: &Session, epoch: u64, owner: [u64; 2]) -> pram::Result<u64> {
    let mut op = session.begin()?;
    let mut tx = op.tx()?;
    let block = tx.alloc_block(epoch, owner)?;
    tx.commit()?;
    Ok(block)
}

fn free(session: &Session, block: u64) {
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    tx.free_block(block).unwrap();
    tx.commit().unwrap();
}

fn filled(session: &Session, byte: u8) -> u64 {
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let block = tx.alloc_block(1, OWNER).unwrap();
    tx.store_content(block, &[byte; BLOCK as usize]).unwrap();
    tx.commit().unwrap();
    block
}

fn content(session: &Session, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    session.memory().read_bytes(block, &mut bytes).unwrap();
    bytes
}

/// Nothing is allocated, and one object can have all.
fn assert_all_returned(session: &Session) {
    let memory = session.memory();
    assert_eq!(memory.allocated().unwrap()[0], 0);
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    tx.alloc(Tag(1), memory.chunks().count() as u64 * CHUNK).expect("blocks have given all back");
    drop(tx);
    assert_eq!(memory.allocated_bytes().unwrap(), 0);
    assert_eq!(session.heap().block_usage(), Usage::default());
}

#[test]
fn a_block_is_aligned_has_a_descriptor_and_follows_its_transaction() {
    let session = rig::private(4 * MIB);
    let memory = session.memory();
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let undone = tx.alloc_block(5, OWNER).unwrap();
    drop(tx);
    assert!(!memory.is_allocated(undone).unwrap(), "undone");
    let mut tx = op.tx().unwrap();
    let block = tx.alloc_block(5, OWNER).unwrap();
    tx.commit().unwrap();
    assert_eq!(block % BLOCK, 0);
    assert_eq!(memory.descriptor(block).unwrap(), Descriptor { place: 0, epoch: 5, owner: OWNER });
    assert_eq!(memory.meta(block / CHUNK).unwrap(), Meta::Blocks);
    let table = memory.block_table(block / CHUNK).unwrap();
    assert_eq!((memory.resolve(table, BLOCK_TABLE).unwrap(), BLOCK_TABLE_BYTES), (512, 512));
    assert!(matches!(memory.resolve(block, Tag(1)), Err(Error::WrongType { found: 0, .. })));

    // Places and owners are logged; the begin of a change is not.
    let mut tx = op.tx().unwrap();
    tx.set_place(block, 99).unwrap();
    tx.set_owner(block, [8, 80]).unwrap();
    drop(tx);
    assert_eq!(memory.descriptor(block).unwrap(), Descriptor { place: 0, epoch: 5, owner: OWNER });
    let mut tx = op.tx().unwrap();
    tx.set_place(block, 99).unwrap();
    tx.set_owner(block, [8, 80]).unwrap();
    tx.commit().unwrap();
    let mut tx = op.tx().unwrap();
    tx.begin_change(block, 6).unwrap();
    drop(tx);
    let now = memory.descriptor(block).unwrap();
    assert_eq!(now, Descriptor { place: 0, epoch: 6, owner: [8, 80] });
    assert!(!now.is_void(7), "without a place its content is in the copy");
    let placed = Descriptor { place: 99, ..now };
    assert!(placed.is_void(7) && !placed.is_void(6) && !placed.is_void(0));

    let mut tx = op.tx().unwrap();
    tx.free_block(block).unwrap();
    assert!(memory.is_allocated(block).unwrap(), "until the commit");
    drop(tx);
    assert!(memory.is_allocated(block).unwrap());
    drop(op);
    free(&session, block);
    assert_all_returned(&session);
}

#[test]
fn only_blocks_are_taken_for_blocks() {
    let session = rig::private(4 * MIB);
    let memory = session.memory();
    let block = alloc(&session, 1, OWNER).unwrap();
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let object = tx.alloc(Tag(1), 4096).unwrap().off;
    for wrong in [0, 8, object, block + 8, block + 2048, memory.size(), memory.size() + BLOCK, u64::MAX] {
        assert!(memory.block(wrong).is_err() && tx.free_block(wrong).is_err(), "{wrong:#x}");
        assert!(tx.set_place(wrong, 1).is_err() && tx.begin_change(wrong, 1).is_err());
    }
    // Content ends with its block, and begins in one: else stores would be missing in a backing.
    let bytes = [1; BLOCK as usize + 1];
    for (at, len) in [(object, 8), (block, bytes.len()), (block + 1, BLOCK as usize), (u64::MAX, 1)] {
        assert!(tx.store_content(at, &bytes[..len]).is_err() && tx.zero_content(at, len as u64).is_err());
        assert!(tx.copy_content(block, at, len as u64).is_err() && memory.persist_content(at, len as u64).is_err());
    }
    tx.store_content(block + 1, &bytes[..BLOCK as usize - 1]).unwrap();
    tx.zero_content(block + 10, 20).unwrap();
    tx.init_bytes(object, &[9; 100]).unwrap();
    tx.copy_content(object, block + 50, 100).unwrap();
    tx.commit().unwrap();
    drop(op);
    let mut expected = [&[content(&session, block)[0]][..], &bytes[..BLOCK as usize - 1]].concat();
    expected[10..30].fill(0);
    expected[50..150].fill(9);
    assert!(content(&session, block) == expected);
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    tx.free_block(block).unwrap();
    tx.free(object, Tag(1)).unwrap();
    tx.commit().unwrap();
    drop(op);
    assert_all_returned(&session);
}

#[test]
fn a_region_can_be_filled_with_blocks_and_memory_goes_back_and_forth() {
    let session = rig::private(4 * MIB);
    for round in 0..3 {
        let mut blocks = Vec::new();
        let e = loop {
            match alloc(&session, round, OWNER) {
                Ok(block) => blocks.push(block),
                Err(e) => break e,
            }
        };
        assert!(matches!(e, Error::NoSpace), "{e}");
        // All chunks but one with tables.
        let chunks = session.memory().chunks().count() as u64 - 1;
        assert_eq!(blocks.len() as u64, chunks * PER_CHUNK);
        let usage = session.heap().block_usage();
        assert_eq!(usage, Usage { used: chunks * PER_CHUNK, free: 0, chunks, unplaced: chunks * PER_CHUNK });
        // One that is freed is one more.
        free(&session, blocks[blocks.len() / 2]);
        assert_eq!(session.heap().block_usage().free, 1);
        assert_eq!(alloc(&session, round, OWNER).unwrap(), blocks[blocks.len() / 2]);
        assert!(alloc(&session, round, OWNER).is_err());
        blocks.into_iter().for_each(|block| free(&session, block));
        assert_all_returned(&session);
    }
}

/// Blocks and objects, by four threads, against a model; a thread frees objects that others allocated.
#[test]
fn threads_never_share_a_block() {
    let session = rig::private(16 * MIB);
    let all = Mutex::new(BTreeMap::<u64, Option<Tag>>::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (session, all) = (&session, &all);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for step in 0..10_000u64 {
                    let allocate = rng.below(10) < if step / 1000 % 2 == 0 { 7 } else { 3 };
                    let mut op = session.begin().unwrap();
                    let mut tx = op.tx().unwrap();
                    if allocate {
                        let made = match rng.below(3) {
                            0 => tx.alloc(Tag(1), 512).map(|b| (b.off, Some(Tag(1)))),
                            1 => tx.alloc(Tag(2), 4096).map(|b| (b.off, Some(Tag(2)))),
                            _ => tx.alloc_block(step, [thread, step]).map(|block| (block, None)),
                        };
                        let Ok((off, tag)) = made else { continue };
                        if let (None, true) = (tag, rng.below(8) == 0) {
                            continue;
                        }
                        tx.commit().unwrap();
                        assert_eq!(all.lock().unwrap().insert(off, tag), None, "{off:#x} is given twice");
                    } else {
                        let mut all = all.lock().unwrap();
                        let from = rng.below(16 * MIB);
                        let Some((off, tag)) = all.range(from..).next().map(|(off, tag)| (*off, *tag)) else {
                            continue;
                        };
                        all.remove(&off);
                        drop(all);
                        match tag {
                            Some(tag) => tx.free(off, tag).unwrap(),
                            None => tx.free_block(off).unwrap(),
                        }
                        tx.commit().unwrap();
                    }
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    let blocks = all.values().filter(|tag| tag.is_none()).count() as u64;
    assert!(blocks > 100, "{blocks}");
    assert_eq!(session.heap().block_usage().used, blocks);
    assert_eq!(session.memory().allocated().unwrap()[0], blocks * BLOCK);
    // Another session on the same bytes finds the same.
    let again = rig::reopen(&rig::bytes_of(&session)).unwrap();
    assert_eq!(again.heap().block_usage(), session.heap().block_usage());
    for (off, tag) in all {
        match tag {
            None => free(&session, off),
            Some(_) => session.begin().unwrap().sweep_object(off).unwrap(),
        }
    }
    assert_all_returned(&session);
}

#[test]
fn a_double_free_is_noticed_and_harmless() {
    let session = rig::private(MIB);
    let [keep, block] = [(); 2].map(|()| alloc(&session, 1, OWNER).unwrap());
    free(&session, block);
    let again = session.begin().unwrap().sweep_object(block);
    assert!(matches!(again, Err(Error::NotAllocated { .. })));
    free(&session, block);
    assert_eq!(session.heap().block_usage().used, 1);
    free(&session, keep);
    assert_all_returned(&session);
}

/// The blocks that the walk finds, in steps of some chunks.
fn walk(session: &Session, which: Which, most: usize) -> BTreeMap<u64, Descriptor> {
    let (mut cursor, mut found) = (Cursor::default(), BTreeMap::new());
    while session.heap().walk_blocks(which, &mut cursor, most, &mut |b, d| _ = found.insert(b, d)).unwrap() {}
    assert_eq!(cursor, Cursor::default(), "it begins anew");
    found
}

#[test]
fn a_walk_finds_every_block_and_those_without_a_place() {
    let session = rig::private(16 * MIB);
    let mut blocks: Vec<u64> = (0..900).map(|n| alloc(&session, n, [n, n + 1]).unwrap()).collect();
    blocks.drain(..).step_by(3).for_each(|block| free(&session, block));
    let left = walk(&session, Which::All, 1);
    assert_eq!(left.len(), 600);
    assert!(left.values().all(|d| d.owner == [d.epoch, d.epoch + 1]));
    assert_eq!(walk(&session, Which::All, 7), left);
    assert_eq!(walk(&session, Which::Unplaced, 5), left);
    assert_eq!(session.heap().unplaced(), 600);

    let place = |block, place| {
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        tx.set_place(block, place).unwrap();
        tx.commit().unwrap();
    };
    left.keys().for_each(|block| place(*block, 5));
    assert_eq!(walk(&session, Which::Unplaced, 5), BTreeMap::new());
    assert_eq!(walk(&session, Which::All, 5).len(), 600);
    // Each way to lose a place is noticed, also by an undone transaction.
    let some: Vec<u64> = left.keys().copied().step_by(100).collect();
    let (a, b, c) = (some[1], some[3], some[5]);
    place(a, 0);
    let mut op = session.begin().unwrap();
    op.tx().unwrap().begin_change(b, 7000).unwrap();
    drop(op);
    let fresh = alloc(&session, 1, OWNER).unwrap();
    let walked = |session: &Session| walk(session, Which::Unplaced, 100).into_keys().collect::<Vec<_>>();
    let found = |session: &Session| {
        let found = walked(session);
        assert_eq!(session.heap().unplaced(), found.len() as u64, "they are counted");
        found
    };
    let mut expected = vec![a, b, fresh];
    expected.sort_unstable();
    assert_eq!(found(&session), expected);
    place(fresh, 3);
    place(a, 3);
    place(b, 3);
    assert_eq!(found(&session), [0; 0]);
    place(c, 0);
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    tx.set_place(c, 8).unwrap();
    assert_eq!(walked(&session), [0; 0], "it has one now");
    drop(tx);
    drop(op);
    assert_eq!(found(&session), [c], "and has not");
    // A later session does not know which chunks have any, and looks.
    assert_eq!(found(&rig::reopen(&rig::bytes_of(&session)).unwrap()), [c]);
    free(&session, c);
    assert_eq!(found(&session), [0; 0]);
}

/// Neither the store to content nor anything else marks its lines; descriptors and entries are marked.
#[test]
fn content_is_not_marked() {
    let map = Mapping::anonymous(4 * MIB).unwrap();
    let mut memory = Memory::format(map, Box::new(LOGGED), UUID, 7, 42).unwrap();
    memory.track(Marks::over(Mapping::anonymous(Marks::bytes(4 * MIB)).unwrap()).unwrap());
    let session = Session::private(memory, KEYS).unwrap();
    let memory = session.memory();
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let [a, b] = [(); 2].map(|()| tx.alloc_block(1, OWNER).unwrap());
    tx.store_content(a, &[1; BLOCK as usize]).unwrap();
    tx.zero_content(b, BLOCK).unwrap();
    tx.copy_content(a, b + 64, 640).unwrap();
    tx.commit().unwrap();
    memory.persist_content(a, BLOCK).unwrap();
    let marks = memory.marks().unwrap();
    for line in (a..a + BLOCK).chain(b..b + BLOCK).step_by(64) {
        assert!(!marks.has(line, 64), "{line:#x}");
    }
    for block in [a, b] {
        assert!(marks.has(memory.block(block).unwrap().raw(), 32));
        assert!(marks.has(memory.geo.entry(block / CHUNK).raw(), 16));
    }
}

#[test]
fn what_a_commit_leads_to_is_durable() {
    let medium = Lossy::default();
    let map = Mapping::anonymous(4 * MIB).unwrap();
    let session = Session::private(Memory::format(map, Box::new(medium.clone()), UUID, 7, 42).unwrap(), KEYS).unwrap();
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let [stored, zeroed, copied] = [(); 3].map(|()| tx.alloc_block(3, OWNER).unwrap());
    tx.store_content(stored, &[7; BLOCK as usize]).unwrap();
    tx.store_content(zeroed, &[7; BLOCK as usize]).unwrap();
    tx.zero_content(zeroed + 100, 1000).unwrap();
    tx.copy_content(stored, copied, BLOCK).unwrap();
    tx.store_content(copied + 9, b"few").unwrap();
    tx.commit().unwrap();
    // A device's stores.
    let transfer = session.transfer(zeroed, 1).unwrap().unwrap();
    (*transfer).as_ref()[..100].iter().for_each(|byte| byte.store(9, Ordering::Relaxed));
    session.memory().persist_content(zeroed, 100).unwrap();
    drop(transfer);
    // The begin of a change is durable at once.
    op.tx().unwrap().begin_change(stored, 4).unwrap();
    let left = medium.0.lock().unwrap().0.clone();
    let memory = Memory::open(rig::mapping_of(&left), Box::new(Lossy::default())).unwrap();
    let later = Session::private(memory, KEYS).unwrap();
    for block in [stored, zeroed, copied] {
        assert!(content(&later, block) == content(&session, block), "{block:#x}");
        assert!(later.memory().is_allocated(block).unwrap());
        assert_eq!(later.memory().descriptor(block).unwrap(), session.memory().descriptor(block).unwrap());
    }
}

/// A table that leads nowhere: nothing is handed out there, and a look returns an error.
#[test]
fn a_damaged_entry_is_an_error_and_not_used() {
    let session = rig::private(4 * MIB);
    let block = alloc(&session, 1, OWNER).unwrap();
    let at = session.memory().geo.entry(block / CHUNK).raw() as usize + 8;
    for wrong in [0u64, 1 << 63, block << 16 | 1, u64::MAX, 64 << 16] {
        let mut bytes = rig::bytes_of(&session);
        bytes[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
        let session = rig::reopen(&bytes).unwrap();
        let memory = session.memory();
        assert!(memory.block(block).is_err() && memory.blocks_of(block / CHUNK).is_err(), "{wrong:#x}");
        assert_eq!(walk(&session, Which::All, 9), BTreeMap::new());
        assert_ne!(alloc(&session, 1, OWNER).unwrap() / CHUNK, block / CHUNK);
    }
}

#[test]
fn an_image_has_content_that_is_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    for kind in [MediumKind::Battery, MediumKind::Logged] {
        let map = Mapping::anonymous(8 * MIB).unwrap();
        let medium = if kind == MediumKind::Logged { LOGGED } else { BATTERY };
        let session = Session::private(Memory::format(map, Box::new(medium), UUID, 7, 42).unwrap(), KEYS).unwrap();
        let [placed, unplaced, gone] = [1, 2, 3].map(|byte| filled(&session, byte));
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        tx.set_place(placed, 5).unwrap();
        tx.free_block(gone).unwrap();
        tx.commit().unwrap();
        drop(op);
        save(&session, &image, &mut |_, _| {}).unwrap();
        restore(&image, &copy, MediumKind::Battery, &mut |_, _| {}).unwrap();
        let restored = rig::attach(&copy).unwrap();
        let held = |block| content(&restored, block) == content(&session, block);
        assert_eq!((held(placed), held(unplaced), held(gone)), (kind == MediumKind::Battery, true, false), "{kind:?}");
        // A block in the image is of the running epoch; any other is void.
        let epochs = restored.epochs().unwrap();
        assert!(epochs.recovered > 0);
        for (block, held) in [(placed, kind == MediumKind::Battery), (unplaced, true)] {
            let was = session.memory().descriptor(block).unwrap();
            let epoch = if held { epochs.running } else { 0 };
            let is = restored.memory().descriptor(block).unwrap();
            assert_eq!((is, is.is_void(epochs.recovered)), (Descriptor { epoch, ..was }, !held), "{kind:?}");
            assert!(!was.is_void(session.epochs().unwrap().recovered));
        }
        let in_place = rig::mapping_of(&vec![9; 8 * MIB as usize]);
        restore_into(&image, &in_place, &BATTERY, &mut |_, _| Ok(None), &mut |_, _| {}).unwrap();
        let again = Session::private(Memory::open(in_place, Box::new(BATTERY)).unwrap(), KEYS).unwrap();
        let epochs = again.epochs().unwrap();
        let is_void = |block| again.memory().descriptor(block).unwrap().is_void(epochs.recovered);
        assert_eq!((is_void(placed), is_void(unplaced)), (kind == MediumKind::Logged, false));
        assert_eq!(restored.heap().block_usage().used, 2);
    }
}

// Transfers.

fn bytes_in(memory: &impl AsRef<[AtomicU8]>) -> Vec<u8> {
    memory.as_ref().iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
}

#[test]
fn a_transfer_has_the_memory_itself_for_as_long_as_it_lives() {
    let session = rig::private(4 * MIB);
    let blocks: Vec<u64> = (1..=3).map(|byte| filled(&session, byte)).collect();
    assert_eq!(blocks[2], blocks[0] + 2 * BLOCK);
    assert!(matches!(session.transfer(blocks[0], 4), Err(Error::NotAllocated { .. })));
    for (at, count) in [(blocks[0], 0), (blocks[0], 17), (blocks[1], u64::MAX), (blocks[0] + 8, 1), (0, 1)] {
        assert!(matches!(session.transfer(at, count), Err(Error::BadAddress { .. })), "{at:#x} {count}");
    }
    let transfer = session.transfer(blocks[0], 2).unwrap().expect("nobody has them");
    assert!(session.transfer(blocks[1], 2).unwrap().is_none(), "one at a time");
    let other = session.transfer(blocks[2], 1).unwrap().expect("the others are not taken");
    assert_eq!(bytes_in(&*transfer), [[1; BLOCK as usize], [2; BLOCK as usize]].concat());
    (*other).as_ref()[5].store(77, Ordering::Relaxed);
    assert_eq!(content(&session, blocks[2])[5], 77);
    drop(session);
    assert_eq!(bytes_in(&*transfer)[BLOCK as usize], 2, "the memory is mapped still");
}

#[test]
fn a_block_that_is_freed_under_transfer_is_nobodys_until_that_ends() {
    let session = rig::private(MIB);
    let blocks: Vec<u64> = std::iter::from_fn(|| alloc(&session, 1, OWNER).ok()).collect();
    let transfer = session.transfer(blocks[0], 2).unwrap().unwrap();
    let clone = transfer.clone();
    blocks.iter().for_each(|block| free(&session, *block));
    assert!(session.heap().is_put_off(blocks[0]) && session.memory().is_allocated(blocks[1]).unwrap());
    // Freed once is enough, and a sweep has to leave it alone.
    let again = session.begin().unwrap().sweep_object(blocks[0]);
    assert!(matches!(again, Err(Error::NotAllocated { .. })), "{again:?}");
    assert_eq!((session.free_ended().unwrap(), session.heap().block_usage().used), (0, 2));
    let mut taken = BTreeMap::new();
    while let Ok(block) = alloc(&session, 2, OWNER) {
        taken.insert(block, ());
    }
    assert!(!taken.contains_key(&blocks[0]) && !taken.contains_key(&blocks[1]));
    assert_eq!(taken.len(), blocks.len() - 2);
    drop(transfer);
    assert_eq!(session.free_ended().unwrap(), 0, "somebody has it still");
    drop(clone);
    // An allocation that finds no memory looks for ended transfers.
    let last: Vec<u64> = std::iter::from_fn(|| alloc(&session, 2, OWNER).ok()).collect();
    assert_eq!(last.len(), 2);
    last.into_iter().chain(taken.into_keys()).for_each(|block| free(&session, block));
    assert_all_returned(&session);
}

/// If the last process leaves such a block behind, the next one sweeps.
#[test]
fn who_leaves_with_a_block_put_off_leaves_a_leak() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory");
    rig::format_file(&path, MIB);
    for put_off in [false, true] {
        let session = rig::attach(&path).unwrap();
        assert!(!session.runtime().leaks_pending());
        let block = alloc(&session, 1, OWNER).unwrap();
        let transfer = session.transfer(block, 1).unwrap().unwrap();
        if put_off {
            free(&session, block);
        } else {
            drop(transfer);
            free(&session, block);
            drop(session);
            continue;
        }
        drop(session);
        drop(transfer);
        let session = rig::attach(&path).unwrap();
        assert!(session.runtime().leaks_pending() && session.memory().is_allocated(block).unwrap());
        session.begin().unwrap().sweep_object(block).unwrap();
        assert_all_returned(&session);
    }
}

/// A block whose place is lost has none, and the epoch in which that was found; a rollback gives both back.
#[test]
fn a_block_gives_up_its_place() {
    let session = rig::private(16 * MIB);
    let block = alloc(&session, 3, OWNER).unwrap();
    let change = |commits: bool, work: &dyn Fn(&mut pram::Tx<'_>)| {
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        work(&mut tx);
        if commits {
            tx.commit().unwrap();
        }
    };
    let is = || {
        let found = session.memory().descriptor(block).unwrap();
        (found.place, found.epoch, found.owner)
    };
    change(true, &|tx| tx.set_place(block, 42).unwrap());
    assert_eq!((is(), session.heap().unplaced()), ((42, 3, OWNER), 0));
    change(false, &|tx| tx.unset_place(block, 9).unwrap());
    assert_eq!((is(), session.heap().unplaced()), ((42, 3, OWNER), 0));
    change(true, &|tx| tx.unset_place(block, 9).unwrap());
    assert_eq!((is(), session.heap().unplaced()), ((0, 9, OWNER), 1));
    assert_eq!(walk(&session, Which::Unplaced, 5).into_keys().collect::<Vec<_>>(), [block]);
}
