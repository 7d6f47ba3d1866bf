//! Transactions: an undo log in a persistent slot.
//!
//! A slot is a word and a log. The word is the number of the transaction that uses the slot next; a log record is valid
//! if it carries that number. So a transaction begins with its first valid record and is committed by one store that
//! moves the number on. No store is needed to begin one.
//!
//! ```text
//! slot:    number (8) | secret (8) | zero (48) | records
//! record:  offset (48 bits) and length (16) | number, low half (4) | CRC-32C (4) | old bytes, padded to 8
//! ```
//! The CRC (of the secret, offset, length, number and old bytes) is there where stores reach the medium unordered; it
//! is 0 on media where visible is durable. Leftovers of earlier transactions follow the last record, so a record is
//! validated only after the number's place in the next one has been cleared. Unordered, that may come too late; but
//! data of programs among the leftovers cannot be a record without the secret.
//!
//! Ordered steps of a change:
//! 1. The record's bytes, an end mark behind it, then the word that validates it; durable. (Else: a changed
//!    word with no way back; or old bytes of an earlier transaction taken for a record of this one.)
//! 2. The change in place.
//! 3. All changes and all fresh objects durable. (Else: a committed transaction with holes.)
//! 4. The slot's number moves on: committed. Durable.
//! 5. Freed objects' bits are cleared. (Before 4, a crash would bring back objects that have a new owner
//!    by then.)
//!
//! Objects that a crash leaves allocated between 1 and 4, or not yet freed after 4, are leaks: see `heap`.

use std::cell::Cell;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::heap::{Block, Heap};
use crate::mem::Pod;
use crate::memory::{Descriptor, Memory, Tag, BLOCK, BLOCKS, CHUNK, SLOT};
use crate::off::Off;
use crate::random;
use crate::runtime::Runtime;

/// Where records begin in a slot.
const LOG: u64 = 64;
/// Where the secret is in a slot: a random number, or 0 where none is needed.
const SECRET: u64 = 8;
/// Bytes of old content that one transaction can log, headers included.
pub const LOG_CAPACITY: u64 = SLOT - LOG;
/// Bytes per record beside the old content.
pub const RECORD: u64 = 16;
// A record's length has 16 bits.
const _: () = assert!(LOG_CAPACITY <= u16::MAX as u64);
/// Bytes that are saved word by word.
const FEW: u64 = 64;

/// The outcome of an operation's committed transactions.
#[derive(Debug, Default)]
pub struct Outcome {
    pub(crate) changed: Cell<bool>,
    pub(crate) urgent: Cell<bool>,
}

impl Outcome {
    /// Notes a committed transaction that changed something.
    fn note(&self, urgent: bool) {
        self.changed.set(true);
        self.urgent.set(self.urgent.get() | urgent);
    }
}

/// An open transaction. Dropping it without [`commit`](Tx::commit) undoes everything.
#[must_use = "a transaction that is not committed is undone"]
pub struct Tx<'o> {
    memory: &'o Memory,
    rt: &'o Runtime,
    slot: u32,
    number: u64,
    /// Where the slot's log begins, and how many bytes of it are in use.
    log: u64,
    used: u64,
    allocated: SmallVec<[u64; 8]>,
    freed: SmallVec<[u64; 8]>,
    /// Ranges to flush before the commit; empty on media that need no flush.
    dirty: SmallVec<[(u64, u64); 8]>,
    outcome: &'o Outcome,
    urgent: bool,
    /// The transaction has set places of blocks.
    placed: bool,
    /// By how many the blocks without a place become more: at the commit; already counted. And how many of them it
    /// frees.
    unplaced: i64,
    noted: i64,
    dropped: i64,
    done: bool,
}

impl<'o> Tx<'o> {
    #[inline(always)]
    pub(crate) fn begin(memory: &'o Memory, rt: &'o Runtime, slot: u32, outcome: &'o Outcome) -> Result<Tx<'o>> {
        let at = memory.geo.slot(slot);
        Ok(Tx {
            memory,
            rt,
            slot,
            number: memory.load(Off::new(at))?,
            log: at + LOG,
            used: 0,
            allocated: SmallVec::new(),
            freed: SmallVec::new(),
            dirty: SmallVec::new(),
            outcome,
            urgent: false,
            placed: false,
            unplaced: 0,
            noted: 0,
            dropped: 0,
            done: false,
        })
    }

    #[inline(always)]
    pub fn memory(&self) -> &'o Memory {
        self.memory
    }

    /// Asks the caller of the operation to report it done only when it is durable: [`Op::is_urgent`].
    ///
    /// [`Op::is_urgent`]: crate::session::Op::is_urgent
    #[inline(always)]
    pub fn urge(&mut self) {
        self.urgent = true;
    }

    /// The transaction slot, a small number: data per slot needs no lock while the transaction lives.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The heap that it changes.
    #[inline(always)]
    pub fn heap(&self) -> Heap<'o> {
        Heap { memory: self.memory, rt: self.rt }
    }

    /// Bytes that the undo log can still take, headers included.
    pub fn room(&self) -> u64 {
        LOG_CAPACITY - self.used
    }

    // Changes of linked objects: logged.

    /// Replaces the value at `off`.
    #[inline(always)]
    pub fn set<T: Pod>(&mut self, off: Off<T>, value: &T) -> Result<()> {
        self.set_bytes(off.raw(), value.as_bytes())
    }

    #[inline(always)]
    pub fn set_bytes(&mut self, off: u64, bytes: &[u8]) -> Result<()> {
        self.log(off, bytes.len() as u64)?;
        self.memory.store(off, bytes)?;
        self.touch(off, bytes.len() as u64);
        Ok(())
    }

    /// Replaces bytes by zeros.
    pub fn set_zero(&mut self, off: u64, len: u64) -> Result<()> {
        self.log(off, len)?;
        self.memory.zero(off, len)?;
        self.touch(off, len);
        Ok(())
    }

    /// Moves `len` bytes from `src` to `dst`; the ranges may overlap. Only `dst` is logged.
    pub fn set_copy(&mut self, src: u64, dst: u64, len: u64) -> Result<()> {
        self.log(dst, len)?;
        self.memory.copy(src, dst, len)?;
        self.touch(dst, len);
        Ok(())
    }

    // Stores to unlinked objects, or beyond the bytes that the owner calls valid: not logged, but durable
    // before the commit.

    #[inline(always)]
    pub fn init<T: Pod>(&mut self, off: Off<T>, value: &T) -> Result<()> {
        self.init_bytes(off.raw(), value.as_bytes())
    }

    #[inline(always)]
    pub fn init_bytes(&mut self, off: u64, bytes: &[u8]) -> Result<()> {
        if !self.memory.store_unlinked(off, bytes)? {
            self.touch(off, bytes.len() as u64);
        }
        Ok(())
    }

    /// Stores `a` and `b` one behind the other.
    #[inline(always)]
    pub fn init_pair(&mut self, off: u64, a: &[u8], b: &[u8]) -> Result<()> {
        self.memory.store_pair(off, a, b)?;
        self.touch(off, (a.len() + b.len()) as u64);
        Ok(())
    }

    pub fn init_zero(&mut self, off: u64, len: u64) -> Result<()> {
        if len > 0 {
            self.memory.zero(off, len)?;
            self.touch(off, len);
        }
        Ok(())
    }

    /// Copies `len` bytes inside the memory to an unlinked object.
    pub fn init_copy(&mut self, src: u64, dst: u64, len: u64) -> Result<()> {
        self.memory.copy(src, dst, len)?;
        self.touch(dst, len);
        Ok(())
    }

    // Objects.

    /// Allocates an object of type `tag` and at least `size` bytes; contents undefined. Undone with the
    /// transaction.
    #[inline(always)]
    pub fn alloc(&mut self, tag: Tag, size: u64) -> Result<Block> {
        let block = self.heap().alloc(self.slot, tag, size.max(1))?;
        self.allocated.push(block.off);
        Ok(block)
    }

    /// Frees the object of type `tag` at `off` when the transaction commits.
    #[inline]
    pub fn free(&mut self, off: u64, tag: Tag) -> Result<()> {
        self.memory.resolve(off, tag)?;
        self.freed.push(off);
        Ok(())
    }

    // Blocks: see [`Descriptor`].

    /// Allocates a block of [`BLOCK`] bytes for `owner`, without a place, as written in `epoch`; returns its offset. Its content
    /// is undefined. Undone with the transaction.
    ///
    /// # Errors
    /// As of [`alloc`](Self::alloc).
    pub fn alloc_block(&mut self, epoch: u64, owner: [u64; 2]) -> Result<u64> {
        let block = self.heap().alloc(self.slot, BLOCKS, BLOCK)?.off;
        self.allocated.push(block);
        self.rt.count_blocks(self.slot, 1);
        self.init(self.memory.block(block)?, &Descriptor { place: 0, epoch, owner })?;
        self.rt.count_unplaced(1);
        self.rt.add_unplaced(block / CHUNK);
        self.noted += 1;
        Ok(block)
    }

    /// Frees the block at `block` when the transaction commits. A block under transfer becomes free when the transfer has ended.
    ///
    /// # Errors
    /// [`Error::BadAddress`] or [`Error::WrongType`] where no block can be. The commit reports a block that is not
    /// allocated, without failing.
    pub fn free_block(&mut self, block: u64) -> Result<()> {
        let at = Descriptor::place_at(self.memory.block(block)?);
        self.dropped += i64::from(self.memory.load(at)? == 0);
        self.freed.push(block);
        Ok(())
    }

    /// Sets the place where the content of a block also is, or 0: nowhere. Logged.
    pub fn set_place(&mut self, block: u64, place: u64) -> Result<()> {
        let at = Descriptor::place_at(self.memory.block(block)?);
        let before = self.memory.load(at)?;
        self.set(at, &place)?;
        self.placed = true;
        self.unplaced += i64::from(place == 0) - i64::from(before == 0);
        if place == 0 {
            self.rt.add_unplaced(block / CHUNK);
        }
        Ok(())
    }

    /// Takes a block's place away, since its content is nowhere else any more, and sets `epoch`: it goes with that
    /// epoch's commit. Logged. Not for a [void](Descriptor::is_void) block, whose content is only at its place.
    pub fn unset_place(&mut self, block: u64, epoch: u64) -> Result<()> {
        let at = self.memory.block(block)?;
        self.set(Descriptor::epoch_at(at), &epoch)?;
        self.set_place(block, 0)
    }

    /// The change of the number of blocks without a place by this transaction.
    #[inline(always)]
    pub fn more_unplaced(&self) -> i64 {
        self.noted + self.unplaced - self.dropped
    }

    /// The number of blocks without a place once this transaction is committed.
    pub fn unplaced(&self) -> u64 {
        self.rt.unplaced().saturating_add_signed(self.unplaced - self.dropped)
    }

    /// Sets the owner of a block. Logged.
    pub fn set_owner(&mut self, block: u64, owner: [u64; 2]) -> Result<()> {
        let at = self.memory.block(block)?;
        self.set(Descriptor::owner_at(at), &owner)
    }

    /// Before the content of a linked block changes in place: takes its place away and sets `epoch`. Durable when it
    /// returns, and not undone with the transaction. (Else, after a crash, changed content would count as the content
    /// at its place, and be lost with its memory.) Not for a [void](Descriptor::is_void) block, which would not be void
    /// any more afterwards: such a block is replaced.
    pub fn begin_change(&mut self, block: u64, epoch: u64) -> Result<()> {
        let at = self.memory.block(block)?;
        let Descriptor { place, epoch: before, .. } = self.memory.read(at)?;
        if place == 0 && before == epoch {
            return Ok(());
        }
        self.memory.store_word(Descriptor::place_at(at).raw(), 0)?;
        self.memory.store_word(Descriptor::epoch_at(at).raw(), epoch)?;
        self.memory.persist(at.raw(), size_of::<Descriptor>() as u64);
        self.rt.count_unplaced(i64::from(place != 0));
        self.noted += i64::from(place != 0);
        self.rt.add_unplaced(block / CHUNK);
        Ok(())
    }

    /// Stores to the content of a block, at most up to its end: not logged, durable before the commit, and not undone
    /// with the transaction. For a linked block, after [`begin_change`](Self::begin_change).
    pub fn store_content(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        if !self.memory.store_content(at, bytes)? {
            self.touch(at, bytes.len() as u64);
        }
        Ok(())
    }

    /// Fills content with zeros, under the same rules.
    pub fn zero_content(&mut self, at: u64, len: u64) -> Result<()> {
        self.memory.zero_content(at, len)?;
        self.touch(at, len);
        Ok(())
    }

    /// Copies `len` bytes at `src`, anywhere in the memory, to the content of a block, under the same rules.
    pub fn copy_content(&mut self, src: u64, at: u64, len: u64) -> Result<()> {
        self.memory.copy_content(src, at, len)?;
        self.touch(at, len);
        Ok(())
    }

    #[inline(always)]
    fn touch(&mut self, off: u64, len: u64) {
        if self.memory.needs_flush() {
            self.dirty.push((off, len));
        }
    }

    /// Step 1: saves the bytes at `off`.
    #[inline(always)]
    fn log(&mut self, off: u64, len: u64) -> Result<()> {
        if len % 8 == 0 && off % 8 == 0 && len <= FEW {
            return self.log_words(off, len);
        }
        self.log_bytes(off, len)
    }

    /// [`log`](Self::log) of a few words, as nearly every record holds.
    #[inline(always)]
    fn log_words(&mut self, off: u64, len: u64) -> Result<()> {
        let (memory, rec) = (self.memory, self.next_record(len)?);
        memory.save_words(off, rec + RECORD, (len / 8) as usize)?;
        self.validate(rec, off, len, len)
    }

    #[inline(never)]
    fn log_bytes(&mut self, off: u64, len: u64) -> Result<()> {
        let padded = len.next_multiple_of(8);
        let rec = self.next_record(padded)?;
        self.memory.copy_to_log(off, rec + RECORD, len)?;
        self.validate(rec, off, len, padded)
    }

    /// Where a record of `padded` bytes goes.
    #[inline(always)]
    fn next_record(&self, padded: u64) -> Result<u64> {
        if padded.saturating_add(RECORD) > LOG_CAPACITY - self.used {
            return Err(Error::LogFull);
        }
        Ok(self.log + self.used)
    }

    /// Makes the record at `rec`, which holds its bytes, one of this transaction.
    #[inline(always)]
    fn validate(&mut self, rec: u64, off: u64, len: u64, padded: u64) -> Result<()> {
        let memory = self.memory;
        let place = off | len << 48;
        memory.store_log_word(rec, place)?;
        let end = self.used + RECORD + padded;
        if end + RECORD <= LOG_CAPACITY {
            memory.store_log_word(rec + RECORD + padded + 8, 0)?;
        }
        let slot = self.log - LOG;
        let crc = if memory.needs_flush() { record_crc(memory, slot, place, self.number as u32, rec, len)? } else { 0 };
        memory.store_log_word(rec + 8, u64::from(self.number as u32) | u64::from(crc) << 32)?;
        memory.persist(rec, RECORD + padded);
        self.used = end;
        Ok(())
    }

    /// Makes everything durable at once. A transaction that changed nothing costs nothing.
    #[inline(always)]
    pub fn commit(mut self) -> Result<()> {
        self.done = true;
        let memory = self.memory;
        if memory.needs_flush() {
            self.flush();
        }
        if self.used > 0 {
            advance(memory, self.log - LOG, self.number)?;
            self.outcome.note(self.urgent);
        }
        if self.unplaced != 0 {
            self.rt.count_unplaced(self.unplaced);
        }
        if !self.freed.is_empty() {
            self.free_now();
        }
        Ok(())
    }

    /// Step 3.
    #[cold]
    #[inline(never)]
    fn flush(&self) {
        for (off, len) in &self.dirty {
            self.memory.flush(*off, *len);
        }
        self.memory.fence();
    }

    /// Step 5.
    #[inline(never)]
    fn free_now(&self) {
        for off in &self.freed {
            if let Err(e) = self.heap().free(self.slot, *off) {
                tracing::error!("freeing {off:#x}: {e}; run `conquest fsck`");
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn give_up(&mut self) {
        if let Err(e) = self.undo() {
            tracing::error!("undoing a transaction: {e}");
        }
    }

    fn undo(&mut self) -> Result<()> {
        if self.used > 0 {
            roll_back(self.memory, self.slot)?;
        }
        if self.placed {
            // A walk in between has seen places that are gone again.
            self.rt.doubt_unplaced();
        }
        for off in std::mem::take(&mut self.allocated) {
            self.heap().free(self.slot, off)?;
        }
        Ok(())
    }
}

impl Drop for Tx<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.done {
            self.give_up();
        }
    }
}

fn record_crc(memory: &Memory, slot: u64, place: u64, number: u32, rec: u64, len: u64) -> Result<u32> {
    let secret: u64 = memory.load(Off::new(slot + SECRET))?;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&secret.to_le_bytes()), &place.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
    memory.map().crc(crc, rec + RECORD, len)
}

/// Step 4: the slot belongs to the next transaction.
#[inline(always)]
fn advance(memory: &Memory, at: u64, number: u64) -> Result<()> {
    let next = number.wrapping_add(1);
    memory.store_log_word(at, next)?;
    memory.persist(at, 8);
    match next as u32 {
        0 => skip_zero(memory, at, next),
        _ => Ok(()),
    }
}

/// Numbers whose low half is zero mark no transaction: they are skipped, after clearing the log, so that no
/// record of 2³² transactions ago is taken for a new one. A fresh slot begins so. Can be repeated.
#[cold]
fn skip_zero(memory: &Memory, at: u64, number: u64) -> Result<()> {
    if number as u32 != 0 {
        return Ok(());
    }
    if !memory.map().is_zero(at + LOG, LOG_CAPACITY)? {
        memory.zero(at + LOG, LOG_CAPACITY)?;
        memory.persist(at + LOG, LOG_CAPACITY);
    }
    memory.commit_word(Off::new(at), number.wrapping_add(1))
}

/// Gives a slot without a secret one, if the medium needs it. While the slot is unused and nothing is left to undo.
pub(crate) fn ensure_secret(memory: &Memory, slot: u32) -> Result<()> {
    let at = memory.geo.slot(slot) + SECRET;
    if !memory.needs_flush() || memory.load(Off::<u64>::new(at))? != 0 {
        return Ok(());
    }
    memory.store_log_word(at, u64::from_le_bytes(random::bytes()?).max(1))?;
    memory.persist(at, 8);
    Ok(())
}

/// Undoes the changes of the transaction in `slot`; true if there was one. Can be repeated.
pub(crate) fn roll_back(memory: &Memory, slot: u32) -> Result<bool> {
    let at = memory.geo.slot(slot);
    let number = memory.load(Off::new(at))?;
    skip_zero(memory, at, number)?;
    let mut records: SmallVec<[(u64, u64, u64); 32]> = SmallVec::new();
    let mut used = 0;
    while used + RECORD <= LOG_CAPACITY {
        let rec = at + LOG + used;
        let [place, check] = memory.read::<[u64; 2]>(Off::new(rec))?;
        let (off, len) = (place & ((1 << 48) - 1), place >> 48);
        let padded = len.next_multiple_of(8);
        // Low half zero marks no transaction: fresh logs are all zeros.
        if check as u32 == 0 || check as u32 != number as u32 || used + RECORD + padded > LOG_CAPACITY {
            break;
        }
        if memory.needs_flush() && (check >> 32) as u32 != record_crc(memory, at, place, number as u32, rec, len)? {
            break;
        }
        records.push((off, len, rec + RECORD));
        used += RECORD + padded;
    }
    if records.is_empty() {
        return Ok(false);
    }
    for (off, len, old) in records.into_iter().rev() {
        memory.copy(old, off, len)?;
        memory.flush(off, len);
    }
    memory.fence();
    advance(memory, at, number)?;
    Ok(true)
}
