//! The residence of content: memory pages or disk; and moving it from one to the other, page by page.
//!
//! A [large](Content::is_large) file may have memory pages among its blocks and places: as long as it is large these do not change,
//! and writes go to blocks. So a file moves in pieces, each a transaction, and between them it is as right as before.
//! It is large from its first piece towards disk on, and until its last one towards memory.

use exraid::Buffers;
use pram::Memory;

use super::compressed::Copied;
use super::edit::Edit;
use super::fetched::Fetched;
use super::tree::entry::Entry;
use super::tree::{self, Writer};
use super::{form, Content, Form, LARGE_WORD, MOVED_WORD, PAGE};
use crate::error::Result;
use crate::layout::{tag, Root};
use ilfs::Place;

/// A page in memory, of a file of any form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    pub page: u64,
    /// Where its bytes below the end of the file are, and how many; none: it is reserved, and reads as zeros.
    pub bytes: Option<(u64, u64)>,
    entry: Entry,
}

/// A page whose content was copied to a place, or that is reserved and needs none.
pub(crate) struct Sent {
    pub page: u64,
    pub copy: Option<(Buffers, Place)>,
}

/// The result for a page that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It leads to the copy.
    Moved,
    /// It is not in memory any more.
    Gone,
    /// It has other content by now, or others of its file have.
    Changed,
}

/// Adds to `found` the first `most` pages of those from `first` on that lie in memory pages, or have such reserved.
pub(crate) fn resident(r: &Memory, c: &Content, first: u64, most: usize, found: &mut Vec<Resident>) -> Result<()> {
    match form(r, c)? {
        // It goes as a whole.
        Form::Compressed(_) => {}
        Form::Direct(d) => {
            let used = c.size.min(d.cap);
            let end = if d.reserved { d.cap } else { used }.div_ceil(PAGE);
            for page in (first..end).take(most) {
                let start = page * PAGE;
                let bytes = (start < used).then(|| (d.off + start, (used - start).min(PAGE)));
                found.push(Resident { page, bytes, entry: Entry::Hole });
            }
        }
        Form::Tree(root) => {
            let wanted = |entry: &Entry| matches!(entry, Entry::Page(_) | Entry::Reserved(1..));
            let mut entries = Vec::new();
            tree::select(r, root, first, most, tree::Leaves::Plain, wanted, &mut entries)?;
            for (page, entry) in entries {
                let valid = c.size.saturating_sub(page * PAGE).min(PAGE);
                let bytes = match entry {
                    Entry::Page(off) => {
                        tree::check_page(r, off)?;
                        Some((off, valid))
                    }
                    _ => None,
                };
                found.push(Resident { page, bytes, entry });
            }
        }
    }
    Ok(())
}

/// Adds to `found` the first `most` pages that lie elsewhere than in memory pages: in blocks, on disk, or promised; and the places
/// of those that are on disk alone.
pub(crate) fn elsewhere(r: &Memory, c: &Content, most: usize, found: &mut Vec<(u64, Option<Place>)>) -> Result<()> {
    let Form::Tree(root) = form(r, c)? else { return Ok(()) };
    let wanted = |entry: &Entry| matches!(entry, Entry::Block(_) | Entry::Disk(_) | Entry::Reserved(0));
    let mut entries = Vec::new();
    tree::select(r, root, 0, most, tree::Leaves::All, wanted, &mut entries)?;
    for (page, entry) in entries {
        let place = match entry.as_it_is(r)? {
            Entry::Disk(place) => Some(place),
            _ => None,
        };
        found.push((page, place));
    }
    Ok(())
}

/// Lets pages whose content is that of the copy lead to it, in a file that is large from then on; frees their old memory. `sent`: in order.
/// Of a file that is not large yet either all of them or none.
pub(crate) fn send(tx: &mut Edit, c: &mut Content, sent: &[Sent]) -> Result<Vec<Fate>> {
    let r = tx.memory();
    let (Some(first), Some(last)) = (sent.first(), sent.last()) else { return Ok(Vec::new()) };
    let mut there = Vec::new();
    let most = usize::try_from(last.page - first.page + 1).unwrap_or(usize::MAX);
    resident(r, c, first.page, most, &mut there)?;
    let mut fates = Vec::with_capacity(sent.len());
    for one in sent {
        fates.push(match there.binary_search_by_key(&one.page, |is| is.page) {
            Err(_) => Fate::Gone,
            Ok(n) if is_same(r, &there[n], one)? => Fate::Moved,
            Ok(_) => Fate::Changed,
        });
    }
    if !c.is_large() && fates.iter().any(|fate| *fate != Fate::Moved) {
        fates.iter_mut().filter(|fate| **fate == Fate::Moved).for_each(|fate| *fate = Fate::Changed);
        return Ok(fates);
    }
    if let Form::Direct(d) = form(r, c)? {
        return match first.page == 0 && there.len() == sent.len() && !is_longer(r, c, sent.len())? {
            true => send_direct(tx, c, d.off, sent).map(|()| fates),
            false => Ok(vec![Fate::Changed; sent.len()]),
        };
    }
    for (one, _) in sent.iter().zip(&fates).filter(|(_, fate)| **fate == Fate::Moved) {
        let Ok(n) = there.binary_search_by_key(&one.page, |is| is.page) else { continue };
        c.root |= LARGE_WORD;
        Writer { tx, c, fresh: false, large: true }.exchange(one.page, there[n].entry, entry_of(one))?;
    }
    Ok(fates)
}

/// Has a direct file more pages than so many?
fn is_longer(r: &Memory, c: &Content, pages: usize) -> Result<bool> {
    let mut more = Vec::new();
    resident(r, c, pages as u64, 1, &mut more)?;
    Ok(!more.is_empty())
}

fn entry_of(sent: &Sent) -> Entry {
    sent.copy.as_ref().map_or(Entry::Reserved(0), |(_, place)| Entry::Disk(*place))
}

/// Whether the content in memory is still the copied one.
fn is_same(r: &Memory, is: &Resident, sent: &Sent) -> Result<bool> {
    match (is.bytes, &sent.copy) {
        (None, None) => Ok(true),
        (Some((at, len)), Some((content, _))) => {
            let (mut now, mut then) = ([0; PAGE as usize], [0; PAGE as usize]);
            r.read_bytes(at, &mut now[..len as usize])?;
            content.slice(0..len).copy_to(&mut then[..len as usize]);
            Ok(now == then)
        }
        _ => Ok(false),
    }
}

/// Makes a tree of the direct file with its block at `off`: all of its pages were sent.
fn send_direct(tx: &mut Edit, c: &mut Content, off: u64, sent: &[Sent]) -> Result<()> {
    let entries: Vec<Entry> = sent.iter().map(entry_of).collect();
    tx.promise(sent.iter().filter(|one| one.copy.is_none()).count() as i64);
    (c.root, c.pages) = (Root::EMPTY.pack(), 0);
    Writer { tx, c, fresh: true, large: true }.link_all(0, &entries)?;
    Ok(tx.free(off, tag::DATA)?)
}

/// Makes a tree of places of a compressed file, of which all pages were decoded from `copied` and sent, if it still is that.
pub(crate) fn send_compressed(tx: &mut Edit, c: &mut Content, copied: &Copied, sent: &[Sent]) -> Result<Vec<Fate>> {
    let Form::Compressed(found) = form(tx.memory(), c)? else { return Ok(vec![Fate::Gone; sent.len()]) };
    if sent.len() as u64 != c.size.div_ceil(PAGE) || !copied.is_still(tx.memory(), c)? {
        return Ok(vec![Fate::Changed; sent.len()]);
    }
    let entries: Vec<Entry> = sent.iter().map(entry_of).collect();
    (c.root, c.pages) = (Root::EMPTY.pack(), 0);
    Writer { tx, c, fresh: true, large: true }.link_all(0, &entries)?;
    found.free(tx)?;
    Ok(vec![Fate::Moved; sent.len()])
}

/// Brings pages into memory: from blocks, from fetched content, and promised ones. Returns true if the file has nothing
/// elsewhere then, and is not large any more.
///
/// # Errors
/// The error of fetching a page.
pub(crate) fn bring(tx: &mut Edit, c: &mut Content, pages: &[u64], fetched: &Fetched) -> Result<bool> {
    for page in pages {
        let r = tx.memory();
        let Form::Tree(root) = form(r, c)? else { return Ok(!c.is_large()) };
        let entry = tree::get(r, root, *page)?;
        let new = match entry.as_it_is(r)? {
            Entry::Block(block) => {
                tree::check_block(r, block)?;
                let new = tx.alloc(tag::DATA, PAGE)?.off;
                tx.init_copy(block, new, PAGE)?;
                Entry::Page(new)
            }
            Entry::Disk(place) => {
                let Some(content) = fetched.get(place) else { continue };
                let mut bytes = [0; PAGE as usize];
                content.copy_to(0, &mut bytes)?;
                let new = tx.alloc(tag::DATA, PAGE)?.off;
                tx.init_bytes(new, &bytes)?;
                Entry::Page(new)
            }
            Entry::Reserved(0) => Entry::Reserved(tx.alloc(tag::DATA, PAGE)?.off),
            _ => continue,
        };
        Writer { tx, c, fresh: false, large: true }.exchange(*page, entry, new)?;
    }
    let mut left = Vec::new();
    elsewhere(tx.memory(), c, 1, &mut left)?;
    if left.is_empty() {
        c.root &= !(LARGE_WORD | MOVED_WORD);
    }
    Ok(left.is_empty())
}

/// Does it begin as executables and shared libraries do?
pub(crate) fn is_program(r: &Memory, c: &Content) -> bool {
    super::large::is_executable(r, c, 0, &[])
}
