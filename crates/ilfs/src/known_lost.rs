//! What was found to be lost a moment ago.
//!
//! Where a segment lacks a summary, each page that it should tell of would have all of the segment looked through again: what two looks
//! have not found is known for [`COUNTS`] not to be there. One look is not enough: a disk that answers wrongly once hides a summary that is
//! there, and what a check calls lost may be made zeros. This holds only for blocks of which no summary was found: checksums that were
//! found may be forgotten, and are looked for again.
//!
//! Blocks that could not be read are read again when they are asked for, but no copy of them is counted. Where regions come or go, or a
//! scrub has put something right, nothing is known any more.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::error::Error;
use super::place::{Place, Run};

const COUNTS: Duration = Duration::from_secs(10);
/// Blocks, and slots, at most.
const MOST: usize = 1 << 16;
/// Looks that have to agree.
const LOOKS: u32 = 2;

#[derive(Default)]
pub struct KnownLost {
    blocks: HashSet<Place>,
    /// By segment and slot.
    looked: HashMap<(u64, u32), Looked>,
}

/// What came of looking for all summaries of a segment in a slot.
struct Looked {
    since: Instant,
    /// Blocks of the segment then: what was written later none of this tells of.
    used: u32,
    times: u32,
    /// Of which no summary was found to tell, in ascending order.
    unnamed: Vec<Range<u32>>,
}

impl KnownLost {
    pub fn has(&self, place: Place) -> bool {
        self.blocks.contains(&place)
    }

    /// Reading something has failed.
    pub fn add(&mut self, e: &Error) {
        // What a disk did not answer it may answer now.
        let (Error::Damaged { place, .. } | Error::Lost(place)) = e else { return };
        if self.blocks.len() >= MOST {
            self.blocks.clear();
        }
        self.blocks.insert(*place);
    }

    /// A run could be read.
    pub fn remove(&mut self, run: Run) {
        if !self.blocks.is_empty() {
            (0..run.blocks).for_each(|n| _ = self.blocks.remove(&run.place(n)));
        }
    }

    /// The stretch of blocks around `place`, in a slot, of which no summary tells.
    pub fn unnamed(&self, place: Place, slot: u32, used: u32) -> Option<Range<u32>> {
        let known = self.looked.get(&(place.sequence(), slot)).filter(|known| known.counts(used))?;
        let mut all = known.unnamed.iter().filter(|_| known.times >= LOOKS);
        all.find(|unnamed| unnamed.contains(&place.block())).cloned()
    }

    /// All summaries of a segment were looked for that these blocks hold, and these parts of it found, in ascending order.
    pub fn looked(&mut self, (sequence, slot): (u64, u32), used: u32, named: &[Range<u32>]) {
        if self.looked.len() >= MOST {
            self.looked.clear();
        }
        let ends = std::iter::once(0).chain(named.iter().map(|part| part.end));
        let begins = named.iter().map(|part| part.start).chain(std::iter::once(used));
        let now: Vec<_> = ends.zip(begins).map(|(from, to)| from..to).collect();
        let before = self.looked.get(&(sequence, slot)).filter(|known| known.counts(used));
        let (times, before) =
            before.map_or((0, std::iter::once(0..used).collect()), |known| (known.times, known.unnamed.clone()));
        // What any of the looks found is there.
        let both = now.iter().flat_map(|a| before.iter().map(|b| a.start.max(b.start)..a.end.min(b.end)));
        let unnamed = both.filter(|range| !range.is_empty()).collect();
        self.looked.insert((sequence, slot), Looked { since: Instant::now(), used, times: times + 1, unnamed });
    }
}

impl Looked {
    fn counts(&self, used: u32) -> bool {
        self.since.elapsed() < COUNTS && self.used == used
    }
}
