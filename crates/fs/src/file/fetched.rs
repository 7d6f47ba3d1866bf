//! Content that lies on disk: fetched outside of operations and sections, for one reader or one change, into memory of its
//! own.

use std::collections::HashMap;
use std::ops::Range;

use pram::session::assert_may_wait;
use pram::Memory;
use rustix::io::Errno;
use smallvec::SmallVec;

use super::edit::Edit;
use super::tree::entry::Entry;
use super::tree::{self, find, Found, Writer};
use super::{form, Content, Form, PAGE};
use crate::error::Result;
use crate::layout::tag;
use ilfs::Place;

/// Places that one look at a file notes.
pub(super) const NOTED: usize = 256;

/// Places whose content is wanted.
pub(crate) type Missing = SmallVec<[Place; 16]>;

/// Pages that a change needs in memory and that lie on disk, by number.
pub(crate) type Needed = SmallVec<[(u64, Place); 3]>;

/// The content of a page that was fetched.
pub(crate) trait FetchedPage {
    /// Copies bytes from `skip` on to `to`; it does not have those after the page.
    fn copy_to(&self, skip: usize, to: &mut [u8]) -> Result<(), Errno>;

    /// Whether the page was read before, lately, and the present copy does not just continue that.
    fn is_read_again(&self) -> bool {
        false
    }

    /// Why it could not be fetched, where that is known.
    fn failure(&self) -> Option<&ilfs::Error> {
        None
    }
}

/// A source of pages on disk.
pub(crate) trait Fetching {
    /// Fetches the content at each of `places`; outside of operations and sections.
    fn fetch(&self, places: &[Place]) -> Vec<Box<dyn FetchedPage>>;
}

/// A page that could not be fetched.
pub(crate) struct Unfetched(pub Errno);

impl FetchedPage for Unfetched {
    fn copy_to(&self, _skip: usize, _to: &mut [u8]) -> Result<(), Errno> {
        Err(self.0)
    }
}

/// The source of a pool without disks: nothing leads there. In tests of this crate a map stands in for disks.
pub(crate) fn fetch_without(places: &[Place]) -> Vec<Box<dyn FetchedPage>> {
    #[cfg(test)]
    return super::tests::disk::fetch(places);
    #[cfg(not(test))]
    places.iter().map(|_| -> Box<dyn FetchedPage> { Box::new(Unfetched(Errno::IO)) }).collect()
}

/// Fetched pages, by their place: there it does not change.
#[derive(Default)]
pub(crate) struct Fetched(HashMap<Place, Box<dyn FetchedPage>>);

impl Fetched {
    /// Fetches the content at `places`, unless it is fetched already. Not inside an operation or a section.
    pub fn fetch(&mut self, from: &dyn Fetching, places: &[Place]) {
        assert_may_wait();
        let new: Missing = places.iter().copied().filter(|place| !self.0.contains_key(place)).collect();
        self.0.extend(new.iter().copied().zip(from.fetch(&new)));
    }

    /// How many pages were read before, lately, and are again.
    pub fn read_again(&self) -> u64 {
        self.0.values().filter(|page| page.is_read_again()).count() as u64
    }

    /// Why the content at `place` could not be fetched, if that is known.
    pub fn failure(&self, place: Place) -> Option<&ilfs::Error> {
        self.get(place)?.failure()
    }

    /// The page that was fetched from `place`.
    pub fn get(&self, place: Place) -> Option<&dyn FetchedPage> {
        self.0.get(&place).map(|page| &**page)
    }
}

/// The pages on disk that a change of bytes `off..end` needs in memory: of which it changes a part; and if it moves the
/// size, that with the end of the file. It needs no others, and perhaps not all of these.
pub(crate) fn needed(r: &Memory, c: &Content, off: u64, end: u64) -> Result<Needed> {
    let mut needed = Needed::new();
    if let Form::Tree(root) = form(r, c)? {
        for at in [off, end, c.size.min(end)].into_iter().filter(|at| at % PAGE != 0) {
            let page = at / PAGE;
            match tree::get(r, root, page)?.as_it_is(r)? {
                Entry::Disk(place) if needed.iter().all(|(p, _)| *p != page) => needed.push((page, place)),
                _ => {}
            }
        }
    }
    Ok(needed)
}

/// Puts pages that have been fetched into memory, where they still lie on disk in the same place.
pub(crate) fn enter(tx: &mut Edit, c: &Content, needed: &Needed, fetched: &Fetched) -> Result<()> {
    for (page, place) in needed {
        if let Some(bytes) = fetched.get(*place) {
            enter_page(tx, c, *page, *place, bytes)?;
        }
    }
    Ok(())
}

/// Puts those of these pages of a large file into memory that were read again, where they still lie on disk in the same place; how
/// many.
pub(crate) fn admit(tx: &mut Edit, c: &Content, pages: Range<u64>, fetched: &Fetched) -> Result<u64> {
    let (r, mut entered) = (tx.memory(), 0);
    let Form::Tree(root) = form(r, c)? else { return Ok(0) };
    for page in pages.start..pages.end.min(c.size.div_ceil(PAGE)) {
        let Entry::Disk(place) = tree::get(r, root, page)?.as_it_is(r)? else { continue };
        if let Some(content) = fetched.get(place).filter(|content| content.is_read_again()) {
            entered += u64::from(enter_page(tx, c, page, place, content)?);
        }
    }
    Ok(entered)
}

/// The same as [`enter`] for one page; true if it did.
fn enter_page(tx: &mut Edit, c: &Content, page: u64, place: Place, content: &dyn FetchedPage) -> Result<bool> {
    let r = tx.memory();
    let Form::Tree(root) = form(r, c)? else { return Ok(false) };
    let Found::Leaf(leaf) = find(r, root, page)? else { return Ok(false) };
    let i = leaf.index(page);
    let entry = leaf.get(r, i)?;
    if entry.as_it_is(r)? != Entry::Disk(place) {
        return Ok(false);
    }
    let mut bytes = [0; PAGE as usize];
    content.copy_to(0, &mut bytes)?;
    let new = match c.is_large() {
        true => {
            let block = tx.new_block(c.owner, page)?;
            tx.store_content(block, &bytes)?;
            tx.set_place(block, place.word())?;
            Entry::Block(block)
        }
        false => {
            let new = tx.alloc(tag::DATA, PAGE)?.off;
            tx.init_bytes(new, &bytes)?;
            Entry::Page(new)
        }
    };
    if let Entry::Block(void) = entry {
        // Its place is the new one's.
        tx.free_block(void)?;
    }
    Writer { tx, c: &mut c.clone(), fresh: false, large: c.is_large() }.set(page, new)?;
    Ok(true)
}
