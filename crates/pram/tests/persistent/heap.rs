//! The heap against a model, alone and from many threads.

use std::collections::BTreeMap;
use std::sync::Mutex;

use pram::memory::{capacity_of, CLASSES, MAX_SMALL};
use pram::{Error, Session, Tag, CHUNK};
use rng::Rng;

use crate::rig::{self, MIB};

/// Live objects: end and tag by offset.
#[derive(Default)]
struct Model(BTreeMap<u64, (u64, Tag)>);

impl Model {
    fn add(&mut self, off: u64, cap: u64, tag: Tag) {
        let before = self.0.range(..=off).next_back().map_or(0, |(_, (end, _))| *end);
        let after = self.0.range(off..).next().map_or(u64::MAX, |(at, _)| *at);
        assert!(before <= off && off + cap <= after, "{off:#x} overlaps a live object");
        self.0.insert(off, (off + cap, tag));
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(off, (end, _))| end - off).sum()
    }
}

fn alloc(session: &Session, tag: Tag, size: u64) -> pram::Result<pram::Block> {
    let mut op = session.begin()?;
    let mut tx = op.tx()?;
    let block = tx.alloc(tag, size)?;
    tx.commit()?;
    Ok(block)
}

fn free(session: &Session, off: u64, tag: Tag) {
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    tx.free(off, tag).unwrap();
    tx.commit().unwrap();
}

/// Sizes as a file system has them: mostly small, some large.
fn a_size(rng: &mut Rng) -> u64 {
    match rng.below(20) {
        0 => 1 + rng.below(4 * CHUNK),
        1..=4 => 1 + rng.below(MAX_SMALL),
        _ => 1 + rng.below(700),
    }
}

/// All chunks can be taken as one run again.
fn assert_all_returned(session: &Session) {
    assert_eq!(session.memory().allocated_bytes().unwrap(), 0);
    let all = session.memory().geo.heap_chunks(session.memory().size());
    let run = alloc(session, Tag(1), all * CHUNK).expect("every chunk came back");
    free(session, run.off, Tag(1));
    assert_eq!(session.runtime().free_chunks(), all);
}

#[test]
fn classes_waste_at_most_an_eighth_of_what_is_not_very_large() {
    for size in 1..=MAX_SMALL {
        let cap = capacity_of(size);
        // If two or three objects fill a chunk, each must be a half or a third of it.
        let waste = match size {
            0..=128 => 15,
            129..=8192 => cap / 8,
            8193..=13104 => cap / 5,
            13105..=16384 => cap / 4,
            _ => cap / 3 + 5,
        };
        assert!(cap >= size && cap - size <= waste, "{size} takes {cap}");
    }
    for c in &CLASSES {
        assert!(c.base + c.size * c.count <= CHUNK as u32);
        assert!(c.base == 0 && c.count <= 64 || c.base >= c.count.div_ceil(8));
    }
}

#[test]
fn random_objects_equal_a_model() {
    for seed in 0..4 {
        let session = rig::private(8 * MIB);
        let (mut rng, mut model) = (Rng::new(seed), Model::default());
        let mut full = 0;
        for step in 0..30_000u64 {
            // Fill and drain in turns, so that full and empty are both met.
            let filling = step / 5000 % 2 == 0;
            if rng.below(10) < if filling { 8 } else { 2 } {
                let (tag, size) = (Tag(1 + rng.below(15) as u8), a_size(&mut rng));
                match alloc(&session, tag, size) {
                    Ok(b) => {
                        // A full memory may give an object of a larger class.
                        assert!(b.cap == capacity_of(size) || b.cap > size && b.cap <= 2 * capacity_of(size));
                        model.add(b.off, b.cap, tag);
                    }
                    Err(Error::NoSpace) => full += 1,
                    Err(e) => panic!("{e}"),
                }
            } else if let Some((off, (_, tag))) = pick(&model, &mut rng) {
                assert!(session.memory().is_allocated(off).unwrap());
                free(&session, off, tag);
                model.0.remove(&off);
            }
        }
        assert!(full > 0, "the memory was never full");
        assert_eq!(session.memory().allocated_bytes().unwrap(), model.bytes());
        for (off, (end, tag)) in &model.0 {
            assert_eq!(session.memory().resolve(*off, *tag).unwrap(), end - off);
        }
        // After a restart the allocated bytes are the same.
        let again = rig::reopen(&rig::bytes_of(&session)).unwrap();
        assert_eq!(again.memory().allocated_bytes().unwrap(), model.bytes());
        model.0.iter().for_each(|(off, (_, tag))| free(&again, *off, *tag));
        assert_all_returned(&again);
        model.0.into_iter().for_each(|(off, (_, tag))| free(&session, off, tag));
        assert_all_returned(&session);
    }
}

fn pick(model: &Model, rng: &mut Rng) -> Option<(u64, (u64, Tag))> {
    let (first, last) = (model.0.keys().next()?, model.0.keys().next_back()?);
    let at = first + rng.below(last - first + 1);
    model.0.range(at..).next().map(|(off, v)| (*off, *v))
}

/// Without a free chunk, an object of a class takes a free place of a larger class, up to twice as large, and never one
/// of another type.
#[test]
fn a_full_region_gives_what_larger_classes_have_free() {
    let session = rig::private(MIB);
    let larger: Vec<u64> = std::iter::from_fn(|| alloc(&session, Tag(2), 1000).ok()).map(|b| b.off).collect();
    larger.iter().take(10).for_each(|off| free(&session, *off, Tag(2)));
    assert!(matches!(alloc(&session, Tag(2), 400), Err(Error::NoSpace)), "more than half would be wasted");
    assert!(matches!(alloc(&session, Tag(3), 600), Err(Error::NoSpace)), "of another type");
    assert!(matches!(alloc(&session, Tag(2), 640), Err(Error::NoSpace)), "it fills its class");
    let fits = std::iter::from_fn(|| alloc(&session, Tag(2), 600).ok());
    let fits: Vec<u64> = fits.inspect(|b| assert_eq!(b.cap, capacity_of(1000))).map(|b| b.off).collect();
    assert_eq!(fits.len(), 10);
    larger[10..].iter().chain(&fits).for_each(|off| free(&session, *off, Tag(2)));
    assert_all_returned(&session);
}

#[test]
fn a_full_region_is_used_to_the_last_object() {
    let session = rig::private(MIB);
    for size in [16, 1000, 1024, 32768, CHUNK] {
        let mut offs = Vec::new();
        let err = loop {
            match alloc(&session, Tag(2), size) {
                Ok(b) => offs.push(b.off),
                Err(e) => break e,
            }
        };
        assert!(matches!(err, Error::NoSpace));
        let per_chunk = if size >= CHUNK { 1 } else { u64::from(CLASSES[pram::memory::class_of(size)].count) };
        assert_eq!(offs.len() as u64, session.memory().chunks().count() as u64 * per_chunk, "objects of {size}");
        // One freed object is one more allocation.
        free(&session, offs[offs.len() / 2], Tag(2));
        assert!(alloc(&session, Tag(2), size).is_ok());
        assert!(alloc(&session, Tag(2), size).is_err());
        offs.into_iter().for_each(|off| free(&session, off, Tag(2)));
        assert_all_returned(&session);
    }
}

#[test]
fn impossible_sizes_are_refused() {
    let session = rig::private(MIB);
    for size in [MIB, 1 << 40, u64::MAX - 1, u64::MAX] {
        assert!(matches!(alloc(&session, Tag(1), size), Err(Error::NoSpace)));
    }
    assert_all_returned(&session);
}

#[test]
fn a_double_free_is_noticed_and_harmless() {
    let session = rig::private(MIB);
    let keep = alloc(&session, Tag(1), 64).unwrap();
    let block = alloc(&session, Tag(1), 64).unwrap();
    free(&session, block.off, Tag(1));
    assert!(matches!(session.begin().unwrap().sweep_object(block.off), Err(Error::NotAllocated { .. })));
    assert!(!session.memory().is_allocated(block.off).unwrap());
    free(&session, keep.off, Tag(1));
    assert_all_returned(&session);
}

#[test]
fn threads_never_share_an_object() {
    let session = rig::private(16 * MIB);
    let model = Mutex::new(Model::default());
    // Objects handed from one thread to be freed by another.
    let passed = Mutex::new(Vec::<(u64, Tag)>::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (session, model, passed) = (&session, &model, &passed);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for step in 0..20_000u64 {
                    let allocate = rng.below(10) < if step / 2000 % 2 == 0 { 7 } else { 3 };
                    if allocate {
                        let (tag, size) = (Tag(1 + rng.below(3) as u8), a_size(&mut rng));
                        // Adds under the model's lock after the allocation: the free below removes from the model first.
                        if let Ok(b) = alloc(session, tag, size) {
                            model.lock().unwrap().add(b.off, b.cap, tag);
                            passed.lock().unwrap().push((b.off, tag));
                        }
                    } else {
                        let mut all = passed.lock().unwrap();
                        if all.is_empty() {
                            continue;
                        }
                        let n = rng.below(all.len() as u64) as usize;
                        let (off, tag) = all.swap_remove(n);
                        drop(all);
                        model.lock().unwrap().0.remove(&off);
                        free(session, off, tag);
                    }
                }
            });
        }
    });
    let model = model.into_inner().unwrap();
    assert_eq!(session.memory().allocated_bytes().unwrap(), model.bytes());
    model.0.into_iter().for_each(|(off, (_, tag))| free(&session, off, tag));
    assert_all_returned(&session);
}

#[test]
fn a_sweep_spares_what_is_new() {
    let session = rig::private(4 * MIB);
    let leaked = alloc(&session, Tag(1), 100).unwrap().off;
    let rt = session.runtime();
    assert!(rt.start_sweep().unwrap());
    assert!(!rt.start_sweep().unwrap(), "one sweep at a time");
    session.drain().unwrap();
    let new = [alloc(&session, Tag(1), 100).unwrap().off, alloc(&session, Tag(1), 100_000).unwrap().off];
    assert!(new.iter().all(|off| rt.is_new(*off)) && !rt.is_new(leaked) && !rt.is_new(u64::MAX));
    session.begin().unwrap().sweep_object(leaked).unwrap();
    rt.end_sweep();
    assert!(rt.start_sweep().unwrap() && !rt.is_new(new[0]), "the next sweep begins afresh");
    rt.end_sweep();
    new.iter().for_each(|off| session.begin().unwrap().sweep_object(*off).unwrap());
    assert_all_returned(&session);
}
