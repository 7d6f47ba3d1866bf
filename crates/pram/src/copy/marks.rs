//! Which lines of a region have changed since the last commit: two generations of bits in shared memory.
//!
//! ```text
//! header, 4 KiB: which generation is marked now; from byte 1024 on, notes of whoever commits
//! generation 0 | generation 1, each:
//!     blocks  a bit per 2 MiB of the region: some page of it may be marked
//!     pages   a bit per 4 KiB of the region: some line of it may be marked
//!     lines   a word per 4 KiB of the region, a bit per line (64 bytes)
//! ```
//! Whoever looks for marks reads the blocks, 64 bytes per GiB, and what they lead to: an `fsync` does not take longer
//! because the region is large.
//!
//! A store marks its lines first, so a line that is not marked has not changed. While no operation is under
//! way a commit *switches*: stores then mark the other generation, and the lines of the first can be copied with
//! operations running, since whatever of them changes meanwhile is marked again. Only when its lines are
//! durable is the first generation cleared; a process that dies while it commits loses no mark.
//!
//! A mark is set from the blocks down and cleared from the lines up, so a line that is marked is found whenever its
//! process dies.
//!
//! It is sparse: two bits for each line, in pages that are touched where the region is.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::mem::{Mapping, Pod, LINE};

/// Bytes of a region that one word of line bits stands for.
const PAGE: u64 = 64 * LINE;
/// Pages that one bit of the blocks stands for: a cache line of page bits.
const BLOCK: u64 = 512;
const HEADER: u64 = 4096;
/// The word of the header that says which generation is marked.
const ACTIVE: u64 = 0;
/// Where notes begin.
const NOTES: u64 = 1024;

/// The marks of a region.
pub struct Marks {
    map: Mapping,
    /// Bytes of the region.
    size: u64,
    /// Where the bits of the generations begin.
    bases: [u64; 2],
    /// Where the page bits and the lines of a generation begin in it.
    pages_at: u64,
    lines_at: u64,
    /// Where the lines of the generations begin in the map, counted in words.
    line_words: [u64; 2],
}

/// Lines that follow one another: offset and length.
pub type Extent = (u64, u64);

impl Marks {
    /// Bytes that the marks of a region of `size` bytes take.
    pub fn bytes(size: u64) -> u64 {
        HEADER + 2 * generation_bytes(size)
    }

    /// The marks in `map`; zeroed memory marks nothing.
    pub fn over(map: Mapping, size: u64) -> Result<Marks> {
        if map.len() < Marks::bytes(size) {
            return Err(Error::BadAddress { off: 0, len: Marks::bytes(size) });
        }
        let bases = [HEADER, HEADER + generation_bytes(size)];
        let pages_at = block_bytes(size);
        let lines_at = pages_at + page_bytes(size);
        let line_words = bases.map(|base| (base + lines_at) / 8);
        Ok(Marks { map, size, bases, pages_at, lines_at, line_words })
    }

    /// Are the lines of `len` bytes at `off` marked already? They may be when it says no. Not for what lies outside of the
    /// region: a store there fails.
    #[inline(always)]
    pub fn has(&self, off: u64, len: u64) -> bool {
        let end = off.wrapping_add(len).wrapping_sub(1);
        let word = |n| Some(self.map.word(n)?.load(Ordering::Acquire));
        let lines = |active: u64| word(self.line_words[(active & 1) as usize] + off / PAGE);
        let Some(lines) = word(ACTIVE / 8).and_then(lines).filter(|_| off / PAGE == end / PAGE) else { return false };
        let (first, last) = (off / LINE % 64, end / LINE % 64);
        match len <= LINE {
            // Two lines at most.
            true => lines >> first & lines >> last & 1 == 1,
            false => !lines & (u64::MAX << first) & (u64::MAX >> (63 - last)) == 0,
        }
    }

    /// Marks the lines of `len` bytes at `off`, which are about to change.
    pub fn mark(&self, off: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        off.checked_add(len).filter(|end| *end <= self.size).ok_or(Error::BadAddress { off, len })?;
        let active = self.active()?;
        by_page(off, len).try_for_each(|(page, bits)| self.mark_page(active, page, bits))
    }

    #[inline(always)]
    fn mark_page(&self, generation: u64, page: u64, bits: u64) -> Result<()> {
        let word = self.map.atomic64(self.line_word(generation, page))?;
        if word.load(Ordering::Relaxed) & bits == bits {
            return Ok(());
        }
        self.mark_anew(generation, page, bits)
    }

    #[inline(never)]
    fn mark_anew(&self, generation: u64, page: u64, bits: u64) -> Result<()> {
        let block = page / BLOCK;
        // From above: marked lines in a page or block that is not would never be found, also if we die in between.
        self.set(self.block_word(generation, block), 1 << (block % 64))?;
        self.set(self.page_word(generation, page), 1 << (page % 64))?;
        self.map.atomic64(self.line_word(generation, page))?.fetch_or(bits, Ordering::AcqRel);
        Ok(())
    }

    fn set(&self, word: u64, bit: u64) -> Result<()> {
        let word = self.map.atomic64(word)?;
        if word.load(Ordering::Acquire) & bit == 0 {
            word.fetch_or(bit, Ordering::AcqRel);
        }
        Ok(())
    }

    /// The generation that is marked now: 0 or 1.
    #[inline]
    pub fn active(&self) -> Result<u64> {
        Ok(self.map.atomic64(ACTIVE)?.load(Ordering::Acquire) & 1)
    }

    /// From now on the other generation is marked; returns the one that was. While no operation is under way.
    /// What a commit that never ended had switched away from is taken in.
    pub fn switch(&self) -> Result<u64> {
        let (active, other) = (self.active()?, 1 - self.active()?);
        // 1. Marked in both, 2. cleared in one: a death in between leaves too many marks, never too few.
        for page in self.pages(other)? {
            let bits = self.map.atomic64(self.line_word(other, page))?.load(Ordering::Acquire);
            self.mark_page(active, page, bits)?;
        }
        self.clear(other)?;
        self.map.atomic64(ACTIVE)?.store(other, Ordering::Release);
        Ok(active)
    }

    /// The marked lines of a generation, ascending, neighbours together.
    pub fn extents(&self, generation: u64) -> Result<Vec<Extent>> {
        let mut extents: Vec<Extent> = Vec::new();
        for page in self.pages(generation)? {
            let mut bits = self.map.atomic64(self.line_word(generation, page))?.load(Ordering::Acquire);
            let mut line = page * 64;
            while bits != 0 {
                let skip = u64::from(bits.trailing_zeros());
                let run = u64::from((!(bits >> skip)).trailing_zeros()).min(64 - skip);
                let (off, len) = ((line + skip) * LINE, run * LINE);
                match extents.last_mut().filter(|last| last.0 + last.1 == off) {
                    Some(last) => last.1 += len,
                    None => extents.push((off, len)),
                }
                bits = bits.checked_shr((skip + run) as u32).unwrap_or(0);
                line += skip + run;
            }
        }
        Ok(extents)
    }

    /// Clears the marks of a generation: of the active one only while no operation is under way.
    pub fn clear(&self, generation: u64) -> Result<()> {
        let blocks = self.blocks(generation)?;
        for page in self.pages_of(generation, &blocks)? {
            // From below, for the reason given above.
            self.map.atomic64(self.line_word(generation, page))?.store(0, Ordering::Release);
            self.map.atomic64(self.page_word(generation, page))?.fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
        }
        for block in blocks {
            self.map.atomic64(self.block_word(generation, block))?.fetch_and(!(1 << (block % 64)), Ordering::AcqRel);
        }
        Ok(())
    }

    /// The pages of a generation that may have marks, ascending.
    fn pages(&self, generation: u64) -> Result<Vec<u64>> {
        self.pages_of(generation, &self.blocks(generation)?)
    }

    fn pages_of(&self, generation: u64, blocks: &[u64]) -> Result<Vec<u64>> {
        let (mut pages, count) = (Vec::new(), self.size.div_ceil(PAGE));
        for block in blocks {
            let (first, end) = (block * BLOCK, ((block + 1) * BLOCK).min(count));
            self.bits_set(first..end, |page| self.page_word(generation, page), &mut pages)?;
        }
        Ok(pages)
    }

    /// The blocks of a generation that may have marks, ascending.
    fn blocks(&self, generation: u64) -> Result<Vec<u64>> {
        let mut blocks = Vec::new();
        let all = 0..self.size.div_ceil(PAGE * BLOCK);
        self.bits_set(all, |block| self.block_word(generation, block), &mut blocks)?;
        Ok(blocks)
    }

    /// Which of the bits `range`, which begins with a word's first, are set; `word` says where a bit's word is.
    fn bits_set(&self, range: Range<u64>, word: impl Fn(u64) -> u64, set: &mut Vec<u64>) -> Result<()> {
        for first in range.step_by(64) {
            let mut bits = self.map.atomic64(word(first))?.load(Ordering::Acquire);
            while bits != 0 {
                set.push(first + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
        Ok(())
    }

    /// A value among the notes, at most 3 KiB from their beginning.
    pub fn note<T: Pod>(&self, at: u64) -> Result<T> {
        self.map.read(NOTES + at)
    }

    pub fn set_note<T: Pod>(&self, at: u64, value: &T) -> Result<()> {
        debug_assert!(NOTES + at + size_of::<T>() as u64 <= HEADER);
        self.map.write(NOTES + at, value.as_bytes())
    }

    /// Lines that are marked, in the generation.
    pub fn marked(&self, generation: u64) -> Result<u64> {
        let words = self.pages(generation)?.into_iter().map(|page| self.map.atomic64(self.line_word(generation, page)));
        words.map(|word| Ok(u64::from(word?.load(Ordering::Relaxed).count_ones()))).sum()
    }

    #[inline(always)]
    fn base(&self, generation: u64) -> u64 {
        self.bases[(generation & 1) as usize]
    }

    #[inline]
    fn block_word(&self, generation: u64, block: u64) -> u64 {
        self.base(generation) + block / 64 * 8
    }

    #[inline]
    fn page_word(&self, generation: u64, page: u64) -> u64 {
        self.base(generation) + self.pages_at + page / 64 * 8
    }

    #[inline]
    fn line_word(&self, generation: u64, page: u64) -> u64 {
        self.base(generation) + self.lines_at + page * 8
    }
}

/// The pages of `len` bytes at `off`, of which there is at least one, and which of their lines they are.
pub(crate) fn by_page(off: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = off + len - 1;
    (off / PAGE..=end / PAGE).map(move |page| {
        let first = off.max(page * PAGE) / LINE % 64;
        let last = end.min(page * PAGE + PAGE - 1) / LINE % 64;
        (page, (u64::MAX << first) & (u64::MAX >> (63 - last)))
    })
}

fn generation_bytes(size: u64) -> u64 {
    block_bytes(size) + page_bytes(size) + line_bytes(size)
}

fn block_bytes(size: u64) -> u64 {
    (size.div_ceil(PAGE * BLOCK).div_ceil(64) * 8).next_multiple_of(4096)
}

fn page_bytes(size: u64) -> u64 {
    (size.div_ceil(PAGE).div_ceil(64) * 8).next_multiple_of(4096)
}

fn line_bytes(size: u64) -> u64 {
    (size.div_ceil(PAGE) * 8).next_multiple_of(4096)
}
