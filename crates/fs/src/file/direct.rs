//! Small files: one heap block holds the file from its first byte, contiguously.
//!
//! The first write takes the block that fits; a file that then grows gets twice its block, so that appends
//! cost constant time, and gives the slack back at its last close.

use pram::memory::MAX_SMALL;
use pram::{Memory, Tx};
use rustix::io::Errno;

use super::edit::Edit;
use super::run::Where;
use super::{form, has_room, Content, Form, DIRECT, PAGE};
use crate::error::{Error, Result};
use crate::layout::{tag, Root};

/// Bytes of old content that are saved in the undo log rather than by switching to a copy.
const IN_PLACE: u64 = 4096;
/// Bytes that are fetched before they are stored to.
const AHEAD: u64 = 2048;
/// Writing further than this beyond a block makes a tree.
const REACH: u64 = 2 * PAGE;

/// A block with content.
#[derive(Clone, Copy)]
pub(super) struct Direct {
    pub off: u64,
    pub cap: u64,
    /// Memory was asked for by `fallocate`, and the file has not outgrown it.
    pub reserved: bool,
}

/// The bytes to store.
#[derive(Clone, Copy)]
pub(super) enum Patch<'a> {
    Bytes(&'a [u8]),
    Zeros(u64),
}

impl Patch<'_> {
    fn len(&self) -> u64 {
        match self {
            Patch::Bytes(b) => b.len() as u64,
            Patch::Zeros(n) => *n,
        }
    }

    /// Stores the part from `from` on at `at`, in bytes that are not yet valid.
    #[inline]
    fn init(&self, tx: &mut Tx, at: u64, from: u64) -> Result<()> {
        match self {
            Patch::Bytes(b) => tx.init_bytes(at, &b[from as usize..])?,
            Patch::Zeros(n) => tx.init_zero(at, n - from)?,
        }
        Ok(())
    }

    /// Stores the part up to `until` at `at`, logged.
    fn set(&self, tx: &mut Tx, at: u64, until: u64) -> Result<()> {
        match self {
            Patch::Bytes(b) => tx.set_bytes(at, &b[..until as usize])?,
            Patch::Zeros(_) => tx.set_zero(at, until)?,
        }
        Ok(())
    }
}

impl Direct {
    /// The block of a file without content.
    pub const NONE: Direct = Direct { off: 0, cap: 0, reserved: false };

    /// Is this form right for a file that gets bytes from `off` to `end`?
    #[inline]
    pub fn serves(&self, off: u64, end: u64) -> bool {
        end <= MAX_SMALL && off <= self.cap + REACH
    }

    /// Where byte `pos` is, and the end of the run that begins with it.
    #[inline(always)]
    pub fn at(&self, pos: u64) -> (Where, u64) {
        match pos < self.cap {
            true => (Where::Memory(self.off + pos), self.cap),
            false => (Where::Hole, u64::MAX),
        }
    }

    #[inline(always)]
    pub fn root(&self, reserved: bool) -> u64 {
        Root { off: self.off, form: DIRECT, depth: u8::from(reserved) }.pack()
    }

    #[inline]
    pub fn read(&self, r: &Memory, off: u64, buf: &mut [u8]) -> Result<()> {
        let n = self.cap.saturating_sub(off).min(buf.len() as u64) as usize;
        if n > 0 {
            r.read_bytes(self.off + off, &mut buf[..n])?;
        }
        buf[n..].fill(0);
        Ok(())
    }
}

/// Is this the first write to a file, and of one that is direct?
#[inline(always)]
pub(super) fn is_first(c: &Content, off: u64, data: &[u8]) -> bool {
    c.root == 0 && c.size == 0 && off == 0 && !data.is_empty() && data.len() as u64 <= MAX_SMALL
}

/// [`write`] of the first bytes of a file, and its size.
#[inline(always)]
pub(super) fn first(tx: &mut Tx, c: &mut Content, data: &[u8]) -> Result<()> {
    let block = tx.alloc(tag::DATA, data.len() as u64)?;
    tx.init_bytes(block.off, data)?;
    // Where the next such file will lie, most likely: stores to memory that is not in the cache hold up the release
    // of locks that follows them.
    tx.memory().expect_store(block.off + block.cap, block.cap.min(AHEAD));
    c.root = Direct { off: block.off, cap: block.cap, reserved: false }.root(false);
    c.size = data.len() as u64;
    Ok(())
}

/// Stores `patch` at `off`; the caller then moves the size.
#[inline]
pub(super) fn write(tx: &mut Tx, c: &mut Content, d: Direct, off: u64, patch: Patch) -> Result<()> {
    let end = off + patch.len();
    if end > d.cap {
        return resize(tx, c, d, end, off, patch);
    }
    let used = c.size.min(d.cap);
    let overwritten = used.min(end).saturating_sub(off);
    let room = has_room(tx, overwritten);
    if !room || (overwritten > IN_PLACE && overwritten > d.cap / 2) {
        match tx.alloc(tag::DATA, d.cap) {
            Ok(new) => return switch(tx, c, d, new, off, patch),
            Err(pram::Error::NoSpace) if room => {}
            Err(e) => return Err(e.into()),
        }
    }
    tx.init_zero(d.off + used, off.saturating_sub(used))?;
    if overwritten > 0 {
        patch.set(tx, d.off + off, overwritten)?;
    }
    if overwritten < patch.len() {
        patch.init(tx, d.off + off + overwritten, overwritten)?;
    }
    Ok(())
}

/// Moves the content to a block of at least `need` bytes: exactly for a first block, else twice the old.
fn resize(tx: &mut Tx, c: &mut Content, d: Direct, need: u64, off: u64, patch: Patch) -> Result<()> {
    let new = match tx.alloc(tag::DATA, need.max((2 * d.cap).min(MAX_SMALL))) {
        Err(pram::Error::NoSpace) if d.cap > 0 => tx.alloc(tag::DATA, need)?,
        other => other?,
    };
    switch(tx, c, Direct { reserved: false, ..d }, new, off, patch)
}

/// Makes the fresh block `new` the content: that of `d`, changed by `patch` at `off`.
#[inline]
fn switch(tx: &mut Tx, c: &mut Content, d: Direct, new: pram::Block, off: u64, patch: Patch) -> Result<()> {
    let used = c.size.min(d.cap);
    let end = off + patch.len();
    let head = off.min(used);
    if head > 0 {
        tx.init_copy(d.off, new.off, head)?;
    }
    tx.init_zero(new.off + head, off - head)?;
    patch.init(tx, new.off + off, 0)?;
    if end < used {
        tx.init_copy(d.off + end, new.off + end, used - end)?;
    }
    let defined = end.max(used);
    tx.init_zero(new.off + defined, c.size.min(new.cap).saturating_sub(defined))?;
    c.root = Direct { off: new.off, cap: new.cap, reserved: d.reserved }.root(d.reserved);
    if d.off != 0 {
        tx.free(d.off, tag::DATA)?;
    }
    Ok(())
}

/// Moves the content to the smallest block for its first `need` bytes, `need` ≥ the used ones.
pub(super) fn refit(tx: &mut Tx, c: &mut Content, d: Direct, need: u64) -> Result<()> {
    let new = tx.alloc(tag::DATA, need)?;
    switch(tx, c, d, new, 0, Patch::Zeros(0))
}

/// Moves the content to the smallest block that has `need` bytes; false if that is no smaller, as where only larger ones are left.
pub(super) fn shrink(tx: &mut Tx, c: &mut Content, d: Direct, need: u64) -> Result<bool> {
    let new = tx.alloc(tag::DATA, need)?;
    if new.cap >= d.cap {
        tx.free(new.off, tag::DATA)?;
        return Ok(false);
    }
    switch(tx, c, d, new, 0, Patch::Zeros(0)).map(|()| true)
}

/// Zeroes undefined bytes between the size and `to`.
pub(super) fn expose(tx: &mut Tx, c: &Content, d: Direct, to: u64) -> Result<()> {
    let from = c.size.min(d.cap);
    Ok(tx.init_zero(d.off + from, to.min(d.cap) - from)?)
}

/// Gives all up to `end`, which the form [serves](Direct::serves), memory.
pub(super) fn allocate(tx: &mut Tx, c: &mut Content, mut d: Direct, end: u64, keep_size: bool) -> Result<()> {
    if end > d.cap {
        refit(tx, c, d, end)?;
        let Form::Direct(new) = form(tx.memory(), c)? else { return Ok(()) };
        d = new;
    }
    if !keep_size {
        super::expose(&mut Edit::in_memory(tx), c, end)?;
        c.size = c.size.max(end);
    }
    c.root = d.root(true);
    Ok(())
}

/// Makes `off..end` a hole, or a part of it; the offset that it reached.
pub(super) fn punch(tx: &mut Tx, c: &mut Content, d: Direct, off: u64, end: u64) -> Result<u64> {
    if off == 0 && end >= c.size.min(d.cap) {
        let size = c.size;
        super::free(&mut Edit::in_memory(tx), c)?;
        c.size = size;
        return Ok(end);
    }
    let n = end.min(c.size.min(d.cap)).saturating_sub(off);
    if n == 0 {
        return Ok(end);
    }
    match write(tx, c, d, off, Patch::Zeros(n)) {
        Ok(()) => Ok(end),
        // No memory for a copy: the undo log takes half.
        Err(Error::Posix(Errno::NOSPC)) => {
            write(tx, c, d, off, Patch::Zeros(n / 2))?;
            Ok(off + n / 2)
        }
        Err(e) => Err(e),
    }
}

/// Calls `problem` with each fault.
pub(super) fn check(r: &Memory, c: &Content, d: Direct, problem: &mut dyn FnMut(String)) {
    if d.cap > MAX_SMALL {
        problem(format!("its data block {:#x} has {} bytes", d.off, d.cap));
    }
    if d.off != 0 {
        check_allocated(r, d.off, problem);
    }
    if c.pages != 0 {
        problem(format!("it says that it has {} pages, and has none", c.pages));
    }
}

fn check_allocated(r: &Memory, off: u64, problem: &mut dyn FnMut(String)) {
    match r.is_allocated(off) {
        Ok(true) => {}
        Ok(false) => problem(format!("object {off:#x} belongs to it but is free")),
        Err(e) => problem(e.to_string()),
    }
}

/// Copies to `c`, which is empty, the readable part of the block; the bytes that cannot be read.
pub(super) fn salvage(tx: &mut Tx, c: &mut Content, d: Direct) -> Result<u64> {
    let used = c.size.min(d.cap);
    let n = used.min(MAX_SMALL);
    if n > 0 {
        let new = tx.alloc(tag::DATA, n)?;
        tx.init_copy(d.off, new.off, n)?;
        tx.init_zero(new.off + n, c.size.min(new.cap) - n)?;
        c.root = Direct { off: new.off, cap: new.cap, reserved: false }.root(false);
    }
    Ok(used - n)
}
