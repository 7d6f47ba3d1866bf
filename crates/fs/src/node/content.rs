//! Read, write, allocate, seek.

use pram::Op;
use rustix::io::Errno;

use super::may_wait::is_hurried;
use super::piece::Provision;
use super::update::Update;
use super::watch::Part;
use super::{now, At, Fs, Node, ReadFlags, Seek, WriteFlags};
use crate::attr::{Attr, Ino, Kind, Time};
use crate::error::{Error, Lack, Result};
use crate::file::{self, Edit, Sought};
use crate::layout::RawInode;
use crate::retry::is_lack;
use crate::ubj;
use crate::xattr;

/// A file whose last change is older, in nanoseconds, is done growing for now.
const QUIET: i64 = 2_000_000_000;
/// Files remembered for trimming.
const TAILS: usize = 1 << 16;

/// The attribute of Linux with a program's rights beyond those of its caller.
const CAPABILITY: &[u8] = b"security.capability";

/// Whether others may write to a file while it is changed.
#[derive(Clone, Copy)]
pub(super) enum Writers {
    /// Others: if one of them is in the midst of a change of several pieces it is waited for.
    Others,
    /// None: the caller has the file's long lock.
    None,
}

impl Fs {
    /// Reads up to `buf.len()` bytes at `offset`; short only at the end of the file. Touches atime as the
    /// pool's policy (relatime by default) says.
    #[inline]
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_as(ino, offset, buf, ReadFlags::default())
    }

    /// [`read`](Self::read) with flags.
    #[inline]
    pub fn read_as(&self, ino: Ino, offset: u64, buf: &mut [u8], flags: ReadFlags) -> Result<usize> {
        let mut node = Node::blank();
        let n = self.read_content(ino, offset, buf, flags, &mut node)?;
        if !flags.unnoted {
            self.note_access(ino, &node.raw)?;
        }
        Ok(n)
    }

    #[inline(always)]
    fn read_content(&self, ino: Ino, offset: u64, buf: &mut [u8], flags: ReadFlags, node: &mut Node) -> Result<usize> {
        let done = self.session().read(ino, || {
            self.read_regular(ino, node)?;
            let found = |at, len| ubj::note_hit(self.session(), at, len, flags.caller_caches);
            file::read(self.memory(), &node.content(), offset, buf, found)
        });
        match done {
            Err(Error::Elsewhere) => self.read_elsewhere(ino, offset, buf, flags, node),
            done => done,
        }
    }

    /// Reads compressed content, or content on disk.
    #[cold]
    #[inline(never)]
    fn read_elsewhere(
        &self,
        ino: Ino,
        offset: u64,
        buf: &mut [u8],
        flags: ReadFlags,
        node: &mut Node,
    ) -> Result<usize> {
        loop {
            if let Some(n) = self.read_compressed(ino, offset, buf, node)? {
                return Ok(n);
            }
            if let Some(n) = self.read_fetched(ino, offset, buf, flags, node)? {
                return Ok(n);
            }
        }
    }

    #[inline(always)]
    pub(super) fn read_regular(&self, ino: Ino, node: &mut Node) -> Result<()> {
        self.read_node(ino, node)?;
        check_regular(&node.raw)
    }

    /// Writes all of `data`, atomically up to 1 MiB, in pieces of 1 MiB beyond, between which no other call writes to the
    /// file; if one fails, for want of space or otherwise, the pieces before stay. Where there is no room for a copy,
    /// memory that the file has is written page by page. Returns the offset it went to and the new attributes.
    #[inline]
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<(u64, Attr)> {
        let mut node = Node::blank();
        let at = self.write_node(ino, offset, data, flags, &mut node)?;
        Ok((at, self.attr(ino, &node.raw)?))
    }

    /// [`write`](Self::write) for a caller that wants no attributes.
    #[inline]
    pub fn write_at(&self, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<u64> {
        self.write_node(ino, offset, data, flags, &mut Node::blank())
    }

    /// The size of a file. Nobody sees its times by that.
    #[inline]
    pub fn size(&self, ino: Ino) -> Result<u64> {
        Ok(self.snapshot(ino)?.size)
    }

    /// Has an inode that is still referenced no name any more?
    pub fn is_removed(&self, ino: Ino) -> Result<bool> {
        Ok(self.snapshot(ino)?.nlink == 0)
    }

    /// [`write`](Self::write); the inode as it is then goes to `node`.
    #[inline]
    pub(crate) fn write_node(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        node: &mut Node,
    ) -> Result<u64> {
        self.recall_content(ino);
        if flags.kill_suidgid {
            self.kill_setid(ino)?;
        }
        if let Some(union) = self.union().filter(|union| offset.saturating_add(data.len() as u64) > union.threshold()) {
            // A write then waits for the disk, once it has written.
            if union.is_behind(self.session()) {
                self.before_waiting()?;
            }
        }
        let start = match data.len() as u64 <= file::ATOMIC {
            true => self.update(|op| self.write_in(op, ino, offset, data, flags, node, Writers::Others))?,
            false => self.write_long(ino, offset, data, flags, node)?,
        };
        if self.has_tail(node) {
            self.note_tail(ino);
        }
        if let Some(union) = self.union().filter(|_| node.content().is_large()) {
            if union.note_written(self.session(), data.len() as u64) && !is_hurried() {
                self.above.wait_behind(self)?;
            }
            union.note_use(node.ino, &node.raw);
        }
        Ok(start)
    }

    /// Writes data that takes several pieces.
    #[cold]
    #[inline(never)]
    fn write_long(&self, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags, node: &mut Node) -> Result<u64> {
        let _lock = self.session().long_lock(ino)?;
        self.update(|op| self.write_in(op, ino, offset, data, flags, node, Writers::None))
    }

    /// Locks a file whose content is to change, and reads it, once no other call has precedence. A change of several pieces
    /// has, if there may be `others`, and so has the freeing of a part that was cut off.
    #[inline(always)]
    pub(super) fn lock_content(&self, op: &mut Op, ino: Ino, node: &mut Node, others: Writers) -> Result<()> {
        loop {
            match others {
                Writers::Others => op.lock_apart(ino)?,
                Writers::None => op.lock(&[ino])?,
            }
            self.read_node(ino, node)?;
            if node.raw.kind != Kind::Regular as u8 {
                return Ok(());
            }
            // Before anything is done with content, which is not all undone.
            node.plain()?;
            if node.content().is_large() && !self.lock_large(op, node, others)? {
                continue;
            }
            if !node.content().is_cut() {
                return Ok(());
            }
            self.cut_off(op, node)?;
            op.unlock();
        }
    }

    /// Locks a large file, of which `op` has the lock, together with the log's table; false if another call has precedence.
    #[cold]
    #[inline(never)]
    fn lock_large(&self, op: &mut Op, node: &mut Node, others: Writers) -> Result<bool> {
        op.unlock();
        op.lock(&[node.ino, ilfs::KEY])?;
        self.read_node(node.ino, node)?;
        let theirs = matches!(others, Writers::Others) && op.is_long_locked(node.ino);
        if theirs || !node.content().is_large() {
            op.unlock();
            return Ok(false);
        }
        Ok(true)
    }

    /// Locks a file of which nothing else is known, and reads it; with the log's table if it is large.
    pub(crate) fn lock_node(&self, op: &mut Op, at: At, node: &mut Node) -> Result<()> {
        op.lock(&[at.ino])?;
        self.read_node(at, node)?;
        while node.raw.kind == Kind::Regular as u8 && node.content().is_large() {
            op.unlock();
            op.lock(&[at.ino, ilfs::KEY])?;
            self.read_node(at, node)?;
            if node.content().is_large() {
                break;
            }
            op.unlock();
            op.lock(&[at.ino])?;
            self.read_node(at, node)?;
        }
        Ok(())
    }

    /// Writes `data`; the offset that it went to.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn write_in(
        &self,
        op: &mut Update,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        node: &mut Node,
        others: Writers,
    ) -> Result<u64> {
        self.lock_content(op, ino, node, others)?;
        match self.write_locked(op, ino, offset, data, flags, node) {
            Err(Error::Elsewhere) => {}
            done => return done,
        }
        let range = |node: &Node| {
            let start = flags.start(offset, node.raw.size);
            (start, start.saturating_add(data.len() as u64))
        };
        let write = |op: &mut Update, node: &mut Node| self.write_locked(op, ino, offset, data, flags, node);
        self.again_with_content(op, node, others, range, write)
    }

    #[inline(always)]
    fn write_locked(
        &self,
        op: &mut Update,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        node: &mut Node,
    ) -> Result<u64> {
        check_regular(&node.raw)?;
        let start = flags.start(offset, node.raw.size);
        let end = start.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        if end > file::MAX_SIZE {
            return Err(Errno::FBIG.into());
        }
        if !data.is_empty() {
            node.touch(self.stamp([&*node]));
        }
        if flags.kill_capability && node.raw.xattr != 0 && !data.is_empty() {
            self.kill_capability(op, node)?;
        }
        op.tell_inode(ino, Part::of_content(node.raw.size, end));
        let all = match (1..=file::ATOMIC).contains(&(data.len() as u64)) {
            true => self.write_or_over(op, node, start, data, flags)?,
            false => self.write_pieces(op, node, start, data, flags)?,
        };
        if !all {
            self.note_tail(ino);
            return Err(Errno::NOSPC.into());
        }
        Ok(start)
    }

    /// Does the file's block have a tail that could be given back?
    #[inline(always)]
    fn has_tail(&self, node: &Node) -> bool {
        file::has_slack(self.memory(), &node.content())
    }

    /// [`note_tail`](Self::note_tail) of a file that has one.
    pub(crate) fn note_tail_of(&self, node: &Node) {
        if self.has_tail(node) {
            self.note_tail(node.ino);
        }
    }

    /// A file was cut, or something of it was: it may be a small one again.
    pub(super) fn note_cut(&self, ino: Ino) {
        if let (Some(union), Ok(raw)) = (self.union(), self.snapshot(ino)) {
            union.note_use(ino, &raw);
        }
    }

    /// Remembers a file that grew into more memory than it needs yet, for [`trim_tails`](Self::trim_tails).
    #[cold]
    #[inline(never)]
    fn note_tail(&self, ino: Ino) {
        let mut tails = self.tails.lock().unwrap_or_else(|e| e.into_inner());
        if tails.last() != Some(&ino) && tails.len() < TAILS {
            tails.push(ino);
        }
    }

    /// Gives back the unused tails of files that this process has appended to and that have been quiet for
    /// a while. A mount sees no file closed, so this takes the place of closing.
    pub fn trim_tails(&self) -> Result<()> {
        let mut noted = std::mem::take(&mut *self.tails.lock().unwrap_or_else(|e| e.into_inner()));
        noted.sort_unstable();
        noted.dedup();
        for ino in noted {
            match self.snapshot(ino) {
                Ok(raw) if now().0.saturating_sub(raw.mtime) < QUIET => self.note_tail(ino),
                Ok(raw) if raw.kind == Kind::Regular as u8 => self.trim(ino)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives back the unused tail of a file.
    pub(super) fn trim(&self, ino: Ino) -> Result<()> {
        self.removing(|op| self.trim_in(op, ino))
    }

    fn trim_in(&self, op: &mut Op, ino: Ino) -> Result<()> {
        op.lock(&[ino])?;
        let Ok(mut node) = self.node(ino) else { return Ok(()) };
        // A change of several pieces, or a truncation, that is under way may yet need it.
        if node.kind()? != Kind::Regular || op.is_long_locked(ino) || node.content().is_cut() {
            return Ok(());
        }
        let mut tx = op.tx()?;
        let mut c = node.content();
        if file::trim(&mut Edit::in_memory(&mut tx), &mut c)? {
            node.set_content(&c);
            node.save_hot(&mut tx)?;
            tx.commit()?;
        }
        Ok(())
    }

    /// Writes in more than one transaction, each in an operation of its own, or nothing at all. False if only a part
    /// could be written for want of room; it stays.
    #[cold]
    #[inline(never)]
    fn write_pieces(&self, op: &mut Op, node: &mut Node, start: u64, data: &[u8], flags: WriteFlags) -> Result<bool> {
        let (mut at, mut all) = (start, true);
        for piece in data.chunks(file::ATOMIC as usize) {
            if at > start {
                self.next_piece(op, node)?;
            }
            let written = self.piece(op, node, Provision::of_piece(at == start), |op, node| {
                let range = |_: &Node| (at, at + piece.len() as u64);
                let write = |op: &mut &mut Op, node: &mut Node| self.write_or_over(op, node, at, piece, flags);
                self.with_content(&mut &mut *op, node, Writers::None, range, write)
            });
            match written {
                Ok(whole) => all &= whole,
                Err(e) if at > start && e.is_full() => return Ok(false),
                Err(e) => return Err(e),
            }
            at += piece.len() as u64;
        }
        Ok(all)
    }

    /// Writes in one transaction if there is room for it. False if only a part could be written, which stays.
    #[inline(always)]
    fn write_or_over(&self, op: &mut Op, node: &mut Node, at: u64, piece: &[u8], flags: WriteFlags) -> Result<bool> {
        if self.has_to_leave(node, piece) {
            return Err(Error::MustMakeRoom(Lack::Memory));
        }
        match self.write_piece(op, node, at, piece) {
            Ok(()) => Ok(true),
            Err(e) if is_lack(&e) => Err(e),
            Err(e) => match self.lack(&e) {
                Some(lack) => Err(Error::MustMakeRoom(lack)),
                None => self.write_over(op, node, at, piece, flags, e),
            },
        }
    }

    /// Has memory to be left to others, rather than taken for this piece?
    #[inline(always)]
    fn has_to_leave(&self, node: &Node, piece: &[u8]) -> bool {
        let is_small = piece.len() as u64 >= file::PAGE && !node.content().is_large();
        self.union().filter(|_| is_small).is_some_and(|union| union.is_tight(self.session(), piece.len() as u64))
    }

    /// Writes data that has failed with `full`, for want of memory for a copy, over the memory that the file has: the undo log
    /// takes a page, so each is a transaction of its own. False if only a part could be written.
    #[cold]
    #[inline(never)]
    fn write_over(
        &self,
        op: &mut Op,
        node: &mut Node,
        start: u64,
        piece: &[u8],
        flags: WriteFlags,
        full: Error,
    ) -> Result<bool> {
        if full.errno() != Errno::NOSPC {
            return Err(full);
        }
        self.read_again(node)?;
        let has_memory = file::has_memory(self.memory(), &node.content(), start, piece.len() as u64)?;
        if !has_memory && !flags.write_back {
            return Err(full);
        }
        let (mut done, mut all) = (0, true);
        while done < piece.len() {
            let at = start + done as u64;
            let len = ((file::PAGE - at % file::PAGE) as usize).min(piece.len() - done);
            match self.write_piece(op, node, at, &piece[done..done + len]) {
                Ok(()) => {}
                Err(e) if flags.write_back && e.errno() == Errno::NOSPC => {
                    all = false;
                    self.read_again(node)?;
                }
                Err(e) => return Err(e),
            }
            done += len;
        }
        Ok(all)
    }

    /// The inode anew, after a transaction on it has failed, and its times as of a write.
    fn read_again(&self, node: &mut Node) -> Result<()> {
        let ino = node.ino;
        self.read_node(ino, node)?;
        node.touch(self.stamp([&*node]));
        Ok(())
    }

    /// Writes in one transaction. After an error `node` is worthless.
    #[inline(always)]
    fn write_piece(&self, op: &mut Op, node: &mut Node, at: u64, piece: &[u8]) -> Result<()> {
        let mut tx = op.tx()?;
        let mut c = node.content();
        let mut edit = self.edit_of(&mut tx, &node.raw);
        file::write(&mut edit, &mut c, at, piece)?;
        edit.finish()?;
        let became = c.is_large() && !node.content().is_large();
        node.set_content(&c);
        node.save_hot(&mut tx)?;
        tx.commit()?;
        if became {
            self.note_large(node);
        }
        Ok(())
    }

    /// A file has become a large one: pages that it has left in memory follow.
    #[cold]
    pub(super) fn note_large(&self, node: &Node) {
        if let Some(union) = self.union().filter(|_| node.content().pages > file::FREED) {
            union.note(node.ino);
        }
    }

    /// Whether the file has bits that give its program another user's rights.
    pub fn has_setid(&self, ino: Ino) -> Result<bool> {
        let raw = self.snapshot(ino)?;
        let mode = self.seen_perm(ino, &raw)?.mode;
        Ok(mode & 0o6000 != 0 && raw.kind != Kind::Directory as u8)
    }

    /// Clears set-id bits, as a write by an unprivileged caller does.
    fn kill_setid(&self, ino: Ino) -> Result<()> {
        if self.without_setid(ino, &self.snapshot(ino)?)?.is_some() {
            let set = crate::SetAttr { kill_suidgid: true, ..Default::default() };
            self.setattr(ino, &set, &crate::Caller { checked: true, ..crate::Caller::root() })?;
        }
        Ok(())
    }

    /// Takes a program's capabilities.
    #[cold]
    pub(super) fn kill_capability(&self, op: &mut Op, node: &mut Node) -> Result<()> {
        if self.xattr_of(&node.raw, CAPABILITY)?.is_none() {
            return Ok(());
        }
        let mut tx = op.tx()?;
        xattr::remove(&mut tx, &mut node.raw.xattr, CAPABILITY)?;
        node.save(&mut tx)?;
        Ok(tx.commit()?)
    }

    pub(super) fn remove_capability(&self, tx: &mut pram::Tx, node: &mut Node) -> Result<()> {
        match self.xattr_of(&node.raw, CAPABILITY)? {
            Some(_) => xattr::remove(tx, &mut node.raw.xattr, CAPABILITY),
            None => Ok(()),
        }
    }

    /// The next data or hole at or after `offset`; ENXIO beyond the end.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let mut from = offset;
        loop {
            let sought = self.session().read(ino, || {
                let raw = self.raw(ino)?;
                check_regular(&raw)?;
                let c = super::content_of(ino, &raw);
                match what {
                    Seek::Data => file::seek_data(self.memory(), &c, from),
                    Seek::Hole => file::seek_hole(self.memory(), &c, from),
                }
            })?;
            match sought {
                Sought::At(at) => return Ok(at),
                Sought::After(at) => from = at,
                // It has become shorter between two looks.
                Sought::Nowhere if what == Seek::Hole && from > offset => from = offset,
                Sought::Nowhere => return Err(Errno::NXIO.into()),
            }
        }
    }
}

#[inline(always)]
pub(super) fn check_regular(raw: &RawInode) -> Result<()> {
    match raw.kind {
        k if k == Kind::Regular as u8 => Ok(()),
        k if k == Kind::Directory as u8 => Err(Errno::ISDIR.into()),
        _ => Err(Errno::INVAL.into()),
    }
}

/// The clock as seconds and nanoseconds, for front ends.
impl Time {
    pub fn split(self) -> (i64, u32) {
        (self.0.div_euclid(1_000_000_000), self.0.rem_euclid(1_000_000_000) as u32)
    }

    pub fn new(seconds: i64, nanos: u32) -> Time {
        Time(seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanos)))
    }
}
