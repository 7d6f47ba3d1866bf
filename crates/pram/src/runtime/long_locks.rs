//! The table of long locks: see [`session::long_lock`](crate::session).
//!
//! ```text
//! 0   a bit for each entry that counts
//! 64  entries: 0, or the session that has it + 1 (high 16 bits) and the key
//! ```
//! To take an entry, a process claims its word first and sets its bit second; to give it up, the other way round. So
//! only the owner of the word sets or clears the bit.

use std::sync::atomic::Ordering;

use super::Runtime;

/// Long locks that there can be at a time.
const ENTRIES: u32 = 64;
pub(super) const BYTES: u64 = 64 + ENTRIES as u64 * 8;
const KEY_BITS: u32 = 48;

impl Runtime {
    fn long_lock(&self, entry: u32) -> &std::sync::atomic::AtomicU64 {
        self.word(self.at.long_locks + 64 + u64::from(entry % ENTRIES) * 8)
    }

    /// Is there any long lock?
    #[inline(always)]
    pub(crate) fn any_long_lock(&self) -> bool {
        self.word(self.at.long_locks).load(Ordering::Relaxed) != 0
    }

    /// The entries that count: number, session, key.
    fn long_locks(&self) -> impl Iterator<Item = (u32, u32, u64)> + '_ {
        let taken = self.word(self.at.long_locks).load(Ordering::Acquire);
        (0..ENTRIES).filter(move |n| taken >> n & 1 == 1).filter_map(|n| {
            let word = self.long_lock(n).load(Ordering::Acquire);
            let session = ((word >> KEY_BITS) as u32).checked_sub(1)?;
            Some((n, session, word & ((1 << KEY_BITS) - 1)))
        })
    }

    /// Is `key` long locked? For the holder of its lock.
    pub(crate) fn is_long_locked(&self, key: u64) -> bool {
        self.holder_of_long_lock(key).is_some()
    }

    /// The session that has the long lock of `key`.
    pub(crate) fn holder_of_long_lock(&self, key: u64) -> Option<u32> {
        self.long_locks().find(|(_, _, k)| *k == key).map(|(_, session, _)| session)
    }

    /// An entry for `key`, which has none and whose lock the caller holds; `None` if all are taken.
    pub(crate) fn take_long_lock(&self, key: u64) -> Option<u32> {
        debug_assert!(key >> KEY_BITS == 0, "keys of long locks have 48 bits");
        let word = u64::from(self.me() + 1) << KEY_BITS | key;
        let claim = |n: &u32| self.long_lock(*n).compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let entry = (0..ENTRIES).find(claim)?;
        self.word(self.at.long_locks).fetch_or(1 << entry, Ordering::AcqRel);
        Some(entry)
    }

    pub(crate) fn give_up_long_lock(&self, entry: u32) {
        self.word(self.at.long_locks).fetch_and(!(1 << entry), Ordering::AcqRel);
        self.long_lock(entry).store(0, Ordering::Release);
    }

    /// Gives up the long locks of session `n`, whose process has died. Entries without a bit too: it may have died
    /// between the two steps.
    pub(crate) fn abandon_long_locks(&self, n: u32) {
        for entry in 0..ENTRIES {
            let word = self.long_lock(entry).load(Ordering::Acquire);
            if (word >> KEY_BITS) as u32 == n + 1 {
                self.give_up_long_lock(entry);
            }
        }
    }
}
