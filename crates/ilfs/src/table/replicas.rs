//! Replicas of segments: slots in other regions with the same content.
//!
//! ```text
//! chain of the sequence number -> slot (Open, Full, Cleaning) --replica--> slot (Replica) --replica--> slot (Replica)
//! ```

use super::change::Change;
use super::{damaged, Health, Result, Segment, SlotState, Table};

/// Slots that a segment has at most: replicas in failed regions stay until there are enough others.
const LONGEST: usize = 64;

/// A slot with a replica, and the properties of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    pub slot: u32,
    /// The region's place in the table, and its domain.
    pub n: usize,
    pub domain: u64,
    pub health: Health,
    pub partial: bool,
    /// In a region that leaves: replicas of the segment that must be left in any case.
    pub least_replicas: u32,
}

impl Table<'_> {
    /// The slots of a segment; the first is the one in the chain, whose entry is given.
    pub fn replicas(&self, slot: u32, segment: &Segment) -> Result<Vec<(u32, Segment)>> {
        let mut all = vec![(slot, *segment)];
        let mut next = segment.replica;
        while let Some(replica) = next {
            let entry = self.get(replica)?;
            if entry.state != SlotState::Replica || entry.sequence != segment.sequence || all.len() > LONGEST {
                return Err(damaged(format!("slot {replica} is no replica of segment {}", segment.sequence)));
            }
            all.push((replica, entry));
            next = entry.replica;
        }
        Ok(all)
    }

    /// Where the replicas of a segment are.
    pub fn homes(&self, slot: u32, segment: &Segment) -> Result<Vec<Home>> {
        let home = |(slot, entry): (u32, Segment)| {
            let (n, region) = self.region_of(slot)?;
            Ok(Home {
                slot,
                n,
                domain: region.domain(),
                health: region.health(),
                partial: entry.partial,
                least_replicas: region.least_replicas(segment.wanted()),
            })
        };
        self.replicas(slot, segment)?.into_iter().map(home).collect()
    }
}

impl super::RawTableRegion {
    /// The number of the domain: a region without a domain has one of its own.
    pub fn domain(&self) -> u64 {
        match self.domain {
            0 => u64::from(self.number),
            domain => 1 << 32 | u64::from(domain),
        }
    }
}

impl Change<'_, '_> {
    /// Links a slot that is in no list as a replica of the segment in slot `of`; `partial`: as one that is to be made.
    pub(super) fn link_replica(&mut self, of: u32, slot: u32, partial: bool) -> Result<()> {
        let segment = self.table().get(of)?;
        let replica = Segment {
            sequence: segment.sequence,
            state: SlotState::Replica,
            class: segment.class,
            partial,
            replica: segment.replica,
            ..Segment::FREE
        };
        self.put(slot, &replica)?;
        self.put(of, &Segment { replica: Some(slot), ..segment })
    }

    /// Takes a free slot for a replica of the segment in slot `of` that is to be made.
    pub fn begin_replica(&mut self, of: u32, slot: u32) -> Result<()> {
        self.take_next(slot)?;
        self.link_replica(of, slot, true)
    }

    /// Links a slot that was found on a disk as a replica of the segment in slot `of`; `alone`: as the only one that has
    /// all of it.
    pub fn adopt_replica(&mut self, of: u32, slot: u32, alone: bool) -> Result<()> {
        self.link_replica(of, slot, false)?;
        let (n, mut region) = self.table().region_of(slot)?;
        region.fresh = region.fresh.max(u64::from(slot) + 1);
        self.set_region(n, &region)?;
        if alone {
            let segment = self.table().get(of)?;
            let all = self.table().replicas(of, &segment)?;
            self.promote(of, &segment, &[(slot, self.table().get(slot)?)])?;
            // Nothing of them is lost: they become free, and get into their list with the others.
            for (other, _) in all.into_iter().filter(|(other, _)| *other != slot) {
                self.put(other, &Segment::FREE)?;
            }
        }
        Ok(())
    }

    /// Marks a replica as incomplete.
    pub fn set_partial(&mut self, slot: u32) -> Result<()> {
        let replica = self.table().get(slot)?;
        self.put(slot, &Segment { partial: true, ..replica })
    }

    /// Lets the chain lead to the replica in `slot` instead of `of`, which becomes a partial replica.
    pub fn put_first(&mut self, of: u32, slot: u32) -> Result<()> {
        let segment = self.table().get(of)?;
        let mut rest = self.table().replicas(of, &segment)?;
        rest.retain(|(replica, _)| *replica != of);
        rest.sort_by_key(|(replica, _)| *replica != slot);
        self.promote(of, &segment, &rest)?;
        self.link_replica(slot, of, true)
    }

    /// Marks the replica in a slot as whole if it still belongs to that segment; returns whether it does.
    pub fn end_replica(&mut self, sequence: u64, slot: u32) -> Result<bool> {
        let replica = self.table().get(slot)?;
        let is_its = replica.state == SlotState::Replica && replica.sequence == sequence;
        if is_its {
            self.put(slot, &Segment { partial: false, ..replica })?;
        }
        Ok(is_its)
    }

    /// Drops the replica in `slot` of the segment with this number. The slot is freed in this epoch, and not used again if
    /// it has `failed`. False, without any change, if that is the only whole replica.
    pub fn drop_replica(&mut self, sequence: u64, slot: u32, failed: bool, epoch: u64) -> Result<bool> {
        let Some((first, segment)) = self.table().find(sequence)? else { return Ok(true) };
        let all = self.table().replicas(first, &segment)?;
        let Some(at) = all.iter().position(|(replica, _)| *replica == slot) else { return Ok(true) };
        let mut rest = all.clone();
        let (_, gone) = rest.remove(at);
        if !rest.iter().any(|(_, replica)| !replica.partial) {
            return Ok(false);
        }
        match at {
            0 => self.promote(slot, &segment, &rest)?,
            _ => {
                let (before, entry) = all[at - 1];
                self.put(before, &Segment { replica: gone.replica, ..entry })?;
            }
        }
        self.free_slot(slot, failed || gone.failed, epoch)?;
        Ok(true)
    }

    /// Gives up the content of a slot, unless it has a replica elsewhere. The slot is in no list then.
    pub fn lose(&mut self, slot: u32, epoch: u64) -> Result<()> {
        let segment = self.table().get(slot)?;
        let (first, of) = match segment.state {
            SlotState::Replica => match self.table().find(segment.sequence)? {
                Some(found) => found,
                None => return self.put(slot, &Segment::FREE),
            },
            state if state.is_used() => (slot, segment),
            _ => return Ok(()),
        };
        let all = self.table().replicas(first, &of)?;
        let mut rest = all.clone();
        let Some(at) = all.iter().position(|(replica, _)| *replica == slot) else {
            return self.put(slot, &Segment::FREE);
        };
        let (_, gone) = rest.remove(at);
        if at > 0 {
            let (before, entry) = all[at - 1];
            self.put(before, &Segment { replica: gone.replica, ..entry })?;
        } else if rest.iter().any(|(_, replica)| !replica.partial) {
            self.promote(slot, &of, &rest)?;
        } else {
            self.count_live(of.class, -i64::from(of.live))?;
            self.unchain(slot, &of)?;
            // Replicas that were being made have lost their source.
            rest.iter().try_for_each(|(replica, _)| self.free_slot(*replica, false, epoch))?;
        }
        self.put(slot, &Segment::FREE)
    }

    /// Puts the first whole one of `rest` into the chain in place of `slot`.
    fn promote(&mut self, slot: u32, segment: &Segment, rest: &[(u32, Segment)]) -> Result<()> {
        let mut order: Vec<u32> = rest.iter().map(|(replica, _)| *replica).collect();
        let whole = rest.iter().position(|(_, replica)| !replica.partial).unwrap_or(0);
        order.swap(0, whole);
        self.unchain(slot, segment)?;
        let next = self.chain_in(order[0], segment.sequence)?;
        let failed = rest.get(whole).is_some_and(|(_, replica)| replica.failed);
        self.put(order[0], &Segment { next, replica: order.get(1).copied(), failed, partial: false, ..*segment })?;
        for (n, replica) in order.iter().enumerate().skip(1) {
            let entry = self.table().get(*replica)?;
            self.put(*replica, &Segment { replica: order.get(n + 1).copied(), ..entry })?;
        }
        // Writers of the segment go on in that slot.
        for (n, head) in self.head()?.heads.iter().enumerate() {
            if super::slot_in(*head) == Some(slot) {
                self.set_head(n, Some(order[0]))?;
            }
        }
        let (n, region) = self.table().region_of(slot)?;
        match super::slot_in(region.whole) == Some(slot) {
            true => self.set_whole(n, None),
            false => Ok(()),
        }
    }
}
