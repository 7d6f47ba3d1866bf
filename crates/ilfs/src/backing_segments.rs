//! The segments of the backing. The log puts no content there, and does not touch the backing's own.
//!
//! The notes of regions list these segments ([`exraid::duplex`]), so that a process with the disks alone finds them; the
//! table follows. A slot is marked as the backing's before a note names it, and becomes free only when no note does any
//! more. After a crash the two can differ:
//! - The memory is that of an earlier commit, and its table has a named slot as free. That slot cannot have content,
//!   since a slot becomes free only when the commit that freed it is durable (T3). So named slots become the backing's
//!   before anything else is looked for ([`Log::take_named_for_backing`]).
//! - A process died between the two steps: a slot that has been the backing's for some time, and is named nowhere,
//!   becomes free ([`Log::release_unnamed`]). The time is measured by clocks, which may be wrong. So a process that
//!   names segments first checks that they still are the backing's, while no process gives any back.

use std::ops::Range;
use std::sync::Arc;

use exraid::{duplex, Region};
use pram::Session;

use super::areas::Area;
use super::discard::Discarding;
use super::error::{Error, Result};
use super::table::{transact, Change, Segment, SlotState, KEY};
use super::Log;

/// Seconds after which a slot that is taken must have been named: the process that names it waits for disks, but not
/// that long.
const NAMED: u64 = 600;
/// Slots of one transaction.
const SOME: usize = 32;

/// The result of a request for a slot.
enum Wish {
    Backing(u32),
    /// Its host must first keep room for this slot, which is next.
    Slot(u32),
}

/// The slots of segments of a region, which are numbered from its start. A note may name more than there are.
fn slots_of<'s>(segments: &'s [Range<u32>], area: &Area) -> impl Iterator<Item = u32> + 's {
    let (first, most) = (area.slots.start, area.slots.end - area.slots.start);
    segments.iter().flat_map(move |span| span.start.min(most)..span.end.min(most)).map(move |n| first + n)
}

/// Receives the segments that notes name.
type With<'a> = &'a mut dyn FnMut(&[Range<u32>]) -> Result<()>;

impl Log {
    /// Takes so many segments of a region for the backing; returns their numbers, from the start of the region.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there are not so many beside those for live and promised blocks. It also takes all but one
    /// of the segments reserved for the cleaner: a segment that the cleaner frees becomes free only with a durable
    /// commit, which may need these.
    pub fn take_for_backing(&self, session: &Session, number: u32, count: u64) -> Result<Vec<u32>> {
        let mut taken = Vec::new();
        while (taken.len() as u64) < count {
            match self.take_one_for_backing(session, number) {
                Ok(segment) => taken.push(segment),
                Err(e) => {
                    let spans: Vec<_> = taken.iter().map(|n| *n..n + 1).collect();
                    self.release_from_backing(session, number, &spans)?;
                    return Err(e);
                }
            }
        }
        Ok(taken)
    }

    fn take_one_for_backing(&self, session: &Session, number: u32) -> Result<u32> {
        let area = self.area(session, number)?;
        let mut is_prepared = false;
        loop {
            match transact(session, |tx| {
                let waits = tx.unplaced();
                self.try_for_backing(&mut Change::new(tx, self.at), &area, waits, is_prepared)
            })? {
                Wish::Backing(slot) => return Ok(slot - area.slots.start),
                Wish::Slot(slot) => {
                    match self.prepare(session, slot) {
                        // A slot for which the host keeps room already may do.
                        Err(Error::NoSpace) => {}
                        done => done?,
                    }
                    is_prepared = true;
                }
            }
        }
    }

    fn try_for_backing(&self, change: &mut Change<'_, '_>, area: &Area, waits: u64, is_prepared: bool) -> Result<Wish> {
        let (all, region) = (change.head()?, change.table().region(area.n)?);
        let slot = match (region.next_reserved(), region.next_free()) {
            (_, Some(slot)) if area.grows && !is_prepared => return Ok(Wish::Slot(slot)),
            (Some(slot), _) => slot,
            (None, Some(slot)) if !area.grows => slot,
            _ => return Err(Error::NoSpace),
        };
        let needed = self.physical(&all) + all.promised + waits * self.most_wanted(&all);
        let left = self.backed_of(&change.table(), &all)?.saturating_sub(1);
        if area.is_taking && (all.spare <= 1 || needed > self.content_of(left)) {
            return Err(Error::NoSpace);
        }
        change.take_for_backing(slot, self.seconds().into())?;
        Ok(Wish::Backing(slot))
    }

    /// Gives back segments of the backing, by their numbers from the start of the region. No note may name them.
    pub fn release_from_backing(&self, session: &Session, number: u32, segments: &[Range<u32>]) -> Result<()> {
        let area = self.area(session, number)?;
        self.give_back(session, &area, slots_of(segments, &area))
    }

    /// Takes these slots from the backing; each is free once its disk has the room back.
    fn give_back(&self, session: &Session, area: &Area, slots: impl Iterator<Item = u32>) -> Result<()> {
        for slot in slots {
            let mut discarding = Discarding::of(session);
            if self.end_use_for_backing(session, &mut discarding, slot, &|_| true)? {
                self.give_room_back(session, area, slot, &discarding)?;
            }
        }
        Ok(())
    }

    /// Takes a slot from the backing if it is as `is_it` says; returns whether it was.
    fn end_use_for_backing(
        &self,
        session: &Session,
        discarding: &mut Discarding,
        slot: u32,
        is_it: &dyn Fn(&Segment) -> bool,
    ) -> Result<bool> {
        self.change(session, |change| {
            let segment = change.table().get(slot)?;
            match segment.state == SlotState::Backing && is_it(&segment) {
                true => {
                    discarding.begin(slot);
                    change.release_from_backing(slot, discarding.by()).map(|()| true)
                }
                false => Ok(false),
            }
        })
    }

    fn give_room_back(&self, session: &Session, area: &Area, slot: u32, discarding: &Discarding) -> Result<()> {
        if area.grows {
            self.discard(session, slot);
        }
        self.change(session, |change| change.discarded(slot, false, discarding.by()))
    }

    /// The regions where a backing could lie: they take content and are there; the one with most room first.
    pub fn homes_for_backing(&self, session: &Session, without: &[u32]) -> Result<Vec<Arc<dyn Region>>> {
        self.refresh(session)?;
        let (areas, table) = (self.areas(), self.at.table(session.memory()));
        let mut homes = Vec::new();
        for (area, region) in areas.taking().filter(|(area, _)| !without.contains(&area.number)) {
            let raw = session.read(KEY, || table.region(area.n))?;
            homes.push((raw.spare, region.clone()));
        }
        homes.sort_by_key(|(spare, region)| (std::cmp::Reverse(*spare), region.number()));
        Ok(homes.into_iter().map(|(_, region)| region).collect())
    }

    /// Does the region share its domain with none of these?
    pub fn fail_apart(&self, session: &Session, number: u32, others: &[u32]) -> Result<bool> {
        self.refresh(session)?;
        let areas = self.areas();
        let domain = |number: u32| areas.list.iter().find(|area| area.number == number).map(|area| area.domain);
        Ok(others.iter().all(|other| *other != number && domain(*other) != domain(number)))
    }

    /// The numbers of the backing's segments in a region, from its start, and since when they are the backing's.
    fn slots_of_backing(&self, session: &Session, area: &Area) -> Result<Vec<(u32, u64)>> {
        let table = self.at.table(session.memory());
        let mut taken = Vec::new();
        for slot in area.slots.clone() {
            let segment = session.read(KEY, || table.get(slot))?;
            if segment.state == SlotState::Backing {
                taken.push((slot - area.slots.start, segment.stamp));
            }
        }
        Ok(taken)
    }

    /// Are all of these segments of a region the backing's?
    pub fn are_of_backing(&self, session: &Session, number: u32, segments: &[Range<u32>]) -> Result<bool> {
        // Without a refresh: the caller has taken them, and must not wait.
        let (areas, table) = (self.areas(), self.at.table(session.memory()));
        let Some(area) = areas.list.iter().find(|area| area.number == number) else { return Ok(false) };
        let wanted: u64 = segments.iter().map(|span| u64::from(span.end - span.start)).sum();
        let mut taken = 0;
        for slot in slots_of(segments, area) {
            taken += u64::from(session.read(KEY, || table.get(slot))?.state == SlotState::Backing);
        }
        Ok(taken == wanted)
    }

    /// The number of the backing's segments in one region.
    pub fn backing_in_region(&self, session: &Session, number: u32) -> Result<u64> {
        let area = self.area(session, number)?;
        Ok(self.slots_of_backing(session, &area)?.len() as u64)
    }

    /// The number of the backing's segments in all regions.
    pub fn backing_segments(&self, session: &Session) -> Result<u64> {
        let areas = self.areas();
        areas.list.iter().map(|area| Ok(self.slots_of_backing(session, area)?.len() as u64)).sum()
    }

    /// Gives back slots of a region that were taken and not named in time; with `at_once`, where no other process may be
    /// about to name any, all unnamed ones. Returns how many. `with_named` must call its argument with the named
    /// segments, while no process names any.
    pub fn release_unnamed(
        &self,
        session: &Session,
        number: u32,
        with_named: &dyn Fn(With) -> Result<()>,
        at_once: bool,
    ) -> Result<u64> {
        let (area, now) = (self.area(session, number)?, u64::from(self.seconds()));
        // A slot that was taken later than now was taken before the clock was set back.
        let is_old = |since: u64| at_once || since > now || since + NAMED <= now;
        let old: Vec<u32> =
            self.slots_of_backing(session, &area)?.into_iter().filter(|taken| is_old(taken.1)).map(|k| k.0).collect();
        if old.is_empty() {
            return Ok(0);
        }
        let (mut released, mut discarding) = (Vec::new(), Discarding::of(session));
        with_named(&mut |named| {
            let is_named = |segment: u32| named.iter().any(|span| span.contains(&segment));
            for segment in old.iter().copied().filter(|segment| !is_named(*segment)) {
                let slot = area.slots.start + segment;
                if self.end_use_for_backing(session, &mut discarding, slot, &|segment| is_old(segment.stamp))? {
                    released.push(slot);
                }
            }
            Ok(())
        })?;
        // Outside of `with_named`, in which others wait: a disk may take its time.
        released.iter().try_for_each(|slot| self.give_room_back(session, &area, *slot, &discarding))?;
        Ok(released.len() as u64)
    }

    /// For a memory that was made anew as of a commit: in regions with a readable note, the backing gets the slots that
    /// the note names, and no others. To be called before the lists of free slots are made.
    pub(super) fn take_named_for_backing(&self, session: &Session) -> Result<()> {
        let areas = self.areas();
        for area in &areas.list {
            let Some(named) = area.region.as_ref().and_then(|region| named(&**region).ok()) else { continue };
            let is_named = |segment: u32| named.iter().any(|span| span.contains(&segment));
            let unnamed: Vec<u32> = self
                .slots_of_backing(session, area)?
                .into_iter()
                .filter(|(segment, _)| !is_named(*segment))
                .map(|(segment, _)| area.slots.start + segment)
                .collect();
            let slots: Vec<u32> = slots_of(&named, area).collect();
            for some in slots.chunks(SOME) {
                self.change(session, |change| some.iter().try_for_each(|slot| change.take_named_for_backing(*slot)))?;
            }
            for some in unnamed.chunks(SOME) {
                self.change(session, |change| some.iter().try_for_each(|slot| change.release_from_backing(*slot, 0)))?;
            }
        }
        Ok(())
    }

    fn area(&self, session: &Session, number: u32) -> Result<Arc<Area>> {
        self.refresh(session)?;
        let areas = self.areas();
        areas.list.iter().find(|area| area.number == number).cloned().ok_or(Error::Missing(number))
    }
}

/// The segments that the note of a region names.
fn named(region: &dyn Region) -> Result<Vec<Range<u32>>> {
    let said = duplex::named_by(region)?.filter(|said| said.me.is_some());
    Ok(said.map(|said| said.spans.into_iter().flatten().collect()).unwrap_or_default())
}
