//! The heap of a full memory, where chunks go from owner to owner: other threads act after one store.

use std::sync::{Arc, Mutex, OnceLock};

use pram::medium::{Medium, MediumKind, Needs};
use pram::session::Op;
use pram::{Block, Error, Mapping, Memory, Session, Tag, CHUNK};

use crate::rig::{KEYS, MIB, UUID};

/// An action after the next store to an offset.
type Deed = (u64, Box<dyn FnOnce() + Send>);

/// Ordinary RAM that runs an action at a store.
#[derive(Clone, Default)]
struct Watched(Arc<Mutex<Option<Deed>>>);

impl Watched {
    fn at_store_to(&self, off: u64, deed: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some((off, Box::new(deed)));
    }
}

impl Medium for Watched {
    fn kind(&self) -> MediumKind {
        MediumKind::Battery
    }
    fn needs(&self) -> Needs {
        Needs { flush: false, stores: true }
    }
    fn flush(&self, _: &Mapping, _: u64, _: u64) {}
    fn fence(&self, _: &Mapping) {}
    fn stored(&self, off: u64, _: &[u8]) {
        let due = self.0.lock().unwrap().take_if(|(at, _)| *at == off);
        if let Some((_, deed)) = due {
            deed();
        }
    }
}

fn session(medium: &Watched) -> &'static Session {
    let map = Mapping::anonymous(4 * MIB).unwrap();
    let memory = Memory::format(map, Box::new(medium.clone()), UUID, 7, 42).unwrap();
    let session = Session::private(memory, KEYS).unwrap();
    while session.runtime().absent() > 0 {
        session.supply_soon().unwrap();
    }
    Box::leak(Box::new(session))
}

fn alloc(op: &mut Op, tag: Tag, size: u64) -> pram::Result<Block> {
    let mut tx = op.tx()?;
    let block = tx.alloc(tag, size)?;
    tx.commit()?;
    Ok(block)
}

fn free(op: &mut Op, off: u64, tag: Tag) {
    let mut tx = op.tx().unwrap();
    tx.free(off, tag).unwrap();
    tx.commit().unwrap();
}

/// Takes chunks until so many are left.
fn fill(session: &Session, op: &mut Op, left: u64) {
    while session.runtime().free_chunks() > left {
        alloc(op, Tag(9), CHUNK).unwrap();
    }
}

/// A gives up a full chunk. C frees an object in it, B takes the chunk over, and only then A, which finds no other,
/// gives up all its chunks. In the end another slot has taken everything, and B goes on to allocate.
#[test]
fn a_chunk_that_was_given_up_is_not_taken_from_its_next_owner() {
    let medium = Watched::default();
    let session = session(&medium);
    let geo = session.memory().geo;
    let (mut filler, mut a) = (session.begin_in(3).unwrap(), session.begin_in(0).unwrap());
    fill(session, &mut filler, 2);
    let empty = alloc(&mut a, Tag(1), 32768).unwrap().off;
    free(&mut a, empty, Tag(1));
    let full: Vec<u64> = (0..4).map(|_| alloc(&mut a, Tag(2), 16384).unwrap().off).collect();
    let chunk = geo.chunk_of(full[0]);
    assert_eq!(session.runtime().free_chunks(), 0);

    let b: Arc<OnceLock<Mutex<(Op, u64)>>> = Arc::default();
    let (theirs, objects) = (b.clone(), full.clone());
    medium.at_store_to(geo.entry(geo.chunk_of(empty)).raw(), move || {
        let mut c = session.begin_in(2).unwrap();
        objects[1..].iter().for_each(|off| free(&mut c, *off, Tag(2)));
        let mut op = session.begin_in(1).unwrap();
        let object = alloc(&mut op, Tag(2), 16384).unwrap().off;
        assert_eq!(session.runtime().owner(chunk), Some(1), "B owns it");
        assert!(theirs.set(Mutex::new((op, object))).is_ok());
    });
    let of_a = alloc(&mut a, Tag(2), 16384).unwrap().off;
    assert_eq!(session.runtime().owner(chunk), Some(1), "B's still");

    let (b, of_b) = &mut *b.get().expect("it happened").lock().unwrap();
    free(&mut a, of_a, Tag(2));
    [*of_b, full[0]].into_iter().for_each(|off| free(b, off, Tag(2)));
    drop(a);
    let all: Vec<Block> = std::iter::from_fn(|| match alloc(&mut filler, Tag(4), 32768) {
        Err(Error::NoSpace) => None,
        block => Some(block.unwrap()),
    })
    .collect();
    for mine in (0..4).filter_map(|_| alloc(b, Tag(2), 16384).ok()) {
        let overlaps = |o: &&Block| o.off < mine.off + mine.cap && mine.off < o.off + o.cap;
        assert!(all.iter().find(overlaps).is_none(), "{mine:?} overlaps a live object");
    }
}

/// X looks at the last chunk of a run, owning it for that, while F frees the run. Then Y takes that chunk, and only
/// then F goes on.
#[test]
fn a_run_is_freed_without_touching_what_is_anothers() {
    let medium = Watched::default();
    let session = session(&medium);
    let (geo, rt) = (session.memory().geo, session.runtime());
    let mut f = session.begin_in(0).unwrap();
    let run = alloc(&mut f, Tag(9), 3 * CHUNK).unwrap().off;
    let first = geo.chunk_of(run);
    fill(session, &mut session.begin_in(3).unwrap(), 0);
    assert!(rt.own(first + 2, 2), "X has it");

    let taken = Arc::new(OnceLock::new());
    let by_y = taken.clone();
    medium.at_store_to(geo.entry(first).raw(), move || {
        // As X frees a body without a head.
        session.memory().commit_word(geo.entry(first + 2).field(0), 4).unwrap();
        rt.add_free(first + 2);
        rt.disown(first + 2);
        let mut y = session.begin_in(1).unwrap();
        by_y.set(alloc(&mut y, Tag(2), 16384).unwrap().off).unwrap();
    });
    free(&mut f, run, Tag(9));
    let off = *taken.get().expect("it happened");
    assert_eq!(geo.chunk_of(off), first + 2);
    session.memory().resolve(off, Tag(2)).expect("Y's object");
}
