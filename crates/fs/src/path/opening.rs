//! Opening a file by its path.

use rustix::io::Errno;

use super::walk::{is_no_name, is_of_dir, Found, SYMLINKS};
use super::{AsPath, File, Open, View};
use crate::attr::{Caller, Ino, Kind, SetAttr};
use crate::error::{Error, Result};
use crate::node::{want, At, Node};

const STICKY: u32 = 0o1000;

/// A file as [`View::open_ino`] leaves it.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub ino: Ino,
    pub kind: Kind,
    /// The directory that it was found in.
    pub parent: Ino,
}

/// What is under a name that was to be made.
enum Reached {
    File(Opened),
    /// A symbolic link, which is followed.
    Link(At),
}

impl<'a> View<'a> {
    pub fn open(&self, path: impl AsPath, how: Open) -> Result<File<'a>> {
        let opened = self.open_ino(path, how)?;
        Ok(self.file(opened.ino, how))
    }

    /// [`open`](Self::open) for a caller that keeps the open file itself: it gets a reference to the inode.
    #[inline]
    pub fn open_ino(&self, path: impl AsPath, how: Open) -> Result<Opened> {
        let path = path.bytes();
        if !how.create {
            let found = self.walk_retain(path, !how.no_follow)?;
            return self.open_found(found, how);
        }
        let mut links = 0;
        let (dir, name) = self.parent_by(path, &mut links)?;
        match self.open_in(dir, (name, is_of_dir(path)), how)? {
            Reached::File(opened) => Ok(opened),
            Reached::Link(link) => self.open_by_links(dir, link, how, &mut links),
        }
    }

    pub(super) fn file(&self, ino: Ino, how: Open) -> File<'a> {
        File::new(self.fs, ino, how, self.caller.uid == 0)
    }

    /// Opens what was found, and to which the caller has a reference.
    #[inline(always)]
    fn open_found(&self, found: Found, how: Open) -> Result<Opened> {
        let opened = self.permit_open(&found, how).and_then(|kind| {
            if how.truncate && kind == Kind::Regular {
                self.truncate(found.ino)?;
            }
            Ok(Opened { ino: found.ino, kind, parent: found.parent })
        });
        opened.inspect_err(|_| self.fs.release(found.ino, 1))
    }

    fn truncate(&self, ino: Ino) -> Result<()> {
        let kill_suidgid = self.caller.uid != 0;
        let set = SetAttr { size: Some(0), by_handle: true, kill_suidgid, ..SetAttr::default() };
        self.fs.setattr(ino, &set, &Caller { checked: true, ..Caller::root() }).map(drop)
    }

    /// [`walk`](Self::walk), and a reference to the found inode.
    #[inline]
    pub(super) fn walk_retain(&self, path: &[u8], follow: bool) -> Result<Found> {
        if path.last().is_some_and(|b| *b != b'/') {
            let (dir, name) = self.parent(path)?;
            let found = self.lookup_retain(dir, name)?;
            if !follow || found.raw.kind != Kind::Symlink as u8 {
                return Ok(found);
            }
            self.fs.release(found.ino, 1);
        }
        loop {
            let found = self.walk(path, follow)?;
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

    #[inline(always)]
    fn lookup_retain(&self, dir: At, name: &[u8]) -> Result<Found> {
        self.stay_below(dir, name)?;
        let (ino, raw) = self.fs.lookup_raw_retain(dir, name, &self.caller)?;
        Ok(Found { parent: dir.ino, ino, raw })
    }

    #[inline(always)]
    fn permit_open(&self, found: &Found, how: Open) -> Result<Kind> {
        let writes = how.write || how.append || how.truncate;
        let kind = found.raw.file_kind()?;
        match kind {
            Kind::Directory if writes || how.create => return Err(Errno::ISDIR.into()),
            Kind::Directory => {}
            _ if how.directory => return Err(Errno::NOTDIR.into()),
            Kind::Symlink => return Err(Errno::LOOP.into()),
            // What these are is the kernel's.
            kind if kind != Kind::Regular && self.within.is_some() => return Err(Error::Outside),
            _ if writes && self.within.is_some() && self.may_run(found)? => return Err(Error::Outside),
            _ => {}
        }
        let read = if how.read { want::READ } else { 0 };
        self.fs.permit_seen(found.ino, &found.raw, &self.caller, read | if writes { want::WRITE } else { 0 })?;
        Ok(kind)
    }

    /// May this file be a program that runs, by a kernel that has it? Only that kernel can tell.
    #[inline(always)]
    fn may_run(&self, found: &Found) -> Result<bool> {
        let session = self.fs.session();
        Ok(session.is_cached(found.ino) && self.fs.perms().get(session, found.raw.perm)?.mode & 0o111 != 0)
    }

    /// Makes the file `name` in `dir`, or opens it if it is there.
    #[inline(always)]
    fn open_in(&self, dir: At, (name, slash): (&[u8], bool), how: Open) -> Result<Reached> {
        if slash || is_no_name(name) {
            let exists = how.exclusive && !slash;
            return Err(if exists { Errno::EXIST } else { Errno::ISDIR }.into());
        }
        // It may go between two looks.
        for _ in 0..SYMLINKS {
            let mut made = Node::blank();
            match self.fs.create_at(dir, name, (Kind::Regular, how.mode, 0), &self.caller, true, &mut made) {
                Ok(()) => return Ok(Reached::File(Opened { ino: made.ino, kind: Kind::Regular, parent: dir.ino })),
                Err(e) if e.errno() == Errno::EXIST && !how.exclusive => {}
                Err(e) => return Err(e),
            }
            match self.lookup_retain(dir, name) {
                Err(e) if e.errno() == Errno::NOENT => {}
                found => return self.open_there(dir, found?, how),
            }
        }
        Err(Errno::LOOP.into())
    }

    /// Opens what is there under a name that was to be made.
    fn open_there(&self, dir: At, found: Found, how: Open) -> Result<Reached> {
        if found.raw.kind == Kind::Symlink as u8 && !how.no_follow {
            self.fs.release(found.ino, 1);
            return Ok(Reached::Link(found.at()));
        }
        self.may_make_over(dir, &found).inspect_err(|_| self.fs.release(found.ino, 1))?;
        self.open_found(found, how).map(Reached::File)
    }

    /// Opens the file that a symbolic link in `dir` leads to, or makes it. A loop: forty links take no more stack than one.
    #[cold]
    #[inline(never)]
    fn open_by_links(&self, mut dir: At, mut link: At, how: Open, links: &mut u32) -> Result<Opened> {
        loop {
            let target = self.target(dir, link, links)?;
            let (start, rest) = self.start_of(dir, &target)?;
            let (next, name) = self.parent_from(start, rest, links)?;
            match self.open_in(next, (name, is_of_dir(rest)), how)? {
                Reached::File(opened) => return Ok(opened),
                Reached::Link(further) => (dir, link) = (next, further),
            }
        }
    }

    /// In a sticky directory the kernel may refuse those who would make a file and find that of another.
    fn may_make_over(&self, dir: At, found: &Found) -> Result<()> {
        if self.within.is_none() || found.raw.is_dir() {
            return Ok(());
        }
        let above = self.fs.seen_perm(dir.ino, &self.fs.snapshot(dir)?)?;
        if above.mode & STICKY == 0 {
            return Ok(());
        }
        let own = self.fs.seen_perm(found.ino, &found.raw)?;
        match own.uid == self.caller.uid || own.uid == above.uid {
            true => Ok(()),
            false => Err(Error::Outside),
        }
    }
}
