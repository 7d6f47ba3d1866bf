//! Names and attributes; reading without locks.

use rustix::io::Errno;

use super::names::Names;
use super::{content_of, want, At, Fs};
use crate::attr::{Attr, Caller, Ino, Kind, Time};
use crate::dir::{self, Dir};
use crate::error::Result;
use crate::file;
use crate::inode::Node;
use crate::layout::{RawInode, RawPerm};

impl Node {
    #[inline(always)]
    pub fn kind(&self) -> Result<Kind> {
        self.raw.file_kind()
    }

    pub fn is_dir(&self) -> bool {
        self.raw.is_dir()
    }

    /// The directory as `dir` works on it; put it back with [`set_dir`](Self::set_dir).
    #[inline(always)]
    pub(crate) fn dir(&self) -> Dir {
        Dir::of(&self.raw)
    }

    #[inline(always)]
    pub(crate) fn set_dir(&mut self, d: &Dir) {
        self.raw.content = d.root;
        self.raw.size = d.entries;
    }
}

/// A new inode.
pub(super) fn fresh(kind: Kind, perm: u32, generation: u32, Time(now): Time) -> RawInode {
    RawInode {
        content: 0,
        size: 0,
        extra: 0,
        mtime: now,
        ctime: now,
        atime: now,
        btime: now,
        xattr: 0,
        perm,
        nlink: 1,
        generation,
        kind: kind as u8,
        delay: 0,
        settings: 0,
    }
}

impl Fs {
    /// The inode as it is at some instant, without its lock. ESTALE if there is none.
    #[inline(always)]
    pub(crate) fn snapshot(&self, ino: impl Into<At>) -> Result<RawInode> {
        let (at, mut node) = (ino.into(), Node::blank());
        self.session().read(at.ino, || self.read_node(at, &mut node))?;
        Ok(node.raw)
    }

    /// The inode, for a caller that holds its lock or reads optimistically.
    #[inline(always)]
    pub(crate) fn raw(&self, ino: impl Into<At>) -> Result<RawInode> {
        Ok(self.node(ino)?.raw)
    }

    /// The directory, for a caller that holds its lock or reads optimistically.
    #[inline(always)]
    pub(super) fn raw_dir(&self, ino: impl Into<At>) -> Result<RawInode> {
        Ok(self.dir_node(ino)?.raw)
    }

    /// The inode, for an operation that holds its lock.
    #[inline(always)]
    pub(crate) fn node(&self, ino: impl Into<At>) -> Result<Node> {
        let mut node = Node::blank();
        self.read_node(ino, &mut node)?;
        Ok(node)
    }

    /// The same, read into `node`: a processor waits when it copies bytes right after they were stored.
    #[inline(always)]
    pub(crate) fn read_node(&self, ino: impl Into<At>, node: &mut Node) -> Result<()> {
        let at = ino.into();
        if let Some(place) = self.table().read(at.ino, &mut node.raw)? {
            (node.ino, node.place) = (at.ino, place);
            if at.is(&node.raw) {
                return Ok(());
            }
        }
        // A caller without a generation holds a reference; the others see a name that is gone.
        Err(if at.generation.is_some() { Errno::NOENT } else { Errno::STALE }.into())
    }

    /// The same, if it is the file that was seen before the lock and its permissions have not changed since.
    pub(super) fn node_as_seen(&self, ino: Ino, seen: &RawInode) -> Result<Option<Node>> {
        let node = self.node(ino)?;
        Ok((node.raw.perm == seen.perm && node.raw.generation == seen.generation).then_some(node))
    }

    /// The directory, for an operation that holds its lock and wants to change it.
    #[inline(always)]
    pub(super) fn dir_node(&self, ino: impl Into<At>) -> Result<Node> {
        let mut node = Node::blank();
        self.read_dir_node(ino, &mut node)?;
        Ok(node)
    }

    /// The same, put where it is wanted.
    #[inline(always)]
    pub(super) fn read_dir_node(&self, ino: impl Into<At>, node: &mut Node) -> Result<()> {
        self.read_node(ino, node)?;
        if !node.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn names(&self) -> Names<'_> {
        Names::new(self.super_block().hash_key, self.table())
    }

    /// The entry of a directory that the caller holds or reads optimistically.
    #[inline(always)]
    pub(super) fn find(&self, d: &RawInode, name: &[u8]) -> Result<Option<dir::Entry>> {
        dir::lookup(self.memory(), &self.names(), &Dir::of(d), name)
    }

    /// The public attributes of an inode that was seen, is not locked and not being read.
    #[inline(always)]
    pub(crate) fn attr(&self, ino: Ino, raw: &RawInode) -> Result<Attr> {
        self.attr_with(ino, raw, self.seen_perm(ino, raw)?)
    }

    #[inline(always)]
    fn attr_with(&self, ino: Ino, raw: &RawInode, perm: RawPerm) -> Result<Attr> {
        let kind = raw.file_kind()?;
        let blocks = match kind {
            Kind::Regular | Kind::Symlink => file::allocated(self.memory(), &content_of(ino, raw)).div_ceil(512),
            // Outside a section the bucket that `raw` knows may be gone: no reason to fail.
            Kind::Directory => dir::allocated(self.memory(), &Dir::of(raw)).unwrap_or(0).div_ceil(512),
            _ => 0,
        };
        Ok(Attr {
            ino,
            generation: raw.generation,
            kind,
            perm: perm.mode & 0o7777,
            nlink: raw.nlink,
            uid: perm.uid,
            gid: perm.gid,
            rdev: if kind.is_device() { raw.extra } else { 0 },
            size: if kind == Kind::Directory { blocks.saturating_mul(512) } else { raw.size },
            blocks,
            atime: Time(raw.atime),
            mtime: Time(raw.mtime),
            ctime: Time(raw.ctime),
            btime: Time(raw.btime),
        })
    }

    /// The entry `name` of directory `parent`. `.` and `..` work.
    #[inline]
    pub fn lookup(&self, parent: Ino, name: &[u8], caller: &Caller) -> Result<Attr> {
        let (ino, raw) = self.lookup_raw(parent, name, caller)?;
        self.note_attr(ino, &raw)
    }

    /// Attributes to show: of the inode as it was found, or as it is now if a process may have changed it without
    /// knowing that its times are seen.
    pub(crate) fn note_attr(&self, ino: Ino, found: &RawInode) -> Result<Attr> {
        let mut raw = *found;
        while self.note_look(ino, raw.ctime) {
            match self.snapshot(At::seen(ino, found)) {
                Ok(now) => raw = now,
                // It is gone.
                Err(_) => break,
            }
        }
        self.attr(ino, &raw)
    }

    #[inline(always)]
    pub(crate) fn lookup_raw(&self, dir: impl Into<At>, name: &[u8], caller: &Caller) -> Result<(Ino, RawInode)> {
        let mut node = Node::blank();
        let ino = self.lookup_by(dir.into(), name, caller, |ino| self.read_node(ino, &mut node))?;
        Ok((ino, node.raw))
    }

    /// [`lookup_raw`](Self::lookup_raw) for a caller that only goes on from there: the inode, and its type.
    #[inline(always)]
    pub(crate) fn lookup_step(&self, dir: At, name: &[u8], caller: &Caller) -> Result<(At, u8)> {
        let (mut generation, mut kind) = (0, 0);
        let ino = self.lookup_by(dir, name, caller, |ino| {
            (generation, kind) = self.table().identity(ino)?.ok_or(Errno::STALE)?;
            Ok(())
        })?;
        Ok((At { ino, generation: Some(generation) }, kind))
    }

    /// Looks `name` up and the inode that it names, with `see`.
    #[inline(always)]
    fn lookup_by(&self, dir: At, name: &[u8], caller: &Caller, mut see: impl FnMut(Ino) -> Result<()>) -> Result<Ino> {
        if name.len() > crate::attr::NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        match self.session().try_read(dir.ino, || self.look(dir, name, caller, &mut see)) {
            Some(Ok(Some(ino))) => Ok(ino),
            Some(Err(e)) => Err(e),
            _ => self.lookup_locked(dir, name, caller, see, false),
        }
    }

    /// One look at `name`, inside the section of `dir`; `None` if the named inode could not be read.
    #[inline(always)]
    fn look(
        &self,
        dir: At,
        name: &[u8],
        caller: &Caller,
        see: &mut impl FnMut(Ino) -> Result<()>,
    ) -> Result<Option<Ino>> {
        let ino = self.target(dir, name, caller)?;
        // Inside the parent's section: the name and the inode belong to one instant.
        match self.session().try_read(ino, || see(ino)) {
            Some(seen) => seen.map(|()| Some(ino)),
            None => Ok(None),
        }
    }

    /// The target of `name`, under the lock of `dir` or for an optimistic reader.
    #[inline(always)]
    fn target(&self, dir: At, name: &[u8], caller: &Caller) -> Result<Ino> {
        let raw = self.raw_dir(dir)?;
        self.permit(&raw, caller, want::EXEC)?;
        match name {
            b"." => Ok(dir.ino),
            // The former parent of a removed directory may be anything by now.
            b".." if raw.nlink == 0 => Err(Errno::NOENT.into()),
            b".." => Ok(raw.extra),
            _ => Ok(self.find(&raw, name)?.ok_or(Errno::NOENT)?.ino),
        }
    }

    /// A lookup where others change the directory all the time. It holds both locks at once: to wait for
    /// the one with the other in hand could be for ever.
    #[cold]
    #[inline(never)]
    fn lookup_locked(
        &self,
        dir: At,
        name: &[u8],
        caller: &Caller,
        mut see: impl FnMut(Ino) -> Result<()>,
        retain: bool,
    ) -> Result<Ino> {
        let mut op = self.aside()?;
        loop {
            let guess = op.read(dir.ino, || self.target(dir, name, caller))?;
            op.lock(&[dir.ino, guess])?;
            if self.target(dir, name, caller)? == guess {
                see(guess)?;
                if retain {
                    self.retain(guess, 1)?;
                }
                return Ok(guess);
            }
            op.unlock();
        }
    }

    /// [`lookup`](Self::lookup), and a reference to the found inode, which is of the same instant.
    pub fn lookup_retain(&self, parent: Ino, name: &[u8], caller: &Caller) -> Result<Attr> {
        let (ino, raw) = self.lookup_raw_retain(parent, name, caller)?;
        self.note_attr(ino, &raw).inspect_err(|_| self.release(ino, 1))
    }

    /// Takes the reference before the parent's section ends: while the name is there the inode cannot end,
    /// and a later removal of the name sees the reference.
    #[inline]
    pub(crate) fn lookup_raw_retain(
        &self,
        dir: impl Into<At>,
        name: &[u8],
        caller: &Caller,
    ) -> Result<(Ino, RawInode)> {
        let dir = dir.into();
        if name.len() > crate::attr::NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let (mut node, mut taken) = (Node::blank(), None::<Ino>);
        let found = self.session().try_read(dir.ino, || {
            // The last round's result was torn.
            if let Some(ino) = taken.take() {
                self.release(ino, 1);
            }
            let found = self.look(dir, name, caller, &mut |ino| self.read_node(ino, &mut node))?;
            if let Some(ino) = found {
                self.retain(ino, 1)?;
            }
            taken = found;
            Ok(taken)
        });
        if let Some(Ok(Some(ino))) = found {
            return Ok((ino, node.raw));
        }
        if let Some(ino) = taken {
            self.release(ino, 1);
        }
        match found {
            Some(Err(e)) => Err(e),
            _ => {
                let ino = self.lookup_locked(dir, name, caller, |ino| self.read_node(ino, &mut node), true)?;
                Ok((ino, node.raw))
            }
        }
    }

    /// Attributes. Works for unlinked inodes that are still referenced.
    #[inline]
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        loop {
            let attr = self.attr_now(ino)?;
            if !self.note_look(ino, attr.ctime.0) {
                return Ok(attr);
            }
        }
    }

    fn attr_now(&self, ino: Ino) -> Result<Attr> {
        self.session().read(ino, || {
            let raw = self.raw(ino)?;
            self.attr_with(ino, &raw, self.perms().get(self.session(), raw.perm)?)
        })
    }

    /// Fails with EACCES unless `caller` may do `wanted` (rwx bits) to the inode; for a caller that holds its lock
    /// or reads optimistically.
    #[inline(always)]
    pub(crate) fn permit(&self, raw: &RawInode, caller: &Caller, wanted: u32) -> Result<()> {
        let all = caller.uid == 0 && (wanted & want::EXEC == 0 || raw.is_dir());
        if caller.checked || all {
            return Ok(());
        }
        self.permit_slow(raw, caller, wanted)
    }

    #[inline(never)]
    fn permit_slow(&self, raw: &RawInode, caller: &Caller, wanted: u32) -> Result<()> {
        let perm = self.perms().get(self.session(), raw.perm)?;
        if caller.uid == 0 {
            let any_exec = perm.mode & 0o111 != 0 || raw.is_dir();
            return if wanted & want::EXEC == 0 || any_exec { Ok(()) } else { Err(Errno::ACCESS.into()) };
        }
        let granted = match self.access_acl(raw)? {
            Some(acl) => crate::acl::permits(&acl, caller, perm.uid, perm.gid, wanted),
            None => {
                let shift = match () {
                    _ if caller.uid == perm.uid => 6,
                    _ if caller.in_group(perm.gid) => 3,
                    _ => 0,
                };
                perm.mode >> shift & wanted == wanted
            }
        };
        if granted {
            Ok(())
        } else {
            Err(Errno::ACCESS.into())
        }
    }

    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.readlink_at(ino.into())
    }

    pub(crate) fn readlink_at(&self, at: At) -> Result<Vec<u8>> {
        self.session().read(at.ino, || {
            let raw = self.raw(at)?;
            if raw.kind != Kind::Symlink as u8 {
                return Err(Errno::INVAL.into());
            }
            let mut target = vec![0; raw.size.min(crate::attr::SYMLINK_MAX as u64) as usize];
            let n = file::read(self.memory(), &content_of(at.ino, &raw), 0, &mut target, |_, _| {})?;
            target.truncate(n);
            Ok(target)
        })
    }

    /// May `caller` do `wanted` to `ino`? For `access(2)`.
    pub fn access(&self, ino: Ino, wanted: u32, caller: &Caller) -> Result<()> {
        let raw = self.snapshot(ino)?;
        self.permit_seen(ino, &raw, caller, wanted & 7)
    }

    /// [`permit`](Self::permit) for an inode that was seen, is not locked and not being read.
    #[inline(always)]
    pub(crate) fn permit_seen(&self, ino: Ino, raw: &RawInode, caller: &Caller, wanted: u32) -> Result<()> {
        if caller.checked || raw.xattr == 0 && self.session().runtime().numbering() == 0 {
            let permitted = self.permit(raw, caller, wanted);
            if caller.checked || self.session().runtime().numbering() == 0 {
                return permitted;
            }
        }
        // The ACL may have been replaced, and its memory be another's, since; or the triple be another.
        let at = At::seen(ino, raw);
        self.session().read(ino, || self.permit(&self.raw(at)?, caller, wanted))
    }
}
