//! New inodes and further names.

use rustix::io::Errno;

use super::watch::Part;
use super::{check_name, lookup::fresh, now, want, At, Fs, Node};
use crate::acl;
use crate::attr::{Attr, Caller, Ino, Kind, LINK_MAX, SYMLINK_MAX};
use crate::dir::{self, Entry, Vacancy};
use crate::error::Result;
use crate::file::{self, Edit};
use crate::inode::InodePlace;
use crate::layout::{RawInode, RawPerm, INODE};
use crate::setting::Set;
use crate::xattr;

const SETGID: u32 = 0o2000;

/// The description of a new inode.
struct New<'a> {
    kind: Kind,
    mode: u32,
    rdev: u64,
    target: &'a [u8],
}

/// A removed name, for union file systems: a device that does not exist and that no user may open.
const WHITEOUT: New = New { kind: Kind::CharDevice, mode: 0, rdev: 0, target: b"" };

/// The inheritance of a new inode from its parent and its caller.
struct Inherited {
    perm: RawPerm,
    /// Values of `system.posix_acl_access` and `system.posix_acl_default`.
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
    settings: Set,
}

impl Fs {
    /// Creates a file of any kind but symlink. `mode` is `& 0o7777`, before umask or default ACL.
    pub fn create(&self, parent: Ino, name: &[u8], kind: Kind, mode: u32, rdev: u64, caller: &Caller) -> Result<Attr> {
        let mut made = Node::blank();
        self.create_at(parent.into(), name, (kind, mode, rdev), caller, false, &mut made)?;
        self.note_attr(made.ino, &made.raw)
    }

    /// [`create`](Self::create), and a reference for the caller.
    pub fn create_retain(
        &self,
        parent: Ino,
        name: &[u8],
        kind: Kind,
        mode: u32,
        rdev: u64,
        caller: &Caller,
    ) -> Result<Attr> {
        let mut made = Node::blank();
        self.create_at(parent.into(), name, (kind, mode, rdev), caller, true, &mut made)?;
        self.note_attr(made.ino, &made.raw).inspect_err(|_| self.give_up(Some(made.ino)))
    }

    /// The new inode goes to `made`.
    #[inline(always)]
    pub(crate) fn create_at(
        &self,
        parent: At,
        name: &[u8],
        (kind, mode, rdev): (Kind, u32, u64),
        caller: &Caller,
        retain: bool,
        made: &mut Node,
    ) -> Result<()> {
        if kind == Kind::Symlink {
            return Err(Errno::INVAL.into());
        }
        let device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
        if device && !caller.checked && caller.uid != 0 {
            return Err(Errno::PERM.into());
        }
        let new = New { kind, mode, rdev: if device { rdev } else { 0 }, target: b"" };
        self.add(parent, name, new, caller, retain, made)
    }

    pub fn symlink(&self, parent: Ino, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        self.symlink_at(parent.into(), name, target, caller)
    }

    pub(crate) fn symlink_at(&self, parent: At, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        match target.len() {
            0 => return Err(Errno::NOENT.into()),
            n if n > SYMLINK_MAX => return Err(Errno::NAMETOOLONG.into()),
            _ => {}
        }
        let new = New { kind: Kind::Symlink, mode: 0o777, rdev: 0, target };
        let mut made = Node::blank();
        self.add(parent, name, new, caller, false, &mut made)?;
        self.note_attr(made.ino, &made.raw)
    }

    #[inline(always)]
    fn add(&self, parent: At, name: &[u8], new: New, caller: &Caller, retain: bool, made: &mut Node) -> Result<()> {
        check_name(name)?;
        let mut held = None;
        let done = self.update(|op| {
            self.add_in(op, parent, name, &new, caller, retain, made)?;
            held = retain.then_some(made.ino);
            op.tell_entry(parent.ino, name, None);
            Ok(())
        });
        if done.is_err() {
            self.give_up(held);
        }
        done
    }

    /// A new inode, in an operation that holds no locks yet.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn add_in(
        &self,
        op: &mut pram::Op,
        parent: At,
        name: &[u8],
        new: &New,
        caller: &Caller,
        retain: bool,
        made: &mut Node,
    ) -> Result<()> {
        op.lock(&[parent.ino])?;
        let mut dir = Node::blank();
        self.read_dir_node(parent, &mut dir)?;
        let mut inherited = self.inherit(&dir.raw, self.default_acl(&dir.raw)?, new, caller)?;
        let perm = match self.perms().known(op.session().runtime(), inherited.perm) {
            Some(perm) => perm,
            None => self.intern_unlocked(op, (parent, &mut dir), &mut inherited, new, caller)?,
        };
        let at = self.permit_new_entry(&dir, name, caller)?;
        (made.ino, made.place) = self.inodes.reserve(op, self.table())?;
        // Its maker, or the next one to learn of it, refers to it: that does not fail once it is there.
        let linked = match self.session().prepare_retain(made.ino) {
            Ok(()) => self.link_new(op, &mut dir, (name, at), made, perm, &inherited, new),
            Err(e) => Err(e.into()),
        };
        match linked {
            Ok(()) if retain => self.retain(made.ino, 1)?,
            Ok(()) => {}
            Err(_) => self.inodes.unreserve(self.memory(), made.place)?,
        }
        linked
    }

    /// The index of a permission triple that is not at hand. Looking for it takes other locks than that of the
    /// directory, which is looked at again after it.
    #[cold]
    #[inline(never)]
    fn intern_unlocked(
        &self,
        op: &mut pram::Op,
        (parent, dir): (At, &mut Node),
        inherited: &mut Inherited,
        new: &New,
        caller: &Caller,
    ) -> Result<u32> {
        loop {
            let wanted = inherited.perm;
            op.unlock();
            let perm = self.perms().intern(op, wanted)?;
            op.lock(&[parent.ino])?;
            *dir = self.dir_node(parent)?;
            *inherited = self.inherit(&dir.raw, self.default_acl(&dir.raw)?, new, caller)?;
            if inherited.perm == wanted {
                return Ok(perm);
            }
        }
    }

    /// A new directory, in an operation of repair's.
    pub(crate) fn mkdir_in(&self, op: &mut pram::Op, parent: Ino, name: &[u8], mode: u32) -> Result<Ino> {
        let new = New { kind: Kind::Directory, mode, rdev: 0, target: b"" };
        let caller = Caller { checked: true, umask: 0, ..Caller::root() };
        let mut made = Node::blank();
        let done = self.add_in(op, parent.into(), name, &new, &caller, false, &mut made);
        op.unlock();
        done.map(|()| made.ino)
    }

    /// The transaction of a creation, with the parent's lock held.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn link_new(
        &self,
        op: &mut pram::Op,
        dir: &mut Node,
        (name, at): (&[u8], Vacancy),
        made: &mut Node,
        perm: u32,
        inherited: &Inherited,
        new: &New,
    ) -> Result<()> {
        let is_dir = new.kind == Kind::Directory;
        if is_dir && dir.raw.nlink >= LINK_MAX {
            return Err(Errno::MLINK.into());
        }
        let mut tx = op.tx()?;
        self.init_inode(&mut tx, made, perm, inherited, new, dir.ino)?;
        let mut d = dir.dir();
        dir::fill(&mut tx, &self.names(), &mut d, at, name, Entry { ino: made.ino, kind: new.kind as u8 })?;
        dir.set_dir(&d);
        dir.touch(self.stamp([&*dir]));
        if is_dir {
            dir.raw.nlink += 1;
            dir.save(&mut tx)?;
        } else {
            dir.save_hot(&mut tx)?;
        }
        Ok(tx.commit()?)
    }

    /// Fills in a reserved inode; it is in use once the transaction commits.
    #[inline(always)]
    fn init_inode(
        &self,
        tx: &mut pram::Tx,
        Node { ino, place, raw }: &mut Node,
        perm: u32,
        inherited: &Inherited,
        new: &New,
        parent: Ino,
    ) -> Result<()> {
        let last = place.inode.field::<u32>(std::mem::offset_of!(RawInode, generation));
        *raw = fresh(new.kind, perm, next_generation(self.memory().read(last)?), self.tick());
        (raw.settings, raw.delay) = (inherited.settings.bits, inherited.settings.delay);
        match new.kind {
            Kind::Directory => {
                raw.nlink = 2;
                raw.extra = parent;
            }
            Kind::CharDevice | Kind::BlockDevice => raw.extra = new.rdev,
            _ => {}
        }
        if !new.target.is_empty() || inherited.access.is_some() || inherited.default.is_some() {
            self.init_objects(tx, *ino, raw, inherited, new)?;
        }
        tx.init(place.inode, raw)?;
        Ok(tx.set(place.length, &(INODE as u8))?)
    }

    /// Target and ACLs of a new inode.
    #[inline(never)]
    fn init_objects(
        &self,
        tx: &mut pram::Tx,
        ino: Ino,
        raw: &mut RawInode,
        inherited: &Inherited,
        new: &New,
    ) -> Result<()> {
        if !new.target.is_empty() {
            let mut c = super::content_of(ino, raw);
            file::write(&mut Edit::in_memory(tx), &mut c, 0, new.target)?;
            (raw.content, raw.size, raw.extra) = (c.root, c.size, c.pages);
        }
        for (name, value) in [(acl::ACCESS, &inherited.access), (acl::DEFAULT, &inherited.default)] {
            if let Some(value) = value {
                xattr::set(tx, &mut raw.xattr, name, value, super::SetXattr::Any)?;
            }
        }
        Ok(())
    }

    /// Owner, group, mode, ACLs and settings of a new inode in `dir`, which has this default ACL.
    #[inline(always)]
    fn inherit(&self, dir: &RawInode, default_acl: Option<Vec<u8>>, new: &New, caller: &Caller) -> Result<Inherited> {
        let above = self.perms().get(self.session(), dir.perm)?;
        let is_dir = new.kind == Kind::Directory;
        let gid = if above.mode & SETGID != 0 { above.gid } else { caller.gid };
        let mut mode = new.mode & 0o7777;
        if above.mode & SETGID != 0 {
            if is_dir {
                mode |= SETGID;
            } else if mode & 0o2010 == 0o2010 && caller.uid != 0 && !caller.in_group(gid) {
                mode &= !SETGID;
            }
        }
        let (mut access, mut default) = (None, None);
        if new.kind != Kind::Symlink {
            match default_acl {
                Some(acl) => {
                    let inherited = acl::inherit(&acl, mode)?;
                    mode = inherited.mode;
                    access = inherited.access;
                    default = is_dir.then_some(acl);
                }
                None => mode &= !caller.umask | !0o777,
            }
        }
        let mode = (new.kind as u32) << 12 | mode;
        Ok(Inherited { perm: RawPerm { uid: caller.uid, gid, mode }, access, default, settings: Set::of(dir) })
    }

    /// May `caller` add and remove entries of `dir`? With its lock held. A removed directory takes none.
    #[inline(always)]
    pub(super) fn permit_entry(&self, dir: &Node, caller: &Caller) -> Result<()> {
        if dir.raw.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        self.permit(&dir.raw, caller, want::WRITE | want::EXEC)
    }

    /// The same, and the place for `name`, which must not exist yet. A caller that may search the directory learns first that it exists, as
    /// from other file systems: `mkdir -p` and opening an existing file rely on it.
    #[inline(always)]
    fn permit_new_entry(&self, dir: &Node, name: &[u8], caller: &Caller) -> Result<Vacancy> {
        let Some(at) = dir::vacancy(self.memory(), &self.names(), &dir.dir(), name)? else {
            self.permit(&dir.raw, caller, want::EXEC)?;
            return Err(Errno::EXIST.into());
        };
        self.permit_entry(dir, caller)?;
        Ok(at)
    }

    /// A regular file with no name (O_TMPFILE), referenced once by the caller.
    pub fn tmpfile(&self, parent: Ino, mode: u32, caller: &Caller) -> Result<Attr> {
        let mut held = None;
        let made = self.update(|op| {
            let made = self.tmpfile_in(op, parent, mode, caller)?;
            held = Some(made.ino);
            Ok(made)
        });
        let made = made.inspect_err(|_| self.give_up(held))?;
        self.note_attr(made.ino, &made.raw)
    }

    /// Gives back the reference of a caller that gets an error.
    #[cold]
    fn give_up(&self, held: Option<Ino>) {
        held.into_iter().for_each(|ino| self.release(ino, 1));
    }

    fn tmpfile_in(&self, op: &mut pram::Op, parent: Ino, mode: u32, caller: &Caller) -> Result<Node> {
        let new = New { kind: Kind::Regular, mode, rdev: 0, target: b"" };
        let inherited = op.read(parent, || {
            let dir = self.dir_node(parent)?;
            self.permit_entry(&dir, caller)?;
            self.inherit(&dir.raw, self.default_acl(&dir.raw)?, &new, caller)
        })?;
        let perm = self.perms().intern(op, inherited.perm)?;
        let mut made = Node::blank();
        (made.ino, made.place) = self.inodes.reserve(op, self.table())?;
        let done = (|| -> Result<_> {
            self.retain(made.ino, 1)?;
            self.session().note_last_reference();
            op.lock(&[made.ino])?;
            let mut tx = op.tx()?;
            self.init_inode(&mut tx, &mut made, perm, &inherited, &new, parent)?;
            made.raw.nlink = 0;
            tx.init(made.place.inode, &made.raw)?;
            Ok(tx.commit()?)
        })();
        if done.is_err() {
            self.session().release(made.ino, 1);
            self.inodes.unreserve(self.memory(), made.place)?;
        }
        done.map(|()| made)
    }

    /// The permissions of a whiteout in `dir`. In an operation that holds no locks yet.
    #[cold]
    pub(super) fn whiteout_perm(&self, op: &mut pram::Op, dir: At, caller: &Caller) -> Result<u32> {
        let perm = op.read(dir.ino, || {
            Ok::<_, crate::Error>(self.inherit(&self.raw_dir(dir)?, None, &WHITEOUT, caller)?.perm)
        })?;
        self.perms().intern(op, perm)
    }

    /// Fills in a reserved inode as a whiteout in `dir`.
    #[cold]
    pub(super) fn init_whiteout(
        &self,
        tx: &mut pram::Tx,
        (ino, place): (Ino, InodePlace),
        perm: u32,
        dir: &Node,
    ) -> Result<Entry> {
        let perm_of = self.perms().get(self.session(), perm)?;
        let inherited = Inherited { perm: perm_of, access: None, default: None, settings: Set::of(&dir.raw) };
        let mut made = Node { ino, place, ..Node::blank() };
        self.init_inode(tx, &mut made, perm, &inherited, &WHITEOUT, dir.ino)?;
        Ok(Entry { ino, kind: WHITEOUT.kind as u8 })
    }

    /// A further name for `ino`; also gives a `tmpfile` its first.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8], caller: &Caller) -> Result<Attr> {
        self.link_at(ino.into(), parent.into(), name, caller)
    }

    pub(crate) fn link_at(&self, at: At, parent: At, name: &[u8], caller: &Caller) -> Result<Attr> {
        check_name(name)?;
        let raw = self.update(|op| {
            let raw = self.link_in(op, at, parent, name, caller)?;
            op.tell_entry(parent.ino, name, None);
            op.tell_inode(at.ino, Part::Attributes);
            Ok(raw)
        })?;
        self.note_attr(at.ino, &raw)
    }

    fn link_in(&self, op: &mut pram::Op, at: At, parent: At, name: &[u8], caller: &Caller) -> Result<RawInode> {
        op.lock(&[at.ino, parent.ino])?;
        let mut dir = self.dir_node(parent)?;
        let mut node = self.node(at)?;
        let vacancy = self.permit_new_entry(&dir, name, caller)?;
        if node.is_dir() {
            return Err(Errno::PERM.into());
        }
        // Found by a name that is gone by now; a holder of a reference may give a new one.
        if node.raw.nlink == 0 && at.generation.is_some() {
            return Err(Errno::NOENT.into());
        }
        if node.raw.nlink >= LINK_MAX {
            return Err(Errno::MLINK.into());
        }
        let time = self.stamp([&node, &dir]);
        node.raw.nlink += 1;
        node.raw.ctime = time.0;
        let mut tx = op.tx()?;
        let mut d = dir.dir();
        dir::fill(&mut tx, &self.names(), &mut d, vacancy, name, Entry { ino: at.ino, kind: node.raw.kind })?;
        dir.set_dir(&d);
        dir.touch(time);
        dir.save_hot(&mut tx)?;
        node.save(&mut tx)?;
        tx.commit()?;
        Ok(node.raw)
    }
}

/// Successive inodes of a number differ in their generation. In a new block the clock begins the count, so
/// that numbers whose block was given back do not count the same again.
fn next_generation(last: u32) -> u32 {
    match last {
        0 => (now().0 >> 10) as u32 | 1,
        g => g.wrapping_add(1).max(1),
    }
}
