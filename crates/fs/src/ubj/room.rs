//! Room in memory and on disk for the next writes.
//!
//! A write to a large file takes memory now and room on a disk later. So it is admitted only if the log has room for all
//! dirty blocks and for the new ones; and if memory is short, clean blocks are evicted first, and dirty ones are written to become clean.
//! A thread provides both ahead of need; a change that finds too little all the same waits for it outside of its operation, and
//! begins anew: [`tier::room`](crate::tier).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pram::mem::LINE;
use pram::memory::BLOCK;
use pram::{Session, CHUNK};

use super::{all_memory, count, dirty, free_memory, part, usage, Count, Inodes, Union};
use crate::error::{Lack, Result};
use crate::file::ATOMIC;

/// Of memory one part in so many is kept free: below the first clean blocks go ahead of need, until the second is free.
pub(crate) const LOW: u64 = 16;
pub(crate) const HIGH: u64 = 12;
/// Bytes after which it is looked whether too much is dirty.
const BEHIND: u64 = 1 << 20;
/// So many times as much as begins to be written makes writers wait.
const SLOWED: u64 = 2;
/// How long an operation that needs room leaves that to the thread, at most, as long as it is at work.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it counts that there is no room to be made.
const EXHAUSTED: Duration = Duration::from_millis(50);
/// Segments that others than writers may take before a commit: the cleaner, for replicas, for the backing.
const TAKEN: u64 = 4;
/// Room that is enough for an operation that found too little: no transaction adds more, and hosts are asked for more ahead of that.
const ENOUGH: u64 = ATOMIC / BLOCK + 1;
/// How often an operation of a guest runs again, though nothing was made for it.
const RERUNS: u64 = 64;
/// Segments that the thread keeps free: one part in so many, and so many at least.
const FREE_SHARE: u64 = 50;
const FREE_LEAST: u64 = 4;

/// Writers of small files leave one part in so many of memory for the index of files that have to go, and so many segments at least ...
const LEFT: u64 = 64;
const LEFT_LEAST: u64 = 8;
/// ... and look how much there is after one part in so many was written, and so many bytes at most.
const LOOKS: u64 = 256;
const LOOKED: u64 = 4 << 20;

/// This process's knowledge of memory for small files.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Bytes that it wrote to small files.
    written: AtomicU64,
    /// There was no more than has to be left.
    tight: AtomicBool,
}

/// This process's knowledge of room.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// When there was no memory, and when no room on disk, to be made, in nanoseconds since `since`, plus 1.
    exhausted: [AtomicU64; 2],
    /// How often the regions had changed when there was no room on disk.
    exhausted_changes: AtomicU64,
    since: std::sync::OnceLock<Instant>,
    /// Bytes written to large files, by this process.
    written: AtomicU64,
    /// How often a guest was told that all is done, and found room for its operation all the same.
    reruns: AtomicU64,
    /// Does a thread of this process see to room?
    has_thread: AtomicBool,
    progress: Mutex<Progress>,
    progressed: Condvar,
}

/// The work for room.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// How often this process has written or evicted blocks, or made segments free.
    made: u64,
    /// How often the thread has done all that it found to be done; is it at it?
    rounds: u64,
    is_working: bool,
}

impl Room {
    fn now(&self) -> u64 {
        self.since.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often there was progress.
    pub(crate) fn made(&self) -> u64 {
        self.progress().made
    }

    /// Blocks were written, or evicted, or segments are free.
    pub(crate) fn note_progress(&self) {
        self.progress().made += 1;
        self.progressed.notify_all();
    }

    /// Waits until there is progress, after its thread was woken; false if it found nothing to do, or there is none.
    pub(crate) fn wait_for_progress(&self) -> bool {
        if !self.has_thread.load(Ordering::Relaxed) {
            return false;
        }
        let progress = self.progress();
        let before = *progress;
        // Its work may have begun before it was woken.
        let rounds = before.rounds + 1 + u64::from(before.is_working);
        let waits = |now: &mut Progress| now.made == before.made && now.rounds < rounds;
        let waited = self.progressed.wait_timeout_while(progress, PATIENCE, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.made != before.made
    }

    /// The thread is at it until this is dropped.
    pub(crate) fn begin_round(&self) -> Round<'_> {
        self.progress().is_working = true;
        Round(self)
    }

    fn is_exhausted(&self, lack: Lack) -> bool {
        let exhausted = self.exhausted[lack as usize].load(Ordering::Relaxed);
        exhausted != 0 && self.now() - exhausted < EXHAUSTED.as_nanos() as u64
    }

    pub(crate) fn set_exhausted(&self, lack: Lack) {
        self.exhausted[lack as usize].store(self.now(), Ordering::Relaxed);
    }
}

pub(crate) struct Round<'r>(&'r Room);

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        (progress.rounds, progress.is_working) = (progress.rounds + 1, false);
        self.0.progressed.notify_all();
    }
}

impl Union {
    /// So many bytes are about to be written to a small file: is only memory left that others need to make room?
    pub(crate) fn is_tight(&self, session: &Session, bytes: u64) -> bool {
        let all = all_memory(session);
        let step = (all / LOOKS).clamp(CHUNK, LOOKED);
        let before = self.ahead.written.fetch_add(bytes, Ordering::Relaxed);
        if !self.ahead.tight.load(Ordering::Relaxed) && before / step == (before + bytes) / step {
            return false;
        }
        let rt = session.runtime();
        let free = (rt.free_chunks() + rt.absent()) * CHUNK;
        if free < all / LOW {
            self.wake();
        }
        let tight = free < (all / LEFT).max(LEFT_LEAST * CHUNK);
        self.ahead.tight.store(tight, Ordering::Relaxed);
        tight && self.may_make_room(session, Lack::Memory)
    }

    /// Whether room may still be made, as far as is known.
    pub(crate) fn may_make_room(&self, session: &Session, lack: Lack) -> bool {
        // A region that has been added since has room.
        let changes = || self.log.changes(session).unwrap_or(0);
        let has_more = || self.room.exhausted_changes.load(Ordering::Relaxed) != changes();
        !self.room.is_exhausted(lack)
            || lack == Lack::Disk && (has_more() || self.will_have_room(session).unwrap_or(false))
    }

    /// Blocks that are being written count twice, as dirty and as content of their segment: is there room once they are written?
    fn will_have_room(&self, session: &Session) -> Result<bool> {
        let under_way = self.under_way.load(Ordering::Relaxed);
        Ok(under_way > 0 && self.log.available_about(session)? + under_way > dirty(session))
    }

    /// Has the log room for so many bytes more of large files, beside all that is dirty?
    pub(crate) fn admits(&self, session: &Session, bytes: u64) -> Result<bool> {
        Ok(dirty(session) + bytes.div_ceil(BLOCK) <= self.log.available_about(session)?)
    }

    /// Has hosts of disks keep room for dirty or promised blocks, and for some more to come; returns whether they can.
    pub(crate) fn reserve_ahead(&self, session: &Session) -> Result<bool> {
        let before = self.log.available_about(session)?;
        let reserved = self.log.reserve_ahead(session)?;
        if self.log.available_about(session)? > before {
            self.room.note_progress();
        }
        Ok(reserved)
    }

    /// Counts bytes written to a large file, and begins write-back when there are enough. True: a disk is so far behind that a commit would
    /// have to wait for it, so the writer should wait instead.
    pub(crate) fn note_written(&self, session: &Session, bytes: u64) -> bool {
        count(session, Count::Stored, bytes);
        let before = self.room.written.fetch_add(bytes, Ordering::Relaxed);
        if before / BEHIND == (before + bytes) / BEHIND {
            return false;
        }
        self.wake();
        self.is_behind(session)
    }

    /// Is the disk so far behind that writers wait for it?
    pub(crate) fn is_behind(&self, session: &Session) -> bool {
        dirty(session) > SLOWED * self.dirty_most(session) || self.is_beyond_commit(session)
    }

    /// Is more dirty than can be written to free segments and beside that goes with a commit? The next commit could lack room: freed
    /// segments, which its log needs to get longer, are free only once it is durable. Half of the log is for what else has changed.
    pub(crate) fn is_beyond_commit(&self, session: &Session) -> bool {
        let backing = backing::of(session).filter(|backing| backing.is_awaited());
        let Some(lines) = backing.and_then(|backing| backing.reserved_lines()) else { return false };
        let beyond = dirty(session).saturating_sub(lines / 2 / (BLOCK / LINE));
        beyond > 0 && beyond > self.log.room_beside(session, TAKEN).unwrap_or(0)
    }

    /// Has hosts keep more room. Dead blocks count as room already, anywhere.
    pub(crate) fn make_disk(&self, session: &Session) -> Result<()> {
        let before = self.log.available_about(session)?;
        self.reserve_ahead(session)?;
        let (available, needed) = (self.log.available_about(session)?, dirty(session) + ENOUGH);
        match () {
            // Others have made some, perhaps before it was looked for the first time.
            () if available > before || available >= needed => {}
            () if self.will_have_room(session)? => _ = self.room.wait_for_progress(),
            () => self.note_exhausted(session, Lack::Disk)?,
        }
        Ok(())
    }

    /// A guest has asked for room, and all has been done: may its operation run again, since there is room, which was made before it asked? Not
    /// for ever: the operation may need something else.
    pub(crate) fn may_run_again(&self, session: &Session, lack: Lack) -> Result<bool> {
        let is_there = match lack {
            Lack::Memory => free_memory(session) >= all_memory(session) / LOW,
            Lack::Disk => self.log.available_about(session)? >= dirty(session) + ENOUGH,
        };
        Ok(is_there && self.room.reruns.fetch_add(1, Ordering::Relaxed) % RERUNS != RERUNS - 1)
    }

    /// There is no room to be made, for now.
    pub(crate) fn note_exhausted(&self, session: &Session, lack: Lack) -> Result<()> {
        if lack == Lack::Disk {
            self.room.exhausted_changes.store(self.log.changes(session)?, Ordering::Relaxed);
        }
        self.room.set_exhausted(lack);
        Ok(())
    }

    /// Segments that are to be free.
    pub(crate) fn wanted(&self, session: &Session) -> Result<u64> {
        Ok((self.log.counts(session)?.segments / FREE_SHARE).max(FREE_LEAST))
    }

    /// Dirty blocks beyond which they are written.
    pub(crate) fn dirty_most(&self, session: &Session) -> u64 {
        let share = part(session, self.options.dirty);
        match is_waited_for(session) {
            // Several regions are done with as much each in the same time.
            true => share.min(self.options.behind / BLOCK * self.log.taking().len().max(1) as u64),
            false => share,
        }
    }

    /// Is so much dirty, or for so long, that writing has to begin?
    pub(crate) fn is_write_due(&self, session: &Session, since: Instant) -> bool {
        let dirty = dirty(session);
        dirty > self.dirty_most(session) || (dirty > 0 && session.clock().since(since) > self.options.age)
    }

    /// Evicts where memory is short, or the cache has more than it may; false if that was not enough.
    pub(crate) fn evict_if_short(&self, fs: &dyn Inodes) -> Result<bool> {
        let session = fs.session();
        let (free, all, used) = (free_memory(session), all_memory(session), usage(session).used);
        let for_others = if free < all / LOW { (all / HIGH - free) / BLOCK } else { 0 };
        let for_others = for_others.min(used.saturating_sub(part(session, self.options.floor)));
        match for_others.max(used.saturating_sub(self.most(session))) {
            0 => Ok(true),
            wanted => Ok(self.evict_clean(fs, wanted)? >= wanted / 2),
        }
    }

    /// Evicts up to `wanted` blocks of those that are clean: where none is, none is looked for.
    pub(crate) fn evict_clean(&self, fs: &dyn Inodes, wanted: u64) -> Result<u64> {
        match wanted.min(usage(fs.session()).placed()) {
            0 => Ok(0),
            wanted => self.evict(fs, wanted, None),
        }
    }

    /// A thread of this process calls [`work`](Self::work) from now on, or does no more.
    pub fn set_thread(&self, there: bool) {
        self.room.has_thread.store(there, Ordering::Relaxed);
    }
}

/// Whether commits to a backing are waited for, which then should not have to write much.
pub(crate) fn is_waited_for(session: &Session) -> bool {
    backing::of(session).is_some_and(|backing| backing.is_awaited())
}
