//! The tables in memory: a radix tree, level by level, in which only the tables exist that have an entry.
//!
//! Level 0 is the pages. A table of level n has the entries of 512 pages or tables of level n - 1, which are numbered
//! from 0 within their level. The one table of the highest level is the root.

use std::collections::BTreeMap;

use zerocopy::IntoBytes;

use super::{RawEntry, PAGE};
use pram::memory::MAX_SIZE;

/// Entries of a table.
pub const FANOUT: u64 = 512;
const BITS: u32 = FANOUT.ilog2();
/// Levels: as many as the largest memory needs, so that one that grows needs no other tables.
const HEIGHT: u32 = (MAX_SIZE / PAGE).ilog2().div_ceil(BITS);

/// A stored page or table: its number within its level, and its place.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub entry: RawEntry,
    pub key: u64,
}

pub type Block = Box<[RawEntry; FANOUT as usize]>;

pub fn empty_block() -> Block {
    Box::new([RawEntry::default(); FANOUT as usize])
}

/// The table in a slot.
pub fn block_of(bytes: &[u8]) -> Block {
    let mut block = empty_block();
    block.as_mut_bytes().copy_from_slice(bytes);
    block
}

pub struct Tables {
    /// Tables of level 1 first.
    levels: Vec<BTreeMap<u64, Block>>,
    pub root: RawEntry,
}

impl Tables {
    /// The tables below `root` are yet to be put.
    pub fn empty(root: RawEntry) -> Tables {
        Tables { levels: (0..HEIGHT).map(|_| BTreeMap::new()).collect(), root }
    }

    /// The level of the root.
    pub fn height(&self) -> u32 {
        self.levels.len() as u32
    }

    /// The place of page or table `key` of a level.
    pub fn entry(&self, level: u32, key: u64) -> RawEntry {
        if level == self.height() {
            return self.root;
        }
        let block = self.levels[level as usize].get(&(key / FANOUT));
        block.map_or_else(RawEntry::default, |block| block[(key % FANOUT) as usize])
    }

    /// A copy of a table, to be changed.
    pub fn copy(&self, level: u32, key: u64) -> Block {
        self.levels[level as usize - 1].get(&key).cloned().unwrap_or_else(empty_block)
    }

    /// Replaces a table. A table without entries is dropped.
    pub fn put(&mut self, level: u32, key: u64, block: Block) {
        let tables = &mut self.levels[level as usize - 1];
        if block.iter().any(|entry| entry.is_stored()) {
            tables.insert(key, block);
        } else {
            tables.remove(&key);
        }
    }

    /// Everything of a level that is stored.
    pub fn stored(&self, level: u32) -> Vec<Wanted> {
        if level == self.height() {
            let root = Wanted { entry: self.root, key: 0 };
            return Some(root).into_iter().filter(|root| root.entry.is_stored()).collect();
        }
        self.levels[level as usize].iter().flat_map(entries).collect()
    }

    /// Pages that are stored, in order.
    pub fn stored_from(&self, page: u64) -> impl Iterator<Item = Wanted> + '_ {
        self.levels[0].range(page / FANOUT..).flat_map(entries).filter(move |found| found.key >= page)
    }

    pub fn count(&self) -> u64 {
        self.stored_from(0).count() as u64
    }
}

/// The stored entries of a table.
fn entries<'t>((key, block): (&u64, &'t Block)) -> impl Iterator<Item = Wanted> + 't {
    let first = key * FANOUT;
    let all = (first..).zip(block.iter()).map(|(key, entry)| Wanted { entry: *entry, key });
    all.filter(|found| found.entry.is_stored())
}
