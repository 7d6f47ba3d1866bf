//! Chunks of the heap: their owners, and which are free, have no memory, or have room.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{
    wake, Runtime, CURRENTS, H_ABSENT, H_DEMAND, H_FIRST_FREE, H_GROUPS, H_HOST_FULL, H_NO_RUN, H_RING, H_SPARE,
    H_SUPPLIER, H_SUPPLY_WAKEUP, H_SWEEPING, H_WANTED, NEW,
};
use crate::error::Result;
use crate::memory::{Tag, BLOCKS, CLASSES, PER_CHUNK, PER_GROUP, TAGS};

/// Bytes of the bits of a group's chunks.
pub(super) const BITS: u64 = PER_GROUP / 8;
// Where the parts of a group are in its part.
const FREE: u64 = PER_GROUP * 4;
const ABSENT: u64 = FREE + BITS;
const PARTIAL: u64 = ABSENT + BITS;
pub(super) const BLOCK_MAPS: u64 = PARTIAL + CURRENTS * BITS;
/// Maps of blocks.
const MAPS: u64 = 4;
/// Bytes of a group's pins, and as many of its blocks' uses.
pub(super) const PINS: u64 = PER_GROUP * PER_CHUNK;
/// Bytes for each group.
pub(super) const PART: u64 = (BLOCK_MAPS + MAPS * BITS + 2 * PINS).next_multiple_of(4096);

/// Free chunks below which memory is taken before the next operation.
pub(crate) const LOW: u64 = 32;

/// The value of a counter of free chunks: a chunk is counted after it is listed, so a quick taker is counted first, and
/// the counter is below zero until then.
fn counted(n: u64) -> u64 {
    (n as i64).max(0) as u64
}

impl Runtime {
    /// The beginning of the part of a chunk's group.
    #[inline(always)]
    pub(super) fn part(&self, chunk: u64) -> u64 {
        self.at.groups + chunk / PER_GROUP * PART
    }

    #[inline(always)]
    fn owner_word(&self, chunk: u64) -> &AtomicU32 {
        self.half(self.part(chunk) + chunk % PER_GROUP * 4)
    }

    #[inline(always)]
    pub fn owner(&self, chunk: u64) -> Option<u32> {
        self.owner_word(chunk).load(Ordering::SeqCst).checked_sub(1)
    }

    pub fn own(&self, chunk: u64, slot: u32) -> bool {
        self.owner_word(chunk).compare_exchange(0, slot + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    pub fn disown(&self, chunk: u64) {
        self.owner_word(chunk).swap(0, Ordering::SeqCst);
    }

    /// The bit of a chunk in the map that is at `within` in each group's part.
    #[inline(always)]
    pub(super) fn map_bit(&self, within: u64, chunk: u64) -> (&AtomicU64, u64) {
        (self.word(self.part(chunk) + within + chunk % PER_GROUP / 64 * 8), 1 << (chunk % 64))
    }

    fn partial(tag: Tag, class: usize) -> u64 {
        PARTIAL + (usize::from(tag.0) % TAGS * CLASSES.len() + class) as u64 * BITS
    }

    #[inline(always)]
    pub fn add_partial(&self, tag: Tag, class: usize, chunk: u64) {
        let (word, bit) = self.map_bit(Self::partial(tag, class), chunk);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::AcqRel);
            if tag == BLOCKS {
                self.lower_block_hint(chunk);
            }
        }
    }

    pub fn drop_partial(&self, tag: Tag, class: usize, chunk: u64) {
        let (word, bit) = self.map_bit(Self::partial(tag, class), chunk);
        word.fetch_and(!bit, Ordering::AcqRel);
    }

    /// The first chunk at or after `from` on the list of partly used ones.
    pub fn next_partial(&self, tag: Tag, class: usize, from: u64) -> Option<u64> {
        self.next_bit(Self::partial(tag, class), from)
    }

    pub fn add_free(&self, chunk: u64) {
        let (word, bit) = self.map_bit(FREE, chunk);
        if word.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.header(H_SPARE).fetch_add(1, Ordering::Relaxed);
        }
        // Memory that has been touched is used again before fresh memory: a first touch costs the host
        // microseconds per page.
        self.header(H_FIRST_FREE).fetch_min(chunk, Ordering::Relaxed);
    }

    /// Takes a chunk off the free list; false if it is not on it.
    pub fn drop_free(&self, chunk: u64) -> bool {
        let (word, bit) = self.map_bit(FREE, chunk);
        let was = word.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
        if was {
            let spare = counted(self.header(H_SPARE).fetch_sub(1, Ordering::Relaxed));
            if spare <= self.header(H_RING).load(Ordering::Relaxed).max(LOW) {
                self.is_getting_short(spare);
            }
        }
        was
    }

    /// Has memory taken: by the maintenance thread in time, or else before the next operation.
    #[cold]
    #[inline(never)]
    fn is_getting_short(&self, spare: u64) {
        if self.absent() == 0 {
            return;
        }
        if spare <= LOW {
            self.header(H_DEMAND).store(1, Ordering::Relaxed);
        }
        if self.header(H_RING).swap(0, Ordering::Relaxed) != 0 {
            self.supply_wakeup().fetch_add(1, Ordering::SeqCst);
            wake(self.supply_wakeup());
        }
    }

    /// From now on the maintenance thread is woken when fewer than `spare` chunks are free.
    pub(crate) fn ring_below(&self, spare: u64) {
        self.header(H_RING).store(spare, Ordering::Relaxed);
    }

    /// The first free chunk at or after `from`.
    pub fn next_free(&self, from: u64) -> Option<u64> {
        self.next_bit(FREE, from)
    }

    /// Where to begin to look for a free chunk: few or none are below. Low ones are used first, so that
    /// the end stays free for runs.
    pub fn first_free_hint(&self) -> u64 {
        self.header(H_FIRST_FREE).load(Ordering::Relaxed)
    }

    pub fn set_first_free_hint(&self, chunk: u64) {
        self.header(H_FIRST_FREE).store(chunk, Ordering::Relaxed);
    }

    pub(super) fn next_bit(&self, within: u64, from: u64) -> Option<u64> {
        let (mut mask, mut n, end) = (u64::MAX << (from % 64), from / 64 * 64, self.groups() * PER_GROUP);
        while n < end {
            let bits = self.map_bit(within, n).0.load(Ordering::Relaxed) & mask;
            if bits != 0 {
                return Some(n + u64::from(bits.trailing_zeros()));
            }
            (mask, n) = (u64::MAX, n + 64);
        }
        None
    }

    /// The highest `len` neighbouring free chunks before `end`.
    pub fn free_window(&self, len: u64, end: u64) -> Option<u64> {
        let (mut at, mut found) = (end.min(self.groups() * PER_GROUP), 0);
        while at > 0 && found < len {
            at -= 1;
            let (word, bit) = self.map_bit(FREE, at);
            let bits = word.load(Ordering::Relaxed);
            found = if bits & bit != 0 { found + 1 } else { 0 };
            if bits == 0 {
                at -= at % 64;
            }
        }
        (found >= len && len > 0).then_some(at)
    }

    pub fn free_chunks(&self) -> u64 {
        let words = (0..self.groups() * PER_GROUP).step_by(64);
        words.map(|n| u64::from(self.map_bit(FREE, n).0.load(Ordering::Relaxed).count_ones())).sum()
    }

    // Memory.

    /// Groups that there are parts for.
    #[inline]
    pub(crate) fn groups(&self) -> u64 {
        self.header(H_GROUPS).load(Ordering::SeqCst)
    }

    /// Takes memory for the parts of the first `n` groups.
    pub(crate) fn take_groups(&self, n: u64) -> Result<()> {
        let old = self.groups();
        if n > old {
            self.take(self.at.groups + old * PART..self.at.groups + n * PART)?;
            self.header(H_GROUPS).store(n, Ordering::SeqCst);
        }
        // A process that begins a sweep reads the number of groups afterwards.
        if self.header(H_SWEEPING).load(Ordering::SeqCst) != 0 {
            self.take(self.at.new..self.at.new + n * NEW)?;
        }
        Ok(())
    }

    pub(crate) fn add_absent(&self, chunk: u64) {
        let (word, bit) = self.map_bit(ABSENT, chunk);
        word.fetch_or(bit, Ordering::AcqRel);
    }

    /// Takes a chunk off the list of those without memory; false if it is not on it.
    pub(crate) fn drop_absent(&self, chunk: u64) -> bool {
        let (word, bit) = self.map_bit(ABSENT, chunk);
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// The first chunks without memory at or after `from`: where they begin, and how many there are, at most `most`.
    pub(crate) fn next_absent(&self, from: u64, most: u64) -> Option<(u64, u64)> {
        let first = self.next_bit(ABSENT, from)?;
        let is_absent = |n: &u64| {
            let (word, bit) = self.map_bit(ABSENT, *n);
            word.load(Ordering::Relaxed) & bit != 0
        };
        let end = (first + most).min((first / PER_GROUP + 1) * PER_GROUP);
        Some((first, (first..end).take_while(is_absent).count() as u64))
    }

    /// The first `len` neighbouring chunks that are free or have no memory.
    pub(crate) fn window(&self, len: u64) -> Option<u64> {
        let mut found = 0;
        for first in (0..self.groups() * PER_GROUP).step_by(64) {
            let bits = [FREE, ABSENT].map(|map| self.map_bit(map, first).0.load(Ordering::Relaxed));
            for n in 0..64 {
                found = if (bits[0] | bits[1]) >> n & 1 == 1 { found + 1 } else { 0 };
                if found == len {
                    return Some(first + n + 1 - len);
                }
            }
        }
        None
    }

    /// Chunks without memory, in a memory of the size that was set.
    pub fn absent(&self) -> u64 {
        self.header(H_ABSENT).load(Ordering::SeqCst)
    }

    pub(crate) fn set_absent(&self, n: u64) {
        self.header(H_ABSENT).store(n, Ordering::SeqCst);
        self.header(H_NO_RUN).store(0, Ordering::SeqCst);
    }

    /// Adds `more`, perhaps negative, to the chunks without memory.
    pub(crate) fn count_absent(&self, more: i64) {
        self.header(H_ABSENT).fetch_add(more as u64, Ordering::SeqCst);
    }

    /// Counts the free chunks anew: a process that died may have left the number wrong.
    pub(crate) fn count_spare(&self) -> u64 {
        let n = self.free_chunks();
        self.header(H_SPARE).store(n, Ordering::Relaxed);
        n
    }

    /// Free chunks, about.
    pub fn spare(&self) -> u64 {
        counted(self.header(H_SPARE).load(Ordering::Relaxed))
    }

    /// Is memory to be taken before the next operation?
    #[inline(always)]
    pub(crate) fn is_demanded(&self) -> bool {
        self.header(H_DEMAND).load(Ordering::Relaxed) != 0
    }

    pub(crate) fn end_demand(&self) {
        self.header(H_DEMAND).store(0, Ordering::Relaxed);
    }

    /// The session that takes memory or gives it back, + 1.
    pub(crate) fn supplier(&self) -> &AtomicU64 {
        self.header(H_SUPPLIER)
    }

    /// The longest run of chunks that an operation needs.
    pub(crate) fn wanted(&self) -> &AtomicU64 {
        self.header(H_WANTED)
    }

    /// Taking memory gives no run of so many chunks; 0: unknown.
    pub(crate) fn no_run(&self) -> &AtomicU64 {
        self.header(H_NO_RUN)
    }

    /// The host is asked for memory again from this instant of the monotonic clock on.
    pub(crate) fn host_full(&self) -> &AtomicU64 {
        self.header(H_HOST_FULL)
    }

    /// Wakes the maintenance thread to take memory.
    pub(crate) fn supply_wakeup(&self) -> &AtomicU32 {
        self.half(H_SUPPLY_WAKEUP)
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn what_was_taken_before_it_was_counted_is_not_many() {
        assert_eq!([2, 1, 0, u64::MAX, u64::MAX - 1].map(counted), [2, 1, 0, 0, 0]);
    }
}
