//! The words of the table: its head, its regions, its segments.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};
use crate::storage_class::{wanted_replicas, CLASSES};

/// Slots of a chunk.
pub const CHUNK: u64 = 1024;
/// Chains of a chain chunk.
pub const BUCKETS: u64 = 512;
/// Open segments, beside those of regions: one for each class and [`crate::Head`].
pub const HEADS: usize = 2 * CLASSES;
/// The first word of a [`RawTable`].
pub const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"CQ-TABLE");

/// A region of the log, its slots, and its lists of free ones. A slot is stored as its number plus 1, so that 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawTableRegion {
    pub number: u32,
    /// Its [`Health`].
    pub standing: u32,
    /// Its first slot, and how many it has.
    pub first: u32,
    pub slots: u32,
    /// The first free slot for which no host keeps room, and the first slot that was never used.
    pub free: u64,
    pub fresh: u64,
    /// The first of the free slots for which its host keeps room.
    pub reserved: u64,
    /// Free slots, also never used ones; the reserved ones of them; and slots that take no content: bad ones, and [the
    /// backing's](SlotState::Backing).
    pub spare: u64,
    pub held: u64,
    pub bad: u64,
    /// The open slot for files that are to lie in this region as a whole.
    pub whole: u64,
    /// When its health changed last, in seconds since 1970.
    pub since: u64,
    /// Replicas are never in two regions of one domain; 0: a domain of its own.
    pub domain: u32,
    /// Why it takes nothing: see [`Cause`].
    pub cause: u32,
    /// The mark of sequence numbers in its labels, as last raised with this memory.
    pub mark: u64,
    /// The mark to which its labels are being raised, or were last: after an interruption they have this or the other.
    pub raising: u64,
}

impl RawTableRegion {
    /// Was raising its labels interrupted, so that they have one of two marks?
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
    /// Content that was written there may be lost: it takes content again when an administrator says so.
    Failed = 2,
    /// It does not answer: it takes content again when it does.
    Late = 3,
}

/// Added to the [`Cause`] of a region that was leaving.
pub(super) const LEAVES: u32 = 1 << 8;
/// The position of the least number of replicas in the same word: see [`RawTableRegion::least_replicas`].
pub(super) const LEAST_REPLICAS: u32 = 16;

/// The health of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The region was removed; its entry stays.
    None,
    /// It takes content.
    Taking,
    /// It takes none, and its content is moved.
    Leaving,
    /// It takes none: it is missing, or has failed. Its content may yet be there.
    Failed,
}

impl RawTableRegion {
    pub fn health(&self) -> Health {
        match self.standing {
            1 => Health::Taking,
            2 => Health::Leaving,
            3 => Health::Failed,
            _ => Health::None,
        }
    }

    pub fn cause(&self) -> Cause {
        match self.cause & (LEAVES - 1) {
            cause if cause == Cause::Missing as u32 => Cause::Missing,
            cause if cause == Cause::Late as u32 => Cause::Late,
            _ => Cause::Failed,
        }
    }

    /// It has failed, and was leaving before: it goes on leaving when it is back.
    pub fn leaves(&self) -> bool {
        self.health() == Health::Failed && self.cause & LEAVES != 0
    }

    /// Had it failed before it was to leave?
    pub fn had_failed(&self) -> bool {
        self.cause & (LEAVES - 1) != 0
    }

    /// The least number of replicas that content wanting `wanted` keeps when the region leaves: all of them, unless
    /// fewer were allowed.
    pub fn least_replicas(&self, wanted: u32) -> u32 {
        match self.cause >> LEAST_REPLICAS {
            0 => wanted,
            allowed => wanted.min(allowed),
        }
    }

    pub fn range(&self) -> Range<u32> {
        self.first..self.first.saturating_add(self.slots)
    }

    /// The next free slot for which no host keeps room.
    pub fn next_free(&self) -> Option<u32> {
        let fresh = u64::from(self.range().end).gt(&self.fresh).then_some(self.fresh as u32);
        slot_in(self.free).or(fresh)
    }

    /// The next free slot for which the host keeps room.
    pub fn next_reserved(&self) -> Option<u32> {
        slot_in(self.reserved)
    }
}

/// The head of the table; counts are of regions that take content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawTable {
    pub magic: u64,
    /// Offsets: of chunks, of the regions, of chain chunks.
    pub directory: u64,
    pub regions: u64,
    pub chains: u64,
    /// How many regions, also removed ones; and how often they, their health or their domains have changed.
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
    /// The sequence number that is issued next, and the limit below which the labels allow numbers.
    pub sequence: u64,
    pub limit: u64,
    /// Blocks written: the clock by which segments age.
    pub clock: u64,
    /// The number that is drawn for each block, to order the versions of a page.
    pub version: u64,
    /// The freed slots, first and last, and how many.
    pub freed: u64,
    pub last_freed: u64,
    pub waiting: u64,
    /// Free slots, also never used ones; those of them for which hosts keep room; and bad slots, and the backing's.
    pub spare: u64,
    pub held: u64,
    pub bad: u64,
    /// Live blocks, in all segments, and promised blocks.
    pub live: u64,
    pub promised: u64,
    /// The epoch that persistent RAM was recovered to when this table was last put in order.
    pub recovered: u64,
    /// Of these live blocks, those in segments of each class that wants replicas: two, three, four, lazily two.
    pub mirrored: [u64; CLASSES - 1],
    /// The open slots, plus 1: by class, and within a class by head.
    pub heads: [u64; HEADS],
    /// Background work that was asked for: see [`crate::jobs`].
    pub tasks: u64,
    /// Bytes per second that background work copies at most; 0: no limit of its own.
    pub rate: u64,
    /// Scrubbing: segments below this sequence number were scrubbed in the pass; its begin, in seconds since 1970.
    pub scrubbed: u64,
    pub scrub_began: u64,
}

/// A slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawSegment {
    /// Sequence number (36 bits), live blocks (12), state (4), failed (1), head (2), class (4), partial (1), priority (2).
    pub state: u64,
    /// In use: when its content was written, by the clock, on average. Freed: in which epoch. The backing's, or bad: since
    /// when, in seconds since 1970.
    pub stamp: u64,
    /// The next slot of its list, plus 1 (32 bits), blocks that are taken (16), parts (16).
    pub link: u64,
    /// The next replica, plus 1 (32 bits), when its replicas are due, in seconds since 1970 (32).
    pub replicas: u64,
}

const _: () = assert!(size_of::<RawTable>() == 328 && size_of::<RawSegment>() == 32);
const _: () = assert!(size_of::<RawTableRegion>() == 104);
/// Bytes of a chunk, and of a chain chunk.
pub const CHUNK_BYTES: u64 = CHUNK * size_of::<RawSegment>() as u64;
pub(super) const CHAINS_BYTES: u64 = BUCKETS * 8;

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// It can be used.
    Free,
    /// It takes parts.
    Open,
    /// It takes no more.
    Full,
    /// Its live blocks are being moved, and blocks that are not linked yet cannot be linked any more.
    Cleaning,
    /// Nothing in it is live; it waits for a commit.
    Freed,
    /// Its content is being given back to the disk.
    Discarding,
    /// A write to it failed: it is not used before it was [tested](crate::bad_slots).
    Bad,
    /// It has the content of a segment that is in another slot.
    Replica,
    /// It belongs to the backing.
    Backing,
}

impl SlotState {
    const ALL: [SlotState; 9] = [
        SlotState::Free,
        SlotState::Open,
        SlotState::Full,
        SlotState::Cleaning,
        SlotState::Freed,
        SlotState::Discarding,
        SlotState::Bad,
        SlotState::Replica,
        SlotState::Backing,
    ];

    fn from_raw(raw: u64) -> Option<SlotState> {
        SlotState::ALL.get(raw as usize).copied()
    }

    /// Is it the slot in the chain of its segment?
    pub fn is_used(self) -> bool {
        matches!(self, SlotState::Open | SlotState::Full | SlotState::Cleaning)
    }
}

/// A slot, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub sequence: u64,
    pub live: u32,
    pub state: SlotState,
    /// A write to it failed: it is bad once no block in it is live.
    pub failed: bool,
    /// The head that filled it.
    pub head: u8,
    /// The code of its [`Class`](crate::storage_class::Class).
    pub class: u8,
    /// For a replica: it is being made, or its maker died.
    pub partial: bool,
    /// The highest priority of the files in it, when it was written: 0 low to 2 high.
    pub priority: u8,
    pub stamp: u64,
    pub next: Option<u32>,
    /// Blocks that are taken.
    pub used: u32,
    pub parts: u32,
    /// The next of its replicas.
    pub replica: Option<u32>,
    /// For a lazy segment: when its replicas are to be made, in seconds since 1970.
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

pub(crate) fn slot_in(word: u64) -> Option<u32> {
    (word as u32).checked_sub(1)
}

pub(super) fn slot_word(slot: Option<u32>) -> u64 {
    slot.map_or(0, |slot| u64::from(slot) + 1)
}

impl Segment {
    pub const FREE: Segment = Segment {
        sequence: 0,
        live: 0,
        state: SlotState::Free,
        failed: false,
        head: 0,
        class: 0,
        partial: false,
        priority: 0,
        stamp: 0,
        next: None,
        used: 0,
        parts: 0,
        replica: None,
        due: 0,
    };

    pub(super) fn from_raw(words: [u64; 4]) -> Result<Segment> {
        let [state, stamp, link, replicas] = words;
        let damaged = || Error::Corrupt(format!("a segment of the log has the state {state:#x}"));
        let class = bits(state, CLASS_AT, 4) as u8;
        wanted_replicas(class).ok_or_else(damaged)?;
        Ok(Segment {
            sequence: bits(state, 0, LIVE_AT),
            live: bits(state, LIVE_AT, STATE_AT - LIVE_AT) as u32,
            state: SlotState::from_raw(bits(state, STATE_AT, 4)).ok_or_else(damaged)?,
            failed: bits(state, FAILED_AT, 1) == 1,
            head: bits(state, HEAD_AT, 2) as u8,
            class,
            partial: bits(state, PARTIAL_AT, 1) == 1,
            priority: bits(state, PRIORITY_AT, 2) as u8,
            stamp,
            next: slot_in(link & u64::from(u32::MAX)),
            used: bits(link, 32, 16) as u32,
            parts: bits(link, 48, 16) as u32,
            replica: slot_in(replicas & u64::from(u32::MAX)),
            due: bits(replicas, 32, 32) as u32,
        })
    }

    /// As it is stored.
    pub fn to_raw(self) -> [u64; 4] {
        let state = SlotState::ALL.iter().position(|state| *state == self.state).unwrap_or(0) as u64;
        let flags = u64::from(self.failed) << FAILED_AT
            | u64::from(self.head) << HEAD_AT
            | u64::from(self.class) << CLASS_AT
            | u64::from(self.partial) << PARTIAL_AT
            | u64::from(self.priority) << PRIORITY_AT;
        let word = self.sequence | u64::from(self.live) << LIVE_AT | state << STATE_AT | flags;
        let link = slot_word(self.next) | u64::from(self.used) << 32 | u64::from(self.parts) << 48;
        [word, self.stamp, link, slot_word(self.replica) | u64::from(self.due) << 32]
    }

    /// Replicas that it is to have in the end.
    pub fn wanted(&self) -> u32 {
        wanted_replicas(self.class).unwrap_or(1)
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
            state: SlotState::Bad,
            failed: true,
            head: 1,
            class: 5,
            partial: true,
            priority: 2,
            stamp: u64::MAX,
            next: Some(u32::MAX - 2),
            used: 2048,
            parts: 1024,
            replica: Some(u32::MAX - 2),
            due: u32::MAX,
        };
        assert_eq!(Segment::from_raw(segment.to_raw()).expect("it is whole"), segment);
        assert_eq!(Segment::from_raw([0; 4]).expect("zeros are free"), Segment::FREE);
        assert!(Segment::from_raw([10 << 48, 0, 0, 0]).is_err());
        assert!(Segment::from_raw([6 << 55, 0, 0, 0]).is_err(), "there is no such class");
    }
}
