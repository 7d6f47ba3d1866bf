//! The segment table: what is known of each segment, in persistent RAM.
//!
//! ```text
//! root word LOG -> RawTable -> regions: RawTableRegion for each region
//!                           -> directory: offsets of chunks -> chunk: RawSegment for each of CHUNK slots
//!                           -> chains: offsets of chain chunks -> the first slot of each of BUCKETS chains
//! ```
//! A *slot* is the room of a segment on a disk; a region has a stretch of numbers of them, which begins where a chunk does. Chunks are made
//! when the first of their slots, or chains, is needed.
//!
//! Each slot is in one list, linked by `next`:
//! - reserved, of its region: free, and the host of the disk keeps the room for it;
//! - free, of its region: never used since it was last given up; or behind the region's `fresh`, never used at all;
//! - freed, one for all: given up, in the order of their epochs, and not to be used before the commit of that is durable;
//! - in use: in the chain that leads from sequence numbers to slots ([`chains`]).
//!
//! A segment may have *copies*, slots with the same content in other regions ([`copies`]). The one in the chain says what is known of
//! it, and leads to the others, linked by `copy`; it may be any of them.
//!
//! All changes are transactions under the lock of [`KEY`]; who reads without it does so in a section of that key.
//!
//! Invariants:
//! - T1. A block counts as live from the transaction in which its room is taken until the one that unlinks it, or that
//!   gives the room up. So a segment whose count is 0, and that takes no more, has nothing that anybody refers to.
//! - T2. A sequence number is in one slot at most, and below the mark in the labels.
//! - T3. A slot is used again only when the commit that freed it is durable.
//! - T4. No block of a segment is taken twice.
//! - T5. A copy that is not partial has all that was acknowledged of its segment, but what was dead when it was made.

mod chains;
mod change;
mod check;
mod copies;

use std::ops::Range;

use pram::{Off, Region, Tag, Tx};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::class::{wanted_copies, CLASSES};
use super::error::{Error, Result};

pub use change::Change;
pub use check::{check, compare, mend, Compared, Needs, Work};
pub use copies::Home;

/// Of the objects of the table in the heap.
pub const TAG: Tag = Tag(10);
/// The root word that leads to the table, or is 0.
pub const ROOT: u64 = 1;
/// The key whose lock protects the table: no inode has this number.
pub const KEY: u64 = 0;
/// The key whose long lock whoever puts the table in order has, or moves pages of a file to other numbers.
pub const SETTLING: u64 = (1 << 48) - 1;
/// The key whose long lock whoever cleans has: one at a time.
pub const CLEANING: u64 = (1 << 48) - 2;
/// The key whose long lock whoever adds or removes a region has.
pub const GROWING: u64 = (1 << 48) - 3;
/// Slots of a chunk.
pub const CHUNK: u64 = 1024;
/// Chains of a chain chunk.
pub const BUCKETS: u64 = 512;
/// Segments that are written to at a time, beside those of regions: of each class one for each [`super::Head`].
pub const HEADS: usize = 2 * CLASSES;
/// The first word of a [`RawTable`].
pub const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"CQ-TABLE");

/// A region of the log, its slots, and which of them are free. Slots are kept as their number plus 1, so that 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawTableRegion {
    pub number: u32,
    /// What becomes of it: see [`Standing`].
    pub standing: u32,
    /// Its slots: the first, and how many.
    pub first: u32,
    pub slots: u32,
    /// The first of the free slots for which no host keeps room, and the first slot that was never used.
    pub free: u64,
    pub fresh: u64,
    /// The first of the free slots for which its host keeps room.
    pub reserved: u64,
    /// Slots that are free or were never used, of these the reserved ones, and slots that take no content: that are not used again,
    /// or are [kept](State::Kept).
    pub spare: u64,
    pub held: u64,
    pub bad: u64,
    /// The slot that is written to with files that are to lie in this region as a whole.
    pub whole: u64,
    /// When it got this standing, in seconds since 1970.
    pub since: u64,
    /// Copies are never in two regions of one domain; 0: it is one of its own.
    pub domain: u32,
    /// Why it takes nothing: see [`Cause`].
    pub cause: u32,
    /// The mark of sequence numbers that its labels have, as far as that was raised with this memory.
    pub mark: u64,
    /// The mark to which its labels are being raised, or were last: where that was interrupted they have the one or the other.
    pub raising: u64,
}

impl RawTableRegion {
    /// Was raising its labels begun and interrupted, so that they have one of two marks?
    pub fn is_in_doubt(&self) -> bool {
        self.mark != self.raising
    }
}

/// Why a region takes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Cause {
    /// It is missing, or was: it takes content again when it is there.
    Missing = 1,
    /// Something written there may be lost: it takes content again when somebody says so.
    Failed = 2,
    /// It does not answer: it takes content again when it does.
    Late = 3,
}

/// Added to the [`Cause`] of one that was leaving.
const LEAVES: u32 = 1 << 8;
/// How far the copies that its content keeps are shifted beside that: see [`RawTableRegion::keeps`].
const KEEPS: u32 = 16;

/// What becomes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is none: what is here is of one that was removed.
    None,
    /// It takes content.
    Taking,
    /// It takes none, and what it has is moved.
    Leaving,
    /// It takes none: it is missing, or has failed. What it has may yet be there.
    Failed,
}

impl RawTableRegion {
    pub fn standing(&self) -> Standing {
        match self.standing {
            1 => Standing::Taking,
            2 => Standing::Leaving,
            3 => Standing::Failed,
            _ => Standing::None,
        }
    }

    pub fn cause(&self) -> Cause {
        match self.cause & (LEAVES - 1) {
            cause if cause == Cause::Missing as u32 => Cause::Missing,
            cause if cause == Cause::Late as u32 => Cause::Late,
            _ => Cause::Failed,
        }
    }

    /// It has failed, and was leaving before: it goes on with that when it is back.
    pub fn leaves(&self) -> bool {
        self.standing() == Standing::Failed && self.cause & LEAVES != 0
    }

    /// Had it failed before it was to leave?
    pub fn had_failed(&self) -> bool {
        self.cause & (LEAVES - 1) != 0
    }

    /// Copies that content keeps which is to have so many, when the region leaves: as many, unless fewer were allowed then.
    pub fn keeps(&self, wanted: u32) -> u32 {
        match self.cause >> KEEPS {
            0 => wanted,
            allowed => wanted.min(allowed),
        }
    }

    pub fn range(&self) -> Range<u32> {
        self.first..self.first.saturating_add(self.slots)
    }

    /// The free slot that is used next, of those for which no host keeps room.
    pub fn next_free(&self) -> Option<u32> {
        let fresh = u64::from(self.range().end).gt(&self.fresh).then_some(self.fresh as u32);
        slot_in(self.free).or(fresh)
    }

    /// The free slot that is used next, of those for which the host keeps room.
    pub fn next_reserved(&self) -> Option<u32> {
        slot_in(self.reserved)
    }
}

/// What is known of the log as a whole: counts are of regions that take content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawTable {
    pub magic: u64,
    /// Offsets: of chunks, of the regions, of chain chunks.
    pub directory: u64,
    pub regions: u64,
    pub chains: u64,
    /// How many regions, also those that were removed; and how often that has changed.
    pub count: u64,
    pub changes: u64,
    /// How many chains.
    pub buckets: u64,
    /// Blocks of a segment.
    pub blocks: u64,
    /// All slots have lower numbers.
    pub end: u64,
    /// Slots of regions that take content.
    pub slots: u64,
    /// The sequence number that is issued next, and that below which the labels allow it.
    pub sequence: u64,
    pub limit: u64,
    /// Blocks written: the clock by which segments age.
    pub clock: u64,
    /// What orders the versions of a page: drawn for each block.
    pub version: u64,
    /// The freed slots, first and last, and how many.
    pub freed: u64,
    pub last_freed: u64,
    pub waiting: u64,
    /// How many slots are free or were never used; for how many of these hosts keep room; and slots that are not used again.
    pub spare: u64,
    pub held: u64,
    pub bad: u64,
    /// Blocks that are live, in all segments, and those that are promised.
    pub live: u64,
    pub promised: u64,
    /// The epoch that persistent RAM was last recovered to when this table was put in order after it.
    pub recovered: u64,
    /// Of these live blocks, those in segments of each class that wants copies: two, three, four, lazily two.
    pub mirrored: [u64; CLASSES - 1],
    /// The slots that are written to, plus 1: by class, and of each by head.
    pub heads: [u64; HEADS],
    /// Background work that was asked for: see [`super::tasks`].
    pub tasks: u64,
    /// Bytes in a second that background work copies at most; 0: as many as it can beside others.
    pub rate: u64,
    /// Scrubbing: segments below this sequence number were looked at, and when that began, in seconds since 1970.
    pub scrubbed: u64,
    pub scrub_began: u64,
}

/// A slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawSegment {
    /// Sequence number (36 bits), live blocks (12), state (4), failed (1), head (2), class (4), partial (1), priority (2).
    pub state: u64,
    /// In use: when its content was written, by the clock, on average. Freed: in which epoch. Kept: since when, in seconds since 1970.
    pub stamp: u64,
    /// The next slot of its list, plus 1 (32 bits), blocks that are taken (16), parts (16).
    pub link: u64,
    /// The next copy, plus 1 (32 bits), when its copies are due, in seconds since 1970 (32).
    pub copies: u64,
}

const _: () = assert!(size_of::<RawTable>() == 328 && size_of::<RawSegment>() == 32);
const _: () = assert!(size_of::<RawTableRegion>() == 104);
/// Bytes of a chunk, and of a chain chunk.
pub const CHUNK_BYTES: u64 = CHUNK * size_of::<RawSegment>() as u64;
const CHAINS_BYTES: u64 = BUCKETS * 8;

/// What a slot is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It can be used.
    Free,
    /// It takes parts.
    Open,
    /// It takes no more.
    Full,
    /// Its live blocks are being moved: nothing that is not linked yet may be.
    Cleaning,
    /// Nothing in it is live; it waits for a commit.
    Freed,
    /// Its content is being given back to the disk.
    Discarding,
    /// Something could not be written there: it is not used again.
    Bad,
    /// It has the content of a segment that is in another slot.
    Copy,
    /// It is kept for the copy of the persistent RAM.
    Kept,
}

impl State {
    const ALL: [State; 9] = [
        State::Free,
        State::Open,
        State::Full,
        State::Cleaning,
        State::Freed,
        State::Discarding,
        State::Bad,
        State::Copy,
        State::Kept,
    ];

    fn from_raw(raw: u64) -> Option<State> {
        State::ALL.get(raw as usize).copied()
    }

    /// Is it what the sequence number of its segment leads to?
    pub fn is_used(self) -> bool {
        matches!(self, State::Open | State::Full | State::Cleaning)
    }
}

/// A slot, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub sequence: u64,
    pub live: u32,
    pub state: State,
    /// A write to it failed: it is given up once nothing in it is live.
    pub failed: bool,
    /// Which head filled it.
    pub head: u8,
    /// The code of its [`Class`](super::class::Class).
    pub class: u8,
    /// Of a copy: it is being made, or was by one who died.
    pub partial: bool,
    /// The highest of the files' in it, when it was written: 0 low to 2 high.
    pub priority: u8,
    pub stamp: u64,
    pub next: Option<u32>,
    /// Blocks that are taken.
    pub used: u32,
    pub parts: u32,
    /// The next of its copies.
    pub copy: Option<u32>,
    /// Of a lazy one: when its copies are to be made, in seconds since 1970.
    pub due: u32,
}

const LIVE_AT: u32 = 36;
const STATE_AT: u32 = 48;
const FAILED_AT: u32 = 52;
const HEAD_AT: u32 = 53;
const CLASS_AT: u32 = 55;
const PARTIAL_AT: u32 = 59;
const PRIORITY_AT: u32 = 60;

fn bits(word: u64, at: u32, bits: u32) -> u64 {
    word >> at & ((1 << bits) - 1)
}

pub(super) fn slot_in(word: u64) -> Option<u32> {
    (word as u32).checked_sub(1)
}

fn slot_word(slot: Option<u32>) -> u64 {
    slot.map_or(0, |slot| u64::from(slot) + 1)
}

impl Segment {
    pub const FREE: Segment = Segment {
        sequence: 0,
        live: 0,
        state: State::Free,
        failed: false,
        head: 0,
        class: 0,
        partial: false,
        priority: 0,
        stamp: 0,
        next: None,
        used: 0,
        parts: 0,
        copy: None,
        due: 0,
    };

    fn from_raw(words: [u64; 4]) -> Result<Segment> {
        let [state, stamp, link, copies] = words;
        let damaged = || Error::Corrupt(format!("a segment of the log has the state {state:#x}"));
        let class = bits(state, CLASS_AT, 4) as u8;
        wanted_copies(class).ok_or_else(damaged)?;
        Ok(Segment {
            sequence: bits(state, 0, LIVE_AT),
            live: bits(state, LIVE_AT, STATE_AT - LIVE_AT) as u32,
            state: State::from_raw(bits(state, STATE_AT, 4)).ok_or_else(damaged)?,
            failed: bits(state, FAILED_AT, 1) == 1,
            head: bits(state, HEAD_AT, 2) as u8,
            class,
            partial: bits(state, PARTIAL_AT, 1) == 1,
            priority: bits(state, PRIORITY_AT, 2) as u8,
            stamp,
            next: slot_in(link & u64::from(u32::MAX)),
            used: bits(link, 32, 16) as u32,
            parts: bits(link, 48, 16) as u32,
            copy: slot_in(copies & u64::from(u32::MAX)),
            due: bits(copies, 32, 32) as u32,
        })
    }

    /// As it is kept.
    pub fn to_raw(self) -> [u64; 4] {
        let state = State::ALL.iter().position(|state| *state == self.state).unwrap_or(0) as u64;
        let flags = u64::from(self.failed) << FAILED_AT
            | u64::from(self.head) << HEAD_AT
            | u64::from(self.class) << CLASS_AT
            | u64::from(self.partial) << PARTIAL_AT
            | u64::from(self.priority) << PRIORITY_AT;
        let word = self.sequence | u64::from(self.live) << LIVE_AT | state << STATE_AT | flags;
        let link = slot_word(self.next) | u64::from(self.used) << 32 | u64::from(self.parts) << 48;
        [word, self.stamp, link, slot_word(self.copy) | u64::from(self.due) << 32]
    }

    /// Copies that it is to have in the end.
    pub fn wanted(&self) -> u32 {
        wanted_copies(self.class).unwrap_or(1)
    }
}

/// Where the table of a region of persistent RAM is.
#[derive(Clone, Copy, Debug)]
pub struct Where {
    log: Off<RawTable>,
}

/// Where fields lie in [`RawTable`].
macro_rules! field {
    ($table:expr, $field:ident) => {
        $table.at.log.field::<u64>(std::mem::offset_of!(RawTable, $field))
    };
}
use field;

/// The table, read.
#[derive(Clone, Copy)]
pub struct Table<'r> {
    region: &'r Region,
    at: Where,
}

fn damaged(what: impl Into<String>) -> Error {
    Error::Corrupt(what.into())
}

impl Where {
    /// The table of a pool, and what its head says; none where the pool has no log.
    pub fn find(region: &Region) -> Result<Option<(Where, RawTable)>> {
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

    /// Makes a table without regions; `chains`: how many slots it is going to have.
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
        let root = tx.region().root(ROOT);
        tx.set(root, &log.off)?;
        Ok(Where { log: Off::new(log.off) })
    }

    pub fn table<'r>(&self, region: &'r Region) -> Table<'r> {
        Table { region, at: *self }
    }

    /// Every object of the table.
    pub fn objects(&self, region: &Region) -> Result<Vec<u64>> {
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

    /// All regions that are there, each with its place in the table.
    pub fn regions(&self) -> Result<Vec<(usize, RawTableRegion)>> {
        let count = self.word(field!(self, count))? as usize;
        let mut regions = Vec::with_capacity(count);
        for n in 0..count {
            let region = self.region(n)?;
            regions.extend((region.standing() != Standing::None).then_some((n, region)));
        }
        Ok(regions)
    }

    /// Of all regions, also those that were removed.
    pub fn numbers(&self) -> Result<Vec<u32>> {
        let count = self.word(field!(self, count))? as usize;
        (0..count).map(|n| Ok(self.region(n)?.number)).collect()
    }

    /// The region that a slot is of, and its place in the table.
    pub fn region_of(&self, slot: u32) -> Result<(usize, RawTableRegion)> {
        let regions = self.regions()?;
        let found = regions.into_iter().find(|(_, region)| region.range().contains(&slot));
        found.ok_or_else(|| damaged(format!("slot {slot} of the log is in no region")))
    }

    /// Slots that were given up and wait for a commit.
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

    /// Those of them that were ever used.
    pub fn used_slots(&self) -> Result<impl Iterator<Item = u32>> {
        let used = |(_, region): (usize, RawTableRegion)| region.first..region.range().end.min(region.fresh as u32);
        Ok(self.regions()?.into_iter().flat_map(used))
    }

    /// Where the slot's entry is; `None`: its chunk was not made, and all in it are free.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_four_words() {
        let segment = Segment {
            sequence: (1 << 36) - 1,
            live: 2048,
            state: State::Bad,
            failed: true,
            head: 1,
            class: 5,
            partial: true,
            priority: 2,
            stamp: u64::MAX,
            next: Some(u32::MAX - 2),
            used: 2048,
            parts: 1024,
            copy: Some(u32::MAX - 2),
            due: u32::MAX,
        };
        assert_eq!(Segment::from_raw(segment.to_raw()).expect("it is whole"), segment);
        assert_eq!(Segment::from_raw([0; 4]).expect("zeros are free"), Segment::FREE);
        assert!(Segment::from_raw([10 << 48, 0, 0, 0]).is_err());
        assert!(Segment::from_raw([6 << 55, 0, 0, 0]).is_err(), "there is no such class");
    }
}
