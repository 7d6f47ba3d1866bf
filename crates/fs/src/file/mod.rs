//! The content of memory files (and of symbolic links), in one of two forms.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `mod` | the interface; which form serves what |
//! | [`map`](mod@map) | where which bytes are: reading and searching |
//! | [`direct`] | small files: one heap block holds the file from its first byte |
//! | [`tree`] | larger and sparse files: 4 KiB pages under index nodes; finding them |
//! | [`entry`] | what a word of an index node says |
//! | [`place`] | places on disk, of which there are none yet |
//! | [`fetched`] | what has been fetched from there, for a reader or a change |
//! | [`grow`] | adding pages to a tree and writing to them |
//! | [`clear`] | taking pages away: truncation, holes, the whole file |
//! | [`space`] | `fallocate`: reserve, punch, zero; unused tails given back |
//! | [`shift`] | `fallocate`: collapse, insert |
//! | [`check`] | every heap object of a file, and what is wrong with it |
//! | [`salvage`](mod@salvage) | what can still be read of a damaged file |
//!
//! Data model: root word → data block | index node → … → index node → page.
//!
//! ```text
//! Root.form  0 nothing (all holes)   1 direct   2 tree
//! Root.depth direct: 1 if the tail is reserved, so that trimming leaves it; tree: height, 1 to 6, and the
//!            highest bit while what a truncation cut off is being freed
//! ```
//! A *direct* file may be longer than its block: the rest is a hole. A null entry of an index node is a
//! hole too, and a node may be shorter than 512 entries: what it lacks is null. Other entries are of the kinds that
//! [`entry`] names.
//!
//! Invariants:
//! - F1. Bytes below the size are defined; allocated bytes beyond it are not. Who moves the size over them
//!   stores or zeroes them first, unlogged: if the transaction is undone they are beyond the size again.
//! - F2. Therefore a transaction that shrinks a file must not grow it again.
//! - F3. Bytes below the size change only with the old ones in the undo log, or by switching to a copy.
//! - F4. No index node is empty; an empty file has no root.
//! - F5. Pages beyond that with the end of the file are reserved: they read as zeros once the size moves over them.
//!
//! After an error the [`Content`] is worthless and the transaction must be dropped. [`Error::Elsewhere`]: a part lies on
//! disk; of a change, [`needed`] says which pages have to be [entered](enter) first.

mod check;
mod clear;
mod direct;
mod entry;
mod fetched;
mod grow;
mod map;
mod place;
mod salvage;
mod shift;
mod space;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::disk as testing;
mod tree;

use pram::{Region, Tx};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::layout::{tag, Root};
use direct::{Direct, Patch};
use grow::Writer;
use map::{Run, Runs, Where};
use tree::Node;

pub(crate) use check::{check, visit};
pub(crate) use clear::free;
pub(crate) use fetched::{enter, needed, Fetched, Missing, Needed};
pub(crate) use map::{has_memory, read, read_with, seek_data, seek_hole, Sought};
pub(crate) use salvage::salvage;
pub(crate) use shift::{collapse, insert, is_long, Leftover, Shift};
pub(crate) use space::{allocate, has_slack, punch, trim, zero};

/// What the inode keeps of a file's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// A packed [`Root`].
    pub root: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Pages of a tree.
    pub pages: u64,
    /// The inode that it belongs to: check codes of entries know it.
    pub owner: u64,
}

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// Most bytes that one transaction writes; callers cut longer writes.
pub(crate) const ATOMIC: u64 = 1 << 20;
/// Most pages that one transaction frees, where there may be more, and most that one takes.
pub(crate) const FREED: u64 = 512;
pub(crate) const FILLED: u64 = 128;
/// Largest size of a file.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;

const DIRECT: u8 = 1;
const TREE: u8 = 2;
/// In `depth` of a tree: what is beyond the end of the file is being freed.
const CUT: u8 = 1 << 7;
const CUT_WORD: u64 = Root { off: 0, form: 0, depth: CUT }.pack();

impl Content {
    /// Has a truncation not yet freed all that it cut off? Then [`cut`] goes on with it, before anything else changes.
    #[inline(always)]
    pub fn is_cut(&self) -> bool {
        self.root & CUT_WORD != 0
    }

    /// Makes the tree with root `node` the content.
    fn set_tree(&mut self, node: Node) {
        self.root = Root { off: node.off, form: TREE, depth: node.height }.pack() | self.root & CUT_WORD;
    }
}

/// Undo log that is left to the caller, for the inode and what else it changes.
const RESERVE: u64 = 2048;

/// A root word, decoded and checked.
enum Form {
    /// A block, or none: one of no bytes.
    Direct(Direct),
    Tree(Node),
}

#[inline(always)]
fn form(r: &Region, c: &Content) -> Result<Form> {
    match Root::unpack(c.root) {
        Root { off: 0, .. } => Ok(Form::Direct(Direct::NONE)),
        Root { off, form: DIRECT, depth } => {
            Ok(Form::Direct(Direct { off, cap: r.resolve(off, tag::DATA)?, reserved: depth == 1 }))
        }
        root => tree_of(r, root, c.owner),
    }
}

#[inline(never)]
fn tree_of(r: &Region, root: Root, owner: u64) -> Result<Form> {
    match root {
        Root { off, form: TREE, depth } if (1..=tree::MAX_HEIGHT).contains(&(depth & !CUT)) => {
            Ok(Form::Tree(Node::open(r, off, Node::root(owner, depth & !CUT))?))
        }
        root => Err(Error::Corrupt(format!("content of no known form: {root:?}"))),
    }
}

/// The end of a range, unless it is beyond what a file can have.
fn end_of(off: u64, len: u64) -> Result<u64> {
    match off.checked_add(len) {
        Some(end) if end <= MAX_SIZE => Ok(end),
        _ => Err(Errno::FBIG.into()),
    }
}

/// Can the undo log take `len` bytes in one record and leave the reserve?
fn has_room(tx: &Tx, len: u64) -> bool {
    len.next_multiple_of(8) + pram::tx::RECORD + RESERVE <= tx.room()
}

/// Writes at most [`ATOMIC`] bytes at `off` and extends the file as far as they reach.
#[inline(always)]
pub(crate) fn write(tx: &mut Tx, c: &mut Content, off: u64, data: &[u8]) -> Result<()> {
    if direct::is_first(c, off, data) {
        return direct::first(tx, c, data);
    }
    write_to(tx, c, off, data)
}

/// [`write`] to a file of any form.
#[inline(never)]
fn write_to(tx: &mut Tx, c: &mut Content, off: u64, data: &[u8]) -> Result<()> {
    let end = end_of(off, data.len() as u64)?;
    if data.is_empty() {
        return Ok(());
    }
    match form(tx.region(), c)? {
        Form::Direct(d) if d.serves(off, end) => direct::write(tx, c, d, off, Patch::Bytes(data))?,
        Form::Direct(d) => {
            Writer::from_direct(tx, c, d, off, end)?;
            Writer { tx, c, fresh: true }.write(off, data)?;
        }
        Form::Tree(_) => {
            expose(tx, c, off)?;
            Writer { tx, c, fresh: false }.write(off, data)?;
        }
    }
    c.size = c.size.max(end);
    Ok(())
}

/// Sets the size. Shrinking never allocates; growing adds a hole. If there is much to free the file [is
/// cut](Content::is_cut) then: the caller commits, and goes on with [`cut`].
pub(crate) fn truncate(tx: &mut Tx, c: &mut Content, size: u64) -> Result<()> {
    end_of(size, 0)?;
    expose(tx, c, size)?;
    // What is reserved beyond the end goes too, even where the size stays.
    match form(tx.region(), c)? {
        Form::Tree(_) if size <= c.size && c.pages > FREED => c.root |= CUT_WORD,
        _ if size == 0 => return free(tx, c),
        Form::Direct(d) if d.reserved => c.root = d.root(false),
        Form::Tree(_) if size <= c.size => clear::pages(tx, c, size.div_ceil(PAGE), u64::MAX)?,
        _ => {}
    }
    c.size = size;
    Ok(())
}

/// Frees a part of what a truncation cut off: a transaction.
pub(crate) fn cut(tx: &mut Tx, c: &mut Content) -> Result<()> {
    let Form::Tree(root) = form(tx.region(), c)? else { return Err(Error::Corrupt("a page tree was expected".into())) };
    let first = c.size.div_ceil(PAGE);
    let end = clear::part(tx.region(), root, first, u64::MAX)?;
    clear::pages(tx, c, first, end)?;
    let done = match form(tx.region(), c)? {
        Form::Tree(root) => tree::next(tx.region(), root, end)?.is_none(),
        Form::Direct(_) => true,
    };
    if done {
        c.root &= !CUT_WORD;
    }
    Ok(())
}

/// Zeroes what is not defined between the size and `to`, so that the size can move there: of the block, or of the page
/// with the end of the file (F1, F5).
fn expose(tx: &mut Tx, c: &Content, to: u64) -> Result<()> {
    if to <= c.size {
        return Ok(());
    }
    match form(tx.region(), c)? {
        Form::Direct(d) => {
            let from = c.size.min(d.cap);
            Ok(tx.init_zero(d.off + from, to.min(d.cap) - from)?)
        }
        Form::Tree(root) => {
            let mut runs = Runs::of(tx.region(), Form::Tree(root), c.size, to.min(c.size.next_multiple_of(PAGE)));
            match runs.step()? {
                Some(Run { at: Where::Memory(at), len, .. }) => Ok(tx.init_zero(at, len)?),
                Some(Run { at: Where::Disk(_), .. }) => Err(Error::Elsewhere),
                _ => Ok(()),
            }
        }
    }
}

/// Bytes that the content occupies, index nodes apart.
#[inline]
pub(crate) fn allocated(r: &Region, c: &Content) -> u64 {
    match form(r, c) {
        Ok(Form::Direct(d)) => d.cap,
        _ => c.pages.saturating_mul(PAGE),
    }
}
