//! Making room, in memory and on disks: by each operation that finds too little, and by a thread ahead of need.

use std::time::{Duration, Instant};

use exraid::Background;
use pram::memory::BLOCK;
use pram::session::assert_may_wait;
use pram::Session;

use crate::error::{Lack, Result};
use crate::node::Fs;
use crate::ubj::room::{is_waited_for, HIGH, LOW};
use crate::ubj::write_back::MUCH;
use crate::ubj::{all_memory, counted, free_memory, Count, Union};
use ilfs::clean::Reason;
use ilfs::table::CLEANING;

/// Blocks that are written or evicted at a time, where a caller waits.
const SOME: u64 = 2048;
/// Blocks that are written at a time where commits wait: two such batches are under way.
const BATCH: usize = 4096;
/// And at most where none waits: a flush takes its time, and a file on a host has its extents noted at each.
const MOST: usize = 32768;
/// How long to wait for others that are making room.
const MOMENT: Duration = Duration::from_millis(1);

impl Union {
    /// Has a writer to a large file wait while a disk is far behind: for the thread, or by writing blocks itself. As long as a commit
    /// might lack room, for whatever makes some.
    pub(super) fn wait_behind(&self, fs: &Fs) -> Result<()> {
        loop {
            let made = self.room.wait_for_progress() || self.write_out(fs, SOME)? > 0;
            if !made || !self.is_beyond_commit(fs.session()) {
                return Ok(());
            }
        }
    }

    /// Has no page of a file in a block.
    pub fn move_to_disk(&self, fs: &Fs, ino: u64) -> Result<()> {
        assert_may_wait();
        loop {
            let written = match self.write_with_room(fs, usize::MAX, Some(ino)) {
                // The thread may have taken the room, for blocks that it is just writing.
                Err(e) if e.is_full() => {
                    self.wake();
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

    /// Makes room, of memory or on disk, for a caller that found too little.
    pub fn make_room(&self, fs: &Fs, lack: Lack) -> Result<()> {
        assert_may_wait();
        self.wake();
        match lack {
            Lack::Memory => self.make_memory(fs),
            Lack::Disk => self.make_disk(fs.session()),
        }
    }

    fn make_memory(&self, fs: &Fs) -> Result<()> {
        if self.room.wait_for_progress() {
            return Ok(());
        }
        let session = fs.session();
        let elsewhere = || counted(session, Count::Elsewhere);
        let (others, free, made) = (elsewhere(), free_memory(session), || self.room.made());
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
        let made = || self.room.made();
        loop {
            let before = made();
            match self.write_back(fs, most, only) {
                Err(e) if e.errno() == rustix::io::Errno::NOSPC => {
                    self.free(fs, true)?;
                    // Others may have taken the room that was there, and other room may be free now.
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

    pub(crate) fn free(&self, fs: &Fs, commits: bool) -> Result<Reason> {
        Ok(self.free_segments(fs, self.wanted(fs.session())?, commits, &mut || true)?)
    }

    /// Has segments that were bad used again; by this thread alone, since a process that does not go on should not write to a disk that may hang.
    fn test_bad_segments(&self, session: &Session) -> Result<()> {
        let _alone = session.long_lock(CLEANING)?;
        if self.log().test_bad(session)? > 0 {
            self.room.note_progress();
        }
        Ok(())
    }

    /// The thread's work: writes due blocks, keeps memory and segments free. True if there is more to do at once.
    pub fn work(&self, fs: &Fs, written: &mut Instant, cleans: bool, stopped: &dyn Fn() -> bool) -> Result<bool> {
        let (session, _round) = (fs.session(), self.room.begin_round());
        session.free_ended()?;
        self.report_unreported();
        if cleans {
            self.test_bad_segments(session)?;
            // A commit is worth it only where few segments are free.
            let (counts, wanted) = (self.log().counts(session)?, self.wanted(session)?);
            let commits = counts.ready < wanted / 2;
            // Ahead of need it gives way to others, also to this thread's own due writes.
            let _background = (!commits).then(Background::begin);
            let since = *written;
            let mut go_on = || !stopped() && (commits || !self.is_write_due(session, since));
            self.free_segments(fs, wanted, commits, &mut go_on)?;
        }
        // While blocks are being written.
        let mut go_on = || {
            self.evict_if_short(fs)?;
            self.reserve_ahead(session)?;
            let is_due = self.is_write_due(session, *written) && !stopped();
            if is_due {
                *written = session.clock().instant();
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
        if !self.evict_if_short(fs)? && !more {
            more = self.write_out(fs, MUCH as u64)? > 0;
        }
        let (free, all) = (free_memory(session), all_memory(session));
        if !more && free < all / LOW {
            more = self.demote(fs, (all / HIGH - free) / BLOCK)? > 0;
        }
        Ok(self.follow(fs, cleans, stopped)? || more)
    }
}
