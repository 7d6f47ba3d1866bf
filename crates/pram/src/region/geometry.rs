//! Where the parts of a region lie: a function of its size alone.

use crate::error::{Error, Result};
use crate::heap::SegEntry;
use crate::off::Off;

/// Bytes per segment, the unit in which the heap takes memory.
pub const SEGMENT: u64 = 64 << 10;
/// Smallest region.
pub const MIN_SIZE: u64 = 1 << 20;
/// Largest region: offsets have 47 bits, which leaves 17 for whoever packs them.
pub const MAX_SIZE: u64 = 1 << 47;
/// Number of root words.
pub const ROOTS: u64 = 1024;
/// The root word that says whether the last process left properly: 0 closed, 1 open.
pub(crate) const OPEN_ROOT: u64 = ROOTS - 1;
/// The root word that names the commit which the copy on disk was of when the region was closed, with nothing changed
/// since; else 0.
pub(crate) const COPY_ROOT: u64 = ROOTS - 2;
/// The root word that counts the commits to the copy which have been begun.
pub(super) const BEGUN_ROOT: u64 = ROOTS - 3;
/// The root word that says which copy that is, by its lineage, and in its upper half how its last record ends.
pub(crate) const LINEAGE_ROOT: u64 = ROOTS - 4;

const PAGE: u64 = 4096;
pub(super) const HEADER_AT: [u64; 2] = [0, PAGE];
/// Bytes that the two copies of the header take.
pub const HEADERS: usize = 2 * PAGE as usize;
pub(super) const ROOTS_AT: u64 = HEADERS as u64;
pub(super) const SLOTS_AT: u64 = ROOTS_AT + ROOTS * 8;
/// Bytes per transaction slot: header word and undo log.
pub const SLOT: u64 = 32 << 10;
pub(super) const MAX_SLOTS: u64 = 64;

/// Where the parts of a region of some size lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub size: u64,
    pub slots: u64,
    /// Offset of the segment table.
    pub table: u64,
    /// Offset of the first segment.
    pub first: u64,
    pub segments: u64,
}

impl Geometry {
    /// The geometry of a region of `size` bytes, rounded down to whole segments.
    pub fn of(size: u64) -> Result<Geometry> {
        if size < MIN_SIZE {
            return Err(Error::Unusable(format!(
                "{size} bytes are too few for persistent RAM: give at least {} KiB",
                MIN_SIZE >> 10
            )));
        }
        if size > MAX_SIZE {
            return Err(Error::Unusable(format!("{size} bytes are more than the {} TiB supported", MAX_SIZE >> 40)));
        }
        let slots = (size / (512 << 10)).clamp(2, MAX_SLOTS);
        let table = SLOTS_AT + slots * SLOT;
        let room = (size - table) / (SEGMENT + size_of::<SegEntry>() as u64);
        let first = (table + room * size_of::<SegEntry>() as u64).next_multiple_of(SEGMENT);
        // Never more than the table has entries for, also where rounding left a segment over.
        let segments = ((size - first) / SEGMENT).min(room);
        Ok(Geometry { size, slots, table, first, segments })
    }

    pub fn slot(&self, n: u32) -> u64 {
        SLOTS_AT + u64::from(n) * SLOT
    }

    /// Offset of segment `n`.
    pub fn segment(&self, n: u64) -> u64 {
        self.first + n * SEGMENT
    }

    /// The segment that holds `off`, if any does.
    #[inline(always)]
    pub fn segment_of(&self, off: u64) -> Option<u64> {
        let n = off.checked_sub(self.first)? / SEGMENT;
        (n < self.segments).then_some(n)
    }

    pub fn entry(&self, segment: u64) -> Off<SegEntry> {
        Off::<SegEntry>::new(self.table).index(segment)
    }
}
