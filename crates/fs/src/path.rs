//! The API by path, with permission checks: what a program that embeds Conquest uses.
//!
//! ```no_run
//! let pool = fs::Pool::open("/var/lib/conquest".as_ref(), &fs::OpenOptions::default())?;
//! let view = fs::path::View::new(&pool, fs::Caller::current());
//! let file = view.create(b"mail/1", 0o600)?;
//! file.write_at(0, b"hello")?;
//! # Ok::<(), fs::Error>(())
//! ```

use crate::attr::{Attr, Caller, Ino, Kind, SetAttr};
use crate::error::Result;
use crate::node::{Fs, Rename};

/// The pool as one caller sees it. Paths are relative to the root, with or without a leading slash.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub fs: &'a Fs,
    pub caller: Caller<'a>,
}

/// An open file: a reference that keeps the inode alive. Dropping it closes it.
pub struct File<'a> {
    fs: &'a Fs,
    ino: Ino,
}

/// What [`View::open`] asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open {
    pub read: bool,
    pub write: bool,
    pub append: bool,
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
    /// Permission bits of a new file.
    pub mode: u32,
}

#[allow(unused_variables)]
impl<'a> View<'a> {
    pub fn new(fs: &'a Fs, caller: Caller<'a>) -> Self {
        View { fs, caller }
    }

    /// Follows the path, symbolic links included (40 at most), checking search permission on the way.
    pub fn resolve(&self, path: &[u8]) -> Result<Attr> {
        todo!()
    }

    pub fn stat(&self, path: &[u8]) -> Result<Attr> {
        todo!()
    }

    /// Like [`stat`](Self::stat), of a symbolic link itself.
    pub fn lstat(&self, path: &[u8]) -> Result<Attr> {
        todo!()
    }

    pub fn open(&self, path: &[u8], how: Open) -> Result<File<'a>> {
        todo!()
    }

    /// Creates or truncates, for writing.
    pub fn create(&self, path: &[u8], mode: u32) -> Result<File<'a>> {
        self.open(path, Open { write: true, create: true, truncate: true, mode, ..Open::default() })
    }

    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<Attr> {
        todo!()
    }

    pub fn mknod(&self, path: &[u8], kind: Kind, mode: u32, rdev: u64) -> Result<Attr> {
        todo!()
    }

    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<Attr> {
        todo!()
    }

    pub fn link(&self, old: &[u8], new: &[u8]) -> Result<Attr> {
        todo!()
    }

    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        todo!()
    }

    pub fn rmdir(&self, path: &[u8]) -> Result<()> {
        todo!()
    }

    pub fn rename(&self, from: &[u8], to: &[u8], how: Rename) -> Result<()> {
        todo!()
    }

    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        todo!()
    }

    /// Names and kinds of a directory, `.` and `..` left out.
    pub fn read_dir(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Kind)>> {
        todo!()
    }

    pub fn setattr(&self, path: &[u8], set: &SetAttr) -> Result<Attr> {
        todo!()
    }
}

#[allow(unused_variables)]
impl File<'_> {
    pub fn ino(&self) -> Ino {
        self.ino
    }

    pub fn attr(&self) -> Result<Attr> {
        self.fs.getattr(self.ino)
    }

    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.fs.read(self.ino, offset, buf)
    }

    /// Writes all of `data`.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        todo!()
    }

    /// Writes all of `data` at the end; returns where that was.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        todo!()
    }

    pub fn truncate(&self, size: u64) -> Result<()> {
        todo!()
    }
}
