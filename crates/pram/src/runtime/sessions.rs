//! The attached processes: their identity, their terms, the terms that others ask of them, and their changes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Runtime, HEADER, H_LIVE, H_WATCHER};

/// Most processes attached at a time.
pub const SESSIONS: u32 = 64;
/// Bytes per session record: state, pid, role and other words, counts, then a label.
pub(crate) const SESSION_REC: u64 = 1792;
const S_STATE: u64 = 0;
const S_PID: u64 = 8;
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
const CHANGING: u64 = 256;
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
    /// Where the records of all sessions are in the runtime file.
    pub(crate) const ALL: std::ops::Range<u64> = HEADER..HEADER + SESSIONS as u64 * SESSION_REC;

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
        self.word(self.at.sessions + u64::from(n.min(SESSIONS - 1)) * SESSION_REC + field)
    }

    pub(crate) fn session_half(&self, n: u32, field: u64) -> &AtomicU32 {
        self.half(self.at.sessions + u64::from(n.min(SESSIONS - 1)) * SESSION_REC + field)
    }

    pub fn session_taken(&self, n: u32) -> bool {
        self.session(n, S_STATE).load(Ordering::Acquire) != 0
    }

    pub(crate) fn enter_session(&self, n: u32, role: u64, label: &[u8]) {
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
        self.clear_reports(n);
        (0..COUNTS).for_each(|count| self.session(n, S_COUNTS + count as u64 * 8).store(0, Ordering::Relaxed));
        self.session(n, S_STATE).store(1, Ordering::Release);
        self.header(H_LIVE).fetch_or(1 << n, Ordering::SeqCst);
        self.me.store(n, Ordering::Relaxed);
    }

    fn label_session(&self, n: u32, label: &[u8]) {
        let mut text = [0u8; LABEL];
        let len = label.len().min(LABEL);
        text[..len].copy_from_slice(&label[..len]);
        let at = self.at.sessions + u64::from(n) * SESSION_REC + S_LABEL;
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
        // The session may have died watching.
        self.end_watch(n);
        self.clear_changing(n);
        self.session(n, S_NEEDS).store(0, Ordering::SeqCst);
        self.session(n, S_STATE).store(0, Ordering::Release);
        self.header(H_LIVE).fetch_and(!(1 << n), Ordering::SeqCst);
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

    fn clear_changing(&self, n: u32) {
        (0..CHANGING).for_each(|key| self.changing(n, key).store(0, Ordering::Relaxed));
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
        self.live().filter_map(|n| self.session(n, S_NEEDS).load(Ordering::SeqCst).checked_sub(1)).min()
    }

    /// Ends the needs of all processes: the room is wanted.
    pub fn take_needed(&self) {
        self.live().for_each(|n| self.session(n, S_NEEDS).store(0, Ordering::SeqCst));
    }

    /// Numbers of the sessions that are taken.
    #[inline(always)]
    pub fn live(&self) -> impl Iterator<Item = u32> {
        let mut bits = self.header(H_LIVE).load(Ordering::SeqCst);
        std::iter::from_fn(move || {
            let n = bits.trailing_zeros();
            bits &= bits.wrapping_sub(1);
            (n < SESSIONS).then_some(n)
        })
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
            self.map.copy_out(self.at.sessions + u64::from(n) * SESSION_REC, &mut record).expect("in bounds");
            SessionInfo::parse(n, &record)
        });
        listed.collect()
    }
}
