//! Samples of inodes and names, and the profile that is best for it (mramfs, 4.5).

use super::fields::Field;
use super::fit::{self, Tally};
use super::names::Sample;
use super::profile::{Codec, Profile};
use super::values::{Base, Values};
use super::PER_BLOCK;
use crate::layout::RawInode;

/// Counts of inodes and of names, for a profile of them.
#[derive(Clone, Debug)]
pub struct Seen {
    fields: Vec<Tally>,
    names: Sample,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { fields: vec![Tally::default(); Field::COUNT], names: Sample::default() }
    }
}

impl Seen {
    /// Of inodes of which each sixteen lie in one block.
    pub fn of(inodes: &[RawInode]) -> Seen {
        let mut seen = Seen::default();
        inodes.chunks(PER_BLOCK).for_each(|block| seen.add(block));
        seen
    }

    /// Inodes that lie in one block.
    pub fn add(&mut self, inodes: &[RawInode]) {
        let base = Base::of(inodes);
        for inode in inodes {
            for (field, value) in Values::of(inode, &base).stored() {
                self.fields[field as usize].add(value);
            }
        }
    }

    pub fn add_name(&mut self, name: &[u8]) {
        self.names.add(name);
    }

    pub fn field(&self, field: Field) -> &Tally {
        &self.fields[field as usize]
    }

    /// Bits that all inodes take by `profile`, by field.
    pub fn bits(&self, profile: &Profile) -> Vec<(Field, u64)> {
        Field::ALL.into_iter().map(|f| (f, self.field(f).bits(profile.code(f)))).collect()
    }

    /// The profile that codes the counted values in the fewest bits, with this codec.
    pub fn profile(&self, codec: Codec) -> Profile {
        let of = |field: Field| {
            let (tally, width) = (self.field(field), field.width());
            match codec {
                Codec::AllOrNothing => fit::all_or_nothing(tally, width),
                Codec::Huffman => fit::huffman(tally, width),
                Codec::Gamma => fit::gamma(tally, width),
                Codec::Hybrid => fit::best(tally, field.small(), width),
            }
        };
        Profile { codes: Box::new(Field::ALL.map(of)), symbols: self.names.symbols() }
    }
}

impl Profile {
    /// The best profile of these inodes, of which each sixteen lie in one block.
    pub fn of(inodes: &[RawInode]) -> Profile {
        Seen::of(inodes).profile(Codec::Hybrid)
    }
}
