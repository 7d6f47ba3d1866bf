//! The unavoidable parts of durability through a mount, each by itself: a write to the disk with its flush, and a
//! message from the kernel to a server. Measured in the same rounds as the operations that consist of them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::prelude::*;

/// The names in the tables.
pub const FLUSH: &str = "a write and its flush alone";
pub const MESSAGE: &str = "a message alone";

/// The least write of disks, and the alignment of a write past the page cache.
const BLOCK: usize = 4096;
/// Blocks of the file, which are written in turn.
const BLOCKS: usize = 1024;

/// A file whose blocks are all allocated on the disk, so that a write changes nothing else.
pub struct Written {
    file: File,
    /// Contains one aligned block.
    data: Vec<u8>,
    next: usize,
}

impl Written {
    /// Makes it in a directory without a file of this name, and leaves no name there.
    pub fn make(dir: &Path) -> Result<Written, Error> {
        let path = dir.join("limits");
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let open = |more| rustix::fs::open(&path, flags | more, Mode::RUSR | Mode::WUSR);
        // Not every file system supports writes past its page cache.
        let file = open(OFlags::DIRECT).or_else(|_| open(OFlags::empty()))?;
        let mut written = Written { file: file.into(), data: vec![0x5a; 2 * BLOCK], next: 0 };
        std::fs::remove_file(&path).map_err(Error::file(&path))?;
        (0..BLOCKS).try_for_each(|_| written.write())?;
        written.flush()?;
        Ok(written)
    }

    /// Writes blocks and has each flushed; returns microseconds for one.
    pub fn round(&mut self, count: usize) -> Result<f64, Error> {
        let start = now();
        for _ in 0..count {
            self.write()?;
            self.flush()?;
        }
        Ok(us_per_op(start, count))
    }

    fn write(&mut self) -> Result<(), Error> {
        let skipped = self.data.as_ptr().align_offset(BLOCK);
        let at = self.next % BLOCKS * BLOCK;
        self.next += 1;
        self.file
            .write_all_at(&self.data[skipped..skipped + BLOCK], at as u64)
            .map_err(Error::io("a write to the disk"))
    }

    fn flush(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(Error::io("a flush of the disk"))
    }
}

/// Asks the file system at `dir` for its usage, which no kernel caches; returns microseconds for one answer.
pub fn messages(dir: &Path, count: usize) -> Result<f64, Error> {
    let dir = File::open(dir).map_err(Error::file(dir))?;
    let start = now();
    for _ in 0..count {
        rustix::fs::fstatfs(&dir)?;
    }
    Ok(us_per_op(start, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_written_in_turn_and_no_file_is_left() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut written = Written::make(dir.path()).expect("a file");
        assert!(written.round(3).expect("three blocks") > 0.0);
        let len = written.file.metadata().expect("it is open").len();
        assert_eq!((len, written.next), ((BLOCKS * BLOCK) as u64, BLOCKS + 3));
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
        assert!(messages(dir.path(), 3).expect("three answers") > 0.0);
    }
}
