//! The runtime segment: what attached processes share and nobody keeps. It lies in shared memory apart
//! from the region, is made by the first process that attaches and thrown away by the last.
//!
//! ```text
//! header | sessions | slots | key locks | segment owners | free map | partial maps | new map
//!        | events | references (per session, per key)
//! ```
//! It is sparse: most of it is never touched and takes no memory.

use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

use crate::error::{Error, Result};
use crate::heap::{Tag, CLASSES, TAGS};
use crate::mem::Mapping;
use crate::region::{Geometry, Region};

/// Most processes attached at a time.
pub const SESSIONS: u32 = 64;
/// Key locks: a key is locked by the lock with its number modulo this.
pub const LOCKS: u64 = 1 << 16;

const MAGIC: u64 = u64::from_le_bytes(*b"CQ-RUN\x06\n");

// Header words.
const H_MAGIC: u64 = 0;
const H_SIZE: u64 = 8;
const H_KEYS: u64 = 16;
const H_FROZEN: u64 = 24;
const H_SWEEPING: u64 = 32;
const H_LEAKS: u64 = 40;
const H_FIRST_FREE: u64 = 48;
/// One bit per session that watches. Bits, and no count: whoever dies half-way through cannot leave it wrong.
const H_WATCHERS: u64 = 64;
/// One bit per session that is taken.
const H_LIVE: u64 = 72;
pub(crate) const H_EVENT_HEAD: u64 = 128;
pub(crate) const H_EVENT_BELL: u64 = 136;
// From 192 on: what is agreed on about the copy on disk, see `copy::words`.
const HEADER: u64 = 4096;

/// Bytes per session record: state, pid, role and other words, then a label.
pub(crate) const SESSION_REC: u64 = 1536;
const S_STATE: u64 = 0;
const S_PID: u64 = 8;
const S_ROLE: u64 = 16;
pub(crate) const S_CURSOR: u64 = 32;
pub(crate) const S_CURSOR_BELL: u64 = 40;
/// Threads that wait for watchers.
pub(crate) const S_PUBLISHING: u64 = 48;
/// What the layer above says that the process keeps to, and what it is asked to.
const S_TERMS: u64 = 56;
const S_ASKED: u64 = 64;
/// Where others have stopped waiting for this watcher: its cursor then, + 1.
pub(crate) const S_LEFT: u64 = 72;
/// The event that the watcher acts on: its key + 1.
pub(crate) const S_ACTING: u64 = 80;
/// How many changes are under way that watchers have not been told of, by key modulo [`CHANGING`]: 4 bytes each.
pub(crate) const S_CHANGING: u64 = 88;
pub(crate) const CHANGING: u64 = 256;
const S_LABEL: u64 = S_CHANGING + CHANGING * 4;
pub const LABEL: usize = (SESSION_REC - S_LABEL) as usize;

const CURRENTS: u64 = (TAGS * CLASSES.len()) as u64;
/// Bytes per slot: its word, its tally, zeros, then the current segment of each (tag, class).
const SLOT_REC: u64 = 64 + CURRENTS * 8;

/// The layout and mapping of a runtime segment.
pub struct Runtime {
    map: Mapping,
    segments: u64,
    slots: u32,
    keys: u64,
    at: At,
    me: AtomicU32,
    /// The shared-memory file, unless the segment is private.
    file: Option<OwnedFd>,
}

/// Offsets of the parts.
#[derive(Clone, Copy, Debug)]
struct At {
    sessions: u64,
    slots: u64,
    locks: u64,
    owners: u64,
    free: u64,
    partial: u64,
    map_bytes: u64,
    new: u64,
    events: u64,
    refs: u64,
    end: u64,
}

impl At {
    fn of(geo: &Geometry, keys: u64) -> At {
        let page = |n: u64| n.next_multiple_of(4096);
        let map_bytes = page(geo.segments.div_ceil(8));
        let sessions = HEADER;
        let slots = page(sessions + u64::from(SESSIONS) * SESSION_REC);
        let locks = page(slots + geo.slots * SLOT_REC);
        let owners = page(locks + LOCKS * 8);
        let free = page(owners + geo.segments * 4);
        let partial = free + map_bytes;
        let new = page(partial + map_bytes * CURRENTS);
        let events = page(new + geo.size / 16 / 8) + 4096;
        let refs = page(events + crate::events::RING * crate::events::EVENT);
        let end = refs + u64::from(SESSIONS) * page(keys * 4);
        At { sessions, slots, locks, owners, free, partial, map_bytes, new, events, refs, end }
    }
}

/// The current segment of a slot for one tag and class, and where its search left off.
#[derive(Clone, Copy)]
pub struct Current<'a>(&'a AtomicU64);

impl Current<'_> {
    #[inline(always)]
    pub fn segment(&self) -> Option<u64> {
        (self.0.load(Ordering::Relaxed) & 0xffff_ffff).checked_sub(1)
    }
    #[inline(always)]
    pub fn hint(&self) -> u32 {
        (self.0.load(Ordering::Relaxed) >> 32) as u32
    }
    #[inline(always)]
    pub fn set_hint(&self, word: u32) {
        let low = self.0.load(Ordering::Relaxed) & 0xffff_ffff;
        self.0.store(low | u64::from(word) << 32, Ordering::Relaxed);
    }
    pub fn set(&self, segment: Option<u64>) {
        self.0.store(segment.map_or(0, |s| s + 1), Ordering::Relaxed);
    }
}

/// A key lock: sequence counter (low half, odd while held) and owner (high half: slot + 1, waiters bit).
#[derive(Clone, Copy)]
pub struct KeyLock<'a> {
    word: &'a AtomicU64,
    rt: &'a Runtime,
    at: u64,
}

const WAITERS: u32 = 1 << 31;
/// How long whoever waits without a bell sleeps before it looks again.
const GLANCE: Duration = Duration::from_micros(20);

/// In the word that says who sweeps: the map of what is new is being cleared.
const PREPARING: u64 = 1 << 32;

/// One look at a key lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen(u64);

impl Seen {
    #[inline(always)]
    pub fn owner(self) -> Option<u32> {
        ((self.0 >> 32) as u32 & !WAITERS).checked_sub(1)
    }
}

impl<'a> KeyLock<'a> {
    #[inline(always)]
    pub fn look(&self) -> Seen {
        Seen(self.word.load(Ordering::Acquire))
    }

    /// After reading: was everything read of the state that `seen` looked at?
    #[inline(always)]
    pub fn unchanged(&self, seen: Seen) -> bool {
        fence(Ordering::Acquire);
        let now = self.word.load(Ordering::Relaxed);
        now == seen.0
    }

    /// For the holder: was the lock free when it was `seen`, and taken by nobody else since?
    #[inline(always)]
    pub fn follows(&self, seen: Seen) -> bool {
        self.word.load(Ordering::Relaxed) as u32 == (seen.0 as u32).wrapping_add(1)
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    pub fn try_lock(&self, slot: u32) -> bool {
        let seen = self.word.load(Ordering::Relaxed);
        if seen >> 32 != 0 {
            return false;
        }
        let held = u64::from(slot + 1) << 32 | u64::from((seen as u32).wrapping_add(1));
        let taken = self.word.compare_exchange(seen, held, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // The odd counter is visible before what the holder stores; readers rely on it.
        fence(Ordering::Release);
        taken
    }

    #[inline(always)]
    pub fn unlock(&self) {
        let seq = (self.word.load(Ordering::Relaxed) as u32).wrapping_add(1);
        let old = self.word.swap(u64::from(seq), Ordering::AcqRel);
        if (old >> 32) as u32 & WAITERS != 0 {
            self.wake_waiters();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_waiters(&self) {
        let _ = futex::wake(self.half(), futex::Flags::empty(), u32::MAX >> 1);
    }

    /// The half with the owner, for those who wait.
    fn half(&self) -> &'a AtomicU32 {
        self.rt.half(self.at + 4)
    }

    /// Sleeps until the lock changes hands, a few milliseconds at most.
    pub fn wait(&self) {
        let owner = self.half().load(Ordering::Relaxed);
        if owner == 0 {
            return;
        }
        let marked = owner | WAITERS;
        if owner != marked && self.half().compare_exchange(owner, marked, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return;
        }
        wait(self.half(), marked, 10_000_000);
    }
}

/// Sleeps while `word` is `value`, at most `nanos`.
pub(crate) fn wait(word: &AtomicU32, value: u32, nanos: i64) {
    let timeout = Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&timeout));
}

/// Gives way to whoever is waited for without a bell: for a moment awake, then asleep, since a thread of high priority
/// that gives way does so for none of a lower one.
pub(crate) fn pause(round: u32) {
    match round {
        0..16 => std::thread::yield_now(),
        _ => std::thread::sleep(GLANCE),
    }
}

pub(crate) fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}

/// What the runtime knows of an attached process.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    pub index: u32,
    pub pid: u32,
    pub role: u64,
    /// What the layer above says that it keeps to; 0: nothing yet.
    pub terms: u64,
    pub label: Vec<u8>,
}

impl SessionInfo {
    /// Where the records of all sessions are in the segment.
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
            label: label.into(),
        })
    }
}

impl Runtime {
    /// Bytes of a runtime segment for regions of this geometry and keys below `keys`.
    pub fn size(geo: &Geometry, keys: u64) -> u64 {
        At::of(geo, keys).end
    }

    /// Makes zeroed memory into a runtime segment.
    pub fn create(map: Mapping, file: Option<OwnedFd>, geo: &Geometry, keys: u64) -> Result<Runtime> {
        let rt = Runtime::over(map, file, geo, keys);
        rt.header(H_SIZE).store(geo.size, Ordering::Relaxed);
        rt.header(H_KEYS).store(keys, Ordering::Relaxed);
        rt.header(H_MAGIC).store(MAGIC, Ordering::Release);
        Ok(rt)
    }

    /// Joins the runtime segment that another process has made.
    pub fn join(map: Mapping, file: OwnedFd, geo: &Geometry, keys: u64) -> Result<Runtime> {
        let rt = Runtime::over(map, Some(file), geo, keys);
        let same = rt.header(H_MAGIC).load(Ordering::Acquire) == MAGIC
            && rt.header(H_SIZE).load(Ordering::Relaxed) == geo.size
            && rt.header(H_KEYS).load(Ordering::Relaxed) == keys;
        if !same {
            return Err(Error::Unusable("the pool is in use by another version of this program".into()));
        }
        Ok(rt)
    }

    fn over(map: Mapping, file: Option<OwnedFd>, geo: &Geometry, keys: u64) -> Runtime {
        let at = At::of(geo, keys);
        assert!(map.len() >= at.end, "a runtime segment is mapped whole");
        Runtime { map, segments: geo.segments, slots: geo.slots as u32, keys, at, me: AtomicU32::new(0), file }
    }

    #[inline(always)]
    pub(crate) fn word(&self, off: u64) -> &AtomicU64 {
        self.map.atomic64(off).expect("runtime offsets are computed within its size")
    }

    #[inline(always)]
    pub(crate) fn half(&self, off: u64) -> &AtomicU32 {
        self.map.atomic32(off).expect("runtime offsets are computed within its size")
    }

    pub(crate) fn map(&self) -> &Mapping {
        &self.map
    }

    #[inline(always)]
    pub(crate) fn header(&self, field: u64) -> &AtomicU64 {
        self.word(field)
    }

    /// This process's session number.
    pub fn me(&self) -> u32 {
        self.me.load(Ordering::Relaxed)
    }

    // Sessions.

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
        let base = self.at.sessions + u64::from(n) * SESSION_REC;
        let mut text = [0u8; LABEL];
        let len = label.len().min(LABEL);
        text[..len].copy_from_slice(&label[..len]);
        self.map.write(base + S_LABEL, &text).expect("in bounds");
        self.session(n, S_PID).store(u64::from(std::process::id()), Ordering::Relaxed);
        self.session(n, S_ROLE).store(role, Ordering::Relaxed);
        self.session(n, S_PUBLISHING).store(0, Ordering::Relaxed);
        self.session(n, S_TERMS).store(0, Ordering::Relaxed);
        self.session(n, S_ASKED).store(0, Ordering::Relaxed);
        self.session(n, S_LEFT).store(0, Ordering::Relaxed);
        self.session(n, S_ACTING).store(0, Ordering::Relaxed);
        self.clear_changing(n);
        self.session(n, S_STATE).store(1, Ordering::Release);
        self.header(H_LIVE).fetch_or(1 << n, Ordering::SeqCst);
        self.me.store(n, Ordering::Relaxed);
    }

    pub(crate) fn leave_session(&self, n: u32) {
        // It may have died watching.
        self.watchers().fetch_and(!(1 << n), Ordering::SeqCst);
        self.session(n, S_PUBLISHING).store(0, Ordering::Relaxed);
        self.clear_changing(n);
        self.session(n, S_STATE).store(0, Ordering::Release);
        self.header(H_LIVE).fetch_and(!(1 << n), Ordering::SeqCst);
    }

    /// Changes of what has this key, or one like it, that session `n` makes and has not told of yet.
    #[inline(always)]
    pub(crate) fn changing(&self, n: u32, key: u64) -> &AtomicU32 {
        self.session_half(n, S_CHANGING + key % CHANGING * 4)
    }

    fn clear_changing(&self, n: u32) {
        (0..CHANGING).for_each(|key| self.changing(n, key).store(0, Ordering::Relaxed));
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

    /// Says what this process keeps to: a word of the layer above, not 0.
    pub fn set_terms(&self, terms: u64) {
        self.session(self.me(), S_TERMS).store(terms, Ordering::Release);
    }

    /// Asks session `n` to keep to something else.
    pub fn ask(&self, n: u32, terms: u64) {
        self.session(n, S_ASKED).store(terms, Ordering::Release);
    }

    /// Is it still to be heeded?
    pub fn is_asked(&self, n: u32, terms: u64) -> bool {
        self.session(n, S_ASKED).load(Ordering::Acquire) == terms
    }

    /// Takes it back, unless it was heeded.
    pub fn withdraw(&self, n: u32, terms: u64) {
        let _ = self.session(n, S_ASKED).compare_exchange(terms, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// What this process is asked to keep to.
    pub fn asked(&self) -> Option<u64> {
        Some(self.session(self.me(), S_ASKED).load(Ordering::Acquire)).filter(|terms| *terms != 0)
    }

    /// It does now.
    pub fn heeded(&self, terms: u64) {
        self.withdraw(self.me(), terms);
    }

    /// The sessions that watch, a bit for each.
    #[inline(always)]
    pub(crate) fn watchers(&self) -> &AtomicU64 {
        self.header(H_WATCHERS)
    }

    /// The attached processes.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let mut record = [0; SESSION_REC as usize];
        let listed = self.live().filter_map(|n| {
            self.map.copy_out(self.at.sessions + u64::from(n) * SESSION_REC, &mut record).expect("in bounds");
            SessionInfo::parse(n, &record)
        });
        listed.collect()
    }

    // Slots: low half the session that uses it + 1, high half counts uses.

    #[inline(always)]
    fn slot_at(&self, slot: u32) -> u64 {
        self.at.slots + u64::from(slot.min(self.slots - 1)) * SLOT_REC
    }

    pub fn slots(&self) -> u32 {
        self.slots
    }

    #[inline(always)]
    pub fn try_slot(&self, slot: u32) -> bool {
        let word = self.word(self.slot_at(slot));
        let seen = word.load(Ordering::Relaxed);
        seen as u32 == 0
            && word.compare_exchange(seen, seen | u64::from(self.me() + 1), Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    pub fn free_slot(&self, slot: u32) {
        let word = self.word(self.slot_at(slot));
        let uses = (word.load(Ordering::Relaxed) >> 32).wrapping_add(1) as u32;
        word.store(u64::from(uses) << 32, Ordering::Release);
    }

    /// The slot's word as a value that changes with each use, and the session that uses it now.
    pub fn slot_state(&self, slot: u32) -> (u64, Option<u32>) {
        let word = self.word(self.slot_at(slot)).load(Ordering::SeqCst);
        (word, (word as u32).checked_sub(1))
    }

    /// Counts something of the layer above's, without contention: by the holder of the slot.
    #[inline(always)]
    pub fn count(&self, slot: u32) {
        let tally = self.word(self.slot_at(slot) + 8);
        tally.store(tally.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often [`count`](Self::count) was called, by all processes.
    pub fn counted(&self) -> u64 {
        (0..self.slots).map(|s| self.word(self.slot_at(s) + 8).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    #[inline(always)]
    pub fn current(&self, slot: u32, tag: Tag, class: usize) -> Current<'_> {
        let n = (usize::from(tag.0) % TAGS * CLASSES.len() + class) as u64;
        Current(self.word(self.slot_at(slot) + 64 + n * 8))
    }

    // Locks.

    #[inline(always)]
    pub fn lock_number(key: u64) -> u32 {
        (key % LOCKS) as u32
    }

    #[inline(always)]
    pub fn lock(&self, number: u32) -> KeyLock<'_> {
        let at = self.at.locks + u64::from(number) % LOCKS * 8;
        KeyLock { word: self.word(at), rt: self, at }
    }

    // Segments.

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
    fn map_bit(&self, base: u64, segment: u64) -> (&AtomicU64, u64) {
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

    // Sweep.

    fn new_bit(&self, off: u64) -> (&AtomicU64, u64) {
        let n = (off / 16).min((self.at.events - self.at.new) * 8 - 1);
        self.map_bit(self.at.new, n)
    }

    /// While a sweep runs, marks what is about to be allocated, so that the sweep leaves it alone.
    #[inline(always)]
    pub fn note_new(&self, geo: &Geometry, off: u64) {
        if self.header(H_SWEEPING).load(Ordering::SeqCst) != 0 {
            let (word, bit) = self.new_bit(off.min(geo.size));
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Was the object at `off` allocated since [`start_sweep`](Self::start_sweep)?
    pub fn is_new(&self, off: u64) -> bool {
        let (word, bit) = self.new_bit(off);
        word.load(Ordering::SeqCst) & bit != 0
    }

    /// Begins to note what is allocated; false if another sweep is under way. Operations that began before
    /// may not have seen it: [`drain`](crate::Session::drain) before looking at what is allocated.
    #[must_use = "two sweeps at once would free each other's new objects"]
    pub fn start_sweep(&self, geo: &Geometry) -> bool {
        let me = u64::from(self.me() + 1);
        if self.header(H_SWEEPING).compare_exchange(0, PREPARING | me, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return false;
        }
        self.clear(self.at.new, (geo.size / 16 / 8).next_multiple_of(4096).min(self.at.events - self.at.new));
        self.header(H_SWEEPING).store(me, Ordering::SeqCst);
        true
    }

    pub fn end_sweep(&self) {
        self.header(H_SWEEPING).store(0, Ordering::SeqCst);
    }

    /// Ends the sweep of session `n`, which died.
    pub(crate) fn abandon_sweep(&self, n: u32) {
        if self.header(H_SWEEPING).load(Ordering::SeqCst) as u32 == n + 1 {
            self.end_sweep();
        }
    }

    /// Has somebody died since the last sweep?
    pub fn leaks_pending(&self) -> bool {
        self.header(H_LEAKS).load(Ordering::Acquire) != 0
    }

    pub fn set_leaks_pending(&self, yes: bool) {
        self.header(H_LEAKS).store(u64::from(yes), Ordering::Release);
    }

    // Freeze.

    #[inline(always)]
    pub fn frozen(&self) -> bool {
        self.header(H_FROZEN).load(Ordering::SeqCst) != 0
    }

    /// The session that froze the pool, if any.
    pub(crate) fn frozen_by(&self) -> Option<u32> {
        (self.header(H_FROZEN).load(Ordering::SeqCst) as u32).checked_sub(1)
    }

    /// Freezes the pool; false if it is frozen already.
    pub(crate) fn try_freeze(&self) -> bool {
        let me = u64::from(self.me() + 1);
        self.header(H_FROZEN).compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn thaw(&self) {
        self.header(H_FROZEN).store(0, Ordering::SeqCst);
        wake(self.half(H_FROZEN));
    }

    pub(crate) fn wait_frozen(&self) {
        let half = self.half(H_FROZEN);
        let value = half.load(Ordering::Acquire);
        if value != 0 {
            wait(half, value, 10_000_000);
        }
    }

    // References.

    pub fn keys(&self) -> u64 {
        self.keys
    }

    fn refs_base(&self, session: u32) -> u64 {
        self.at.refs + u64::from(session) * (self.keys * 4).next_multiple_of(4096)
    }

    /// The number of references that `session` holds to `key`.
    #[inline(always)]
    pub fn refs(&self, session: u32, key: u64) -> &AtomicU32 {
        self.half(self.refs_base(session) + key.min(self.keys - 1) * 4)
    }

    /// Does any session hold a reference to anything?
    pub fn any_reference(&self) -> Result<bool> {
        for n in self.live() {
            let (base, end) = (self.refs_base(n), self.refs_base(n + 1));
            let mut at = base;
            while let Some((from, to)) = self.touched(at).filter(|(from, _)| *from < end) {
                at = to.min(end);
                if !self.map.is_zero(from.max(base), at - from.max(base))? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The keys that `session` holds references to.
    pub fn referenced(&self, session: u32) -> Vec<u64> {
        let (base, end) = (self.refs_base(session), self.refs_base(session) + self.keys * 4);
        let mut found = Vec::new();
        let mut at = base;
        while let Some((from, to)) = self.touched(at).filter(|(from, _)| *from < end) {
            at = to.min(end);
            let keys = (from.max(base) - base) / 4..(at - base) / 4;
            found.extend(keys.filter(|key| self.refs(session, *key).load(Ordering::SeqCst) > 0));
        }
        found
    }

    /// The next stretch of the segment, at or after `from`, that has ever been touched.
    fn touched(&self, from: u64) -> Option<(u64, u64)> {
        use rustix::fs::{seek, SeekFrom};
        let Some(file) = &self.file else { return (from < self.at.end).then_some((from, self.at.end)) };
        let start = seek(file, SeekFrom::Data(from)).ok()?;
        let end = seek(file, SeekFrom::Hole(start)).ok()?;
        (end > from).then_some((start, end))
    }

    /// Drops all references of a session.
    pub(crate) fn clear_refs(&self, session: u32) {
        self.clear(self.refs_base(session), (self.keys * 4).next_multiple_of(4096));
    }

    /// Zeroes a range and gives its memory back.
    fn clear(&self, off: u64, len: u64) {
        use rustix::fs::{fallocate, FallocateFlags};
        let punched = self
            .file
            .as_ref()
            .is_some_and(|f| fallocate(f, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, off, len).is_ok());
        if !punched {
            self.map.zero(off, len).expect("runtime offsets are computed within its size");
        }
    }

    pub(crate) fn events_at(&self) -> u64 {
        self.at.events
    }
}

/// The private runtime of a region that only this process has.
pub fn private(region: &Region, keys: u64) -> Result<Runtime> {
    let size = Runtime::size(&region.geo, keys);
    let map = Mapping::anonymous(size).map_err(Error::host("mapping a runtime segment"))?;
    Runtime::create(map, None, &region.geo, keys)
}
