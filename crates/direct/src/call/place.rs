//! Where a path or a descriptor leads.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use conquest::{Caller, Fs, Ino};
use conquest_fs::path::{View, Within};
use rustix::io::Errno;

use super::{Outcome, Stop};
use crate::identity::Identity;
use crate::open_file::OpenFile;
use crate::raw;
use crate::real::named_descriptor;
use crate::state::State;

/// A directory's descriptor and a path's address, as `*at` calls have them.
pub type At = (usize, usize);

/// The arguments of a system call that name a descriptor are 32 bits wide.
#[inline(always)]
pub fn number(fd: usize) -> RawFd {
    fd as RawFd
}

/// A path in the pool.
pub struct Place<'a> {
    fs: &'a Fs,
    caller: Caller<'a>,
    within: Within<'a>,
    pub path: &'a [u8],
    /// Where the path begins: it stays while this is held.
    _dir: Option<Arc<OpenFile>>,
}

impl Place<'_> {
    #[inline(always)]
    pub fn view(&self) -> View<'_> {
        View::within(self.fs, self.caller, &self.within)
    }
}

/// An inode in the pool that stays while this is held.
pub enum Held<'a> {
    Open(Arc<OpenFile>),
    /// The working directory, which the kernel holds.
    WorkingDirectory(Ino),
    /// A reference of our own.
    Reference(&'a Fs, Ino),
}

impl Held<'_> {
    pub fn ino(&self) -> Ino {
        match self {
            Held::Open(file) => file.ino,
            Held::WorkingDirectory(ino) | Held::Reference(_, ino) => *ino,
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Held::Reference(fs, ino) = self {
            fs.release(*ino, 1);
        }
    }
}

impl State {
    /// The open file that a descriptor stands for: one on which calls work.
    #[inline(always)]
    pub fn file(&self, fd: usize) -> Outcome<Arc<OpenFile>> {
        self.file_or_place(fd).and_then(|file| if file.is_place() { Err(Stop::Kernel) } else { Ok(file) })
    }

    /// The same, or a directory that was opened for paths alone.
    #[inline(always)]
    pub fn file_or_place(&self, fd: usize) -> Outcome<Arc<OpenFile>> {
        self.descriptors.get(number(fd)).ok_or(Stop::Kernel)
    }

    #[inline(always)]
    pub fn identity(&self) -> Outcome<&Identity> {
        self.identities.current().ok_or(Stop::Kernel)
    }

    /// The place that a path names.
    #[inline(always)]
    pub fn place(&self, at: At) -> Outcome<Place<'_>> {
        self.place_of(at.0, raw::path(at.1)?)
    }

    #[inline(always)]
    pub fn place_of<'a>(&'a self, dir: usize, path: &'a [u8]) -> Outcome<Place<'a>> {
        let within = Within { start: 0, root: self.mount.root, dir: &self.mounted.dir };
        let (start, path, dir) = match path.first() {
            None => return Err(Errno::NOENT.into()),
            Some(b'/') => (within.root, within.rest(path).ok_or(Stop::Kernel)?, None),
            Some(_) if number(dir) == libc::AT_FDCWD => match self.working_directory() {
                Ok(dir) => (dir, path, None),
                Err(_) => {
                    let from_here = self.from_here.load(Ordering::Relaxed);
                    let below = Within { dir: &within.dir[from_here..], ..within };
                    (within.root, below.rest(path).ok_or(Stop::Kernel)?, None)
                }
            },
            Some(_) => {
                let dir = self.file_or_place(dir)?;
                if !dir.is_dir() {
                    return Err(Errno::NOTDIR.into());
                }
                (dir.ino, path, Some(dir))
            }
        };
        let caller = self.identities.caller(self.identity()?);
        Ok(Place { fs: self.fs(), caller, within: Within { start, ..within }, path, _dir: dir })
    }

    pub fn working_directory(&self) -> Outcome<Ino> {
        match self.working_directory.load(Ordering::Relaxed) {
            0 => Err(Stop::Kernel),
            ino => Ok(ino),
        }
    }

    /// Does the call mean what the descriptor stands for (AT_EMPTY_PATH)?
    #[inline(always)]
    pub fn is_of_descriptor(&self, at: At, flags: u32) -> Outcome<bool> {
        Ok(flags & libc::AT_EMPTY_PATH as u32 != 0 && raw::path(at.1)?.is_empty())
    }

    /// The inode that a path names, or with AT_EMPTY_PATH a descriptor.
    pub fn hold(&self, at: At, flags: u32) -> Outcome<Held<'_>> {
        if self.is_of_descriptor(at, flags)? {
            return match number(at.0) {
                libc::AT_FDCWD => Ok(Held::WorkingDirectory(self.working_directory()?)),
                _ => Ok(Held::Open(self.file(at.0)?)),
            };
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW as u32 == 0;
        let place = match self.place(at) {
            Err(Stop::Kernel) if follow => return self.named(at.1).map(Held::Open),
            place => place?,
        };
        let held = place.view().hold(place.path, follow)?;
        Ok(Held::Reference(self.fs(), held.ino))
    }

    /// The open file that a path names by its descriptor's number (`/proc/self/fd/3`), which calls that follow links reach.
    #[cold]
    fn named(&self, path: usize) -> Outcome<Arc<OpenFile>> {
        let path = raw::path(path)?;
        // The kernel has each number there in one form.
        let is_whole =
            |digits: &[u8]| digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || !digits.starts_with(b"0"));
        let number = named_descriptor(path).filter(|_| path.strip_prefix(b"/proc/self/fd/").is_some_and(is_whole));
        self.file_or_place(number.ok_or(Stop::Kernel)? as usize)
    }
}
