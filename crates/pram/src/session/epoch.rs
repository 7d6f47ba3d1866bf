//! Epochs: how the instants of commits divide the changes of all operations.
//!
//! The *epoch* is one number of the memory's state. It moves on while all operations stand still, so an operation is in
//! one epoch from its beginning to its end. A stamp with an earlier number is older than the last such instant.
//! With a backing, each commit moves the epoch on: the backing then holds the epochs before. Without one, where
//! visible is durable, background work moves it on from time to time.
//!
//! | | |
//! | --- | --- |
//! | running | the epoch that operations are in |
//! | durable | all epochs before this one are durable; it is the running one or an earlier one |
//! | recovered | the epoch that was running in the state from which the memory was made, after it was lost |
//!
//! Numbers are never used again. A memory that is made from a backing or an image may have lost some later epochs. So
//! its running epoch begins far beyond, at a random distance: two memories made from one backing have no numbers in
//! common. Numbers from `recovered` to below that beginning belong to the lost epochs.
//!
//! *Participants* have a part in commits: an epoch decides the state of something that they store. Any process may lead
//! a commit, so each has them, and their data is shared.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::{Frozen, Session};
use crate::clock::precise as now;
use crate::error::Result;
use crate::memory::{EPOCH_ROOT, RECOVERED_ROOT};
use crate::runtime::control::{note_failure, refuse_failed};

/// A part of each commit beside the memory. Its failure is a failure of the commit: nothing can be made durable any
/// more, or after [`DiskFull`](crate::Error::DiskFull) not until a later commit has found room. A step is not tried
/// again: its data is not in memory alone.
///
/// Ordered steps of the end of epoch E:
/// 0. [`prepare`](Self::prepare), with a backing alone: work that need not wait for the instant is done before it.
///    (Else step 1 or 3 would take long.)
/// 1. [`at_rest`](Self::at_rest): all operations stand still. (Else the participant would look at the state of no
///    instant.)
/// 2. The epoch is E + 1. Operations go on.
/// 3. [`write`](Self::write): the data of E goes to its device. (Before 4: else the commit would refer to data that is
///    not there.)
/// 4. The commit is durable, and so is E, which is noted.
/// 5. [`durable`](Self::durable). (After 4: room that E has freed may be used again from here on.)
///
/// A process that dies, or finds no room, between 2 and 5 leaves E to the next commit, which holds E and the epochs
/// since.
pub trait Participant: Send + Sync {
    /// Is there anything to commit, even if nothing in the memory has changed?
    fn is_due(&self, _session: &Session) -> bool {
        false
    }

    /// A commit begins, `awaited` by somebody or not, while operations go on. The participant may wait for devices, in
    /// operations of its own; it must not wait for a commit. It leaves the rest of its work to the following steps.
    fn prepare(&self, _session: &Session, _awaited: bool) {}

    /// All operations stand still at the end of `epoch`: bounded work, no device. Stores to the memory are part of the
    /// commit.
    fn at_rest(&self, _still: &Frozen, _epoch: u64) -> Result<()> {
        Ok(())
    }

    /// Makes the data durable of `epoch` and of those before that are not durable yet, while operations go on. It may
    /// wait for devices; it must not begin an operation that waits for this commit.
    fn write(&self, _session: &Session, _epoch: u64) -> Result<()> {
        Ok(())
    }

    /// `epoch` and all before are durable. Not called if the commit's leader died: a participant that needs such an
    /// epoch
    /// reads [`Epochs::durable`].
    fn durable(&self, _session: &Session, _epoch: u64) {}
}

/// How far epochs have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs {
    pub running: u64,
    /// All before this one are durable. 0, if unknown, until the first commit.
    pub durable: u64,
    /// 0: the memory was never made from a backing or an image.
    pub recovered: u64,
}

/// The participants of a process.
#[derive(Default)]
pub(crate) struct Participants(RwLock<Vec<Arc<dyn Participant>>>);

impl Participants {
    fn all(&self) -> Vec<Arc<dyn Participant>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Session {
    /// Gives `participant` a part in all commits that this process leads from now on. Before anything needs it.
    pub fn enlist(&self, participant: Arc<dyn Participant>) {
        self.participants.0.write().unwrap_or_else(PoisonError::into_inner).push(participant);
    }

    /// The running epoch. It does not change during an operation.
    #[inline(always)]
    pub fn epoch(&self) -> Result<u64> {
        self.memory.load(self.memory.root(EPOCH_ROOT))
    }

    pub fn epochs(&self) -> Result<Epochs> {
        let recovered = self.memory.load(self.memory.root(RECOVERED_ROOT))?;
        // In this order: else a running epoch could seem durable.
        let durable = self.rt.durable();
        Ok(Epochs { running: self.epoch()?, durable, recovered })
    }

    /// Has any participant something to commit?
    pub fn is_due(&self) -> bool {
        self.participants.all().iter().any(|p| p.is_due(self))
    }

    /// Step 0.
    pub fn prepare_epoch(&self, awaited: bool) {
        self.participants.all().iter().for_each(|p| p.prepare(self, awaited));
    }

    /// Steps 1 and 2; returns the epoch that has ended.
    pub fn end_epoch(&self, still: &Frozen) -> Result<u64> {
        let epoch = self.epoch()?;
        self.participants
            .all()
            .iter()
            .try_for_each(|p| p.at_rest(still, epoch))
            .inspect_err(|e| note_failure(&self.rt, e))?;
        self.memory.commit_word(self.memory.root(EPOCH_ROOT), epoch + 1)?;
        Ok(epoch)
    }

    /// Step 3.
    pub fn write_epoch(&self, epoch: u64) -> Result<()> {
        self.participants.all().iter().try_for_each(|p| p.write(self, epoch)).inspect_err(|e| note_failure(&self.rt, e))
    }

    /// Step 5, after noting the epoch as durable for all processes.
    pub fn note_durable(&self, epoch: u64) {
        self.rt.note_durable(epoch + 1);
        self.participants.all().iter().for_each(|p| p.durable(self, epoch));
    }

    /// [`move_on`](Self::move_on), if the epoch has been running for `interval` and had any operation.
    pub fn move_on_if_due(&self, interval: Duration) -> Result<bool> {
        let (words, uses) = (self.rt.backing(), self.rt.uses());
        let idle = || self.rt.uses_at_move().load(Ordering::Relaxed) == uses && !self.is_due();
        if self.is_backed() || !words.is_due(interval.as_nanos() as u64) || idle() || !self.move_on()? {
            return Ok(false);
        }
        words.note_time(now(), 0);
        self.rt.uses_at_move().store(uses, Ordering::Relaxed);
        Ok(true)
    }

    /// Ends the running epoch of a memory without a backing; false if it has one, or another process is ending the epoch.
    pub fn move_on(&self) -> Result<bool> {
        let words = self.rt.backing();
        if self.is_backed() || !self.take_role(words.committer)? {
            return Ok(false);
        }
        let role = Mover(self);
        refuse_failed(&words)?;
        let moved = || -> Result<u64> {
            let still = self.freeze()?;
            let epoch = self.end_epoch(&still)?;
            drop(still);
            self.memory.step();
            self.write_epoch(epoch).map(|()| epoch)
        };
        let epoch = moved().inspect_err(|e| note_failure(&self.rt, e))?;
        self.memory.step();
        self.note_durable(epoch);
        drop(role);
        Ok(true)
    }
}

/// The right to move the epoch on, given up also by a panic.
struct Mover<'a>(&'a Session);

impl Drop for Mover<'_> {
    fn drop(&mut self) {
        self.0.rt.backing().committer.store(0, Ordering::SeqCst);
    }
}
