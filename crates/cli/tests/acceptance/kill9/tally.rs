//! The number of operations acknowledged to a writer, stored where it survives the writer: in a file, or, if the whole
//! machine is to end, on a device that outlives it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Each count has a page of its own, so that writers do not share one.
const SLOT: u64 = 4096;

pub struct Tally {
    file: File,
    slot: u64,
    count: u64,
}

impl Tally {
    /// Starts the count in `slot` of the file or device `path` at 0.
    pub fn start(path: &Path, slot: u64) -> io::Result<Tally> {
        let device = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
        // A count must be on the device before the next operation begins.
        let flags = if device { rustix::fs::OFlags::DSYNC.bits() as i32 } else { 0 };
        let file = File::options().write(true).create(!device).truncate(false).custom_flags(flags).open(path)?;
        let tally = Tally { file, slot, count: 0 };
        tally.write()?;
        Ok(tally)
    }

    /// Adds one.
    pub fn add(&mut self) -> io::Result<()> {
        self.count += 1;
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        self.file.write_all_at(&self.count.to_le_bytes(), self.slot * SLOT)
    }

    /// Changes the count in `slot`, to plant a false one.
    pub fn set(path: &Path, slot: u64, count: u64) {
        let mut tally = Tally::start(path, slot).expect("a file of counts");
        tally.count = count;
        tally.write().expect("a count");
    }

    /// The count in `slot`; 0 if nothing has been counted.
    pub fn read(path: &Path, slot: u64) -> u64 {
        let mut count = [0; 8];
        let read = File::open(path).and_then(|file| file.read_exact_at(&mut count, slot * SLOT));
        read.map_or(0, |()| u64::from_le_bytes(count))
    }
}
