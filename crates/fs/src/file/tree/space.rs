//! Memory for holes, and holes for memory; unused tails given back.

use pram::tx::RECORD;

use super::entry::Entry;
use super::grow::Writer;
use super::{check_page, clear, get, Node};
use crate::error::{Error, Result};
use crate::file::edit::Edit;
use crate::file::{form, has_room, Content, Form, FILLED, FREED, PAGE};

/// Gives holes from `off` on memory, or room on disk, as many as one transaction does; the offset that it reached, at most `end`.
pub(in crate::file) fn allocate(
    tx: &mut Edit,
    c: &mut Content,
    off: u64,
    end: u64,
    keep_size: bool,
    large: bool,
) -> Result<u64> {
    let first = off / PAGE;
    let last = end.div_ceil(PAGE).min(first + FILLED);
    let reached = end.min(last * PAGE);
    let size = if keep_size { c.size } else { c.size.max(reached) };
    crate::file::expose(tx, c, size)?;
    Writer { tx, c, fresh: false, large }.fill(first, last)?;
    c.size = size;
    Ok(reached)
}

pub(in crate::file) fn punch(tx: &mut Edit, c: &mut Content, root: Node, off: u64, end: u64) -> Result<u64> {
    // The page that holds the end of the file is given back whole: the part that is cut off has no content.
    let stop = if end >= c.size { end.max(c.size.next_multiple_of(PAGE)) } else { end };
    let (first, last) = (off.div_ceil(PAGE), stop / PAGE);
    if first > last {
        blank(tx, c, root, off, stop)?;
        return Ok(end);
    }
    if c.pages > FREED && last - first > FREED {
        let part = clear::part(tx.memory(), root, first, last)?;
        if part < last {
            return punch(tx, c, root, off, part * PAGE);
        }
    }
    let half = clear::half(first, last);
    let parts = (first * PAGE - off) + (stop - last * PAGE);
    let needed = clear::log_needed(tx.memory(), c, first, last)? + parts + 2 * (RECORD + 8);
    if half < last && !has_room(tx, needed) {
        return punch(tx, c, root, off, half * PAGE);
    }
    blank(tx, c, root, off, first * PAGE)?;
    let Form::Tree(root) = form(tx.memory(), c)? else { return Ok(end) };
    blank(tx, c, root, last * PAGE, stop)?;
    clear::pages(tx, c, first, last)?;
    Ok(end)
}

/// Zeroes a part of one page.
fn blank(tx: &mut Edit, c: &mut Content, root: Node, from: u64, to: u64) -> Result<()> {
    let to = to.min(c.size);
    if from >= to {
        return Ok(());
    }
    match get(tx.memory(), root, from / PAGE)?.as_it_is(tx.memory())? {
        Entry::Hole | Entry::Reserved(_) => Ok(()),
        Entry::Page(_) | Entry::Block(_) if c.is_large() => {
            let zeros = &[0; PAGE as usize][..(to - from) as usize];
            Writer { tx, c, fresh: false, large: true }.write(from, zeros)
        }
        Entry::Block(_) => Err(Error::Corrupt("a file whose content is in memory has a block".into())),
        Entry::Disk(_) => Err(Error::Elsewhere),
        Entry::Page(off) => {
            check_page(tx.memory(), off)?;
            Ok(tx.set_zero(off + from % PAGE, to - from)?)
        }
    }
}
