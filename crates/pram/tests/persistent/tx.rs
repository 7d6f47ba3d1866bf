//! Commit and rollback of every size.

use pram::tx::{LOG_CAPACITY, RECORD};
use pram::{Error, Mapping, Memory, Off, Session, Tag};
use rng::Rng;

use crate::rig::{self, Lossy, KEYS, MIB, UUID};

const TAG: Tag = Tag(3);

/// A session with one object of `size` bytes filled with `fill`, all committed.
fn with_object(size: u64, fill: u8) -> (Session, u64) {
    let session = rig::private(4 * MIB);
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let off = tx.alloc(TAG, size).unwrap().off;
    tx.init_bytes(off, &vec![fill; size as usize]).unwrap();
    tx.commit().unwrap();
    drop(op);
    (session, off)
}

fn content(session: &Session, off: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    session.memory().read_bytes(off, &mut bytes).unwrap();
    bytes
}

#[test]
fn every_length_commits_and_rolls_back() {
    let (session, off) = with_object(40_000, 1);
    let lengths = (0..300).chain([511, 512, 513, 4095, 4096, 4097, 16_384, LOG_CAPACITY as usize - RECORD as usize]);
    for len in lengths {
        for shift in [0, 1, 7] {
            if len as u64 + RECORD > LOG_CAPACITY {
                continue;
            }
            let at = off + shift;
            let before = content(&session, off, 40_000);
            let mut op = session.begin().unwrap();
            let mut tx = op.tx().unwrap();
            tx.set_bytes(at, &vec![len as u8 | 0x80; len]).unwrap();
            drop(tx);
            assert_eq!(content(&session, off, 40_000), before, "rolled back, {len} at {at}");
            let mut tx = op.tx().unwrap();
            tx.set_bytes(at, &vec![len as u8 | 0x80; len]).unwrap();
            tx.commit().unwrap();
            assert_eq!(content(&session, at, len), vec![len as u8 | 0x80; len]);
        }
    }
}

#[test]
fn a_full_log_is_an_error_that_leaves_the_transaction_whole() {
    let (session, off) = with_object(64 << 10, 5);
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    assert!(matches!(tx.set_zero(off, LOG_CAPACITY), Err(Error::LogFull)));
    let mut n = 0;
    while tx.room() >= RECORD + 8 {
        tx.set(Off::<u64>::new(off + n * 8), &n).unwrap();
        n += 1;
    }
    assert!(matches!(tx.set(Off::<u64>::new(off), &9), Err(Error::LogFull)));
    assert!(n > 1300, "{n} words fit");
    drop(tx);
    assert_eq!(content(&session, off, 64 << 10), vec![5; 64 << 10]);
    // Exactly as many fit the next time, and they commit.
    let mut tx = op.tx().unwrap();
    (0..n).for_each(|i| tx.set(Off::<u64>::new(off + i * 8), &i).unwrap());
    tx.commit().unwrap();
    assert_eq!(session.memory().load(Off::new(off + (n - 1) * 8)).unwrap(), n - 1);
}

#[test]
fn overlapping_changes_are_undone_in_reverse() {
    let (session, off) = with_object(256, 7);
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    tx.set_bytes(off, &[1; 100]).unwrap();
    tx.set_bytes(off + 50, &[2; 100]).unwrap();
    tx.set_copy(off, off + 20, 200).unwrap();
    tx.set_zero(off + 3, 11).unwrap();
    drop(tx);
    assert_eq!(content(&session, off, 256), vec![7; 256]);
}

#[test]
fn objects_follow_their_transaction() {
    let session = rig::private(4 * MIB);
    let allocated = |s: &Session| s.memory().allocated_bytes().unwrap();
    let empty = allocated(&session);
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    for size in [1, 100, 5000, 40_000, 200_000] {
        assert!(tx.alloc(TAG, size).unwrap().cap >= size);
    }
    drop(tx);
    assert_eq!(allocated(&session), empty, "undone");
    let mut tx = op.tx().unwrap();
    let block = tx.alloc(TAG, 100).unwrap();
    tx.commit().unwrap();
    let one = allocated(&session);
    assert!(one > empty);
    let mut tx = op.tx().unwrap();
    tx.free(block.off, TAG).unwrap();
    assert!(matches!(tx.free(block.off, Tag(4)), Err(Error::WrongType { .. })));
    assert!(matches!(tx.free(block.off + 8, TAG), Err(Error::BadAddress { .. })));
    drop(tx);
    assert_eq!(allocated(&session), one, "freed only at commit");
    let mut tx = op.tx().unwrap();
    tx.free(block.off, TAG).unwrap();
    tx.commit().unwrap();
    assert_eq!(allocated(&session), empty);
}

/// The log's old bytes are the application's: they can look like anything, a record of the coming
/// transaction included. Once, on media without checksums, such bytes behind the last record were taken
/// for one, and recovery applied it.
#[test]
fn old_bytes_are_never_taken_for_records() {
    for ahead in 0..8u64 {
        let (session, off) = with_object(4096, 0);
        let victim = off + 2048;
        // A forged record of transaction `n`: 8 bytes at `victim`, to be replaced by 0xff.
        let forge = |n: u64| [victim | 8 << 48, n, u64::MAX].map(u64::to_le_bytes).concat();
        let mut op = session.begin().unwrap();
        let number = session.memory().load(Off::new(session.memory().geo.slot(op.slot()))).unwrap();
        // 1. The object holds forged records; 2. logging them puts them into the slot.
        let mut tx = op.tx().unwrap();
        tx.init_bytes(off, &forge(number + 1 + ahead).repeat(20)).unwrap();
        tx.set_bytes(off, &[0; 480]).unwrap();
        tx.commit().unwrap();
        // 3. Later transactions with records of many lengths end before, on and after them.
        for len in (0..=ahead).map(|i| 8 * (i + 1)) {
            let mut tx = op.tx().unwrap();
            tx.set_zero(off, len).unwrap();
            let crashed = rig::bytes_of(&session);
            tx.commit().unwrap();
            let recovered = rig::reopen(&crashed).unwrap();
            assert_eq!(content(&recovered, victim, 8), [0; 8], "ahead {ahead}, length {len}");
        }
    }
}

/// A program has written a record of the next transaction to a file, and overwritten it, so that it lies in
/// the slot where that transaction's log will end.
#[test]
fn what_programs_write_is_no_record_before_the_end_mark_is_durable() {
    let medium = Lossy::default();
    let map = Mapping::anonymous(4 * MIB).unwrap();
    let memory = Memory::format(map, Box::new(medium.clone()), UUID, 7, 42).unwrap();
    let session = Session::private(memory, KEYS).unwrap();
    let memory = session.memory();
    let mut op = session.begin_in(0).unwrap();
    let mut tx = op.tx().unwrap();
    let [file, other] = [(); 2].map(|()| tx.alloc(Tag(1), 4096).unwrap().off);
    let victim = tx.alloc(Tag(2), 64).unwrap().off;
    tx.commit().unwrap();
    let slot = Off::<u64>::new(memory.geo.slot(0));
    let number = memory.load(slot).unwrap();
    let (place, of, old) = ((victim | 8 << 48).to_le_bytes(), number as u32 + 2, 0x6c69_7665_u64.to_le_bytes());
    let crc = [&place[..], &of.to_le_bytes(), &old].into_iter().fold(0, crc32c::crc32c_append);
    let mut content = [0x55; 512];
    content[48..56].copy_from_slice(&place);
    content[56..64].copy_from_slice(&(u64::from(of) | u64::from(crc) << 32).to_le_bytes());
    content[64..72].copy_from_slice(&old);
    let mut tx = op.tx().unwrap();
    tx.init_bytes(file, &content).unwrap();
    tx.set(Off::<u64>::new(victim), &1).unwrap();
    tx.commit().unwrap();
    let mut tx = op.tx().unwrap();
    tx.set_bytes(file, &[7; 512]).unwrap();
    tx.commit().unwrap();
    assert_eq!(memory.load(slot).unwrap(), number + 2);
    // A power cut within the next one.
    let mut tx = op.tx().unwrap();
    tx.set_bytes(other, &[1; 48]).unwrap();
    let left = medium.0.lock().unwrap().0.clone();
    tx.commit().unwrap();
    let memory = Memory::open(rig::mapping_of(&left), Box::new(Lossy::default())).unwrap();
    let later = Session::private(memory, KEYS).unwrap();
    assert_eq!(later.memory().load(Off::<u64>::new(victim)).unwrap(), 1);
}

#[test]
fn numbers_pass_over_a_zero_low_half() {
    let session = rig::private(MIB);
    let slot = |s: &Session| s.memory().geo.slot(0);
    let mut bytes = rig::bytes_of(&session);
    let at = slot(&session) as usize;
    // The last number before, and the numbers after a crash while zero is skipped.
    for number in [0xffff_fffeu64, 0xffff_ffff, 1 << 32, 0] {
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        let session = rig::reopen(&bytes).unwrap();
        let root = session.memory().root(5);
        for i in 0..4u64 {
            let mut op = session.begin().unwrap();
            while op.slot() != 0 {
                let next = session.begin().unwrap();
                op = next;
            }
            let mut tx = op.tx().unwrap();
            tx.set(root, &(i + 1)).unwrap();
            let crashed = rig::bytes_of(&session);
            tx.commit().unwrap();
            let recovered = rig::reopen(&crashed).unwrap();
            assert_eq!(recovered.memory().load(root).unwrap(), i, "undone at {number:#x} + {i}");
        }
    }
}

#[test]
fn random_transactions_equal_a_model() {
    const SIZE: usize = 8192;
    let (session, off) = with_object(SIZE as u64, 0);
    let mut model = vec![0u8; SIZE];
    let mut rng = Rng::new(7);
    for round in 0..3000 {
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let mut next = model.clone();
        for _ in 0..rng.below(12) {
            let at = rng.below(SIZE as u64) as usize;
            let len = rng.below((SIZE - at).min(600) as u64 + 1) as usize;
            match rng.below(3) {
                0 => {
                    tx.set_bytes(off + at as u64, &vec![round as u8; len]).unwrap();
                    next[at..at + len].fill(round as u8);
                }
                1 => {
                    tx.set_zero(off + at as u64, len as u64).unwrap();
                    next[at..at + len].fill(0);
                }
                _ => {
                    let src = rng.below((SIZE - len) as u64 + 1) as usize;
                    tx.set_copy(off + src as u64, off + at as u64, len as u64).unwrap();
                    next.copy_within(src..src + len, at);
                }
            }
        }
        match rng.below(3) {
            0 => drop(tx),
            1 => {
                // A crash here: another process, so to speak, recovers the state before.
                let recovered = rig::reopen(&rig::bytes_of(&session)).unwrap();
                assert_eq!(content(&recovered, off, SIZE), model, "crash in round {round}");
                drop(tx);
            }
            _ => {
                tx.commit().unwrap();
                model = next;
            }
        }
        assert_eq!(content(&session, off, SIZE), model, "round {round}");
    }
}

/// A look without the lock stays valid under it, unless somebody else has had the lock in between.
#[test]
fn a_look_holds_until_somebody_else_has_had_the_lock() {
    let (session, _) = with_object(64, 1);
    let mut op = session.begin().unwrap();
    let seen = op.look(7, || {}).unwrap();
    op.lock(&[3, 7]).unwrap();
    assert!(op.is_as_seen(7, seen));
    assert!(!op.is_as_seen(3, None));
    op.unlock();
    // The operation has had the lock itself meanwhile: it may have changed the data.
    op.lock(&[7]).unwrap();
    assert!(!op.is_as_seen(7, seen));
    op.unlock();
    let seen = op.look(7, || {}).unwrap();
    let mut other = session.begin().unwrap();
    other.lock(&[7]).unwrap();
    drop(other);
    op.lock(&[7]).unwrap();
    assert!(!op.is_as_seen(7, seen));
}
