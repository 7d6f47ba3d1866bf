//! How a memory stands to its backing: root words of which the backing knows nothing.

use std::sync::atomic::Ordering;

use super::geometry::{BACKING_ROOT, BEGUN_ROOT, LINEAGE_ROOT};
use super::Memory;
use crate::error::Result;

/// How a memory stands to the backing that it was used with last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingPosition {
    /// The commit that the backing ended with when the memory was closed, if that held all of it.
    pub closed: u64,
    /// The last commit that was begun: a backing that has more was written by another memory, or by a newer state of this
    /// one. 0 if nobody knows.
    pub begun: u64,
    /// Of the backing.
    pub lineage: u32,
    /// The checksum of the backing's last record when the memory was closed.
    pub tail: u32,
}

impl Memory {
    /// From here on the memory is not what a backing holds.
    pub(crate) fn forget_backing(&self) -> Result<()> {
        self.note(BACKING_ROOT, 0)
    }

    /// How the memory stands to its backing.
    pub fn backing_position(&self) -> Result<BackingPosition> {
        let word = |n| self.load(self.root(n));
        let lineage = word(LINEAGE_ROOT)?;
        let (lineage, tail) = (lineage as u32, (lineage >> 32) as u32);
        Ok(BackingPosition { closed: word(BACKING_ROOT)?, begun: word(BEGUN_ROOT)?, lineage, tail })
    }

    /// Notes it. 1. All but whether it was closed. 2. That.
    pub fn note_backing_position(&self, s: BackingPosition) -> Result<()> {
        self.note(LINEAGE_ROOT, u64::from(s.tail) << 32 | u64::from(s.lineage))?;
        self.note_begun(s.begun)?;
        self.note(BACKING_ROOT, s.closed)
    }

    /// A commit to the backing begins.
    pub fn note_begun(&self, commit: u64) -> Result<()> {
        self.note(BEGUN_ROOT, commit)
    }

    /// Changes a word of which the backing knows nothing.
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
