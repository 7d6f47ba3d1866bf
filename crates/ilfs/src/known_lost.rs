//! Blocks that were found lost a moment ago.
//!
//! If a segment lacks a summary, reading each of its pages would search the whole segment again. So a summary that two
//! searches did not find is taken as missing for [`COUNTS`]. One search is not enough: a disk that answers wrongly once
//! hides a summary that exists, and a check may replace lost pages by zeros. This holds only for blocks without a
//! summary: checksums that were found may be forgotten, and are searched again.
//!
//! A block that could not be read is read again when it is asked for, but no replica of it is counted. All this is
//! forgotten when regions come or go, or a scrub has repaired a block.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use pram::clock::Clock;

use super::error::Error;
use super::place::{Place, Run};

const COUNTS: Duration = Duration::from_secs(10);
/// Blocks, and slots, at most.
const MOST: usize = 1 << 16;
/// Searches that have to agree.
const LOOKS: u32 = 2;

pub struct KnownLost {
    clock: Clock,
    blocks: HashSet<Place>,
    /// By segment and slot.
    looked: HashMap<(u64, u32), Looked>,
}

/// The result of searching all summaries of a segment in a slot.
struct Looked {
    since: Instant,
    /// Blocks of the segment then: later ones were not searched.
    used: u32,
    times: u32,
    /// Blocks for which no summary was found, in ascending order.
    unnamed: Vec<Range<u32>>,
}

impl KnownLost {
    pub fn new(clock: &Clock) -> KnownLost {
        KnownLost { clock: clock.clone(), blocks: HashSet::new(), looked: HashMap::new() }
    }

    /// Does a search still count, of a segment with so many blocks?
    fn counts(&self, known: &Looked, used: u32) -> bool {
        self.clock.since(known.since) < COUNTS && known.used == used
    }

    pub fn has(&self, place: Place) -> bool {
        self.blocks.contains(&place)
    }

    /// Notes that reading failed.
    pub fn add(&mut self, e: &Error) {
        // A disk that did not answer may answer now.
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

    /// The range of blocks without a summary around `place`, in a slot.
    pub fn unnamed(&self, place: Place, slot: u32, used: u32) -> Option<Range<u32>> {
        let known = self.looked.get(&(place.sequence(), slot)).filter(|known| self.counts(known, used))?;
        let mut all = known.unnamed.iter().filter(|_| known.times >= LOOKS);
        all.find(|unnamed| unnamed.contains(&place.block())).cloned()
    }

    /// Notes that all summaries of a segment were searched, and that those found cover the blocks `named`, in ascending
    /// order.
    pub fn looked(&mut self, (sequence, slot): (u64, u32), used: u32, named: &[Range<u32>]) {
        if self.looked.len() >= MOST {
            self.looked.clear();
        }
        let ends = std::iter::once(0).chain(named.iter().map(|part| part.end));
        let begins = named.iter().map(|part| part.start).chain(std::iter::once(used));
        let now: Vec<_> = ends.zip(begins).map(|(from, to)| from..to).collect();
        let before = self.looked.get(&(sequence, slot)).filter(|known| self.counts(known, used));
        let (times, before) =
            before.map_or((0, std::iter::once(0..used).collect()), |known| (known.times, known.unnamed.clone()));
        // A block counts only if no search found its summary.
        let both = now.iter().flat_map(|a| before.iter().map(|b| a.start.max(b.start)..a.end.min(b.end)));
        let unnamed = both.filter(|range| !range.is_empty()).collect();
        self.looked.insert((sequence, slot), Looked { since: self.clock.instant(), used, times: times + 1, unnamed });
    }
}
