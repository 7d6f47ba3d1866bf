//! Where the backing lies: what a log and an image need of it, and reading what it has twice.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use pram::error::{Error, Result};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What a disk writes whole or not at all.
pub const SECTOR: u64 = 512;

/// Where a log or an image lies. Short writes are the implementer's to complete.
pub trait Disk: Send + Sync {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()>;
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// What was written is durable when this returns.
    fn flush(&self) -> io::Result<()>;
    /// How many reads under way at once make the most of it, where much is read; each of them needs a thread.
    fn reads_at_once(&self) -> usize {
        1
    }
    /// Writes, and if that is done flushes: what came of the one, and of the other.
    fn write_through(&self, bytes: &[u8], at: u64) -> io::Result<io::Result<()>> {
        self.write_all_at(bytes, at)?;
        Ok(self.flush())
    }
    /// How many copies of all of it there are. A read tells of one of them; of what was being written at a crash they may differ,
    /// and one may be rotten or old.
    fn copies(&self) -> usize {
        1
    }
    /// Reads copy `n` alone: another one's content has proved wrong.
    fn read_copy_at(&self, _n: usize, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(buf, at)
    }
    /// One copy has something wrong that another has right.
    fn note_wrong(&self) {}
    /// These copies lack what was acknowledged: they are not read any more before they have all. Another one has it.
    fn put_away(&self, _copies: &[usize]) -> io::Result<()> {
        Ok(())
    }
    /// Nothing behind `bytes` is needed: the writer says so.
    fn trim(&self, _bytes: u64) {}
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

/// Whether a write or flush to a disk has failed. Nothing is tried again then: the kernel may have dropped the pages that it could not
/// write, and report success the second time.
#[derive(Default)]
pub(crate) struct Attempts {
    failed: bool,
}

impl Attempts {
    /// Tells what came of writing `what`.
    pub fn ended(&mut self, what: &str, result: io::Result<()>) -> Result<()> {
        result.map_err(|e| {
            self.failed = true;
            Error::of_io(what, &e)
        })
    }

    /// The same where nothing leads to it yet: if the disk was full, it can be tried again.
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

/// The two places of a header in each copy, of which one suffices: which place, and what is there. What cannot be read is reported.
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

/// Does `is_whole` say so of all places in all copies?
pub(crate) fn places_are_whole<H: FromBytes + IntoBytes>(
    disk: &impl Disk,
    at: [u64; 2],
    is_whole: impl Fn(&H) -> bool,
) -> bool {
    let (found, unread) = read_places::<H>(disk, at, "looking at headers");
    unread.is_none() && found.iter().all(|(_, raw)| is_whole(raw))
}

/// All copies, to be read one by one; where there is one, that.
pub(crate) fn copies_of(disk: &impl Disk) -> Vec<Option<usize>> {
    match disk.copies() {
        copies if copies > 1 => (0..copies).map(Some).collect(),
        _ => vec![None],
    }
}

/// Reads one copy; none: any of them.
pub(crate) fn read_copy(disk: &impl Disk, copy: Option<usize>, buf: &mut [u8], at: u64) -> io::Result<()> {
    match copy {
        None => disk.read_exact_at(buf, at),
        Some(n) => disk.read_copy_at(n, buf, at),
    }
}

/// One copy of a disk by itself, to look at.
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
