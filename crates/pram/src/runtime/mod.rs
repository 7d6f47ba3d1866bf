//! The runtime file: state that attached processes share and a crash may lose. It lies in shared memory apart
//! from the memory; the first process that attaches makes it, and the last one throws it away.
//!
//! ```text
//! header, which sessions live | sessions | guests | slots | key locks | long locks | looks | events | noted numbers | for each group of the memory: owners of chunks, free, absent and
//!        partial maps, maps of blocks, blocks under transfer | new map | reports (per session) | pages of references that have memory
//!        (per session, and for guests together) | references (the same, per key) | tables of guests
//! ```
//! It is laid out for the largest memory that its processes have address space for, and it is sparse. A group's part
//! takes memory when the group is begun; a page of references does when the first one in it is taken.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `attendance` | the process that does the background work for those that do none |
//! | `blocks` | chunks of blocks: which, how many, which blocks are under transfer |
//! | [`control`] | the words about commits on which processes agree |
//! | `guests` | the references and changes of guests, of which there may be thousands |
//! | `lock` | key locks, and how threads wait for each other across processes |
//! | `long_locks` | locks that outlive operations |
//! | `observed_times` | times that were looked at |
//! | `numbering` | numbers that processes remember, and that a sweep frees |
//! | `refs` | the references of each process |
//! | [`reports`] | each process's reports of its background tasks |
//! | `chunks` | chunks of the heap: their owners; which are free, absent, and have room |
//! | `sessions` | the attached processes |
//! | `stops` | marks that ask a stopped process to go on for a moment |

mod attendance;
mod blocks;
mod chunks;
pub mod control;
mod guests;
mod lock;
mod long_locks;
mod numbering;
mod observed_times;
mod refs;
pub mod reports;
mod sessions;
mod stops;

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub use attendance::Attendant;
pub(crate) use blocks::{Pinned, FREED};
pub(crate) use chunks::LOW;
pub use lock::{pause, wait, wake};
pub use lock::{KeyLock, Sequence};
pub use numbering::NUMBERS;
pub use refs::{Recall, References};
pub use sessions::{SessionInfo, COMMON, COUNTS, FULL, LABEL, SESSIONS};
pub(crate) use sessions::{SESSION_REC, S_CURSOR, S_CURSOR_WAKEUP, S_LEFT};

use crate::error::{Error, Result};
use crate::mem::descriptor::Kept;
use crate::mem::Mapping;
use crate::memory::{Geometry, Memory, Tag, CLASSES, GROUP, TAGS};

/// Key locks: a key is locked by the lock with its number modulo this.
pub const LOCKS: u64 = 1 << 16;

const MAGIC: u64 = u64::from_le_bytes(*b"CQ-RUN\x12\n");

// Header words.
const H_MAGIC: u64 = 0;
/// Bytes of the largest memory that it is laid out for.
const H_LIMIT: u64 = 8;
const H_KEYS: u64 = 16;
const H_FROZEN: u64 = 24;
const H_SWEEPING: u64 = 32;
const H_LEAKS: u64 = 40;
/// Memory is to be taken before the next operation.
const H_DEMAND: u64 = 48;
/// The current numbering: see `numbering`.
const H_NUMBERING: u64 = 56;
/// The session that watches, + 1.
const H_WATCHER: u64 = 64;
/// One bit per word of [`LIVE`] that has any.
const H_LIVE: u64 = 72;
/// Numbers are running out.
const H_CROWDED: u64 = 80;
/// The session that saves the memory, + 1.
const H_SAVER: u64 = 88;
/// The session with the role of maintenance, + 1.
const H_MAINTAINER: u64 = 96;
/// See `attendance`.
const H_ATTENDANT: u64 = 104;
/// How often guests have asked for room, and how often they had when all was done that could be.
const H_ROOM_ASKED: u64 = 112;
const H_ROOM_MADE: u64 = 120;
pub(crate) const H_EVENT_HEAD: u64 = 128;
pub(crate) const H_EVENT_WAKEUP: u64 = 136;
// From 192 on: words about the backing, see `control`.
// From 384 on: words about memory; changed often, so apart from the words that every operation reads.
const H_FIRST_FREE: u64 = 384;
/// Free chunks, about.
const H_SPARE: u64 = 392;
/// Chunks without memory, in a memory of the size that was set.
const H_ABSENT: u64 = 400;
/// Groups that there are parts for.
const H_GROUPS: u64 = 408;
/// The session that takes memory or gives it back, + 1.
const H_SUPPLIER: u64 = 416;
/// Chunks in a row that an operation needs.
const H_WANTED: u64 = 424;
/// Taking memory gives no run of so many chunks; 0: unknown.
const H_NO_RUN: u64 = 432;
/// The host has no memory: it is asked again from this instant of the monotonic clock on, nanoseconds.
const H_HOST_FULL: u64 = 440;
/// Changes when the maintenance thread is to take memory.
const H_SUPPLY_WAKEUP: u64 = 448;
/// The maintenance thread is woken when fewer chunks are free than this; 0: it has been woken.
const H_RING: u64 = 456;
// From 512 on: blocks.
/// Where to begin to look for a chunk that has room for a block.
const H_BLOCK_HINT: u64 = 512;
/// Chunks of blocks.
const H_BLOCK_CHUNKS: u64 = 520;
/// Blocks that were in use when the runtime file was made.
const H_BLOCKS: u64 = 528;
/// Blocks without a place.
const H_UNPLACED: u64 = 536;
// From 576 on: read by every change.
/// See `observed_times`.
const H_LATEST: u64 = 576;
/// One bit per session that is taken.
const LIVE: u64 = 2048;
/// How many changes of guests are under way, by key modulo `CHANGING`.
const H_CHANGING: u64 = LIVE + SESSIONS as u64 / 8;
/// Guests hold what nothing else keeps.
const H_HOLD_LAST: u64 = H_CHANGING + sessions::CHANGING * 4;
const HEADER: u64 = 4096;
const _: () = assert!(H_HOLD_LAST < HEADER && LIVE >= control::END);

/// Events in the ring, and bytes of each.
pub(crate) const RING: u64 = 1024;
pub(crate) const EVENT: u64 = 320;

const CURRENTS: u64 = (TAGS * CLASSES.len()) as u64;
/// Bytes per slot: its word, its tally, its blocks, its mark (see `stops`), zeros, then the current chunk of each (tag, class).
const SLOT_REC: u64 = 64 + CURRENTS * 8;

/// The failing operation in an error, where the host has no memory.
const TAKING: &str = "taking shared memory, of which this host has none left (`df /dev/shm`)";

/// The layout and mapping of a runtime file.
pub struct Runtime {
    map: Mapping,
    /// Bytes of the largest memory that it is laid out for.
    limit: u64,
    slots: u32,
    keys: u64,
    at: At,
    me: AtomicU32,
    /// The shared-memory file, unless the runtime is private.
    file: Option<Kept>,
}

/// Offsets of the parts.
#[derive(Clone, Copy, Debug)]
struct At {
    slots: u64,
    locks: u64,
    long_locks: u64,
    looks: u64,
    events: u64,
    noted: u64,
    groups: u64,
    new: u64,
    reports: u64,
    held: u64,
    refs: u64,
    tables: u64,
    end: u64,
}

impl At {
    fn of(slots: u64, limit: u64, keys: u64) -> At {
        let page = |n: u64| n.next_multiple_of(4096);
        let at_slots = page(sessions::GUESTS_AT + u64::from(SESSIONS - FULL) * sessions::GUEST_REC);
        let locks = page(at_slots + slots * SLOT_REC);
        let long_locks = page(locks + LOCKS * 8);
        let looks = page(long_locks + long_locks::BYTES);
        let events = page(looks + observed_times::BYTES);
        let noted = page(events + RING * EVENT);
        let groups = page(noted + NUMBERS / 8);
        let new = groups + limit.div_ceil(GROUP) * chunks::PART;
        let reports = page(new + limit.div_ceil(GROUP) * NEW) + 4096;
        let held = reports + reports::BYTES;
        let arrays = u64::from(FULL) + 1;
        let refs = held + arrays * refs::held_bytes(keys);
        let tables = refs + arrays * page(keys * 4);
        let end = tables + u64::from(SESSIONS - FULL) * guests::TABLE;
        At { slots: at_slots, locks, long_locks, looks, events, noted, groups, new, reports, held, refs, tables, end }
    }
}

/// The current chunk of a slot for one tag and class, and where its search left off.
#[derive(Clone, Copy)]
pub struct Current<'a>(&'a AtomicU64);

impl Current<'_> {
    #[inline(always)]
    pub fn chunk(&self) -> Option<u64> {
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
    pub fn set(&self, chunk: Option<u64>) {
        self.0.store(chunk.map_or(0, |s| s + 1), Ordering::Relaxed);
    }
}

/// The reason, if any, why no operation may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Nothing,
    /// This session froze the pool.
    Frozen(u32),
    /// For so long, from the first waiting operation on.
    Paused(Duration),
}

/// In the word of a freeze, in place of the session: a pause, which ends by itself.
const PAUSED: u32 = u32::MAX;

/// In the word of a sweep, beside the session: the map of new objects is being cleared.
const PREPARING: u64 = 1 << 32;
/// In the same word, beside the session: that session excludes sweeps.
const EXCLUDED: u64 = 1 << 33;
/// Bytes of the map of new objects for each group.
const NEW: u64 = GROUP / 16 / 8;

impl Runtime {
    /// Bytes of a runtime file for memories of this geometry, at most `limit` bytes large, and keys below `keys`.
    pub fn size(geo: &Geometry, limit: u64, keys: u64) -> u64 {
        At::of(geo.slots, limit, keys).end
    }

    /// Makes zeroed memory into a runtime file.
    pub fn create(map: Mapping, file: Option<Kept>, geo: &Geometry, limit: u64, keys: u64) -> Result<Runtime> {
        let rt = Runtime::over(map, file, geo, limit, keys);
        // The parts that operations touch in a pool of any size.
        rt.take(0..sessions::GUESTS_AT)?;
        rt.take(rt.at.slots..rt.at.groups)?;
        rt.take_held(COMMON)?;
        rt.header(H_LIMIT).store(limit, Ordering::Relaxed);
        rt.header(H_KEYS).store(keys, Ordering::Relaxed);
        rt.header(H_MAGIC).store(MAGIC, Ordering::Release);
        Ok(rt)
    }

    /// The layout of the runtime file in `file`, which another process has made: bytes of memory, and keys.
    pub fn laid_out_for(file: impl AsFd) -> Result<(u64, u64)> {
        let mut head = [0; 24];
        let read = rustix::io::pread(file, &mut head, 0).map_err(Error::host("reading the runtime file"))?;
        let word = |at: u64| u64::from_le_bytes(std::array::from_fn(|i| head[at as usize + i]));
        if read < head.len() || word(H_MAGIC) != MAGIC {
            return Err(Error::Unusable("the pool is in use by another version of this program".into()));
        }
        Ok((word(H_LIMIT), word(H_KEYS)))
    }

    /// Joins a runtime file that another process has made.
    pub fn join(map: Mapping, file: Kept, geo: &Geometry, limit: u64, keys: u64) -> Runtime {
        Runtime::over(map, Some(file), geo, limit, keys)
    }

    fn over(map: Mapping, file: Option<Kept>, geo: &Geometry, limit: u64, keys: u64) -> Runtime {
        let at = At::of(geo.slots, limit, keys);
        assert!(map.len() >= at.end, "a runtime file is mapped whole");
        Runtime { map, limit, slots: geo.slots as u32, keys, at, me: AtomicU32::new(0), file }
    }

    /// Bytes of the largest memory that it is laid out for.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Makes sure that a range has memory.
    fn take(&self, range: Range<u64>) -> Result<()> {
        match &self.file {
            Some(file) => {
                let filled = file.lend().and_then(|file| crate::reserve::fill_holes(file, range));
                filled.map_err(Error::host(TAKING))
            }
            None => Ok(()),
        }
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

    /// The session with the role of maintenance, + 1.
    pub(crate) fn maintainer(&self) -> &AtomicU64 {
        self.header(H_MAINTAINER)
    }

    /// The session that saves the memory, + 1.
    pub fn saver(&self) -> &AtomicU64 {
        self.header(H_SAVER)
    }

    // The word of a slot: its low half is the session that uses it + 1, its high half counts uses.

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

    /// True: this use of the slot was [marked](Self::mark_slot).
    #[inline(always)]
    pub fn free_slot(&self, slot: u32) -> bool {
        let at = self.slot_at(slot);
        let word = self.word(at);
        let used = word.load(Ordering::Relaxed);
        let uses = (used >> 32).wrapping_add(1) as u32;
        word.store(u64::from(uses) << 32, Ordering::Release);
        self.is_slot_marked(at, used)
    }

    /// The slot's word as a value that changes with each use, and the session that uses it now.
    pub fn slot_state(&self, slot: u32) -> (u64, Option<u32>) {
        let word = self.word(self.slot_at(slot)).load(Ordering::SeqCst);
        (word, (word as u32).checked_sub(1))
    }

    /// How often slots have been used, by all processes.
    pub(crate) fn uses(&self) -> u64 {
        (0..self.slots).map(|slot| self.slot_state(slot).0 >> 32).sum()
    }

    /// Adds one to a tally of the layer above, without contention: by the holder of the slot.
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

    // Sweep.

    fn new_bit(&self, off: u64) -> (&AtomicU64, u64) {
        let n = (off / 16).min(self.limit / 16 - 1);
        (self.word(self.at.new + n / 64 * 8), 1 << (n % 64))
    }

    /// While a sweep runs, marks an object that is about to be allocated, so that the sweep leaves it alone.
    #[inline(always)]
    pub fn note_new(&self, off: u64) {
        let sweeping = self.header(H_SWEEPING).load(Ordering::SeqCst);
        if sweeping != 0 && sweeping & EXCLUDED == 0 {
            let (word, bit) = self.new_bit(off);
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Was the object at `off` allocated since [`start_sweep`](Self::start_sweep)?
    pub fn is_new(&self, off: u64) -> bool {
        let (word, bit) = self.new_bit(off);
        word.load(Ordering::SeqCst) & bit != 0
    }

    /// Begins to note new objects; false if another sweep is under way. Operations that began before may not have
    /// seen it: [`drain`](crate::Session::drain) before looking at allocated objects.
    #[must_use = "two sweeps at once would free each other's new objects"]
    pub fn start_sweep(&self) -> Result<bool> {
        let me = u64::from(self.me() + 1);
        if self.header(H_SWEEPING).compare_exchange(0, PREPARING | me, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Ok(false);
        }
        // A process that begins a group from now on takes memory for its map.
        let groups = self.groups();
        self.clear(self.at.new, groups * NEW);
        if let Err(e) = self.take(self.at.new..self.at.new + groups * NEW) {
            self.end_sweep();
            return Err(e);
        }
        self.header(H_SWEEPING).store(me, Ordering::SeqCst);
        Ok(true)
    }

    /// Prevents sweeps until [`end_sweep`](Self::end_sweep); false if a process sweeps or excludes sweeps already.
    #[must_use = "a sweep under way takes what nothing leads to"]
    pub fn exclude_sweeps(&self) -> bool {
        let me = u64::from(self.me() + 1);
        self.header(H_SWEEPING).compare_exchange(0, EXCLUDED | me, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub fn end_sweep(&self) {
        self.header(H_SWEEPING).store(0, Ordering::SeqCst);
    }

    /// The session that sweeps or excludes sweeps.
    pub(crate) fn sweeper(&self) -> Option<u32> {
        (self.header(H_SWEEPING).load(Ordering::SeqCst) as u32).checked_sub(1)
    }

    /// Ends the sweep of session `n`, which died.
    pub(crate) fn abandon_sweep(&self, n: u32) {
        if self.header(H_SWEEPING).load(Ordering::SeqCst) as u32 == n + 1 {
            if self.numbering() % 2 == 1 {
                self.end_numbering();
            }
            self.end_sweep();
        }
    }

    /// Does session `n`, which has died, leave anything that only a sweep ends, apart from its slots? Call it when the
    /// session's references [are gone](Self::clear_refs).
    pub(crate) fn leaves_leaks(&self, n: u32) -> bool {
        let sweeps = self.header(H_SWEEPING).load(Ordering::SeqCst) as u32 == n + 1;
        let holds_last = self.holds_last(n) || n >= COMMON && self.guests_hold_last();
        sweeps || self.hold() == Hold::Frozen(n) || self.is_unfinished(n) || holds_last
    }

    /// Has a process died since the last sweep that may have left leaks?
    pub fn leaks_pending(&self) -> bool {
        self.header(H_LEAKS).load(Ordering::Acquire) != 0
    }

    pub fn set_leaks_pending(&self, yes: bool) {
        self.header(H_LEAKS).store(u64::from(yes), Ordering::Release);
    }

    // The hold: one word, whose lower half says which session or a pause, and whose upper half how long, in
    // microseconds.

    /// Must a new operation look at the hold?
    #[inline(always)]
    pub fn held(&self) -> bool {
        self.header(H_FROZEN).load(Ordering::SeqCst) != 0
    }

    pub(crate) fn hold(&self) -> Hold {
        let word = self.header(H_FROZEN).load(Ordering::SeqCst);
        match word as u32 {
            0 => Hold::Nothing,
            PAUSED => Hold::Paused(Duration::from_micros(word >> 32)),
            session => Hold::Frozen(session - 1),
        }
    }

    /// Freezes the pool; false if something else holds it.
    pub(crate) fn try_freeze(&self) -> bool {
        let me = u64::from(self.me() + 1);
        self.header(H_FROZEN).compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn thaw(&self) {
        self.header(H_FROZEN).store(0, Ordering::SeqCst);
        wake(self.half(H_FROZEN));
    }

    /// Makes new operations wait for `time`, even if this process dies; unless another hold is there already.
    pub fn pause(&self, time: Duration) {
        let word = (time.as_micros() as u64) << 32 | u64::from(PAUSED);
        let _ = self.header(H_FROZEN).compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Ends a pause, if there is one.
    pub fn end_pause(&self) {
        let word = self.header(H_FROZEN).load(Ordering::SeqCst);
        let paused = word as u32 == PAUSED;
        if paused && self.header(H_FROZEN).compare_exchange(word, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            wake(self.half(H_FROZEN));
        }
    }

    /// Waits until the hold ends, at most `time`; true if `time` has passed.
    pub(crate) fn wait_held(&self, time: Duration) -> bool {
        let half = self.half(H_FROZEN);
        let value = half.load(Ordering::Acquire);
        value != 0 && wait(half, value, time.as_nanos() as i64)
    }

    /// Zeroes a range and gives its memory back.
    fn clear(&self, off: u64, len: u64) {
        use rustix::fs::{fallocate, FallocateFlags};
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = match &self.file {
            Some(file) => file.lend().is_ok_and(|file| fallocate(file, hole, off, len).is_ok()),
            None => self.map.give_back(off, len).is_ok(),
        };
        if !punched {
            self.map.zero(off, len).expect("runtime offsets are computed within its size");
        }
    }

    pub(crate) fn events_at(&self) -> u64 {
        self.at.events
    }
}

/// The private runtime of a memory that no other process has.
pub fn private(memory: &Memory, keys: u64) -> Result<Runtime> {
    let limit = if memory.map().growing_file().is_some() { memory.size() } else { memory.map().reserved() };
    let size = Runtime::size(&memory.geo, limit, keys);
    let map = Mapping::anonymous(size).map_err(Error::host("mapping a runtime file"))?;
    Runtime::create(map, None, &memory.geo, limit, keys)
}
