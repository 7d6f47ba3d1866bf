//! Putting the table in order, by whoever recovers a pool and before anybody uses the log.
//!
//! After the memory was lost and made anew as of a commit, disks have parts that this memory knows nothing of, and what is
//! recovered beside it may lead there: what a commit writes to segments is written after the instant that its memory is
//! of. So they are looked for: behind what is known in the segments that are open, and in all slots that are not in use, by
//! their first summary, whose number tells what came later; many at a time, not where a disk that is a file was never written to, and
//! not above the [high-water mark](super::high_water). A block that is found counts as live, like one that was written and not linked
//! yet; the cleaner finds out.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pram::session::assert_may_wait;
use pram::Session;

use super::error::{Error, Result};
use super::part::Part;
use super::room::seconds;
use super::table::{slot_in, Change, Segment, State, KEY, ORDERING};
use super::walk::Walk;
use super::Log;

/// What was put in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Segments, and parts of segments that were known, that were found on the disks.
    pub segments: u64,
    pub parts: u64,
}

/// Slots that are put in order in one transaction.
const SOME: usize = 32;
/// Slots whose first summary is read at a time, each by a thread, and slots that a thread takes on in one go.
const READERS: usize = 32;
const BATCH: usize = 64;
/// Seconds between reports of how far that has come.
const TELL: u64 = 5;

impl Log {
    /// Is the table in order, as far as the memory was not lost since it was put so?
    pub fn is_in_order(&self, session: &Session) -> Result<bool> {
        Ok(session.read(KEY, || self.at.table(session.memory()).head())?.recovered == session.epochs()?.recovered)
    }

    /// Puts the table in order if the memory was lost since that was done last: by whoever attaches, before anything else.
    pub fn put_in_order(&self, session: &Session) -> Result<Option<Recovered>> {
        let recovered = session.epochs()?.recovered;
        let is_in_order =
            || Ok::<_, Error>(session.read(KEY, || self.at.table(session.memory()).head())?.recovered == recovered);
        if is_in_order()? {
            return Ok(None);
        }
        let _alone = session.long_lock(ORDERING)?;
        if is_in_order()? {
            return Ok(None);
        }
        // Before anything is known that came after the commit.
        *self.old.lock().unwrap_or_else(PoisonError::into_inner) = self.old_regions(session)?;
        let found = self.recover(session, true)?;
        // This memory is older than the labels may be.
        let regions = self.regions();
        self.change(session, |change| {
            regions.iter().try_for_each(|region| change.set_mark(region.number(), region.sequence()))?;
            change.set_recovered(recovered)
        })?;
        Ok(Some(found))
    }

    /// Puts the table in order. With `lost`: the memory is that of a commit, made anew; what was freed before that may be
    /// used. It then reads the first summary of each slot that is not in use. Where regions are only looked at, nothing is written to their labels.
    pub fn recover(&self, session: &Session, lost: bool) -> Result<Recovered> {
        if lost {
            self.take_named_for_backing(session)?;
        }
        let found = if lost { self.find_parts(session)? } else { Recovered::default() };
        self.link_free(session, lost)?;
        let is_looked_at = self.regions().iter().any(|region| region.properties().read_only);
        // Beyond all that was found.
        match lost {
            true if is_looked_at => self.number_on(session)?,
            true => self.get_ready(session)?,
            false => {}
        }
        Ok(found)
    }

    /// Notes in the table what is on the disks and not in there. To the disks nothing is written.
    pub fn find_parts(&self, session: &Session) -> Result<Recovered> {
        assert_may_wait();
        let mut found = Recovered::default();
        let known = self.head(session)?;
        let table = self.at.table(session.memory());
        let wholes = session.read(KEY, || table.regions())?.into_iter().map(|(_, region)| region.whole);
        for slot in known.heads.into_iter().chain(wholes).filter_map(slot_in) {
            found.parts += self.extend(session, slot)?;
        }
        let mut slots = self.newer_slots(session, &self.unused_slots(session)?, known.sequence);
        slots.sort_unstable();
        for slot in slots {
            found.segments += u64::from(self.adopt(session, slot, known.sequence)?);
        }
        Ok(found)
    }

    /// The slots in which the table knows nothing, but those that their disk says were never written to.
    fn unused_slots(&self, session: &Session) -> Result<Vec<u32>> {
        let (table, areas) = (self.at.table(session.memory()), self.areas());
        let mut slots = Vec::new();
        for (area, region) in areas.list.iter().filter_map(|area| Some((area, area.region.as_ref()?))) {
            let (mut slot, mut written) = (area.slots.start, 0..0);
            while slot < area.slots.end {
                let at = u64::from(slot - area.slots.start) * self.segment();
                if at >= written.end {
                    written = region.written(at);
                }
                if at < written.start {
                    let next = written.start.div_ceil(self.segment());
                    slot = u32::try_from(next).ok().and_then(|n| area.slots.start.checked_add(n)).unwrap_or(u32::MAX);
                    continue;
                }
                if is_unused(session.read(KEY, || table.get(slot))?.state) {
                    slots.push(slot);
                }
                slot += 1;
            }
        }
        Ok(slots)
    }

    /// Those of these slots whose first summary has a number not below `from`. Many are read at a time: a disk is asked for a block in each.
    fn newer_slots(&self, session: &Session, slots: &[u32], from: u64) -> Vec<u32> {
        let (next, newer, began) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Instant::now());
        let reported = AtomicU64::new(0);
        let look = || {
            while let Some(some) = slots.chunks(BATCH).nth(next.fetch_add(1, Ordering::Relaxed)) {
                let found = some.iter().copied().filter(|slot| self.first_number(session, *slot) >= Some(from));
                newer.lock().unwrap_or_else(PoisonError::into_inner).extend(found.collect::<Vec<_>>());
                let (done, seconds) = (next.load(Ordering::Relaxed) * BATCH, began.elapsed().as_secs());
                if seconds >= reported.load(Ordering::Relaxed) + TELL
                    && reported.swap(seconds, Ordering::Relaxed) < seconds
                {
                    tracing::info!(
                        "looked for content that the memory does not know in {done} of {} places",
                        slots.len()
                    );
                }
            }
        };
        std::thread::scope(|scope| {
            let readers = READERS.min(slots.len() / BATCH);
            (0..readers).for_each(|_| _ = scope.spawn(look));
            look();
        });
        newer.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the segment whose first summary lies in a slot.
    fn first_number(&self, session: &Session, slot: u32) -> Option<u64> {
        let lies = self.lies(session, slot).ok()?;
        let first = Walk::new(&*lies.region, lies.identity, lies.at, self.blocks).narrow().part_at(0);
        first.map(|part| part.sequence)
    }

    /// Parts of a segment that is open, behind those that are known.
    fn extend(&self, session: &Session, slot: u32) -> Result<u64> {
        let table = self.at.table(session.memory());
        let segment = table.get(slot)?;
        // What a write that was cut short has left in one copy, another may have whole.
        let mut found = Vec::new();
        for (copy, entry) in session.read(KEY, || table.copies(slot, &segment))? {
            let parts = self.parts_of(session, copy, segment.sequence, segment.used)?;
            found.push((copy, if entry.partial { Vec::new() } else { parts }));
        }
        // The first of those that have most.
        let Some((best, parts)) = found.iter().rev().max_by_key(|(_, parts)| parts.len()) else { return Ok(0) };
        let Some(last) = parts.last() else { return Ok(0) };
        self.change(session, |change| {
            let extended = with(segment, parts, last);
            change.count_live(segment.class, i64::from(extended.live - segment.live))?;
            change.put(slot, &extended)?;
            // The others lack some of it: they are no copies, or perhaps were none any more when it was written.
            for (copy, _) in found.iter().filter(|(copy, some)| *copy != slot && some.len() < parts.len()) {
                change.set_partial(*copy)?;
            }
            match found.iter().any(|(copy, some)| *copy == slot && some.len() < parts.len()) {
                true => change.put_first(slot, *best),
                false => Ok(()),
            }
        })?;
        Ok(parts.len() as u64)
    }

    /// The segment in a slot that is not in use, if its number is not below `from`.
    fn adopt(&self, session: &Session, slot: u32, from: u64) -> Result<bool> {
        let Some(sequence) = self.first_number(session, slot).filter(|sequence| *sequence >= from) else {
            return Ok(false);
        };
        let parts = self.parts_of(session, slot, sequence, 0)?;
        let Some(last) = parts.last() else { return Ok(false) };
        if let Some((other, known)) = session.read(KEY, || self.at.table(session.memory()).find(sequence))? {
            return self.adopt_copy(session, slot, (other, known), &parts, last);
        }
        self.change(session, |change| {
            let (head, stamp) = (last.head.min(1) as u8, change.head()?.clock);
            let (class, due) = (last.class as u8, seconds());
            let segment = Segment { sequence, state: State::Full, head, class, due, stamp, ..Segment::FREE };
            change.adopt(slot, with(segment, &parts, last))
        })?;
        Ok(true)
    }

    /// Another copy of a segment that was found before: the one that has more is what its number leads to, and the other a copy only if
    /// it has as much. What files want by now is found out by whoever follows them; until then a copy more does no harm.
    fn adopt_copy(
        &self,
        session: &Session,
        slot: u32,
        (other, known): (u32, Segment),
        parts: &[Part],
        last: &Part,
    ) -> Result<bool> {
        if known.used > last.end() || known.state != State::Full {
            return Ok(false);
        }
        self.change(session, |change| {
            let known = change.table().get(other)?;
            let extended = with(Segment { live: 0, parts: 0, ..known }, parts, last);
            if extended.used > known.used {
                change.count_live(known.class, i64::from(extended.live) - i64::from(known.live))?;
                change.put(
                    other,
                    &Segment { live: extended.live, used: extended.used, parts: extended.parts, ..known },
                )?;
            }
            change.adopt_copy(other, slot, extended.used > known.used)
        })?;
        Ok(false)
    }

    fn parts_of(&self, session: &Session, slot: u32, sequence: u64, from: u32) -> Result<Vec<Part>> {
        // A region that is missing has nothing to tell.
        let Ok(lies) = self.lies(session, slot) else { return Ok(Vec::new()) };
        let mut walk = Walk::new(&*lies.region, lies.identity, lies.at, self.blocks);
        let mut parts: Vec<Part> = Vec::new();
        while let Some(part) = walk.next_of(sequence, parts.last().map_or(from, Part::end)) {
            parts.push(part);
        }
        Ok(parts)
    }

    /// Makes the list of the free slots anew, of all that are not in use and were used before. What was freed stays in its
    /// queue, unless the commit of that was durable: the memory is of one that came later.
    fn link_free(&self, session: &Session, lost: bool) -> Result<()> {
        self.change(session, |change| change.forget_free(lost))?;
        let table = self.at.table(session.memory());
        let mut slots: Vec<u32> = session.read(KEY, || table.used_slots())?.collect();
        slots.reverse();
        for some in slots.chunks(SOME) {
            self.change(session, |change| some.iter().try_for_each(|slot| set_free(change, *slot, lost)))?;
        }
        Ok(())
    }
}

/// May a slot in this state have content that the table does not know?
fn is_unused(state: State) -> bool {
    !state.is_used() && !matches!(state, State::Bad | State::Copy | State::Backing)
}

fn with(segment: Segment, parts: &[Part], last: &Part) -> Segment {
    let blocks: usize = parts.iter().map(|part| part.entries.len()).sum();
    Segment {
        live: segment.live + blocks as u32,
        used: last.end(),
        parts: segment.parts + parts.len() as u32,
        ..segment
    }
}

fn set_free(change: &mut Change<'_, '_>, slot: u32, lost: bool) -> Result<()> {
    let segment = change.table().get(slot)?;
    match segment.state {
        State::Freed if lost && segment.failed => change.set_bad(slot),
        State::Freed if !lost => Ok(()),
        State::Free | State::Freed | State::Discarding => change.push_free(slot),
        _ => Ok(()),
    }
}
