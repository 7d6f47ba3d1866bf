//! What all processes that have a region open measure together: the words of its meters in a file that all of them have mapped, and
//! a slot in them for each process, which a lock keeps.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::sys::shared::{is_excluded, lock, Lock, Words};

/// A region has a meter of its own, and one for each member.
const METERS: u64 = 33;
/// Words of a meter: two pages. The last one of each page is nobody's ([`Words::of`]).
pub const WORDS: usize = 1024;
/// Processes that have a bit of their own: those of the mask of who has requests under way.
pub const PROCESSES: usize = 16;
const METER: u64 = (WORDS * size_of::<AtomicU64>()) as u64;
/// Bytes of the meters of a region.
pub const BYTES: u64 = METERS * METER;

/// Where the meters of a region are in the file.
#[derive(Clone, Copy)]
pub struct Place {
    pub number: u32,
    /// The lock on slot 0; the others follow.
    pub locks: u64,
    /// None: the file has no room for them.
    pub words: Option<u64>,
}

/// What is measured of a region, by one of the processes that have it open.
pub struct Meters {
    file: Arc<File>,
    at: Place,
    /// That of this process; none for one who only looks.
    slot: Option<usize>,
    /// Nobody else had the region open when this one came.
    is_alone: bool,
    /// A bit for each meter that is in use here.
    attached: AtomicU64,
}

impl Drop for Meters {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            // Fails only for a range that cannot be.
            let _ = lock(&self.file, &self.range(slot), Lock::None);
        }
    }
}

impl Meters {
    /// For one who measures; `is_alone`: nobody else has the region open. None where all slots are others'.
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

    /// For one who only looks at what others have measured.
    pub fn look(file: &Arc<File>, at: Place) -> Meters {
        Meters { file: file.clone(), at, slot: None, is_alone: false, attached: AtomicU64::new(0) }
    }

    /// Does this process begin to use a meter? Not where it has had it for a while.
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

    /// Does a process have that slot? Where the kernel does not tell, it does.
    pub fn is_alive(&self, slot: usize) -> bool {
        is_excluded(&self.file, &self.range(slot), Lock::Exclusive).unwrap_or(true)
    }
}
