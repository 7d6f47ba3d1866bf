//! The attached processes: their identity, their terms, the terms that others ask of them, and their changes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Runtime, HEADER, H_LIVE, H_WATCHER, LIVE};
use crate::error::Result;

/// Most processes attached at a time: that do background work, and with guests.
pub const FULL: u32 = 64;
pub const SESSIONS: u32 = 4096;
/// The number of the first guest; in the place of a session: all guests together.
pub const COMMON: u32 = FULL;
/// The state of a session: that it is taken, and that it attends.
const TAKEN: u64 = 1;
const ATTENDS: u64 = 2;
/// Where the records of guests begin, which get memory by pages, and bytes of each.
pub(super) const GUESTS_AT: u64 = (HEADER + FULL as u64 * SESSION_REC).next_multiple_of(4096);
pub(super) const GUEST_REC: u64 = 2048;
/// Of a guest: entries of its table. Behind what all records have.
pub(super) const S_ENTRIES: u64 = SESSION_REC;
/// The namespace of its process's number, 0: unknown; and its mark: see `stops`.
pub(super) const S_PID_NAMESPACE: u64 = S_ENTRIES + 8;
pub(super) const S_STOP: u64 = S_ENTRIES + 16;
const _: () = assert!(S_STOP + 8 <= GUEST_REC && SESSIONS % 64 == 0);
/// Bytes per session record: state, pid, role and other words, counts, then a label.
pub(crate) const SESSION_REC: u64 = 1792;
const S_STATE: u64 = 0;
pub(super) const S_PID: u64 = 8;
const S_ROLE: u64 = 16;
/// What the process's death would leave beside its slots: how many things it is in the middle of (4 bytes), and whether
/// its references alone hold anything (4 bytes).
const S_UNFINISHED: u64 = 24;
const S_HOLDS_LAST: u64 = 28;
pub(crate) const S_CURSOR: u64 = 32;
pub(crate) const S_CURSOR_WAKEUP: u64 = 40;
/// The terms that the process observes, defined by the layer above, and those that it is asked to observe.
const S_TERMS: u64 = 48;
const S_ASKED: u64 = 56;
/// The cursor of this watcher, + 1, when publishers stopped waiting for it.
pub(crate) const S_LEFT: u64 = 64;
/// The process has begun transfers; perhaps some are still under way.
const S_PINNED: u64 = 72;
/// The number of changes under way without notification to the watcher, by key modulo [`CHANGING`]: 4 bytes each.
const S_CHANGING: u64 = 80;
pub(super) const CHANGING: u64 = 256;
/// Counters of the process, for others to read: the layer above defines each word.
const S_COUNTS: u64 = S_CHANGING + CHANGING * 4;
/// Counters of a process.
pub const COUNTS: usize = 32;
/// The epoch from which on the layer above is to keep blocks that are given up, since this process needs them, + 1.
const S_NEEDS: u64 = S_COUNTS + COUNTS as u64 * 8;
const S_LABEL: u64 = S_NEEDS + 8;
pub const LABEL: usize = (SESSION_REC - S_LABEL) as usize;

/// An attached process, as the runtime file describes it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    pub index: u32,
    pub pid: u32,
    pub role: u64,
    /// The terms that it observes, defined by the layer above; 0: none yet.
    pub terms: u64,
    /// Its counters, since it attached.
    pub counts: [u64; COUNTS],
    pub label: Vec<u8>,
}

impl SessionInfo {
    /// Where the bits are in the runtime file that say which sessions there are.
    pub(crate) const LIVE: std::ops::Range<u64> = LIVE..LIVE + SESSIONS as u64 / 8;

    /// Where the record of session `n` is.
    #[inline(always)]
    pub(crate) fn at(n: u32) -> u64 {
        match n.checked_sub(FULL) {
            None => HEADER + u64::from(n) * SESSION_REC,
            Some(guest) => GUESTS_AT + u64::from(guest.min(SESSIONS - FULL - 1)) * GUEST_REC,
        }
    }

    /// From the record of session `index`, if it is taken.
    pub(crate) fn parse(index: u32, record: &[u8]) -> Option<SessionInfo> {
        let word = |at: u64| record.get(at as usize..at as usize + 8)?.try_into().ok().map(u64::from_le_bytes);
        let label = record.get(S_LABEL as usize..)?;
        let label = &label[..label.iter().position(|b| *b == 0).unwrap_or(label.len())];
        (word(S_STATE)? != 0).then_some(SessionInfo {
            index,
            pid: word(S_PID)? as u32,
            role: word(S_ROLE)?,
            terms: word(S_TERMS)?,
            counts: std::array::from_fn(|n| word(S_COUNTS + n as u64 * 8).unwrap_or(0)),
            label: label.into(),
        })
    }
}

impl Runtime {
    pub(crate) fn session(&self, n: u32, field: u64) -> &AtomicU64 {
        self.word(SessionInfo::at(n) + field)
    }

    pub(crate) fn session_half(&self, n: u32, field: u64) -> &AtomicU32 {
        self.half(SessionInfo::at(n) + field)
    }

    pub fn session_taken(&self, n: u32) -> bool {
        let (word, bit) = self.live_bit(n);
        word.load(Ordering::SeqCst) & bit != 0
    }

    /// Does session `n` do background work for others?
    pub(super) fn attends(&self, n: u32) -> bool {
        self.session(n, S_STATE).load(Ordering::Acquire) & ATTENDS != 0
    }

    pub(super) fn set_attends(&self, n: u32, yes: bool) {
        match yes {
            true => self.session(n, S_STATE).fetch_or(ATTENDS, Ordering::AcqRel),
            false => self.session(n, S_STATE).fetch_and(!ATTENDS, Ordering::AcqRel),
        };
    }

    /// `pid_namespace`: of a guest.
    pub(crate) fn enter_session(&self, n: u32, role: u64, label: &[u8], pid_namespace: u64) {
        self.label_session(n, label);
        self.session(n, S_PID).store(u64::from(std::process::id()), Ordering::Relaxed);
        self.session(n, S_ROLE).store(role, Ordering::Relaxed);
        self.session(n, S_TERMS).store(0, Ordering::Relaxed);
        self.session(n, S_ASKED).store(0, Ordering::Relaxed);
        self.session(n, S_LEFT).store(0, Ordering::Relaxed);
        self.session_half(n, S_UNFINISHED).store(0, Ordering::Relaxed);
        self.session_half(n, S_HOLDS_LAST).store(0, Ordering::Relaxed);
        self.session(n, S_NEEDS).store(0, Ordering::Relaxed);
        self.clear_changing(n);
        if n < FULL {
            self.clear_reports(n);
        } else {
            self.session(n, S_PID_NAMESPACE).store(pid_namespace, Ordering::Relaxed);
            self.session(n, S_STOP).store(0, Ordering::Relaxed);
        }
        (0..COUNTS).for_each(|count| self.session(n, S_COUNTS + count as u64 * 8).store(0, Ordering::Relaxed));
        self.session(n, S_STATE).store(TAKEN, Ordering::Release);
        let (word, bit) = self.live_bit(n);
        word.fetch_or(bit, Ordering::SeqCst);
        self.header(H_LIVE).fetch_or(1 << (n / 64), Ordering::SeqCst);
        self.me.store(n, Ordering::Relaxed);
    }

    fn label_session(&self, n: u32, label: &[u8]) {
        let mut text = [0u8; LABEL];
        let len = label.len().min(LABEL);
        text[..len].copy_from_slice(&label[..len]);
        let at = SessionInfo::at(n) + S_LABEL;
        self.map.write(at, &text).expect("in bounds");
    }

    /// Replaces the label that this process attached with.
    pub fn set_label(&self, label: &[u8]) {
        self.label_session(self.me(), label);
    }

    pub fn set_role(&self, role: u64) {
        self.session(self.me(), S_ROLE).store(role, Ordering::Release);
    }

    pub(crate) fn leave_session(&self, n: u32) {
        // The session may have died watching, or attending.
        self.end_watch(n);
        self.stop_attending(n, true);
        self.abandon_backing(n);
        self.clear_changing(n);
        self.session(n, S_NEEDS).store(0, Ordering::SeqCst);
        self.session(n, S_STATE).store(0, Ordering::Release);
        let (word, bit) = self.live_bit(n);
        // Under the lock of those who come and go.
        if word.fetch_and(!bit, Ordering::SeqCst) & !bit == 0 {
            self.header(H_LIVE).fetch_and(!(1 << (n / 64)), Ordering::SeqCst);
        }
        if n >= COMMON && !self.any_guest() {
            self.forget_guests();
        }
    }

    /// This process begins something that a sweep would have to end if it died, also between operations.
    pub(crate) fn begin_unfinished(&self) {
        self.session_half(self.me(), S_UNFINISHED).fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn end_unfinished(&self) {
        self.session_half(self.me(), S_UNFINISHED).fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn is_unfinished(&self, n: u32) -> bool {
        self.session_half(n, S_UNFINISHED).load(Ordering::SeqCst) > 0
    }

    /// The references of session `n` alone hold something.
    pub(crate) fn set_holds_last(&self, n: u32) {
        self.session_half(n, S_HOLDS_LAST).store(1, Ordering::SeqCst);
    }

    pub(super) fn holds_last(&self, n: u32) -> bool {
        self.session_half(n, S_HOLDS_LAST).load(Ordering::SeqCst) != 0
    }

    /// Has session `n` begun transfers? Not 0 even after it has left, until they are known to have ended.
    pub(crate) fn pinned(&self, n: u32) -> &AtomicU64 {
        self.session(n, S_PINNED)
    }

    /// The number of changes of this key, or of one like it, that session `n` makes without having notified the watcher
    /// yet.
    #[inline(always)]
    pub(crate) fn changing(&self, n: u32, key: u64) -> &AtomicU32 {
        self.session_half(n, S_CHANGING + key % CHANGING * 4)
    }

    /// Do changes of these two keys count as one?
    #[inline(always)]
    pub(crate) fn are_announced_as_one(one: u64, other: u64) -> bool {
        one % CHANGING == other % CHANGING
    }

    /// A counter of this process, which others read: to be changed without order.
    ///
    /// # Panics
    /// If there is no counter `n`.
    #[inline]
    pub fn session_count(&self, n: usize) -> &AtomicU64 {
        assert!(n < COUNTS);
        self.session(self.me(), S_COUNTS + n as u64 * 8)
    }

    /// The sum of these counters of all processes.
    pub fn sum_of_counts(&self, which: &[usize]) -> u64 {
        let count = |n, which: usize| self.session(n, S_COUNTS + which as u64 * 8).load(Ordering::Relaxed);
        let known = |n| which.iter().filter(|which| **which < COUNTS).map(move |which| count(n, *which));
        self.live().flat_map(known).fold(0, u64::wrapping_add)
    }

    /// This process needs what is given up in this epoch and in later ones: it is kept as long as others can do without
    /// the room.
    pub fn need_from(&self, epoch: Option<u64>) {
        self.session(self.me(), S_NEEDS).store(epoch.map_or(0, |epoch| epoch + 1), Ordering::SeqCst);
    }

    /// Is the need of this process still declared, so that nothing was dropped?
    pub fn has_declared_need(&self) -> bool {
        self.session(self.me(), S_NEEDS).load(Ordering::SeqCst) != 0
    }

    /// The first epoch that any process declares a need from.
    pub fn needed_from(&self) -> Option<u64> {
        self.full().filter_map(|n| self.session(n, S_NEEDS).load(Ordering::SeqCst).checked_sub(1)).min()
    }

    /// Ends the needs of all processes: the room is wanted.
    pub fn take_needed(&self) {
        self.full().for_each(|n| self.session(n, S_NEEDS).store(0, Ordering::SeqCst));
    }

    /// The word and the bit that say whether a session is taken.
    #[inline(always)]
    fn live_bit(&self, n: u32) -> (&AtomicU64, u64) {
        let n = n.min(SESSIONS - 1);
        (self.word(LIVE + u64::from(n / 64) * 8), 1 << (n % 64))
    }

    /// Numbers of the sessions that are taken.
    pub fn live(&self) -> impl Iterator<Item = u32> + '_ {
        let words = bits(self.header(H_LIVE).load(Ordering::SeqCst));
        words.flat_map(|word| {
            bits(self.word(LIVE + u64::from(word) * 8).load(Ordering::SeqCst)).map(move |bit| word * 64 + bit)
        })
    }

    /// The same without guests.
    #[inline(always)]
    pub fn full(&self) -> impl Iterator<Item = u32> {
        bits(self.word(LIVE).load(Ordering::SeqCst))
    }

    /// Is any guest attached?
    pub fn any_guest(&self) -> bool {
        self.header(H_LIVE).load(Ordering::SeqCst) & !1 != 0
    }

    /// Is any process attached but this one?
    pub fn any_other(&self) -> bool {
        self.live().any(|n| n != self.me())
    }

    /// Takes memory for the record of session `n`, before it enters.
    pub(crate) fn take_record(&self, n: u32) -> Result<()> {
        let at = SessionInfo::at(n) / 4096 * 4096;
        if n < FULL {
            return Ok(());
        }
        self.take(at..at + 4096)
    }

    /// Sets the terms that this process observes: a word of the layer above, not 0.
    pub fn set_terms(&self, terms: u64) {
        self.session(self.me(), S_TERMS).store(terms, Ordering::Release);
    }

    /// Asks session `n` to observe other terms.
    pub fn ask(&self, n: u32, terms: u64) {
        self.session(n, S_ASKED).store(terms, Ordering::Release);
    }

    /// Is session `n` still asked for these terms?
    pub fn is_asked(&self, n: u32, terms: u64) -> bool {
        self.session(n, S_ASKED).load(Ordering::Acquire) == terms
    }

    /// Withdraws the request for these terms, unless the session has heeded it.
    pub fn withdraw(&self, n: u32, terms: u64) {
        let _ = self.session(n, S_ASKED).compare_exchange(terms, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The terms that this process is asked to observe.
    pub fn asked(&self) -> Option<u64> {
        Some(self.session(self.me(), S_ASKED).load(Ordering::Acquire)).filter(|terms| *terms != 0)
    }

    /// Ends the request for these terms: this process observes them now.
    pub fn heeded(&self, terms: u64) {
        self.withdraw(self.me(), terms);
    }

    /// The session that watches.
    #[inline(always)]
    pub fn watcher(&self) -> Option<u32> {
        (self.header(H_WATCHER).load(Ordering::Acquire) as u32).checked_sub(1)
    }

    /// Makes session `n` the watcher; false if there is one already.
    pub(crate) fn begin_watch(&self, n: u32) -> bool {
        let word = self.header(H_WATCHER);
        word.compare_exchange(0, u64::from(n) + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn end_watch(&self, n: u32) {
        let word = self.header(H_WATCHER);
        let _ = word.compare_exchange(u64::from(n) + 1, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    pub fn sessions(&self) -> Vec<SessionInfo> {
        let mut record = [0; SESSION_REC as usize];
        let listed = self.live().filter_map(|n| {
            self.map.copy_out(SessionInfo::at(n), &mut record).expect("in bounds");
            SessionInfo::parse(n, &record)
        });
        listed.collect()
    }
}

/// The numbers of the bits that are set.
#[inline(always)]
pub(super) fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let n = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (n < 64).then_some(n)
    })
}
