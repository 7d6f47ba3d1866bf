//! Live content: of a segment, for copying, moving or verifying it; of a region, to know whether it can go.

use std::ops::Range;

use pram::session::assert_may_wait;
use pram::Session;

use super::error::{Error, Result};
use super::files::{Fate, Files};
use super::part::{Entry, Part};
use super::place::{Place, BLOCK};
use super::table::{Segment, SlotState, Table, KEY};
use super::walk::Walk;
use super::Log;

/// Slots that are looked at in one step.
const STEP: usize = 1024;

/// The content of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Segments in use, and freed ones that wait for a commit.
    pub segments: u64,
    /// Bytes of live content.
    pub live: u64,
}

/// The summaries of a segment.
pub(super) struct Contents {
    pub parts: Vec<Part>,
    /// Do they describe all blocks that were ever written there?
    pub is_whole: bool,
    /// A disk did not give all its summaries: it may give them later.
    pub is_cut: bool,
}

/// A block to which a mapping leads.
pub(super) struct Live {
    pub place: Place,
    pub entry: Entry,
    pub fate: Fate,
}

impl Contents {
    /// All blocks, live or dead.
    pub fn blocks(&self) -> impl Iterator<Item = (Place, Entry)> + '_ {
        self.parts.iter().flat_map(Part::blocks).map(|(place, entry)| (place, *entry))
    }

    /// The live blocks among those `wanted`, in the order of places. Asks the files about each block as it comes.
    pub fn live_of<'c>(
        &'c self,
        files: &'c dyn Files,
        wanted: &'c dyn Fn(Place) -> bool,
    ) -> impl Iterator<Item = Result<Live>> + 'c {
        let wanted = self.blocks().filter(|(place, _)| wanted(*place));
        wanted.filter_map(|(place, entry)| match files.fate(entry.owner, place) {
            Ok(Fate::Dead) => None,
            Ok(fate) => Some(Ok(Live { place, entry, fate })),
            Err(e) => Some(Err(e)),
        })
    }

    /// All live blocks.
    pub fn live<'c>(&'c self, files: &'c dyn Files) -> impl Iterator<Item = Result<Live>> + 'c {
        self.live_of(files, &|_| true)
    }
}

impl Log {
    /// The summaries of a segment, from the replica that has most blocks.
    pub(super) fn contents(&self, session: &Session, slot: u32, segment: &Segment) -> Result<Contents> {
        let (mut best, mut failed, mut is_cut) = (None::<Contents>, None, false);
        let blocks_of = |contents: &Contents| contents.parts.iter().map(|part| part.entries.len()).sum::<usize>();
        for replica in self.order(session, slot, segment, BLOCK)? {
            match self.contents_of_replica(session, replica.slot, segment) {
                Ok(contents) if contents.is_whole => return Ok(contents),
                Ok(contents) => {
                    is_cut |= contents.is_cut;
                    if best.as_ref().is_none_or(|best| blocks_of(best) < blocks_of(&contents)) {
                        best = Some(contents);
                    }
                }
                Err(e) => (failed, is_cut) = (Some(e), true),
            }
        }
        match (best, failed) {
            (Some(best), _) => Ok(Contents { is_cut, ..best }),
            (None, Some(e)) => Err(e),
            (None, None) => Err(self.missing(session, slot)),
        }
    }

    fn contents_of_replica(&self, session: &Session, slot: u32, segment: &Segment) -> Result<Contents> {
        let lies = self.lies(session, slot)?;
        let mut walk = Walk::new(&*lies.region, lies.identity, lies.at, segment.used);
        let (mut parts, mut at, mut is_whole) = (Vec::new(), 0, true);
        while at < segment.used {
            let Some(part) = walk.next_of(segment.sequence, at) else { break };
            is_whole &= part.block == at;
            at = part.end();
            self.sums().add(&part);
            parts.push(part);
        }
        match walk.failed {
            Some(e) if e.class.is_final() => Err(e.into()),
            failed => Ok(Contents { parts, is_whole: is_whole && at == segment.used, is_cut: failed.is_some() }),
        }
    }

    /// The ranges of a region that were written, or are being written, and may be read again; in ascending order.
    /// Segments that are opened later are not included.
    pub fn live_ranges(&self, session: &Session, number: u32) -> Result<Vec<Range<u64>>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        self.each_segment(session, number, &mut |at, segment| {
            let range = at..at + self.written_in(segment);
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ if range.is_empty() => {}
                _ => ranges.push(range),
            }
        })?;
        Ok(ranges)
    }

    /// The content of a region.
    pub fn held_in(&self, session: &Session, number: u32) -> Result<Held> {
        let mut held = Held::default();
        self.each_segment(session, number, &mut |_, segment| {
            held.segments += u64::from(self.written_in(segment) > 0);
            held.live += u64::from(segment.live) * BLOCK;
        })?;
        Ok(held)
    }

    /// Bytes of a segment that may be read again. A backing may lead to a segment that waits for a commit.
    fn written_in(&self, segment: &Segment) -> u64 {
        match segment.state {
            state if state.is_used() => u64::from(segment.used) * BLOCK,
            SlotState::Freed | SlotState::Backing => self.segment(),
            _ => 0,
        }
    }

    /// Every slot of a region, with its offset in the region.
    fn each_segment(&self, session: &Session, number: u32, each: &mut dyn FnMut(u64, &Segment)) -> Result<()> {
        assert_may_wait();
        self.refresh(session)?;
        let areas = self.areas();
        let area = areas.list.iter().find(|area| area.number == number).ok_or(Error::Missing(number))?;
        for from in area.slots.clone().step_by(STEP) {
            let some = from..area.slots.end.min(from + STEP as u32);
            let found: Vec<Segment> = session.read(KEY, || {
                let table = self.at.table(session.memory());
                some.clone().map(|slot| self.segment_in(&table, slot)).collect::<Result<_>>()
            })?;
            for (slot, segment) in some.zip(&found) {
                each(u64::from(slot - area.slots.start) * self.segment(), segment);
            }
        }
        Ok(())
    }

    /// The segment in a slot, or the segment of which it has a replica.
    fn segment_in(&self, table: &Table<'_>, slot: u32) -> Result<Segment> {
        let segment = table.get(slot)?;
        match segment.state {
            SlotState::Replica => Ok(table.find(segment.sequence)?.map_or(segment, |(_, of)| of)),
            _ => Ok(segment),
        }
    }
}
