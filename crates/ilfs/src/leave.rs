//! Regions that leave the log: their content is moved, then they are removed. Several regions that leave are one plan:
//! nothing is moved from one to another.
//!
//! | step | action | otherwise |
//! | --- | --- | --- |
//! | 1 | a check that the content of the region fits into the others, with all its replicas in different domains; the region takes no more content | moving ends in a log that is full, or with fewer replicas than there were |
//! | 2 | its segments are cleaned, whether or not that gains anything ([`Log::clean_leaving`]); each block is verified, written elsewhere and durable before it is given up. A segment with a replica elsewhere is not moved: another replica is made, then the one here is dropped ([`Log::make_next_replica`]). Replicas that are given up without replacement, where that was allowed, go last | content that finds no room has lost replicas for nothing |
//! | 3 | the commits that freed the segments are durable | a backing leads to a region that is gone |
//! | 4 | the region is removed from the table | |
//!
//! After an interruption behind step 1, the region goes on leaving or takes content again: neither loses anything.
//!
//! A region that is lost is *given up* ([`Log::give_up_region`]): content with a replica elsewhere keeps that, and other
//! content is lost: its files still have the places, which lead nowhere. It is done slot by slot; if the process dies,
//! another can go on.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::PoisonError;

use pram::Session;

use super::error::{Error, Result};
use super::place::BLOCK;
use super::storage_class::{wanted_replicas, MOST_REPLICAS};
use super::table::{Cause, Health, Home, RawTable, RawTableRegion, Segment, SlotState, Table, KEY};
use super::Log;

/// The effort and the effect of leaving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Bytes to write elsewhere, each replica counted, and about how many there is room for.
    pub live: u64,
    pub room: u64,
    /// Segments that hold content.
    pub segments: u64,
    /// Bytes of content that have no replica elsewhere; bytes of content that will have fewer replicas than now, since too
    /// few domains are left.
    pub alone: u64,
    pub fewer: u64,
    /// Domains that are left: the most replicas that there can be.
    pub domains: u32,
}

/// What regions are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    Leave,
    /// Leave, even if content then has fewer replicas.
    LeaveFewer,
    Stay,
}

impl Leaving {
    pub fn fits(&self) -> bool {
        self.live <= self.room
    }
}

/// Room in the regions that stay.
#[derive(Default)]
struct Room {
    /// Slots that take content, by domain.
    slots: BTreeMap<u64, u64>,
    /// Of these slots, those for which no host keeps room.
    lacking: u64,
}

impl Room {
    fn add(&mut self, region: &RawTableRegion, grows: bool) {
        *self.slots.entry(region.domain()).or_default() += u64::from(region.slots) - region.bad;
        self.lacking += if grows { region.spare.saturating_sub(region.held) } else { 0 };
    }

    /// Blocks for which there is room beyond those needed, which are given by number of replicas; negative: so many too
    /// few. Content with several replicas needs as many domains with room. All blocks with `n` or more replicas fit if the
    /// domains together have enough room, where each domain counts at most for one replica of each block.
    fn left(&self, needed: &[u64], content_of: &dyn Fn(u64) -> u64) -> i64 {
        let slots: u64 = self.slots.values().sum();
        let all = content_of(slots.saturating_sub(self.lacking));
        let of_domain = |slots_of: &u64| (u128::from(all) * u128::from(*slots_of) / u128::from(slots.max(1))) as u64;
        let replicas =
            |from: usize| (from..).zip(&needed[from..]).map(|(n, blocks)| (n as u64 + 1) * blocks).sum::<u64>();
        let one = |from: usize| {
            let blocks: u64 = needed[from..].iter().sum();
            let most = self.slots.values().map(|slots| of_domain(slots).min(if from == 0 { u64::MAX } else { blocks }));
            (blocks > 0 || from == 0).then(|| most.sum::<u64>() as i64 - replicas(from) as i64)
        };
        (0..needed.len()).filter_map(one).min().unwrap_or(0)
    }
}

impl Log {
    /// The effort and the effect if these regions leave, all at once.
    pub fn leaving(&self, session: &Session, numbers: &[u32]) -> Result<Leaving> {
        self.refresh(session)?;
        let table = self.at.table(session.memory());
        let (all, regions) = session.read(KEY, || Ok::<_, Error>((table.head()?, table.regions()?)))?;
        let leaves = |region: &RawTableRegion| numbers.contains(&region.number);
        let stays = |region: &RawTableRegion| !leaves(region) && region.health() == Health::Taking;
        let (mut leaving, mut seen) = (Leaving::default(), HashSet::new());
        let mut room = Room::default();
        for (_, region) in regions.iter().filter(|(_, region)| stays(region)) {
            let grows = self.areas().list.iter().any(|area| area.number == region.number && area.grows);
            room.add(region, grows);
        }
        leaving.domains = room.slots.len() as u32;
        // Content that lies only in regions out of use takes no room of the others, unless it is moved there.
        let mut out_of_reach = self.out_of_reach.load(Ordering::Relaxed);
        let domains = |homes: &[Home], counts: &dyn Fn(&Home) -> bool| {
            let whole = homes.iter().filter(|home| !home.partial && counts(home));
            whole.map(|home| home.domain).collect::<HashSet<_>>().len() as u32
        };
        for (_, region) in regions.iter().filter(|(_, region)| leaves(region)) {
            for slot in region.range() {
                let Some((first, segment)) = session.read(KEY, || owner(&table, slot))? else { continue };
                if !seen.insert(segment.sequence) {
                    continue;
                }
                let homes = session.read(KEY, || table.homes(first, &segment)).unwrap_or_default();
                let staying = domains(&homes, &|home| regions.iter().any(|(n, region)| *n == home.n && stays(region)));
                let now = domains(&homes, &|home| matches!(home.health, Health::Taking | Health::Leaving));
                let (live, wanted) = (u64::from(segment.live), segment.wanted());
                let then = wanted.min(leaving.domains.max(1));
                leaving.segments += 1;
                leaving.live += live * BLOCK * u64::from(then.saturating_sub(staying));
                leaving.alone += if staying == 0 { live * BLOCK } else { 0 };
                leaving.fewer += if then < now.min(wanted) { live * BLOCK } else { 0 };
                out_of_reach -= if now == 0 { live.min(out_of_reach) } else { 0 };
            }
        }
        // Hosts of the other regions may lack room that those regions may yet take.
        room.lacking = room.lacking.saturating_sub(self.left_on_hosts().unwrap_or(u64::MAX));
        let needed = self.needed(session, &all, leaving.domains, out_of_reach);
        let left = room.left(&needed, &|slots| self.content_of(slots));
        leaving.room = leaving.live.saturating_add_signed(left.saturating_mul(BLOCK as i64));
        Ok(leaving)
    }

    /// Blocks that are to lie on disk, by the number of replicas that they are to have and that so many domains allow:
    /// one, two ...
    fn needed(
        &self,
        session: &Session,
        all: &RawTable,
        domains: u32,
        out_of_reach: u64,
    ) -> [u64; MOST_REPLICAS as usize] {
        let mut needed = [0; MOST_REPLICAS as usize];
        let mut add = |replicas: u32, blocks: u64| {
            needed[replicas.clamp(1, domains.clamp(1, MOST_REPLICAS)) as usize - 1] += blocks
        };
        let mut alone = all.live;
        for (code, live) in (1u8..).zip(all.mirrored) {
            add(wanted_replicas(code).unwrap_or(1), live);
            alone = alone.saturating_sub(live);
        }
        add(1, alone + all.promised);
        add(self.most_wanted(all) as u32, session.heap().unplaced());
        // Which of these blocks are out of reach is unknown, and makes no difference.
        let mut left = out_of_reach;
        for blocks in &mut needed {
            let less = left.min(*blocks);
            (*blocks, left) = (*blocks - less, left - less);
        }
        needed
    }

    /// Replicas that a segment of a region that leaves must have elsewhere before it is given up.
    pub(super) fn required_replicas(&self, session: &Session, slot: u32, segment: &Segment) -> Result<u64> {
        let table = self.at.table(session.memory());
        let homes = session.read(KEY, || table.homes(slot, segment))?;
        let whole = homes.iter().filter(|home| !home.partial && home.health != Health::Failed);
        let now = whole.map(|home| home.domain).collect::<HashSet<_>>().len() as u32;
        let least_replicas =
            homes.iter().filter(|home| home.health == Health::Leaving).map(|home| home.least_replicas).min();
        Ok(u64::from(now.min(least_replicas.unwrap_or(1)).max(1)))
    }

    /// Step 1, or its opposite.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the content has no room elsewhere; [`Error::TooFewDomains`] if it would have fewer replicas;
    /// [`Error::Unusable`] if no other region takes content, or there is no such region.
    pub fn set_leaving(&self, session: &Session, numbers: &[u32], course: Course) -> Result<()> {
        let (leaves, mut least_replicas) = (course != Course::Stay, 0);
        if leaves {
            let leaving = self.leaving(session, numbers)?;
            if leaving.fewer > 0 && course == Course::Leave {
                return Err(Error::TooFewDomains { bytes: leaving.fewer, domains: leaving.domains });
            }
            if !leaving.fits() {
                return Err(Error::NoSpace);
            }
            least_replicas = if leaving.fewer > 0 { leaving.domains } else { 0 };
        }
        self.change(session, |change| {
            let regions = change.table().regions()?;
            let is_other =
                |region: &RawTableRegion| !numbers.contains(&region.number) && region.health() == Health::Taking;
            if leaves && !regions.iter().any(|(_, region)| is_other(region)) {
                return Err(Error::Unusable("it is the last disk that takes content".into()));
            }
            for number in numbers {
                let found = regions.iter().find(|(_, region)| region.number == *number);
                let (n, region) = found.ok_or_else(|| Error::Unusable(format!("the log has no region {number}")))?;
                match (leaves, region.health()) {
                    (true, _) => {
                        self.close_in(change, region)?;
                        change.set_health(*n, Health::Leaving)?;
                        change.set_least_replicas(*n, least_replicas)?;
                    }
                    // A region that had failed before has still failed.
                    (false, Health::Leaving) if region.had_failed() => {
                        change.set_failed(*n, region.cause())?;
                        change.set_stays(*n)?;
                    }
                    (false, Health::Leaving) => change.set_health(*n, Health::Taking)?,
                    (false, Health::Failed) => change.set_stays(*n)?,
                    (false, _) => {}
                }
            }
            Ok(())
        })?;
        self.refresh(session)
    }

    /// Step 4. False if content is still there, or waits for a commit.
    pub fn remove_region(&self, session: &Session, number: u32) -> Result<bool> {
        self.adopt_orphans(session)?;
        let is_gone = self.change(session, |change| {
            let regions = change.table().regions()?;
            let Some((n, region)) = regions.into_iter().find(|(_, region)| region.number == number) else {
                return Ok(true);
            };
            let is_empty = region.spare + region.bad == u64::from(region.slots);
            if region.health() != Health::Leaving || !is_empty || change.has_backing(&region)? {
                return Ok(false);
            }
            change.forget_region(n)?;
            Ok(true)
        })?;
        self.forget_chunks(session, number)?;
        self.refresh(session)?;
        Ok(is_gone)
    }

    /// Frees the chunks of a region that was removed, as many at a time as the undo log of a transaction holds.
    fn forget_chunks(&self, session: &Session, number: u32) -> Result<()> {
        while self.change(session, |change| change.forget_chunks(number))? {}
        Ok(())
    }

    /// The numbers of regions that were removed.
    pub fn gone(&self, session: &Session) -> Result<Vec<u32>> {
        let table = self.at.table(session.memory());
        session.read(KEY, || {
            let there = table.regions()?;
            let mut numbers = table.numbers()?;
            numbers.retain(|number| there.iter().all(|(_, region)| region.number != *number));
            Ok(numbers)
        })
    }

    /// Regions that leave.
    pub fn leavers(&self, session: &Session) -> Result<Vec<u32>> {
        let table = self.at.table(session.memory());
        let regions = session.read(KEY, || table.regions())?;
        let leaving = regions.into_iter().filter(|(_, region)| region.health() == Health::Leaving);
        Ok(leaving.map(|(_, region)| region.number).collect())
    }

    /// The next segment of a region that leaves to be moved, and its slot.
    pub(super) fn next_to_leave(&self, session: &Session) -> Result<Option<(u32, Segment)>> {
        let table = self.at.table(session.memory());
        let regions = session.read(KEY, || table.regions())?;
        for (_, region) in regions.iter().filter(|(_, region)| region.health() == Health::Leaving) {
            // The search goes on behind the last one that was found: segments before it have left, or cannot be moved
            // now.
            let last = self.left_of.lock().unwrap_or_else(PoisonError::into_inner).get(&region.number).copied();
            let from = last.filter(|slot| region.range().contains(slot)).unwrap_or(region.first);
            for slot in (from..region.range().end).chain(region.first..from) {
                let Some((first, segment)) = session.read(KEY, || owner(&table, slot))? else { continue };
                let homes = session.read(KEY, || table.homes(first, &segment))?;
                let is_known = self.has_obstacle(segment.sequence) || self.under_way().has(segment.sequence);
                let has_replica = homes.iter().any(|home| !home.partial && home.health == Health::Taking);
                if matches!(segment.state, SlotState::Full | SlotState::Cleaning) && !is_known && !has_replica {
                    self.left_of.lock().unwrap_or_else(PoisonError::into_inner).insert(region.number, slot);
                    return Ok(Some((first, segment)));
                }
            }
        }
        Ok(None)
    }

    /// Do regions that leave have segments that were set aside for a while, and are moved later?
    pub fn is_leaving_later(&self, session: &Session) -> Result<bool> {
        let table = self.at.table(session.memory());
        let regions = session.read(KEY, || table.regions())?;
        for (_, region) in regions.iter().filter(|(_, region)| region.health() == Health::Leaving) {
            for slot in region.range() {
                let Some((_, segment)) = session.read(KEY, || owner(&table, slot))? else { continue };
                if self.under_way().has(segment.sequence) && !self.has_obstacle(segment.sequence) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Gives up a region that has failed, or is not wanted, with its content: content that lies there alone is lost. The
    /// region takes nothing from now on. False while a slot waits for a commit. To be called with the long lock
    /// [`CLEANING`](super::table::CLEANING): it also gives up slots that are being filled with replicas of lost segments.
    pub fn give_up_region(&self, session: &Session, number: u32) -> Result<bool> {
        let table = self.at.table(session.memory());
        let regions = session.read(KEY, || table.regions())?;
        let Some((n, region)) = regions.into_iter().find(|(_, region)| region.number == number) else {
            return Ok(true);
        };
        self.change(session, |change| {
            let regions = change.table().regions()?;
            let is_other = |r: &RawTableRegion| r.number != number && r.health() == Health::Taking;
            if !regions.iter().any(|(_, region)| is_other(region)) {
                return Err(Error::Unusable("it is the last disk that takes content".into()));
            }
            self.close_in(change, &region)?;
            // Not as missing: it must not be taken back when some of its content is lost.
            change.set_failed(n, Cause::Failed)
        })?;
        self.adopt_orphans(session)?;
        for slot in region.range() {
            self.change(session, |change| {
                let epoch = session.epoch()?;
                change.lose(slot, epoch)
            })?;
        }
        let waits = session.read(KEY, || {
            region.range().try_fold(false, |any, slot| {
                Ok::<_, Error>(any || matches!(table.get(slot)?.state, SlotState::Freed | SlotState::Discarding))
            })
        })?;
        if !waits {
            self.change(session, |change| change.forget_region(n))?;
            self.forget_chunks(session, number)?;
        }
        self.refresh(session)?;
        Ok(!waits)
    }
}

/// The segment in a slot, or the one of which the slot has a replica, with the slot in its chain.
fn owner(table: &Table<'_>, slot: u32) -> Result<Option<(u32, Segment)>> {
    let segment = table.get(slot)?;
    match segment.state {
        SlotState::Replica => table.find(segment.sequence),
        state if state.is_used() => Ok(Some((slot, segment))),
        _ => Ok(None),
    }
}
