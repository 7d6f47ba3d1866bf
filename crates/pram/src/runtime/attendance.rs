//! Who does the background work for guests.
//!
//! A *guest* is an attached process that does none: it starts no thread, commits nothing, writes nothing to disks. So it needs one that
//! does, the *attendant*: a word of the header names it. Any process that does background work may be the one; when it leaves or is
//! cleaned up after, another one is named, if there is one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{wait, wake, Runtime, H_ATTENDANT, H_ROOM_ASKED, H_ROOM_MADE};

/// Who attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attendant {
    Session(u32),
    /// It died, and another may come.
    Nobody,
    /// The last one has left.
    Left,
}

/// In the place of a session: the last one has left.
const LEFT: u64 = u32::MAX as u64;

impl Runtime {
    #[inline(always)]
    pub fn attendant(&self) -> Attendant {
        match self.header(H_ATTENDANT).load(Ordering::SeqCst) {
            0 => Attendant::Nobody,
            LEFT => Attendant::Left,
            n => Attendant::Session(n as u32 - 1),
        }
    }

    /// This process attends from now on, beside others.
    pub(crate) fn attend(&self) {
        self.set_attends(self.me(), true);
        let (word, me) = (self.header(H_ATTENDANT), u64::from(self.me()) + 1);
        for free in [0, LEFT] {
            let _ = word.compare_exchange(free, me, Ordering::SeqCst, Ordering::SeqCst);
        }
        wake(self.half(H_ATTENDANT));
    }

    /// Session `n` does not attend any more: it has died, or leaves. While the memory's file is locked.
    pub(crate) fn stop_attending(&self, n: u32, died: bool) {
        if !self.attends(n) {
            return;
        }
        self.set_attends(n, false);
        let none = if died { 0 } else { LEFT };
        let next = self.full().find(|other| self.attends(*other)).map_or(none, |other| u64::from(other) + 1);
        let (word, n) = (self.header(H_ATTENDANT), u64::from(n) + 1);
        let _ = word.compare_exchange(n, next, Ordering::SeqCst, Ordering::SeqCst);
        wake(self.half(H_ATTENDANT));
    }

    /// Waits for another attendant than nobody, at most so long.
    pub(crate) fn wait_for_attendant(&self, time: Duration) {
        wait(self.half(H_ATTENDANT), 0, time.as_nanos() as i64);
    }

    /// How often guests have asked for room.
    pub fn room_asked(&self) -> u64 {
        self.header(H_ROOM_ASKED).load(Ordering::SeqCst)
    }

    pub(crate) fn ask_for_room(&self) -> u64 {
        self.header(H_ROOM_ASKED).fetch_add(1, Ordering::SeqCst) + 1
    }

    /// All has been done for those who had asked so often.
    pub fn note_room_made(&self, asked: u64) {
        self.header(H_ROOM_MADE).fetch_max(asked, Ordering::SeqCst);
    }

    /// Has all been done for whoever asked as the `asked`th?
    pub(crate) fn is_room_made(&self, asked: u64) -> bool {
        self.header(H_ROOM_MADE).load(Ordering::SeqCst) >= asked
    }
}
