//! Finding the bytes of a file, apart from moving them: everything that looks at content does it by its runs.
//!
//! Runs are found inside of the section that watches the file, or under its lock, and mean nothing after it. Finding them
//! takes no memory of its own and does not wait; a caller that must not look for long takes some, and goes on later.

use std::ops::Range;

use pram::Memory;

use super::fetched::{Fetched, Missing, NOTED};
use super::run::{Run, Where};
use super::tree::entry::Entry;
use super::tree::{adjacent, check_block, check_page, find, Found, Node, BATCH, FANOUT};
use super::{end_of, form, Content, Form, PAGE};
use crate::error::{Error, Result};
use ilfs::Place;

/// The runs of a range, in order and without gaps. Neighbours may be of one kind.
pub(crate) struct Runs<'r> {
    r: &'r Memory,
    form: Form,
    pos: u64,
    end: u64,
    /// Of a tree: `count` entries, from that of page `first` on.
    entries: [Entry; BATCH],
    first: u64,
    count: usize,
}

/// The runs of bytes `off..end`, also beyond the size.
#[inline]
pub(crate) fn map<'r>(r: &'r Memory, c: &Content, off: u64, end: u64) -> Result<Runs<'r>> {
    Ok(Runs::of(r, form(r, c)?, off, end))
}

impl<'r> Runs<'r> {
    #[inline(always)]
    pub(super) fn of(r: &'r Memory, form: Form, off: u64, end: u64) -> Runs<'r> {
        Runs { r, form, pos: off, end, entries: [Entry::Hole; BATCH], first: 0, count: 0 }
    }

    /// The next run; `None` at the end of the range.
    #[inline]
    pub fn step(&mut self) -> Result<Option<Run>> {
        if self.pos >= self.end {
            return Ok(None);
        }
        let (at, end) = match self.form {
            Form::Direct(d) => d.at(self.pos),
            Form::Tree(root) => self.step_in(root)?,
            Form::Compressed(_) => (Where::Compressed, u64::MAX),
        };
        let off = self.pos;
        self.pos = end.min(self.end);
        Ok(Some(Run { off, len: self.pos - off, at }))
    }

    /// Where the next run of a tree is, and where it ends unless the range ends before.
    #[inline(always)]
    fn step_in(&mut self, root: Node) -> Result<(Where, u64)> {
        let page = self.pos / PAGE;
        if page.wrapping_sub(self.first) >= self.count as u64 {
            let leaf = match find(self.r, root, page)? {
                Found::Leaf(leaf) => leaf,
                Found::Hole(next) => return Ok((Where::Hole, next.saturating_mul(PAGE))),
            };
            let i = leaf.index(page);
            self.first = page;
            self.count = (self.end.div_ceil(PAGE) - page).min(FANOUT - i).min(BATCH as u64) as usize;
            leaf.load(self.r, i, &mut self.entries[..self.count])?;
        }
        let (at, n) = first_run(self.r, &self.entries[(page - self.first) as usize..self.count])?;
        let at = match at {
            Where::Memory(off) => Where::Memory(off + self.pos % PAGE),
            at => at,
        };
        Ok((at, (page + n).saturating_mul(PAGE)))
    }
}

/// The run that the first of some entries stands for, and how many go on with it.
#[inline(always)]
fn first_run(r: &Memory, entries: &[Entry]) -> Result<(Where, u64)> {
    let alike = |is: fn(&Entry) -> bool| entries.iter().take_while(|e| is(e)).count() as u64;
    match entries[0] {
        Entry::Hole => Ok((Where::Hole, alike(|e| *e == Entry::Hole))),
        Entry::Disk(place) => Ok((Where::Disk(place), 1)),
        Entry::Reserved(_) => Ok((Where::Reserved, alike(|e| matches!(e, Entry::Reserved(_))))),
        entry @ Entry::Block(block) => match entry.as_it_is(r)? {
            Entry::Disk(place) => Ok((Where::Disk(place), 1)),
            _ => {
                check_block(r, block)?;
                let goes_on = |pair: &&[Entry]| match **pair {
                    [Entry::Block(a), Entry::Block(b)] => adjacent(a, b) && entries_are_there(r, pair[1]),
                    _ => false,
                };
                Ok((Where::Memory(block), 1 + entries.windows(2).take_while(goes_on).count() as u64))
            }
        },
        Entry::Page(off) => {
            check_page(r, off)?;
            let goes_on = |pair: &&[Entry]| match **pair {
                [Entry::Page(a), Entry::Page(b)] => adjacent(a, b),
                _ => false,
            };
            Ok((Where::Memory(off), 1 + entries.windows(2).take_while(goes_on).count() as u64))
        }
    }
}

/// Whether a block still has the entry's memory.
fn entries_are_there(r: &Memory, entry: Entry) -> bool {
    entry.as_it_is(r).is_ok_and(|is| is == entry)
}

/// Calls `see` with each page in a range of bytes that lies on disk alone, and where its part of the range begins in the file.
pub(crate) fn pages_on_disk(r: &Memory, c: &Content, range: Range<u64>, see: &mut dyn FnMut(u64, Place)) -> Result<()> {
    let mut runs = map(r, c, range.start, range.end.min(c.size))?;
    while let Some(run) = runs.step()? {
        if let Where::Disk(place) = run.at {
            see(run.off, place);
        }
    }
    Ok(())
}

/// Reads at `off`; returns the bytes read, fewer than asked for at the end of the file. Needs no lock: the bytes
/// may be torn then, and the caller must see from its sequence counter whether they are. Fails with
/// [`Error::Elsewhere`] if a part lies on disk. Calls `found` for each copied part of a large file, with offset in the memory and length.
#[inline]
pub(crate) fn read(r: &Memory, c: &Content, off: u64, buf: &mut [u8], found: impl FnMut(u64, u64)) -> Result<usize> {
    let n = c.size.saturating_sub(off).min(buf.len() as u64) as usize;
    if n == 0 {
        return Ok(0);
    }
    match form(r, c)? {
        Form::Direct(d) => d.read(r, off, &mut buf[..n])?,
        tree => {
            let elsewhere = |_, _: &mut [u8], _| Err(Error::Elsewhere);
            let runs = Runs::of(r, tree, off, off + n as u64);
            match c.is_large() {
                true => read_runs(r, runs, &mut buf[..n], elsewhere, found)?,
                false => read_runs(r, runs, &mut buf[..n], elsewhere, |_, _| {})?,
            }
        }
    }
    Ok(n)
}

/// The same, with fetched pages. Pages that have not been fetched are noted in `missing`, as far as there is room.
pub(crate) fn read_with(
    r: &Memory,
    c: &Content,
    off: u64,
    buf: &mut [u8],
    (fetched, missing): (&Fetched, &mut Missing),
    found: impl FnMut(u64, u64),
) -> Result<usize> {
    let n = c.size.saturating_sub(off).min(buf.len() as u64) as usize;
    let on_disk = |place, part: &mut [u8], skip| {
        match fetched.get(place) {
            Some(page) => page.copy_to(skip, part)?,
            None if missing.len() < NOTED => missing.push(place),
            None => {}
        }
        Ok(())
    };
    read_runs(r, map(r, c, off, off + n as u64)?, &mut buf[..n], on_disk, found)?;
    match missing.is_empty() {
        true => Ok(n),
        false => Err(Error::Elsewhere),
    }
}

/// Which bytes of a range lie on disk alone and could not be fetched: where they begin, and their place.
pub(crate) fn unfetched(r: &Memory, c: &Content, off: u64, len: u64, fetched: &Fetched) -> Result<Vec<(u64, Place)>> {
    let mut found = Vec::new();
    pages_on_disk(r, c, off..off.saturating_add(len), &mut |at, place| {
        if fetched.failure(place).is_some() {
            found.push((at, place));
        }
    })?;
    Ok(found)
}

/// Which of some pages, below the end of the file, lie on disk alone: their places, 1024 at most.
pub(crate) fn on_disk(r: &Memory, c: &Content, pages: Range<u64>, places: &mut Missing) -> Result<()> {
    const MOST: usize = 1024;
    let (from, to) = (pages.start.saturating_mul(PAGE), pages.end.saturating_mul(PAGE).min(c.size));
    let mut runs = map(r, c, from, to)?;
    while let Some(run) = runs.step()? {
        match run.at {
            Where::Disk(_) if places.len() >= MOST => break,
            Where::Disk(place) => places.push(place),
            _ => {}
        }
    }
    Ok(())
}

/// Fills `buf` with the runs of a range as long; parts that lie on disk, from some byte of their page on, by
/// `disk`. Calls `found` with each part that lay in memory.
#[inline(always)]
fn read_runs(
    r: &Memory,
    mut runs: Runs,
    mut buf: &mut [u8],
    mut disk: impl FnMut(Place, &mut [u8], usize) -> Result<()>,
    mut found: impl FnMut(u64, u64),
) -> Result<()> {
    while let Some(run) = runs.step()? {
        let (part, rest) = buf.split_at_mut(run.len as usize);
        match run.at {
            Where::Hole | Where::Reserved => part.fill(0),
            Where::Memory(at) => {
                r.read_bytes(at, part)?;
                found(at, run.len);
            }
            Where::Disk(place) => disk(place, part, (run.off % PAGE) as usize)?,
            Where::Compressed => return Err(Error::Elsewhere),
        }
        buf = rest;
    }
    Ok(())
}

/// Has the file memory for all of `off..off + len`?
#[cold]
pub(crate) fn has_memory(r: &Memory, c: &Content, off: u64, len: u64) -> Result<bool> {
    let mut runs = map(r, c, off, end_of(off, len)?)?;
    while let Some(run) = runs.step()? {
        if !matches!(run.at, Where::Memory(_) | Where::Reserved) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Does all of the file lie in memory, without a hole or anything reserved, also beyond its end, and are its bytes these?
pub(crate) fn is_plain(r: &Memory, c: &Content, bytes: Option<&[u8]>) -> Result<bool> {
    let has_more = match form(r, c)? {
        Form::Direct(d) => d.reserved,
        _ => c.pages != c.size.div_ceil(PAGE),
    };
    if has_more || bytes.is_some_and(|bytes| bytes.len() as u64 != c.size) {
        return Ok(false);
    }
    let mut runs = map(r, c, 0, c.size)?;
    while let Some(run) = runs.step()? {
        let Where::Memory(at) = run.at else { return Ok(false) };
        if bytes.is_some_and(|bytes| !matches!(r.equals(at, &bytes[run.off as usize..][..run.len as usize]), Ok(true)))
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The result of a search for data or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sought {
    At(u64),
    /// Not before here; it takes another look, from here on.
    After(u64),
    /// Nowhere in the file.
    Nowhere,
}

/// Runs that one search looks at.
const SEARCHED: u32 = 1024;

/// The first byte at or after `off` that is not in a hole. A reserved page is one; a page with content is data as a whole, as on other file
/// systems, also where a small file has less of it.
pub(crate) fn seek_data(r: &Memory, c: &Content, off: u64) -> Result<Sought> {
    if off >= c.size {
        return Ok(Sought::Nowhere);
    }
    let mut runs = map(r, c, page_of(off), c.size)?;
    for _ in 0..SEARCHED {
        match runs.step()? {
            None => return Ok(Sought::Nowhere),
            Some(run) if !run.at.is_hole() => return Ok(Sought::At(page_of(run.off).max(off))),
            Some(_) => {}
        }
    }
    Ok(Sought::After(runs.pos))
}

/// The first byte at or after `off` that is in a hole; the end of the file counts as one.
pub(crate) fn seek_hole(r: &Memory, c: &Content, off: u64) -> Result<Sought> {
    if off >= c.size {
        return Ok(Sought::Nowhere);
    }
    // From here on there is nothing but holes, as far as we have come.
    let mut hole = page_of(off);
    let mut runs = map(r, c, hole, c.size)?;
    for _ in 0..SEARCHED {
        let Some(run) = runs.step()? else { return Ok(Sought::At(hole.max(off).min(c.size))) };
        let end = run.off + run.len;
        let holes_end = if run.at.is_hole() { end } else { page_of(run.off) };
        if holes_end >= hole.saturating_add(PAGE) {
            return Ok(Sought::At(hole.max(off)));
        }
        if !run.at.is_hole() {
            hole = end.div_ceil(PAGE) * PAGE;
        }
    }
    Ok(Sought::After(hole.max(off)))
}

/// Where the page begins that has byte `off`.
fn page_of(off: u64) -> u64 {
    off / PAGE * PAGE
}
