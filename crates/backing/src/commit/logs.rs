//! The two logs of a backing: one takes over from the other, once the image holds all of its earlier commits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::TryLockError;

use super::{marks_of, resign, Backing, CHECKPOINTING};
use crate::checkpoint;
use crate::image::Image;
use crate::log::{self, Log, MIN_CAPACITY, RECORDS};
use crate::state::State;
use crate::{log_bytes, SharedDisk};
use pram::budget::Budget;
use pram::error::{Error, Result};
use pram::runtime::control;
use pram::session::Session;

/// The right to checkpoint, given up also by a panic: nobody else could take it from a process that lives.
struct Checkpointer<'a>(&'a AtomicU64);

impl Drop for Checkpointer<'_> {
    fn drop(&mut self) {
        resign(self.0);
    }
}

/// Bytes of a log that needs so many: the usual ones if they suffice, else all that its disk `has`, since more lines may
/// change while the commit is written.
fn capacity(needed: u64, usual: u64, has: u64) -> u64 {
    match needed.next_multiple_of(MIN_CAPACITY) {
        _ if needed <= usual => usual,
        longer => longer.max(has),
    }
}

impl Backing {
    /// Calls `work` while nobody checkpoints. Forgets the image as this process left it.
    pub(crate) fn while_checkpointing<R>(&self, session: &Session, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let mut pages = session.memory().lock_by(&self.pages);
        *pages = None;
        let word = session.runtime().backing().checkpointer;
        while !session.take_role(word)? {
            session.memory().wait_by(|| std::thread::sleep(CHECKPOINTING));
        }
        let _role = Checkpointer(word);
        work()
    }

    /// Lets the other log take over early, so that commits need not wait for the image.
    pub(super) fn swap_if_due(
        &self,
        session: &Session,
        logs: &mut [Log<SharedDisk>; 2],
        state: &mut State,
        budget: &mut Budget,
    ) -> Result<()> {
        let active = state.logs[state.active];
        let checkpointed = session.runtime().backing().checkpointed.load(Ordering::SeqCst);
        let half = logs[state.active].used() > active.capacity / 2;
        match half && state.logs[1 - state.active].last.commit <= checkpointed {
            true => self.swap(session, logs, state, 0, budget),
            false => Ok(()),
        }
    }

    /// [`swap`](Self::swap) for a commit of about `lines` lines: if its disk has no room for so long a log, but more than the active one has
    /// left, the commit gets that, since it may be smaller.
    pub(super) fn swap_for_about(
        &self,
        session: &Session,
        logs: &mut [Log<SharedDisk>; 2],
        state: &mut State,
        lines: u64,
        budget: &mut Budget,
    ) -> Result<()> {
        let full = match self.swap(session, logs, state, lines, budget) {
            Err(e @ Error::DiskFull(_)) => e,
            done => return done,
        };
        let has = self.disks.logs[1 - state.active].reserved().map(|bytes| bytes.saturating_sub(RECORDS));
        match has.filter(|bytes| *bytes > logs[state.active].left()) {
            Some(bytes) => self.swap(session, logs, state, Log::<SharedDisk>::lines_in(bytes), budget),
            None => Err(full),
        }
    }

    /// Lets the other log take over, with room for `lines` lines; waits until the image holds that log's commits. The
    /// next process can repeat it after a death in the middle.
    pub(crate) fn swap(
        &self,
        session: &Session,
        logs: &mut [Log<SharedDisk>; 2],
        state: &mut State,
        lines: u64,
        budget: &mut Budget,
    ) -> Result<()> {
        self.checkpoint_to(session, &self.disks.logs[1 - state.active], state.logs[1 - state.active].last, budget)?;
        let last = match state.swapping {
            true => self.end_with_image(state.logs[state.active].last)?,
            false => state.logs[state.active].last,
        };
        let needed = RECORDS + Log::<SharedDisk>::room_for(lines);
        let (next, marks) = (1 - state.active, marks_of(session.memory())?);
        // Else commits could go on in the old log, which has ended by the new header.
        state.swapping = true;
        state.write(marks, self.id)?;
        // A log that had to grow is smaller again: it is read whole after a power cut.
        let usual = state.logs[next].capacity.min(log_bytes(session.memory().size()));
        let has = self.disks.logs[next].reserved().unwrap_or(state.logs[next].capacity);
        logs[next].restart(last, capacity(needed, usual, has))?;
        state.logs[next] = logs[next].position();
        (state.active, state.swapping) = (next, false);
        state.write(marks, self.id)
    }

    /// The last commit: that of the image, if a process that made it anew died, or could not flush it, before the state
    /// in memory said so. Makes such an image durable.
    fn end_with_image(&self, logged: log::Instant) -> Result<log::Instant> {
        let (_, at) = Image::peek(&self.disks.image)?;
        if at.commit <= logged.commit {
            return Ok(logged);
        }
        Image::open(self.disks.image.clone(), Some(self.id))?.settle()?;
        Ok(at)
    }

    /// Checkpoints the log that is not active, if the image lacks any of it and nobody else does; true if it did.
    pub fn checkpoint_if_due(&self, session: &Session) -> Result<bool> {
        let words = session.runtime().backing();
        let Some(state) = State::read(marks_of(session.memory())?, self.id)? else { return Ok(false) };
        let (sealed, last) = (1 - state.active, state.logs[1 - state.active].last);
        if control::refuse_failed(&words).is_err() {
            return Ok(false);
        }
        if !words.is_damaged() {
            if last.commit <= words.checkpointed.load(Ordering::SeqCst) {
                return Ok(false);
            }
            let mut budget = self.budget(session, move || words.hasten.load(Ordering::SeqCst) >= last.commit);
            match self.try_checkpoint(session, &self.disks.logs[sealed], last, &mut budget) {
                Err(_) if words.is_damaged() => {}
                done => return done,
            }
        }
        self.mend_if_damaged(session)
    }

    /// Brings the image to `last`, the end of `log`, to which nobody writes before that. Waits for a process that does
    /// so already, and hastens it if somebody waits for us.
    fn checkpoint_to(
        &self,
        session: &Session,
        log: &SharedDisk,
        last: log::Instant,
        budget: &mut Budget,
    ) -> Result<()> {
        let words = session.runtime().backing();
        while words.checkpointed.load(Ordering::SeqCst) < last.commit {
            if !self.try_checkpoint(session, log, last, budget)? {
                if budget.is_lifted() {
                    words.hasten.fetch_max(last.commit, Ordering::SeqCst);
                }
                session.memory().wait_by(|| std::thread::sleep(CHECKPOINTING));
                control::refuse_failed(&words)?;
            }
        }
        Ok(())
    }

    /// Checkpoints unless somebody else does.
    fn try_checkpoint(
        &self,
        session: &Session,
        log: &SharedDisk,
        last: log::Instant,
        budget: &mut Budget,
    ) -> Result<bool> {
        let mut pages = match self.pages.try_lock() {
            Ok(pages) => pages,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let words = session.runtime().backing();
        if !session.take_role(words.checkpointer)? {
            return Ok(false);
        }
        let role = Checkpointer(words.checkpointer);
        let checkpointed = match self.awaited {
            true => self.checkpoint_image(&mut pages, log, last, &mut Budget::unlimited()),
            false => self.checkpoint_image(&mut pages, log, last, budget),
        };
        session.memory().step();
        match &checkpointed {
            Ok(()) => _ = words.checkpointed.fetch_max(last.commit, Ordering::SeqCst),
            // Commits may have room in the logs for long; a commit without room reports it.
            Err(Error::DiskFull(_)) => {}
            // The log is still there, and so is memory.
            Err(e) => session.runtime().damage_backing(&e.to_string()),
        }
        session.memory().step();
        drop(role);
        checkpointed.map(|()| true)
    }

    fn checkpoint_image(
        &self,
        pages: &mut Option<Image<SharedDisk>>,
        log: &SharedDisk,
        last: log::Instant,
        budget: &mut Budget,
    ) -> Result<()> {
        // Another process may have checkpointed meanwhile, and died before its header was durable: the log must not go
        // before the header is.
        if pages.as_ref().map(Image::instant) != Some(Image::peek(&self.disks.image)?.1) {
            let opened = pages.insert(Image::open(self.disks.image.clone(), Some(self.id))?);
            opened.settle()?;
        }
        match pages {
            Some(pages) => checkpoint::checkpoint(pages, log, last, budget),
            None => Ok(()),
        }
    }
}
