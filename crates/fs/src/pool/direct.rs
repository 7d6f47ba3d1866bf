//! A log file of the copy, written past the page cache.
//!
//! Records are whole sectors but seldom whole pages. Through the page cache the host would read the rest of a page
//! first, unless it has it still, and a flush would look for what it has to write: some 20 us more of an `fsync` that
//! takes 100, and a read of the disk once the log has left the cache. Where the host's file system, or a disk of
//! larger sectors, refuses, the page cache it is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use pram::log::{Disk, SECTOR};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// What any disk can take bytes from.
const ALIGNED: usize = 4096;

/// A file, and another hold on it that passes the page cache.
pub struct Direct {
    file: File,
    past: Option<File>,
    /// Writing past the cache was refused.
    refused: AtomicBool,
    /// Where what is written is aligned.
    buffer: Mutex<Vec<u8>>,
}

impl Direct {
    /// `file` is what lies at `path`.
    pub fn over(file: File, path: &Path) -> Direct {
        let past = OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).ok();
        Direct { file, past, refused: AtomicBool::new(false), buffer: Mutex::default() }
    }

    /// Writes past the cache; false if that cannot be done here.
    fn write_past(&self, bytes: &[u8], at: u64) -> io::Result<bool> {
        let fits = bytes.len() as u64 % SECTOR == 0 && at % SECTOR == 0;
        let Some(past) = self.past.as_ref().filter(|_| fits && !self.refused.load(Ordering::Relaxed)) else {
            return Ok(false);
        };
        let mut buffer = self.buffer.lock().unwrap_or_else(|e| e.into_inner());
        buffer.resize(bytes.len() + ALIGNED, 0);
        let start = buffer.as_ptr().align_offset(ALIGNED);
        let aligned = buffer.get_mut(start..start + bytes.len()).ok_or(Errno::INVAL)?;
        aligned.copy_from_slice(bytes);
        match FileExt::write_all_at(past, aligned, at) {
            Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                self.refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
            done => done.map(|()| true),
        }
    }
}

impl Disk for Direct {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(&self.file, buf, at)
    }

    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.write_past(bytes, at)? {
            return Ok(());
        }
        FileExt::write_all_at(&self.file, bytes, at)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_either_way_reads_back() {
        let dir = tempfile::tempdir_in(".").expect("a directory");
        let path = dir.path().join("log");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a file");
        let disk = Direct::over(file, &path);
        let (head, record) = ([1u8; 80], vec![2u8; 3 * SECTOR as usize]);
        disk.write_all_at(&head, 0).expect("through the cache");
        disk.write_all_at(&record, SECTOR).expect("past it");
        disk.write_all_at(&record[..512], 9 * SECTOR).expect("behind a hole");
        disk.flush().expect("a flush");
        let mut found = vec![0; 10 * SECTOR as usize];
        disk.read_exact_at(&mut found, 0).expect("it is there");
        assert_eq!(&found[..80], head);
        assert_eq!(&found[512..512 + record.len()], record);
        assert!(found[4 * 512..9 * 512].iter().all(|b| *b == 0));
        assert_eq!(&found[9 * 512..], &record[..512]);
    }
}
