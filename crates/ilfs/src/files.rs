//! What the log asks files when it moves, copies or verifies content: whose a block is, and what has become of it.

use exraid::Buffers;

use super::error::Result;
use super::part::Owner;
use super::place::Place;
use super::sorted::Kind;

/// What has become of a block.
#[derive(Clone, Debug)]
pub enum Fate {
    /// Nothing leads to this place.
    Dead,
    Live,
    /// Something does, and memory has a newer version that is committed and has no place yet: that is written instead. The
    /// number comes again when it has been, which distinguishes it from what was written since.
    Newer(Buffers, u64),
}

/// A block that has a new place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub owner: Owner,
    pub from: Place,
    pub to: Place,
    /// The number that came with a newer version; none: what lies at `from`.
    pub newer: Option<u64>,
}

/// What the log has to know of files. It waits for nothing when it asks.
pub trait Files {
    /// What has become of the block that was written for this owner, and lies here.
    fn fate(&self, owner: Owner, place: Place) -> Result<Fate>;

    /// Lets what leads to the old places, where it still does, lead to the new ones, and unlinks the old ones
    /// ([`Log::unlink`](super::Log::unlink)) in the same transactions; which of them it did.
    fn relocate(&self, moves: &[Move]) -> Result<Vec<bool>>;

    /// These cannot be read where they lie. What memory holds of them gives up its place, and is written anew in time; which.
    fn redirty(&self, blocks: &[(Owner, Place)]) -> Result<Vec<bool>>;

    /// How the file of this owner is to lie, of which a block lies here, and its priority.
    fn kind(&self, owner: Owner, place: Place) -> Result<Kind>;

    /// The running epoch: what is changed now belongs to its commit. Called within an operation.
    fn epoch(&self) -> u64;
}
