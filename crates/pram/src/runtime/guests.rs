//! The references and changes of guests, of which there may be thousands.
//!
//! Whoever asks whether anybody holds a key must not have to look at each of them. So all guests count together, in one more array of
//! references ([`COMMON`]) and one set of changes; and each of them for itself, in a small table, so that the others can take its part
//! back when it dies.
//!
//! ```text
//! table of a guest: words of a key (44 bits) and how often it is held (20 bits); so many as its record says
//! ```
//! Ordered steps of taking: 1. the common count; 2. the guest's own. Of giving back: the other way round. Who dies in between leaves a
//! reference that nobody has, until no guest is attached any more; the other order would take away another guest's.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::sessions::{CHANGING, S_ENTRIES};
use super::{Runtime, COMMON, H_CHANGING, H_HOLD_LAST};
use crate::error::{Error, Result};

/// Keys that a guest can hold at a time.
pub const ENTRIES: u32 = 1 << 16;
/// Bytes of a table.
pub(super) const TABLE: u64 = ENTRIES as u64 * 8;
/// Entries that have memory together.
const IN_PAGE: u32 = 512;
const COUNT_BITS: u32 = 20;
const MOST: u64 = (1 << COUNT_BITS) - 1;

/// The key and count of an entry.
fn parts(entry: u64) -> (u64, u32) {
    (entry >> COUNT_BITS, (entry & MOST) as u32)
}

impl Runtime {
    fn entries(&self, guest: u32) -> &AtomicU64 {
        self.session(guest, S_ENTRIES)
    }

    fn entry(&self, guest: u32, n: u32) -> &AtomicU64 {
        self.word(self.at.tables + u64::from(guest.saturating_sub(COMMON)) * TABLE + u64::from(n % ENTRIES) * 8)
    }

    /// Makes `n` the next entry of this process, a guest.
    ///
    /// # Errors
    /// The host has no memory for it, or the table is full.
    pub(crate) fn take_entry(&self, n: u32) -> Result<()> {
        if n >= ENTRIES {
            let what = format!("a guest holds {ENTRIES} files at most");
            return Err(Error::Host { what, errno: rustix::io::Errno::NFILE });
        }
        if n % IN_PAGE == 0 {
            let at = self.at.tables + u64::from(self.me() - COMMON) * TABLE + u64::from(n) * 8;
            self.take(at..at + u64::from(IN_PAGE) * 8)?;
        }
        self.entry(self.me(), n).store(0, Ordering::Relaxed);
        self.entries(self.me()).store(u64::from(n) + 1, Ordering::Release);
        Ok(())
    }

    /// What entry `n` of this process says from now on.
    pub(crate) fn set_entry(&self, n: u32, key: u64, count: u32) {
        self.entry(self.me(), n).store(key << COUNT_BITS | u64::from(count), Ordering::SeqCst);
    }

    /// Can a guest hold a key so often?
    pub(crate) fn fits_entry(count: u64) -> bool {
        count <= MOST
    }

    /// The keys that a guest holds.
    pub(super) fn referenced_by_guest(&self, guest: u32) -> Vec<u64> {
        let entries = (0..self.entries(guest).load(Ordering::Acquire) as u32).map(|n| self.entry(guest, n));
        entries.map(|entry| parts(entry.load(Ordering::SeqCst))).filter(|(_, n)| *n > 0).map(|(key, _)| key).collect()
    }

    /// Takes back what a guest holds.
    pub(super) fn clear_guest(&self, guest: u32) {
        for n in 0..self.entries(guest).load(Ordering::Acquire) as u32 {
            let (key, count) = parts(self.entry(guest, n).swap(0, Ordering::SeqCst));
            if let Some(refs) = self.refs(COMMON, key).filter(|_| count > 0) {
                refs.remove(count);
            }
        }
        self.entries(guest).store(0, Ordering::Release);
    }

    /// The last name of something that guests hold was removed.
    pub(crate) fn note_guests_hold_last(&self) {
        self.header(H_HOLD_LAST).store(1, Ordering::SeqCst);
    }

    pub(super) fn guests_hold_last(&self) -> bool {
        self.header(H_HOLD_LAST).load(Ordering::SeqCst) != 0
    }

    /// No guest is attached any more: what those who died have left in the common counts goes.
    pub(super) fn forget_guests(&self) {
        self.header(H_HOLD_LAST).store(0, Ordering::SeqCst);
        (0..CHANGING).for_each(|key| self.changing_together(key).store(0, Ordering::SeqCst));
    }

    fn changing_together(&self, key: u64) -> &AtomicU32 {
        self.half(H_CHANGING + key % CHANGING * 4)
    }

    /// This process is about to change what has this key.
    pub(crate) fn begin_change(&self, key: u64) {
        if self.me() >= COMMON {
            self.changing_together(key).fetch_add(1, Ordering::SeqCst);
        }
        self.changing(self.me(), key).fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn end_change(&self, key: u64) {
        self.changing(self.me(), key).fetch_sub(1, Ordering::SeqCst);
        if self.me() >= COMMON {
            self.changing_together(key).fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Does another process than this, which is no guest, change what has this key, or one like it?
    #[inline(always)]
    pub(crate) fn is_changing(&self, key: u64) -> bool {
        self.changing_together(key).load(Ordering::SeqCst) != 0
            || self.full().any(|n| n != self.me() && self.changing(n, key).load(Ordering::SeqCst) != 0)
    }

    /// Does anybody change what has this key, or one like it, beside the `own` changes that this thread has announced?
    #[inline(always)]
    pub(crate) fn is_changing_beside(&self, key: u64, own: u32) -> bool {
        let (me, is_guest) = (self.me(), self.me() >= COMMON);
        self.changing_together(key).load(Ordering::SeqCst) > if is_guest { own } else { 0 }
            || self.full().any(|n| self.changing(n, key).load(Ordering::SeqCst) > if n == me { own } else { 0 })
    }

    /// Session `n` changes nothing.
    pub(super) fn clear_changing(&self, n: u32) {
        for key in 0..CHANGING {
            let left = self.changing(n, key).swap(0, Ordering::SeqCst);
            if left > 0 && n >= COMMON {
                self.changing_together(key).fetch_sub(left, Ordering::SeqCst);
            }
        }
    }
}
