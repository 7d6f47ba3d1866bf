//! References: the objects that a process holds open, and the leaks that its death would leave.

use std::sync::atomic::Ordering;

use super::Session;
use crate::error::Result;
use crate::runtime::Runtime;

/// Work is under way that a sweep would have to end.
pub struct Unfinished<'a>(&'a Runtime);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.end_unfinished();
    }
}

impl Session {
    /// Takes `n` references to `key`.
    ///
    /// # Errors
    /// The host has no memory for them.
    #[inline]
    pub fn retain(&self, key: u64, n: u32) -> Result<()> {
        self.rt.take_reference(key)?.fetch_add(n, Ordering::SeqCst);
        Ok(())
    }

    /// Makes sure that there is memory for references to `key`: [`retain`](Self::retain) does not fail then.
    pub fn prepare_retain(&self, key: u64) -> Result<()> {
        self.rt.take_reference(key).map(drop)
    }

    /// Has this process references to `key`?
    pub fn holds(&self, key: u64) -> bool {
        self.rt.refs(self.rt.me(), key).is_some_and(|refs| refs.load(Ordering::Acquire) > 0)
    }

    /// Gives back `n` references; returns how many this process has left.
    #[inline]
    pub fn release(&self, key: u64, n: u32) -> u32 {
        let Some(refs) = self.rt.refs(self.rt.me(), key) else { return 0 };
        let mut now = refs.load(Ordering::Relaxed);
        loop {
            let left = now.saturating_sub(n);
            match refs.compare_exchange_weak(now, left, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return left,
                Err(seen) => now = seen,
            }
        }
    }

    /// Does any attached process hold a reference to `key`, when nothing else does? A sweep then follows its death.
    pub fn is_referenced(&self, key: u64) -> bool {
        let holds = |s: u32| self.rt.refs(s, key).is_some_and(|refs| refs.load(Ordering::SeqCst) > 0);
        let mut referenced = false;
        for s in self.rt.live().filter(|s| holds(*s)) {
            self.rt.set_holds_last(s);
            // The process may be dead and its cleanup may have looked before the mark: then its references are gone by now.
            referenced |= holds(s);
        }
        referenced
    }

    /// Notes that this process holds the last reference to an object, or is about to.
    pub fn note_last_reference(&self) {
        self.rt.set_holds_last(self.rt.me());
    }

    /// Until the result is dropped, a sweep follows the death of this process: for work that ends piece by piece, each
    /// in an operation of its own.
    pub fn unfinished(&self) -> Unfinished<'_> {
        self.rt.begin_unfinished();
        Unfinished(&self.rt)
    }
}
