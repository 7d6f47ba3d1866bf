//! Regions that leave the log: what they have is moved by the cleaner, then there is none.
//!
//! | step | what | else |
//! | --- | --- | --- |
//! | 1 | what is in the region has to fit into the others; it takes no more content | moving ends in a log that is full |
//! | 2 | its segments are cleaned, whatever is to be gained ([`Log::clean`]); each is verified, written elsewhere and durable before it is given up | |
//! | 3 | the commits that freed them are durable | a copy of the memory leads to a region that is gone |
//! | 4 | the table has no such region any more | |
//!
//! Who is interrupted after step 1 goes on, or has the region take content again: nothing is lost either way.

use pram::Session;

use super::error::{Error, Result};
use super::place::BLOCK;
use super::table::{RawTableRegion, Segment, Standing, State, KEY};
use super::Log;

/// What leaving takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Bytes of content that are moved, and those that there is room for elsewhere, about.
    pub live: u64,
    pub room: u64,
    /// Segments that hold something.
    pub segments: u64,
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
            for slot in region.range().filter(|_| leaves(region)) {
                let segment = session.read(KEY, || table.get(slot))?;
                if segment.state.is_used() {
                    told.live += u64::from(segment.live) * BLOCK;
                    told.segments += 1;
                }
            }
        }
        // Hosts of the others may not have what these may yet take.
        let lacking = (spare - held).saturating_sub(self.left_on_hosts().unwrap_or(u64::MAX));
        let needed = self.physical(&all) + all.promised + session.heap().unplaced();
        let elsewhere = needed.saturating_sub(told.live / BLOCK);
        told.room = self.content_of(slots - lacking).saturating_sub(elsewhere) * BLOCK;
        Ok(told)
    }

    /// Step 1, or its opposite.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where what is there has no room elsewhere; [`Error::Unusable`] where no other region takes content, or there is
    /// no such region.
    pub fn set_leaving(&self, session: &Session, number: u32, leaves: bool) -> Result<()> {
        if leaves && !self.leaving(session, &[number])?.fits() {
            return Err(Error::NoSpace);
        }
        self.change(session, |change| {
            let regions = change.table().regions()?;
            let is_other = |region: &RawTableRegion| region.number != number && region.standing() == Standing::Taking;
            if leaves && !regions.iter().any(|(_, region)| is_other(region)) {
                return Err(Error::Unusable("it is the last disk that takes content".into()));
            }
            let found = regions.iter().find(|(_, region)| region.number == number);
            let (n, region) = found.ok_or_else(|| Error::Unusable(format!("the log has no region {number}")))?;
            if leaves {
                self.close_in(change, region)?;
            }
            change.set_standing(*n, if leaves { Standing::Leaving } else { Standing::Taking })
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
            if region.standing() != Standing::Leaving || !is_empty {
                return Ok(false);
            }
            change.forget_region(n)?;
            Ok(true)
        })?;
        self.refresh(session)?;
        Ok(is_gone)
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
            for slot in region.range() {
                let segment = session.read(KEY, || table.get(slot))?;
                let is_known = self.kept().iter().any(|(sequence, _)| *sequence == segment.sequence);
                if matches!(segment.state, State::Full | State::Cleaning) && !is_known {
                    return Ok(Some((slot, segment)));
                }
            }
        }
        Ok(None)
    }
}
