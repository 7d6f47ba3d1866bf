//! Extended attributes and POSIX ACLs of inodes.

use rustix::io::Errno;

use super::{now, want, Fs, SetXattr};
use crate::acl;
use crate::attr::{Caller, Ino, Kind};
use crate::error::Result;
use crate::layout::{RawInode, RawPerm};
use crate::xattr;

impl Fs {
    /// The value of an extended attribute, ENODATA if there is none. POSIX ACLs are
    /// `system.posix_acl_access` and `system.posix_acl_default` in the kernel's xattr encoding.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.session().read(ino, || self.xattr_of(&self.raw(ino)?, name)?.ok_or_else(|| Errno::NODATA.into()))
    }

    #[inline(always)]
    fn xattr_of(&self, raw: &RawInode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if raw.xattr == 0 {
            return Ok(None);
        }
        xattr::get(self.region(), raw.xattr, name)
    }

    /// The stored access ACL, for a caller that reads optimistically or holds the lock.
    pub(super) fn access_acl(&self, raw: &RawInode) -> Result<Option<Vec<u8>>> {
        self.xattr_of(raw, acl::ACCESS)
    }

    /// The default ACL of a directory, for the same.
    #[inline(always)]
    pub(super) fn default_acl(&self, raw: &RawInode) -> Result<Option<Vec<u8>>> {
        self.xattr_of(raw, acl::DEFAULT)
    }

    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, caller: &Caller) -> Result<()> {
        self.writable()?;
        self.permit_xattr(ino, name, caller)?;
        match name {
            n if n == acl::ACCESS || n == acl::DEFAULT => self.set_acl(ino, name, value, how, caller),
            _ => self.change_xattr(ino, |tx, off| xattr::set(tx, off, name, value, how)),
        }
    }

    pub fn removexattr(&self, ino: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        self.writable()?;
        self.permit_xattr(ino, name, caller)?;
        self.change_xattr(ino, |tx, off| xattr::remove(tx, off, name))
    }

    /// Names, each followed by a zero byte, as `listxattr(2)` returns them.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.session().read(ino, || match self.table().get(ino)? {
            None => Err(Errno::STALE.into()),
            Some((_, raw)) if raw.xattr == 0 => Ok(Vec::new()),
            Some((_, raw)) => xattr::list(self.region(), raw.xattr),
        })
    }

    fn change_xattr(&self, ino: Ino, change: impl FnOnce(&mut pram::Tx, &mut u64) -> Result<()>) -> Result<()> {
        let mut op = self.session().begin()?;
        op.lock(&[ino])?;
        let mut node = self.node(ino)?;
        let mut tx = op.tx()?;
        change(&mut tx, &mut node.raw.xattr)?;
        node.raw.ctime = now().0;
        node.save(&mut tx)?;
        tx.commit()?;
        drop(op);
        self.tell_inode(ino, true);
        Ok(())
    }

    /// An access ACL also sets the permission bits; one that says no more than they do is not stored.
    fn set_acl(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, caller: &Caller) -> Result<()> {
        let raw = self.snapshot(ino)?;
        acl::validate(value)?;
        if name == acl::DEFAULT {
            if raw.kind != Kind::Directory as u32 {
                return Err(Errno::ACCESS.into());
            }
            if acl::is_empty(value) {
                return match self.change_xattr(ino, |tx, off| xattr::remove(tx, off, name)) {
                    Err(e) if e.errno() == Errno::NODATA => Ok(()),
                    done => done,
                };
            }
            return self.change_xattr(ino, |tx, off| xattr::set(tx, off, name, value, how));
        }
        if raw.kind == Kind::Symlink as u32 {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.set_access_acl(ino, value, caller)
    }

    /// ACL and mode in one transaction: never the one without the other.
    fn set_access_acl(&self, ino: Ino, value: &[u8], caller: &Caller) -> Result<()> {
        loop {
            let seen = self.snapshot(ino)?;
            let old = self.perms().get(self.region(), seen.perm)?;
            let folded = acl::fold(value, old.mode & 0o7777)?;
            let member = caller.checked || caller.uid == 0 || caller.in_group(old.gid);
            let bits = if member { folded.mode } else { folded.mode & !0o2000 };
            let mut op = self.session().begin()?;
            let perm = self.perms().intern(&mut op, RawPerm { mode: old.mode & !0o7777 | bits, ..old })?;
            op.lock(&[ino])?;
            let Some(mut node) = self.node_as_seen(ino, &seen)? else { continue };
            let mut tx = op.tx()?;
            if folded.stored {
                xattr::set(&mut tx, &mut node.raw.xattr, acl::ACCESS, value, SetXattr::Any)?;
            } else if node.raw.xattr != 0 {
                match xattr::remove(&mut tx, &mut node.raw.xattr, acl::ACCESS) {
                    Err(e) if e.errno() != Errno::NODATA => return Err(e),
                    _ => {}
                }
            }
            node.raw.perm = perm;
            node.raw.ctime = now().0;
            node.save(&mut tx)?;
            tx.commit()?;
            drop(op);
            self.tell_inode(ino, true);
            return Ok(());
        }
    }

    /// Who may change which attributes: `user.` who may write a file or own the directory, `trusted.` and
    /// `security.` the superuser, ACLs the owner.
    fn permit_xattr(&self, ino: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        let raw = self.snapshot(ino)?;
        let is_user = name.starts_with(b"user.");
        if is_user && raw.kind != Kind::Regular as u32 && raw.kind != Kind::Directory as u32 {
            return Err(Errno::PERM.into());
        }
        if caller.checked || caller.uid == 0 {
            return Ok(());
        }
        if is_user {
            return self.permit_seen(ino, &raw, caller, want::WRITE);
        }
        let owner = self.perms().get(self.region(), raw.perm)?.uid == caller.uid;
        if owner && (name == acl::ACCESS || name == acl::DEFAULT) {
            return Ok(());
        }
        Err(Errno::PERM.into())
    }
}
