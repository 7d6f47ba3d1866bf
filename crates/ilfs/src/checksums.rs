//! A cache of checksums that were read, so that a read need not look for its summaries again: those of a limited number
//! of segments, the most recently used ones.

use std::collections::HashMap;

use super::part::Part;
use super::place::Run;

/// The known checksums.
pub struct Sums {
    most: usize,
    clock: u64,
    segments: HashMap<u64, Segment>,
}

#[derive(Default)]
struct Segment {
    asked: u64,
    /// All parts that begin before this block have been read.
    walked: u32,
    blocks: Vec<Option<u32>>,
}

impl Sums {
    pub fn new(most: usize) -> Sums {
        Sums { most: most.max(1), clock: 0, segments: HashMap::new() }
    }

    /// The checksums of a run, if all are known.
    pub fn of(&mut self, run: Run) -> Option<Vec<u32>> {
        self.clock += 1;
        let segment = self.segments.get_mut(&run.first.sequence())?;
        segment.asked = self.clock;
        let from = run.first.block() as usize;
        segment.blocks.get(from..from + run.blocks as usize)?.iter().copied().collect()
    }

    /// The block up to which all parts of the segment are known.
    pub fn walked(&self, sequence: u64) -> u32 {
        self.segments.get(&sequence).map_or(0, |segment| segment.walked)
    }

    /// Adds a part that was read or written.
    pub fn add(&mut self, part: &Part) {
        self.clock += 1;
        if !self.segments.contains_key(&part.sequence) && self.segments.len() >= self.most {
            let oldest = self.segments.iter().min_by_key(|(_, segment)| segment.asked).map(|(sequence, _)| *sequence);
            oldest.and_then(|sequence| self.segments.remove(&sequence));
        }
        let segment = self.segments.entry(part.sequence).or_default();
        segment.asked = self.clock;
        let (first, end) = (part.first() as usize, part.end() as usize);
        if segment.blocks.len() < end {
            segment.blocks.resize(end, None);
        }
        for (known, entry) in segment.blocks[first..].iter_mut().zip(&part.entries) {
            *known = Some(entry.crc);
        }
        if segment.walked == part.block {
            segment.walked = part.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::{Entry, Owner};
    use super::super::place::Place;
    use super::*;

    fn part(sequence: u64, block: u32, crcs: &[u32]) -> Part {
        let owner = Owner { ino: 1, generation: 1, page: 0 };
        let entries = crcs.iter().map(|crc| Entry { owner, version: 0, crc: *crc }).collect();
        Part { sequence, block, number: 0, segment: 1024, head: 0, class: 0, written: 0, entries }
    }

    fn run(sequence: u64, block: u32, blocks: u32) -> Run {
        Run { first: Place::new(sequence, block), blocks }
    }

    #[test]
    fn what_was_not_read_is_not_known() {
        let mut sums = Sums::new(10);
        sums.add(&part(3, 0, &[10, 11]));
        assert_eq!(sums.of(run(3, 1, 2)), Some(vec![10, 11]));
        assert_eq!(sums.of(run(3, 0, 1)), None, "that is the summary");
        assert_eq!((sums.of(run(3, 2, 2)), sums.of(run(4, 1, 1))), (None, None));
        // With a gap, which another process may yet fill.
        sums.add(&part(3, 6, &[12]));
        assert_eq!((sums.of(run(3, 7, 1)), sums.walked(3)), (Some(vec![12]), 3));
        sums.add(&part(3, 3, &[13, 14]));
        assert_eq!(sums.walked(3), 6);
    }

    #[test]
    fn only_so_many_segments_are_kept() {
        let mut sums = Sums::new(3);
        (1..=3).for_each(|n| sums.add(&part(n, 0, &[7])));
        assert!(sums.of(run(1, 1, 1)).is_some());
        sums.add(&part(4, 0, &[7]));
        let known: Vec<u64> = (1..=4).filter(|n| sums.of(run(*n, 1, 1)).is_some()).collect();
        assert_eq!(known, [1, 3, 4]);
    }
}
