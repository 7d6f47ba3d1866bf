//! Rename, in its four ways. One transaction in any case: the new name never shows old or missing
//! content, and a crash leaves the one state or the other.

use pram::Op;
use rustix::io::Errno;

use super::update::Update;
use super::watch::Part;
use super::{check_name, want, At, Fs, Node, Rename};
use crate::attr::{Caller, Ino, LINK_MAX};
use crate::dir::{self, Entry};
use crate::error::{Error, Result};
use crate::inode::InodePlace;
use crate::layout::MAX_INODES;
use crate::ROOT;

/// The lock that orders moves of directories between directories: a key beyond all inode numbers. Without
/// it two of them could tie a cycle.
const MOVE_KEY: u64 = MAX_INODES + 2;

/// Longest chain of parents followed: more than any path has, so that a damaged pool cannot hang us.
const DEPTH: usize = 1 << 20;

/// Everything that a rename works on, locked.
struct Parts {
    from: Node,
    /// `None`: the same directory as `from`.
    to: Option<Node>,
    src: Node,
    dst: Option<Node>,
}

impl Fs {
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: Rename, caller: &Caller) -> Result<()> {
        self.rename_at((from.0.into(), from.1), (to.0.into(), to.1), how, (caller, false))
    }

    /// `by`: the caller, and whether the kernel can rename through a mount instead. If so, this fails with [`Error::Outside`] for a
    /// directory that the kernel has cached: the kernel keeps one name for each, and a process may have it as working directory.
    pub(crate) fn rename_at(&self, from: (At, &[u8]), to: (At, &[u8]), how: Rename, by: (&Caller, bool)) -> Result<()> {
        check_name_for_rename(from.1)?;
        check_name_for_rename(to.1)?;
        check_name(from.1)?;
        check_name(to.1)?;
        self.update(|op| self.rename_in(op, from, to, how, by))
    }

    fn rename_in<'n>(
        &self,
        op: &mut Update<'_, '_, 'n>,
        from: (At, &'n [u8]),
        to: (At, &'n [u8]),
        how: Rename,
        (caller, has_kernel): (&Caller, bool),
    ) -> Result<()> {
        let whiteout = match how {
            Rename::Whiteout { .. } => Some(self.whiteout_perm(op, from.0, caller)?),
            _ => None,
        };
        let parts = self.lock_rename(op, from, to, caller)?;
        let touched = [Some(parts.src.ino), parts.dst.as_ref().map(|d| d.ino)];
        match (how, &parts.dst) {
            (Rename::NoReplace | Rename::Whiteout { replace: false }, Some(_)) => return Err(Errno::EXIST.into()),
            (Rename::Exchange, None) => return Err(Errno::NOENT.into()),
            (_, Some(dst)) if dst.ino == parts.src.ino => return Ok(()),
            _ => {}
        }
        if has_kernel && self.is_moved_in_kernel(&parts, how) {
            return Err(Error::Outside);
        }
        self.refuse_circle(&parts, how)?;
        self.permit_rename(&parts, how, caller)?;
        match how {
            Rename::Exchange => self.exchange(op, parts, from.1, to.1)?,
            _ => self.replace(op, parts, (from.1, to.1), whiteout)?,
        }
        op.tell_entry(from.0.ino, from.1, touched[0]);
        op.tell_entry(to.0.ino, to.1, touched[1]);
        for ino in touched.into_iter().flatten() {
            op.tell_inode(ino, Part::Attributes);
        }
        Ok(())
    }

    fn is_moved_in_kernel(&self, parts: &Parts, how: Rename) -> bool {
        let exchanged = parts.dst.as_ref().filter(|_| how == Rename::Exchange);
        let mut moved = exchanged.into_iter().chain([&parts.src]);
        moved.any(|node| node.is_dir() && self.session().is_cached(node.ino))
    }

    /// Locks both directories and the named inodes, as they are at one instant.
    fn lock_rename(&self, op: &mut Op, from: (At, &[u8]), to: (At, &[u8]), caller: &Caller) -> Result<Parts> {
        loop {
            let peek = |op: &mut Op, (dir, name): (At, &[u8])| -> Result<Option<Ino>> {
                op.read(dir.ino, || {
                    let raw = self.raw_dir(dir)?;
                    // A caller that may not search the directory does not learn its names.
                    self.permit(&raw, caller, want::EXEC)?;
                    Ok(self.find(&raw, name)?.map(|e| e.ino))
                })
            };
            let (src, dst) = (peek(op, from)?, peek(op, to)?);
            let src = src.ok_or(Errno::NOENT)?;
            let is_dir = |op: &mut Op, ino: Ino| op.read(ino, || self.raw(ino)).map_or(true, |raw| raw.is_dir());
            let moves_dir = from.0.ino != to.0.ino && (is_dir(op, src) || dst.is_some_and(|d| is_dir(op, d)));
            let mut keys: smallvec::SmallVec<[u64; 8]> = smallvec::smallvec![from.0.ino, to.0.ino, src];
            keys.extend(dst);
            if moves_dir {
                keys.push(MOVE_KEY);
            }
            op.lock(&keys)?;
            if let Some(parts) = self.still(from, to, src, dst, moves_dir)? {
                return Ok(parts);
            }
            op.unlock();
        }
    }

    /// With the locks held: is everything as it was when they were chosen?
    fn still(
        &self,
        from: (At, &[u8]),
        to: (At, &[u8]),
        src: Ino,
        dst: Option<Ino>,
        moves_dir: bool,
    ) -> Result<Option<Parts>> {
        let f = self.dir_node(from.0)?;
        let t = if from.0.ino == to.0.ino { None } else { Some(self.dir_node(to.0)?) };
        let found_src = self.find(&f.raw, from.1)?.map(|e| e.ino);
        let found_dst = self.find(&t.as_ref().unwrap_or(&f).raw, to.1)?.map(|e| e.ino);
        if found_src != Some(src) || found_dst != dst {
            return Ok(None);
        }
        let parts = Parts { from: f, to: t, src: self.node(src)?, dst: dst.map(|d| self.node(d)).transpose()? };
        let crosses = parts.to.is_some() && (parts.src.is_dir() || parts.dst.as_ref().is_some_and(Node::is_dir));
        Ok((moves_dir || !crosses).then_some(parts))
    }

    /// Refuses to move a directory below itself, or a lower one over a higher one. In one directory neither can be;
    /// between two, [`MOVE_KEY`] keeps the parents as they are.
    fn refuse_circle(&self, p: &Parts, how: Rename) -> Result<()> {
        let Some(to) = &p.to else { return Ok(()) };
        if p.src.is_dir() && self.is_below(to.ino, p.src.ino)? {
            return Err(Errno::INVAL.into());
        }
        match &p.dst {
            Some(dst) if dst.is_dir() && self.is_below(p.from.ino, dst.ino)? => match how {
                Rename::Exchange => Err(Errno::INVAL.into()),
                _ => Err(Errno::NOTEMPTY.into()),
            },
            _ => Ok(()),
        }
    }

    fn permit_rename(&self, p: &Parts, how: Rename, caller: &Caller) -> Result<()> {
        let to = p.to.as_ref().unwrap_or(&p.from);
        self.permit_removal(&p.from, &p.src, caller)?;
        self.permit_entry(to, caller)?;
        if let Some(dst) = &p.dst {
            self.permit_removal(to, dst, caller)?;
        }
        if p.to.is_some() {
            // `..` of a directory that moves changes.
            for node in [Some(&p.src), p.dst.as_ref().filter(|_| how == Rename::Exchange)].into_iter().flatten() {
                if node.is_dir() {
                    self.permit(&node.raw, caller, want::WRITE)?;
                }
            }
        }
        match &p.dst {
            Some(dst) if how != Rename::Exchange => match (p.src.is_dir(), dst.is_dir()) {
                (true, false) => Err(Errno::NOTDIR.into()),
                (false, true) => Err(Errno::ISDIR.into()),
                (true, true) if dst.raw.size > 0 => Err(Errno::NOTEMPTY.into()),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Is `ino` the directory `above`, or below it? With [`MOVE_KEY`] held.
    fn is_below(&self, ino: Ino, above: Ino) -> Result<bool> {
        let mut at = ino;
        for _ in 0..DEPTH {
            if at == above {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            // Plain reads: we may hold the lock of any of these ourselves.
            at = match self.table().get(at)? {
                Some(raw) => raw.extra,
                None => return Ok(false),
            };
        }
        Err(crate::Error::Corrupt(format!("the parents of directory {ino} do not end at the root")))
    }

    /// Moves the name, and leaves a whiteout with these permissions under the old one if there are any.
    fn replace(&self, op: &mut Op, p: Parts, names: (&[u8], &[u8]), whiteout: Option<u32>) -> Result<()> {
        let left = match whiteout {
            Some(perm) => Some((self.inodes.reserve(op, self.table())?, perm)),
            None => None,
        };
        let ended = match self.replace_with(op, p, names, left) {
            Ok(ended) => ended,
            Err(e) => {
                if let Some(((_, place), _)) = left {
                    self.inodes.unreserve(self.memory(), place)?;
                }
                return Err(e);
            }
        };
        if let Some(dst) = ended {
            self.end_rest(op, &dst)?;
        }
        Ok(())
    }

    /// The transaction of a rename, which leaves `left` under the old name. Returns the inode that it ended.
    fn replace_with(
        &self,
        op: &mut Op,
        mut p: Parts,
        (old, new): (&[u8], &[u8]),
        left: Option<((Ino, InodePlace), u32)>,
    ) -> Result<Option<Node>> {
        let time = self.stamp([&p.src, &p.from].into_iter().chain(&p.to).chain(&p.dst));
        let names = &self.names();
        let entry = Entry { ino: p.src.ino, kind: p.src.raw.kind };
        let moved_dir = p.src.is_dir() && p.to.is_some();
        if moved_dir && p.dst.is_none() && p.to.as_ref().is_some_and(|t| t.raw.nlink >= LINK_MAX) {
            return Err(Errno::MLINK.into());
        }
        let mut tx = op.tx()?;
        let to = p.to.as_mut().unwrap_or(&mut p.from);
        let mut d = to.dir();
        match &p.dst {
            Some(_) => {
                dir::replace(&mut tx, names, &mut d, new, entry)?;
            }
            None => dir::insert(&mut tx, names, &mut d, new, entry)?,
        }
        to.set_dir(&d);
        to.touch(time);
        if moved_dir {
            to.raw.nlink += 1;
        }
        if p.dst.as_ref().is_some_and(Node::is_dir) {
            to.raw.nlink = to.raw.nlink.saturating_sub(1);
        }
        let mut d = p.from.dir();
        match left {
            Some((reserved, perm)) => {
                let entry = self.init_whiteout(&mut tx, reserved, perm, &p.from)?;
                dir::replace(&mut tx, names, &mut d, old, entry)?;
            }
            None => {
                dir::remove(&mut tx, names, &mut d, old)?;
            }
        }
        p.from.set_dir(&d);
        p.from.touch(time);
        if moved_dir {
            p.from.raw.nlink = p.from.raw.nlink.saturating_sub(1);
            p.src.raw.extra = p.to.as_ref().map_or(p.from.ino, |t| t.ino);
        }
        p.src.raw.ctime = time.0;
        p.src.save(&mut tx)?;
        p.from.save(&mut tx)?;
        if let Some(to) = &p.to {
            to.save(&mut tx)?;
        }
        let mut ended = None;
        if let Some(mut dst) = p.dst {
            dst.raw.ctime = time.0;
            if self.drop_name(&mut tx, &mut dst)? {
                ended = Some(dst);
            }
        }
        tx.commit()?;
        Ok(ended)
    }

    fn exchange(&self, op: &mut Op, mut p: Parts, old: &[u8], new: &[u8]) -> Result<()> {
        let time = self.stamp([&p.src, &p.from].into_iter().chain(&p.to).chain(&p.dst));
        let names = &self.names();
        let Some(mut dst) = p.dst else { return Err(Errno::NOENT.into()) };
        let mut tx = op.tx()?;
        let to = p.to.as_mut().unwrap_or(&mut p.from);
        let mut d = to.dir();
        dir::replace(&mut tx, names, &mut d, new, Entry { ino: p.src.ino, kind: p.src.raw.kind })?;
        to.set_dir(&d);
        to.touch(time);
        let mut d = p.from.dir();
        dir::replace(&mut tx, names, &mut d, old, Entry { ino: dst.ino, kind: dst.raw.kind })?;
        p.from.set_dir(&d);
        p.from.touch(time);
        if let Some(to) = &mut p.to {
            if p.src.is_dir() {
                p.src.raw.extra = to.ino;
                to.raw.nlink += 1;
                p.from.raw.nlink = p.from.raw.nlink.saturating_sub(1);
            }
            if dst.is_dir() {
                dst.raw.extra = p.from.ino;
                p.from.raw.nlink += 1;
                to.raw.nlink = to.raw.nlink.saturating_sub(1);
            }
            to.save(&mut tx)?;
        }
        p.from.save(&mut tx)?;
        p.src.raw.ctime = time.0;
        dst.raw.ctime = time.0;
        p.src.save(&mut tx)?;
        dst.save(&mut tx)?;
        Ok(tx.commit()?)
    }
}

fn check_name_for_rename(name: &[u8]) -> Result<()> {
    if matches!(name, b"." | b"..") {
        return Err(Errno::BUSY.into());
    }
    Ok(())
}
