//! The content of memory files (and of symbolic links), in one of three forms.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `mod` | the interface: each function goes to the form that the root word names |
//! | [`direct`] | small files: one heap block holds the file from its first byte |
//! | [`tree`] | larger and sparse files: 4 KiB pages under index nodes |
//! | [`compressed`] | small files that have been quiet: read-only, until they are made plain |
//! | [`map`](mod@map) | finding bytes: reading and searching in any form |
//! | [`run`] | a stretch of a file, and where it lies |
//! | [`flatten`] | a tree by its runs: made direct, zeroed where it is not defined |
//! | [`edit`] | a change: its transaction, and the blocks of the log of segments that it takes and gives back |
//! | [`large`] | files whose content goes to disk: becoming one, and the union cache's operations on their pages |
//! | [`residence`] | moving content between memory pages and disk |
//! | [`fetched`] | pages that were fetched from disk, for a reader or a change |
//!
//! Data model: root word → data block | compressed content | index node → … → index node → page | block | place on disk.
//!
//! ```text
//! Root.form  0 nothing (all holes)   1 direct   2 tree   3 compressed
//! Root.depth direct: 1 if memory was reserved, so that trimming and compressing leave it; tree: height, 1 to 6, and the bits
//!            7 the part that a truncation cut off is being freed   6 large   5 of a large file: its pages have moved
//!            compressed: the codec; of all of them, bits 3 and 4: known results of compressing it, see `Trial`
//! ```
//! The content of a *large* file goes to disk: writes to it go to blocks of the [union cache](crate::ubj), and these go to
//! segments. It has pages only until those that it had when it became large have moved, or while it is on its way back.
//!
//! A *direct* file may be longer than its block: the rest is a hole. A null entry of an index node is a
//! hole too, and a node may be shorter than 512 entries: the missing ones are null. Other entries are of the kinds that
//! [`entry`](tree::entry) names.
//!
//! Invariants:
//! - F1. Bytes below the size are defined; allocated bytes beyond it are not. A change that moves the size over them
//!   stores or zeroes them first, unlogged: if the transaction is undone they are beyond the size again.
//! - F2. Therefore a transaction that shrinks a file must not grow it again.
//! - F3. Bytes below the size change only with the old ones in the undo log, or by switching to a copy.
//! - F4. No index node is empty; an empty file has no root.
//! - F5. Pages beyond that with the end of the file are reserved: they read as zeros once the size moves over them.
//! - F6. A block changes in place only behind the end of the file, and only if it has no place and is not under transfer. All other
//!   changes go to another block. So the content that a segment or a commit takes from a block does not change.
//!   (Not so where a process measures a [cache without a journal](crate::ubj::policy).)
//! - F7. The owner of a block is the inode and the page whose entry leads to it; of a place the summary of its part says the same,
//!   unless pages of the file have moved since.
//!
//! After an error the [`Content`] is worthless and the transaction must be dropped. [`Error::Elsewhere`]: a part lies on
//! disk; of a change, [`needed`] says which pages have to be [entered](enter) first. Or the content is [compressed](is_compressed): it
//! has to be [expanded](expand) first.

mod compressed;
mod direct;
mod edit;
mod fetched;
mod flatten;
mod large;
mod map;
mod residence;
mod run;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::disk as testing;
mod tree;

use pram::memory::{capacity_of, MAX_SMALL};
use pram::{Memory, Tag, Tx};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::layout::form::{COMPRESSED, DIRECT, TREE};
use crate::layout::{tag, Root};
use crate::retry::if_there_is_room;
use compressed::Compressed;
use direct::{Direct, Patch};
use ilfs::Place;
use tree::{Node, Writer};

pub(crate) use crate::layout::PAGE;
pub(crate) use compressed::{
    codec_of, compress, copy_out, dictionary_of, expand, is_compressed, occupied, replace, would_occupy, Copied,
};
pub(crate) use edit::{Disks, Edit};
pub(crate) use fetched::{
    admit, enter, fetch_without, needed, Fetched, FetchedPage, Fetching, Missing, Needed, Unfetched,
};
pub(crate) use large::{block_of, compact, evict, is_at, is_on_disk, leads_to, places, redirty, relocate, EXECUTABLE};
pub(crate) use map::{
    has_memory, is_plain, on_disk, pages_on_disk, read, read_with, seek_data, seek_hole, unfetched, Sought,
};
pub(crate) use residence::{bring, elsewhere, is_program, resident, send, send_compressed, Fate, Sent};
pub(crate) use tree::{collapse, insert, is_long, Leftover, Shift};

/// The fields of the inode for a file's content.
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

/// Most bytes that one transaction writes; callers cut longer writes.
pub(crate) const ATOMIC: u64 = ilfs::room::LONGEST * ilfs::place::BLOCK;
/// Most pages that one transaction frees, where there may be more, and most that one takes.
pub(crate) const FREED: u64 = 512;
pub(crate) const FILLED: u64 = 128;
/// Largest size of a file.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;

/// In `depth` of a tree: the pages beyond the end of the file are being freed.
const CUT: u8 = 1 << 7;
const CUT_WORD: u64 = Root { off: 0, form: 0, depth: CUT }.pack();
/// In `depth` of a tree: its content goes to disk.
const LARGE: u8 = 1 << 6;
const LARGE_WORD: u64 = Root { off: 0, form: 0, depth: LARGE }.pack();
/// In `depth` of a tree: entries lead to places that were written for other pages of the file.
const MOVED: u8 = 1 << 5;
const MOVED_WORD: u64 = Root { off: 0, form: 0, depth: MOVED }.pack();
/// In `depth` of a block or a tree: a [`Trial`].
const TRIAL: u8 = 0b11 << TRIAL_AT;
const TRIAL_AT: u32 = 3;
const TRIAL_WORD: u64 = Root { off: 0, form: 0, depth: TRIAL }.pack();
const FLAGS: u8 = CUT | LARGE | MOVED | TRIAL;
const FLAG_WORDS: u64 = CUT_WORD | LARGE_WORD | MOVED_WORD | TRIAL_WORD;

/// Known results of compressing content, or compressing it further. A change of the content clears them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Trial {
    /// Nothing.
    #[default]
    None = 0,
    /// LZ4 does not save enough.
    NotQuickly = 1,
    /// Neither does zstd.
    NotAtAll = 2,
    /// It was compressed, and made plain since it was read again and again.
    Hot = 3,
}

impl Content {
    /// Does it go to disk? A change of it holds the lock of the log's table too.
    #[inline(always)]
    pub fn is_large(&self) -> bool {
        self.root & LARGE_WORD != 0
    }

    /// May places have been written for other pages than lead there now?
    pub fn has_moved(&self) -> bool {
        self.root & MOVED_WORD != 0
    }

    /// Has a truncation not yet freed all that it cut off? Then [`cut`] goes on with it, before anything else changes.
    #[inline(always)]
    pub fn is_cut(&self) -> bool {
        self.root & CUT_WORD != 0
    }

    /// The known results of compressing it.
    pub fn trial(&self) -> Trial {
        match (self.root & TRIAL_WORD) >> (56 + TRIAL_AT) {
            1 => Trial::NotQuickly,
            2 => Trial::NotAtAll,
            3 => Trial::Hot,
            _ => Trial::None,
        }
    }

    /// Notes it.
    pub fn note_trial(&mut self, trial: Trial) {
        if Root::unpack(self.root).off != 0 {
            self.root = self.root & !TRIAL_WORD | (trial as u64) << (56 + TRIAL_AT);
        }
    }

    /// Its content is about to change.
    #[inline(always)]
    fn forget_trial(&mut self) {
        self.root &= !TRIAL_WORD;
    }

    /// Makes the tree with root `node` the content.
    fn set_tree(&mut self, node: Node) {
        self.root = Root { off: node.off, form: TREE, depth: node.height }.pack() | self.root & FLAG_WORDS;
    }
}

/// Undo log that is left to the caller, for the inode and its other changes.
const RESERVE: u64 = 2048;

/// A root word, decoded and checked.
enum Form {
    /// A block, or none: one of no bytes.
    Direct(Direct),
    Tree(Node),
    Compressed(Compressed),
}

#[inline(always)]
fn form(r: &Memory, c: &Content) -> Result<Form> {
    match Root::unpack(c.root) {
        Root { off: 0, .. } => Ok(Form::Direct(Direct::NONE)),
        Root { off, form: DIRECT, depth } => {
            Ok(Form::Direct(Direct { off, cap: r.resolve(off, tag::DATA)?, reserved: depth & !TRIAL == 1 }))
        }
        root => tree_of(r, root, c),
    }
}

#[inline(never)]
fn tree_of(r: &Memory, root: Root, c: &Content) -> Result<Form> {
    let owner = c.owner;
    match root {
        Root { form: COMPRESSED, .. } => Ok(Form::Compressed(Compressed::open(r, root, c.size)?)),
        Root { off, form: TREE, depth } if (1..=tree::MAX_HEIGHT).contains(&(depth & !FLAGS)) => {
            Ok(Form::Tree(Node::open(r, off, Node::root(owner, depth & !FLAGS))?))
        }
        root => Err(Error::Corrupt(format!("content of no known form: {root:?}"))),
    }
}

/// The end of a range, unless it is beyond the largest file.
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
pub(crate) fn write(tx: &mut Edit, c: &mut Content, off: u64, data: &[u8]) -> Result<()> {
    if direct::is_first(c, off, data) {
        return direct::first(tx, c, data);
    }
    write_to(tx, c, off, data)
}

/// [`write`] to a file of any form.
#[inline(never)]
fn write_to(tx: &mut Edit, c: &mut Content, off: u64, data: &[u8]) -> Result<()> {
    let end = end_of(off, data.len() as u64)?;
    if data.is_empty() {
        return Ok(());
    }
    c.forget_trial();
    let large = large::becomes(tx, c, end, off, data);
    match form(tx.memory(), c)? {
        Form::Compressed(_) => return Err(Error::Elsewhere),
        Form::Direct(d) if d.serves(off, end) && !large => direct::write(tx, c, d, off, Patch::Bytes(data))?,
        Form::Direct(d) => {
            Writer::from_direct(tx, c, d, off, end)?;
            large::make(tx, c, large)?;
            Writer { tx, c, fresh: true, large }.write(off, data)?;
        }
        Form::Tree(_) => {
            large::make(tx, c, large)?;
            expose(tx, c, off)?;
            Writer { tx, c, fresh: false, large }.write(off, data)?;
        }
    }
    c.size = c.size.max(end);
    Ok(())
}

/// Sets the size. Shrinking never allocates; growing adds a hole. If there is much to free the file [is
/// cut](Content::is_cut) then: the caller commits, and goes on with [`cut`].
pub(crate) fn truncate(tx: &mut Edit, c: &mut Content, size: u64) -> Result<()> {
    end_of(size, 0)?;
    c.forget_trial();
    expose(tx, c, size)?;
    // Reserved pages beyond the end go too, even where the size stays.
    match form(tx.memory(), c)? {
        Form::Compressed(_) if size == 0 => return free(tx, c),
        Form::Compressed(_) if size != c.size => return Err(Error::Elsewhere),
        Form::Tree(_) if size == 0 && c.pages <= FREED && !c.is_large() => return free(tx, c),
        Form::Tree(_) if size <= c.size => tree::truncate(tx, c, size)?,
        Form::Direct(_) if size == 0 => return free(tx, c),
        Form::Direct(d) if d.reserved => c.root = d.root(false),
        _ => {}
    }
    c.size = size;
    Ok(())
}

/// Frees some of the part that a truncation cut off: a transaction.
pub(crate) fn cut(tx: &mut Edit, c: &mut Content) -> Result<()> {
    tree::cut(tx, c)
}

/// Zeroes undefined bytes between the size and `to`, so that the size can move there (F1).
fn expose(tx: &mut Edit, c: &mut Content, to: u64) -> Result<()> {
    if to <= c.size {
        return Ok(());
    }
    match form(tx.memory(), c)? {
        Form::Direct(d) => direct::expose(tx, c, d, to),
        Form::Tree(root) => flatten::expose(tx, c, root, to),
        Form::Compressed(_) => Err(Error::Elsewhere),
    }
}

/// Bytes that the content occupies, index nodes apart.
#[inline]
pub(crate) fn allocated(r: &Memory, c: &Content) -> u64 {
    match form(r, c) {
        Ok(Form::Direct(d)) => d.cap,
        Ok(Form::Compressed(found)) => found.allocated(),
        _ => c.pages.saturating_mul(PAGE),
    }
}

/// Gives the holes of `off..off + len` memory, and extends the file unless `keep_size`. One transaction does
/// a part: returns the offset that it reached, from which the caller goes on until it is `off + len`.
pub(crate) fn allocate(tx: &mut Edit, c: &mut Content, off: u64, len: u64, keep_size: bool) -> Result<u64> {
    let end = end_of(off, len)?;
    if len == 0 {
        return Err(Errno::INVAL.into());
    }
    c.forget_trial();
    let large = large::becomes(tx, c, end, off, &[]);
    match form(tx.memory(), c)? {
        Form::Compressed(_) => return Err(Error::Elsewhere),
        Form::Direct(d) if d.serves(off, end) && !large => {
            direct::allocate(tx, c, d, end, keep_size)?;
            return Ok(end);
        }
        Form::Direct(d) => Writer::from_direct(tx, c, d, 0, 0)?,
        Form::Tree(_) => {}
    }
    large::make(tx, c, large)?;
    tree::allocate(tx, c, off, end, keep_size, large)
}

/// Makes a hole: `off..off + len` reads as zeros; whole pages are given back. One transaction does a part,
/// as in [`allocate`]: all of it unless there may be more than [`FREED`] pages, or the undo log is too small. Needs no
/// memory.
pub(crate) fn punch(tx: &mut Edit, c: &mut Content, off: u64, len: u64) -> Result<u64> {
    if len == 0 {
        return Err(Errno::INVAL.into());
    }
    let end = off.saturating_add(len);
    c.forget_trial();
    match form(tx.memory(), c)? {
        Form::Direct(d) => direct::punch(tx, c, d, off, end),
        Form::Tree(root) => tree::punch(tx, c, root, off, end),
        Form::Compressed(_) => Err(Error::Elsewhere),
    }
}

/// Makes `off..off + len` read as zeros, with memory behind, and extends the file unless `keep_size`. One
/// transaction does a part, as of [`allocate`].
pub(crate) fn zero(tx: &mut Edit, c: &mut Content, off: u64, len: u64, keep_size: bool) -> Result<u64> {
    let end = end_of(off, len)?.min((off / PAGE + FILLED) * PAGE);
    let end = punch(tx, c, off, end - off)?;
    allocate(tx, c, off, end - off, keep_size)
}

/// Would [`trim`] give anything back?
#[inline(always)]
pub(crate) fn has_slack(r: &Memory, c: &Content) -> bool {
    let fit = capacity_of(c.size.max(1));
    match form(r, c) {
        Ok(Form::Direct(d)) => !d.reserved && fit < d.cap,
        // Pages beyond the end have been reserved; with fewer there are holes.
        Ok(Form::Tree(_)) if c.is_large() => false,
        Ok(Form::Tree(_)) => c.size <= MAX_SMALL && c.pages == c.size.div_ceil(PAGE) && fit < c.pages * PAGE,
        Ok(Form::Compressed(_)) => false,
        Err(_) => false,
    }
}

/// Gives back the slack behind the end of the file, and makes a tree that has become small direct. True if
/// something changed; a full memory is no error, nor is content that would have to be fetched.
pub(crate) fn trim(tx: &mut Edit, c: &mut Content) -> Result<bool> {
    if !has_slack(tx.memory(), c) {
        return Ok(false);
    }
    let done = match form(tx.memory(), c)? {
        Form::Direct(d) => direct::shrink(tx, c, d, c.size.min(d.cap)),
        Form::Tree(_) if !has_memory(tx.memory(), c, 0, c.pages * PAGE)? => return Ok(false),
        Form::Tree(root) => flatten::flatten(tx, c, root).map(|()| true),
        Form::Compressed(_) => return Ok(false),
    };
    match done {
        Err(Error::Elsewhere) => Ok(false),
        done => Ok(if_there_is_room(done)?.unwrap_or(false)),
    }
}

/// Frees all content; the file is empty then.
pub(crate) fn free(tx: &mut Edit, c: &mut Content) -> Result<()> {
    match form(tx.memory(), c)? {
        Form::Direct(d) if d.off == 0 => {}
        Form::Direct(d) => tx.free(d.off, tag::DATA)?,
        Form::Tree(root) => tree::free(tx, root, &mut c.pages)?,
        Form::Compressed(found) => found.free(tx)?,
    }
    *c = Content { owner: c.owner, ..Content::default() };
    Ok(())
}

/// Something that a file occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// An index node of so many bytes.
    Index(u64),
    /// So many bytes whose home is memory.
    Memory(u64),
    /// So many bytes to which content of `plain` was compressed.
    Compressed { bytes: u64, plain: u64 },
    /// A page that is in memory until it has a place.
    Waiting,
    /// A page that has neither content nor memory, and room on disk.
    Promised,
    /// A page on disk; `cached`: in memory too.
    Disk { page: u64, place: Place, cached: bool },
}

/// Calls `see` with the room of the file from page `from` on, some thousand pages at a time; returns the page with which to go on, if there
/// is more.
pub(crate) fn tally(r: &Memory, c: &Content, from: u64, see: &mut dyn FnMut(Part)) -> Result<Option<u64>> {
    match form(r, c)? {
        Form::Direct(d) => {
            if d.cap > 0 {
                see(Part::Memory(d.cap));
            }
            Ok(None)
        }
        Form::Tree(root) => tree::tally(r, root, from, see),
        Form::Compressed(found) => {
            see(Part::Compressed { bytes: found.allocated(), plain: c.size });
            Ok(None)
        }
    }
}

/// Calls `object` with every heap object of the file, for mark-and-sweep; blocks have the tag [`BLOCKS`](pram::memory::BLOCKS). Fails
/// at the first reference that is damaged: then not all objects have been named.
pub(crate) fn visit(r: &Memory, c: &Content, object: &mut dyn FnMut(u64, Tag)) -> Result<()> {
    match form(r, c)? {
        Form::Direct(d) if d.off == 0 => {}
        Form::Direct(d) => object(d.off, tag::DATA),
        Form::Tree(root) => tree::visit(r, root, object)?,
        Form::Compressed(found) => found.visit(r, object)?,
    }
    Ok(())
}

/// Calls `problem` with a sentence for everything that is wrong with the content.
pub(crate) fn check(r: &Memory, c: &Content, problem: &mut dyn FnMut(String)) {
    if c.size > MAX_SIZE {
        problem(format!("its size {} is beyond {MAX_SIZE}", c.size));
    }
    if Root::unpack(c.root).off == 0 && c.root != 0 {
        problem(format!("its root {:#x} makes no sense", c.root));
    }
    match form(r, c) {
        Err(e) => problem(e.to_string()),
        Ok(Form::Direct(d)) => direct::check(r, c, d, problem),
        Ok(Form::Tree(root)) => tree::check(r, c, root, problem),
        Ok(Form::Compressed(found)) => compressed::check(r, c, found, problem),
    }
}

/// Rebuilds damaged content from its readable parts; the rest becomes a hole. Returns the bytes that were
/// lost, as far as they are known. Everything is copied, since objects of the old form may belong to
/// other files too; they are left for mark-and-sweep.
pub(crate) fn salvage(tx: &mut Edit, c: &mut Content) -> Result<u64> {
    let old = *c;
    *c = Content { size: old.size.min(MAX_SIZE), owner: old.owner, ..Content::default() };
    match form(tx.memory(), &old) {
        Err(_) => Ok(c.size),
        Ok(Form::Direct(d)) => direct::salvage(tx, c, d),
        Ok(Form::Tree(root)) => tree::salvage(tx, c, root, old.is_large()),
        // A caller that can decode it does that before: see `repair`.
        Ok(Form::Compressed(_)) => Ok(c.size),
    }
}
