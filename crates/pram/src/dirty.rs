//! Which lines of a region have changed since the last commit: two generations of bits in shared memory.
//!
//! ```text
//! header, 4 KiB: which generation is marked now; from byte 1024 on, notes of whoever commits
//! generation 0 | generation 1, each:
//!     pages   a bit per 4 KiB of the region: some line of it may be marked
//!     lines   a word per 4 KiB of the region, a bit per line (64 bytes)
//! ```
//! A store marks its lines first, so a line that is not marked has not changed. While no operation is under
//! way a commit *switches*: stores then mark the other generation, and the lines of the first can be copied with
//! operations running, since whatever of them changes meanwhile is marked again. Only when its lines are
//! durable is the first generation cleared; a process that dies while it commits loses no mark.
//!
//! It is sparse: two bits for each line, in pages that are touched where the region is.

use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::mem::{Mapping, Pod, LINE};

/// Bytes of a region that one word of line bits stands for.
const PAGE: u64 = 64 * LINE;
const HEADER: u64 = 4096;
/// The word of the header that says which generation is marked.
const ACTIVE: u64 = 0;
/// Where notes begin.
const NOTES: u64 = 1024;

/// The marks of a region.
pub struct Dirty {
    map: Mapping,
    /// Bytes of the region.
    size: u64,
    /// Where the bits of the generations begin.
    bases: [u64; 2],
    /// Bytes of the page bits.
    page_bytes: u64,
}

/// Lines that follow one another: offset and length.
pub type Extent = (u64, u64);

impl Dirty {
    /// Bytes that the marks of a region of `size` bytes take.
    pub fn bytes(size: u64) -> u64 {
        HEADER + 2 * (page_bytes(size) + line_bytes(size))
    }

    /// The marks in `map`; zeroed memory marks nothing.
    pub fn over(map: Mapping, size: u64) -> Result<Dirty> {
        if map.len() < Dirty::bytes(size) {
            return Err(Error::BadAddress { off: 0, len: Dirty::bytes(size) });
        }
        let page_bytes = page_bytes(size);
        let bases = [HEADER, HEADER + page_bytes + line_bytes(size)];
        Ok(Dirty { map, size, bases, page_bytes })
    }

    /// Marks the lines of `len` bytes at `off`, which are about to change.
    #[inline]
    pub fn mark(&self, off: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let end = off.checked_add(len).filter(|end| *end <= self.size).ok_or(Error::BadAddress { off, len })?;
        let active = self.active()?;
        let (first, last) = (off / LINE, (end - 1) / LINE);
        if first / 64 == last / 64 {
            return self.mark_page(active, first / 64, (u64::MAX << (first % 64)) & (u64::MAX >> (63 - last % 64)));
        }
        for page in off / PAGE..=(end - 1) / PAGE {
            let first = off.max(page * PAGE) / LINE % 64;
            let last = (end - 1).min(page * PAGE + PAGE - 1) / LINE % 64;
            self.mark_page(active, page, (u64::MAX << first) & (u64::MAX >> (63 - last)))?;
        }
        Ok(())
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
        let (of_page, bit) = (self.map.atomic64(self.page_word(generation, page))?, 1 << (page % 64));
        // The page first: marked lines in a page that is not would never be found, also if we die in between.
        if of_page.load(Ordering::Acquire) & bit == 0 {
            of_page.fetch_or(bit, Ordering::AcqRel);
        }
        self.map.atomic64(self.line_word(generation, page))?.fetch_or(bits, Ordering::AcqRel);
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
        for page in self.pages(generation)? {
            // Lines first, for the reason given above.
            self.map.atomic64(self.line_word(generation, page))?.store(0, Ordering::Release);
            self.map.atomic64(self.page_word(generation, page))?.fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
        }
        Ok(())
    }

    /// The pages of a generation that may have marks.
    fn pages(&self, generation: u64) -> Result<Vec<u64>> {
        let mut pages = Vec::new();
        for first in (0..self.size.div_ceil(PAGE)).step_by(64) {
            let mut bits = self.map.atomic64(self.page_word(generation, first))?.load(Ordering::Acquire);
            while bits != 0 {
                pages.push(first + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
        Ok(pages)
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
    fn page_word(&self, generation: u64, page: u64) -> u64 {
        self.base(generation) + page / 64 * 8
    }

    #[inline]
    fn line_word(&self, generation: u64, page: u64) -> u64 {
        self.base(generation) + self.page_bytes + page * 8
    }
}

fn page_bytes(size: u64) -> u64 {
    (size.div_ceil(PAGE).div_ceil(64) * 8).next_multiple_of(4096)
}

fn line_bytes(size: u64) -> u64 {
    (size.div_ceil(PAGE) * 8).next_multiple_of(4096)
}
