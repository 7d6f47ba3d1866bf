//! Which lines of a memory have changed since the last commit: three sets of bits in shared memory.
//!
//! ```text
//! header, 4 KiB: which set is marked now, how many groups; from byte 1024 on, notes of the committer
//! for each group of the memory, 512 KiB apart:
//!     blocks  2 KiB, in the first of every 64 groups: for each of the 64 a word of each set, a bit per 2 MiB of the
//!             memory: some page of it may be marked
//!     traced  2 KiB: a bit per 4 KiB that a commit has written during a trace
//!     pages   2 KiB of each set: a bit per 4 KiB: some line of it may be marked
//!     lines   for each 4 KiB a word of each set: a bit per line (64 bytes)
//! ```
//! A search for marks reads the blocks, 384 bytes per GiB, and the words that they lead to: an `fsync` does not take
//! longer because the memory is large.
//!
//! A store marks its lines first, so an unmarked line has not changed. One set is *active*: stores mark it. A commit
//! *switches* to another, empty set by one store. When every operation has ended that may still mark the first set, the
//! commit copies that set's lines; a line that changes meanwhile is marked again. Until the commit is durable, the
//! copied lines stay marked in the third set, where they are gathered while operations run. Only then are they cleared:
//! a process that dies while it commits loses no mark, and the next commit takes them in.
//!
//! A reader of a changing memory *traces* the pages that commits write meanwhile: a cleared mark is noted once more, by
//! page.
//!
//! A mark is set from the blocks down and cleared from the lines up, so a marked line is found whenever its
//! process dies.
//!
//! No position depends on the memory's size: a memory that grows moves no marks. The file is sparse; a group's part
//! takes memory when the group is begun.

use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::mem::descriptor::Kept;
use crate::mem::{Mapping, Pod, GROUP, LINE};
use crate::reserve;

/// Bytes of a memory that one word of line bits stands for.
const PAGE: u64 = 64 * LINE;
/// Pages that one bit of the blocks stands for: a cache line of page bits.
const BLOCK: u64 = 512;
/// The active set, the one that a commit is writing, and the one that it has written.
pub const SETS: u64 = 3;
const HEADER: u64 = 4096;
/// The word of the header that says which set is active.
const ACTIVE: u64 = 0;
/// The word of the header that says how many groups there are marks for.
const GROUPS: u64 = 8;
/// The word of the header that says that a trace is under way.
const TRACED: u64 = 16;
/// Where notes begin.
const NOTES: u64 = 1024;

/// Where the part of the first group begins, and the distance to the next.
const PARTS: u64 = HEADER;
const PART: u64 = 512 << 10;
/// Groups whose blocks are in one page.
const SETS_TOGETHER: u64 = 64;
/// Pages, and blocks, of a group.
const GROUP_PAGES: u64 = GROUP / PAGE;
const GROUP_BLOCKS: u64 = GROUP_PAGES / BLOCK;
/// Where traced pages, pages and lines begin in a part.
const TRACE: u64 = 2048;
const PAGES: u64 = 4096;
const LINES: u64 = PAGES + SETS * GROUP_PAGES / 8;
/// Bytes of the words with the lines of a page, one for each set.
const LINE_WORDS: u64 = SETS * 8;
/// Bytes of a part that are used.
const USED: u64 = LINES + GROUP_PAGES * LINE_WORDS;
const _: () = assert!(
    USED <= PART && GROUP_BLOCKS <= 64 && SETS_TOGETHER * SETS * 8 <= TRACE && TRACE + GROUP_PAGES / 8 <= PAGES
);

/// The marks of a memory.
pub struct Marks {
    map: Mapping,
    /// The file of the marks; its memory is taken group by group.
    file: Option<Kept>,
}

/// Lines that follow one another: offset and length.
pub type Extent = (u64, u64);

impl Marks {
    /// Bytes that the marks of a memory of `size` bytes take, of which most are holes.
    pub fn bytes(size: u64) -> u64 {
        PARTS + size / GROUP * PART + LINES + (size % GROUP).div_ceil(PAGE) * LINE_WORDS
    }

    /// The marks in `map`; zeroed memory marks nothing.
    pub fn over(map: Mapping) -> Result<Marks> {
        Marks::new(map, None)
    }

    /// The marks in `map`, a mapping of `file`.
    pub fn over_file(map: Mapping, file: Kept) -> Result<Marks> {
        Marks::new(map, Some(file))
    }

    fn new(map: Mapping, file: Option<Kept>) -> Result<Marks> {
        if map.len() < Marks::bytes(0) {
            return Err(Error::BadAddress { off: 0, len: Marks::bytes(0) });
        }
        let marks = Marks { map, file };
        // Without a file no memory has to be taken: all groups that there is room for.
        let groups = if marks.file.is_some() { 1 } else { (marks.map.len() - PARTS).div_ceil(PART) };
        marks.take_groups(groups)?;
        Ok(marks)
    }

    /// Takes memory for the marks of the first `n` groups; from then on searches go over them.
    pub fn take_groups(&self, n: u64) -> Result<()> {
        let (old, word) = (self.groups()?, self.map.atomic64(GROUPS)?);
        if n <= old {
            return Ok(());
        }
        if let Some(file) = &self.file {
            let len = self.map.len();
            let kept = |from: u64, to: u64| {
                let filled = file.lend().and_then(|file| reserve::fill_holes(file, from..to.min(len)));
                filled.map_err(Error::host("taking memory for what has changed"))
            };
            kept(0, HEADER)?;
            for part in (old..n).map(|group| PARTS + group * PART) {
                kept(part, part + USED)?;
            }
        }
        word.fetch_max(n, Ordering::AcqRel);
        Ok(())
    }

    fn groups(&self) -> Result<u64> {
        let most = (self.map.len() - PARTS).div_ceil(PART);
        Ok(self.map.atomic64(GROUPS)?.load(Ordering::Acquire).min(most))
    }

    /// Are the lines of `len` bytes at `off` marked already? They may be even if the answer is no. Not for bytes
    /// outside of the memory: a store there fails.
    #[inline(always)]
    pub fn has(&self, off: u64, len: u64) -> bool {
        let end = off.wrapping_add(len).wrapping_sub(1);
        let word = |n| Some(self.map.word(n)?.load(Ordering::Acquire));
        let lines = |active: u64| word(line_word(active & 3, off / PAGE) / 8);
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
        let size = self.groups()? * GROUP;
        off.checked_add(len).filter(|end| *end <= size).ok_or(Error::BadAddress { off, len })?;
        let active = self.active()?;
        by_page(off, len).try_for_each(|(page, bits)| self.mark_page(active, page, bits))
    }

    #[inline(always)]
    fn mark_page(&self, set: u64, page: u64, bits: u64) -> Result<()> {
        let word = self.map.atomic64(line_word(set, page))?;
        if word.load(Ordering::Relaxed) & bits == bits {
            return Ok(());
        }
        self.mark_anew(set, page, bits)
    }

    #[inline(never)]
    fn mark_anew(&self, set: u64, page: u64, bits: u64) -> Result<()> {
        let block = page / BLOCK;
        // From the blocks down: marked lines in an unmarked page or block would never be found, also if we die in
        // between.
        self.set(block_word(set, block), 1 << (block % GROUP_BLOCKS))?;
        self.set(page_word(set, page), 1 << (page % 64))?;
        self.map.atomic64(line_word(set, page))?.fetch_or(bits, Ordering::AcqRel);
        Ok(())
    }

    fn set(&self, word: u64, bit: u64) -> Result<()> {
        let word = self.map.atomic64(word)?;
        if word.load(Ordering::Acquire) & bit == 0 {
            word.fetch_or(bit, Ordering::AcqRel);
        }
        Ok(())
    }

    /// The set that stores mark now.
    #[inline]
    pub fn active(&self) -> Result<u64> {
        Ok((self.map.atomic64(ACTIVE)?.load(Ordering::SeqCst) & 3) % SETS)
    }

    /// Makes `set`, an empty one, the active one; returns the one that was. Operations that began before may mark the
    /// old one until they end.
    pub fn switch(&self, set: u64) -> Result<u64> {
        let active = self.active()?;
        self.map.atomic64(ACTIVE)?.store(set % SETS, Ordering::SeqCst);
        Ok(active)
    }

    /// Gathers the marks of both inactive sets in one. Returns that set first and the other one, now empty, second.
    pub fn gather(&self) -> Result<[u64; 2]> {
        let [one, other] = self.others()?;
        let blocks = [self.blocks(one)?.len(), self.blocks(other)?.len()];
        let [kept, spare] = if blocks[0] < blocks[1] { [other, one] } else { [one, other] };
        // 1. Marked in both, 2. cleared in one: a death in between leaves too many marks, never too few.
        self.each_page(spare, &mut |page, bits| self.mark_page(kept, page, bits).map(|()| true))?;
        self.clear(spare)?;
        Ok([kept, spare])
    }

    /// Clears the inactive sets, once the lines that a commit has written are durable.
    /// 1. A trace notes their pages. 2. They are cleared. (Else the trace would miss a change between two looks.)
    pub fn clear_written(&self) -> Result<()> {
        if self.map.atomic64(TRACED)?.load(Ordering::SeqCst) != 0 {
            for set in self.others()? {
                self.each_page(set, &mut |page, _| self.set(trace_word(page), 1 << (page % 64)).map(|()| true))?;
            }
        }
        self.others()?.into_iter().try_for_each(|set| self.clear(set))
    }

    /// Traces the pages that commits write from now on; one trace at a time. A change whose mark was cleared before is
    /// in the memory already: its operation has ended.
    pub fn trace(&self) -> Result<Trace<'_>> {
        let (trace, word) = (Trace(self), self.map.atomic64(TRACED)?);
        // A process that died may have left notes.
        trace.take(&mut |_| Ok(()))?;
        word.store(1, Ordering::SeqCst);
        Ok(trace)
    }

    fn others(&self) -> Result<[u64; 2]> {
        let active = self.active()?;
        Ok([(active + 1) % SETS, (active + 2) % SETS])
    }

    /// The marked lines of a set, ascending, neighbours together.
    pub fn extents(&self, set: u64, see: &mut dyn FnMut(Extent) -> Result<()>) -> Result<()> {
        let mut last: Extent = (0, 0);
        self.each_page(set, &mut |page, mut bits| {
            let mut line = page * 64;
            while bits != 0 {
                let skip = u64::from(bits.trailing_zeros());
                let run = u64::from((!(bits >> skip)).trailing_zeros()).min(64 - skip);
                let (off, len) = ((line + skip) * LINE, run * LINE);
                match last {
                    (_, 0) => last = (off, len),
                    (start, before) if start + before == off => last.1 += len,
                    done => {
                        see(done)?;
                        last = (off, len);
                    }
                }
                bits = bits.checked_shr((skip + run) as u32).unwrap_or(0);
                line += skip + run;
            }
            Ok(true)
        })?;
        if last.1 > 0 {
            see(last)?;
        }
        Ok(())
    }

    /// The marked lines of a set, if there are at most `lines` in at most `pages` pages. The search ends at the first beyond.
    pub fn few(&self, set: u64, lines: u32, pages: u32) -> Result<Option<Vec<Extent>>> {
        let (mut left, mut extents) = ((lines, pages), Vec::new());
        let few = self.each_page(set, &mut |_, bits| {
            let more = left.0.checked_sub(bits.count_ones()).zip(left.1.checked_sub(1));
            left = more.unwrap_or(left);
            Ok(more.is_some())
        })?;
        if !few {
            return Ok(None);
        }
        self.extents(set, &mut |extent| {
            extents.push(extent);
            Ok(())
        })?;
        Ok(Some(extents))
    }

    /// Clears the marks of a set: of the active one only while no operation is under way.
    pub fn clear(&self, set: u64) -> Result<()> {
        for block in self.blocks(set)? {
            for page in self.pages(set, block)? {
                // From the lines up, for the reason in `mark_anew`.
                self.map.atomic64(line_word(set, page))?.store(0, Ordering::Release);
                self.map.atomic64(page_word(set, page))?.fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
            }
            self.map.atomic64(block_word(set, block))?.fetch_and(!(1 << (block % GROUP_BLOCKS)), Ordering::AcqRel);
        }
        Ok(())
    }

    /// Calls `see` with each page of a set that may have marks, and the marks, ascending, until `see` returns false;
    /// true if it has seen all.
    fn each_page(&self, set: u64, see: &mut dyn FnMut(u64, u64) -> Result<bool>) -> Result<bool> {
        for block in self.blocks(set)? {
            for page in self.pages(set, block)? {
                if !see(page, self.map.atomic64(line_word(set, page))?.load(Ordering::Acquire))? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The pages of a block that may have marks in a set, ascending.
    fn pages(&self, set: u64, block: u64) -> Result<Vec<u64>> {
        let mut pages = Vec::new();
        for first in (block * BLOCK..(block + 1) * BLOCK).step_by(64) {
            let bits = self.map.atomic64(page_word(set, first))?.load(Ordering::Acquire);
            pages.extend(bits_of(bits).map(|bit| first + bit));
        }
        Ok(pages)
    }

    /// The blocks of a set that may have marks, ascending.
    fn blocks(&self, set: u64) -> Result<Vec<u64>> {
        let mut blocks = Vec::new();
        for first in (0..self.groups()? * GROUP_BLOCKS).step_by(GROUP_BLOCKS as usize) {
            let bits = self.map.atomic64(block_word(set, first))?.load(Ordering::Acquire);
            blocks.extend(bits_of(bits).map(|bit| first + bit));
        }
        Ok(blocks)
    }

    /// A value among the notes, at most 3 KiB from their beginning.
    pub fn note<T: Pod>(&self, at: u64) -> Result<T> {
        self.map.read(NOTES + at)
    }

    pub fn set_note<T: Pod>(&self, at: u64, value: &T) -> Result<()> {
        debug_assert!(NOTES + at + size_of::<T>() as u64 <= HEADER);
        self.map.write(NOTES + at, value.as_bytes())
    }

    /// Is no line marked, in any set?
    pub fn is_empty(&self) -> Result<bool> {
        for set in 0..SETS {
            if !self.each_page(set, &mut |_, bits| Ok(bits == 0))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The number of marked lines; a line counts once for each set that has it.
    pub fn marked(&self) -> Result<u64> {
        let mut lines = 0;
        for set in 0..SETS {
            self.each_page(set, &mut |_, bits| {
                lines += u64::from(bits.count_ones());
                Ok(true)
            })?;
        }
        Ok(lines)
    }
}

/// A trace, which lasts while this lives: see [`Marks::trace`].
pub struct Trace<'m>(&'m Marks);

impl Trace<'_> {
    /// Calls `see` for each page that was written since the last call, ascending. A page that changes from now on is
    /// traced again.
    pub fn take(&self, see: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let marks = self.0;
        for first in (0..marks.groups()? * GROUP_PAGES).step_by(64) {
            let word = marks.map.atomic64(trace_word(first))?;
            if word.load(Ordering::Acquire) != 0 {
                bits_of(word.swap(0, Ordering::SeqCst)).try_for_each(|bit| see(first + bit))?;
            }
        }
        Ok(())
    }
}

impl Drop for Trace<'_> {
    fn drop(&mut self) {
        let _ = self.0.map.atomic64(TRACED).map(|word| word.store(0, Ordering::SeqCst));
    }
}

/// The bits that are set.
fn bits_of(mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()));
        bits &= bits.wrapping_sub(1);
        bit
    })
}

/// Where the word with a block's bits is.
#[inline]
fn block_word(set: u64, block: u64) -> u64 {
    let group = block / GROUP_BLOCKS;
    PARTS + group / SETS_TOGETHER * SETS_TOGETHER * PART + (group % SETS_TOGETHER * SETS + set) * 8
}

#[inline]
fn page_word(set: u64, page: u64) -> u64 {
    PARTS + page / GROUP_PAGES * PART + PAGES + set * (GROUP_PAGES / 8) + page % GROUP_PAGES / 64 * 8
}

#[inline(always)]
fn line_word(set: u64, page: u64) -> u64 {
    PARTS + page / GROUP_PAGES * PART + LINES + page % GROUP_PAGES * LINE_WORDS + set * 8
}

#[inline]
fn trace_word(page: u64) -> u64 {
    PARTS + page / GROUP_PAGES * PART + TRACE + page % GROUP_PAGES / 64 * 8
}

/// The pages of `len` bytes at `off`, at least one byte, each with the bits of its lines among them.
pub fn by_page(off: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = off + len - 1;
    (off / PAGE..=end / PAGE).map(move |page| {
        let first = off.max(page * PAGE) / LINE % 64;
        let last = end.min(page * PAGE + PAGE - 1) / LINE % 64;
        (page, (u64::MAX << first) & (u64::MAX >> (63 - last)))
    })
}
