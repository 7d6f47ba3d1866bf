//! The position of a memory relative to its backing: root words that the backing does not hold.

use std::sync::atomic::Ordering;

use super::geometry::{BACKING_ROOT, BEGUN_ROOT, LINEAGE_ROOT};
use super::Memory;
use crate::error::Result;

/// The position of a memory relative to the backing that it was used with last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingPosition {
    /// The commit that the backing ended with when the memory was closed, if that held all of it.
    pub closed: u64,
    /// The last commit that was begun: a backing with a later one was written by another memory, or by a newer state of
    /// this one. 0 if unknown.
    pub begun: u64,
    /// The lineage of the backing.
    pub lineage: u32,
    /// The checksum of the backing's last record when the memory was closed.
    pub tail: u32,
}

impl Memory {
    /// Notes that from now on the memory differs from its backing.
    pub(crate) fn forget_backing(&self) -> Result<()> {
        self.note(BACKING_ROOT, 0)
    }

    /// The position of the memory relative to its backing.
    pub fn backing_position(&self) -> Result<BackingPosition> {
        let word = |n| self.load(self.root(n));
        let lineage = word(LINEAGE_ROOT)?;
        let (lineage, tail) = (lineage as u32, (lineage >> 32) as u32);
        Ok(BackingPosition { closed: word(BACKING_ROOT)?, begun: word(BEGUN_ROOT)?, lineage, tail })
    }

    /// Notes the position: 1. everything but `closed`; 2. `closed`.
    pub fn note_backing_position(&self, s: BackingPosition) -> Result<()> {
        self.note(LINEAGE_ROOT, u64::from(s.tail) << 32 | u64::from(s.lineage))?;
        self.note_begun(s.begun)?;
        self.note(BACKING_ROOT, s.closed)
    }

    /// Notes that a commit to the backing begins.
    pub fn note_begun(&self, commit: u64) -> Result<()> {
        self.note(BEGUN_ROOT, commit)
    }

    /// Changes a word that the backing does not hold.
    fn note(&self, root: u64, value: u64) -> Result<()> {
        let word = self.root(root);
        let at = self.map.atomic64(word.raw())?;
        if at.load(Ordering::Acquire) != value {
            at.store(value, Ordering::Release);
            self.tell(word.raw(), &value.to_le_bytes());
            self.persist(word.raw(), 8);
        }
        Ok(())
    }
}
