//! Copies of segments: making those that are lacking. Which of them is read, [`order`](super::order) says.
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

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use exraid::{Aligned, Buffers, Op as Transfer, Request, LATE};
use pram::session::assert_may_wait;
use pram::Session;

use super::clean::Files;
use super::error::{Error, Result};
use super::live::Contents;
use super::part::Owner;
use super::place::{Place, Run, BLOCK};
use super::placement::Choice;
use super::read::Again;
use super::room::seconds;
use super::table::{Home, Segment, Standing, State, KEY};
use super::write::{cause_of, is_gone, is_of_the_slot};
use super::{Class, Log};

/// Slots that are left to the cleaner when copies are made: as many as it keeps free, one part in so many, and so many at least.
const CLEANED: u64 = 50;
const LEAST: u64 = 4;
/// Bytes that are copied at a time at most: between them `go_on` is asked.
pub(super) const MOST_PIECE: u64 = 1 << 20;

/// How long a segment is left alone of which a part may be on its way to a disk, and one that could not be read.
pub(super) const SOON: Duration = Duration::from_secs(2);
const LATER: Duration = Duration::from_secs(60);
/// After so long nothing that was on its way when a segment was set aside first is so yet.
const SETTLED: Duration = Duration::from_secs(300);
/// Segments that are set aside at most.
const ASIDE: usize = 10_000;

/// Which segments took no more parts at a time.
pub struct Closed {
    at: Instant,
    /// Those with lower numbers, but those that were open.
    below: u64,
    open: HashSet<u64>,
}

/// Segments that are left alone: since when, and until when.
#[derive(Default)]
pub struct Aside(HashMap<u64, (Instant, Instant)>);

impl Aside {
    pub fn add(&mut self, sequence: u64, rest: Duration) {
        let now = Instant::now();
        if self.0.len() >= ASIDE {
            self.0.retain(|_, (_, until)| *until > now);
        }
        let (_, until) = self.0.entry(sequence).or_insert((now, now));
        *until = (*until).max(now + rest);
    }

    pub fn has(&self, sequence: u64) -> bool {
        self.0.get(&sequence).is_some_and(|(_, until)| *until > Instant::now())
    }
}

/// What came of filling a copy.
enum Filled {
    /// So many bytes of content were copied.
    Whole(u64),
    Interrupted,
    /// Not all can be read yet that may be linked, or is.
    Undecided,
    /// A disk does not give something that is linked, or may be, or is not there. What is linked and can be read.
    Unread(Vec<(Owner, Place)>),
    /// The copy cannot be written.
    Failed(exraid::Error),
}

/// What there is to be copied of a segment.
struct ToCopy {
    places: Vec<Place>,
    /// What something leads to; is that all that counts as live?
    linked: HashSet<Place>,
    is_all_linked: bool,
}

/// What could not be read of that.
#[derive(Default)]
struct Unread {
    /// Each copy has it wrong.
    damaged: Vec<Place>,
    /// A disk may give it later.
    later: Vec<Place>,
}

/// Copies that are lacking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacking {
    /// Segments that lack a copy, and bytes of live content in them.
    pub segments: u64,
    pub bytes: u64,
    /// Of these, those whose time has not come yet: lazy ones.
    pub lazy: u64,
    /// Bytes of segments of which no copy is there.
    pub lost: u64,
}

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
pub(super) enum Odd {
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
pub(super) enum Task {
    Copy { slot: u32, segment: Segment },
    Drop { sequence: u64, slot: u32, what: Odd },
}

impl Log {
    /// Copies that a segment can have: domains that take content. By the table: this process may not know yet of a region that has come.
    pub fn most_copies(&self, session: &Session) -> Result<usize> {
        let regions = session.read(KEY, || self.at.table(session.region()).regions())?;
        let taking = regions.iter().filter(|(_, region)| region.standing() == Standing::Taking);
        Ok(taking.map(|(_, region)| region.domain()).collect::<HashSet<_>>().len())
    }

    /// Copies of the block that lies there, each whole and in a region that has not failed and does not leave. 0: it is in none.
    pub fn copies_of(&self, session: &Session, place: Place) -> Result<u32> {
        let table = self.at.table(session.region());
        session.read(KEY, || match table.find(place.sequence())? {
            Some((slot, segment)) => {
                let homes = table.homes(slot, &segment)?;
                let domains: BTreeSet<u64> = homes.iter().filter(|home| counts(home)).map(|home| home.domain).collect();
                Ok(domains.len() as u32)
            }
            None => Ok(0),
        })
    }

    /// The number of the region with the first copy of the segment in which a block lies.
    pub fn region_of(&self, session: &Session, place: Place) -> Result<Option<u32>> {
        let table = self.at.table(session.region());
        session.read(KEY, || {
            let Some((slot, _)) = table.find(place.sequence())? else { return Ok(None) };
            Ok(Some(table.region_of(slot)?.1.number))
        })
    }

    /// Does the segment of this place lie as content of a class is to?
    pub fn lies_as(&self, session: &Session, place: Place, class: Class) -> Result<bool> {
        let table = self.at.table(session.region());
        session.read(KEY, || {
            let Some((slot, segment)) = table.find(place.sequence())? else { return Ok(true) };
            Ok(segment.class == class.code()
                && match class {
                    Class::Whole(number) => table.region_of(slot)?.1.number == number,
                    _ => true,
                })
        })
    }

    /// What lacks copies.
    pub fn lacking(&self, session: &Session) -> Result<Lacking> {
        let (mut told, now) = (Lacking::default(), seconds());
        let (table, areas) = (self.at.table(session.region()), self.areas());
        let there: Vec<usize> = areas.list.iter().filter(|area| area.region.is_some()).map(|area| area.n).collect();
        self.each_used(session, &mut |slot, segment| {
            let Ok(homes) = session.read(KEY, || table.homes(slot, &segment)) else { return };
            let bytes = u64::from(segment.live) * BLOCK;
            if !homes.iter().any(|home| !home.partial && there.contains(&home.n)) {
                told.lost += bytes;
            }
            if homes.iter().filter(|home| counts(home)).count() < segment.wanted() as usize && segment.live > 0 {
                told.segments += 1;
                told.bytes += bytes;
                told.lazy += if segment.due > now { bytes } else { 0 };
            }
        })?;
        Ok(told)
    }

    fn each_used(&self, session: &Session, each: &mut dyn FnMut(u32, Segment)) -> Result<()> {
        let table = self.at.table(session.region());
        for slot in session.read(KEY, || table.used_slots())? {
            let segment = session.read(KEY, || table.get(slot))?;
            if segment.state.is_used() {
                each(slot, segment);
            }
        }
        Ok(())
    }

    /// Has any content ever wanted copies? Else nobody need look for those that are lacking.
    pub fn has_mirrored(&self, session: &Session) -> Result<bool> {
        Ok(self.head(session)?.mirrored.iter().any(|live| *live > 0))
    }

    /// Makes one copy, of those that are lacking and can be made, the most urgent; or drops one that is too many. `go_on` is asked
    /// between pieces, told the bytes that are next, and may sleep.
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

    fn aside(&self) -> std::sync::MutexGuard<'_, Aside> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a segment alone for a while, unless that is so already.
    pub(super) fn set_aside(&self, sequence: u64, rest: Duration) {
        self.aside().add(sequence, rest);
    }

    pub(super) fn is_aside(&self, sequence: u64) -> bool {
        self.aside().has(sequence)
    }

    /// Can no request be under way to the slots of a segment, by any process? None that this one has given up and the disk has not
    /// answered; and by others none at all, as their [locks](Session::may_others_transfer) tell. Beside others that are at work it is one
    /// that takes no more parts since long: their requests have ended by then, or were given up, and what they were for takes nothing more.
    pub(super) fn is_quiet(&self, session: &Session, sequence: u64) -> Result<bool> {
        if self.has_pending(session, sequence)? {
            return Ok(false);
        }
        if self.is_alone(session)? {
            return Ok(true);
        }
        if session.may_the_gone_transfer()? {
            return Ok(false);
        }
        let table = self.at.table(session.region());
        let seen = session.read(KEY, || {
            let all = table.head()?;
            let mut open = HashSet::new();
            let wholes = table.regions()?.into_iter().map(|(_, region)| region.whole);
            for slot in all.heads.into_iter().chain(wholes).filter_map(super::table::slot_in) {
                open.insert(table.get(slot)?.sequence);
            }
            Ok::<_, Error>(Closed { at: Instant::now(), below: all.sequence, open })
        })?;
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        // The last that is old enough, and those that become so.
        while closed.get(1).is_some_and(|next| next.at.elapsed() >= LATER) {
            closed.pop_front();
        }
        if closed.back().is_none_or(|last| last.at.elapsed() >= LATER / 8) {
            closed.push_back(seen);
        }
        let oldest = closed.front().filter(|oldest| oldest.at.elapsed() >= LATER);
        Ok(oldest.is_some_and(|oldest| sequence < oldest.below && !oldest.open.contains(&sequence)))
    }

    /// Does nobody write to disks, nor has a request under way that another process has asked for?
    fn is_alone(&self, session: &Session) -> Result<bool> {
        Ok(self.writers.load(Ordering::SeqCst) == 0 && !session.may_others_transfer()?)
    }

    /// Has this process asked for something to be written to a slot of the segment that the disk is still at?
    fn has_pending(&self, session: &Session, sequence: u64) -> Result<bool> {
        let table = self.at.table(session.region());
        let slots: Vec<u32> = session.read(KEY, || match table.find(sequence)? {
            Some((slot, segment)) => Ok(table.copies(slot, &segment)?.into_iter().map(|(slot, _)| slot).collect()),
            None => Ok::<_, Error>(Vec::new()),
        })?;
        Ok(slots.into_iter().filter_map(|slot| self.lies(session, slot).ok()).any(|lies| {
            let end = lies.at + self.segment();
            let writes = |one: &exraid::Pending| one.kind != exraid::Kind::Read;
            let is_there = |one: &exraid::Pending| one.range.start < end && lies.at < one.range.end;
            lies.region.pending().iter().any(|one| writes(one) && is_there(one))
        }))
    }

    /// Can nothing be on its way to a segment that takes no more parts?
    fn is_settled_by_now(&self, session: &Session, sequence: u64) -> bool {
        self.is_alone(session).unwrap_or(false)
            || self.aside().0.get(&sequence).is_some_and(|(since, _)| since.elapsed() > SETTLED)
    }

    /// The most urgent, of those that can be done.
    pub(super) fn next_task(&self, session: &Session) -> Result<Option<Task>> {
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
        let table = self.at.table(session.region());
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
        let regions = session.read(KEY, || self.at.table(session.region()).regions())?;
        Ok(regions
            .iter()
            .any(|(_, region)| region.standing() == Standing::Leaving && region.keeps(u32::MAX) != u32::MAX))
    }

    /// Has a segment as many copies elsewhere as it keeps when what leaves has left?
    fn is_in_place(&self, session: &Session, slot: u32, segment: &Segment) -> bool {
        let table = self.at.table(session.region());
        let Ok(homes) = session.read(KEY, || table.homes(slot, segment)) else { return false };
        let leaving = homes.iter().find(|home| home.standing == Standing::Leaving && !home.partial);
        segment.live == 0 || leaving.is_none_or(|home| whole(&homes) >= u64::from(home.keeps))
    }

    /// What is to be done to a segment, and how urgent that is: first what there is too much of, then what is lacking of files of higher
    /// priority, of these what has no copy left in use.
    fn task_of(&self, session: &Session, slot: u32, segment: &Segment) -> Option<((u8, u8, u32, u64), Task)> {
        let is_plain = segment.class == 0 && segment.copy.is_none();
        if is_plain || segment.live == 0 || segment.state == State::Cleaning {
            return None;
        }
        let (table, areas, sequence) = (self.at.table(session.region()), self.areas(), segment.sequence);
        let homes = session.read(KEY, || table.homes(slot, segment)).ok()?;
        let whole = whole(&homes);
        let wanted = u64::from(segment.wanted()).min(areas.domains());
        if let Some(partial) = homes.iter().find(|home| home.partial) {
            // Who was making it is gone.
            let drop = Task::Drop { sequence, slot: partial.slot, what: Odd::Partial };
            return Some(((0, 0, 0, sequence), drop));
        }
        if let Some(slot) = surplus(&homes, whole, segment.wanted().into()) {
            let leaves = homes.iter().any(|home| home.slot == slot && home.standing == Standing::Leaving);
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
    pub(super) fn make_copy_in(
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
        // 4.
        let is_whole = matches!(done, Ok(Filled::Whole(_)))
            && self.change(session, |change| match change.table().find(sequence)? {
                Some((_, now)) if now.used == segment.used => change.end_copy(sequence, target),
                _ => Ok(false),
            })?;
        if !is_whole {
            let failed = matches!(&done, Ok(Filled::Failed(e)) if is_of_the_slot(e));
            if let Some(lies) = self.lies(session, target).ok().filter(|_| failed) {
                self.add_late(target, lies.at, &lies.region);
            }
            self.change(session, |change| change.drop_copy(sequence, target, failed, files.epoch()))?;
        }
        match done {
            Ok(Filled::Whole(bytes)) if is_whole => {
                self.aside().0.remove(&sequence);
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
            // It cannot be read: that is told, and others have their turn.
            Err(e @ (Error::Missing(_) | Error::Damaged { .. } | Error::Device(_) | Error::Lost(_))) => {
                tracing::error!("segment {sequence} cannot be copied: {e}");
                self.set_aside(sequence, LATER);
                Ok(Copied::Nothing)
            }
            Err(e) => Err(e),
        }
    }

    /// The segment as it is, full; none where it is gone, or being cleaned.
    pub(super) fn closed(&self, session: &Session, slot: u32, sequence: u64) -> Result<Option<(u32, Segment)>> {
        self.change(session, |change| {
            let Some((now, segment)) = change.table().find(sequence)?.filter(|(now, _)| *now == slot) else {
                return Ok(None);
            };
            if segment.state == State::Open {
                self.close(change, now, segment)?;
            }
            let segment = change.table().get(now)?;
            Ok((segment.state == State::Full).then_some((now, segment)))
        })
    }

    /// Step 1: a slot in a domain that has no copy yet; `within`: in one of these regions, the first that has room.
    fn take_slot(&self, session: &Session, of: u32, segment: &Segment, within: Option<&[u32]>) -> Result<u32> {
        let table = self.at.table(session.region());
        let homes = session.read(KEY, || table.homes(of, segment))?;
        let has = |choice: &Choice| homes.iter().any(|home| home.domain == choice.area.domain && counts(home));
        let mut choices = self.choices(Class::None);
        choices.retain(|choice| homes.iter().all(|home| home.n != choice.area.n) && !self.is_full(choice.area.number));
        match within {
            None => choices.retain(|choice| !has(choice)),
            Some(within) => {
                let rank = |choice: &Choice| within.iter().position(|number| *number == choice.area.number);
                choices.retain(|choice| rank(choice).is_some());
                choices.sort_by_key(rank);
                let others = |choice: &Choice| homes.iter().filter(|home| home.domain == choice.area.domain).count();
                choices.retain(|choice| others(choice) == 0);
            }
        }
        while let Some(choice) = choices.first() {
            enum Found {
                Taken(u32),
                Next(u32),
                Above(u32),
                None,
            }
            let found = self.change(session, |change| {
                // What the cleaner and what waits in memory need is not for copies.
                let waits = change.tx.unplaced() / u64::from(self.content_of_segment());
                let all = change.head()?;
                if all.spare <= super::room::RESERVE + waits + (all.slots / CLEANED).max(LEAST) {
                    return Ok(Found::None);
                }
                let is_there = change.table().find(segment.sequence)?.is_some_and(|(slot, _)| slot == of);
                let region = change.table().region(choice.area.n)?;
                let slot = match (region.next_reserved(), region.next_free()) {
                    _ if !is_there || region.standing() != Standing::Taking => return Ok(Found::None),
                    (Some(slot), _) if !choice.area.grows || region.held > super::room::RESERVE => slot,
                    (_, Some(slot)) if choice.area.grows => return Ok(Found::Next(slot)),
                    (_, Some(slot)) => slot,
                    _ => return Ok(Found::None),
                };
                if !self.is_below_high_water(&choice.area, slot) {
                    return Ok(Found::Above(slot));
                }
                change.begin_copy(of, slot)?;
                Ok(Found::Taken(slot))
            })?;
            match found {
                Found::Taken(slot) => {
                    choice.take();
                    return Ok(slot);
                }
                Found::Above(slot) => self.raise_high_water(session, slot)?,
                Found::Next(slot) => match self.prepare(session, slot) {
                    Err(Error::NoSpace) => {
                        self.set_full(choice.area.number);
                        choices.remove(0);
                    }
                    done => done?,
                },
                Found::None => _ = choices.remove(0),
            }
        }
        Err(Error::NoSpace)
    }

    /// The host of that region has no room for copies: it is not asked again for a while, which is longer each time.
    pub(super) fn set_full(&self, number: u32) {
        let (mut full, now) = (self.full.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let (until, rest) = full.entry(number).or_insert((now, SOON / 2));
        *rest = (*rest * 2).min(LATER);
        *until = now + *rest;
    }

    pub(super) fn is_full(&self, number: u32) -> bool {
        let full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        full.get(&number).is_some_and(|(until, _)| *until > Instant::now())
    }

    /// Steps 2 and 3; `moves`: the segment is to lie there alone.
    fn fill(
        &self,
        session: &Session,
        files: &dyn Files,
        (slot, segment): (u32, &Segment),
        target: u32,
        moves: bool,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Filled> {
        // 2. Before the summaries are read: what was on its way then is told by none, or not yet.
        let is_settled = self.is_settled_by_now(session, segment.sequence);
        let contents = self.contents(session, slot, segment)?;
        let to_copy = to_copy_of(files, segment, &contents)?;
        if !to_copy.is_all_linked && !contents.is_whole {
            // What is linked summaries tell that a disk may give later, or else none.
            match () {
                () if !is_settled => return Ok(Filled::Undecided),
                () if contents.is_cut || !self.are_all_there(session, slot, segment)? => {
                    return Ok(Filled::Unread(to_copy.owned(&contents, &[])))
                }
                () => {}
            }
        }
        // The slot that it leaves may be written to yet.
        if moves && !to_copy.is_all_linked && !self.is_quiet(session, segment.sequence)? {
            return Ok(Filled::Undecided);
        }
        // 3.
        let lies = self.lies(session, target)?;
        let write = |block: u32, content: Buffers| {
            self.give_way(session, &*lies.region, content.len());
            let at = lies.at + u64::from(block) * BLOCK;
            lies.region.ask(Request::write(at, content), LATE).result
        };
        for part in &contents.parts {
            let mut summary = Aligned::zeroed(part.summary_blocks() as usize * BLOCK as usize);
            if let Some(memory) = std::sync::Arc::get_mut(&mut summary) {
                part.write(&lies.identity, memory.bytes_mut());
            }
            if let Err(e) = write(part.block, Buffers::whole(&summary)) {
                return Ok(Filled::Failed(e));
            }
        }
        let (mut copied, mut unread) = (0, Unread::default());
        let piece = self.piece(session, &[slot, target]);
        for run in Run::of(to_copy.places.iter().copied(), piece) {
            if !go_on(u64::from(run.blocks) * BLOCK) {
                return Ok(Filled::Interrupted);
            }
            for (run, content) in self.read_some(session, run, &mut unread)? {
                if let Err(e) = write(run.first.block(), content) {
                    return Ok(Filled::Failed(e));
                }
                copied += u64::from(run.blocks) * BLOCK;
            }
        }
        if let Err(e) = lies.region.ask(Transfer::Flush.into(), LATE).result {
            // What others wrote there may be lost too.
            let cause = cause_of(&e);
            if !self.fence(session, lies.region.number(), cause, &e)? {
                return Err(self.fail(e));
            }
            return Ok(Filled::Failed(e));
        }
        let all: Vec<Place> = unread.damaged.iter().chain(&unread.later).copied().collect();
        let is_linked = |place: &Place| to_copy.linked.contains(place);
        let lost = self.lost_of(files, &contents, all.iter().copied().filter(is_linked).collect())?;
        if !lost.is_empty() {
            tracing::error!("segment {}: {} blocks of it cannot be read", segment.sequence, lost.len());
        }
        // What is wrong here may be right in a copy that is not there.
        let may_come_back = !lost.is_empty() && (moves || !self.are_all_there(session, slot, segment)?);
        let may_be_written = !is_settled && !all.iter().all(is_linked);
        Ok(match () {
            () if may_come_back || may_be_written => Filled::Undecided,
            () if unread.later.iter().any(|place| lost.contains(place)) => {
                Filled::Unread(to_copy.owned(&contents, &all))
            }
            () => Filled::Whole(copied),
        })
    }

    /// Which of those blocks that something leads to and that cannot be read memory does not hold either.
    fn lost_of(&self, files: &dyn Files, contents: &Contents, unread: HashSet<Place>) -> Result<HashSet<Place>> {
        if unread.is_empty() {
            return Ok(unread);
        }
        let blocks = contents.blocks().filter(|(place, _)| unread.contains(place));
        let blocks: Vec<_> = blocks.map(|(place, entry)| (entry.owner, place)).collect();
        let kept = files.keep(&blocks)?;
        Ok(blocks.iter().zip(kept).filter(|(_, kept)| !kept).map(|((_, place), _)| *place).collect())
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

    pub(super) fn are_all_there(&self, session: &Session, slot: u32, segment: &Segment) -> Result<bool> {
        let table = self.at.table(session.region());
        let homes = session.read(KEY, || table.homes(slot, segment))?;
        let mut whole = homes.iter().filter(|home| !home.partial);
        Ok(whole.all(|home| self.area_of(session, home.slot).is_ok_and(|area| area.region.is_some())))
    }

    /// A run, verified, as far as it can be read; what cannot.
    fn read_some(&self, session: &Session, run: Run, unread: &mut Unread) -> Result<Vec<(Run, Buffers)>> {
        let memory = Buffers::whole(&Aligned::zeroed(run.blocks as usize * BLOCK as usize));
        match self.read(session, run, memory).and_then(|reading| reading.wait(self, session)) {
            Ok(memory) => Ok(vec![(run, memory)]),
            Err(Error::Device(e)) if is_gone(&e) => Err(e.into()),
            Err(Error::Damaged { .. } | Error::Device(_)) if run.blocks > 1 => {
                let mut some = Vec::new();
                for n in 0..run.blocks {
                    some.extend(self.read_some(session, Run::one(run.place(n)), unread)?);
                }
                Ok(some)
            }
            Err(Error::Damaged { .. } | Error::Device(_)) => {
                match self.read_again(session, run.first)? {
                    Again::Read(memory) => return Ok(vec![(run, memory)]),
                    Again::Damaged => unread.damaged.push(run.first),
                    Again::Unread => unread.later.push(run.first),
                }
                Ok(Vec::new())
            }
            Err(e) => Err(e),
        }
    }
}

impl ToCopy {
    /// What is linked but for these, with the owners.
    fn owned(&self, contents: &Contents, without: &[Place]) -> Vec<(Owner, Place)> {
        let without: HashSet<&Place> = without.iter().collect();
        let is_wanted = |place: &Place| self.linked.contains(place) && !without.contains(place);
        contents.blocks().filter(|(place, _)| is_wanted(place)).map(|(place, entry)| (entry.owner, place)).collect()
    }
}

/// What is to be copied of a segment that takes no more parts: what is live, or everything where not all that counted as live by
/// then was found.
fn to_copy_of(files: &dyn Files, segment: &Segment, contents: &Contents) -> Result<ToCopy> {
    let mut places: Vec<Place> = contents.live(files).map(|live| Ok(live?.place)).collect::<Result<_>>()?;
    let (linked, is_all_linked) = (places.iter().copied().collect(), places.len() as u32 >= segment.live);
    if !is_all_linked {
        places = contents.blocks().map(|(place, _)| place).collect();
    }
    places.sort_unstable();
    Ok(ToCopy { places, linked, is_all_linked })
}

/// Does it count as a copy: is it whole, and where nothing leaves and nothing has failed?
fn counts(home: &Home) -> bool {
    !home.partial && home.standing == Standing::Taking
}

/// Domains with a copy that counts.
fn whole(homes: &[Home]) -> u64 {
    homes.iter().filter(|home| counts(home)).map(|home| home.domain).collect::<BTreeSet<_>>().len() as u64
}

/// The copy that is dropped where there are too many, of which `whole` count: one in a region that leaves once there are as many as it
/// keeps, one in a region that has failed once there are as many as there are to be, else the last.
fn surplus(homes: &[Home], whole: u64, wanted: u64) -> Option<u32> {
    let odd = |standing| homes.iter().find(|home| home.standing == standing && !home.partial);
    match (odd(Standing::Leaving), odd(Standing::Failed)) {
        (Some(home), _) if whole >= u64::from(home.keeps.max(1)) => Some(home.slot),
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
