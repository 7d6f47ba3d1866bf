//! References: the objects that each process holds open, by key.
//!
//! A page of them gets memory when a reference in it is first [taken](Runtime::take_reference), and keeps it as long as
//! the runtime file exists. A bit for each page says so; no process touches a page whose bit is not set, not even to
//! read: on a full host that is a signal.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::sessions::bits;
use super::{Runtime, COMMON};
use crate::error::Result;

/// Bits of a word beside the count, explained in [`delegation`](crate::delegation). A word with a count of 0 has none.
const RECALLED: u32 = 1 << 31;
const RECALLING: u32 = 1 << 30;
const CHANGED: u32 = 1 << 29;
const COUNT: u32 = CHANGED - 1;
/// A count that comes so far stays there until its session ends. A kernel takes a reference each time it looks up a name that
/// it may not cache, and gives them back only when it forgets the inode: no count may overflow.
const PINNED: u32 = 1 << 28;

/// The references of one session to one key.
#[derive(Clone, Copy)]
pub struct References<'r>(&'r AtomicU32);

/// May a session cache a key?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    /// It may.
    None,
    /// No more: it is about to forget what it has.
    Begun,
    /// No. `changed`: another process has changed the key since this was last noted.
    Done { changed: bool },
}

impl References<'_> {
    #[inline(always)]
    pub fn are_held(self) -> bool {
        self.0.load(Ordering::SeqCst) & COUNT > 0
    }

    #[inline(always)]
    pub(crate) fn add(self, n: u32) {
        if self.0.load(Ordering::Relaxed) & COUNT < PINNED {
            self.0.fetch_add(n.min(PINNED / 2), Ordering::SeqCst);
        }
    }

    /// Takes `n` away, at most all; returns how many are left.
    pub(crate) fn remove(self, n: u32) -> u32 {
        let mut left = 0;
        self.update(|word| {
            let count = word & COUNT;
            left = if count >= PINNED && n < u32::MAX { count } else { count.saturating_sub(n) };
            Some(if left == 0 { 0 } else { word & !COUNT | left })
        });
        left
    }

    pub(crate) fn recall(self) -> Recall {
        match self.0.load(Ordering::SeqCst) {
            word if word & RECALLED != 0 => Recall::Done { changed: word & CHANGED != 0 },
            word if word & RECALLING != 0 => Recall::Begun,
            _ => Recall::None,
        }
    }

    pub(crate) fn begin_recall(self) {
        self.update(|word| (word & COUNT > 0).then_some(word | RECALLING));
    }

    /// Nothing happens if the key was taken back meanwhile.
    pub(crate) fn end_recall(self) {
        self.update(|word| (word & RECALLING != 0).then_some(word & !RECALLING | RECALLED | CHANGED));
    }

    #[inline(always)]
    pub(crate) fn take_back(self) {
        if self.0.load(Ordering::Relaxed) & !COUNT != 0 {
            self.0.fetch_and(COUNT, Ordering::SeqCst);
        }
    }

    pub(crate) fn note_changes(self) {
        self.0.fetch_and(!CHANGED, Ordering::SeqCst);
    }

    /// Another process has changed the key. True if the session caches nothing of it: it has no reference, or the key is recalled.
    #[inline(always)]
    pub(crate) fn change(self) -> bool {
        self.update(|word| (word & COUNT > 0 && word & (RECALLED | CHANGED) == RECALLED).then_some(word | CHANGED));
        let word = self.0.load(Ordering::SeqCst);
        word & COUNT == 0 || word & RECALLED != 0
    }

    #[inline(always)]
    fn update(self, change: impl FnMut(u32) -> Option<u32>) {
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
    }
}

/// Bytes of references that have memory together, and how many they are.
const PAGE: u64 = 4096;
const IN_PAGE: u64 = PAGE / 4;

/// Bytes of the bits that say which pages of one session's references have memory.
pub(super) fn held_bytes(keys: u64) -> u64 {
    (keys.div_ceil(IN_PAGE).div_ceil(64) * 8).next_multiple_of(PAGE)
}

impl Runtime {
    pub fn keys(&self) -> u64 {
        self.keys
    }

    fn refs_base(&self, session: u32) -> u64 {
        self.at.refs + u64::from(session.min(COMMON)) * (self.keys * 4).next_multiple_of(4096)
    }

    fn held_base(&self, session: u32) -> u64 {
        self.at.held + u64::from(session.min(COMMON)) * held_bytes(self.keys)
    }

    /// The word and the bit that say whether the references to `key` have memory.
    #[inline(always)]
    fn held_bit(&self, session: u32, key: u64) -> (&AtomicU64, u64) {
        let page = key.min(self.keys - 1) / IN_PAGE;
        (self.word(self.held_base(session) + page / 64 * 8), 1 << (page % 64))
    }

    /// The number of references that `session`, which has entered, holds to `key`; none where there is no memory for any.
    #[inline(always)]
    pub fn refs(&self, session: u32, key: u64) -> Option<References<'_>> {
        let (word, bit) = self.held_bit(session, key);
        let at = self.refs_base(session) + key.min(self.keys - 1) * 4;
        (word.load(Ordering::Acquire) & bit != 0).then(|| References(self.half(at)))
    }

    /// Does `session`, which has entered, hold references to `key`?
    #[inline(always)]
    pub fn holds(&self, session: u32, key: u64) -> bool {
        self.refs(session, key).is_some_and(References::are_held)
    }

    /// The same, once there is memory for it.
    ///
    /// # Errors
    /// The host has none.
    #[inline(always)]
    pub fn take_reference(&self, key: u64) -> Result<References<'_>> {
        match self.refs(self.me(), key) {
            Some(refs) => Ok(refs),
            None => self.take_page(key),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_page(&self, key: u64) -> Result<References<'_>> {
        let at = self.refs_base(self.me()) + key.min(self.keys - 1) * 4;
        self.take(at / PAGE * PAGE..(at / PAGE + 1) * PAGE)?;
        let (word, bit) = self.held_bit(self.me(), key);
        word.fetch_or(bit, Ordering::AcqRel);
        Ok(References(self.half(at)))
    }

    /// Takes memory for the bits of session `n` that say which pages have some: before it enters.
    pub(crate) fn take_held(&self, n: u32) -> Result<()> {
        self.take(self.held_base(n)..self.held_base(n) + held_bytes(self.keys))
    }

    /// The first key of each page of references that has memory, in ascending order. The session has entered.
    fn held_pages(&self, session: u32) -> impl Iterator<Item = u64> + '_ {
        let base = self.held_base(session);
        let words = (0..held_bytes(self.keys) / 8).map(move |n| (n, self.word(base + n * 8).load(Ordering::Acquire)));
        words
            .filter(|(_, word)| *word != 0)
            .flat_map(|(n, word)| bits(word).map(move |bit| (n * 64 + u64::from(bit)) * IN_PAGE))
    }

    /// Does any session hold a reference to anything?
    pub fn any_reference(&self) -> Result<bool> {
        for n in self.full().chain(self.any_guest().then_some(COMMON)) {
            for key in self.held_pages(n) {
                if !self.map.is_zero(self.refs_base(n) + key * 4, PAGE)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The keys that `session` holds references to.
    pub fn referenced(&self, session: u32) -> Vec<u64> {
        if session >= COMMON {
            return self.referenced_by_guest(session);
        }
        let keys = self.held_pages(session).flat_map(|first| first..(first + IN_PAGE).min(self.keys));
        keys.filter(|key| self.holds(session, *key)).collect()
    }

    /// Drops all references of a session. Their memory stays: others may be looking at it.
    pub(crate) fn clear_refs(&self, session: u32) {
        if session >= COMMON {
            return self.clear_guest(session);
        }
        for key in self.held_pages(session) {
            let page = self.refs_base(session) + key * 4;
            self.map.zero(page, PAGE).expect("runtime offsets are computed within its size");
        }
    }
}
