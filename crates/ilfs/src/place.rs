//! The place of a block in the log.

use std::fmt;
use std::num::NonZeroU64;

/// Bytes of a block: a page of a file.
pub const BLOCK: u64 = 4096;
/// Bits of a place that name the block within its segment.
pub const BLOCK_BITS: u32 = 11;
/// Most blocks of a segment.
pub const MOST_BLOCKS: u32 = 1 << BLOCK_BITS;
/// Bits of a segment's sequence number.
pub const SEQUENCE_BITS: u32 = 36;
/// Sequence numbers are below this, and not 0.
pub const SEQUENCES: u64 = 1 << SEQUENCE_BITS;
/// Bits of a place.
pub const PLACE_BITS: u32 = SEQUENCE_BITS + BLOCK_BITS;

/// The place of a block: the sequence number of its segment, and its position there. It does not depend on the slot of
/// the segment, which may change, and never leads to a segment that is written there later.
///
/// As a number it has [`PLACE_BITS`] bits and is not 0, so that an `Option` of it is a word. Later places of one head are
/// higher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(NonZeroU64);

impl Place {
    /// # Panics
    /// If `sequence` is 0 or too high, or `block` is beyond the largest segment.
    pub fn new(sequence: u64, block: u32) -> Place {
        assert!(sequence < SEQUENCES && block < MOST_BLOCKS, "block {block} of segment {sequence}");
        let word = NonZeroU64::new(sequence << BLOCK_BITS | u64::from(block));
        Place(word.filter(|_| sequence > 0).expect("sequence numbers begin at 1"))
    }

    /// From a stored number; `None` if that is 0, or no place.
    pub fn from_word(word: u64) -> Option<Place> {
        let is_place = word >> PLACE_BITS == 0 && word >> BLOCK_BITS != 0;
        NonZeroU64::new(word).filter(|_| is_place).map(Place)
    }

    pub fn word(self) -> u64 {
        self.0.get()
    }

    pub fn sequence(self) -> u64 {
        self.word() >> BLOCK_BITS
    }

    pub fn block(self) -> u32 {
        (self.word() & u64::from(MOST_BLOCKS - 1)) as u32
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} of segment {}", self.block(), self.sequence())
    }
}

/// Blocks that follow one another in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: Place,
    pub blocks: u32,
}

impl Run {
    pub fn one(place: Place) -> Run {
        Run { first: place, blocks: 1 }
    }

    /// The `n`th of its places.
    pub fn place(&self, n: u32) -> Place {
        Place::new(self.first.sequence(), self.first.block() + n)
    }

    /// Runs of places in their order, none longer than `most` blocks.
    pub fn of(places: impl IntoIterator<Item = Place>, most: u32) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for place in places {
            match runs.last_mut() {
                Some(run)
                    if run.blocks < most
                        && run.first.sequence() == place.sequence()
                        && run.first.block() + run.blocks == place.block() =>
                {
                    run.blocks += 1;
                }
                _ => runs.push(Run::one(place)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_number_of_47_bits() {
        let last = Place::new(SEQUENCES - 1, MOST_BLOCKS - 1);
        assert_eq!((last.word(), PLACE_BITS), ((1 << 47) - 1, 47));
        assert_eq!((last.sequence(), last.block()), (SEQUENCES - 1, MOST_BLOCKS - 1));
        assert_eq!(Place::from_word(last.word()), Some(last));
        for none in [0, 5, 2047, 1 << 47, u64::MAX] {
            assert_eq!(Place::from_word(none), None, "{none:#x}");
        }
        assert_eq!(size_of::<Option<Place>>(), 8);
    }

    #[test]
    fn runs_end_where_places_do_not_follow() {
        let places = [(5, 1), (5, 2), (5, 3), (5, 5), (6, 6), (6, 7)].map(|(s, b)| Place::new(s, b));
        let lengths = |most| Run::of(places, most).iter().map(|run| run.blocks).collect::<Vec<_>>();
        assert_eq!(lengths(100), [3, 1, 2]);
        assert_eq!(lengths(2), [2, 1, 1, 2]);
    }
}
