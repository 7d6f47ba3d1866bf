//! The disk under a log or an image, and reading each of its copies.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use pram::error::{Error, Result};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: u64 = 512;

/// The disk under a log or an image. The implementer completes short writes.
pub trait Disk: Send + Sync {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()>;
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Makes all writes before durable.
    fn flush(&self) -> io::Result<()>;
    /// The number of parallel reads that is best for long reads; each of them needs a thread.
    fn reads_at_once(&self) -> usize {
        1
    }
    /// Writes, and if that succeeds flushes; the result of the write, and of the flush.
    fn write_through(&self, bytes: &[u8], at: u64) -> io::Result<io::Result<()>> {
        self.write_all_at(bytes, at)?;
        Ok(self.flush())
    }
    /// The number of copies of the whole disk. A read returns one of them. They may differ in bytes that were being
    /// written at a crash, and one may be rotten or old.
    fn copies(&self) -> usize {
        1
    }
    /// Reads copy `n` alone: another one's content has proved wrong.
    fn read_copy_at(&self, _n: usize, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(buf, at)
    }
    /// Reports that a copy is wrong where another one is right.
    fn note_wrong(&self) {}
    /// Excludes copies that lack acknowledged writes, which another one has, from reads until they have all.
    fn put_away(&self, _copies: &[usize]) -> io::Result<()> {
        Ok(())
    }
    /// The writer needs nothing behind `bytes`.
    fn trim(&self, _bytes: u64) {}
    /// Bytes that it can hold whoever else takes room, as far as is known without waiting; `None`: that is unknown.
    fn reserved(&self) -> Option<u64> {
        None
    }
}

impl Disk for File {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, at)
    }
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, at)
    }
    fn flush(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Did a write fail because there was no room?
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::NOSPC | Errno::DQUOT))
}

/// Remembers whether a write or flush to a disk has failed. Nothing is tried again then: the kernel may have dropped the pages that it could not
/// write, and report success the second time.
#[derive(Default)]
pub(crate) struct Attempts {
    failed: bool,
}

impl Attempts {
    /// Notes the result of writing `what`, and returns it.
    pub fn ended(&mut self, what: &str, result: io::Result<()>) -> Result<()> {
        result.map_err(|e| {
            self.failed = true;
            Error::of_io(what, &e)
        })
    }

    /// The same for bytes that nothing leads to yet: if the disk was full, the caller may try again.
    pub fn ended_new(&mut self, what: &str, result: io::Result<()>) -> Result<()> {
        match result {
            Err(e) if is_full(&e) => Err(Error::DiskFull(what.into())),
            result => self.ended(what, result),
        }
    }

    /// Fails with `why` if anything has failed.
    pub fn refuse_failed(&self, why: &str) -> Result<()> {
        match self.failed {
            true => Err(Error::Unusable(why.into())),
            false => Ok(()),
        }
    }
}

/// Reads the two places of a header, of which one suffices, in each copy: returns each place with its content, and the
/// last error.
pub(crate) fn read_places<H: FromBytes + IntoBytes>(
    disk: &impl Disk,
    at: [u64; 2],
    what: &str,
) -> (Vec<(usize, H)>, Option<Error>) {
    let copies = copies_of(disk);
    let (mut found, mut unread) = (Vec::new(), None);
    for (place, at) in at.into_iter().enumerate() {
        for copy in &copies {
            let mut raw = H::new_zeroed();
            match read_copy(disk, *copy, raw.as_mut_bytes(), at) {
                Ok(()) => found.push((place, raw)),
                Err(e) => unread = Some(Error::of_io(what, &e)),
            }
        }
    }
    (found, unread)
}

/// Are all places whole, and the same, in all copies?
pub(crate) fn places_agree<H: FromBytes + IntoBytes + Immutable>(disk: &impl Disk, at: [u64; 2]) -> bool {
    let (found, unread) = read_places::<H>(disk, at, "comparing headers");
    unread.is_none() && found.windows(2).all(|two| two[0].1.as_bytes() == two[1].1.as_bytes())
}

/// Does `is_whole` hold for all places in all copies?
pub(crate) fn places_are_whole<H: FromBytes + IntoBytes>(
    disk: &impl Disk,
    at: [u64; 2],
    is_whole: impl Fn(&H) -> bool,
) -> bool {
    let (found, unread) = read_places::<H>(disk, at, "looking at headers");
    unread.is_none() && found.iter().all(|(_, raw)| is_whole(raw))
}

/// All copies, to be read one by one; `None` is the only one.
pub(crate) fn copies_of(disk: &impl Disk) -> Vec<Option<usize>> {
    match disk.copies() {
        copies if copies > 1 => (0..copies).map(Some).collect(),
        _ => vec![None],
    }
}

/// Reads one copy; `None`: any of them.
pub(crate) fn read_copy(disk: &impl Disk, copy: Option<usize>, buf: &mut [u8], at: u64) -> io::Result<()> {
    match copy {
        None => disk.read_exact_at(buf, at),
        Some(n) => disk.read_copy_at(n, buf, at),
    }
}

/// One copy of a disk, for reading alone.
pub(crate) struct OneCopy<'d, D> {
    pub disk: &'d D,
    pub copy: Option<usize>,
}

impl<D: Disk> Disk for OneCopy<'_, D> {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        read_copy(self.disk, self.copy, buf, at)
    }
    fn reads_at_once(&self) -> usize {
        self.disk.reads_at_once()
    }
    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
