//! Numbers of a table of the layer above that its processes remember, and that a sweep frees.
//!
//! A process's copy of the table stays true as long as the *numbering* does not change. It is odd while a sweep looks
//! for unused numbers: meanwhile no process relies on remembered numbers, but each takes the table's lock and notes a
//! number that it takes up.

use std::sync::atomic::Ordering;

use super::{Runtime, H_CROWDED, H_NUMBERING};

/// Numbers are below this.
pub const NUMBERS: u64 = 1 << 19;

impl Runtime {
    /// The numbering that remembered numbers belong to; odd while a sweep is under way. The sweep waits for operations
    /// that have seen an even one before it frees anything.
    #[inline(always)]
    pub fn numbering(&self) -> u64 {
        self.header(H_NUMBERING).load(Ordering::SeqCst)
    }

    /// Makes all processes forget their numbers; for the process that froze the pool.
    pub fn renumber(&self) {
        self.header(H_NUMBERING).fetch_add(2, Ordering::SeqCst);
    }

    /// Notes numbers that are taken up from now on. For a process that has [begun a sweep](Self::start_sweep):
    /// [`drain`](crate::Session::drain) before looking for used numbers.
    pub fn begin_numbering(&self) {
        for word in 0..NUMBERS / 64 {
            self.word(self.at.noted + word * 8).store(0, Ordering::Relaxed);
        }
        self.header(H_CROWDED).store(0, Ordering::Relaxed);
        self.header(H_NUMBERING).fetch_or(1, Ordering::SeqCst);
    }

    pub fn end_numbering(&self) {
        let numbering = self.header(H_NUMBERING);
        numbering.store((numbering.load(Ordering::SeqCst) | 1) + 1, Ordering::SeqCst);
    }

    /// Notes that number `n` is about to be used. With the table's lock held.
    pub fn note_number(&self, n: u64) {
        let n = n.min(NUMBERS - 1);
        self.word(self.at.noted + n / 64 * 8).fetch_or(1 << (n % 64), Ordering::SeqCst);
    }

    /// Was number `n` taken up during this sweep? With the table's lock held.
    pub fn is_number_noted(&self, n: u64) -> bool {
        let n = n.min(NUMBERS - 1);
        self.word(self.at.noted + n / 64 * 8).load(Ordering::SeqCst) >> (n % 64) & 1 != 0
    }

    /// Notes that numbers are running out.
    pub fn set_crowded(&self) {
        self.header(H_CROWDED).store(1, Ordering::Relaxed);
    }

    pub fn is_crowded(&self) -> bool {
        self.header(H_CROWDED).load(Ordering::Relaxed) != 0
    }
}
