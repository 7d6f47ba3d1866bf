//! In how many replicas content lies, where, and which content lacks some.

use std::collections::{BTreeSet, HashSet};

use pram::Session;

use crate::error::Result;
use crate::place::{Place, BLOCK};
use crate::table::{Health, Home, Segment, KEY};
use crate::{Class, Log};

/// Replicas that are lacking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacking {
    /// Segments that lack a replica, and bytes of live content in them.
    pub segments: u64,
    pub bytes: u64,
    /// Of these bytes, those of lazy segments that are not due yet.
    pub lazy: u64,
    /// Bytes of segments without any replica that is there.
    pub lost: u64,
}

impl Log {
    /// The most replicas that a segment can have: one in each domain that takes content. Read from the table, since this
    /// process may not know a new region yet.
    pub fn most_replicas(&self, session: &Session) -> Result<usize> {
        let regions = session.read(KEY, || self.at.table(session.memory()).regions())?;
        let taking = regions.iter().filter(|(_, region)| region.health() == Health::Taking);
        Ok(taking.map(|(_, region)| region.domain()).collect::<HashSet<_>>().len())
    }

    /// Replicas of the block at a place, each whole and in a region that has not failed and does not leave; 0 if there is
    /// none.
    pub fn replicas_of(&self, session: &Session, place: Place) -> Result<u32> {
        let table = self.at.table(session.memory());
        session.read(KEY, || match table.find(place.sequence())? {
            Some((slot, segment)) => {
                let homes = table.homes(slot, &segment)?;
                let domains: BTreeSet<u64> = homes.iter().filter(|home| counts(home)).map(|home| home.domain).collect();
                Ok(domains.len() as u32)
            }
            None => Ok(0),
        })
    }

    /// The number of the region with the first replica of the segment in which a block lies.
    pub fn region_of(&self, session: &Session, place: Place) -> Result<Option<u32>> {
        let table = self.at.table(session.memory());
        session.read(KEY, || {
            let Some((slot, _)) = table.find(place.sequence())? else { return Ok(None) };
            Ok(Some(table.region_of(slot)?.1.number))
        })
    }

    /// Does the segment of this place lie as content of the class is to?
    pub fn lies_as(&self, session: &Session, place: Place, class: Class) -> Result<bool> {
        let table = self.at.table(session.memory());
        session.read(KEY, || {
            let Some((slot, segment)) = table.find(place.sequence())? else { return Ok(true) };
            Ok(segment.class == class.code()
                && match class {
                    Class::Whole(number) => table.region_of(slot)?.1.number == number,
                    _ => true,
                })
        })
    }

    /// Counts the segments that lack replicas.
    pub fn lacking(&self, session: &Session) -> Result<Lacking> {
        let (mut lacking, now) = (Lacking::default(), self.seconds());
        let (table, areas) = (self.at.table(session.memory()), self.areas());
        let there: Vec<usize> = areas.list.iter().filter(|area| area.region.is_some()).map(|area| area.n).collect();
        self.each_used(session, &mut |slot, segment| {
            let Ok(homes) = session.read(KEY, || table.homes(slot, &segment)) else { return };
            let bytes = u64::from(segment.live) * BLOCK;
            if !homes.iter().any(|home| !home.partial && there.contains(&home.n)) {
                lacking.lost += bytes;
            }
            if homes.iter().filter(|home| counts(home)).count() < segment.wanted() as usize && segment.live > 0 {
                lacking.segments += 1;
                lacking.bytes += bytes;
                lacking.lazy += if segment.due > now { bytes } else { 0 };
            }
        })?;
        Ok(lacking)
    }

    pub(super) fn each_used(&self, session: &Session, each: &mut dyn FnMut(u32, Segment)) -> Result<()> {
        let table = self.at.table(session.memory());
        for slot in session.read(KEY, || table.used_slots())? {
            let segment = session.read(KEY, || table.get(slot))?;
            if segment.state.is_used() {
                each(slot, segment);
            }
        }
        Ok(())
    }

    /// Is any live content to have replicas? Otherwise none can be lacking.
    pub fn has_mirrored(&self, session: &Session) -> Result<bool> {
        Ok(self.head(session)?.mirrored.iter().any(|live| *live > 0))
    }
}

/// Does it count as a replica: is it whole, in a region that neither leaves nor has failed?
pub(super) fn counts(home: &Home) -> bool {
    !home.partial && home.health == Health::Taking
}

/// Domains with a replica that counts.
pub(super) fn whole(homes: &[Home]) -> u64 {
    homes.iter().filter(|home| counts(home)).map(|home| home.domain).collect::<BTreeSet<_>>().len() as u64
}
