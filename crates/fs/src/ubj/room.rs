//! Memory and disk for what is about to be written.
//!
//! What is written to a large file takes memory now and room on a disk later. So it is admitted only where the log has room for all
//! that is dirty and for itself; and where memory is short, clean blocks go first, and dirty ones are written so that they are clean.
//! A thread sees to both ahead of need; who finds too little all the same waits for it here, outside of his operation, and begins
//! anew.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exraid::Background;
use pram::blocks::BLOCK;
use pram::session::assert_may_wait;
use pram::Session;

use super::write_back::MUCH;
use super::{all_memory, count, counted, dirty, free_memory, part, usage, Count, Union};
use crate::error::{Lack, Result};
use crate::file::ATOMIC;
use crate::node::waits::is_hurried;
use crate::node::Fs;
use ilfs::clean::Reason;

/// Of memory one part in so many is kept free: below the first clean blocks go ahead of need, until the second is free.
pub(super) const LOW: u64 = 16;
pub(super) const HIGH: u64 = 12;
/// Blocks that are written, or go, at a time, where somebody waits.
const SOME: u64 = 2048;
/// Bytes after which it is looked whether too much is dirty.
const BEHIND: u64 = 1 << 20;
/// So many times as much as begins to be written makes writers wait.
const SLOWED: u64 = 2;
/// Blocks that are written at a time where commits wait: two such batches are under way.
const BATCH: usize = 4096;
/// And at most where nobody waits: a flush takes its time, and a file on a host has its extents noted at each.
const MOST: usize = 32768;
/// How long who needs room leaves it to the thread, at most, as long as that is at work.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it counts that there is no room to be made.
const VAIN: Duration = Duration::from_millis(50);
/// Room that is enough for whoever found too little: no transaction adds more, and hosts are asked for more ahead of that.
const ENOUGH: u64 = ATOMIC / BLOCK + 1;
/// How long others are left alone who are making it.
const MOMENT: Duration = Duration::from_millis(1);
/// Segments that the thread keeps free: one part in so many, and so many at least.
const FREE_SHARE: u64 = 50;
const FREE_LEAST: u64 = 4;

/// What this process knows of room.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// When there was no memory, and when no room on disk, to be made, in nanoseconds since `since`, plus 1.
    vain: [AtomicU64; 2],
    /// How often the regions had changed when there was no room on disk.
    vain_changes: AtomicU64,
    since: std::sync::OnceLock<Instant>,
    /// Bytes written to large files, by this process.
    written: AtomicU64,
    /// Does a thread of this process see to room?
    has_thread: AtomicBool,
    progress: Mutex<Progress>,
    progressed: Condvar,
}

/// What is done for room.
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

    /// Blocks were written, or evicted, or segments are free.
    pub(super) fn note_progress(&self) {
        self.progress().made += 1;
        self.progressed.notify_all();
    }

    /// Waits until there is progress, after the thread was rung; false if it found nothing to do, or there is none.
    fn wait_for_progress(&self) -> bool {
        if !self.has_thread.load(Ordering::Relaxed) {
            return false;
        }
        let progress = self.progress();
        let before = *progress;
        // What it is at may have begun before it was rung.
        let rounds = before.rounds + 1 + u64::from(before.is_working);
        let waits = |now: &mut Progress| now.made == before.made && now.rounds < rounds;
        let waited = self.progressed.wait_timeout_while(progress, PATIENCE, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.made != before.made
    }

    /// The thread is at it until this is dropped.
    fn begin_round(&self) -> Round<'_> {
        self.progress().is_working = true;
        Round(self)
    }

    fn is_exhausted(&self, lack: Lack) -> bool {
        let vain = self.vain[lack as usize].load(Ordering::Relaxed);
        vain != 0 && self.now() - vain < VAIN.as_nanos() as u64
    }

    fn set_exhausted(&self, lack: Lack) {
        self.vain[lack as usize].store(self.now(), Ordering::Relaxed);
    }
}

struct Round<'r>(&'r Room);

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        (progress.rounds, progress.is_working) = (progress.rounds + 1, false);
        self.0.progressed.notify_all();
    }
}

impl Union {
    /// May there be more of it, as far as anybody knows?
    pub(crate) fn may_make_room(&self, session: &Session, lack: Lack) -> bool {
        // A region that has been added since has room.
        let changes = || self.log.changes(session).unwrap_or(0);
        !self.room.is_exhausted(lack)
            || (lack == Lack::Disk && self.room.vain_changes.load(Ordering::Relaxed) != changes())
    }

    /// Has the log room for so many bytes more of large files, beside all that is dirty?
    pub(crate) fn admits(&self, session: &Session, bytes: u64) -> Result<bool> {
        Ok(dirty(session) + bytes.div_ceil(BLOCK) <= self.log.available_about(session)?)
    }

    /// Has hosts of disks keep room for what is dirty or promised, and for some more to come; can they?
    fn reserve_ahead(&self, session: &Session) -> Result<bool> {
        let before = self.log.available_about(session)?;
        let reserved = self.log.reserve_ahead(session)?;
        if self.log.available_about(session)? > before {
            self.room.note_progress();
        }
        Ok(reserved)
    }

    /// Bytes were written to a large file: begins to write when there are enough, and has the writer do it himself where a disk is so
    /// far behind that a commit would have to wait for it.
    pub(crate) fn note_written(&self, fs: &Fs, bytes: u64) -> Result<()> {
        let session = fs.session();
        count(session, Count::Stored, bytes);
        let before = self.room.written.fetch_add(bytes, Ordering::Relaxed);
        if before / BEHIND == (before + bytes) / BEHIND {
            return Ok(());
        }
        self.ring();
        if self.is_behind(session) && !is_hurried() && !self.room.wait_for_progress() {
            self.write_out(fs, SOME)?;
        }
        Ok(())
    }

    /// Is the disk so far behind that writers wait for it?
    pub(crate) fn is_behind(&self, session: &Session) -> bool {
        dirty(session) > SLOWED * self.dirty_most(session)
    }

    /// Has no page of a file in a block.
    pub fn move_to_disk(&self, fs: &Fs, ino: u64) -> Result<()> {
        assert_may_wait();
        loop {
            let written = match self.write_with_room(fs, usize::MAX, Some(ino)) {
                // The thread may have what there is, for what it is just writing.
                Err(e) if e.is_full() => {
                    self.ring();
                    match self.room.wait_for_progress() {
                        true => continue,
                        false => return Err(e),
                    }
                }
                written => written?,
            };
            let evicted = self.evict(fs, u64::MAX, Some(ino))?;
            if written + evicted == 0 {
                return Ok(());
            }
        }
    }

    /// Makes room, of memory or on disk, for whoever found too little.
    pub fn make_room(&self, fs: &Fs, lack: Lack) -> Result<()> {
        assert_may_wait();
        self.ring();
        match lack {
            Lack::Memory => self.make_memory(fs),
            Lack::Disk => self.make_disk(fs.session()),
        }
    }

    /// Has hosts keep more room. What is dead counts as room already, wherever it lies; what is being written counts twice.
    fn make_disk(&self, session: &Session) -> Result<()> {
        let before = self.log.available_about(session)?;
        self.reserve_ahead(session)?;
        let (available, under_way) = (self.log.available_about(session)?, self.under_way.load(Ordering::Relaxed));
        let needed = dirty(session) + ENOUGH;
        match () {
            // Others have made some, perhaps before it was looked for the first time.
            () if available > before || available >= needed => {}
            () if under_way > 0 && available + under_way >= needed => _ = self.room.wait_for_progress(),
            () => {
                self.room.vain_changes.store(self.log.changes(session)?, Ordering::Relaxed);
                self.room.set_exhausted(Lack::Disk);
            }
        }
        Ok(())
    }

    fn make_memory(&self, fs: &Fs) -> Result<()> {
        if self.room.wait_for_progress() {
            return Ok(());
        }
        let session = fs.session();
        let elsewhere = || counted(session, Count::Elsewhere);
        let (others, free, made) = (elsewhere(), free_memory(session), || self.room.progress().made);
        let before = made();
        if self.evict_clean(fs, SOME)? == 0 {
            self.write_out(fs, SOME)?;
            self.evict_clean(fs, SOME)?;
        }
        if made() == before {
            self.demote(fs, SOME)?;
        }
        match () {
            // Others have made some.
            () if made() > before || free_memory(session) > free => {}
            () if elsewhere() > others => std::thread::sleep(MOMENT),
            () => self.room.set_exhausted(Lack::Memory),
        }
        Ok(())
    }

    /// Writes dirty blocks; where no segment is free, these are made first.
    pub(crate) fn write_out(&self, fs: &Fs, most: u64) -> Result<u64> {
        match self.write_with_room(fs, most as usize, None) {
            Err(e) if e.errno() == rustix::io::Errno::NOSPC => Ok(0),
            done => done,
        }
    }

    fn write_with_room(&self, fs: &Fs, most: usize, only: Option<u64>) -> Result<u64> {
        let made = || self.room.progress().made;
        loop {
            let before = made();
            match self.write_back(fs, most, only) {
                Err(e) if e.errno() == rustix::io::Errno::NOSPC => {
                    self.free(fs, true)?;
                    // Others may have taken what was there, and what is free now.
                    if made() == before {
                        return Err(e);
                    }
                }
                done => return done,
            }
        }
    }

    /// Writes all that is dirty, as far as there is room.
    pub fn write_all(&self, fs: &Fs) -> Result<()> {
        loop {
            match self.write_on(fs, MUCH, &mut || Ok(true)) {
                Err(e) if e.errno() == rustix::io::Errno::NOSPC => {}
                written => _ = written?,
            }
            if self.write_out(fs, MUCH as u64)? == 0 {
                return Ok(());
            }
        }
    }

    pub(super) fn free(&self, fs: &Fs, commits: bool) -> Result<Reason> {
        Ok(self.free_segments(fs, self.wanted(fs.session())?, commits, &mut || true)?)
    }

    /// Segments that are to be free.
    fn wanted(&self, session: &Session) -> Result<u64> {
        Ok((self.log.counts(session)?.segments / FREE_SHARE).max(FREE_LEAST))
    }

    /// Dirty blocks beyond which they are written.
    fn dirty_most(&self, session: &Session) -> u64 {
        let share = part(session, self.options.dirty);
        match is_waited_for(session) {
            // Several regions are done with as much each in the same time.
            true => share.min(self.options.behind / BLOCK * self.log.taking().len().max(1) as u64),
            false => share,
        }
    }

    /// Is so much dirty, or for so long, that writing has to begin?
    fn is_write_due(&self, session: &Session, since: Instant) -> bool {
        let dirty = dirty(session);
        dirty > self.dirty_most(session) || (dirty > 0 && since.elapsed() > self.options.age)
    }

    /// The thread's work: writes what has to be written, keeps memory and segments free. True if there is more to do at once.
    pub fn work(&self, fs: &Fs, written: &mut Instant, cleans: bool, stopped: &dyn Fn() -> bool) -> Result<bool> {
        let (session, _round) = (fs.session(), self.room.begin_round());
        session.free_ended()?;
        self.tell_untold();
        if cleans {
            // A commit is worth it only where few segments are free.
            let (counts, wanted) = (self.log.counts(session)?, self.wanted(session)?);
            let commits = counts.ready < wanted / 2;
            // Ahead of need it gives way to others, also to what this thread has to write.
            let _background = (!commits).then(Background::begin);
            let since = *written;
            let mut go_on = || !stopped() && (commits || !self.is_write_due(session, since));
            self.free_segments(fs, wanted, commits, &mut go_on)?;
        }
        // Beside what is being written.
        let mut go_on = || {
            self.keep_memory_free(fs)?;
            self.reserve_ahead(session)?;
            let is_due = self.is_write_due(session, *written) && !stopped();
            if is_due {
                *written = Instant::now();
            }
            Ok(is_due)
        };
        let batch = match is_waited_for(session) {
            true => BATCH,
            false => (self.dirty_most(session) as usize / 2).clamp(MUCH, MOST),
        };
        let mut more = match self.write_on(fs, batch, &mut go_on) {
            Err(e) if e.errno() == rustix::io::Errno::NOSPC => self.write_out(fs, MUCH as u64)? > 0,
            placed => placed? > 0,
        };
        if !self.keep_memory_free(fs)? && !more {
            more = self.write_out(fs, MUCH as u64)? > 0;
        }
        let (free, all) = (free_memory(session), all_memory(session));
        if !more && free < all / LOW {
            more = self.demote(fs, (all / HIGH - free) / BLOCK)? > 0;
        }
        Ok(self.follow(fs, cleans, stopped)? || more)
    }

    /// Evicts where memory is short, or the cache has more than it may; false if that was not enough.
    fn keep_memory_free(&self, fs: &Fs) -> Result<bool> {
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
    fn evict_clean(&self, fs: &Fs, wanted: u64) -> Result<u64> {
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

/// Does anybody wait for commits to a copy, which then should not have to wait for much?
fn is_waited_for(session: &Session) -> bool {
    backing::of(session).is_some_and(|copy| copy.is_awaited())
}
