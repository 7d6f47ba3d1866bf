//! From a path to an inode, component by component.

use rustix::io::Errno;

use super::View;
use crate::attr::{Ino, Kind, ROOT};
use crate::bytes;
use crate::error::{Error, Result};
use crate::layout::RawInode;
use crate::node::At;
use crate::recent::{self, Trail};

/// Longest path, in bytes.
pub const PATH_MAX: usize = 4095;
/// Most symbolic links followed in one path.
pub(super) const SYMLINKS: u32 = 40;

const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o002;

/// The part of the pool that a walk stays in: a mount of the pool as a process sees it. A walk that leads out of it fails with
/// [`Error::Outside`]; so does one that the kernel may refuse for a reason that the pool does not know.
#[derive(Clone, Copy, Debug)]
pub struct Within<'a> {
    /// Paths begin here.
    pub start: Ino,
    /// The root directory of the mount: `..` leads out of it.
    pub root: Ino,
    /// The path of that directory: an absolute symbolic link below it leads into the mount.
    pub dir: &'a [u8],
}

impl Within<'_> {
    /// The rest of an absolute path that leads into the mount.
    #[inline(always)]
    pub fn rest<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let rest = match self.dir {
            b"/" => return path.strip_prefix(b"/"),
            dir => path.strip_prefix(dir)?,
        };
        (rest.is_empty() || rest[0] == b'/').then_some(rest)
    }
}

/// Where a walk ended. It holds no reference: a caller that goes on from here says which inode it saw.
pub(super) struct Found {
    /// The directory with the name that led here.
    pub parent: Ino,
    pub ino: Ino,
    pub raw: RawInode,
}

impl Found {
    #[inline(always)]
    pub fn at(&self) -> At {
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
    /// Where paths begin.
    #[inline(always)]
    fn start(&self) -> Ino {
        self.within.map_or(ROOT, |within| within.start)
    }

    #[inline]
    pub(super) fn walk(&self, path: &[u8], follow: bool) -> Result<Found> {
        let mut links = 0;
        if path.iter().all(|b| *b == b'/') {
            return self.walk_from(self.start().into(), path, follow, &mut links);
        }
        let (dir, name) = self.parent_by(path, &mut links)?;
        self.walk_last(dir, name, (follow, is_of_dir(path)), &mut links)
    }

    #[inline]
    fn walk_from(&self, start: At, path: &[u8], follow: bool, links: &mut u32) -> Result<Found> {
        let (at, name) = self.parent_from(start, path, links)?;
        if name.is_empty() {
            return Ok(Found { parent: at.ino, ino: at.ino, raw: self.fs.snapshot(at)? });
        }
        self.walk_last(at, name, (follow, is_of_dir(path)), links)
    }

    /// Fails if `..` in `at` is the kernel's to follow.
    #[inline(never)]
    fn may_go_up(&self, at: At, within: &Within) -> Result<()> {
        match at.ino == within.root || self.fs.getattr(at.ino)?.nlink == 0 {
            true => Err(Error::Outside),
            false => Ok(()),
        }
    }

    /// The directory that holds the last component of `path`, and that component; none if the path is that of `start`.
    pub(super) fn parent_from<'p>(&self, start: At, path: &'p [u8], links: &mut u32) -> Result<(At, &'p [u8])> {
        let (mut at, mut rest) = (start, trim_leading(path));
        loop {
            let (name, after) = split_component(rest);
            rest = trim_leading(after);
            if rest.is_empty() {
                return Ok((at, name));
            }
            at = self.step(at, name, links)?;
        }
    }

    /// The directory `name` in `at`, a symbolic link followed.
    #[inline(always)]
    fn step(&self, at: At, name: &[u8], links: &mut u32) -> Result<At> {
        self.stay_below(at, name)?;
        let (next, kind) = self.fs.lookup_step(at, name, &self.caller)?;
        match kind {
            k if k == Kind::Directory as u8 => Ok(next),
            k if k == Kind::Symlink as u8 => self.follow(at, next, links)?.dir(),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// The last step of a walk. A slash behind the name says that it is a directory's.
    #[inline(always)]
    pub(super) fn walk_last(
        &self,
        at: At,
        name: &[u8],
        (follow, slash): (bool, bool),
        links: &mut u32,
    ) -> Result<Found> {
        self.stay_below(at, name)?;
        let (ino, raw) = self.fs.lookup_raw(at, name, &self.caller)?;
        let mut found = Found { parent: at.ino, ino, raw };
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
        let target = self.target(dir, link, links)?;
        let (start, rest) = self.start_of(dir, &target)?;
        self.walk_from(start, rest, true, links)
    }

    /// The path in the symbolic link `link`, found in `dir`.
    pub(super) fn target(&self, dir: At, link: At, links: &mut u32) -> Result<Vec<u8>> {
        *links += 1;
        if *links > SYMLINKS {
            return Err(Errno::LOOP.into());
        }
        self.may_follow(dir, link)?;
        self.fs.readlink_at(link)
    }

    /// Where the path `target` of a symbolic link in `dir` begins, and the rest of it.
    pub(super) fn start_of<'p>(&self, dir: At, target: &'p [u8]) -> Result<(At, &'p [u8])> {
        match (target.first(), self.within) {
            (Some(b'/'), None) => Ok((ROOT.into(), target)),
            (Some(b'/'), Some(within)) => Ok((within.root.into(), within.rest(target).ok_or(Error::Outside)?)),
            _ => Ok((dir, target)),
        }
    }

    /// In a directory in which everybody writes the kernel follows only links of its owner or of the caller, if it is set up so.
    fn may_follow(&self, dir: At, link: At) -> Result<()> {
        if self.within.is_none() {
            return Ok(());
        }
        let above = self.fs.seen_perm(dir.ino, &self.fs.snapshot(dir)?)?;
        if above.mode & (STICKY | OTHERS_WRITE) != STICKY | OTHERS_WRITE {
            return Ok(());
        }
        let own = self.fs.seen_perm(link.ino, &self.fs.snapshot(link)?)?;
        match own.uid == self.caller.uid || own.uid == above.uid {
            true => Ok(()),
            false => Err(Error::Outside),
        }
    }

    /// Fails if `name` in `at` leads above the root of the mount, or out of a directory that was removed: the kernel knows where that was.
    #[inline(always)]
    pub(super) fn stay_below(&self, at: At, name: &[u8]) -> Result<()> {
        match self.within {
            Some(within) if name == b".." => self.may_go_up(at, within),
            _ => Ok(()),
        }
    }

    /// The directory that holds the last component of `path`, and that component; none if the path is that of the start.
    #[inline]
    pub(super) fn parent<'p>(&self, path: &'p [u8]) -> Result<(At, &'p [u8])> {
        self.parent_by(path, &mut 0)
    }

    #[inline(always)]
    pub(super) fn parent_by<'p>(&self, path: &'p [u8], links: &mut u32) -> Result<(At, &'p [u8])> {
        if path.len() > PATH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        match recent::find(self.fs.session(), &self.fs.serial, &self.caller, self.start(), path) {
            Some(found) => Ok(found),
            None => self.parent_anew(path, links),
        }
    }

    /// [`parent_by`](Self::parent_by) where another directory was found last.
    #[inline(never)]
    fn parent_anew<'p>(&self, path: &'p [u8], links: &mut u32) -> Result<(At, &'p [u8])> {
        let start = self.start();
        let (mut at, mut rest, mut trail) = (At::from(start), trim_leading(path), Trail::NEW);
        loop {
            let (name, after) = split_component(rest);
            rest = trim_leading(after);
            if rest.is_empty() {
                // The directories on the way cannot tell where a symbolic link leads.
                if *links == 0 && after.is_empty() && at.ino != start {
                    let up_to = &path[..path.len() - name.len()];
                    recent::note(&self.fs.serial, &self.caller, start, up_to, &trail, at);
                }
                return Ok((at, name));
            }
            trail.leave(self.fs.session(), at.ino);
            at = self.step(at, name, links)?;
        }
    }
}

/// Does a slash behind the last name say that it is a directory's?
#[inline(always)]
pub(super) fn is_of_dir(path: &[u8]) -> bool {
    path.last() == Some(&b'/')
}

/// Is this last component no name: `.`, `..`, or that of the root?
#[inline(always)]
pub(super) fn is_no_name(name: &[u8]) -> bool {
    matches!(name, b"" | b"." | b"..")
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
