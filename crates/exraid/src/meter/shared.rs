//! The common measurements of all processes that have a region open: the words of its meters in a file that all of them
//! have mapped, and a slot in them for each process, which a lock reserves.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::sys::shared::{is_excluded, lock, Lock, Words};

/// The region's own meter, and one for each member.
const METERS: u64 = 33;
/// Words of a meter: two pages. The last word of each page is unused ([`Words::of`]).
pub const WORDS: usize = 1024;
/// The most processes with a slot: a mask has a bit for each.
pub const PROCESSES: usize = 16;
const METER: u64 = (WORDS * size_of::<AtomicU64>()) as u64;
/// Bytes of the meters of a region.
pub const BYTES: u64 = METERS * METER;

/// The place of a region's meters in the file.
#[derive(Clone, Copy)]
pub struct Place {
    pub number: u32,
    /// The lock on slot 0; the others follow.
    pub locks: u64,
    /// None: outside the file.
    pub words: Option<u64>,
}

/// The meters of a region, for one of the processes that have it open.
pub struct Meters {
    file: Arc<File>,
    at: Place,
    /// The slot of this process; none in one that only looks.
    slot: Option<usize>,
    /// No other process had the region open when this one came.
    is_alone: bool,
    /// A bit for each meter that this process uses.
    attached: AtomicU64,
}

impl Drop for Meters {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            // Fails only for an impossible range.
            let _ = lock(&self.file, &self.range(slot), Lock::None);
        }
    }
}

impl Meters {
    /// For a process that measures; `is_alone`: no other has the region open. None if others have all slots.
    pub fn join(file: &Arc<File>, at: Place, is_alone: bool) -> io::Result<Option<Meters>> {
        let mut meters = Meters::look(file, at);
        for slot in 0..PROCESSES {
            if lock(file, &meters.range(slot), Lock::Exclusive)? {
                (meters.slot, meters.is_alone) = (Some(slot), is_alone);
                return Ok(Some(meters));
            }
        }
        Ok(None)
    }

    /// For a process that only looks at others' measurements.
    pub fn look(file: &Arc<File>, at: Place) -> Meters {
        Meters { file: file.clone(), at, slot: None, is_alone: false, attached: AtomicU64::new(0) }
    }

    /// Whether this is the process's first use of a meter.
    pub fn begins(&self, which: usize) -> bool {
        self.attached.fetch_or(1 << which, Ordering::SeqCst) & 1 << which == 0
    }

    fn range(&self, slot: usize) -> Range<u64> {
        let at = self.at.locks + slot as u64;
        at..at + 1
    }

    /// The words of one of the meters.
    pub fn words(&self, which: usize) -> io::Result<Words> {
        let words = self.at.words.filter(|_| (which as u64) < METERS);
        let none = || io::Error::other(format!("region {}: there is no meter {which}", self.at.number));
        Words::of(&self.file, words.ok_or_else(none)? + which as u64 * METER, WORDS)
    }

    pub fn slot(&self) -> Option<usize> {
        self.slot
    }

    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Is there a process with that slot? True also where the kernel does not tell.
    pub fn is_alive(&self, slot: usize) -> bool {
        is_excluded(&self.file, &self.range(slot), Lock::Exclusive).unwrap_or(true)
    }
}
