//! The file system of a workload: a mounted directory or a pool in this process, behind one trait.
//!
//! Workloads are generic over [`Place`], so that there is no dispatch inside the timed loops. Both sides do as the
//! cheapest program would: the mounted side calls the system directly with prepared paths relative to a directory
//! descriptor, and neither side allocates.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::path::Path;

use conquest::{Caller, OpenOptions, Pool};
use conquest_fs::path::{File, Open, View};
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, AtFlags, Mode, OFlags, RawDir, SeekFrom};

use crate::error::Error;

/// A path from the root of the place, prepared before the clock runs.
pub type Name = CString;

/// The operations of the workloads. A handle is closed by dropping it, as part of the timed work.
pub trait Place {
    type Handle<'a>
    where
        Self: 'a;

    /// Creates or truncates a file, and opens it for writing.
    fn create(&self, path: &CStr) -> Result<Self::Handle<'_>, Error>;
    fn open(&self, path: &CStr, how: How) -> Result<Self::Handle<'_>, Error>;
    fn write(&self, file: &Self::Handle<'_>, offset: u64, data: &[u8]) -> Result<(), Error>;
    fn append(&self, file: &Self::Handle<'_>, data: &[u8]) -> Result<(), Error>;
    /// Writes at the end of a file that was not opened for appending, like a program that first asks for the end.
    fn write_behind(&self, file: &Self::Handle<'_>, data: &[u8]) -> Result<(), Error>;
    fn read(&self, file: &Self::Handle<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Error>;
    fn fsync(&self, file: &Self::Handle<'_>) -> Result<(), Error>;
    /// The size of the file.
    fn stat(&self, path: &CStr) -> Result<u64, Error>;
    fn unlink(&self, path: &CStr) -> Result<(), Error>;
    fn mkdir(&self, path: &CStr) -> Result<(), Error>;
    fn rmdir(&self, path: &CStr) -> Result<(), Error>;
    /// The number of entries of a directory, without `.` and `..`.
    fn list(&self, path: &CStr) -> Result<usize, Error>;
    /// Writes back dirty data, so that it does not disturb the next measurement.
    fn settle(&self) -> Result<(), Error>;
    /// Evicts a synced file from the caches of this host's kernel.
    fn forget(&self, file: &Self::Handle<'_>) -> Result<(), Error>;

    #[inline]
    fn open_read(&self, path: &CStr) -> Result<Self::Handle<'_>, Error> {
        self.open(path, How::Read)
    }

    #[inline]
    fn open_append(&self, path: &CStr) -> Result<Self::Handle<'_>, Error> {
        self.open(path, How::Append)
    }

    /// Opens a file for reading and writing.
    #[inline]
    fn open_update(&self, path: &CStr) -> Result<Self::Handle<'_>, Error> {
        self.open(path, How::Update)
    }
}

/// The mode of opening an existing file.
#[derive(Clone, Copy)]
pub enum How {
    Read,
    Append,
    Update,
}

/// A directory on a mounted file system.
pub struct Mounted {
    root: OwnedFd,
}

impl Mounted {
    pub fn new(dir: &Path) -> Result<Mounted, Error> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Mounted { root: rustix::fs::open(dir, flags, Mode::empty())? })
    }

    #[inline]
    fn open_as(&self, path: &CStr, flags: OFlags) -> Result<OwnedFd, Error> {
        Ok(rustix::fs::openat(&self.root, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))?)
    }
}

/// Fails on a short write: the file systems under test have space for the whole workload.
fn whole(written: usize, wanted: usize) -> Result<(), Error> {
    if written == wanted {
        Ok(())
    } else {
        Err(Error::Wrong(format!("wrote {written} bytes of {wanted}; is the file system full?")))
    }
}

impl Place for Mounted {
    type Handle<'a> = OwnedFd;

    #[inline]
    fn create(&self, path: &CStr) -> Result<OwnedFd, Error> {
        self.open_as(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
    }

    #[inline]
    fn open(&self, path: &CStr, how: How) -> Result<OwnedFd, Error> {
        self.open_as(
            path,
            match how {
                How::Read => OFlags::RDONLY,
                How::Append => OFlags::WRONLY | OFlags::APPEND,
                How::Update => OFlags::RDWR,
            },
        )
    }

    #[inline]
    fn write(&self, file: &OwnedFd, offset: u64, data: &[u8]) -> Result<(), Error> {
        whole(rustix::io::pwrite(file, data, offset)?, data.len())
    }

    #[inline]
    fn append(&self, file: &OwnedFd, data: &[u8]) -> Result<(), Error> {
        whole(rustix::io::write(file, data)?, data.len())
    }

    #[inline]
    fn write_behind(&self, file: &OwnedFd, data: &[u8]) -> Result<(), Error> {
        rustix::fs::seek(file, SeekFrom::End(0))?;
        self.append(file, data)
    }

    #[inline]
    fn read(&self, file: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        Ok(rustix::io::pread(file, buf, offset)?)
    }

    #[inline]
    fn fsync(&self, file: &OwnedFd) -> Result<(), Error> {
        Ok(rustix::fs::fsync(file)?)
    }

    #[inline]
    fn stat(&self, path: &CStr) -> Result<u64, Error> {
        Ok(rustix::fs::statat(&self.root, path, AtFlags::empty())?.st_size as u64)
    }

    #[inline]
    fn unlink(&self, path: &CStr) -> Result<(), Error> {
        Ok(rustix::fs::unlinkat(&self.root, path, AtFlags::empty())?)
    }

    fn mkdir(&self, path: &CStr) -> Result<(), Error> {
        Ok(rustix::fs::mkdirat(&self.root, path, Mode::from_raw_mode(0o700))?)
    }

    fn rmdir(&self, path: &CStr) -> Result<(), Error> {
        Ok(rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR)?)
    }

    fn list(&self, path: &CStr) -> Result<usize, Error> {
        let dir = self.open_as(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut buf = [MaybeUninit::uninit(); 32 * 1024];
        let mut entries = RawDir::new(dir, &mut buf);
        let mut count = 0;
        while let Some(entry) = entries.next() {
            let name = entry?.file_name().to_bytes().len();
            count += usize::from(name > 0);
        }
        Ok(count - 2)
    }

    fn settle(&self) -> Result<(), Error> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }

    fn forget(&self, file: &OwnedFd) -> Result<(), Error> {
        Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
    }
}

/// A pool that this process works on directly, as the superuser.
pub struct InProcess {
    pub pool: Pool,
}

impl InProcess {
    pub fn open(pool: &Path) -> Result<InProcess, Error> {
        Ok(InProcess { pool: Pool::open(pool, &OpenOptions::default())? })
    }

    #[inline]
    pub fn view(&self) -> View<'_> {
        View::new(&self.pool, Caller::root())
    }
}

impl Place for InProcess {
    type Handle<'a> = File<'a>;

    #[inline]
    fn create(&self, path: &CStr) -> Result<File<'_>, Error> {
        Ok(self.view().create(path.to_bytes(), 0o600)?)
    }

    #[inline]
    fn open(&self, path: &CStr, how: How) -> Result<File<'_>, Error> {
        let how = match how {
            How::Read => Open::new().read(true),
            How::Append => Open::new().write(true).append(true),
            How::Update => Open::new().read(true).write(true),
        };
        Ok(self.view().open(path.to_bytes(), how)?)
    }

    #[inline]
    fn write(&self, file: &File<'_>, offset: u64, data: &[u8]) -> Result<(), Error> {
        Ok(file.write_all_at(data, offset)?)
    }

    #[inline]
    fn append(&self, file: &File<'_>, data: &[u8]) -> Result<(), Error> {
        file.append(data)?;
        Ok(())
    }

    #[inline]
    fn write_behind(&self, file: &File<'_>, data: &[u8]) -> Result<(), Error> {
        self.append(file, data)
    }

    #[inline]
    fn read(&self, file: &File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        Ok(file.read_at(buf, offset)?)
    }

    #[inline]
    fn fsync(&self, file: &File<'_>) -> Result<(), Error> {
        Ok(self.pool.fsync(file.ino(), false)?)
    }

    #[inline]
    fn stat(&self, path: &CStr) -> Result<u64, Error> {
        Ok(self.view().stat(path.to_bytes())?.size)
    }

    #[inline]
    fn unlink(&self, path: &CStr) -> Result<(), Error> {
        Ok(self.view().unlink(path.to_bytes())?)
    }

    fn mkdir(&self, path: &CStr) -> Result<(), Error> {
        self.view().mkdir(path.to_bytes(), 0o700)?;
        Ok(())
    }

    fn rmdir(&self, path: &CStr) -> Result<(), Error> {
        Ok(self.view().rmdir(path.to_bytes())?)
    }

    fn list(&self, path: &CStr) -> Result<usize, Error> {
        let dir = self.view().resolve(path.to_bytes())?.ino;
        let mut count = 0;
        self.pool.readdir(dir, 0, &mut |entry| {
            count += usize::from(entry.name != b"." && entry.name != b"..");
            true
        })?;
        Ok(count)
    }

    fn settle(&self) -> Result<(), Error> {
        Ok(self.pool.sync()?)
    }

    fn forget(&self, _: &File<'_>) -> Result<(), Error> {
        Ok(())
    }
}

pub enum AnyPlace {
    Mounted(Mounted),
    InProcess(Box<InProcess>),
}

/// Works on the place of either kind, with separate code for each.
macro_rules! on_place {
    ($any:expr, $place:ident => $work:expr) => {
        match $any {
            $crate::place::AnyPlace::Mounted($place) => $work,
            $crate::place::AnyPlace::InProcess(place) => {
                let $place = &**place;
                $work
            }
        }
    };
}
pub(crate) use on_place;

/// A prepared path. The text must contain no zero byte; generated names never do.
pub fn name(text: String) -> Name {
    CString::new(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_directory_answers_as_the_trait_says() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let (d, f) = (name("d".into()), name("d/f".into()));
        place.mkdir(&d).expect("mkdir");
        let file = place.create(&f).expect("create");
        place.write(&file, 0, b"hello").expect("write");
        place.fsync(&file).expect("fsync");
        drop(file);
        place.append(&place.open_append(&f).expect("open"), b" you").expect("append");
        let mut buf = [0; 16];
        let n = place.read(&place.open_read(&f).expect("open"), 0, &mut buf).expect("read");
        assert_eq!(&buf[..n], b"hello you");
        let both = place.open_update(&f).expect("open");
        place.write_behind(&both, b"!").expect("write");
        place.write(&both, 0, b"H").expect("write");
        place.fsync(&both).and_then(|()| place.forget(&both)).expect("synced and out of the cache");
        let n = place.read(&both, 0, &mut buf).expect("read");
        assert_eq!(&buf[..n], b"Hello you!");
        assert_eq!(place.stat(&f).expect("stat"), 10);
        assert_eq!(place.list(&d).expect("list"), 1);
        assert!(place.rmdir(&d).is_err());
        place.unlink(&f).expect("unlink");
        assert_eq!(place.list(&d).expect("list"), 0);
        place.rmdir(&d).expect("rmdir");
        assert!(place.stat(&d).is_err());
        place.settle().expect("sync");
    }
}
