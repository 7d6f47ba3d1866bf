//! The log's questions to files when it moves, copies or verifies content: the owner of a block, and whether it is live.

use exraid::Buffers;

use super::error::Result;
use super::part::Owner;
use super::place::Place;
use super::sorted::Kind;

/// The state of a block.
#[derive(Clone, Debug)]
pub enum Fate {
    /// No mapping leads to this place.
    Dead,
    Live,
    /// A mapping does, but memory has a newer version that is committed and has no place yet: that is written instead.
    /// The number comes back in [`Move::newer`], and distinguishes that version from later ones.
    Newer(Buffers, u64),
}

/// A block that has a new place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub owner: Owner,
    pub from: Place,
    pub to: Place,
    /// The number of the newer version that was written; `None`: the block at `from` was.
    pub newer: Option<u64>,
}

/// The interface of files to the log. The log calls it without holding a lock, except [`epoch`](Files::epoch).
pub trait Files {
    /// The state of the block that was written for this owner at this place.
    fn fate(&self, owner: Owner, place: Place) -> Result<Fate>;

    /// Replaces old places in mappings by new ones, where the mappings still have the old, and unlinks the old ones
    /// ([`Log::unlink`](super::Log::unlink)) in the same transactions. Returns which it replaced.
    fn relocate(&self, moves: &[Move]) -> Result<Vec<bool>>;

    /// For blocks that cannot be read at these places: those that memory holds lose their place, and are written anew in
    /// time. Returns which.
    fn redirty(&self, blocks: &[(Owner, Place)]) -> Result<Vec<bool>>;

    /// How the file of this owner is to lie, and its priority.
    fn kind(&self, owner: Owner, place: Place) -> Result<Kind>;

    /// The running epoch, to whose commit a change made now belongs. Called within an operation.
    fn epoch(&self) -> u64;
}
