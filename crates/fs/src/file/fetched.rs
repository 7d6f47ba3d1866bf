//! Content that lies on disk: fetched outside of operations and sections, for one reader or one change, into memory of its
//! own.

use pram::session::assert_may_wait;
use pram::{Region, Tx};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::place::{self, Bytes, Place};
use super::tree::entry::Entry;
use super::tree::{self, find, Found};
use super::{form, Content, Form, PAGE};
use crate::error::Result;
use crate::layout::tag;

/// Places that one look at a file notes.
pub(super) const NOTED: usize = 64;

/// Places whose content is wanted.
pub(crate) type Missing = SmallVec<[Place; NOTED]>;

/// Pages that a change needs in memory and that lie on disk, by number.
pub(crate) type Needed = SmallVec<[(u64, Place); 3]>;

/// What has been fetched, by the place where it lies: there it does not change.
#[derive(Default)]
pub(crate) struct Fetched(Vec<(Place, Bytes)>);

impl Fetched {
    /// Fetches what lies at `places`, unless it has been. Not inside an operation or a section.
    pub fn fetch(&mut self, places: &[Place]) {
        assert_may_wait();
        for place in places {
            if self.get(*place).is_none() {
                self.0.push((*place, place::fetch(*place)));
            }
        }
    }

    /// What was fetched from `place`.
    pub fn get(&self, place: Place) -> Option<Result<&[u8], Errno>> {
        let (_, bytes) = self.0.iter().find(|(p, _)| *p == place)?;
        Some(bytes.as_deref().map_err(|e| *e))
    }
}

/// The pages on disk that a change of bytes `off..end` needs in memory: of which it changes a part; and if it moves the
/// size, that with the end of the file. It needs no others, and perhaps not all of these.
pub(crate) fn needed(r: &Region, c: &Content, off: u64, end: u64) -> Result<Needed> {
    let mut needed = Needed::new();
    if let Form::Tree(root) = form(r, c)? {
        for at in [off, end, c.size.min(end)].into_iter().filter(|at| at % PAGE != 0) {
            let page = at / PAGE;
            match tree::get(r, root, page)? {
                Entry::Disk(place) if needed.iter().all(|(p, _)| *p != page) => needed.push((page, place)),
                _ => {}
            }
        }
    }
    Ok(needed)
}

/// Puts pages that have been fetched into memory, where they still lie on disk in the same place.
pub(crate) fn enter(tx: &mut Tx, c: &Content, needed: &Needed, fetched: &Fetched) -> Result<()> {
    let r = tx.region();
    for (page, place) in needed {
        let Form::Tree(root) = form(r, c)? else { return Ok(()) };
        let Found::Leaf(leaf) = find(r, root, *page)? else { continue };
        let i = leaf.index(*page);
        let Some(bytes) = fetched.get(*place).filter(|_| leaf.get(r, i).is_ok_and(|e| e == Entry::Disk(*place))) else {
            continue;
        };
        let new = tx.alloc(tag::DATA, PAGE)?.off;
        tx.init_bytes(new, bytes?)?;
        tx.set(leaf.at(i), &leaf.entry_word(i, Entry::Page(new)))?;
    }
    Ok(())
}
