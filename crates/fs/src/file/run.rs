//! A stretch of a file, and where it lies.

use ilfs::Place;

/// A stretch of a file that lies in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Where it begins in the file, and how many bytes it has.
    pub off: u64,
    pub len: u64,
    pub at: Where,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// Nowhere: it reads as zeros.
    Hole,
    /// Nowhere yet, but it has memory.
    Reserved,
    /// In the memory, from this offset on.
    Memory(u64),
    /// In a page at this place.
    Disk(Place),
    /// In compressed content.
    Compressed,
}

impl Where {
    pub(super) fn is_hole(self) -> bool {
        matches!(self, Where::Hole | Where::Reserved)
    }
}
