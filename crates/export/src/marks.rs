//! The intent map: stretches that were being written, so that copies, or content and parity, may differ there after a
//! power cut.
//!
//! It is a file in the volume's directory: a page, and a bit for each stretch.
//!
//! | step | what | else, after a power cut |
//! | --- | --- | --- |
//! | 1 | the bit of a stretch is set; durable | step 2 is cut short, and it is unknown that the copies differ |
//! | 2 | the stretch is written | |
//! | 3 | a while after the last write there: a flush of all regions | |
//! | 4 | the bit is cleared, without a flush of the file | a resync of equal copies |
//!
//! An unreadable file, or one of another volume, counts as all bits set.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use exraid::Uuid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};

/// The file's name.
pub const MARKS: &str = "marks";
const MAGIC: u64 = u64::from_le_bytes(*b"CQSTMRKS");
const PAGE: usize = 4096;
/// The least bytes of a stretch.
const STRETCH: u64 = 32 << 20;
/// The most stretches.
const MOST: u64 = 1 << 20;

/// The head of the file.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: u64,
    uuid: [u8; 16],
    size: u64,
    stretch: u64,
    crc: u32,
    reserved: u32,
}

impl Head {
    fn new(uuid: Uuid, size: u64) -> Head {
        let stretch = size.div_ceil(MOST).max(STRETCH).next_power_of_two();
        let head = Head { magic: MAGIC, uuid: uuid.0, size, stretch, crc: 0, reserved: 0 };
        Head { crc: crc32c::crc32c(head.as_bytes()), ..head }
    }
}

/// The intent map of a volume.
pub struct Marks {
    path: PathBuf,
    file: File,
    size: u64,
    stretch: u64,
    state: Mutex<State>,
}

struct State {
    bits: Vec<u8>,
    /// The marked stretches.
    used: BTreeMap<u64, Use>,
}

#[derive(Clone, Copy, Default)]
struct Use {
    /// Writes under way.
    writing: u32,
    /// A write has begun since the last look.
    lately: bool,
}

/// A write under way.
pub struct Marked<'a> {
    marks: &'a Marks,
    stretches: Range<u64>,
}

impl Marks {
    /// Opens the map in `dir`; returns the stretches where the volume's copies may differ.
    pub fn open(dir: &Path, uuid: Uuid, size: u64) -> Result<(Marks, Vec<Range<u64>>)> {
        let path = dir.join(MARKS);
        let fail = |what| Error::host(&path, what);
        let mut how = File::options();
        let file = how.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(fail("opening it"))?;
        let head = Head::new(uuid, size);
        let count = size.div_ceil(head.stretch) as usize;
        let mut found = vec![0; PAGE + count.div_ceil(8).next_multiple_of(PAGE)];
        let is_whole = file.read_exact_at(&mut found, 0).is_ok()
            && Head::read_from_prefix(&found).is_ok_and(|(read, _)| read == head);
        let mut bits = found.split_off(PAGE);
        if !is_whole {
            bits.fill(0xff);
        }
        let differ = (0..count as u64).filter(|n| bits[(n / 8) as usize] & 1 << (n % 8) != 0);
        let differ = differ.map(|n| n * head.stretch..((n + 1) * head.stretch).min(size)).collect();
        if !is_whole {
            let mut page = vec![0; PAGE];
            page[..size_of::<Head>()].copy_from_slice(head.as_bytes());
            // The bits first: with an intact head before them the map would say that no copies differ.
            let written = file.write_all_at(&bits, PAGE as u64).and_then(|()| file.sync_all());
            let written = written.and_then(|()| file.write_all_at(&page, 0)).and_then(|()| file.sync_all());
            written.map_err(fail("writing it"))?;
        }
        let state = Mutex::new(State { bits, used: BTreeMap::new() });
        Ok((Marks { path, file, size, stretch: head.stretch, state }, differ))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stretches(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.stretch..range.end.min(self.size).div_ceil(self.stretch)
    }

    fn write(&self, state: &State, stretches: &Range<u64>) -> std::io::Result<()> {
        let bytes = (stretches.start / 8) as usize..(stretches.end.div_ceil(8)) as usize;
        self.file.write_all_at(&state.bits[bytes.clone()], (PAGE + bytes.start) as u64)
    }

    /// Marks a range before a write; durable when this returns.
    pub fn begin(&self, range: &Range<u64>) -> Result<Marked<'_>> {
        let stretches = self.stretches(range);
        let mut state = self.lock();
        let new: Vec<u64> = stretches.clone().filter(|n| state.bits[(n / 8) as usize] & 1 << (n % 8) == 0).collect();
        if !new.is_empty() {
            new.iter().for_each(|n| state.bits[(n / 8) as usize] |= 1 << (n % 8));
            let written = self.write(&state, &stretches).and_then(|()| self.file.sync_data());
            if let Err(e) = written {
                // So that the next write does not take them for durable.
                new.iter().for_each(|n| state.bits[(n / 8) as usize] &= !(1 << (n % 8)));
                return Err(Error::host(&self.path, "writing it")(e));
            }
        }
        for n in stretches.clone() {
            let used = state.used.entry(n).or_default();
            (used.writing, used.lately) = (used.writing + 1, true);
        }
        Ok(Marked { marks: self, stretches })
    }

    /// The stretches without a write since the last call. After a flush they can be [cleared](Self::clear).
    pub fn quiet(&self) -> Vec<u64> {
        let mut state = self.lock();
        let quiet = |used: &Use| used.writing == 0 && !used.lately;
        let found = state.used.iter().filter(|(_, used)| quiet(used)).map(|(n, _)| *n).collect();
        state.used.values_mut().for_each(|used| used.lately = false);
        found
    }

    /// Clears stretches whose writes before `quiet` was determined are durable.
    pub fn clear(&self, quiet: &[u64]) -> Result<()> {
        let mut state = self.lock();
        for n in quiet {
            if state.used.get(n).is_some_and(|used| used.writing == 0 && !used.lately) {
                state.used.remove(n);
                state.bits[(n / 8) as usize] &= !(1 << (n % 8));
                self.write(&state, &(*n..n + 1)).map_err(Error::host(&self.path, "writing it"))?;
            }
        }
        Ok(())
    }

    /// Clears all marks: the copies are equal, or no write came after the last flush. Durable.
    pub fn close(&self) -> Result<()> {
        let mut state = self.lock();
        if state.used.values().any(|used| used.writing > 0) {
            return Ok(());
        }
        state.used.clear();
        state.bits.fill(0);
        let written = self.file.write_all_at(&state.bits, PAGE as u64).and_then(|()| self.file.sync_data());
        written.map_err(Error::host(&self.path, "writing it"))
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        let mut state = self.marks.lock();
        for n in self.stretches.clone() {
            if let Some(used) = state.used.get_mut(&n) {
                (used.writing, used.lately) = (used.writing - 1, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 10 * STRETCH + 4096;

    fn open(dir: &Path) -> (Marks, Vec<Range<u64>>) {
        Marks::open(dir, Uuid([1; 16]), SIZE).expect("marks")
    }

    #[test]
    fn what_was_being_written_may_differ() {
        let dir = tempfile::tempdir().expect("a directory");
        let (marks, differ) = open(dir.path());
        assert_eq!(differ.len(), 11, "nobody knows yet");
        marks.close().expect("closed");
        let (marks, differ) = open(dir.path());
        assert!(differ.is_empty(), "{differ:?}");
        drop(marks.begin(&(STRETCH - 1..STRETCH + 1)).expect("marked"));
        let last = marks.begin(&(SIZE - 1..SIZE)).expect("marked");
        let all = [0..STRETCH, STRETCH..2 * STRETCH, 10 * STRETCH..SIZE];
        assert_eq!(open(dir.path()).1, all);
        assert!(marks.quiet().is_empty(), "written lately");
        assert_eq!(marks.quiet(), [0, 1]);
        drop(marks.begin(&(0..1)).expect("marked"));
        marks.clear(&[0, 1]).expect("cleared");
        assert_eq!(open(dir.path()).1, [0..STRETCH, 10 * STRETCH..SIZE], "one was written meanwhile");
        marks.close().expect("closed");
        assert_eq!(open(dir.path()).1.len(), 2, "something is under way");
        drop(last);
        marks.close().expect("closed");
        assert!(open(dir.path()).1.is_empty());
    }

    #[test]
    fn marks_that_are_not_whole_say_that_all_may_differ() {
        let dir = tempfile::tempdir().expect("a directory");
        open(dir.path()).0.close().expect("closed");
        assert_eq!(Marks::open(dir.path(), Uuid([2; 16]), SIZE).expect("marks").1.len(), 11, "another's");
        let (marks, _) = open(dir.path());
        marks.close().expect("closed");
        marks.file.set_len(PAGE as u64).expect("cut");
        assert_eq!(open(dir.path()).1.len(), 11);
    }
}
