//! The segment table: the state of each segment, in persistent RAM.
//!
//! ```text
//! root word LOG -> RawTable -> regions: RawTableRegion for each region
//!                           -> directory: offsets of chunks -> chunk: RawSegment for each of CHUNK slots
//!                           -> chains: offsets of chain chunks -> the first slot of each of BUCKETS chains
//! ```
//! A *slot* is the room of a segment on a disk. A region has a range of slot numbers, which begins where a chunk does. A
//! chunk is made when the first of its slots, or chains, is needed.
//!
//! Each slot is in one list, linked by `next`:
//! - reserved, of its region: free, and the host of the disk keeps the room for it;
//! - free, of its region: not used since it was last freed; the slots from the region's `fresh` on, never used at all,
//!   are free without being listed;
//! - freed, one for all: freed in the order of their epochs, and not used before that commit is durable;
//! - in use: in the chain that leads from sequence numbers to slots ([`chains`]).
//!
//! A segment may have *replicas*: slots with the same content in other regions ([`replicas`]). The one in the chain has the
//! state of the segment, and leads to the others, linked by `replica`. Any of them can be in the chain.
//!
//! All changes are transactions under the lock of [`KEY`]; a reader without it reads in a section of that key.
//!
//! Invariants:
//! - T1. A block counts as live from the transaction in which its room is taken until the one that unlinks it, or that
//!   gives the room up. So nothing refers to a segment that takes no more and has the count 0.
//! - T2. A sequence number is in one slot at most, and below the mark in the labels.
//! - T3. A slot is used again only when the commit that freed it is durable.
//! - T4. No block of a segment is taken twice.
//! - T5. A replica that is not partial has all acknowledged content of its segment, except blocks that were dead when it
//!   was made.

mod chains;
mod change;
mod check;
mod raw;
mod replicas;

use pram::{Memory, Off, Session, Tag, Tx};

use super::error::{Error, Result};
use super::storage_class::CLASSES;

pub use change::Change;
pub use check::{check, compare, mend, Compared, Needs, Work};
pub use raw::*;
pub use replicas::Home;

/// The tag of the table's objects in the heap.
pub const TAG: Tag = Tag(10);
/// The root word that leads to the table, or is 0.
pub const ROOT: u64 = 1;
/// The key whose lock protects the table: no inode has this number.
pub const KEY: u64 = 0;
/// The key for the long lock of putting the table in order, and of moving pages of a file to other numbers.
pub const ORDERING: u64 = (1 << 48) - 1;
/// The key for the long lock of cleaning: one process at a time.
pub const CLEANING: u64 = (1 << 48) - 2;
/// The key for the long lock of adding or removing a region.
pub const GROWING: u64 = (1 << 48) - 3;

/// Where the table of a pool is.
#[derive(Clone, Copy, Debug)]
pub struct Where {
    log: Off<RawTable>,
}

/// Runs `work` in a transaction with the lock of the table; once more if the heap first had to take memory. That is all that
/// a change of the table provides for by itself: an operation of a file that lacks room ends, and runs again as a whole.
pub fn transact<R>(session: &Session, mut work: impl FnMut(&mut Tx<'_>) -> Result<R>) -> Result<R> {
    let mut op = session.begin()?;
    loop {
        op.lock(&[KEY])?;
        let done = {
            let mut tx = op.tx()?;
            match work(&mut tx) {
                Ok(done) => return Ok(tx.commit().map(|()| done)?),
                Err(e) => e,
            }
        };
        match done.must_grow() {
            true => op.renew_with_memory()?,
            false => return Err(done),
        }
    }
}

/// Where fields lie in [`RawTable`].
macro_rules! field {
    ($table:expr, $field:ident) => {
        $table.at.log.field::<u64>(std::mem::offset_of!(RawTable, $field))
    };
}
use field;

/// A view of the table for reading.
#[derive(Clone, Copy)]
pub struct Table<'r> {
    region: &'r Memory,
    at: Where,
}

fn damaged(what: impl Into<String>) -> Error {
    Error::Corrupt(what.into())
}

impl Where {
    /// The table of a pool and its head; `None` if the pool has no log.
    pub fn find(region: &Memory) -> Result<Option<(Where, RawTable)>> {
        let log = region.load(region.root(ROOT))?;
        if log == 0 {
            return Ok(None);
        }
        region.resolve(log, TAG)?;
        let log = Off::<RawTable>::new(log);
        let raw = region.read(log)?;
        if raw.magic != TABLE_MAGIC || raw.slots > raw.end || raw.end > u64::from(u32::MAX - 1) || raw.buckets == 0 {
            return Err(damaged("the head of the segment table"));
        }
        let holds = |object: u64, bytes: u64| Ok::<_, Error>(region.resolve(object, TAG)? >= bytes);
        let is_whole = holds(raw.directory, raw.end.div_ceil(CHUNK) * 8)?
            && holds(raw.regions, raw.count.saturating_mul(size_of::<RawTableRegion>() as u64))?
            && holds(raw.chains, raw.buckets.div_ceil(BUCKETS) * 8)?;
        match is_whole {
            true => Ok(Some((Where { log }, raw))),
            false => Err(damaged("a directory of the segment table")),
        }
    }

    /// Makes a table without regions; `chains`: the number of slots that it is going to have.
    pub fn make(tx: &mut Tx<'_>, blocks: u32, chains: u64, sequence: u64) -> Result<Where> {
        let buckets = chains.max(1);
        let mut zeros = |bytes: u64| -> Result<u64> {
            let object = tx.alloc(TAG, bytes)?.off;
            tx.init_zero(object, bytes)?;
            Ok(object)
        };
        let (directory, regions) = (zeros(8)?, zeros(size_of::<RawTableRegion>() as u64)?);
        let chains = zeros(buckets.div_ceil(BUCKETS) * 8)?;
        let log = tx.alloc(TAG, size_of::<RawTable>() as u64)?;
        let raw = RawTable {
            magic: TABLE_MAGIC,
            directory,
            regions,
            chains,
            count: 0,
            changes: 0,
            buckets,
            blocks: blocks.into(),
            end: 0,
            slots: 0,
            sequence,
            limit: sequence,
            clock: 0,
            version: 0,
            freed: 0,
            last_freed: 0,
            waiting: 0,
            spare: 0,
            held: 0,
            bad: 0,
            live: 0,
            promised: 0,
            recovered: 0,
            mirrored: [0; CLASSES - 1],
            heads: [0; HEADS],
            tasks: 0,
            rate: 0,
            scrubbed: 0,
            scrub_began: 0,
        };
        tx.init(Off::new(log.off), &raw)?;
        let root = tx.memory().root(ROOT);
        tx.set(root, &log.off)?;
        Ok(Where { log: Off::new(log.off) })
    }

    pub fn table<'r>(&self, region: &'r Memory) -> Table<'r> {
        Table { region, at: *self }
    }

    /// Every object of the table.
    pub fn objects(&self, region: &Memory) -> Result<Vec<u64>> {
        let all = self.table(region).head()?;
        let mut objects = vec![self.log.raw(), all.directory, all.regions, all.chains];
        for (directory, entries) in
            [(all.directory, all.end.div_ceil(CHUNK)), (all.chains, all.buckets.div_ceil(BUCKETS))]
        {
            for n in 0..entries {
                let chunk = region.load(Off::<u64>::new(directory).index(n))?;
                objects.extend((chunk != 0).then_some(chunk));
            }
        }
        Ok(objects)
    }
}

impl<'r> Table<'r> {
    pub fn head(&self) -> Result<RawTable> {
        Ok(self.region.read(self.at.log)?)
    }

    fn word(&self, at: Off<u64>) -> Result<u64> {
        Ok(self.region.load(at)?)
    }

    /// Where region `n` of the table is.
    fn region_at(&self, n: usize) -> Result<Off<RawTableRegion>> {
        let (regions, count) = (self.word(field!(self, regions))?, self.word(field!(self, count))?);
        if n as u64 >= count {
            return Err(damaged(format!("region {n} of {count} of the log")));
        }
        self.region.resolve(regions, TAG)?;
        Ok(Off::<RawTableRegion>::new(regions).index(n as u64))
    }

    pub fn region(&self, n: usize) -> Result<RawTableRegion> {
        Ok(self.region.read(self.region_at(n)?)?)
    }

    /// All regions that were not removed, each with its place in the table.
    pub fn regions(&self) -> Result<Vec<(usize, RawTableRegion)>> {
        let count = self.word(field!(self, count))? as usize;
        let mut regions = Vec::with_capacity(count);
        for n in 0..count {
            let region = self.region(n)?;
            regions.extend((region.health() != Health::None).then_some((n, region)));
        }
        Ok(regions)
    }

    /// The numbers of all regions, also of removed ones.
    pub fn numbers(&self) -> Result<Vec<u32>> {
        let count = self.word(field!(self, count))? as usize;
        (0..count).map(|n| Ok(self.region(n)?.number)).collect()
    }

    /// The region of a slot, and its place in the table.
    pub fn region_of(&self, slot: u32) -> Result<(usize, RawTableRegion)> {
        let regions = self.regions()?;
        let found = regions.into_iter().find(|(_, region)| region.range().contains(&slot));
        found.ok_or_else(|| damaged(format!("slot {slot} of the log is in no region")))
    }

    /// Slots that were freed and wait for a commit.
    pub fn freed(&self) -> Result<Vec<u32>> {
        let all = self.head()?;
        let (mut next, mut slots) = (slot_in(all.freed), Vec::new());
        while let Some(slot) = next.filter(|_| (slots.len() as u64) < all.waiting) {
            slots.push(slot);
            next = self.get(slot)?.next;
        }
        Ok(slots)
    }

    /// The slots of all regions.
    pub fn slots(&self) -> Result<impl Iterator<Item = u32>> {
        Ok(self.regions()?.into_iter().flat_map(|(_, region)| region.range()))
    }

    /// The slots of all regions that were ever used.
    pub fn used_slots(&self) -> Result<impl Iterator<Item = u32>> {
        let used = |(_, region): (usize, RawTableRegion)| region.first..region.range().end.min(region.fresh as u32);
        Ok(self.regions()?.into_iter().flat_map(used))
    }

    /// Where the entry of a slot is; `None`: its chunk was not made, and all its slots are free.
    fn entry(&self, slot: u32) -> Result<Option<Off<RawSegment>>> {
        let (directory, end) = (self.word(field!(self, directory))?, self.word(field!(self, end))?);
        if u64::from(slot) >= end {
            return Err(damaged(format!("slot {slot} of the log")));
        }
        self.region.resolve(directory, TAG)?;
        let chunk = self.word(Off::<u64>::new(directory).index(u64::from(slot) / CHUNK))?;
        if chunk == 0 {
            return Ok(None);
        }
        self.region.resolve(chunk, TAG)?;
        Ok(Some(Off::<RawSegment>::new(chunk).index(u64::from(slot) % CHUNK)))
    }

    pub fn get(&self, slot: u32) -> Result<Segment> {
        match self.entry(slot)? {
            Some(entry) => Segment::from_raw(self.region.read(entry.cast::<[u64; 4]>())?),
            None => Ok(Segment::FREE),
        }
    }

    /// The segment with this sequence number.
    pub fn find(&self, sequence: u64) -> Result<Option<(u32, Segment)>> {
        let mut next = self.chain(sequence)?;
        for _ in 0..=self.word(field!(self, end))? {
            let Some(slot) = next else { return Ok(None) };
            let segment = self.get(slot)?;
            if segment.sequence == sequence && segment.state.is_used() {
                return Ok(Some((slot, segment)));
            }
            next = segment.next;
        }
        Err(damaged(format!("the chain of segment {sequence} has no end")))
    }
}
