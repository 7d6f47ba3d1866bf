//! Stores to the memory, marked for the backing and passed to the medium, and their durability. Only `tx`, `heap` and
//! this module call most of them.

use std::sync::atomic::{compiler_fence, Ordering};

use super::{Memory, Meta, BLOCK};
use crate::error::{Error, Result};
use crate::marks::Marks;
use crate::off::Off;

/// Bytes from which on stores go past the caches, where that makes them durable: a few lines are cheaper to write back.
const MUCH: usize = 512;

impl Memory {
    #[inline(always)]
    pub(crate) fn store(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.mark(off, bytes.len() as u64)?;
        self.map.write(off, bytes)?;
        self.tell(off, bytes);
        Ok(())
    }

    /// Stores `a` and `b` one behind the other.
    #[inline(always)]
    pub(crate) fn store_pair(&self, off: u64, a: &[u8], b: &[u8]) -> Result<()> {
        self.mark(off, (a.len() + b.len()) as u64)?;
        for (off, bytes) in [(off, a), (off + a.len() as u64, b)] {
            self.map.write(off, bytes)?;
            self.tell(off, bytes);
        }
        Ok(())
    }

    /// Stores bytes to which nothing refers yet; true if they need a fence alone, and no flush.
    #[inline(always)]
    pub(crate) fn store_unlinked(&self, off: u64, bytes: &[u8]) -> Result<bool> {
        if self.needs.flush && bytes.len() >= MUCH && self.stream(off, bytes)? {
            return Ok(true);
        }
        self.store(off, bytes).map(|()| false)
    }

    #[cold]
    #[inline(never)]
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<bool> {
        self.mark(off, bytes.len() as u64)?;
        self.medium.stream(&self.map, off, bytes)
    }

    // Content of blocks: neither marked nor logged, on any medium.

    /// Fails unless all of a range is in one block.
    #[inline(always)]
    fn check_content(&self, off: u64, len: u64) -> Result<()> {
        let inside = len <= BLOCK - off % BLOCK;
        match self.meta(self.geo.chunk_of(off))? {
            Meta::Blocks if inside => Ok(()),
            _ => Err(Error::BadAddress { off, len }),
        }
    }

    /// Stores to a block; true if that needs a fence alone, and no flush.
    #[inline(always)]
    pub(crate) fn store_content(&self, off: u64, bytes: &[u8]) -> Result<bool> {
        self.check_content(off, bytes.len() as u64)?;
        if self.needs.flush && bytes.len() >= MUCH && self.medium.stream(&self.map, off, bytes)? {
            return Ok(true);
        }
        self.map.write(off, bytes)?;
        self.tell(off, bytes);
        Ok(false)
    }

    pub(crate) fn zero_content(&self, off: u64, len: u64) -> Result<()> {
        self.check_content(off, len)?;
        self.map.zero(off, len)?;
        self.tell_range(off, len)
    }

    pub(crate) fn copy_content(&self, src: u64, off: u64, len: u64) -> Result<()> {
        self.check_content(off, len)?;
        self.copy_to_log(src, off, len)
    }

    /// Makes a device's stores to a block durable. In or outside an operation, before anything leads to the block.
    pub fn persist_content(&self, off: u64, len: u64) -> Result<()> {
        self.check_content(off, len)?;
        self.tell_range(off, len)?;
        self.persist(off, len);
        Ok(())
    }

    /// Marks the lines of a store that is about to happen.
    #[inline(always)]
    fn mark(&self, off: u64, len: u64) -> Result<()> {
        match &self.marks {
            None => Ok(()),
            // An operation's stores nearly always go to lines that have changed since the last commit.
            Some(marks) if !self.needs.stores && marks.has(off, len) => Ok(()),
            Some(marks) => self.mark_anew(marks, off, len),
        }
    }

    /// Undo logs are left out: no transaction is open at the instant of a commit.
    #[inline(never)]
    fn mark_anew(&self, marks: &Marks, off: u64, len: u64) -> Result<()> {
        if self.geo.undo_logs().contains(&off) {
            return Ok(());
        }
        if !marks.has(off, len) {
            marks.mark(off, len)?;
        }
        if self.needs.stores {
            self.medium.marked();
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn tell(&self, off: u64, bytes: &[u8]) {
        if self.needs.stores {
            self.tell_medium(off, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_medium(&self, off: u64, bytes: &[u8]) {
        self.medium.stored(off, bytes);
    }

    #[inline(always)]
    pub(crate) fn store_word(&self, off: u64, word: u64) -> Result<()> {
        self.mark(off, 8)?;
        self.store_log_word(off, word)
    }

    /// Stores a word of a slot, which no backing needs: it is not marked.
    #[inline(always)]
    pub(crate) fn store_log_word(&self, off: u64, word: u64) -> Result<()> {
        self.map.atomic64(off)?.store(word, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        self.tell(off, &word.to_le_bytes());
        Ok(())
    }

    /// Copies `count` words at `src` into a slot, in ascending order.
    #[inline(always)]
    pub(crate) fn save_words(&self, src: u64, dst: u64, count: usize) -> Result<()> {
        for (i, (from, to)) in self.map.words(src, count)?.iter().zip(self.map.words(dst, count)?).enumerate() {
            let word = from.load(Ordering::Acquire);
            to.store(word, Ordering::Release);
            self.tell(dst + i as u64 * 8, &word.to_le_bytes());
        }
        compiler_fence(Ordering::SeqCst);
        Ok(())
    }

    /// Copies `len` bytes at `src` into a slot.
    #[inline(always)]
    pub(crate) fn copy_to_log(&self, src: u64, dst: u64, len: u64) -> Result<()> {
        self.map.copy_within(src, dst, len)?;
        self.tell_range(dst, len)
    }

    pub(crate) fn copy(&self, src: u64, dst: u64, len: u64) -> Result<()> {
        self.mark(dst, len)?;
        self.copy_to_log(src, dst, len)
    }

    pub(crate) fn zero(&self, off: u64, len: u64) -> Result<()> {
        self.mark(off, len)?;
        self.map.zero(off, len)?;
        self.tell_range(off, len)
    }

    fn tell_range(&self, off: u64, len: u64) -> Result<()> {
        if self.needs.stores {
            let mut bytes = vec![0; len as usize];
            self.map.copy_out(off, &mut bytes)?;
            self.medium.stored(off, &bytes);
        }
        Ok(())
    }

    /// Sets bits; returns the word before.
    #[inline(always)]
    pub(crate) fn fetch_or(&self, off: u64, bits: u64) -> Result<u64> {
        self.mark(off, 8)?;
        let old = self.map.atomic64(off)?.fetch_or(bits, Ordering::AcqRel);
        self.tell(off, &(old | bits).to_le_bytes());
        Ok(old)
    }

    /// Clears bits; returns the word before.
    #[inline(always)]
    pub(crate) fn fetch_clear(&self, off: u64, bits: u64) -> Result<u64> {
        self.mark(off, 8)?;
        let old = self.map.atomic64(off)?.fetch_and(!bits, Ordering::AcqRel);
        self.tell(off, &(old & !bits).to_le_bytes());
        Ok(old)
    }

    /// The atomic commit of one word (Conquest, 3.5): durable when it returns, whole or not at all.
    /// For words that no transaction touches at the same time.
    pub fn commit_word(&self, off: Off<u64>, word: u64) -> Result<()> {
        self.store_word(off.raw(), word)?;
        self.persist(off.raw(), 8);
        Ok(())
    }

    /// Replaces a word by another if it still is `old`; durable when it returns true. For links that are
    /// made once, by the first process to do so, outside transactions.
    pub fn install_word(&self, off: Off<u64>, old: u64, new: u64) -> Result<bool> {
        self.mark(off.raw(), 8)?;
        let done =
            self.map.atomic64(off.raw())?.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if done {
            self.tell(off.raw(), &new.to_le_bytes());
            self.persist(off.raw(), 8);
        }
        Ok(done)
    }

    /// The same for a byte. Not flushed: durable with the next flush of its line.
    #[inline(always)]
    pub fn install_byte(&self, off: Off<u8>, old: u8, new: u8) -> Result<bool> {
        self.mark(off.raw(), 1)?;
        let done = self.map.atomic8(off.raw())?.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if done {
            self.tell(off.raw(), &[new]);
        }
        Ok(done)
    }

    /// Stores a byte that no transaction touches at the same time; durable when it returns.
    #[inline(always)]
    pub fn commit_byte(&self, off: Off<u8>, byte: u8) -> Result<()> {
        self.mark(off.raw(), 1)?;
        self.map.atomic8(off.raw())?.store(byte, Ordering::Release);
        self.tell(off.raw(), &[byte]);
        self.persist(off.raw(), 1);
        Ok(())
    }

    // Durability.

    /// The instruction by which flushed lines become durable, for display; `None`: stores are durable at once.
    pub fn flush_instruction(&self) -> Option<&'static str> {
        self.medium.flush_instruction()
    }

    #[inline(always)]
    pub(crate) fn flush(&self, off: u64, len: u64) {
        if self.needs.flush {
            self.flush_lines(off, len);
        }
    }

    /// Orders earlier flushes before later stores.
    #[inline(always)]
    pub(crate) fn fence(&self) {
        if self.needs.flush {
            self.wait_for_lines();
        }
    }

    // Out of line for media that need neither: inlined, they made every operation on those a third slower.

    #[cold]
    #[inline(never)]
    fn flush_lines(&self, off: u64, len: u64) {
        self.medium.flush(&self.map, off, len);
    }

    #[cold]
    #[inline(never)]
    fn wait_for_lines(&self) {
        self.medium.fence(&self.map);
    }

    /// Flush and fence: durable when it returns.
    #[inline(always)]
    pub(crate) fn persist(&self, off: u64, len: u64) {
        self.flush(off, len);
        self.fence();
    }
}
