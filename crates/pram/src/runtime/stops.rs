//! Marks that ask a guest to stop itself at the end of its call: see `session::stopped`.
//!
//! A mark in the record of a slot names one use of it: later uses are not meant. A mark in the record of a guest is meant for what the
//! guest has beside its slots.

use std::sync::atomic::Ordering;

use super::sessions::{FULL, S_PID, S_PID_NAMESPACE, S_STOP};
use super::Runtime;
use crate::clock::monotonic;

/// In the record of a slot: the use that is marked, and since when, nanoseconds of the monotonic clock.
const USE: u64 = 24;
const SINCE: u64 = 32;
/// A mark that is older than this does not count: what has set it may have died before it let the process go on, and then
/// it is somebody else who does.
const COUNTS: u64 = 2_000_000_000;
/// A mark of this age may be set again: the process has not gone on.
const AGAIN: u64 = 5_000_000;

fn is_within(since: u64, time: u64) -> bool {
    since != 0 && monotonic().saturating_sub(since) < time
}

impl Runtime {
    /// The process of guest `n`, and the namespace of its number.
    pub(crate) fn guest_process(&self, n: u32) -> Option<(u32, u64)> {
        let word = |field| self.session(n, field).load(Ordering::Acquire);
        (n >= FULL).then(|| (word(S_PID) as u32, word(S_PID_NAMESPACE)))
    }

    /// Marks this use of a slot; false if it has just been marked.
    pub(crate) fn mark_slot(&self, slot: u32, used: u64) -> bool {
        let [mark, since] = [USE, SINCE].map(|field| self.word(self.slot_at(slot) + field));
        let seen = since.load(Ordering::SeqCst);
        if mark.load(Ordering::SeqCst) == used && is_within(seen, AGAIN)
            || since.compare_exchange(seen, monotonic(), Ordering::SeqCst, Ordering::SeqCst).is_err()
        {
            return false;
        }
        mark.store(used, Ordering::SeqCst);
        true
    }

    pub(crate) fn unmark_slot(&self, slot: u32, used: u64) {
        let mark = self.word(self.slot_at(slot) + USE);
        let _ = mark.compare_exchange(used, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Is this use of a slot marked?
    #[inline(always)]
    pub(super) fn is_slot_marked(&self, slot_at: u64, used: u64) -> bool {
        self.word(slot_at + USE).load(Ordering::Relaxed) == used
    }

    /// Does the mark of a slot count that was found?
    pub(crate) fn does_mark_count(&self, slot: u32) -> bool {
        is_within(self.word(self.slot_at(slot) + SINCE).load(Ordering::SeqCst), COUNTS)
    }

    /// Marks guest `n`; false if it has just been marked.
    pub(crate) fn mark_guest(&self, n: u32) -> bool {
        let word = self.session(n, S_STOP);
        let seen = word.load(Ordering::SeqCst);
        !is_within(seen, AGAIN) && word.compare_exchange(seen, monotonic(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn unmark_guest(&self, n: u32) {
        self.session(n, S_STOP).store(0, Ordering::SeqCst);
    }

    /// Is this guest marked? Takes the mark away.
    pub(crate) fn take_mark(&self) -> bool {
        let word = self.session(self.me(), S_STOP);
        word.load(Ordering::SeqCst) != 0 && is_within(word.swap(0, Ordering::SeqCst), COUNTS)
    }
}

#[cfg(test)]
mod tests {
    use crate::Session;

    const SLOT: u32 = 3;

    #[test]
    fn a_mark_is_for_one_use_of_a_slot() {
        let session = Session::in_memory(8 << 20).expect("a session");
        let rt = session.runtime();
        assert!(rt.try_slot(SLOT));
        let (used, _) = rt.slot_state(SLOT);
        assert!(rt.mark_slot(SLOT, used) && rt.does_mark_count(SLOT));
        assert!(!rt.mark_slot(SLOT, used), "another one has just done so");
        assert!(rt.free_slot(SLOT));
        assert!(rt.try_slot(SLOT) && !rt.free_slot(SLOT), "it was meant for the use before");
        assert!(rt.try_slot(SLOT));
        let (used, _) = rt.slot_state(SLOT);
        assert!(rt.mark_slot(SLOT, used));
        rt.unmark_slot(SLOT, used);
        assert!(!rt.free_slot(SLOT), "it could not be sent a signal");
    }
}
