//! Where the parts of a memory lie: no position depends on the memory's size, so a memory that grows moves
//! nothing.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};
use crate::off::Off;

/// Bytes per chunk, the unit in which the heap divides memory.
pub const CHUNK: u64 = 64 << 10;
pub use crate::mem::GROUP;
/// Chunks of a group.
pub const PER_GROUP: u64 = GROUP / CHUNK;
/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Blocks of a chunk.
pub const PER_CHUNK: u64 = CHUNK / BLOCK;
/// Smallest memory.
pub const MIN_SIZE: u64 = 1 << 20;
/// Largest memory: offsets have 47 bits, which leaves 17 of a word for other values.
pub const MAX_SIZE: u64 = 1 << 47;
/// Number of root words.
pub const ROOTS: u64 = 1024;
/// The root word that says whether the last process left properly: 0 closed, 1 open.
pub const OPEN_ROOT: u64 = ROOTS - 1;
/// The root word with the backing's last commit, if nothing has changed since the memory was closed with it;
/// else 0.
pub const BACKING_ROOT: u64 = ROOTS - 2;
/// The root word with the number of the last commit to the backing that was begun.
pub(super) const BEGUN_ROOT: u64 = ROOTS - 3;
/// The root word with the lineage of the backing, and in its upper half the checksum of the backing's last record.
pub const LINEAGE_ROOT: u64 = ROOTS - 4;
/// The root word with the running epoch.
pub const EPOCH_ROOT: u64 = ROOTS - 5;
/// The root word with the epoch that was running in the source that the memory was made from; 0: the memory was never
/// lost.
pub const RECOVERED_ROOT: u64 = ROOTS - 6;
/// The root word with the number of groups that have been begun, and in its upper half the complement of that.
pub const GROUPS_ROOT: u64 = ROOTS - 7;

const PAGE: u64 = 4096;
pub(super) const HEADER_AT: [u64; 2] = [0, PAGE];
/// Bytes that the two copies of the header take.
pub const HEADERS: usize = 2 * PAGE as usize;
pub(super) const ROOTS_AT: u64 = HEADERS as u64;
/// Where in each group its part of the chunk table is.
pub const TABLE_AT: u64 = ROOTS_AT + ROOTS * 8;
/// Bytes of a group's part of the chunk table.
pub const TABLE: u64 = PER_GROUP * size_of::<ChunkEntry>() as u64;
pub(super) const SLOTS_AT: u64 = TABLE_AT + TABLE;
/// Bytes per transaction slot: header word and undo log.
pub const SLOT: u64 = 32 << 10;
pub(super) const MAX_SLOTS: u64 = 64;
// In every group but the first, all chunks but the first one belong to the heap.
const _: () = assert!(SLOTS_AT <= CHUNK && GROUP % CHUNK == 0);

/// An entry of the chunk table.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChunkEntry {
    /// State (8 bits), tag (8), class (16), length (32): see [`Meta`](super::Meta).
    meta: u64,
    /// Taken objects, for classes with at most 64 objects to a chunk. Of blocks: which are taken, and where their table
    /// is, see `blocks`. Else unused.
    bits: u64,
}
const _: () = assert!(size_of::<ChunkEntry>() == 16);

/// Where the parts of a memory lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Transaction slots: chosen when the memory is made.
    pub slots: u64,
    /// The first chunk of the heap; in every other group it is the second one.
    pub first: u64,
}

impl Geometry {
    /// The geometry of a new memory of `size` bytes.
    pub fn of(size: u64) -> Result<Geometry> {
        check_size(size)?;
        Geometry::with((size / (512 << 10)).clamp(2, MAX_SLOTS))
    }

    /// The geometry of a memory with so many slots.
    pub(super) fn with(slots: u64) -> Result<Geometry> {
        if !(1..=MAX_SLOTS).contains(&slots) {
            return Err(Error::Unusable(format!("the memory's header says that it has {slots} slots: it is damaged")));
        }
        Ok(Geometry { slots, first: (SLOTS_AT + slots * SLOT).div_ceil(CHUNK) })
    }

    pub fn slot(&self, n: u32) -> u64 {
        SLOTS_AT + u64::from(n) * SLOT
    }

    /// The slots: undo logs, which no backing holds.
    pub fn undo_logs(&self) -> Range<u64> {
        SLOTS_AT..SLOTS_AT + self.slots * SLOT
    }

    /// Offset of the heap's first chunk.
    pub fn heap(&self) -> u64 {
        self.chunk(self.first)
    }

    /// Offset of chunk `n`.
    #[inline(always)]
    pub fn chunk(&self, n: u64) -> u64 {
        n * CHUNK
    }

    /// The number of the chunk that holds `off`, whether it exists or not.
    #[inline(always)]
    pub fn chunk_of(&self, off: u64) -> u64 {
        off / CHUNK
    }

    /// Where the entry of chunk `n` is.
    #[inline(always)]
    pub fn entry(&self, n: u64) -> Off<ChunkEntry> {
        Off::<ChunkEntry>::new(n / PER_GROUP * GROUP + TABLE_AT).index(n % PER_GROUP)
    }

    /// Is chunk `n` the heap's, and not taken by headers, slots and tables?
    #[inline]
    pub fn is_heap(&self, n: u64) -> bool {
        n >= self.first && n % PER_GROUP != 0
    }

    /// Chunks of the heap in the first `size` bytes.
    pub fn heap_chunks(&self, size: u64) -> u64 {
        let chunks = size / CHUNK;
        // The division counts one chunk of the first group too.
        chunks.saturating_sub(chunks.div_ceil(PER_GROUP)).saturating_sub(self.first - 1)
    }

    /// Groups that a memory of `size` bytes can have: one that has room for its table and a chunk.
    pub fn groups(&self, size: u64) -> u64 {
        match size % GROUP >= 2 * CHUNK {
            true => size / GROUP + 1,
            false => size / GROUP,
        }
    }

    /// The part of group `n` that must have memory before any of its chunks is used.
    pub fn head(&self, n: u64) -> Range<u64> {
        match n {
            0 => 0..self.heap(),
            n => n * GROUP..n * GROUP + TABLE_AT + TABLE,
        }
    }
}

/// Fails unless a memory can have `size` bytes.
pub fn check_size(size: u64) -> Result<()> {
    if size < MIN_SIZE {
        return Err(Error::Unusable(format!(
            "{size} bytes are too few for persistent RAM: give at least {} KiB",
            MIN_SIZE >> 10
        )));
    }
    if size > MAX_SIZE {
        return Err(Error::Unusable(format!("{size} bytes are more than the {} TiB supported", MAX_SIZE >> 40)));
    }
    Ok(())
}

/// The word that says that `n` groups have been begun.
pub(super) fn groups_word(n: u64) -> u64 {
    n | (!n) << 32
}

/// The groups that such a word says have been begun, unless it is damaged.
pub(super) fn groups_in(word: u64) -> Option<u64> {
    let n = word & u64::from(u32::MAX);
    (n > 0 && groups_word(n) == word).then_some(n)
}
