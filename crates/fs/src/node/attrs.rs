//! Changing attributes.

use rustix::io::Errno;

use super::content::Writers;
use super::update::Update;
use super::watch::Part;
use super::{want, At, Fs, Node};
use crate::acl;
use crate::attr::{Attr, Caller, Ino, Kind, SetAttr, SetTime, Time};
use crate::error::{Error, Result};
use crate::file;
use crate::layout::{RawInode, RawPerm};
use crate::retry::{if_there_is_room, with_memory};
use crate::xattr;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

impl Fs {
    pub fn setattr(&self, ino: Ino, set: &SetAttr, caller: &Caller) -> Result<Attr> {
        self.setattr_at(ino.into(), set, caller)
    }

    pub(crate) fn setattr_at(&self, at: At, set: &SetAttr, caller: &Caller) -> Result<Attr> {
        self.writable()?;
        if set.size.is_some() {
            self.recall_content(at.ino);
        }
        loop {
            // The new triple is looked up before the locks are taken, for the state seen then.
            let seen = self.snapshot(at)?;
            self.permit_setattr(at.ino, &seen, set, caller)?;
            let new = self.new_perm(at.ino, &seen, set, caller)?;
            if let Some(raw) = self.update(|op| self.setattr_in(op, at.ino, &seen, new, set))? {
                if let Some(union) = self.union().filter(|_| set.size.is_some()) {
                    union.note_use(at.ino, &raw);
                }
                return self.note_attr(at.ino, &raw);
            }
        }
    }

    /// Sets attributes of an inode that is still as it was seen; `None` if it is not.
    fn setattr_in(
        &self,
        op: &mut Update,
        ino: Ino,
        seen: &RawInode,
        new: Option<RawPerm>,
        set: &SetAttr,
    ) -> Result<Option<RawInode>> {
        let numbering = self.session().runtime().numbering();
        let perm = match new {
            Some(p) => self.perms().intern(op, p)?,
            None => seen.perm,
        };
        match set.size {
            Some(_) => self.lock_content(op, ino, &mut Node::blank(), Writers::Others)?,
            None => op.lock(&[ino])?,
        }
        let (mut node, size) = (Node::blank(), set.size.unwrap_or(0));
        let change = |op: &mut Update, node: &mut Node| {
            // Freeing a part that was cut off, or fetching, gives the slot back in between, and a sweep then waits for nothing here.
            if self.session().runtime().numbering() != numbering {
                return Ok(false);
            }
            let Some(found) = self.node_as_seen(ino, seen)? else { return Ok(false) };
            *node = found;
            self.apply(op, node, perm, set).map(|()| true)
        };
        if !self.with_content(op, &mut node, Writers::Others, |_| (size, size), change)? {
            return Ok(None);
        }
        op.tell_inode(ino, set.size.map_or(Part::Attributes, |size| Part::of_content(seen.size, size)));
        // The mode is a part of the ACL.
        if set.mode.is_some() && seen.xattr != 0 {
            op.tell_inode(ino, Part::Extended);
        }
        if set.size.is_some() {
            self.free_cut(op, &mut node);
        }
        Ok(Some(node.raw))
    }

    fn apply(&self, op: &mut pram::Op, node: &mut Node, perm: u32, set: &SetAttr) -> Result<()> {
        let time = self.stamp([&*node]);
        let mut tx = op.tx()?;
        node.raw.perm = perm;
        if let Some(mode) = set.mode {
            self.chmod_acl(&mut tx, node, mode)?;
        }
        if let Some(size) = set.size {
            match node.kind()? {
                Kind::Regular => {}
                Kind::Directory => return Err(Errno::ISDIR.into()),
                _ => return Err(Errno::INVAL.into()),
            }
            let mut c = node.content();
            let mut edit = self.edit(&mut tx);
            file::truncate(&mut edit, &mut c, size)?;
            edit.finish()?;
            node.set_content(&c);
            node.raw.mtime = time.0;
        }
        if set.kills_capability() && !node.raw.is_dir() {
            self.remove_capability(&mut tx, node)?;
        }
        let at = |t: SetTime| match t {
            SetTime::Now => time.0,
            SetTime::At(t) => t.0,
        };
        node.raw.atime = set.atime.map_or(node.raw.atime, at);
        node.raw.mtime = set.mtime.map_or(node.raw.mtime, at);
        node.raw.ctime = set.ctime.unwrap_or(time).0;
        node.save(&mut tx)?;
        Ok(tx.commit()?)
    }

    fn chmod_acl(&self, tx: &mut pram::Tx, node: &mut Node, mode: u32) -> Result<()> {
        if node.raw.xattr == 0 {
            return Ok(());
        }
        if let Some(old) = xattr::get(self.memory(), node.raw.xattr, acl::ACCESS)? {
            let new = acl::chmod(&old, mode)?;
            xattr::set(tx, &mut node.raw.xattr, acl::ACCESS, &new, super::SetXattr::Any)?;
        }
        Ok(())
    }

    /// The triple that `set` leads to, if it changes it.
    fn new_perm(&self, ino: Ino, raw: &RawInode, set: &SetAttr, caller: &Caller) -> Result<Option<RawPerm>> {
        let old = self.seen_perm(ino, raw)?;
        let mut new = old;
        if let Some(mode) = set.mode {
            new.mode = old.mode & !0o7777 | mode & 0o7777;
            let member = caller.uid == 0 || caller.in_group(set.gid.unwrap_or(old.gid));
            if !member {
                new.mode &= !SETGID;
            }
        }
        let chown = set.changes_owner() && set.mode.is_none() && !set.retains_privileges;
        new.uid = set.uid.unwrap_or(old.uid);
        new.gid = set.gid.unwrap_or(old.gid);
        // A directory's bits set the group of files in it, and give no user rights: they stay.
        if (chown || set.kill_suidgid) && raw.kind != Kind::Directory as u8 {
            new.mode = without_setid(new.mode, caller.uid == 0 || caller.in_group(old.gid));
        }
        Ok((new != old).then_some(new))
    }

    fn permit_setattr(&self, ino: Ino, raw: &RawInode, set: &SetAttr, caller: &Caller) -> Result<()> {
        if caller.uid == 0 {
            return Ok(());
        }
        let old = self.seen_perm(ino, raw)?;
        let (owner, privileged) = (caller.acts_for(old.uid), caller.owns.contains(&old.uid));
        let gid_ok = |gid: u32| privileged || owner && (gid == old.gid || caller.in_group(gid));
        let exact_time = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_)));
        let denied = (set.mode.is_some() && !owner)
            || set.uid.is_some_and(|u| !(privileged || owner && u == old.uid))
            || set.gid.is_some_and(|g| !gid_ok(g))
            || ((exact_time(set.atime) || exact_time(set.mtime)) && !owner);
        if denied {
            return Err(Errno::PERM.into());
        }
        // For a truncation the kernel has checked that the caller may write, and not whether it is the owner.
        let touches = (set.atime.is_some() || set.mtime.is_some()) && !(caller.checked && set.size.is_some());
        if touches && !owner {
            self.permit_seen(ino, raw, &Caller { checked: false, ..*caller }, want::WRITE)?;
        }
        if set.size.is_some() && !set.by_handle {
            self.permit_seen(ino, raw, caller, want::WRITE)?;
        }
        if set.only_kills() && !owner && !caller.checked {
            self.permit_kill(ino, raw, caller)?;
        }
        Ok(())
    }

    /// A process that does not own a file takes its set-id bits by writing to it only.
    fn permit_kill(&self, ino: Ino, raw: &RawInode, caller: &Caller) -> Result<()> {
        let old = self.seen_perm(ino, raw)?;
        if raw.is_dir() || without_setid(old.mode, caller.in_group(old.gid)) == old.mode {
            return Ok(());
        }
        match self.permit_seen(ino, raw, caller, want::WRITE) {
            Err(e) if e.errno() == Errno::ACCESS => Err(Errno::PERM.into()),
            permitted => permitted,
        }
    }

    /// The triple without set-id bits, if the inode has any that any write clears.
    pub(super) fn without_setid(&self, ino: Ino, raw: &RawInode) -> Result<Option<RawPerm>> {
        let old = self.seen_perm(ino, raw)?;
        let mode = without_setid(old.mode, true);
        Ok((mode != old.mode).then_some(RawPerm { mode, ..old }))
    }

    /// Sets the access time, one word; with the inode's lock held no transaction is on it.
    pub(super) fn store_atime(&self, ino: Ino, time: Time) -> Result<()> {
        // Reading does not fail for want of memory for this, or of somebody to commit it.
        match if_there_is_room(with_memory(self.session(), || self.store_atime_in(ino, time))) {
            Err(Error::Unattended) => Ok(()),
            stored => stored.map(drop),
        }
    }

    #[inline(always)]
    fn store_atime_in(&self, ino: Ino, time: Time) -> Result<()> {
        let mut op = self.aside()?;
        op.lock(&[ino])?;
        let node = self.node(ino)?;
        if node.place.is_nowhere() {
            return self.store_packed_atime(&mut op, ino, time).map(drop);
        }
        let place = node.place;
        let at = place.inode.field::<u64>(std::mem::offset_of!(RawInode, atime));
        Ok(self.memory().commit_word(at, time.0 as u64)?)
    }
}

/// The rest of a mode after a change of the content or the owner by a `member` of the file's group, or by another.
/// Set-group-id without group execution runs nothing in the group's name, and members may set it.
fn without_setid(mode: u32, member: bool) -> u32 {
    match member && mode & 0o010 == 0 {
        true => mode & !SETUID,
        false => mode & !(SETUID | SETGID),
    }
}
