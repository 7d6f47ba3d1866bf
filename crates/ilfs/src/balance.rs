//! Balance: old content is spread over regions that came later, or have less.
//!
//! A segment moves as a whole: a replica is made in the emptiest region, and the old one is dropped. Mappings do not
//! change, and only live blocks are copied. The goal is that all regions are equally full. Segments of files that lie in
//! a region as a whole stay there.

use std::cmp::Reverse;
use std::sync::PoisonError;

use pram::session::assert_may_wait;
use pram::Session;

use super::avoided::SOON;
use super::error::Result;
use super::files::Files;
use super::replicas::Replicated;
use super::storage_class;
use super::table::{Health, Segment, SlotState, KEY};
use super::Log;

/// Regions that differ by less than one part in so many are left as they are.
const ALIKE: f64 = 1.0 / 50.0;

/// How full a region is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filled {
    pub number: u32,
    /// Bytes of its segments; bytes of those in use; bytes to move away, or if negative to move here, until all are
    /// alike.
    pub size: u64,
    pub used: u64,
    pub excess: i64,
}

impl Log {
    /// How full the regions are that take content, and how much has to move until they are alike.
    pub fn filled(&self, session: &Session) -> Result<Vec<Filled>> {
        let table = self.at.table(session.memory());
        let regions = session.read(KEY, || table.regions())?;
        let taking = || regions.iter().filter(|(_, region)| region.health() == Health::Taking);
        // A segment that waits for a commit will be free: otherwise segments would be moved until that commit, and then
        // back.
        let freed = session.read(KEY, || table.freed())?;
        let waiting = |region: &super::table::RawTableRegion| {
            freed.iter().filter(|slot| region.range().contains(slot)).count() as u64
        };
        let used = |region: &super::table::RawTableRegion| {
            u64::from(region.slots).saturating_sub(region.spare + region.bad + waiting(region))
        };
        let (all, in_use) = taking().fold((0u64, 0u64), |(all, in_use), (_, region)| {
            (all + u64::from(region.slots) - region.bad, in_use + used(region))
        });
        let share = in_use as f64 / all.max(1) as f64;
        let segment = self.segment();
        let one = |(_, region): &(usize, super::table::RawTableRegion)| {
            let fair = (share * (u64::from(region.slots) - region.bad) as f64) as i64;
            Filled {
                number: region.number,
                size: u64::from(region.slots) * segment,
                used: used(region) * segment,
                excess: (used(region) as i64 - fair) * segment as i64,
            }
        };
        Ok(taking().map(one).collect())
    }

    /// Bytes to move until all regions are alike; 0 if they are.
    pub fn unbalanced(&self, session: &Session) -> Result<u64> {
        Ok(self.unbalanced_of(&self.filled(session)?))
    }

    fn unbalanced_of(&self, filled: &[Filled]) -> u64 {
        let is_odd = |one: &&Filled| one.excess > ((one.size as f64 * ALIKE) as i64).max(2 * self.segment() as i64);
        filled.iter().filter(is_odd).map(|one| one.excess as u64).sum()
    }

    /// Moves one segment from the fullest region to the emptiest.
    pub fn balance_next(
        &self,
        session: &Session,
        files: &dyn Files,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Replicated> {
        assert_may_wait();
        self.check_failed()?;
        self.refresh(session)?;
        loop {
            match self.balance_one(session, files, go_on)? {
                // That segment cannot be moved now: others are moved.
                None if go_on(0) => {}
                None => return Ok(Replicated::Interrupted),
                Some(copied) => return Ok(copied),
            }
        }
    }

    /// `None` if the chosen segment cannot be moved now, and is set aside.
    fn balance_one(
        &self,
        session: &Session,
        files: &dyn Files,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Replicated>> {
        let filled = self.filled(session)?;
        if self.unbalanced_of(&filled) == 0 {
            return Ok(Some(Replicated::Nothing));
        }
        let share = |one: &&Filled| one.excess as f64 / one.size.max(1) as f64;
        let Some(from) = filled.iter().max_by(|a, b| share(a).total_cmp(&share(b))) else {
            return Ok(Some(Replicated::Nothing));
        };
        let mut to: Vec<&Filled> = filled.iter().filter(|one| one.excess < 0).collect();
        to.sort_by(|a, b| share(a).total_cmp(&share(b)));
        let to: Vec<u32> = to.into_iter().map(|one| one.number).collect();
        let Some((slot, segment)) = self.movable(session, from.number, &to)? else {
            return Ok(Some(Replicated::Nothing));
        };
        match self.make_replica_in(session, files, slot, segment, Some(&to), go_on)? {
            Replicated::Made { sequence, bytes } => {
                let there = self.slot_in_region(session, sequence, from.number)?;
                if let Some(there) = there {
                    self.change(session, |change| change.drop_replica(sequence, there, false, files.epoch()))?;
                }
                Ok(Some(Replicated::Made { sequence, bytes }))
            }
            Replicated::Nothing => {
                self.set_aside(segment.sequence, SOON);
                Ok(None)
            }
            other => Ok(Some(other)),
        }
    }

    /// The slot of a segment in that region.
    fn slot_in_region(&self, session: &Session, sequence: u64, number: u32) -> Result<Option<u32>> {
        let table = self.at.table(session.memory());
        session.read(KEY, || {
            let Some((slot, segment)) = table.find(sequence)? else { return Ok(None) };
            for home in table.homes(slot, &segment)? {
                if table.region(home.n)?.number == number {
                    return Ok(Some(home.slot));
                }
            }
            Ok(None)
        })
    }

    /// The fullest of the segments in a region that may be moved to one of those.
    pub(super) fn movable(&self, session: &Session, from: u32, to: &[u32]) -> Result<Option<(u32, Segment)>> {
        let table = self.at.table(session.memory());
        let regions = session.read(KEY, || table.regions())?;
        let Some((_, region)) = regions.iter().find(|(_, region)| region.number == from) else { return Ok(None) };
        let targets: Vec<(usize, u64)> = regions
            .iter()
            .filter(|(_, region)| to.contains(&region.number))
            .map(|(n, region)| (*n, region.domain()))
            .collect();
        let may = |slot: u32, segment: &Segment| -> Result<bool> {
            let is_kind =
                segment.state == SlotState::Full && segment.live > 0 && !storage_class::is_whole(segment.class);
            if !is_kind || self.is_aside(segment.sequence) {
                return Ok(false);
            }
            let homes = session.read(KEY, || table.homes(slot, segment))?;
            let is_free = |(n, domain): &(usize, u64)| homes.iter().all(|home| home.n != *n && home.domain != *domain);
            Ok(targets.iter().any(is_free))
        };
        let mut sorted = to.to_vec();
        sorted.sort_unstable();
        let of = (from, sorted);
        let mut agenda = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        if !agenda.counts(&of) {
            let (began, mut found) = (self.clock.instant(), Vec::new());
            for slot in region.range() {
                let segment = session.read(KEY, || table.get(slot))?;
                if may(slot, &segment)? {
                    found.push((Reverse(segment.live), slot, segment.sequence));
                }
            }
            agenda.fill(of, (began, region.slots.into()), found);
        }
        while let Some((slot, sequence)) = agenda.take() {
            let segment = session.read(KEY, || table.get(slot))?;
            if segment.sequence == sequence && may(slot, &segment)? {
                return Ok(Some((slot, segment)));
            }
        }
        Ok(None)
    }
}
