//! A file of the backing that bypasses the page cache, where that gains something.
//!
//! *Writing to a log:* records are whole sectors but seldom whole pages. Through the page cache the host would read the
//! rest of a page first, unless the cache has it, and a flush would search for dirty pages: some 20 us more of an
//! `fsync` that takes 100, and a read of the disk once the log has left the cache.
//!
//! *Reading all of a file* after a power cut: several large reads at once keep the disk busy and cost the processor next
//! to nothing. The page cache takes half a second for each gigabyte, and memory that is not needed again.
//!
//! Where the host's file system, or a disk of larger sectors, refuses, the page cache is used. Both ways see the same
//! bytes: the host writes back its cache before it reads past it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use backing::aligned::{Aligned, ALIGNED};
use backing::log::{Disk, SECTOR};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Fewer bytes are read through the cache: they may be there, and their neighbours may be read next.
const LARGE: usize = 64 << 10;
/// Large reads that keep a disk busy.
const READS: usize = 4;

/// Whether writes bypass the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    Cached,
    Past,
}

/// A file, and another descriptor of it that bypasses the page cache.
pub struct DirectFile {
    file: File,
    path: PathBuf,
    past: Option<File>,
    /// Writing past the cache is not wanted, or was refused.
    cached: AtomicBool,
    /// Aligns the bytes to write.
    buffer: Mutex<Aligned>,
}

impl DirectFile {
    /// `file` is open at `path`.
    pub fn over(file: File, path: &Path, writes: Writes) -> DirectFile {
        let how = OFlags::DIRECT.bits() as i32;
        let past = OpenOptions::new().read(true).write(true).custom_flags(how).open(path).ok();
        DirectFile {
            file,
            path: path.into(),
            past,
            cached: AtomicBool::new(writes == Writes::Cached),
            buffer: Mutex::default(),
        }
    }

    /// Names the file that ends too early.
    fn cut_short(&self, e: io::Error) -> io::Error {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                let len = self.file.metadata().map_or(0, |found| found.len());
                io::Error::new(e.kind(), format!("{} is truncated: it has {len} bytes", self.path.display()))
            }
            _ => e,
        }
    }

    /// Reads past the cache; false if that is impossible here.
    fn read_past(&self, buf: &mut [u8], at: u64) -> io::Result<bool> {
        let fits = buf.len() >= LARGE && buf.as_ptr() as usize % ALIGNED == 0 && is_whole(buf.len(), at);
        match self.past.as_ref().filter(|_| fits) {
            Some(past) => unless_refused(FileExt::read_exact_at(past, buf, at)),
            None => Ok(false),
        }
    }

    /// Writes past the cache; false if that is impossible here.
    fn write_past(&self, bytes: &[u8], at: u64) -> io::Result<bool> {
        let fits = is_whole(bytes.len(), at) && !self.cached.load(Ordering::Relaxed);
        let Some(past) = self.past.as_ref().filter(|_| fits) else { return Ok(false) };
        let mut buffer = self.buffer.lock().unwrap_or_else(|e| e.into_inner());
        let aligned = buffer.resized(bytes.len());
        aligned.copy_from_slice(bytes);
        let done = unless_refused(FileExt::write_all_at(past, aligned, at))?;
        self.cached.fetch_or(!done, Ordering::Relaxed);
        Ok(done)
    }
}

/// Whether these are whole sectors.
fn is_whole(len: usize, at: u64) -> bool {
    len as u64 % SECTOR == 0 && at % SECTOR == 0
}

fn unless_refused(done: io::Result<()>) -> io::Result<bool> {
    match done {
        Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(false),
        done => done.map(|()| true),
    }
}

impl Disk for DirectFile {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        match self.read_past(buf, at) {
            Ok(true) => Ok(()),
            Ok(false) => FileExt::read_exact_at(&self.file, buf, at),
            Err(e) => Err(e),
        }
        .map_err(|e| self.cut_short(e))
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

    fn reads_at_once(&self) -> usize {
        READS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(path: &Path, writes: Writes) -> DirectFile {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("a file");
        DirectFile::over(file, path, writes)
    }

    /// Bytes in the cache, and bytes written past it; whole, and beyond the end.
    #[test]
    fn what_is_read_past_the_cache_is_what_was_written() {
        let dir = tempfile::tempdir_in(".").expect("a directory");
        for (name, writes) in [("image", Writes::Cached), ("log", Writes::Past)] {
            let disk = make(&dir.path().join(name), writes);
            let bytes: Vec<u8> = (0..3 * LARGE).map(|i| (i / 7) as u8).collect();
            disk.write_all_at(&bytes, SECTOR).expect("a write");
            disk.write_all_at(&[9; 100], 2 * SECTOR + 3).expect("a short write");
            let (mut past, mut cached) = (Aligned::default(), vec![0; 2 * LARGE]);
            disk.read_exact_at(past.resized(2 * LARGE), SECTOR).expect("a large read");
            disk.read_exact_at(&mut cached[1..LARGE], SECTOR + 1).expect("an odd read");
            disk.read_exact_at(&mut cached[LARGE..], SECTOR + LARGE as u64).expect("a read");
            assert_eq!(past.bytes()[1..], cached[1..], "{name}");
            assert_eq!((past.bytes()[0], past.bytes()[515]), (0, 9));
            let beyond = disk.read_exact_at(past.resized(2 * LARGE), 2 * LARGE as u64);
            let refusal = beyond.expect_err("the end");
            assert_eq!(refusal.kind(), io::ErrorKind::UnexpectedEof);
            assert!(refusal.to_string().contains(&format!("{name} is truncated")), "{refusal}");
        }
    }

    #[test]
    fn what_is_written_either_way_reads_back() {
        let dir = tempfile::tempdir_in(".").expect("a directory");
        let disk = make(&dir.path().join("log"), Writes::Past);
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
