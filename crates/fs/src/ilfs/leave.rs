//! Regions that leave the log: what they have is moved, then there is none. Several that leave are one plan: nothing is moved from one to
//! another.
//!
//! | step | what | else |
//! | --- | --- | --- |
//! | 1 | what is in the region has to fit into the others; it takes no more content | moving ends in a log that is full |
//! | 2 | its segments are cleaned, whatever is to be gained ([`Log::clean`]); each is verified, written elsewhere and durable before it is given up. Of a segment that has a copy elsewhere only the one here goes, after another was made ([`Log::copy_next`]) | |
//! | 3 | the commits that freed them are durable | a copy of the memory leads to a region that is gone |
//! | 4 | the table has no such region any more | |
//!
//! Who is interrupted after step 1 goes on, or has the region take content again: nothing is lost either way.
//!
//! A region that is lost is *given up* ([`Log::give_up_region`]): what has a copy elsewhere keeps that, and what has none is lost, as the
//! places of files say that lead there. It is done slot by slot, and by whoever is next if he dies.

use std::collections::HashSet;
use std::sync::PoisonError;

use pram::Session;

use super::error::{Error, Result};
use super::place::BLOCK;
use super::table::{Cause, Home, RawTableRegion, Segment, Standing, State, Table, KEY};
use super::Log;

/// What leaving takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Bytes of content that are moved, and those that there is room for elsewhere, about.
    pub live: u64,
    pub room: u64,
    /// Segments that hold something.
    pub segments: u64,
    /// Bytes of content that have copies elsewhere, and of these those that will have fewer than they are to have.
    pub copied: u64,
    pub fewer: u64,
}

impl Leaving {
    pub fn fits(&self) -> bool {
        self.live <= self.room
    }
}

impl Log {
    /// What it takes that these regions leave, all at once.
    pub fn leaving(&self, session: &Session, numbers: &[u32]) -> Result<Leaving> {
        self.refresh(session)?;
        let table = self.at.table(session.region());
        let (all, regions) = session.read(KEY, || Ok::<_, Error>((table.head()?, table.regions()?)))?;
        let leaves = |region: &RawTableRegion| numbers.contains(&region.number);
        let mut told = Leaving::default();
        let (mut slots, mut spare, mut held) = (0, 0, 0);
        for (_, region) in &regions {
            if !leaves(region) && region.standing() == Standing::Taking {
                let grows = self.areas().list.iter().any(|area| area.number == region.number && area.grows);
                slots += u64::from(region.slots) - region.bad;
                spare += if grows { region.spare } else { 0 };
                held += if grows { region.held } else { 0 };
            }
        }
        let stays = |home: &Home| {
            home.standing == Standing::Taking && !regions.iter().any(|(n, region)| *n == home.n && leaves(region))
        };
        let domains: HashSet<u64> = regions
            .iter()
            .filter(|(_, region)| !leaves(region) && region.standing() == Standing::Taking)
            .map(|(_, region)| region.domain())
            .collect();
        for (_, region) in regions.iter().filter(|(_, region)| leaves(region)) {
            for slot in region.range() {
                let Some((first, segment)) = session.read(KEY, || owner(&table, slot))? else { continue };
                let homes = session.read(KEY, || table.homes(first, &segment)).unwrap_or_default();
                let bytes = u64::from(segment.live) * BLOCK;
                told.live += bytes;
                told.segments += 1;
                let staying = homes.iter().filter(|home| stays(home) && !home.partial).count();
                told.copied += if staying > 0 { bytes } else { 0 };
                told.fewer +=
                    if (domains.len() as u32) < segment.wanted() && segment.copy.is_some() { bytes } else { 0 };
            }
        }
        // Hosts of the others may not have what these may yet take.
        let lacking = (spare - held).saturating_sub(self.left_on_hosts().unwrap_or(u64::MAX));
        let needed = self.physical(&all) + all.promised + session.heap().unplaced();
        let elsewhere = needed.saturating_sub(told.live / BLOCK);
        told.room = self.content_of(slots - lacking).saturating_sub(elsewhere) * BLOCK;
        // Copies that nobody can have any more take no room.
        told.room = told.room.saturating_add(told.fewer);
        Ok(told)
    }

    /// Step 1, or its opposite.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where what is there has no room elsewhere; [`Error::Unusable`] where no other region takes content, or there is
    /// no such region.
    pub fn set_leaving(&self, session: &Session, numbers: &[u32], leaves: bool) -> Result<()> {
        if leaves && !self.leaving(session, numbers)?.fits() {
            return Err(Error::NoSpace);
        }
        self.change(session, |change| {
            let regions = change.table().regions()?;
            let is_other =
                |region: &RawTableRegion| !numbers.contains(&region.number) && region.standing() == Standing::Taking;
            if leaves && !regions.iter().any(|(_, region)| is_other(region)) {
                return Err(Error::Unusable("it is the last disk that takes content".into()));
            }
            for number in numbers {
                let found = regions.iter().find(|(_, region)| region.number == *number);
                let (n, region) = found.ok_or_else(|| Error::Unusable(format!("the log has no region {number}")))?;
                match (leaves, region.standing()) {
                    (true, _) => {
                        self.close_in(change, region)?;
                        change.set_standing(*n, Standing::Leaving)?;
                    }
                    // One that had failed has yet.
                    (false, Standing::Leaving) if region.cause != 0 => change.set_failed(*n, region.cause())?,
                    (false, Standing::Leaving) => change.set_standing(*n, Standing::Taking)?,
                    (false, Standing::Failed) => change.set_stays(*n)?,
                    (false, _) => {}
                }
            }
            Ok(())
        })?;
        self.refresh(session)
    }

    /// Step 4. False where something is still in use there, or waits for a commit.
    pub fn remove_region(&self, session: &Session, number: u32) -> Result<bool> {
        let is_gone = self.change(session, |change| {
            let regions = change.table().regions()?;
            let Some((n, region)) = regions.into_iter().find(|(_, region)| region.number == number) else {
                return Ok(true);
            };
            let is_empty = region.spare + region.bad == u64::from(region.slots);
            if region.standing() != Standing::Leaving || !is_empty || change.has_kept(&region)? {
                return Ok(false);
            }
            change.forget_region(n)?;
            Ok(true)
        })?;
        self.forget_chunks(session, number)?;
        self.refresh(session)?;
        Ok(is_gone)
    }

    /// The chunks of a region that is gone go, as many at a time as a transaction's log holds.
    fn forget_chunks(&self, session: &Session, number: u32) -> Result<()> {
        while self.change(session, |change| change.forget_chunks(number))? {}
        Ok(())
    }

    /// The numbers of regions that are gone.
    pub fn gone(&self, session: &Session) -> Result<Vec<u32>> {
        let table = self.at.table(session.region());
        session.read(KEY, || {
            let there = table.regions()?;
            let mut numbers = table.numbers()?;
            numbers.retain(|number| there.iter().all(|(_, region)| region.number != *number));
            Ok(numbers)
        })
    }

    /// Regions that leave.
    pub fn leavers(&self, session: &Session) -> Result<Vec<u32>> {
        let table = self.at.table(session.region());
        let regions = session.read(KEY, || table.regions())?;
        let leaving = regions.into_iter().filter(|(_, region)| region.standing() == Standing::Leaving);
        Ok(leaving.map(|(_, region)| region.number).collect())
    }

    /// A segment of a region that leaves, and its slot: the next to be moved.
    pub(super) fn next_to_leave(&self, session: &Session) -> Result<Option<(u32, Segment)>> {
        let table = self.at.table(session.region());
        let regions = session.read(KEY, || table.regions())?;
        for (_, region) in regions.iter().filter(|(_, region)| region.standing() == Standing::Leaving) {
            // From where the last one was found on: what is before that has left, or cannot be moved now.
            let last = self.left_of.lock().unwrap_or_else(PoisonError::into_inner).get(&region.number).copied();
            let from = last.filter(|slot| region.range().contains(slot)).unwrap_or(region.first);
            for slot in (from..region.range().end).chain(region.first..from) {
                let Some((first, segment)) = session.read(KEY, || owner(&table, slot))? else { continue };
                let homes = session.read(KEY, || table.homes(first, &segment))?;
                let is_known = self.is_kept(segment.sequence) || self.under_way().has(segment.sequence);
                let has_copy = homes.iter().any(|home| !home.partial && home.standing == Standing::Taking);
                if matches!(segment.state, State::Full | State::Cleaning) && !is_known && !has_copy {
                    self.left_of.lock().unwrap_or_else(PoisonError::into_inner).insert(region.number, slot);
                    return Ok(Some((first, segment)));
                }
            }
        }
        Ok(None)
    }

    /// Is anything in the regions that leave that was left alone for some time, and is moved then?
    pub fn is_leaving_later(&self, session: &Session) -> Result<bool> {
        let table = self.at.table(session.region());
        let regions = session.read(KEY, || table.regions())?;
        for (_, region) in regions.iter().filter(|(_, region)| region.standing() == Standing::Leaving) {
            for slot in region.range() {
                let Some((_, segment)) = session.read(KEY, || owner(&table, slot))? else { continue };
                if self.under_way().has(segment.sequence) && !self.is_kept(segment.sequence) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Gives up what is in a region, and the region: it has failed, or is not wanted, and what lies there alone is lost. It takes nothing
    /// from now on. False where something waits for a commit yet. By whoever cleans: slots that are being filled with copies of what is
    /// lost here are given up too.
    pub fn give_up_region(&self, session: &Session, number: u32) -> Result<bool> {
        let table = self.at.table(session.region());
        let regions = session.read(KEY, || table.regions())?;
        let Some((n, region)) = regions.into_iter().find(|(_, region)| region.number == number) else {
            return Ok(true);
        };
        self.change(session, |change| {
            let regions = change.table().regions()?;
            let is_other = |r: &RawTableRegion| r.number != number && r.standing() == Standing::Taking;
            if !regions.iter().any(|(_, region)| is_other(region)) {
                return Err(Error::Unusable("it is the last disk that takes content".into()));
            }
            self.close_in(change, &region)?;
            // Not as one that is missing: it must not be taken back when some of it is lost.
            change.set_failed(n, Cause::Failed)
        })?;
        for slot in region.range() {
            self.change(session, |change| {
                let epoch = session.epoch().map_err(crate::Error::from)?;
                change.lose(slot, epoch)
            })?;
        }
        let waits = session.read(KEY, || {
            region.range().try_fold(false, |any, slot| {
                Ok::<_, Error>(any || matches!(table.get(slot)?.state, State::Freed | State::Discarding))
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

/// The segment that a slot has, or has a copy of, with the slot that its number leads to.
fn owner(table: &Table<'_>, slot: u32) -> Result<Option<(u32, Segment)>> {
    let segment = table.get(slot)?;
    match segment.state {
        State::Copy => table.find(segment.sequence),
        state if state.is_used() => Ok(Some((slot, segment))),
        _ => Ok(None),
    }
}
