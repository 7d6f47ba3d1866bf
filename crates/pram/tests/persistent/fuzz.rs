//! Arbitrary bytes in a memory: errors, never panics, never a hang.

use pram::{Off, Session, Tag};
use rng::Rng;

use crate::rig::{self, MIB};

/// A memory in use, crashed inside a transaction.
fn victim() -> Vec<u8> {
    let session = rig::private(MIB);
    let mut rng = Rng::new(5);
    let mut offs = Vec::new();
    for i in 0..200 {
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let size = if i % 40 == 0 { 100_000 } else { 1 + rng.below(2000) };
        if let Ok(b) = tx.alloc(Tag(1 + (i % 4) as u8), size) {
            tx.set(session.memory().root(i), &b.off).unwrap();
            offs.push(b.off);
        }
        tx.commit().unwrap();
    }
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    (0..20).for_each(|i| tx.set_bytes(offs[i], &[i as u8; 50]).unwrap());
    rig::bytes_of(&session)
}

/// Uses a memory that could be opened: follows every root, allocates, frees, changes.
fn use_it(session: &Session, rng: &mut Rng) {
    let memory = session.memory();
    let _ = memory.allocated_bytes();
    for n in 0..200 {
        let off = memory.load(memory.root(n)).unwrap();
        let tag = Tag(1 + (n % 4) as u8);
        let _ = memory.is_allocated(off);
        let Ok(mut op) = session.begin() else { return };
        let Ok(mut tx) = op.tx() else { return };
        let _ = tx.alloc(tag, 1 + rng.below(3000)).and_then(|b| tx.init_zero(b.off, b.cap));
        if memory.resolve(off, tag).is_ok() {
            let _ = tx.set_bytes(off, &[1; 16]);
            let _ = tx.free(off, tag);
        }
        if rng.below(2) == 0 {
            let _ = tx.commit();
        }
    }
}

fn survive(bytes: &[u8], rng: &mut Rng) -> bool {
    let Ok(session) = rig::reopen(bytes) else { return false };
    use_it(&session, rng);
    true
}

#[test]
fn flipped_metadata_is_never_fatal() {
    let good = victim();
    let mut rng = Rng::new(17);
    let (table, end) = (rig::reopen(&good).unwrap().memory().geo, rig::reopen(&good).unwrap().memory().chunks_end());
    let mut opened = 0;
    // Every byte of the chunk table and of the log in use; both flipped and set to extremes.
    let slot = table.slot(0) as usize;
    let places = (table.entry(0).raw() as usize..table.entry(end).raw() as usize).chain(slot..slot + 1600);
    for at in places {
        for value in [good[at] ^ 1 << rng.below(8), 0, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            opened += u32::from(survive(&bytes, &mut rng));
        }
    }
    assert!(opened > 1000, "most damage of one byte lets the memory open: {opened}");
}

#[test]
fn random_metadata_is_never_fatal() {
    let good = victim();
    let mut rng = Rng::new(23);
    let geo = rig::reopen(&good).unwrap().memory().geo;
    for _ in 0..500 {
        let mut bytes = good.clone();
        for _ in 0..1 + rng.below(60) {
            let at = 8192 + rng.below(geo.heap() + 4096 - 8192) as usize;
            let at = at & !7;
            let word = match rng.below(4) {
                0 => rng.next(),
                1 => rng.below(MIB + 4096),
                2 => 2 | 1 << 8 | rng.below(40) << 32,
                _ => 1 | (1 + rng.below(15)) << 8 | rng.below(40) << 16,
            };
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        survive(&bytes, &mut rng);
    }
}

#[test]
fn every_address_is_checked() {
    let session = rig::private(MIB);
    let memory = session.memory();
    for off in [0, 1, 7, 8192, MIB - 8, MIB - 4, MIB, MIB + 1, 1 << 47, u64::MAX - 7, u64::MAX] {
        for tag in [Tag(0), Tag(1), Tag(15), Tag(255)] {
            assert!(memory.resolve(off, tag).is_err());
        }
        let in_bounds = off.checked_add(64).is_some_and(|end| end <= MIB);
        assert_eq!(memory.read::<[u8; 64]>(Off::new(off)).is_ok(), in_bounds);
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        if !in_bounds {
            assert!(tx.set_bytes(off, &[1; 64]).is_err());
            assert!(tx.set_zero(off, 64).is_err());
            assert!(tx.set_copy(0, off, 64).is_err());
            assert!(tx.init_copy(off, 0, 64).is_err());
        }
        assert!(tx.free(off, Tag(1)).is_err());
    }
}
