//! Large files: becoming one, and changes of their pages by the union cache and the cleaner.

use pram::Memory;

use super::edit::Edit;
use super::tree::entry::Entry;
use super::tree::{self, find, Found, Node, Writer, FANOUT};
use super::{form, read, Content, Form, FREED, LARGE_WORD};
use crate::error::Result;
use crate::retry::if_there_is_room;
use ilfs::Place;

/// How executables and shared libraries begin.
pub(crate) const EXECUTABLE: [u8; 4] = *b"\x7fELF";

/// Is a file that gets bytes up to `end`, among them `data` at `off`, large, or to become so?
#[inline(always)]
pub(super) fn becomes(tx: &Edit, c: &Content, end: u64, off: u64, data: &[u8]) -> bool {
    c.is_large() || tx.is_beyond_threshold(end) && !stays(tx, c, end, off, data)
}

/// Does a file beyond its threshold stay in memory, as programs do as long as there is room?
#[cold]
#[inline(never)]
fn stays(tx: &Edit, c: &Content, end: u64, off: u64, data: &[u8]) -> bool {
    is_executable(tx.memory(), c, off, data) && tx.may_hold_executable(end)
}

/// Is it a program by how it begins, once `data` is written at `off`?
pub(super) fn is_executable(r: &Memory, c: &Content, off: u64, data: &[u8]) -> bool {
    let mut first = [0; EXECUTABLE.len()];
    // The change itself finds damage of the content.
    if read(r, c, 0, &mut first, |_, _| {}).is_err() {
        return false;
    }
    let skipped = off.min(first.len() as u64) as usize;
    first[skipped..].iter_mut().zip(data).for_each(|(old, new)| *old = *new);
    first == EXECUTABLE
}

/// Makes a tree that is to be `large` so, if it is not. Of the pages that it has those become blocks that one transaction takes.
#[inline(always)]
pub(super) fn make(tx: &mut Edit, c: &mut Content, large: bool) -> Result<()> {
    match large && !c.is_large() && c.root != 0 {
        true => become_large(tx, c),
        false => Ok(()),
    }
}

#[cold]
fn become_large(tx: &mut Edit, c: &mut Content) -> Result<()> {
    c.root |= LARGE_WORD;
    match c.pages <= FREED {
        true => Writer { tx, c, fresh: false, large: true }.convert(0, u64::MAX),
        false => Ok(()),
    }
}

/// Where the entry of a page is, and its value.
fn entry_of(r: &Memory, c: &Content, page: u64) -> Result<Option<(Node, Entry)>> {
    let Form::Tree(root) = form(r, c)? else { return Ok(None) };
    match find(r, root, page)? {
        Found::Leaf(leaf) => Ok(Some((leaf, leaf.get(r, leaf.index(page))?))),
        Found::Hole(_) => Ok(None),
    }
}

/// Does `page` lie in this block?
pub(crate) fn is_at(r: &Memory, c: &Content, page: u64, block: u64) -> Result<bool> {
    Ok(c.is_large() && entry_of(r, c, page)?.is_some_and(|(_, entry)| entry == Entry::Block(block)))
}

/// The block in which `page` lies, if it is in memory.
pub(crate) fn block_of(r: &Memory, c: &Content, page: u64) -> Result<Option<u64>> {
    let Some((_, entry)) = entry_of(r, c, page)? else { return Ok(None) };
    Ok(match entry.as_it_is(r)? {
        Entry::Block(block) if c.is_large() => Some(block),
        _ => None,
    })
}

/// The entry or block that leads to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// The page's entry.
    Entry,
    /// A block, whose content is there too.
    Block(u64),
}

/// Does `page` lead to `place`, and how?
pub(crate) fn leads_to(r: &Memory, c: &Content, page: u64, place: Place) -> Result<Option<Leads>> {
    Ok(match entry_of(r, c, page)? {
        Some((_, Entry::Disk(there))) if there == place => Some(Leads::Entry),
        Some((_, Entry::Block(block))) if r.descriptor(block)?.place == place.word() => Some(Leads::Block(block)),
        _ => None,
    })
}

/// Does `page` lie at this place alone, not in memory?
pub(crate) fn is_on_disk(r: &Memory, c: &Content, page: u64, place: Place) -> Result<bool> {
    let Some((_, entry)) = entry_of(r, c, page)? else { return Ok(false) };
    Ok(c.is_large() && entry.as_it_is(r)? == Entry::Disk(place))
}

/// Frees a block whose content is also on disk, from where it is read next time; false if it is not the page's, has no place, or is
/// under transfer.
pub(crate) fn evict(tx: &mut Edit, c: &Content, page: u64, block: u64) -> Result<bool> {
    let r = tx.memory();
    let Some((_, Entry::Block(there))) = entry_of(r, c, page)? else { return Ok(false) };
    let Some(place) = Place::from_word(tx.block_of(c.owner, page, there)?.place) else { return Ok(false) };
    if there != block {
        return Ok(false);
    }
    set(tx, c, page, Entry::Disk(place))?;
    tx.free_block(block)?;
    Ok(true)
}

/// Sets the entry of a page that has one; the root does not change.
fn set(tx: &mut Edit, c: &Content, page: u64, entry: Entry) -> Result<()> {
    Writer { tx, c: &mut c.clone(), fresh: false, large: true }.set(page, entry)
}

/// Where the content of whole leaves of a file lies on disk alone, in order, they become small: of those of these pages, in order.
/// Does nothing where there is no memory for it, or where the file is not large any more: it may have been cut since these were its pages.
pub(crate) fn compact(tx: &mut Edit, c: &Content, pages: impl Iterator<Item = u64>) -> Result<()> {
    if !c.is_large() {
        return Ok(());
    }
    let mut last = None;
    for page in pages {
        if last.replace(page / FANOUT) == Some(page / FANOUT) {
            continue;
        }
        let done = Writer { tx, c: &mut c.clone(), fresh: false, large: true }.compact(page);
        if if_there_is_room(done)?.is_none() {
            return Ok(());
        }
    }
    Ok(())
}

/// Lets the entry that leads from `page` to `from` lead to `to`; false if there is none.
pub(crate) fn relocate(tx: &mut Edit, c: &Content, page: u64, from: Place, to: Place) -> Result<bool> {
    let r = tx.memory();
    match leads_to(r, c, page, from)? {
        None => return Ok(false),
        Some(Leads::Block(block)) => tx.set_place(block, to.word())?,
        Some(Leads::Entry) => set(tx, c, page, Entry::Disk(to))?,
    }
    tx.unlink(from);
    Ok(true)
}

/// Lets the cached content of `page` be written anew: it gives up `place`, which cannot be read; false if memory does not hold it.
pub(crate) fn redirty(tx: &mut Edit, c: &Content, page: u64, place: Place) -> Result<bool> {
    let r = tx.memory();
    let Some(Leads::Block(block)) = leads_to(r, c, page, place)? else { return Ok(false) };
    if tx.block_of(c.owner, page, block)?.is_void(r.recovered()?) {
        return Ok(false);
    }
    tx.unset_place(block)?;
    tx.unlink(place);
    Ok(true)
}

/// Calls `see` with each page of a file that has a place on disk, or none yet and is promised one.
pub(crate) fn places(r: &Memory, c: &Content, see: &mut dyn FnMut(u64, Option<Place>)) -> Result<()> {
    match form(r, c)? {
        Form::Tree(root) => tree::places(r, root, see),
        Form::Direct(_) | Form::Compressed(_) => Ok(()),
    }
}
