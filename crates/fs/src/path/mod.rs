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
mod read_dir;

use rustix::io::Errno;

use crate::attr::{Attr, Caller, Ino, Kind, SetAttr, ROOT};
use crate::bytes;
use crate::error::Result;
use crate::layout::RawInode;
use crate::node::{want, At, Fs, Node, Rename};
use crate::recent::{self, Trail};

pub use as_path::AsPath;
pub use file::File;
pub use open::Open;
pub use read_dir::{DirEntry, ReadDir};

/// Longest path, in bytes.
pub const PATH_MAX: usize = 4095;
/// Most symbolic links followed in one path.
const SYMLINKS: u32 = 40;

/// The pool as one caller sees it. Paths are relative to the root, with or without a leading slash.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub fs: &'a Fs,
    pub caller: Caller<'a>,
}

/// Where a walk ended. It holds no reference: a caller that goes on from here says which inode it saw.
struct Found {
    ino: Ino,
    raw: RawInode,
}

impl Found {
    #[inline(always)]
    fn at(&self) -> At {
        At::seen(self.ino, &self.raw)
    }

    fn dir(self) -> Result<At> {
        match self.raw.is_dir() {
            true => Ok(self.at()),
            false => Err(Errno::NOTDIR.into()),
        }
    }
}

impl<'a> View<'a> {
    pub fn new(fs: &'a Fs, caller: Caller<'a>) -> Self {
        View { fs, caller }
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

    #[inline]
    fn walk(&self, path: &[u8], follow: bool) -> Result<Found> {
        let mut links = 0;
        if path.iter().all(|b| *b == b'/') {
            return self.walk_from(ROOT.into(), path, follow, &mut links);
        }
        let (dir, name) = self.parent_by(path, &mut links)?;
        self.walk_last(dir, name, (follow, path.last() == Some(&b'/')), &mut links)
    }

    #[inline]
    fn walk_from(&self, start: At, path: &[u8], follow: bool, links: &mut u32) -> Result<Found> {
        let mut at = if path.first() == Some(&b'/') { ROOT.into() } else { start };
        let mut rest = trim_leading(path);
        if rest.is_empty() {
            return Ok(Found { ino: at.ino, raw: self.fs.snapshot(at)? });
        }
        loop {
            let (name, after) = split_component(rest);
            rest = trim_leading(after);
            if rest.is_empty() {
                return self.walk_last(at, name, (follow, !after.is_empty()), links);
            }
            at = self.step(at, name, links)?;
        }
    }

    /// The directory `name` in `at`, a symbolic link followed.
    #[inline(always)]
    fn step(&self, at: At, name: &[u8], links: &mut u32) -> Result<At> {
        let (next, kind) = self.fs.lookup_step(at, name, &self.caller)?;
        match kind {
            k if k == Kind::Directory as u8 => Ok(next),
            k if k == Kind::Symlink as u8 => self.follow(at, next, links)?.dir(),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// The last step of a walk. A slash behind the name says that it is a directory's.
    #[inline(always)]
    fn walk_last(&self, at: At, name: &[u8], (follow, slash): (bool, bool), links: &mut u32) -> Result<Found> {
        let (ino, raw) = self.fs.lookup_raw(at, name, &self.caller)?;
        let mut found = Found { ino, raw };
        if found.raw.kind == Kind::Symlink as u8 && (follow || slash) {
            found = self.follow(at, found.at(), links)?;
        }
        if slash && found.raw.kind != Kind::Directory as u8 {
            return Err(Errno::NOTDIR.into());
        }
        Ok(found)
    }

    /// Where the symbolic link `link`, found in `dir`, leads to.
    #[cold]
    #[inline(never)]
    fn follow(&self, dir: At, link: At, links: &mut u32) -> Result<Found> {
        *links += 1;
        if *links > SYMLINKS {
            return Err(Errno::LOOP.into());
        }
        let target = self.fs.readlink_at(link)?;
        self.walk_from(dir, &target, true, links)
    }

    /// The directory that holds the last component of `path`, and that component.
    #[inline]
    fn parent<'p>(&self, path: &'p [u8]) -> Result<(At, &'p [u8])> {
        self.parent_by(path, &mut 0)
    }

    #[inline(always)]
    fn parent_by<'p>(&self, path: &'p [u8], links: &mut u32) -> Result<(At, &'p [u8])> {
        check_path(path)?;
        match recent::find(self.fs.session(), &self.fs.serial, &self.caller, path) {
            Some(found) => Ok(found),
            None => self.parent_anew(path, links),
        }
    }

    /// [`parent_by`](Self::parent_by) where another directory was found last.
    #[inline(never)]
    fn parent_anew<'p>(&self, path: &'p [u8], links: &mut u32) -> Result<(At, &'p [u8])> {
        let (mut at, mut rest, mut trail) = (At::from(ROOT), trim_leading(path), Trail::NEW);
        loop {
            let (name, after) = split_component(rest);
            rest = trim_leading(after);
            if rest.is_empty() && name.is_empty() {
                return Err(Errno::EXIST.into());
            }
            if rest.is_empty() {
                // The directories on the way cannot tell where a symbolic link leads.
                if *links == 0 && after.is_empty() && at.ino != ROOT {
                    let up_to = &path[..path.len() - name.len()];
                    recent::note(&self.fs.serial, &self.caller, up_to, &trail, at);
                }
                return Ok((at, name));
            }
            trail.leave(self.fs.session(), at.ino);
            at = self.step(at, name, links)?;
        }
    }

    pub fn open(&self, path: impl AsPath, how: Open) -> Result<File<'a>> {
        let path = path.bytes();
        if how.create {
            return self.open_create(path, how);
        }
        self.open_existing(path, how)
    }

    fn file(&self, ino: Ino, how: Open) -> File<'a> {
        File::new(self.fs, ino, how, self.caller.uid == 0)
    }

    #[inline]
    fn open_existing(&self, path: &[u8], how: Open) -> Result<File<'a>> {
        let found = self.walk_retain(path)?;
        // From here on the file gives the reference back, in any case.
        let file = self.file(found.ino, how);
        self.permit_open(&found, how)?;
        if how.truncate && (how.write || how.append) {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// [`walk`](Self::walk), symbolic links included, and a reference to the found inode.
    #[inline]
    fn walk_retain(&self, path: &[u8]) -> Result<Found> {
        if path.last().is_some_and(|b| *b != b'/') {
            let (dir, name) = self.parent(path)?;
            let (ino, raw) = self.fs.lookup_raw_retain(dir, name, &self.caller)?;
            if raw.kind != Kind::Symlink as u8 {
                return Ok(Found { ino, raw });
            }
            self.fs.release(ino, 1);
        }
        loop {
            let found = self.walk(path, true)?;
            self.fs.retain(found.ino, 1)?;
            // It may have gone between the walk and the reference.
            match self.fs.snapshot(found.ino) {
                Ok(raw) if raw.generation == found.raw.generation && raw.nlink > 0 => {
                    return Ok(Found { raw, ..found })
                }
                _ => self.fs.release(found.ino, 1),
            }
        }
    }

    fn permit_open(&self, found: &Found, how: Open) -> Result<()> {
        let writes = how.write || how.append || how.truncate;
        match found.raw.file_kind()? {
            Kind::Directory if writes || how.create => return Err(Errno::ISDIR.into()),
            Kind::Symlink => return Err(Errno::LOOP.into()),
            _ => {}
        }
        let read = if how.read { want::READ } else { 0 };
        self.fs.permit_seen(found.ino, &found.raw, &self.caller, read | if writes { want::WRITE } else { 0 })
    }

    fn open_create(&self, path: &[u8], how: Open) -> Result<File<'a>> {
        if path.last() == Some(&b'/') {
            return Err(Errno::ISDIR.into());
        }
        for _ in 0..SYMLINKS {
            let (dir, name) = self.parent(path)?;
            let mut made = Node::blank();
            match self.fs.create_at(dir, name, (Kind::Regular, how.mode, 0), &self.caller, true, &mut made) {
                Ok(()) => return Ok(self.file(made.ino, how)),
                Err(e) if e.errno() == Errno::EXIST && !how.exclusive => {}
                Err(e) => return Err(e),
            }
            match self.open_existing(path, how) {
                // A symbolic link to nothing: create its target.
                Err(e) if e.errno() == Errno::NOENT => {
                    if let Ok(target) = self.readlink(path) {
                        let full = if target.first() == Some(&b'/') {
                            target
                        } else {
                            [path.strip_suffix(name).unwrap_or_default(), &target].concat()
                        };
                        return self.open(&full, how);
                    }
                }
                done => return done,
            }
        }
        Err(Errno::LOOP.into())
    }

    /// Creates or truncates, for writing.
    pub fn create(&self, path: impl AsPath, mode: u32) -> Result<File<'a>> {
        self.open(path, Open::new().write(true).create(true).truncate(true).mode(mode))
    }

    pub fn mkdir(&self, path: impl AsPath, mode: u32) -> Result<Attr> {
        self.mknod(path, Kind::Directory, mode, 0)
    }

    pub fn mknod(&self, path: impl AsPath, kind: Kind, mode: u32, rdev: u64) -> Result<Attr> {
        let path = path.bytes();
        let (dir, name) = self.parent(path)?;
        let mut made = Node::blank();
        self.fs.create_at(dir, name, (kind, mode, rdev), &self.caller, false, &mut made)?;
        self.fs.note_attr(made.ino, &made.raw)
    }

    pub fn symlink(&self, target: impl AsPath, path: impl AsPath) -> Result<Attr> {
        let (target, path) = (target.bytes(), path.bytes());
        let (dir, name) = self.parent(path)?;
        self.fs.symlink_at(dir, name, target, &self.caller)
    }

    pub fn link(&self, old: impl AsPath, new: impl AsPath) -> Result<Attr> {
        let (old, new) = (old.bytes(), new.bytes());
        let found = self.walk(old, false)?;
        let (dir, name) = self.parent(new)?;
        self.fs.link_at(found.at(), dir, name, &self.caller)
    }

    pub fn unlink(&self, path: impl AsPath) -> Result<()> {
        let path = path.bytes();
        let (dir, name) = self.parent(path)?;
        if path.last() == Some(&b'/') {
            return Err(Errno::NOTDIR.into());
        }
        self.fs.remove(dir, name, &self.caller, false)
    }

    pub fn rmdir(&self, path: impl AsPath) -> Result<()> {
        let path = path.bytes();
        let (dir, name) = self.parent(path)?;
        self.fs.remove(dir, name, &self.caller, true)
    }

    pub fn rename(&self, from: impl AsPath, to: impl AsPath, how: Rename) -> Result<()> {
        let (from, to) = (from.bytes(), to.bytes());
        self.fs.rename_at(self.parent(from)?, self.parent(to)?, how, &self.caller)
    }

    pub fn readlink(&self, path: impl AsPath) -> Result<Vec<u8>> {
        let path = path.bytes();
        self.fs.readlink_at(self.walk(path, false)?.at())
    }

    /// The entries of a directory, `.` and `..` left out. One that is there throughout is among them exactly once.
    pub fn read_dir(&self, path: impl AsPath) -> Result<ReadDir<'a>> {
        // As an open directory: its names may go meanwhile, the directory itself stays.
        let found = self.walk_retain(path.bytes())?;
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
}

fn check_path(path: &[u8]) -> Result<()> {
    if path.len() > PATH_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(())
}

#[inline(always)]
fn trim_leading(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|b| *b != b'/').unwrap_or(path.len());
    &path[start..]
}

/// The path up to the first slash, and the rest.
#[inline(always)]
fn split_component(path: &[u8]) -> (&[u8], &[u8]) {
    path.split_at(bytes::position(path, b'/').unwrap_or(path.len()))
}
