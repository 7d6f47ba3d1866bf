//! Who owns which segment of the heap, which are free, and which have room.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Runtime, H_FIRST_FREE};
use crate::heap::{Tag, CLASSES, TAGS};

impl Runtime {
    #[inline(always)]
    fn owner_word(&self, segment: u64) -> &AtomicU32 {
        self.half(self.at.owners + segment.min(self.segments - 1) * 4)
    }

    #[inline(always)]
    pub fn owner(&self, segment: u64) -> Option<u32> {
        self.owner_word(segment).load(Ordering::SeqCst).checked_sub(1)
    }

    pub fn own(&self, segment: u64, slot: u32) -> bool {
        self.owner_word(segment).compare_exchange(0, slot + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    pub fn disown(&self, segment: u64) {
        self.owner_word(segment).swap(0, Ordering::SeqCst);
    }

    #[inline(always)]
    pub(super) fn map_bit(&self, base: u64, segment: u64) -> (&AtomicU64, u64) {
        (self.word(base + segment / 64 * 8), 1 << (segment % 64))
    }

    fn partial_base(&self, tag: Tag, class: usize) -> u64 {
        self.at.partial + (usize::from(tag.0) % TAGS * CLASSES.len() + class) as u64 * self.at.map_bytes
    }

    #[inline(always)]
    pub fn add_partial(&self, tag: Tag, class: usize, segment: u64) {
        let (word, bit) = self.map_bit(self.partial_base(tag, class), segment);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    pub fn drop_partial(&self, tag: Tag, class: usize, segment: u64) {
        let (word, bit) = self.map_bit(self.partial_base(tag, class), segment);
        word.fetch_and(!bit, Ordering::AcqRel);
    }

    /// The first segment at or after `from` on the list of partly used ones.
    pub fn next_partial(&self, tag: Tag, class: usize, from: u64) -> Option<u64> {
        self.next_bit(self.partial_base(tag, class), from)
    }

    pub fn add_free(&self, segment: u64) {
        let (word, bit) = self.map_bit(self.at.free, segment);
        word.fetch_or(bit, Ordering::AcqRel);
        // Memory that has been touched is used again before fresh memory: a first touch costs the host
        // microseconds per page.
        self.header(H_FIRST_FREE).fetch_min(segment, Ordering::Relaxed);
    }

    /// Takes a segment off the free list; false if it is not on it.
    pub fn drop_free(&self, segment: u64) -> bool {
        let (word, bit) = self.map_bit(self.at.free, segment);
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// The first free segment at or after `from`.
    pub fn next_free(&self, from: u64) -> Option<u64> {
        self.next_bit(self.at.free, from)
    }

    /// Where to begin to look for a free segment: few or none are below. Low ones are used first, so that
    /// the end stays free for runs.
    pub fn first_free_hint(&self) -> u64 {
        self.header(H_FIRST_FREE).load(Ordering::Relaxed)
    }

    pub fn set_first_free_hint(&self, segment: u64) {
        self.header(H_FIRST_FREE).store(segment, Ordering::Relaxed);
    }

    fn next_bit(&self, base: u64, from: u64) -> Option<u64> {
        let mut mask = u64::MAX << (from % 64);
        for w in from / 64..self.segments.div_ceil(64) {
            let bits = self.word(base + w * 8).load(Ordering::Relaxed) & mask;
            if bits != 0 {
                return Some(w * 64 + u64::from(bits.trailing_zeros())).filter(|s| *s < self.segments);
            }
            mask = u64::MAX;
        }
        None
    }

    /// The highest `len` neighbouring free segments before `end`.
    pub fn free_window(&self, len: u64, end: u64) -> Option<u64> {
        let (mut at, mut found) = (end.min(self.segments), 0);
        while at > 0 && found < len {
            at -= 1;
            let (word, bit) = self.map_bit(self.at.free, at);
            let bits = word.load(Ordering::Relaxed);
            found = if bits & bit != 0 { found + 1 } else { 0 };
            if bits == 0 {
                at -= at % 64;
            }
        }
        (found >= len && len > 0).then_some(at)
    }

    /// The number of free segments.
    pub fn free_segments(&self) -> u64 {
        let words = (0..self.segments.div_ceil(64)).map(|w| self.word(self.at.free + w * 8).load(Ordering::Relaxed));
        words.map(|bits| u64::from(bits.count_ones())).sum()
    }
}
