//! Reading runs of blocks, verified.
//!
//! | step | action | otherwise |
//! | --- | --- | --- |
//! | 1 | the segment table leads from the place to the disk | |
//! | 2 | the blocks are read from the replica that should answer first; if it is late or wrong, from the others; if none answers, the reader waits | |
//! | 3 | the checksum of each block is compared with that in its summary, which must have the sequence number of the place | damage is taken for content; or content that was written after the segment was used again |
//! | 4 | the table still leads there | a block that was torn by a new use is taken for damage |
//!
//! Step 3 reads the summaries that this process does not know.

use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use exraid::{Aligned, Background, Buffers, Class as Failure, Request, Ticket};
use pram::session::assert_may_wait;
use pram::Session;

use super::areas::Lies;
use super::error::{Error, Result};
use super::known_lost::KnownLost;
use super::place::{Place, Run, BLOCK};
use super::read_order::{Candidate, HEDGE_LEAST};
use super::table::{Segment, KEY};
use super::walk::Walk;
use super::Log;

/// The message for a block without a summary.
const UNNAMED: &str = "no summary tells its checksum";
/// The message that users get instead, and for a segment with another number.
const USED_AGAIN: &str = "its segment was used again, or never written";

/// A read under way.
#[must_use = "what was read is not verified before it is waited for"]
pub struct Reading {
    run: Run,
    /// The slot that is read, and those to ask next.
    slot: u32,
    others: Vec<u32>,
    into: Buffers,
    ticket: Ticket,
}

/// The result of reading a block from each of its replicas.
pub(super) enum Again {
    Read(Buffers),
    /// Each replica that is there has it wrong.
    Damaged,
    /// A disk does not give it, but may later.
    Unread,
}

/// The blocks of a segment that can be read, as far as is known without reading its content.
#[derive(Default)]
pub struct Reach {
    /// Blocks that some replica has a summary of.
    whole: Vec<Range<u32>>,
}

impl Reach {
    pub fn holds(&self, block: u32) -> bool {
        self.whole.iter().any(|part| part.contains(&block))
    }
}

/// Whether a block can be read.
pub enum Verdict {
    Readable,
    Lost {
        why: String,
        /// No disk that may come back has it.
        is_final: bool,
    },
}

impl Log {
    /// Begins to read a run into memory of the same length. Several reads can be under way.
    ///
    /// # Panics
    /// If the memory has another length.
    pub fn read(&self, session: &Session, run: Run, into: Buffers) -> Result<Reading> {
        assert_eq!(into.len(), u64::from(run.blocks) * BLOCK);
        // 1.
        let (slot, segment) = self.find(session, run.first)?;
        if run.first.block() + run.blocks > segment.used {
            // The parts behind `used` were written with another memory, which was lost.
            return Err(Error::Lost(run.place(segment.used.saturating_sub(run.first.block()).min(run.blocks - 1))));
        }
        // 2.
        let mut order = self.order(session, slot, &segment, into.len())?.into_iter();
        let Some(Candidate { slot, patience }) = order.next() else { return Err(self.missing(session, slot)) };
        let others = order.map(|other| other.slot).collect();
        let ticket = self.start(session, run, slot, &into, patience)?;
        Ok(Reading { run, slot, others, into, ticket })
    }

    fn start(
        &self,
        session: &Session,
        run: Run,
        slot: u32,
        into: &Buffers,
        patience: Option<Duration>,
    ) -> Result<Ticket> {
        let lies = self.lies(session, slot)?;
        let at = lies.at + u64::from(run.first.block()) * BLOCK;
        let request = Request::read(at, into.clone()).tagged(run.first.sequence());
        let request = Request { within: patience, ..request };
        self.give_way(session, &*lies.region, into.len());
        Ok(lies.region.start(request))
    }

    /// The slot and the entry of the segment of a place.
    pub(super) fn find(&self, session: &Session, place: Place) -> Result<(u32, Segment)> {
        let found = session.read(KEY, || self.at.table(session.memory()).find(place.sequence()))?;
        found.ok_or(Error::Lost(place))
    }

    /// The checksums of a run.
    fn checksums(&self, session: &Session, run: Run, slot: u32) -> Result<Vec<u32>> {
        if let Some(known) = self.sums().of(run) {
            return Ok(known);
        }
        let (lies, sequence) = (self.lies(session, slot)?, run.first.sequence());
        let (_, segment) = self.find(session, run.first)?;
        let none = || Err(self.damaged(&lies, run.first, UNNAMED));
        let walk = || Walk::new(&*lies.region, lies.identity, lies.at, segment.used);
        let known = self.known_lost().unnamed(run.first, slot, segment.used);
        if let Some(unnamed) = known {
            // A part that was being written meanwhile would begin there.
            let mut glance = walk().narrow();
            if glance.part_of(sequence, unnamed.start).is_none() {
                return glance.failed.take().map_or_else(none, |e| Err(e.into()));
            }
        }
        let (mut walk, mut at) = (walk(), self.sums().walked(sequence));
        let mut named: Vec<_> = std::iter::once(0..at).collect();
        while let Some(part) = walk.next_of(sequence, at) {
            at = part.end();
            named.push(part.block..at);
            let mut sums = self.sums();
            sums.add(&part);
            if let Some(known) = sums.of(run) {
                return Ok(known);
            }
        }
        match walk.failed.take() {
            Some(e) => Err(e.into()),
            None => {
                self.known_lost().looked((sequence, slot), segment.used, &named);
                none()
            }
        }
    }

    fn damaged(&self, lies: &Lies, place: Place, what: &'static str) -> Error {
        let at = lies.at + u64::from(place.block()) * BLOCK;
        Error::Damaged { place, device: lies.region.name().clone(), at, what }
    }
}

impl Reading {
    /// Waits until the whole run is in memory and verified, and returns that memory. It is the memory that was given to
    /// [`Log::read`], unless a late disk may still write there. `log` must be the log that began the read.
    pub fn wait(self, log: &Log, session: &Session) -> Result<Buffers> {
        assert_may_wait();
        let Reading { run, mut slot, others, into, ticket } = self;
        let len = into.len();
        let mut done = log.end_read_of(session, run, slot, into, ticket);
        let mut timed_out = is_timeout(&done);
        let all: Vec<u32> = std::iter::once(slot).chain(others.iter().copied()).collect();
        // Step 2 for the others; a disk that does not answer is not waited for yet.
        for other in others {
            if done.is_ok() {
                break;
            }
            let is_stuck = log.is_stuck(session, other);
            let patience = is_stuck.then_some(HEDGE_LEAST);
            let again = log.read_of(session, run, other, patience);
            timed_out |= is_timeout(&again);
            take_better(&mut done, &mut slot, other, again);
        }
        // No other replica helps: wait for those that were late, whichever answers first.
        while timed_out && done.is_err() && !Background::is() {
            log.wait_for_one_of(session, &all)?;
            timed_out = false;
            let (now, segment) = log.find(session, run.first)?;
            for again in log.order(session, now, &segment, len)? {
                let read = log.read_of(session, run, again.slot, None);
                timed_out |= is_timeout(&read);
                take_better(&mut done, &mut slot, again.slot, read);
                if done.is_ok() {
                    break;
                }
            }
        }
        // 4.
        let (now, segment) = log.find(session, run.first)?;
        let has_it = |replicas: Vec<(u32, Segment)>| replicas.iter().any(|(replica, _)| *replica == slot);
        let table = log.at.table(session.memory());
        let is_there = session.read(KEY, || table.replicas(now, &segment)).is_ok_and(has_it);
        let done = match done {
            Ok(memory) => {
                log.known_lost().remove(run);
                return Ok(memory);
            }
            // To a memory older than the disk, a segment that was used again looks as if it was not.
            Err(Error::Damaged { .. }) if is_there && log.is_anothers(session, run.first, slot) => {
                Err(Error::Lost(run.first))
            }
            // It lies elsewhere by now.
            Err(_) if !is_there => {
                let memory = Buffers::whole(&Aligned::zeroed(len as usize));
                return log.read(session, run, memory)?.wait(log, session);
            }
            Err(e) => Err(e),
        };
        if let Err(e) = &done {
            log.known_lost().add(e);
        }
        done
    }
}

/// Takes the answer of another replica; of several failures, damage says most.
fn take_better(done: &mut Result<Buffers>, slot: &mut u32, other: u32, again: Result<Buffers>) {
    match again {
        Ok(memory) => (*slot, *done) = (other, Ok(memory)),
        Err(e) if !matches!(done, Err(Error::Damaged { .. })) => *done = Err(e),
        Err(_) => {}
    }
}

fn is_timeout(done: &Result<Buffers>) -> bool {
    matches!(done, Err(Error::Device(e)) if e.class == Failure::Timeout)
}

impl Log {
    /// Reads a run from one replica alone, verified.
    fn read_of(&self, session: &Session, run: Run, slot: u32, patience: Option<Duration>) -> Result<Buffers> {
        let memory = Buffers::whole(&Aligned::zeroed(run.blocks as usize * BLOCK as usize));
        let ticket = self.start(session, run, slot, &memory, patience)?;
        self.end_read_of(session, run, slot, memory, ticket)
    }

    /// Reads a block that could not be read once more, from each of its replicas by itself.
    pub(super) fn read_again(&self, session: &Session, place: Place) -> Result<Again> {
        let (slot, segment) = self.find(session, place)?;
        let order = self.order(session, slot, &segment, BLOCK)?;
        let mut are_wrong = !order.is_empty();
        for replica in order {
            match self.read_of(session, Run::one(place), replica.slot, None) {
                Ok(memory) => return Ok(Again::Read(memory)),
                Err(Error::Damaged { .. }) => {}
                Err(Error::Device(_) | Error::Missing(_)) => are_wrong = false,
                Err(e) => return Err(e),
            }
        }
        Ok(if are_wrong { Again::Damaged } else { Again::Unread })
    }

    /// Step 3, of one replica.
    fn end_read_of(&self, session: &Session, run: Run, slot: u32, into: Buffers, ticket: Ticket) -> Result<Buffers> {
        let Ok(answer) = ticket.wait_unless_late() else {
            let region = self.lies(session, slot)?.region;
            return Err(exraid::Error::new(Failure::Timeout, region.name(), "it does not answer").into());
        };
        answer.result?;
        take(&into, answer.buffers);
        // 3.
        let sums = self.checksums(session, run, slot)?;
        match first_wrong(&into, &sums) {
            None => {}
            Some(wrong) => self.read_copies(session, run, slot, &into, &sums, wrong)?,
        }
        Ok(into)
    }
}

impl Log {
    /// Reads a run that is wrong from each copy of the region, until one is right.
    fn read_copies(
        &self,
        session: &Session,
        run: Run,
        slot: u32,
        into: &Buffers,
        sums: &[u32],
        wrong: u32,
    ) -> Result<()> {
        let lies = self.lies(session, slot)?;
        let at = lies.at + u64::from(run.first.block()) * BLOCK;
        let copies = lies.region.copies();
        for copy in (0..copies).filter(|_| copies > 1) {
            // In memory of its own: a late disk may yet write there.
            let memory = Buffers::whole(&Aligned::zeroed(into.len() as usize));
            let (done, ticket) = Ticket::new();
            let request = Request::read(at, memory.clone()).with_late(ticket.late());
            lies.region.read_copy(copy, request, done);
            let Ok(answer) = ticket.wait_unless_late() else { continue };
            if answer.result.is_ok() {
                take(&memory, answer.buffers);
                if first_wrong(&memory, sums).is_none() {
                    into.copy_from(&memory.to_vec());
                    tracing::warn!("{}: {} differs in another copy", lies.region.name(), run.place(wrong));
                    return Ok(());
                }
            }
        }
        Err(self.damaged(&lies, run.place(wrong), "its checksum is wrong"))
    }

    /// The blocks of this segment that can hold content, as far as the table and the summaries of all present replicas
    /// tell. If a replica has the first summary, no other is read.
    pub fn reach(&self, session: &Session, sequence: u64) -> Result<Reach> {
        let mut reach = Reach::default();
        let (slot, segment) = match self.find(session, Place::new(sequence, 0)) {
            // Numbers are issued once.
            Err(Error::Lost(_)) => return Ok(reach),
            found => found?,
        };
        for replica in self.order(session, slot, &segment, BLOCK)? {
            let lies = self.lies(session, replica.slot)?;
            let mut walk = Walk::new(&*lies.region, lies.identity, lies.at, segment.used);
            if walk.part_at(0).is_some_and(|part| part.sequence == sequence) {
                reach.whole = std::iter::once(0..segment.used).collect();
                break;
            }
            // The slot was used again, or discarded for that, perhaps not to its end yet.
            let mut at = 0;
            while let Some(part) = walk.next_of(sequence, at) {
                reach.whole.push(part.first()..part.end());
                at = part.end();
            }
        }
        Ok(reach)
    }

    /// Can the block at a place be read? Reads it.
    pub fn verdict(&self, session: &Session, place: Place) -> Result<Verdict> {
        let memory = Buffers::whole(&Aligned::zeroed(BLOCK as usize));
        let e = match self.read(session, Run::one(place), memory).and_then(|reading| reading.wait(self, session)) {
            Ok(_) => return Ok(Verdict::Readable),
            Err(e) => e,
        };
        let why = match &e {
            Error::Lost(_) | Error::Damaged { what: UNNAMED, .. } => USED_AGAIN.into(),
            Error::Damaged { what, .. } => (*what).into(),
            Error::Missing(number) => format!("no disk has region {number}"),
            Error::Device(e) => e.to_string(),
            _ => return Err(e),
        };
        Ok(match self.find(session, place) {
            Err(Error::Lost(_)) => {
                let why = "its segment was used again, or was given up with its region".into();
                Verdict::Lost { why, is_final: true }
            }
            found => {
                let (slot, segment) = found?;
                // A replica that is not there may have it, or one that failed to answer.
                let is_final = matches!(e, Error::Lost(_) | Error::Damaged { .. })
                    && place.block() < segment.used
                    && self.are_all_there(session, slot, &segment)?
                    && matches!(self.read_again(session, place)?, Again::Damaged);
                Verdict::Lost { why, is_final }
            }
        })
    }

    /// Is any replica of the segment of a place there?
    pub fn is_there(&self, session: &Session, place: Place) -> Result<bool> {
        match self.find(session, place) {
            Err(Error::Lost(_)) => Ok(false),
            found => {
                let (slot, segment) = found?;
                Ok(!self.order(session, slot, &segment, BLOCK)?.is_empty())
            }
        }
    }

    /// Has this process found a moment ago that no replica has the block?
    pub fn is_known_lost(&self, place: Place) -> bool {
        self.known_lost().has(place)
    }

    fn known_lost(&self) -> MutexGuard<'_, KnownLost> {
        self.known_lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lost blocks may have been repaired since.
    pub(super) fn forget_known_lost(&self) {
        *self.known_lost() = KnownLost::new(&self.clock);
    }

    /// Does the slot hold a segment with another number?
    fn is_anothers(&self, session: &Session, place: Place, slot: u32) -> bool {
        let Ok(lies) = self.lies(session, slot) else { return false };
        let mut walk = Walk::new(&*lies.region, lies.identity, lies.at, self.blocks);
        walk.part_at(0).is_some_and(|part| part.sequence != place.sequence())
    }
}

/// A region that has read another copy may return the blocks in memory of its own.
fn take(into: &Buffers, came: Option<Buffers>) {
    if let Some(came) = came.filter(|came| !came.layout().eq(into.layout())) {
        into.copy_from(&came.to_vec());
    }
}

/// The first block whose checksum is not the recorded one.
fn first_wrong(memory: &Buffers, sums: &[u32]) -> Option<u32> {
    let (mut n, mut wrong) = (0, None);
    memory.pieces(BLOCK as usize, |block| {
        if wrong.is_none() && sums.get(n) != Some(&crc32c::crc32c(block)) {
            wrong = Some(n as u32);
        }
        n += 1;
    });
    wrong
}
