//! Memory and disk for what is about to be written.
//!
//! What is written to a large file takes memory now and room on a disk later. So it is admitted only where the log has room for all
//! that is dirty and for itself; and where memory is short, clean blocks go first, and dirty ones are written so that they are clean.
//! A thread sees to both ahead of need; who finds too little all the same waits for it here, outside of his operation, and begins
//! anew.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pram::blocks::BLOCK;
use pram::session::assert_may_wait;
use pram::Session;

use super::{all_memory, dirty, free_memory, usage, Union};
use crate::error::Result;
use crate::file::ATOMIC;
use crate::ilfs::clean::Reason;
use crate::node::waits::is_hurried;
use crate::node::Fs;

/// Of memory one part in so many is kept free: below the first clean blocks go ahead of need, until the second is free.
const LOW: u64 = 16;
const HIGH: u64 = 12;
/// Blocks that are written, or go, at a time, where somebody waits.
const SOME: u64 = 2048;
/// Bytes after which it is looked how much is dirty.
const BEHIND: u64 = 1 << 20;
/// So many times as much as begins to be written makes writers wait.
const SLOWED: u64 = 4;
/// How long it counts that there is no room to be made.
const VAIN: Duration = Duration::from_millis(50);
/// How long others are left alone who are making it.
const MOMENT: Duration = Duration::from_millis(1);
/// Segments that the thread keeps free: one part in so many, and so many at least.
const FREE_SHARE: u64 = 50;
const FREE_LEAST: u64 = 4;

/// What this process knows of room.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// When there was no room to be made, in nanoseconds since `since`, plus 1.
    vain: AtomicU64,
    since: std::sync::OnceLock<Instant>,
    /// Bytes written to large files, by this process.
    written: AtomicU64,
    /// Dirty blocks when they were counted last, and how many bytes had been written then.
    counted: AtomicU64,
    counted_at: AtomicU64,
}

impl Room {
    fn now(&self) -> u64 {
        self.since.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
    }

    fn is_exhausted(&self) -> bool {
        let vain = self.vain.load(Ordering::Relaxed);
        vain != 0 && self.now() - vain < VAIN.as_nanos() as u64
    }
}

impl Union {
    /// May room be made, as far as anybody knows?
    pub(crate) fn may_make_room(&self) -> bool {
        !self.room.is_exhausted()
    }

    /// Has the log room for so many bytes more of a large file, beside all that is dirty?
    pub(crate) fn admits(&self, session: &Session, bytes: u64) -> Result<bool> {
        let (wanted, available) = (bytes.div_ceil(BLOCK) + 1, self.log.available_about(session)?);
        // More than are dirty; counting those takes longer.
        if usage(session).used + wanted <= available {
            return Ok(true);
        }
        Ok(dirty(session)?.blocks + wanted <= available)
    }

    /// Bytes were written to a large file: begins to write when there are enough, and has the writer do it himself where a disk is so
    /// far behind that a commit would have to wait for it.
    pub(crate) fn note_written(&self, fs: &Fs, bytes: u64) -> Result<()> {
        let before = self.room.written.fetch_add(bytes, Ordering::Relaxed);
        if before / BEHIND == (before + bytes) / BEHIND {
            return Ok(());
        }
        self.ring();
        let session = fs.session();
        if self.is_behind(session) && !is_hurried() {
            self.write_out(fs, SOME)?;
            self.count_dirty(session)?;
        }
        Ok(())
    }

    /// Is the disk so far behind that writers write to it themselves?
    pub(crate) fn is_behind(&self, session: &Session) -> bool {
        let written = self.room.written.load(Ordering::Relaxed);
        let since_counted = written.saturating_sub(self.room.counted_at.load(Ordering::Relaxed)) / BLOCK;
        let dirty = self.room.counted.load(Ordering::Relaxed) + since_counted;
        is_waited_for(session) && dirty > SLOWED * self.dirty_most(session)
    }

    /// Has no page of a file in a block.
    pub fn move_to_disk(&self, fs: &Fs, ino: u64) -> Result<()> {
        assert_may_wait();
        loop {
            let written = self.write_back(fs, usize::MAX, Some(ino))?;
            let evicted = self.evict(fs, u64::MAX, Some(ino))?;
            if written + evicted == 0 {
                return Ok(());
            }
        }
    }

    /// Makes room, of memory or on disk, for whoever found too little of either.
    pub fn make_room(&self, fs: &Fs) -> Result<()> {
        assert_may_wait();
        let session = fs.session();
        let elsewhere = || self.counters.elsewhere.load(Ordering::Relaxed);
        let (mut made, others, free) = (0, elsewhere(), free_memory(session));
        if free_memory(session) < all_memory(session) / LOW || self.admits(session, 2 * ATOMIC)? {
            made += self.evict(fs, SOME, None)?;
            if made == 0 {
                made += self.write_out(fs, SOME)?;
                made += self.evict(fs, SOME, None)?;
            }
        } else {
            let before = self.log.available(session)?;
            made += self.write_out(fs, SOME)?;
            self.free(fs, true)?;
            made += u64::from(self.log.available(session)? > before);
        }
        match made {
            0 if elsewhere() > others => std::thread::sleep(MOMENT),
            // Others have made some.
            0 if free_memory(session) > free => {}
            0 => self.room.vain.store(self.room.now(), Ordering::Relaxed),
            _ => {}
        }
        Ok(())
    }

    /// Writes dirty blocks; where no segment is free, these are made first.
    pub(crate) fn write_out(&self, fs: &Fs, most: u64) -> Result<u64> {
        match self.write_back(fs, most as usize, None) {
            Err(e) if e.errno() == rustix::io::Errno::NOSPC => {
                self.free(fs, true)?;
                match self.write_back(fs, most as usize, None) {
                    Err(e) if e.errno() == rustix::io::Errno::NOSPC => Ok(0),
                    done => done,
                }
            }
            done => done,
        }
    }

    /// Writes all that is dirty, as far as there is room.
    pub fn write_all(&self, fs: &Fs) -> Result<()> {
        while self.write_out(fs, super::write_back::MUCH as u64)? > 0 {}
        Ok(())
    }

    fn free(&self, fs: &Fs, commits: bool) -> Result<Reason> {
        Ok(self.free_segments(fs, self.wanted(fs.session())?, commits, &mut || true)?)
    }

    /// Segments that are to be free.
    fn wanted(&self, session: &Session) -> Result<u64> {
        Ok((self.log.counts(session)?.segments / FREE_SHARE).max(FREE_LEAST))
    }

    /// Dirty blocks beyond which they are written.
    fn dirty_most(&self, session: &Session) -> u64 {
        let share = all_memory(session) / BLOCK / self.options.dirty_share.max(1);
        match is_waited_for(session) {
            true => share.min(self.options.behind / BLOCK),
            false => share,
        }
    }

    /// Counts what is dirty: the time is that of those that there are, so not for each write.
    fn count_dirty(&self, session: &Session) -> Result<u64> {
        let (dirty, written) = (dirty(session)?.blocks, self.room.written.load(Ordering::Relaxed));
        self.room.counted.store(dirty, Ordering::Relaxed);
        self.room.counted_at.store(written, Ordering::Relaxed);
        Ok(dirty)
    }

    /// Is so much dirty that writing has to begin?
    pub(crate) fn is_write_due(&self, session: &Session, since: Instant) -> Result<bool> {
        let dirty = self.count_dirty(session)?;
        Ok(dirty > self.dirty_most(session) || (dirty > 0 && since.elapsed() > self.options.age))
    }

    /// The thread's work: writes what has to be written, keeps memory and segments free. True if there is more to do at once.
    pub(crate) fn work(
        &self,
        fs: &Fs,
        written: &mut Instant,
        cleans: bool,
        stopped: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let session = fs.session();
        session.free_ended()?;
        if cleans {
            // A commit is worth it only where few segments are free.
            let (counts, wanted) = (self.log.counts(session)?, self.wanted(session)?);
            let commits = counts.free < wanted / 2;
            self.free_segments(fs, wanted, commits, &mut || !stopped())?;
        }
        let mut more = false;
        if self.is_write_due(session, *written)? {
            *written = Instant::now();
            more = self.write_out(fs, super::write_back::MUCH as u64)? > 0;
        }
        let (free, all) = (free_memory(session), all_memory(session));
        if free < all / LOW {
            let wanted = (all / HIGH - free) / BLOCK;
            if self.evict(fs, wanted, None)? < wanted / 2 && !more {
                more = self.write_out(fs, super::write_back::MUCH as u64)? > 0;
            }
        }
        Ok(more)
    }
}

/// Does anybody wait for commits to a copy, which then should not have to wait for much?
fn is_waited_for(session: &Session) -> bool {
    session.copy().is_some_and(|copy| copy.is_awaited())
}
