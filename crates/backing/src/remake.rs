//! Making the backing anew from memory, after a part of it has proved damaged or could not be written: memory is whole,
//! and has all commits that the backing lacks.
//!
//! It is a commit that goes into an image instead of a log. No page and no record of the backing is read.
//!
//! Ordered steps, with the right to commit and to checkpoint:
//! 1. Every page that a backing holds is marked. (Else an unchanged page would be missing. A death leaves too many
//!    marks.) The logs' state says that one is being begun anew. (Else the next process, after a death behind 4, would
//!    append to a log that does not count; now it looks whether the image has gone ahead.) Unreadable headers of logs
//!    are written again from the state in memory. (Else nothing would be known of the logs in 4, and none could be
//!    begun in 7. Without them there is no backing.)
//! 2. The image is made durable. (Else, if its header could not be flushed, a power cut would leave the image before,
//!    over whose slots the new one is written.) All marked lines go to slots that the image does not use, until few are
//!    left, and those while all operations stand still. There the epoch ends. (The backing stays as it was: its readable
//!    parts hold until 4.)
//! 3. Participants write. (Before 4: else the image would refer to data that is not there.)
//! 4. The image's header, as in [`image`](super::image). It says that the logs do not count. (Else recovery would take
//!    them for those of another copy: they end before the image.) From here on all is durable.
//! 5. The logs' state in memory: both are spent. (Before 6: else the next commit would have this one's number.)
//! 6. The marks are cleared, participants run.
//! 7. The other log takes over, as always. (If it cannot be begun nothing more can be made durable.)

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::commit::{marks_of, Backing, Logs};
use super::image::{Anew, Image};
use super::log::{Instant, Log};
use super::rounds::{self, Put};
use super::state::State;
use pram::budget::Budget;
use pram::error::{Error, Result};
use pram::session::{Frozen, Session};

impl Backing {
    /// Makes the backing anew; returns the commit's time.
    pub(crate) fn make_anew(&self, session: &Session, logs: Logs, budget: &mut Budget, see: Put) -> Result<i64> {
        let (marks, memory) = (marks_of(session.memory())?, session.memory());
        let mut state = State::read(marks, self.id())?
            .ok_or_else(|| Error::Unusable("the memory that says what has changed is damaged".into()))?;
        let commit = state.logs.iter().map(|log| log.last.commit).max().unwrap_or(0) + 1;
        memory.note_begun(commit)?;
        // 1.
        memory.copied()?.into_iter().try_for_each(|held| marks.mark(held.start, held.end - held.start))?;
        state.swapping = true;
        state.write(marks, self.id())?;
        memory.step();
        let lineage = self.lineage(session)?;
        self.write_headers_again(&state, commit, lineage)?;
        // 2 to 4.
        let anew = Anew { lineage, generation: newest_generation(&state) };
        session.runtime().backing().hasten.fetch_max(commit, Ordering::SeqCst);
        let (epoch, at) = self.while_checkpointing(session, || self.write_image(session, anew, commit, budget, see))?;
        session.memory().step();
        // 5.
        state.logs = state.logs.map(|log| log.spent(at));
        state.durable = epoch + 1;
        state.write(marks, self.id())?;
        session.memory().step();
        // 6.
        session.runtime().backing().checkpointed.fetch_max(commit, Ordering::SeqCst);
        marks.clear_written()?;
        session.note_durable(epoch);
        session.memory().step();
        // 7. The logs forget earlier failures: nothing that failed is used.
        *logs = self.resumed(&state);
        self.swap(session, logs, &mut state, 0, budget)?;
        session.runtime().note_anew();
        Ok(at.time)
    }

    /// Steps 2 to 4; returns the epoch that has ended, and the instant.
    fn write_image(
        &self,
        session: &Session,
        anew: Anew,
        commit: u64,
        budget: &mut Budget,
        see: Put,
    ) -> Result<(u64, Instant)> {
        let (disk, id) = (&self.disks().image, self.id());
        let mut image = match Image::open(disk.clone(), Some(id)) {
            Ok(mut image) => image.settle().map(|()| image)?,
            // This one counts all slots as taken, also those of an earlier image.
            Err(_) => Image::open_unread(disk.clone(), id)?,
        };
        let mut update = image.begin_anew(anew);
        let put = &mut |off: u64, bytes: &[u8]| see(off, bytes).and_then(|()| update.patch(off, bytes));
        let at_rest = |still: &Frozen| Ok((session.end_epoch(still)?, pram::clock::precise()));
        let written = rounds::write(session, marks_of(session.memory())?, true, Duration::ZERO, budget, put, at_rest)?;
        let (epoch, time) = written.ok_or_else(|| Error::Unusable("nothing was written".into()))?;
        session.write_epoch(epoch)?;
        let at = Instant { commit, time };
        update.finish(at)?;
        Ok((epoch, at))
    }

    fn write_headers_again(&self, state: &State, commit: u64, lineage: u32) -> Result<()> {
        for (n, disk) in self.disks().logs.iter().enumerate() {
            // The active one began later.
            let first = if n == state.active { commit } else { 1 };
            if Log::began(disk, self.id()).is_err() {
                Log::write_header_again(disk, self.id(), &state.logs[n], first, lineage)?;
            }
        }
        Ok(())
    }

    /// The lineage of the backing, from one of the logs, or else from the memory.
    fn lineage(&self, session: &Session) -> Result<u32> {
        let of = |n: usize| Log::began(&self.disks().logs[n], self.id()).map(|began| began.lineage);
        of(0)
            .or_else(|_| of(1))
            .or_else(|_| session.memory().backing_position().map(|backing_position| backing_position.lineage))
    }
}

/// The newest generation that a log can have on disk: one may be about to begin.
fn newest_generation(state: &State) -> u64 {
    state.logs[state.active].generation.max(state.logs[1 - state.active].generation + 1)
}
