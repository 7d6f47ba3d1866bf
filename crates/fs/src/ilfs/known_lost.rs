//! What was found to be lost a moment ago.
//!
//! Where a segment has no summary, each page of it would have all of it looked through again: for [`COUNTS`] it is known that there is
//! none. Blocks that could not be read are read again when they are asked for, but no copy of them is counted. Where regions come or go,
//! or a scrub has put something right, nothing is known any more.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::error::Error;
use super::place::{Place, Run};

const COUNTS: Duration = Duration::from_secs(10);
/// Blocks, and slots, at most.
const MOST: usize = 1 << 16;

#[derive(Default)]
pub struct KnownLost {
    blocks: HashSet<Place>,
    /// Segments and slots where all summaries were looked for that these blocks hold: what none of them tells of none does.
    walked: HashMap<(u64, u32), (Instant, u32)>,
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

    pub fn is_walked(&self, sequence: u64, slot: u32, used: u32) -> bool {
        let known = self.walked.get(&(sequence, slot));
        known.is_some_and(|(since, walked)| since.elapsed() < COUNTS && *walked == used)
    }

    pub fn walked(&mut self, sequence: u64, slot: u32, used: u32) {
        if self.walked.len() >= MOST {
            self.walked.clear();
        }
        self.walked.insert((sequence, slot), (Instant::now(), used));
    }
}
