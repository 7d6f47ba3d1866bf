//! A memory that grows, cut at every store: it has the old size or the new one, and can be worked with.

use std::sync::{Arc, Mutex};

use pram::{Mapping, Medium, MediumKind, Memory, Needs, Session, Tag, CHUNK};

use crate::rig::{self, KEYS, MIB};

const OLD: u64 = 2 * MIB;
const NEW: u64 = 70 * MIB;

type Stores = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// Memory that notes all stores.
#[derive(Default)]
struct Noting(Stores);

impl Medium for Noting {
    fn kind(&self) -> MediumKind {
        MediumKind::Battery
    }
    fn needs(&self) -> Needs {
        Needs { stores: true, flush: false }
    }
    fn flush(&self, _: &Mapping, _: u64, _: u64) {}
    fn fence(&self, _: &Mapping) {}
    fn stored(&self, off: u64, bytes: &[u8]) {
        self.0.lock().unwrap().push((off, bytes.to_vec()));
    }
}

/// `bytes` at the start of memory for the larger memory.
fn memory(bytes: &[u8]) -> Mapping {
    let map = Mapping::anonymous(NEW).unwrap();
    map.write(0, bytes).unwrap();
    map
}

fn open(map: Mapping, medium: Noting) -> Session {
    Session::private(Memory::open(map, Box::new(medium)).unwrap(), KEYS).unwrap()
}

/// An object of so many chunks, if there is room for it.
fn alloc(session: &Session, chunks: u64) -> bool {
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let found = tx.alloc(Tag(1), chunks * CHUNK).is_ok();
    tx.commit().unwrap();
    found
}

#[test]
fn a_region_cut_while_it_grows_has_the_old_size_or_the_new_one() {
    let small = rig::private(OLD);
    assert!(alloc(&small, 3));
    let base = rig::bytes_of(&small);
    drop(small);
    let stores = Stores::default();
    let session = open(memory(&base), Noting(stores.clone()));
    stores.lock().unwrap().clear();
    session.resize(NEW).unwrap();
    let resized = stores.lock().unwrap().len();
    // More than the first group has: the second one is begun.
    while alloc(&session, 40) {}
    assert_eq!(session.memory().groups(), 2);
    let stores = std::mem::take(&mut *stores.lock().unwrap());
    assert!(resized >= 2 && stores.len() > resized, "{resized} of {}", stores.len());
    let mut sizes = [0; 2];
    for (n, (off, bytes)) in stores.iter().enumerate() {
        for cut in (0..=bytes.len()).step_by(8) {
            // Long stores without a header are cut at their ends alone.
            if n >= resized && cut != 0 && cut < bytes.len() {
                continue;
            }
            let map = memory(&base);
            stores[..n].iter().for_each(|(off, bytes)| map.write(*off, bytes).unwrap());
            map.write(*off, &bytes[..cut]).unwrap();
            let session = open(map, Noting::default());
            let size = session.memory().size();
            assert!(size == OLD || size == NEW, "{size} at {n}, {cut}");
            assert!(n < resized || size == NEW, "it is not lost any more");
            sizes[usize::from(size == NEW)] += 1;
            assert!(alloc(&session, 1) || session.runtime().absent() == 0);
        }
    }
    assert!(sizes.iter().all(|n| *n > 0), "{sizes:?}");
}

#[test]
fn a_region_does_not_become_smaller_nor_larger_than_its_memory() {
    let session = rig::private(4 * MIB);
    let refused = session.resize(3 * MIB).unwrap_err().to_string();
    assert!(refused.contains("cannot become smaller"), "{refused}");
    let refused = session.resize(8 * MIB).unwrap_err().to_string();
    assert!(refused.contains("unmount the pool first"), "{refused}");
    session.resize(4 * MIB).unwrap();
}
