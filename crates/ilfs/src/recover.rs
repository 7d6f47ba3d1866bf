//! Putting the table in order: by the process that recovers a pool, before any process uses the log.
//!
//! A commit writes its segments later than the instant of its memory. So after the memory was lost and made anew as of a
//! commit, disks have parts that the table does not know, and the memory may lead to them. Recovery looks for them
//! behind the known parts of open segments, and in all slots that are not in use. The sequence number in the first
//! summary of a slot tells whether the segment is newer; many slots are read at a time. Recovery skips holes of disks
//! that are files, and slots above the [high-water mark](super::high_water). The blocks found count as live, like blocks
//! that were written and not linked yet; the cleaner finds out which are dead.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use pram::session::assert_may_wait;
use pram::Session;

use super::error::{Error, Result};
use super::part::Part;
use super::table::{slot_in, Change, Segment, SlotState, KEY, ORDERING};
use super::walk::Walk;
use super::Log;

/// The result of putting the table in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Segments found on the disks, and parts found in segments that the table knew.
    pub segments: u64,
    pub parts: u64,
}

/// Slots that are put in order in one transaction.
const SOME: usize = 32;
/// Slots whose first summary is read at a time, each by a thread; slots that a thread takes at a time.
const READERS: usize = 32;
const BATCH: usize = 64;
/// Seconds between reports of progress.
const TELL: u64 = 5;

impl Log {
    /// Has the table been put in order since the memory was lost last?
    pub fn is_in_order(&self, session: &Session) -> Result<bool> {
        Ok(session.read(KEY, || self.at.table(session.memory()).head())?.recovered == session.epochs()?.recovered)
    }

    /// Puts the table in order if the memory was lost since that was last done. To be called by each process that
    /// attaches, before anything else.
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
        // First, while the table has nothing that came after the commit.
        *self.old.lock().unwrap_or_else(PoisonError::into_inner) = self.old_regions(session)?;
        let found = self.recover(session, true)?;
        // The labels may be newer than this memory.
        let regions = self.regions();
        self.change(session, |change| {
            regions.iter().try_for_each(|region| change.set_mark(region.number(), region.sequence()))?;
            change.set_recovered(recovered)
        })?;
        Ok(Some(found))
    }

    /// Puts the table in order. With `lost`, the memory was made anew as of a commit. Segments that were freed before
    /// that commit may be used, and the first summary of each slot that is not in use is read. Labels of read-only
    /// regions are not written.
    pub fn recover(&self, session: &Session, lost: bool) -> Result<Recovered> {
        if lost {
            self.take_named_for_backing(session)?;
        }
        let found = if lost { self.find_parts(session)? } else { Recovered::default() };
        self.link_free(session, lost)?;
        let is_looked_at = self.regions().iter().any(|region| region.properties().read_only);
        // Numbers go on beyond all that were found.
        match lost {
            true if is_looked_at => self.number_on(session)?,
            true => self.get_ready(session)?,
            false => {}
        }
        Ok(found)
    }

    /// Adds the segments and parts that are only on the disks to the table. Writes nothing to the disks.
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

    /// The slots in which the table has nothing, without those in holes of their disk.
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

    /// Those of these slots whose first summary has a number not below `from`. Many are read at a time, one block in
    /// each.
    fn newer_slots(&self, session: &Session, slots: &[u32], from: u64) -> Vec<u32> {
        let (next, newer, began) = (AtomicUsize::new(0), Mutex::new(Vec::new()), self.clock.instant());
        let reported = AtomicU64::new(0);
        let look = || {
            while let Some(some) = slots.chunks(BATCH).nth(next.fetch_add(1, Ordering::Relaxed)) {
                let found = some.iter().copied().filter(|slot| self.first_number(session, *slot) >= Some(from));
                newer.lock().unwrap_or_else(PoisonError::into_inner).extend(found.collect::<Vec<_>>());
                let (done, seconds) = (next.load(Ordering::Relaxed) * BATCH, self.clock.since(began).as_secs());
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

    /// Adds the unknown parts of an open segment.
    fn extend(&self, session: &Session, slot: u32) -> Result<u64> {
        let table = self.at.table(session.memory());
        let segment = table.get(slot)?;
        // A part may be torn in one replica and whole in another.
        let mut found = Vec::new();
        for (replica, entry) in session.read(KEY, || table.replicas(slot, &segment))? {
            let parts = self.parts_of(session, replica, segment.sequence, segment.used)?;
            found.push((replica, if entry.partial { Vec::new() } else { parts }));
        }
        // The first of the replicas with most parts.
        let Some((best, parts)) = found.iter().rev().max_by_key(|(_, parts)| parts.len()) else { return Ok(0) };
        let Some(last) = parts.last() else { return Ok(0) };
        self.change(session, |change| {
            let extended = with(segment, parts, last);
            change.count_live(segment.class, i64::from(extended.live - segment.live))?;
            change.put(slot, &extended)?;
            // The others lack some parts, so they do not count as replicas; they may have been dropped before those parts
            // were written.
            for (replica, _) in found.iter().filter(|(replica, some)| *replica != slot && some.len() < parts.len()) {
                change.set_partial(*replica)?;
            }
            match found.iter().any(|(replica, some)| *replica == slot && some.len() < parts.len()) {
                true => change.put_first(slot, *best),
                false => Ok(()),
            }
        })?;
        Ok(parts.len() as u64)
    }

    /// Adopts the segment in a slot that is not in use, if its number is not below `from`.
    fn adopt(&self, session: &Session, slot: u32, from: u64) -> Result<bool> {
        let Some(sequence) = self.first_number(session, slot).filter(|sequence| *sequence >= from) else {
            return Ok(false);
        };
        let parts = self.parts_of(session, slot, sequence, 0)?;
        let Some(last) = parts.last() else { return Ok(false) };
        if let Some((other, known)) = session.read(KEY, || self.at.table(session.memory()).find(sequence))? {
            return self.adopt_replica(session, slot, (other, known), &parts, last);
        }
        self.change(session, |change| {
            let (head, stamp) = (last.head.min(1) as u8, change.head()?.clock);
            let (class, due) = (last.class as u8, self.seconds());
            let segment = Segment { sequence, state: SlotState::Full, head, class, due, stamp, ..Segment::FREE };
            change.adopt(slot, with(segment, &parts, last))
        })?;
        Ok(true)
    }

    /// Adopts another replica of a segment that was found before. The replica with more parts gets the place in the chain; the
    /// other stays a replica only if it has as many. Whether the files still want that replica is checked later; a surplus
    /// replica does no harm until then.
    fn adopt_replica(
        &self,
        session: &Session,
        slot: u32,
        (other, known): (u32, Segment),
        parts: &[Part],
        last: &Part,
    ) -> Result<bool> {
        if known.used > last.end() || known.state != SlotState::Full {
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
            change.adopt_replica(other, slot, extended.used > known.used)
        })?;
        Ok(false)
    }

    fn parts_of(&self, session: &Session, slot: u32, sequence: u64, from: u32) -> Result<Vec<Part>> {
        // Nothing can be read from a missing region.
        let Ok(lies) = self.lies(session, slot) else { return Ok(Vec::new()) };
        let mut walk = Walk::new(&*lies.region, lies.identity, lies.at, self.blocks);
        let mut parts: Vec<Part> = Vec::new();
        while let Some(part) = walk.next_of(sequence, parts.last().map_or(from, Part::end)) {
            parts.push(part);
        }
        Ok(parts)
    }

    /// Rebuilds the list of free slots from all used slots that are not in use now. Freed slots stay in their queue
    /// unless `lost`: then the commit that freed them is durable.
    fn link_free(&self, session: &Session, lost: bool) -> Result<()> {
        self.change(session, |change| change.forget_free(lost))?;
        let table = self.at.table(session.memory());
        let mut slots: Vec<u32> = session.read(KEY, || table.used_slots())?.collect();
        let now = self.seconds().into();
        slots.reverse();
        for some in slots.chunks(SOME) {
            self.change(session, |change| some.iter().try_for_each(|slot| set_free(change, *slot, lost, now)))?;
        }
        Ok(())
    }
}

/// May a slot in this state have content that the table does not know?
fn is_unused(state: SlotState) -> bool {
    !state.is_used() && !matches!(state, SlotState::Bad | SlotState::Replica | SlotState::Backing)
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

fn set_free(change: &mut Change<'_, '_>, slot: u32, lost: bool, now: u64) -> Result<()> {
    let segment = change.table().get(slot)?;
    match segment.state {
        SlotState::Freed if lost && segment.failed => change.set_bad(slot, now),
        SlotState::Freed if !lost => Ok(()),
        SlotState::Free | SlotState::Freed | SlotState::Discarding => change.push_free(slot),
        _ => Ok(()),
    }
}
