//! The API by path, with permission checks: for programs that embed Conquest. Files are as those of `std::fs`.
//!
//! ```no_run
//! use std::io::Write;
//!
//! let pool = conquest::Pool::open("/var/lib/conquest", &conquest::OpenOptions::default())?;
//! let view = conquest::path::View::new(&pool, conquest::Caller::current());
//! let mut file = view.create("mail/1", 0o600)?;
//! file.write_all(b"hello")?;
//! file.sync_all()?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod as_path;
mod file;
mod open;
mod opening;
mod read_dir;
mod walk;

use rustix::io::Errno;

use crate::attr::{Attr, Caller, Kind, SetAttr, NAME_MAX};
use crate::error::Result;
use crate::node::{want, At, Fs, Node, Rename};
use walk::{is_no_name, is_of_dir};

pub use as_path::AsPath;
pub use file::File;
pub use open::Open;
pub use opening::Opened;
pub use read_dir::{DirEntry, ReadDir};
pub use walk::{Within, PATH_MAX};

/// The pool as one caller sees it. Paths are relative to the root, with or without a leading slash. Of names that end with a
/// slash, and of `.` and `..`, it holds what holds on Linux.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub fs: &'a Fs,
    pub caller: Caller<'a>,
    within: Option<&'a Within<'a>>,
}

impl<'a> View<'a> {
    pub fn new(fs: &'a Fs, caller: Caller<'a>) -> Self {
        View { fs, caller, within: None }
    }

    /// The pool as one caller sees it who stays in a part of it: paths are relative to [`Within::start`].
    pub fn within(fs: &'a Fs, caller: Caller<'a>, within: &'a Within<'a>) -> Self {
        View { fs, caller, within: Some(within) }
    }

    /// Follows the path, symbolic links included (40 at most), checking search permission on the way.
    pub fn resolve(&self, path: impl AsPath) -> Result<Attr> {
        let path = path.bytes();
        let found = self.walk(path, true)?;
        self.fs.note_attr(found.ino, &found.raw)
    }

    pub fn stat(&self, path: impl AsPath) -> Result<Attr> {
        self.resolve(path)
    }

    /// Like [`stat`](Self::stat), of a symbolic link itself.
    pub fn lstat(&self, path: impl AsPath) -> Result<Attr> {
        let path = path.bytes();
        let found = self.walk(path, false)?;
        self.fs.note_attr(found.ino, &found.raw)
    }

    /// Fails with EACCES unless the caller may do `wanted` (rwx bits) to what the path leads to; 0: unless it leads anywhere.
    pub fn access(&self, path: impl AsPath, wanted: u32, follow: bool) -> Result<Kind> {
        let found = self.walk(path.bytes(), follow)?;
        self.fs.permit_seen(found.ino, &found.raw, &self.caller, wanted & 7)?;
        found.raw.file_kind()
    }

    /// Creates or truncates, for writing.
    pub fn create(&self, path: impl AsPath, mode: u32) -> Result<File<'a>> {
        self.open(path, Open::new().write(true).create(true).truncate(true).mode(mode))
    }

    pub fn mkdir(&self, path: impl AsPath, mode: u32) -> Result<Attr> {
        self.mknod(path, Kind::Directory, mode, 0)
    }

    pub fn mknod(&self, path: impl AsPath, kind: Kind, mode: u32, rdev: u64) -> Result<Attr> {
        let (dir, name) = self.new_entry(path.bytes(), kind == Kind::Directory)?;
        let mut made = Node::blank();
        self.fs.create_at(dir, name, (kind, mode, rdev), &self.caller, false, &mut made)?;
        self.fs.note_attr(made.ino, &made.raw)
    }

    pub fn symlink(&self, target: impl AsPath, path: impl AsPath) -> Result<Attr> {
        let (dir, name) = self.new_entry(path.bytes(), false)?;
        self.fs.symlink_at(dir, name, target.bytes(), &self.caller)
    }

    pub fn link(&self, old: impl AsPath, new: impl AsPath) -> Result<Attr> {
        self.link_to((old, false), self, new)
    }

    /// [`link`](Self::link) to a path that begins where those of `there` begin; a symbolic link is followed or not.
    pub fn link_to(&self, (old, follow): (impl AsPath, bool), there: &View, new: impl AsPath) -> Result<Attr> {
        let found = self.walk(old.bytes(), follow)?;
        let (dir, name) = there.new_entry(new.bytes(), false)?;
        self.fs.link_at(found.at(), dir, name, &self.caller)
    }

    /// Where a new name goes.
    #[inline]
    fn new_entry<'p>(&self, path: &'p [u8], is_dir: bool) -> Result<(At, &'p [u8])> {
        let (dir, name) = self.parent(path)?;
        if is_no_name(name) {
            return Err(Errno::EXIST.into());
        }
        if is_of_dir(path) && !is_dir {
            self.fs.lookup_step(dir, name, &self.caller)?;
            return Err(Errno::EXIST.into());
        }
        Ok((dir, name))
    }

    pub fn unlink(&self, path: impl AsPath) -> Result<()> {
        let path = path.bytes();
        let (dir, name) = self.parent(path)?;
        if is_no_name(name) {
            return Err(Errno::ISDIR.into());
        }
        if is_of_dir(path) {
            let (_, kind) = self.fs.lookup_step(dir, name, &self.caller)?;
            let is_dir = kind == Kind::Directory as u8;
            return Err(if is_dir { Errno::ISDIR } else { Errno::NOTDIR }.into());
        }
        self.fs.remove(dir, name, &self.caller, false)
    }

    pub fn rmdir(&self, path: impl AsPath) -> Result<()> {
        let (dir, name) = self.parent(path.bytes())?;
        if name.is_empty() {
            return Err(Errno::BUSY.into());
        }
        self.fs.remove(dir, name, &self.caller, true)
    }

    pub fn rename(&self, from: impl AsPath, to: impl AsPath, how: Rename) -> Result<()> {
        self.rename_to(from, self, to, how)
    }

    /// [`rename`](Self::rename) to a path that begins where those of `there` begin.
    pub fn rename_to(&self, from: impl AsPath, there: &View, to: impl AsPath, how: Rename) -> Result<()> {
        let (from, to) = (from.bytes(), to.bytes());
        let (old, new) = (self.parent(from)?, there.parent(to)?);
        if is_no_name(old.1) {
            return Err(Errno::BUSY.into());
        }
        if is_no_name(new.1) {
            let no_replace = matches!(how, Rename::NoReplace | Rename::Whiteout { replace: false });
            return Err(if no_replace { Errno::EXIST } else { Errno::BUSY }.into());
        }
        if new.1.len() > NAME_MAX {
            // That the other is missing comes first.
            self.fs.lookup_step(old.0, old.1, &self.caller)?;
            return Err(Errno::NAMETOOLONG.into());
        }
        if is_of_dir(from) || is_of_dir(to) {
            self.rename_of_dirs(old, new, (is_of_dir(from), is_of_dir(to)), how)?;
        }
        self.fs.rename_at(old, new, how, (&self.caller, self.within.is_some()))
    }

    /// A slash behind a name says that what is renamed is a directory.
    #[cold]
    fn rename_of_dirs(&self, old: (At, &[u8]), new: (At, &[u8]), slash: (bool, bool), how: Rename) -> Result<()> {
        let is_dir = |kind: u8| kind == Kind::Directory as u8;
        let (_, kind) = self.fs.lookup_step(old.0, old.1, &self.caller)?;
        let there = self.fs.lookup_step(new.0, new.1, &self.caller).ok();
        if how == Rename::NoReplace && there.is_some() {
            return Err(Errno::EXIST.into());
        }
        if how == Rename::Exchange {
            let (_, kind) = there.ok_or(Errno::NOENT)?;
            if slash.1 && !is_dir(kind) {
                return Err(Errno::NOTDIR.into());
            }
        }
        if !is_dir(kind) && (slash.0 || slash.1 && how != Rename::Exchange) {
            return Err(Errno::NOTDIR.into());
        }
        Ok(())
    }

    pub fn readlink(&self, path: impl AsPath) -> Result<Vec<u8>> {
        self.fs.readlink_at(self.walk(path.bytes(), false)?.at())
    }

    /// The entries of a directory, `.` and `..` left out. One that is there throughout is among them exactly once.
    pub fn read_dir(&self, path: impl AsPath) -> Result<ReadDir<'a>> {
        // As an open directory: its names may go meanwhile, the directory itself stays.
        let found = self.walk_retain(path.bytes(), true)?;
        let dir = self.file(found.ino, Open::new());
        match found.raw.is_dir() {
            true => self.fs.permit_seen(found.ino, &found.raw, &self.caller, want::READ)?,
            false => return Err(Errno::NOTDIR.into()),
        }
        Ok(ReadDir::new(self.fs, dir))
    }

    /// All of a file.
    pub fn read(&self, path: impl AsPath) -> Result<Vec<u8>> {
        let file = self.open(path, Open::new().read(true))?;
        let mut content = vec![0; file.attr()?.size as usize];
        let len = file.read_at(&mut content, 0)?;
        content.truncate(len);
        Ok(content)
    }

    pub fn setattr(&self, path: impl AsPath, set: &SetAttr) -> Result<Attr> {
        let path = path.bytes();
        self.fs.setattr_at(self.walk(path, true)?.at(), set, &self.caller)
    }

    /// [`setattr`](Self::setattr), of a symbolic link itself.
    pub fn lsetattr(&self, path: impl AsPath, set: &SetAttr) -> Result<Attr> {
        self.fs.setattr_at(self.walk(path.bytes(), false)?.at(), set, &self.caller)
    }

    /// The inode that the path leads to, and a reference to it for the caller.
    pub fn hold(&self, path: impl AsPath, follow: bool) -> Result<Opened> {
        let found = self.walk_retain(path.bytes(), follow)?;
        let kind = found.raw.file_kind().inspect_err(|_| self.fs.release(found.ino, 1))?;
        Ok(Opened { ino: found.ino, kind, parent: found.parent })
    }
}
