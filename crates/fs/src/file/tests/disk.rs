//! A map that stands in for disks: the cost of content that must be fetched from there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use super::*;
use crate::file::tree::{find, Found};
use ilfs::Place;

/// A page that was fetched from a place, or the error.
type Bytes = Result<Box<[u8]>, Errno>;

impl FetchedPage for Bytes {
    fn copy_to(&self, skip: usize, to: &mut [u8]) -> Result<(), Errno> {
        to.copy_from_slice(&self.as_ref().map_err(|e| *e)?[skip..skip + to.len()]);
        Ok(())
    }
}

static DISK: Mutex<BTreeMap<Place, Bytes>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Called before each page that this thread fetches.
    static BEFORE: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Calls `f` before each page that this thread fetches from now on.
pub(crate) fn before_each_fetch(f: impl FnMut() + 'static) {
    BEFORE.set(Some(Box::new(f)));
}

/// The map, as a source of pages.
pub(crate) struct Map;

impl Fetching for Map {
    fn fetch(&self, places: &[Place]) -> Vec<Box<dyn FetchedPage>> {
        fetch(places)
    }
}

pub(crate) fn fetch(places: &[Place]) -> Vec<Box<dyn FetchedPage>> {
    let one = |place: &Place| -> Box<dyn FetchedPage> {
        if let Some(mut f) = BEFORE.take() {
            f();
            BEFORE.set(Some(f));
        }
        Box::new(DISK.lock().unwrap().get(place).expect("what an entry leads to is there").clone())
    };
    places.iter().map(one).collect()
}

/// The page at this place cannot be read any more.
pub(crate) fn spoil(place: Place) {
    DISK.lock().unwrap().insert(place, Err(Errno::IO));
}

/// Moves a page from memory to a new place on disk, if it is there.
pub(crate) fn evict(tx: &mut Tx, c: &Content, page: u64) -> Result<Option<Place>> {
    let r = tx.memory();
    let Form::Tree(root) = form(r, c)? else { return Ok(None) };
    let Found::Leaf(leaf) = find(r, root, page)? else { return Ok(None) };
    let i = leaf.index(page);
    let Entry::Page(off) = leaf.get(r, i)? else { return Ok(None) };
    let place = Place::new(NEXT.fetch_add(1, Ordering::Relaxed), 7);
    let mut bytes = vec![0; PAGE as usize];
    r.read_bytes(off, &mut bytes)?;
    DISK.lock().unwrap().insert(place, Ok(bytes.into()));
    tx.set(leaf.at(i), &leaf.entry_word(i, Entry::Disk(place)))?;
    tx.free(off, tag::DATA)?;
    Ok(Some(place))
}

/// Where a page lies on disk, if it does.
pub(crate) fn place_of(r: &Memory, c: &Content, page: u64) -> Option<Place> {
    let Form::Tree(root) = form(r, c).unwrap() else { return None };
    match crate::file::tree::get(r, root, page).unwrap() {
        Entry::Disk(place) => Some(place),
        _ => None,
    }
}

/// [`read`], with all fetches that it needs.
pub(crate) fn read_all(r: &Memory, c: &Content, off: u64, buf: &mut [u8]) -> Result<usize> {
    let (mut fetched, mut missing) = (Fetched::default(), Missing::new());
    loop {
        missing.clear();
        match read_with(r, c, off, buf, (&fetched, &mut missing), |_, _| {}) {
            Err(Error::Elsewhere) => fetched.fetch(&Map, &missing),
            done => return done,
        }
    }
}

/// Moves a page from disk to memory.
pub(crate) fn bring(tx: &mut Tx, c: &Content, page: u64) -> Result<()> {
    let Some(place) = place_of(tx.memory(), c, page) else { return Ok(()) };
    let bytes = DISK.lock().unwrap()[&place].clone().unwrap();
    let Form::Tree(root) = form(tx.memory(), c)? else { return Ok(()) };
    let Found::Leaf(leaf) = find(tx.memory(), root, page)? else { return Ok(()) };
    let new = tx.alloc(tag::DATA, PAGE)?.off;
    tx.init_bytes(new, &bytes)?;
    let i = leaf.index(page);
    Ok(tx.set(leaf.at(i), &leaf.entry_word(i, Entry::Page(new)))?)
}
