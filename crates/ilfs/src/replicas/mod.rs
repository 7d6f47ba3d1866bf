//! Replicas of segments: making those that are lacking. [`read_order`](super::read_order) chooses the one to read.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | chooses the next segment, and handles the result |
//! | `lacking` | in how many replicas content lies, and which content lacks some |
//! | `slot` | step 1: a slot for a replica |
//! | `fill` | steps 2 and 3: choosing the blocks to copy, and copying them |
//!
//! A segment that is written to all its replicas at once has them from the beginning. Others get further replicas here. A
//! lazy segment gets one when it is due; content that was deleted or overwritten by then is never copied (I·LFS, section
//! 5.4). A segment that lost a replica gets one when that is found. Only live blocks are copied (*intelligent
//! reconstruction*, section 8), files of higher priority first.
//!
//! | step | action | otherwise |
//! | --- | --- | --- |
//! | 1 | a transaction gives the segment a free slot in another domain, as a partial replica | the slot is used for something else meanwhile; after a crash its use is unknown |
//! | 2 | the summaries tell which blocks are in the segment, their owners which of them are live. All blocks are copied where some may be on their way to a file; the segment waits for later where a part may be on its way to a disk | a block that is linked after it was looked at is not in the replica |
//! | 3 | live blocks are read, verified, and written to their positions in the segment, with its summaries; durable | the replica is believed before it is there |
//! | 4 | the replica counts, if the slot still belongs to that segment | |
//!
//! A segment that cannot be read now, or is being written, is set aside for a while, and others are copied. A replica never
//! counts while it lacks a block that a disk may give later: the replica with that block may be dropped then, and the block
//! with it. If the disk does not give the block for long, the other live blocks of the segment are moved, and get their
//! replicas elsewhere. A block that is wrong in each replica is lost, and does not hinder copying the rest.
//!
//! An interrupted replica stays partial; the next attempt makes it anew. One process does this at a time. A segment with
//! more replicas than it is to have, because a region came back, loses one.

mod fill;
mod lacking;
mod slot;

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::PoisonError;

use pram::session::assert_may_wait;
use pram::Session;

use crate::avoided::{ASIDE, LATER, SOON};
use crate::error::{Error, Result};
use crate::failure::{cause_of, is_gone, is_of_the_slot};
use crate::files::Files;
use crate::part::Owner;
use crate::place::Place;
use crate::table::{Health, Home, Segment, SlotState, KEY};
use crate::Log;
use fill::Filled;
use lacking::{counts, whole};

pub use lacking::Lacking;

/// Bytes that are copied at a time at most: between them `go_on` is asked.
pub(crate) const MOST_PIECE: u64 = 1 << 20;

/// The result of a request for a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicated {
    /// A segment has a replica more; so many bytes of content were copied.
    Made {
        sequence: u64,
        bytes: u64,
    },
    /// A segment has one replica less: it had too many.
    Dropped {
        sequence: u64,
    },
    /// Nothing is lacking, or it is not due yet.
    Nothing,
    /// No region has room for a replica.
    NoRoom,
    Interrupted,
}

/// Why a replica is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Odd {
    /// It is not whole, and the process that was making it is dead.
    Partial,
    /// It is in a region that leaves: its slot is not used again in any case.
    Leaving,
    /// The same, but fewer replicas are left than the segment is to have, as was allowed: it stays until all else has
    /// left.
    GivenUp,
    Surplus,
}

/// What is to be done to a segment.
#[derive(Clone, Copy)]
pub(crate) enum Task {
    Make { slot: u32, segment: Segment },
    Drop { sequence: u64, slot: u32, what: Odd },
}

impl Log {
    /// Makes the most urgent of the lacking replicas that can be made, or drops a replica that is too many. `go_on` is asked
    /// between pieces, with the bytes of the next piece, and may sleep.
    pub fn make_next_replica(
        &self,
        session: &Session,
        files: &dyn Files,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Replicated> {
        assert_may_wait();
        self.check_failed()?;
        self.refresh(session)?;
        loop {
            match self.next_task(session)? {
                None => return Ok(Replicated::Nothing),
                // A slot of a region that leaves is used no more anyway.
                Some(Task::Drop { sequence, slot, what }) => {
                    let is_quiet = what == Odd::Partial || self.is_quiet(session, sequence)?;
                    if is_quiet || matches!(what, Odd::Leaving | Odd::GivenUp) {
                        // A slot that may yet be written to is not used again.
                        self.change(session, |change| change.drop_replica(sequence, slot, !is_quiet, files.epoch()))?;
                        return Ok(Replicated::Dropped { sequence });
                    }
                    self.set_aside(sequence, SOON);
                }
                Some(Task::Make { slot, segment }) => {
                    match self.make_replica_in(session, files, slot, segment, None, go_on)? {
                        // Others are copied first.
                        Replicated::Nothing => self.set_aside(segment.sequence, SOON),
                        done => return Ok(done),
                    }
                }
            }
            if !go_on(0) {
                return Ok(Replicated::Interrupted);
            }
        }
    }

    /// The most urgent of the tasks that can be done.
    pub(crate) fn next_task(&self, session: &Session) -> Result<Option<Task>> {
        let mut agenda = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        if !agenda.counts(&()) {
            let (began, mut looked, mut found) = (self.clock.instant(), 0, Vec::new());
            let (gives_up, mut is_in_place) = (self.gives_up(session)?, true);
            self.each_used(session, &mut |slot, segment| {
                looked += 1;
                is_in_place = is_in_place && (!gives_up || self.is_in_place(session, slot, &segment));
                found.extend(
                    self.task_of(session, slot, &segment).map(|(urgency, _)| (urgency, slot, segment.sequence)),
                );
            })?;
            agenda.fill((), (began, looked), found);
            self.is_in_place.store(is_in_place, Ordering::Relaxed);
        }
        let table = self.at.table(session.memory());
        while let Some((slot, sequence)) = agenda.take() {
            let segment = session.read(KEY, || table.get(slot))?;
            if segment.sequence == sequence && segment.state.is_used() {
                match self.task_of(session, slot, &segment) {
                    Some((_, Task::Drop { what: Odd::GivenUp, .. })) if !self.is_in_place.load(Ordering::Relaxed) => {}
                    Some((_, task)) => return Ok(Some(task)),
                    None => {}
                }
            }
        }
        Ok(None)
    }

    /// May replicas in regions that leave be given up without replacement?
    fn gives_up(&self, session: &Session) -> Result<bool> {
        let regions = session.read(KEY, || self.at.table(session.memory()).regions())?;
        Ok(regions
            .iter()
            .any(|(_, region)| region.health() == Health::Leaving && region.least_replicas(u32::MAX) != u32::MAX))
    }

    /// Will a segment have as many replicas as it keeps once the regions that leave have left?
    fn is_in_place(&self, session: &Session, slot: u32, segment: &Segment) -> bool {
        let table = self.at.table(session.memory());
        let Ok(homes) = session.read(KEY, || table.homes(slot, segment)) else { return false };
        let leaving = homes.iter().find(|home| home.health == Health::Leaving && !home.partial);
        segment.live == 0 || leaving.is_none_or(|home| whole(&homes) >= u64::from(home.least_replicas))
    }

    /// The task for a segment, and its urgency: surplus replicas first, then lacking ones, files of higher priority first,
    /// and of the same priority segments without a replica in use.
    fn task_of(&self, session: &Session, slot: u32, segment: &Segment) -> Option<((u8, u8, u32, u64), Task)> {
        let is_plain = segment.class == 0 && segment.replica.is_none();
        if is_plain || segment.live == 0 || segment.state == SlotState::Cleaning {
            return None;
        }
        let (table, areas, sequence) = (self.at.table(session.memory()), self.areas(), segment.sequence);
        let homes = session.read(KEY, || table.homes(slot, segment)).ok()?;
        let whole = whole(&homes);
        let wanted = u64::from(segment.wanted()).min(areas.domains());
        if let Some(partial) = homes.iter().find(|home| home.partial) {
            // The process that was making it is dead.
            let drop = Task::Drop { sequence, slot: partial.slot, what: Odd::Partial };
            return Some(((0, 0, 0, sequence), drop));
        }
        if let Some(slot) = surplus(&homes, whole, segment.wanted().into()) {
            let leaves = homes.iter().any(|home| home.slot == slot && home.health == Health::Leaving);
            let what = match leaves {
                true if whole < u64::from(segment.wanted()) => Odd::GivenUp,
                true => Odd::Leaving,
                false => Odd::Surplus,
            };
            let drop = Task::Drop { sequence, slot, what };
            return (leaves || !self.is_aside(sequence)).then_some(((0, 0, 0, sequence), drop));
        }
        let is_there = |home: &Home| areas.list.iter().any(|area| area.n == home.n && area.region.is_some());
        // A segment is copied only if a region with one of its replicas is there.
        let can = || homes.iter().any(|home| !home.partial && is_there(home)) && !self.is_aside(sequence);
        let urgency = (1, 2 - segment.priority.min(2), u32::from(whole > 0), sequence);
        let is_due = whole < wanted && segment.due <= self.seconds() && can();
        is_due.then_some((urgency, Task::Make { slot, segment: *segment }))
    }

    /// Steps 1 to 4; `within`: in one of these regions, the first that has room.
    pub(crate) fn make_replica_in(
        &self,
        session: &Session,
        files: &dyn Files,
        slot: u32,
        segment: Segment,
        within: Option<&[u32]>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Replicated> {
        let sequence = segment.sequence;
        // Closed: a part that came later would not be in the replica.
        let Some((slot, segment)) = self.closed(session, slot, sequence)? else { return Ok(Replicated::Nothing) };
        // 1.
        let target = match self.take_slot(session, slot, &segment, within) {
            Err(Error::NoSpace) => {
                // Other segments may find room.
                self.set_aside(sequence, SOON);
                return Ok(Replicated::NoRoom);
            }
            target => target?,
        };
        let done = self.fill(session, files, (slot, &segment), target, within.is_some(), go_on);
        let is_whole = self.end_fill(session, files, &segment, target, &done)?;
        self.outcome(session, files, sequence, target, done, is_whole)
    }

    /// Step 4: counts the replica, or gives it up. Does it count?
    fn end_fill(
        &self,
        session: &Session,
        files: &dyn Files,
        segment: &Segment,
        target: u32,
        done: &Result<Filled>,
    ) -> Result<bool> {
        let sequence = segment.sequence;
        let is_whole = matches!(done, Ok(Filled::Whole(_)))
            && self.change(session, |change| match change.table().find(sequence)? {
                Some((_, now)) if now.used == segment.used => change.end_replica(sequence, target),
                _ => Ok(false),
            })?;
        if !is_whole {
            let failed = matches!(done, Ok(Filled::Failed(e)) if is_of_the_slot(e));
            if let Some(lies) = self.lies(session, target).ok().filter(|_| failed) {
                self.add_late(target, lies.at, &lies.region);
            }
            self.change(session, |change| change.drop_replica(sequence, target, failed, files.epoch()))?;
        }
        Ok(is_whole)
    }

    /// The result of a replica; sets its segment aside if it was not made.
    fn outcome(
        &self,
        session: &Session,
        files: &dyn Files,
        sequence: u64,
        target: u32,
        done: Result<Filled>,
        is_whole: bool,
    ) -> Result<Replicated> {
        match done {
            Ok(Filled::Whole(bytes)) if is_whole => {
                self.aside().remove(sequence);
                self.unread().remove(&sequence);
                let number = self.area_of(session, target)?.number;
                self.full.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
                Ok(Replicated::Made { sequence, bytes })
            }
            Ok(Filled::Whole(_) | Filled::Undecided) => {
                self.set_aside(sequence, SOON);
                Ok(Replicated::Nothing)
            }
            Ok(Filled::Unread(rest)) => {
                tracing::error!("segment {sequence} cannot be copied: a disk does not give all of it, or is not there");
                self.set_aside(sequence, LATER);
                self.move_rest(session, files, sequence, &rest)?;
                Ok(Replicated::Nothing)
            }
            Ok(Filled::Interrupted) => Ok(Replicated::Interrupted),
            // The host promised room and has none: other segments are copied, elsewhere.
            Ok(Filled::Failed(e)) if e.class == exraid::Class::NoSpace => {
                let number = self.area_of(session, target)?.number;
                tracing::warn!("region {number} takes no replicas for a while: {e}");
                self.set_full(number);
                self.set_aside(sequence, SOON);
                Ok(Replicated::Nothing)
            }
            Ok(Filled::Failed(e)) => {
                self.set_aside(sequence, SOON);
                if is_gone(&e) {
                    let cause = cause_of(&e);
                    let number = self.area_of(session, target)?.number;
                    self.fence(session, number, cause, &e)?;
                }
                Err(e.into())
            }
            // It cannot be read: that is reported, and other segments follow.
            Err(e @ (Error::Missing(_) | Error::Damaged { .. } | Error::Device(_) | Error::Lost(_))) => {
                tracing::error!("segment {sequence} cannot be copied: {e}");
                self.set_aside(sequence, LATER);
                Ok(Replicated::Nothing)
            }
            Err(e) => Err(e),
        }
    }

    fn unread(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A disk does not give all of a segment, which therefore gets no replica. The second time, the other live blocks of
    /// the segment are moved, as far as there is room.
    fn move_rest(&self, session: &Session, files: &dyn Files, sequence: u64, rest: &[(Owner, Place)]) -> Result<()> {
        {
            let mut unread = self.unread();
            if unread.len() >= ASIDE {
                unread.clear();
            }
            if unread.insert(sequence) {
                return Ok(());
            }
        }
        match self.rehome(session, files, rest) {
            Ok(_) | Err(Error::NoSpace) => Ok(()),
            // These too cannot be read any more: try again later.
            Err(e @ (Error::Missing(_) | Error::Damaged { .. } | Error::Lost(_))) => {
                tracing::error!("segment {sequence} cannot be moved: {e}");
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

/// The replica to drop if there are too many, of which `whole` count. One in a region that leaves, once there are as many
/// as it keeps. Else one in a region that has failed, once there are as many as wanted. Else the last.
fn surplus(homes: &[Home], whole: u64, wanted: u64) -> Option<u32> {
    let odd = |health| homes.iter().find(|home| home.health == health && !home.partial);
    match (odd(Health::Leaving), odd(Health::Failed)) {
        (Some(home), _) if whole >= u64::from(home.least_replicas.max(1)) => Some(home.slot),
        (_, Some(home)) if whole >= wanted => Some(home.slot),
        // Two in one domain count as one.
        _ if whole >= wanted && homes.iter().filter(|home| counts(home)).count() as u64 > wanted => {
            let is_double = |home: &&Home| homes.iter().filter(|h| counts(h) && h.domain == home.domain).count() > 1;
            let all = || homes.iter().rev().filter(|home| counts(home));
            all().find(is_double).or(all().next()).map(|home| home.slot)
        }
        _ => None,
    }
}
