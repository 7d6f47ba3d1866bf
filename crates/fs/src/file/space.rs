//! `fallocate`: reserve, punch, zero; and unused tails given back.

use pram::heap::{capacity_of, MAX_SMALL};
use pram::tx::RECORD;
use pram::{Region, Tx};
use rustix::io::Errno;

use super::direct::{self, Direct, Patch};
use super::entry::Entry;
use super::grow::Writer;
use super::map::{Runs, Where};
use super::tree::{self, Node};
use super::{clear, end_of, expose, form, has_memory, has_room, Content, Form, FILLED, FREED, PAGE};
use crate::error::{Error, Result};
use crate::layout::tag;

/// Gives the holes of `off..off + len` memory, and extends the file unless `keep_size`. One transaction does
/// a part: returns the offset that it reached, from which the caller goes on until it is `off + len`.
pub(crate) fn allocate(tx: &mut Tx, c: &mut Content, off: u64, len: u64, keep_size: bool) -> Result<u64> {
    let end = end_of(off, len)?;
    if len == 0 {
        return Err(Errno::INVAL.into());
    }
    match form(tx.region(), c)? {
        Form::Direct(d) if d.serves(off, end) => {
            reserve(tx, c, d, end, keep_size)?;
            return Ok(end);
        }
        Form::Direct(d) => Writer::from_direct(tx, c, d, 0, 0)?,
        Form::Tree(_) => {}
    }
    let first = off / PAGE;
    let last = end.div_ceil(PAGE).min(first + FILLED);
    let reached = end.min(last * PAGE);
    let size = if keep_size { c.size } else { c.size.max(reached) };
    expose(tx, c, size)?;
    Writer { tx, c, fresh: false }.fill(first, last)?;
    c.size = size;
    Ok(reached)
}

fn reserve(tx: &mut Tx, c: &mut Content, mut d: Direct, end: u64, keep_size: bool) -> Result<()> {
    if end > d.cap {
        direct::refit(tx, c, d, end)?;
        let Form::Direct(new) = form(tx.region(), c)? else { return Ok(()) };
        d = new;
    }
    if keep_size {
        c.root = d.root(d.reserved || end > c.size);
        return Ok(());
    }
    expose(tx, c, end)?;
    c.size = c.size.max(end);
    Ok(())
}

/// Makes a hole: what was in `off..off + len` reads as zeros; whole pages are given back. One transaction does a part,
/// as of [`allocate`]: all of it unless there may be more than [`FREED`] pages, or the undo log is too small. Needs no
/// memory.
pub(crate) fn punch(tx: &mut Tx, c: &mut Content, off: u64, len: u64) -> Result<u64> {
    if len == 0 {
        return Err(Errno::INVAL.into());
    }
    let end = off.saturating_add(len);
    match form(tx.region(), c)? {
        Form::Direct(d) if off == 0 && end >= c.size.min(d.cap) => {
            let size = c.size;
            clear::free(tx, c)?;
            c.size = size;
            Ok(end)
        }
        Form::Direct(d) => punch_direct(tx, c, d, off, end),
        Form::Tree(root) => punch_tree(tx, c, root, off, end),
    }
}

fn punch_direct(tx: &mut Tx, c: &mut Content, d: Direct, off: u64, end: u64) -> Result<u64> {
    let n = end.min(c.size.min(d.cap)).saturating_sub(off);
    if n == 0 {
        return Ok(end);
    }
    match direct::write(tx, c, d, off, Patch::Zeros(n)) {
        Ok(()) => Ok(end),
        // No memory for a copy: the undo log takes half.
        Err(Error::Posix(Errno::NOSPC)) => {
            direct::write(tx, c, d, off, Patch::Zeros(n / 2))?;
            Ok(off + n / 2)
        }
        Err(e) => Err(e),
    }
}

fn punch_tree(tx: &mut Tx, c: &mut Content, root: Node, off: u64, end: u64) -> Result<u64> {
    // The page that holds the end of the file is given back whole: what is cut off has no content.
    let stop = if end >= c.size { end.max(c.size.next_multiple_of(PAGE)) } else { end };
    let (first, last) = (off.div_ceil(PAGE), stop / PAGE);
    if first > last {
        blank(tx, c, root, off, stop)?;
        return Ok(end);
    }
    if c.pages > FREED && last - first > FREED {
        let part = clear::part(tx.region(), root, first, last)?;
        if part < last {
            return punch_tree(tx, c, root, off, part * PAGE);
        }
    }
    let half = clear::half(first, last);
    let parts = (first * PAGE - off) + (stop - last * PAGE);
    let needed = clear::log_needed(tx.region(), c, first, last)? + parts + 2 * (RECORD + 8);
    if half < last && !has_room(tx, needed) {
        return punch_tree(tx, c, root, off, half * PAGE);
    }
    blank(tx, c, root, off, first * PAGE)?;
    blank(tx, c, root, last * PAGE, stop)?;
    clear::pages(tx, c, first, last)?;
    Ok(end)
}

/// Zeroes a part of one page.
fn blank(tx: &mut Tx, c: &Content, root: Node, from: u64, to: u64) -> Result<()> {
    let to = to.min(c.size);
    if from >= to {
        return Ok(());
    }
    match tree::get(tx.region(), root, from / PAGE)? {
        Entry::Hole | Entry::Reserved(_) => Ok(()),
        Entry::Disk(_) => Err(Error::Elsewhere),
        Entry::Page(off) => {
            tree::check_page(tx.region(), off)?;
            Ok(tx.set_zero(off + from % PAGE, to - from)?)
        }
    }
}

/// Makes `off..off + len` read as zeros, with memory behind, and extends the file unless `keep_size`. One
/// transaction does a part, as of [`allocate`].
pub(crate) fn zero(tx: &mut Tx, c: &mut Content, off: u64, len: u64, keep_size: bool) -> Result<u64> {
    let end = end_of(off, len)?.min((off / PAGE + FILLED) * PAGE);
    let end = punch(tx, c, off, end - off)?;
    allocate(tx, c, off, end - off, keep_size)
}

/// Would [`trim`] give anything back?
#[inline(always)]
pub(crate) fn has_slack(r: &Region, c: &Content) -> bool {
    let fit = capacity_of(c.size.max(1));
    match form(r, c) {
        Ok(Form::Direct(d)) => !d.reserved && fit < d.cap,
        // Pages beyond the end have been reserved; with fewer there are holes.
        Ok(Form::Tree(_)) => c.size <= MAX_SMALL && c.pages == c.size.div_ceil(PAGE) && fit < c.pages * PAGE,
        Err(_) => false,
    }
}

/// Gives back the slack behind the end of the file, and makes a tree that has become small direct. True if
/// something changed; a full region is no error, nor is content that would have to be fetched.
pub(crate) fn trim(tx: &mut Tx, c: &mut Content) -> Result<bool> {
    if !has_slack(tx.region(), c) {
        return Ok(false);
    }
    let done = match form(tx.region(), c)? {
        Form::Direct(d) => direct::refit(tx, c, d, c.size.min(d.cap)),
        Form::Tree(_) if !has_memory(tx.region(), c, 0, c.pages * PAGE)? => return Ok(false),
        Form::Tree(root) => flatten(tx, c, root),
    };
    match done {
        Ok(()) => Ok(true),
        Err(Error::Posix(Errno::NOSPC) | Error::MustGrow | Error::Elsewhere) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Makes a small tree without holes direct.
fn flatten(tx: &mut Tx, c: &mut Content, root: Node) -> Result<()> {
    let block = tx.alloc(tag::DATA, c.size)?;
    let mut runs = Runs::of(tx.region(), Form::Tree(root), 0, c.size);
    while let Some(run) = runs.step()? {
        match run.at {
            Where::Disk(_) => return Err(Error::Elsewhere),
            Where::Hole | Where::Reserved => tx.init_zero(block.off + run.off, run.len)?,
            Where::Memory(at) => tx.init_copy(at, block.off + run.off, run.len)?,
        }
    }
    let size = c.size;
    clear::free(tx, c)?;
    c.root = Direct { off: block.off, cap: block.cap, reserved: false }.root(false);
    c.size = size;
    Ok(())
}
