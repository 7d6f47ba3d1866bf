//! The segment table: what is known of each segment, in persistent RAM.
//!
//! ```text
//! root word LOG -> RawTable -> directory: offsets of chunks -> chunk: RawSegment for each of CHUNK slots
//! ```
//! A *slot* is the room of a segment on a disk; slots are numbered through all regions. Chunks are made when the first of
//! their slots, or buckets, is needed.
//!
//! Each slot is in one list, linked by `next`:
//! - reserved: free, and its disk's host keeps the room for it;
//! - free: never used since it was last given up; or behind `fresh`, never used at all;
//! - freed: given up, in the order of their epochs, and not to be used before the commit of that is durable;
//! - in use: in the chain of the bucket (sequence number modulo slots) that leads from sequence numbers to slots.
//!
//! All changes are transactions under the lock of [`KEY`]; who reads without it does so in a section of that key.
//!
//! Invariants:
//! - T1. A block counts as live from the transaction in which its room is taken until the one that unlinks it, or that
//!   gives the room up. So a segment whose count is 0, and that takes no more, has nothing that anybody refers to.
//! - T2. A sequence number is in one slot at most, and below the mark in the labels.
//! - T3. A slot is used again only when the commit that freed it is durable.
//! - T4. No block of a segment is taken twice.

use std::collections::HashMap;

use pram::{Off, Region, Tx};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::{Error, Result};
use super::place::Place;
use crate::layout::{root, tag};

/// The key whose lock protects the table: no inode has this number.
pub const KEY: u64 = 0;
/// The key whose long lock whoever puts the table in order has, or moves pages of a file to other numbers.
pub const SETTLING: u64 = (1 << 48) - 1;
/// The key whose long lock whoever cleans has: one at a time.
pub const CLEANING: u64 = (1 << 48) - 2;
/// Slots of a chunk.
pub const CHUNK: u64 = 1024;
/// Regions of a log, at most.
pub const REGIONS: usize = 30;
/// Segments that are written to at a time.
pub const HEADS: usize = 2;
/// The first word of a [`RawTable`].
pub const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"CQ-TABLE");

/// A region of the log, and which slots are its.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawTableRegion {
    pub number: u32,
    pub slots: u32,
}

/// What is known of the log as a whole. Slots are kept as their number plus 1, so that 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawTable {
    pub magic: u64,
    pub directory: u64,
    /// Blocks of a segment.
    pub blocks: u64,
    pub slots: u64,
    /// The sequence number that is issued next, and that below which the labels allow it.
    pub sequence: u64,
    pub limit: u64,
    /// Blocks written: the clock by which segments age.
    pub clock: u64,
    /// What orders the versions of a page: drawn for each block.
    pub version: u64,
    /// The free slots, and the first one that was never used.
    pub free: u64,
    pub fresh: u64,
    /// The freed slots, first and last.
    pub freed: u64,
    pub last_freed: u64,
    /// How many slots are free or were never used, and how many are freed.
    pub spare: u64,
    pub waiting: u64,
    /// The slots that are written to.
    pub heads: [u64; HEADS],
    pub regions: [RawTableRegion; REGIONS],
    /// The first of the free slots for which hosts keep room, and how many these are: `spare` counts them too.
    pub reserved: u64,
    pub held: u64,
    /// Blocks that are live, in all segments, and those that are promised.
    pub live: u64,
    pub promised: u64,
    /// Slots that are not used again.
    pub bad: u64,
    /// The epoch that persistent RAM was last recovered to when this table was put in order after it.
    pub recovered: u64,
}

/// A slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawSegment {
    /// Sequence number (36 bits), live blocks (12), state (4), flags (12).
    pub state: u64,
    /// In use: when its content was written, by the clock, on average. Freed: in which epoch.
    pub stamp: u64,
    /// The next slot of its list, plus 1 (32 bits), blocks that are taken (16), parts (16).
    pub link: u64,
    /// The first slot of the bucket with this number, plus 1.
    pub bucket: u64,
}

const _: () = assert!(size_of::<RawTable>() == 416 && size_of::<RawSegment>() == 32);
/// Bytes of a chunk.
pub const CHUNK_BYTES: u64 = CHUNK * size_of::<RawSegment>() as u64;

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
}

impl State {
    const ALL: [State; 7] =
        [State::Free, State::Open, State::Full, State::Cleaning, State::Freed, State::Discarding, State::Bad];

    fn from_raw(raw: u64) -> Option<State> {
        State::ALL.get(raw as usize).copied()
    }

    /// Has it a sequence number?
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
    pub stamp: u64,
    pub next: Option<u32>,
    /// Blocks that are taken.
    pub used: u32,
    pub parts: u32,
}

const LIVE_AT: u32 = 36;
const STATE_AT: u32 = 48;
const FAILED_AT: u32 = 52;
const HEAD_AT: u32 = 53;

fn bits(word: u64, at: u32, bits: u32) -> u64 {
    word >> at & ((1 << bits) - 1)
}

fn slot_in(word: u64) -> Option<u32> {
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
        stamp: 0,
        next: None,
        used: 0,
        parts: 0,
    };

    fn from_raw(words: [u64; 3]) -> Result<Segment> {
        let [state, stamp, link] = words;
        let damaged = || crate::Error::Corrupt(format!("a segment of the log has the state {state:#x}"));
        Ok(Segment {
            sequence: bits(state, 0, LIVE_AT),
            live: bits(state, LIVE_AT, STATE_AT - LIVE_AT) as u32,
            state: State::from_raw(bits(state, STATE_AT, 4)).ok_or_else(damaged)?,
            failed: bits(state, FAILED_AT, 1) == 1,
            head: bits(state, HEAD_AT, 2) as u8,
            stamp,
            next: slot_in(link & u64::from(u32::MAX)),
            used: bits(link, 32, 16) as u32,
            parts: bits(link, 48, 16) as u32,
        })
    }

    /// As it is kept: `state`, `stamp` and `link`.
    pub fn to_raw(self) -> [u64; 3] {
        let state = State::ALL.iter().position(|state| *state == self.state).unwrap_or(0) as u64;
        let flags = u64::from(self.failed) << FAILED_AT | u64::from(self.head) << HEAD_AT;
        let word = self.sequence | u64::from(self.live) << LIVE_AT | state << STATE_AT | flags;
        [word, self.stamp, slot_word(self.next) | u64::from(self.used) << 32 | u64::from(self.parts) << 48]
    }
}

/// Where the table of a region of persistent RAM is; what of it does not change.
#[derive(Clone, Copy, Debug)]
pub struct Where {
    log: Off<RawTable>,
    directory: Off<u64>,
    pub slots: u32,
}

/// Where fields lie in [`RawTable`].
macro_rules! field {
    ($table:expr, $field:ident) => {
        $table.at.log.field::<u64>(std::mem::offset_of!(RawTable, $field))
    };
}

/// The table, read.
#[derive(Clone, Copy)]
pub struct Table<'r> {
    region: &'r Region,
    pub at: Where,
}

fn damaged(what: impl Into<String>) -> Error {
    crate::Error::Corrupt(what.into()).into()
}

impl Where {
    /// The table of a pool, and what its head says; none where the pool has no log.
    pub fn find(region: &Region) -> Result<Option<(Where, RawTable)>> {
        let log = region.load(region.root(root::LOG))?;
        if log == 0 {
            return Ok(None);
        }
        region.resolve(log, tag::LOG)?;
        let log = Off::<RawTable>::new(log);
        let raw = region.read(log)?;
        let slots: u64 = raw.regions.iter().map(|region| u64::from(region.slots)).sum();
        if raw.magic != TABLE_MAGIC || raw.slots != slots || raw.slots == 0 || raw.slots > u64::from(u32::MAX - 1) {
            return Err(damaged("the head of the segment table"));
        }
        if region.resolve(raw.directory, tag::LOG)? < raw.slots.div_ceil(CHUNK) * 8 {
            return Err(damaged("the directory of the segment table"));
        }
        Ok(Some((Where { log, directory: Off::new(raw.directory), slots: raw.slots as u32 }, raw)))
    }

    /// Makes an empty table.
    pub fn make(tx: &mut Tx<'_>, blocks: u32, regions: &[RawTableRegion], sequence: u64) -> Result<()> {
        let slots: u64 = regions.iter().map(|region| u64::from(region.slots)).sum();
        let chunks = slots.div_ceil(CHUNK);
        let directory = tx.alloc(tag::LOG, chunks * 8)?;
        tx.init_zero(directory.off, chunks * 8)?;
        let log = tx.alloc(tag::LOG, size_of::<RawTable>() as u64)?;
        let mut raw = RawTable {
            magic: TABLE_MAGIC,
            directory: directory.off,
            blocks: blocks.into(),
            slots,
            sequence,
            limit: sequence,
            clock: 0,
            version: 0,
            free: 0,
            fresh: 0,
            freed: 0,
            last_freed: 0,
            spare: slots,
            waiting: 0,
            heads: [0; HEADS],
            regions: [RawTableRegion::default(); REGIONS],
            reserved: 0,
            held: 0,
            live: 0,
            promised: 0,
            bad: 0,
            recovered: 0,
        };
        raw.regions[..regions.len()].copy_from_slice(regions);
        tx.init(Off::new(log.off), &raw)?;
        let root = tx.region().root(root::LOG);
        tx.set(root, &log.off)?;
        Ok(())
    }

    pub fn table<'r>(&self, region: &'r Region) -> Table<'r> {
        Table { region, at: *self }
    }

    /// Every object of the table.
    pub fn objects(&self, region: &Region) -> Result<Vec<u64>> {
        let chunks = u64::from(self.slots).div_ceil(CHUNK);
        let mut objects = vec![self.log.raw(), self.directory.raw()];
        for n in 0..chunks {
            let chunk = region.load(self.directory.index(n))?;
            objects.extend((chunk != 0).then_some(chunk));
        }
        Ok(objects)
    }
}

impl Table<'_> {
    /// The free slot that is used next, of those for which no host keeps room.
    pub fn next_free(&self) -> Result<Option<u32>> {
        let head = self.head()?;
        let fresh = (head.fresh < head.slots).then_some(head.fresh as u32);
        Ok(slot_in(head.free).or(fresh))
    }

    pub fn head(&self) -> Result<RawTable> {
        Ok(self.region.read(self.at.log)?)
    }

    /// Where the slot's entry is; `None`: its chunk was not made, and all in it are free.
    fn entry(&self, slot: u32) -> Result<Option<Off<RawSegment>>> {
        if slot >= self.at.slots {
            return Err(damaged(format!("slot {slot} of the log")));
        }
        let chunk = self.region.load(self.at.directory.index(u64::from(slot) / CHUNK))?;
        if chunk == 0 {
            return Ok(None);
        }
        self.region.resolve(chunk, tag::LOG)?;
        Ok(Some(Off::<RawSegment>::new(chunk).index(u64::from(slot) % CHUNK)))
    }

    pub fn get(&self, slot: u32) -> Result<Segment> {
        match self.entry(slot)? {
            Some(entry) => Segment::from_raw(self.region.read(entry.cast())?),
            None => Ok(Segment::FREE),
        }
    }

    fn bucket_of(&self, sequence: u64) -> u32 {
        (sequence % u64::from(self.at.slots)) as u32
    }

    /// The first slot in the chain of `sequence`.
    fn chain(&self, sequence: u64) -> Result<Option<u32>> {
        match self.entry(self.bucket_of(sequence))? {
            Some(entry) => Ok(slot_in(self.region.load(entry.field(std::mem::offset_of!(RawSegment, bucket)))?)),
            None => Ok(None),
        }
    }

    /// The segment with this sequence number.
    pub fn find(&self, sequence: u64) -> Result<Option<(u32, Segment)>> {
        let mut next = self.chain(sequence)?;
        for _ in 0..=self.at.slots {
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

/// The table, in a transaction under the lock of [`KEY`].
pub struct Change<'t, 'o> {
    pub tx: &'t mut Tx<'o>,
    at: Where,
}

impl<'t, 'o> Change<'t, 'o> {
    pub fn new(tx: &'t mut Tx<'o>, at: Where) -> Change<'t, 'o> {
        Change { tx, at }
    }

    pub fn table(&self) -> Table<'o> {
        self.at.table(self.tx.region())
    }

    pub fn head(&self) -> Result<RawTable> {
        self.table().head()
    }

    /// Sets words of the head.
    pub fn set_sequence(&mut self, sequence: u64, limit: u64) -> Result<()> {
        self.tx.set(field!(self, sequence), &sequence)?;
        Ok(self.tx.set(field!(self, limit), &limit)?)
    }

    pub fn set_clock(&mut self, clock: u64, version: u64) -> Result<()> {
        self.tx.set(field!(self, clock), &clock)?;
        Ok(self.tx.set(field!(self, version), &version)?)
    }

    pub fn set_promised(&mut self, promised: u64) -> Result<()> {
        Ok(self.tx.set(field!(self, promised), &promised)?)
    }

    pub fn set_recovered(&mut self, recovered: u64) -> Result<()> {
        Ok(self.tx.set(field!(self, recovered), &recovered)?)
    }

    /// So many blocks more are live, or fewer, in all.
    pub fn count_live(&mut self, more: i64) -> Result<()> {
        let live = self.head()?.live.saturating_add_signed(more);
        Ok(self.tx.set(field!(self, live), &live)?)
    }

    /// Of a slot in use, how many blocks are live: a word of undo log.
    pub fn set_live(&mut self, slot: u32, segment: &Segment) -> Result<()> {
        let entry = self.entry(slot)?;
        Ok(self.tx.set(entry.cast(), &segment.to_raw()[0])?)
    }

    pub fn set_head(&mut self, head: usize, slot: Option<u32>) -> Result<()> {
        Ok(self.tx.set(field!(self, heads).index(head as u64), &slot_word(slot))?)
    }

    /// The slot's entry, whose chunk is made if it is not there.
    fn entry(&mut self, slot: u32) -> Result<Off<RawSegment>> {
        if let Some(entry) = self.table().entry(slot)? {
            return Ok(entry);
        }
        let chunk = self.tx.alloc(tag::LOG, CHUNK_BYTES)?.off;
        self.tx.init_zero(chunk, CHUNK_BYTES)?;
        self.tx.set(self.at.directory.index(u64::from(slot) / CHUNK), &chunk)?;
        Ok(Off::<RawSegment>::new(chunk).index(u64::from(slot) % CHUNK))
    }

    pub fn put(&mut self, slot: u32, segment: &Segment) -> Result<()> {
        let entry = self.entry(slot)?;
        Ok(self.tx.set(entry.cast(), &segment.to_raw())?)
    }

    fn set_chain(&mut self, sequence: u64, first: Option<u32>) -> Result<()> {
        let bucket = self.table().bucket_of(sequence);
        let entry = self.entry(bucket)?;
        Ok(self.tx.set(entry.field(std::mem::offset_of!(RawSegment, bucket)), &slot_word(first))?)
    }

    /// The free slot that is used next, of those for which hosts keep room.
    pub fn next_reserved(&self) -> Result<Option<u32>> {
        Ok(slot_in(self.head()?.reserved))
    }

    /// Takes a slot that is next out of the list that it is in.
    fn take_next(&mut self, slot: u32) -> Result<()> {
        let all = self.head()?;
        if slot_in(all.reserved) == Some(slot) {
            let next = self.table().get(slot)?.next;
            self.tx.set(field!(self, reserved), &slot_word(next))?;
            self.tx.set(field!(self, held), &all.held.saturating_sub(1))?;
        } else if slot_in(all.free) == Some(slot) {
            let next = self.table().get(slot)?.next;
            self.tx.set(field!(self, free), &slot_word(next))?;
        } else {
            self.tx.set(field!(self, fresh), &(u64::from(slot) + 1))?;
        }
        let spare = self.head()?.spare.saturating_sub(1);
        Ok(self.tx.set(field!(self, spare), &spare)?)
    }

    /// The host keeps room for a slot that is next of the others.
    pub fn reserve(&mut self, slot: u32) -> Result<()> {
        self.take_next(slot)?;
        self.push_reserved(slot)
    }

    /// A slot that is in no list is free, and the host keeps room for it.
    pub fn push_reserved(&mut self, slot: u32) -> Result<()> {
        let head = self.head()?;
        self.put(slot, &Segment { next: slot_in(head.reserved), ..Segment::FREE })?;
        self.tx.set(field!(self, reserved), &slot_word(Some(slot)))?;
        self.tx.set(field!(self, held), &(head.held + 1))?;
        Ok(self.tx.set(field!(self, spare), &(head.spare + 1))?)
    }

    /// Takes that slot out of the free ones and makes it the segment that `head` writes to.
    pub fn open(&mut self, slot: u32, sequence: u64, head: usize) -> Result<Segment> {
        self.take_next(slot)?;
        let next = self.table().chain(sequence)?;
        let segment = Segment { sequence, state: State::Open, head: head as u8, next, ..Segment::FREE };
        self.put(slot, &segment)?;
        self.set_chain(sequence, Some(slot))?;
        self.set_head(head, Some(slot))?;
        Ok(segment)
    }

    /// Takes a slot that is in use out of its chain.
    fn unchain(&mut self, slot: u32, segment: &Segment) -> Result<()> {
        let mut before = None;
        let mut next = self.table().chain(segment.sequence)?;
        for _ in 0..=self.at.slots {
            match (next, before) {
                (Some(here), None) if here == slot => return self.set_chain(segment.sequence, segment.next),
                (Some(here), Some(last)) if here == slot => {
                    let last_one = self.table().get(last)?;
                    return self.put(last, &Segment { next: segment.next, ..last_one });
                }
                (Some(here), _) => (before, next) = (next, self.table().get(here)?.next),
                (None, _) => break,
            }
        }
        Err(damaged(format!("segment {} is not where its number leads", segment.sequence)))
    }

    /// Gives up a segment in this epoch, to which nothing leads, whatever counts as live there.
    pub fn free(&mut self, slot: u32, segment: &Segment, epoch: u64) -> Result<()> {
        self.count_live(-i64::from(segment.live))?;
        self.unchain(slot, segment)?;
        let freed = Segment { state: State::Freed, stamp: epoch, failed: segment.failed, ..Segment::FREE };
        self.put(slot, &freed)?;
        let head = self.head()?;
        match slot_in(head.last_freed) {
            Some(last) => {
                let last_one = self.table().get(last)?;
                self.put(last, &Segment { next: Some(slot), ..last_one })?;
            }
            None => self.tx.set(field!(self, freed), &slot_word(Some(slot)))?,
        }
        self.tx.set(field!(self, last_freed), &slot_word(Some(slot)))?;
        Ok(self.tx.set(field!(self, waiting), &(head.waiting + 1))?)
    }

    /// The first of the freed slots, if it was freed in an epoch before `durable`, is one no more: it is being discarded, or
    /// bad.
    pub fn take_freed(&mut self, durable: u64) -> Result<Option<(u32, State)>> {
        let head = self.head()?;
        let Some(slot) = slot_in(head.freed) else { return Ok(None) };
        let segment = self.table().get(slot)?;
        if segment.stamp >= durable {
            return Ok(None);
        }
        self.tx.set(field!(self, freed), &slot_word(segment.next))?;
        if segment.next.is_none() {
            self.tx.set(field!(self, last_freed), &0)?;
        }
        self.tx.set(field!(self, waiting), &head.waiting.saturating_sub(1))?;
        let state = if segment.failed { State::Bad } else { State::Discarding };
        if segment.failed {
            self.tx.set(field!(self, bad), &(head.bad + 1))?;
        }
        self.put(slot, &Segment { state, ..Segment::FREE })?;
        Ok(Some((slot, state)))
    }

    /// A segment that was found on a disk is in use.
    pub fn adopt(&mut self, slot: u32, segment: Segment) -> Result<()> {
        let next = self.table().chain(segment.sequence)?;
        self.count_live(i64::from(segment.live))?;
        self.put(slot, &Segment { next, ..segment })?;
        self.set_chain(segment.sequence, Some(slot))?;
        let head = self.head()?;
        Ok(self.tx.set(field!(self, fresh), &head.fresh.max(u64::from(slot) + 1))?)
    }

    /// Nothing is in the list of the free slots any more, and nothing in that of the freed ones, if they may be used. The
    /// first slot that was never used.
    pub fn forget_free(&mut self, freed_too: bool) -> Result<u32> {
        let head = self.head()?;
        self.tx.set(field!(self, free), &0)?;
        self.tx.set(field!(self, reserved), &0)?;
        self.tx.set(field!(self, held), &0)?;
        self.tx.set(field!(self, spare), &(head.slots - head.fresh))?;
        if freed_too {
            self.tx.set(field!(self, freed), &0)?;
            self.tx.set(field!(self, last_freed), &0)?;
            self.tx.set(field!(self, waiting), &0)?;
        }
        Ok(head.fresh as u32)
    }

    /// A slot that was being discarded is free; its host has the room back, or keeps it.
    pub fn discarded(&mut self, slot: u32, is_kept: bool) -> Result<()> {
        match self.table().get(slot)?.state {
            State::Discarding if is_kept => self.push_reserved(slot),
            State::Discarding => self.push_free(slot),
            _ => Ok(()),
        }
    }

    /// A slot that is in no list is not used again.
    pub fn set_bad(&mut self, slot: u32) -> Result<()> {
        let bad = self.head()?.bad + 1;
        self.tx.set(field!(self, bad), &bad)?;
        self.put(slot, &Segment { state: State::Bad, ..Segment::FREE })
    }

    /// A slot that is in no list is free.
    pub fn push_free(&mut self, slot: u32) -> Result<()> {
        let head = self.head()?;
        self.put(slot, &Segment { next: slot_in(head.free), ..Segment::FREE })?;
        self.tx.set(field!(self, free), &slot_word(Some(slot)))?;
        Ok(self.tx.set(field!(self, spare), &(head.spare + 1))?)
    }
}

/// What files were found to need of a log, counted one by one.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// By sequence number: blocks to which something leads, and the highest of them plus 1.
    pub segments: HashMap<u64, (u32, u32)>,
    /// Pages that are promised room.
    pub promised: u64,
}

impl Needs {
    pub fn add(&mut self, place: Option<Place>) {
        match place {
            Some(place) => {
                let (blocks, end) = self.segments.entry(place.sequence()).or_default();
                (*blocks, *end) = (*blocks + 1, place.block().max(*end - (*end).min(1)) + 1);
            }
            None => self.promised += 1,
        }
    }

    pub fn add_all(&mut self, other: &Needs) {
        for (sequence, (more, reach)) in &other.segments {
            let (blocks, end) = self.segments.entry(*sequence).or_default();
            (*blocks, *end) = (*blocks + more, *reach.max(end));
        }
        self.promised += other.promised;
    }
}

/// What of these needs a table does not have, or has too low: in words.
pub fn compare(region: &Region, needs: &Needs) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let Some((at, raw)) = Where::find(region)? else {
        return Ok(match needs.segments.is_empty() {
            true => problems,
            false => vec!["files have content on disks, and the pool has no log".into()],
        });
    };
    let table = at.table(region);
    let mut sorted: Vec<_> = needs.segments.iter().collect();
    sorted.sort_unstable();
    for (sequence, (blocks, end)) in sorted {
        match table.find(*sequence)? {
            None => problems
                .push(format!("{blocks} pages of files lie in segment {sequence}, which is gone: they are lost")),
            Some((_, segment)) if *end > segment.used => problems.push(format!(
                "pages of files lie in block {} of segment {sequence}, of which {} are in use: they are lost",
                end - 1,
                segment.used
            )),
            Some((_, segment)) if *blocks > segment.live => problems.push(format!(
                "segment {sequence} says that {} blocks are live, and {blocks} are in use",
                segment.live
            )),
            _ => {}
        }
    }
    if needs.promised > raw.promised {
        problems.push(format!("{} blocks are promised, and {} are reserved", raw.promised, needs.promised));
    }
    Ok(problems)
}

/// What a transaction is to do.
pub type Work<'w> = &'w mut dyn FnMut(&mut Tx<'_>) -> Result<()>;

/// Makes the counts of a table those of these needs: nobody is at work. In pieces, each a transaction that `change` runs; what was
/// mended, in words.
pub fn mend(needs: &Needs, change: &mut dyn FnMut(Work<'_>) -> Result<()>) -> Result<Vec<String>> {
    const SOME: u32 = 64;
    let (mut mended, mut live, mut from, mut slots) = (Vec::new(), 0u64, 0, 1);
    while from < slots {
        let mut told = Vec::new();
        let mut sum = 0;
        change(&mut |tx| {
            (told, sum) = (Vec::new(), 0);
            let Some((at, _)) = Where::find(tx.region())? else { return Ok(()) };
            slots = at.slots;
            for slot in from..slots.min(from + SOME) {
                let segment = at.table(tx.region()).get(slot)?;
                if !segment.state.is_used() {
                    continue;
                }
                let counted = needs.segments.get(&segment.sequence).map_or(0, |(blocks, _)| *blocks).min(segment.used);
                sum += u64::from(counted);
                if counted != segment.live {
                    told.push(format!("segment {}: {} live blocks become {counted}", segment.sequence, segment.live));
                    Change::new(tx, at).set_live(slot, &Segment { live: counted, ..segment })?;
                }
            }
            Ok(())
        })?;
        mended.extend(told);
        (live, from) = (live + sum, from + SOME);
    }
    change(&mut |tx| {
        let Some((at, raw)) = Where::find(tx.region())? else { return Ok(()) };
        let mut change = Change::new(tx, at);
        change.count_live(live as i64 - raw.live as i64)?;
        change.set_promised(needs.promised)
    })?;
    Ok(mended)
}

/// What is wrong with a table: all invariants that can be seen in it. For tests and fsck; nobody may change it meanwhile.
pub fn check(region: &Region) -> Result<Vec<String>> {
    let Some((at, raw)) = Where::find(region)? else { return Ok(Vec::new()) };
    let table = at.table(region);
    let mut problems = Vec::new();
    let (mut free, mut freed, mut waiting_for) = (vec![false; at.slots as usize], 0, 0);
    let mut walk = |first: u64, state: State, each: &mut dyn FnMut(&Segment)| -> Result<u64> {
        let (mut next, mut count) = (slot_in(first), 0);
        while let Some(slot) = next {
            let segment = table.get(slot)?;
            if segment.state != state || std::mem::replace(&mut free[slot as usize], true) {
                problems.push(format!("slot {slot} is {:?} in the list of the {state:?}", segment.state));
                break;
            }
            each(&segment);
            (next, count) = (segment.next, count + 1);
        }
        Ok(count)
    };
    let held = walk(raw.reserved, State::Free, &mut |_| ())?;
    let spare = held + walk(raw.free, State::Free, &mut |_| ())? + (raw.slots - raw.fresh.min(raw.slots));
    freed += walk(raw.freed, State::Freed, &mut |segment| {
        waiting_for = segment.stamp.max(waiting_for);
    })?;
    let mut live = 0;
    if (spare, freed) != (raw.spare, raw.waiting) {
        problems.push(format!("{spare} slots are free and {freed} wait, not {} and {}", raw.spare, raw.waiting));
    }
    if held != raw.held {
        problems.push(format!("hosts keep room for {held} free slots, not {}", raw.held));
    }
    for slot in 0..at.slots {
        let segment = table.get(slot)?;
        let in_list = free[slot as usize] || u64::from(slot) >= raw.fresh;
        match segment.state {
            State::Free | State::Freed if !in_list => problems.push(format!("slot {slot} is free in no list")),
            state if state.is_used() && in_list => problems.push(format!("slot {slot} is in use and in a list")),
            state if state.is_used() => {
                live += u64::from(segment.live);
                let found = table.find(segment.sequence)?.map(|(slot, _)| slot);
                if found != Some(slot) {
                    problems.push(format!("segment {} leads to {found:?}, not {slot}", segment.sequence));
                }
                let is_head = raw.heads.iter().any(|head| slot_in(*head) == Some(slot));
                let fits = segment.live <= segment.used && u64::from(segment.used) <= raw.blocks;
                if !fits || segment.sequence >= raw.sequence || is_head != (state == State::Open) {
                    problems.push(format!("slot {slot}: {segment:?}, next number {}", raw.sequence));
                }
            }
            _ => {}
        }
    }
    if live != raw.live {
        problems.push(format!("{live} blocks are live, not {}", raw.live));
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_three_words() {
        let segment = Segment {
            sequence: (1 << 36) - 1,
            live: 2048,
            state: State::Bad,
            failed: true,
            head: 1,
            stamp: u64::MAX,
            next: Some(u32::MAX - 2),
            used: 2048,
            parts: 1024,
        };
        assert_eq!(Segment::from_raw(segment.to_raw()).expect("it is whole"), segment);
        assert_eq!(Segment::from_raw([0; 3]).expect("zeros are free"), Segment::FREE);
        assert!(Segment::from_raw([9 << 48, 0, 0]).is_err());
    }
}
