//! Copies of segments: making those that are lacking. Which of them is read, [`read_order`](super::read_order) says.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | which segment is next, and what becomes of it |
//! | `lacking` | in how many copies content lies, and what lacks some |
//! | `slot` | step 1: a slot for a copy |
//! | `fill` | steps 2 and 3: what is copied, and copying it |
//!
//! A segment that is written to all its copies at once has them from the beginning. One gets a further copy here: a lazy one when it is
//! due (I·LFS, section 5.4: what was deleted or overwritten by then is copied by nobody), and one that has lost some when it is found.
//! Only what is live is copied (*intelligent reconstruction*, section 8), files of higher priority first.
//!
//! | step | what | else |
//! | --- | --- | --- |
//! | 1 | a free slot in another domain is the segment's, as a partial copy, by a transaction | it is used for something else meanwhile; after a crash nobody knows what it is |
//! | 2 | the summaries tell what is in the segment, its owners what is live; where some may be on its way to a file, all of it is; where a part may be on its way to a disk, it is left for later | a block that is linked after it was looked at is not in the copy |
//! | 3 | live blocks are read, verified, and written where they lie in the segment, with its summaries; durable | the copy is believed before it is there |
//! | 4 | the copy counts, if the segment is still that one | |
//!
//! What cannot be copied now, since it cannot be read or is being written, is set aside for a while: others have their turn. A copy never
//! counts that lacks what a disk may give later: else that is lost with the copy from which it could not be read, which may be dropped
//! then. Where a disk does not give it for long, what else is live in the segment is moved, and has its copies elsewhere. What each copy has
//! wrong is lost, and keeps the rest from nothing.
//!
//! Who is interrupted leaves a partial copy, which the next one makes anew. One process does this at a time. A segment that has more copies
//! than it is to have, because a region came back, loses one.

mod fill;
mod lacking;
mod slot;

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::Instant;

use pram::session::assert_may_wait;
use pram::Session;

use crate::avoided::{ASIDE, LATER, SOON};
use crate::error::{Error, Result};
use crate::failure::{cause_of, is_gone, is_of_the_slot};
use crate::files::Files;
use crate::part::Owner;
use crate::place::Place;
use crate::room::seconds;
use crate::table::{Health, Home, Segment, State, KEY};
use crate::Log;
use fill::Filled;
use lacking::{counts, whole};

pub use lacking::Lacking;

/// Bytes that are copied at a time at most: between them `go_on` is asked.
pub(crate) const MOST_PIECE: u64 = 1 << 20;

/// What came of the wish to make a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// A segment has a copy more; so many bytes of content were copied.
    Made {
        sequence: u64,
        bytes: u64,
    },
    /// A segment has one less, of more than it is to have.
    Dropped {
        sequence: u64,
    },
    /// The time of some has not come, or there is nothing to do.
    Nothing,
    /// Nowhere is room for a copy.
    NoRoom,
    Interrupted,
}

/// Which copy is one too many.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Odd {
    /// It is not whole, and who was making it is gone.
    Partial,
    /// One in a region that leaves: its slot is not used again in any case.
    Leaving,
    /// The same, where fewer are left than the segment is to have, as was allowed: it stays until all else has left.
    GivenUp,
    Surplus,
}

/// What is to be done to a segment.
#[derive(Clone, Copy)]
pub(crate) enum Task {
    Copy { slot: u32, segment: Segment },
    Drop { sequence: u64, slot: u32, what: Odd },
}

impl Log {
    /// Makes one copy, of those that are lacking and can be made, the most urgent; or drops one that is too many. `go_on` is asked
    /// between pieces, with the bytes that are next, and may sleep.
    pub fn copy_next(
        &self,
        session: &Session,
        files: &dyn Files,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Copied> {
        assert_may_wait();
        self.check_failed()?;
        self.refresh(session)?;
        loop {
            match self.next_task(session)? {
                None => return Ok(Copied::Nothing),
                // A slot of a region that leaves is used no more anyway.
                Some(Task::Drop { sequence, slot, what }) => {
                    let is_quiet = what == Odd::Partial || self.is_quiet(session, sequence)?;
                    if is_quiet || matches!(what, Odd::Leaving | Odd::GivenUp) {
                        // What may be written to yet is not used again.
                        self.change(session, |change| change.drop_copy(sequence, slot, !is_quiet, files.epoch()))?;
                        return Ok(Copied::Dropped { sequence });
                    }
                    self.set_aside(sequence, SOON);
                }
                Some(Task::Copy { slot, segment }) => {
                    match self.make_copy_in(session, files, slot, segment, None, go_on)? {
                        // Others have their turn.
                        Copied::Nothing => self.set_aside(segment.sequence, SOON),
                        done => return Ok(done),
                    }
                }
            }
            if !go_on(0) {
                return Ok(Copied::Interrupted);
            }
        }
    }

    /// The most urgent, of those that can be done.
    pub(crate) fn next_task(&self, session: &Session) -> Result<Option<Task>> {
        let mut agenda = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        if !agenda.counts(&()) {
            let (began, mut looked, mut found) = (Instant::now(), 0, Vec::new());
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

    /// May copies be given up that are in regions that leave?
    fn gives_up(&self, session: &Session) -> Result<bool> {
        let regions = session.read(KEY, || self.at.table(session.memory()).regions())?;
        Ok(regions
            .iter()
            .any(|(_, region)| region.health() == Health::Leaving && region.least_replicas(u32::MAX) != u32::MAX))
    }

    /// Has a segment as many copies elsewhere as it keeps when what leaves has left?
    fn is_in_place(&self, session: &Session, slot: u32, segment: &Segment) -> bool {
        let table = self.at.table(session.memory());
        let Ok(homes) = session.read(KEY, || table.homes(slot, segment)) else { return false };
        let leaving = homes.iter().find(|home| home.health == Health::Leaving && !home.partial);
        segment.live == 0 || leaving.is_none_or(|home| whole(&homes) >= u64::from(home.least_replicas))
    }

    /// What is to be done to a segment, and how urgent that is: first what there is too much of, then what is lacking of files of higher
    /// priority, of these what has no copy left in use.
    fn task_of(&self, session: &Session, slot: u32, segment: &Segment) -> Option<((u8, u8, u32, u64), Task)> {
        let is_plain = segment.class == 0 && segment.copy.is_none();
        if is_plain || segment.live == 0 || segment.state == State::Cleaning {
            return None;
        }
        let (table, areas, sequence) = (self.at.table(session.memory()), self.areas(), segment.sequence);
        let homes = session.read(KEY, || table.homes(slot, segment)).ok()?;
        let whole = whole(&homes);
        let wanted = u64::from(segment.wanted()).min(areas.domains());
        if let Some(partial) = homes.iter().find(|home| home.partial) {
            // Who was making it is gone.
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
        // Of one of which nothing is there nothing can be copied.
        let can = || homes.iter().any(|home| !home.partial && is_there(home)) && !self.is_aside(sequence);
        let urgency = (1, 2 - segment.priority.min(2), u32::from(whole > 0), sequence);
        let is_due = whole < wanted && segment.due <= seconds() && can();
        is_due.then_some((urgency, Task::Copy { slot, segment: *segment }))
    }

    /// Steps 1 to 4; `within`: in one of these regions, the first that has room.
    pub(crate) fn make_copy_in(
        &self,
        session: &Session,
        files: &dyn Files,
        slot: u32,
        segment: Segment,
        within: Option<&[u32]>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Copied> {
        let sequence = segment.sequence;
        // It takes no more: what comes later would not be in the copy.
        let Some((slot, segment)) = self.closed(session, slot, sequence)? else { return Ok(Copied::Nothing) };
        // 1.
        let target = match self.take_slot(session, slot, &segment, within) {
            Err(Error::NoSpace) => {
                // Others may find room.
                self.set_aside(sequence, SOON);
                return Ok(Copied::NoRoom);
            }
            target => target?,
        };
        let done = self.fill(session, files, (slot, &segment), target, within.is_some(), go_on);
        let is_whole = self.end_fill(session, files, &segment, target, &done)?;
        self.outcome(session, files, sequence, target, done, is_whole)
    }

    /// Step 4: the copy counts, or is given up. Does it count?
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
                Some((_, now)) if now.used == segment.used => change.end_copy(sequence, target),
                _ => Ok(false),
            })?;
        if !is_whole {
            let failed = matches!(done, Ok(Filled::Failed(e)) if is_of_the_slot(e));
            if let Some(lies) = self.lies(session, target).ok().filter(|_| failed) {
                self.add_late(target, lies.at, &lies.region);
            }
            self.change(session, |change| change.drop_copy(sequence, target, failed, files.epoch()))?;
        }
        Ok(is_whole)
    }

    /// What came of a copy, and for how long its segment is set aside.
    fn outcome(
        &self,
        session: &Session,
        files: &dyn Files,
        sequence: u64,
        target: u32,
        done: Result<Filled>,
        is_whole: bool,
    ) -> Result<Copied> {
        match done {
            Ok(Filled::Whole(bytes)) if is_whole => {
                self.aside().remove(sequence);
                self.unread().remove(&sequence);
                let number = self.area_of(session, target)?.number;
                self.full.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
                Ok(Copied::Made { sequence, bytes })
            }
            Ok(Filled::Whole(_) | Filled::Undecided) => {
                self.set_aside(sequence, SOON);
                Ok(Copied::Nothing)
            }
            Ok(Filled::Unread(rest)) => {
                tracing::error!("segment {sequence} cannot be copied: a disk does not give all of it, or is not there");
                self.set_aside(sequence, LATER);
                self.move_rest(session, files, sequence, &rest)?;
                Ok(Copied::Nothing)
            }
            Ok(Filled::Interrupted) => Ok(Copied::Interrupted),
            // Its host has promised room, and has none: others have their turn elsewhere.
            Ok(Filled::Failed(e)) if e.class == exraid::Class::NoSpace => {
                let number = self.area_of(session, target)?.number;
                tracing::warn!("region {number} takes no copies for a while: {e}");
                self.set_full(number);
                self.set_aside(sequence, SOON);
                Ok(Copied::Nothing)
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
                Ok(Copied::Nothing)
            }
            Err(e) => Err(e),
        }
    }

    fn unread(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A disk does not give all of a segment, which therefore gets no copy. When that was so before, the rest of what is live in it is
    /// moved, as far as there is room.
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
            // It can be read no more: the next time.
            Err(e @ (Error::Missing(_) | Error::Damaged { .. } | Error::Lost(_))) => {
                tracing::error!("segment {sequence} cannot be moved: {e}");
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

/// The copy that is dropped where there are too many, of which `whole` count: one in a region that leaves once there are as many as it
/// keeps, one in a region that has failed once there are as many as there are to be, else the last.
fn surplus(homes: &[Home], whole: u64, wanted: u64) -> Option<u32> {
    let odd = |health| homes.iter().find(|home| home.health == health && !home.partial);
    match (odd(Health::Leaving), odd(Health::Failed)) {
        (Some(home), _) if whole >= u64::from(home.least_replicas.max(1)) => Some(home.slot),
        (_, Some(home)) if whole >= wanted => Some(home.slot),
        // Two in one domain are one.
        _ if whole >= wanted && homes.iter().filter(|home| counts(home)).count() as u64 > wanted => {
            let is_double = |home: &&Home| homes.iter().filter(|h| counts(h) && h.domain == home.domain).count() > 1;
            let all = || homes.iter().rev().filter(|home| counts(home));
            all().find(is_double).or(all().next()).map(|home| home.slot)
        }
        _ => None,
    }
}
