//! Extended attributes and POSIX ACLs of inodes.

use rustix::io::Errno;

use super::update::Update;
use super::watch::Part;
use super::{content_of, want, Fs, SetXattr};
use crate::acl;
use crate::attr::{Caller, Ino, Kind};
use crate::codec::Codec;
use crate::error::Result;
use crate::file;
use crate::layout::{RawInode, RawPerm};
use crate::setting::{self, Durability, Fact, Set, Setting};
use crate::ubj::Union;
use crate::xattr;

impl Fs {
    /// The value of an extended attribute, ENODATA if there is none. POSIX ACLs are
    /// `system.posix_acl_access` and `system.posix_acl_default` in the kernel's xattr encoding.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if let Some(setting) = Setting::of_name(name) {
            return self.in_effect(ino, setting);
        }
        if let Some(fact) = Fact::of_name(name) {
            return self.fact(ino, fact);
        }
        self.session().read(ino, || {
            let raw = self.raw(ino)?;
            let value = match Setting::set_by(name) {
                Some(setting) => setting.value(&raw),
                None => self.xattr_of(&raw, name)?,
            };
            match value {
                Some(value) => Ok(value),
                None => check_namespace(name).and(Err(Errno::NODATA.into())),
            }
        })
    }

    /// The effect of a setting for this inode, in this process.
    fn in_effect(&self, ino: Ino, setting: Setting) -> Result<Vec<u8>> {
        let raw = self.snapshot(ino)?;
        Ok(match (setting, self.union()) {
            (Setting::Durability, _) => self.durability(&raw).name().into(),
            (Setting::Threshold, Some(union)) => setting::threshold_text(raw.threshold_or(union.threshold())),
            (Setting::Threshold, None) => setting::threshold_text(u64::MAX),
            (Setting::Redundancy, _) => self.effective_redundancy(ino, &raw)?.into(),
            (Setting::Priority, _) => raw.priority().name().into(),
            (Setting::Compression, _) => effective_compression(ino, &raw).into(),
            (Setting::Times, _) => raw.times().name().into(),
        })
    }

    fn fact(&self, ino: Ino, fact: Fact) -> Result<Vec<u8>> {
        Ok(match fact {
            Fact::Usage => self.usage(ino)?.to_string().into(),
            Fact::Status | Fact::Operations => return Err(Errno::NODATA.into()),
            Fact::Regions => match self.union() {
                Some(union) => union.log().most_replicas(self.session())?.to_string().into(),
                None => b"0".into(),
            },
        })
    }

    /// When changes of this inode by this process are durable, by its setting, the process's policy and the
    /// medium.
    fn durability(&self, raw: &RawInode) -> Durability {
        match self.durable_at_return() || raw.is_strict() {
            true => Durability::Strict,
            false => self.policy().durability,
        }
    }

    #[inline(always)]
    pub(super) fn xattr_of(&self, raw: &RawInode, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if raw.xattr == 0 {
            return Ok(None);
        }
        xattr::get(self.memory(), raw.xattr, name)
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
        check_namespace(name)?;
        self.permit_xattr(ino, name, caller)?;
        if let Some(setting) = Setting::set_by(name) {
            return self.change_setting(ino, setting, setting.parse(value)?, how);
        }
        match name {
            n if n == acl::ACCESS || n == acl::DEFAULT => self.set_acl(ino, name, value, how, caller),
            _ => self.change_xattr(ino, |tx, off| xattr::set(tx, off, name, value, how)),
        }
    }

    pub fn removexattr(&self, ino: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        self.writable()?;
        check_namespace(name)?;
        self.permit_xattr(ino, name, caller)?;
        if let Some(setting) = Setting::set_by(name) {
            return self.change_setting(ino, setting, Set::NOTHING, SetXattr::Replace);
        }
        match name {
            n if n == acl::ACCESS || n == acl::DEFAULT => self.remove_acl(ino, name),
            _ => self.change_xattr(ino, |tx, off| xattr::remove(tx, off, name)),
        }
    }

    /// Names, each followed by a zero byte, as `listxattr(2)` returns them.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.session().read(ino, || {
            let raw = self.table().get(ino)?.ok_or(Errno::STALE)?;
            let mut names = xattr::list(self.memory(), raw.xattr)?;
            if setting::has_names(&raw) {
                for setting in Setting::ALL.into_iter().filter(|setting| setting.is_set(&raw)) {
                    names.extend_from_slice(setting.attribute());
                    names.push(0);
                }
            }
            Ok(names)
        })
    }

    /// Sets a setting of an inode to `set`; [`Set::NOTHING`] unsets it.
    fn change_setting(&self, ino: Ino, setting: Setting, set: Set, how: SetXattr) -> Result<()> {
        // A directory's setting is only for inodes that will be made in it. Noted before the change: after a crash no other process would know.
        let is_file = self.snapshot(ino)?.kind == Kind::Regular as u8;
        let note = |union: &Union| match setting {
            Setting::Threshold => union.note_setting(self.session(), ino),
            Setting::Redundancy => union.follow_redundancy(self.session(), ino),
            Setting::Durability | Setting::Priority | Setting::Compression | Setting::Times => Ok(()),
        };
        let union = self.union().filter(|_| is_file).map(|union| &**union);
        union.map_or(Ok(()), note)?;
        self.change_node(ino, |tx, raw| {
            match how {
                SetXattr::Create if setting.is_set(raw) => return Err(Errno::EXIST.into()),
                SetXattr::Replace if !setting.is_set(raw) => return Err(Errno::NODATA.into()),
                _ => {}
            }
            // Unsetting that it is strict is the last change that this holds for.
            if raw.is_strict() {
                tx.urge();
            }
            setting.set(raw, set);
            Ok(())
        })?;
        union.map_or(Ok(()), note)
    }

    fn change_xattr(&self, ino: Ino, mut change: impl FnMut(&mut pram::Tx, &mut u64) -> Result<()>) -> Result<()> {
        self.change_node(ino, |tx, raw| change(tx, &mut raw.xattr))
    }

    fn change_node(&self, ino: Ino, mut change: impl FnMut(&mut pram::Tx, &mut RawInode) -> Result<()>) -> Result<()> {
        self.update(|op| {
            op.lock(&[ino])?;
            let mut node = self.node(ino)?;
            let mut tx = op.tx()?;
            change(&mut tx, &mut node.raw)?;
            node.raw.ctime = self.stamp([&node]).0;
            node.save(&mut tx)?;
            tx.commit()?;
            op.tell_inode(ino, Part::Extended);
            Ok(())
        })
    }

    /// An access ACL also sets the permission bits; one that says no more than they do is not stored.
    fn set_acl(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, caller: &Caller) -> Result<()> {
        let raw = self.snapshot(ino)?;
        acl::validate(value)?;
        if name == acl::DEFAULT {
            if raw.kind != Kind::Directory as u8 {
                return Err(Errno::ACCESS.into());
            }
            if acl::is_empty(value) {
                return self.remove_acl(ino, name);
            }
            return self.change_xattr(ino, |tx, off| xattr::set(tx, off, name, value, how));
        }
        if raw.kind == Kind::Symlink as u8 {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.set_access_acl(ino, value, caller)
    }

    /// A missing ACL means the same as the mode, so removing it succeeds, as from the kernel's own file systems.
    fn remove_acl(&self, ino: Ino, name: &[u8]) -> Result<()> {
        match self.change_xattr(ino, |tx, off| xattr::remove(tx, off, name)) {
            Err(e) if e.errno() == Errno::NODATA => Ok(()),
            done => done,
        }
    }

    /// ACL and mode in one transaction: never the one without the other.
    fn set_access_acl(&self, ino: Ino, value: &[u8], caller: &Caller) -> Result<()> {
        loop {
            let seen = self.snapshot(ino)?;
            self.permit_acl(ino, &seen, caller)?;
            let old = self.seen_perm(ino, &seen)?;
            let folded = acl::fold(value, old.mode & 0o7777)?;
            let member = caller.checked || caller.uid == 0 || caller.in_group(old.gid);
            let bits = if member { folded.mode } else { folded.mode & !0o2000 };
            let perm = RawPerm { mode: old.mode & !0o7777 | bits, ..old };
            let acl = folded.stored.then_some(value);
            if self.update(|op| self.set_access_acl_in(op, ino, &seen, perm, acl))? {
                return Ok(());
            }
        }
    }

    /// Sets triple and ACL of an inode that is still as it was seen; false if it is not.
    fn set_access_acl_in(
        &self,
        op: &mut Update,
        ino: Ino,
        seen: &RawInode,
        perm: RawPerm,
        acl: Option<&[u8]>,
    ) -> Result<bool> {
        let perm = self.perms().intern(op, perm)?;
        op.lock(&[ino])?;
        let Some(mut node) = self.node_as_seen(ino, seen)? else { return Ok(false) };
        let mut tx = op.tx()?;
        if let Some(acl) = acl {
            xattr::set(&mut tx, &mut node.raw.xattr, acl::ACCESS, acl, SetXattr::Any)?;
        } else if node.raw.xattr != 0 {
            match xattr::remove(&mut tx, &mut node.raw.xattr, acl::ACCESS) {
                Err(e) if e.errno() != Errno::NODATA => return Err(e),
                _ => {}
            }
        }
        node.raw.perm = perm;
        node.raw.ctime = self.stamp([&node]).0;
        node.save(&mut tx)?;
        tx.commit()?;
        op.tell_inode(ino, Part::Extended);
        Ok(true)
    }

    /// Checks the right to change an attribute: for `user.`, writing the file or owning the directory; for `trusted.` and
    /// `security.`, being the superuser; for ACLs, being the owner.
    fn permit_xattr(&self, ino: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        let raw = self.snapshot(ino)?;
        let is_user = name.starts_with(b"user.");
        if (is_user && !setting::has_names(&raw)) || setting::is_read_only_name(name) {
            return Err(Errno::PERM.into());
        }
        if caller.uid == 0 {
            return Ok(());
        }
        if is_user {
            return self.permit_seen(ino, &raw, caller, want::WRITE);
        }
        if name == acl::ACCESS || name == acl::DEFAULT {
            return self.permit_acl(ino, &raw, caller);
        }
        match caller.checked {
            true => Ok(()),
            false => Err(Errno::PERM.into()),
        }
    }

    fn permit_acl(&self, ino: Ino, raw: &RawInode, caller: &Caller) -> Result<()> {
        match caller.acts_for(self.seen_perm(ino, raw)?.uid) {
            true => Ok(()),
            false => Err(Errno::PERM.into()),
        }
    }
}

/// Is `name` one that an attribute may have? Otherwise EOPNOTSUPP, as the kernel has it for its own file systems.
fn check_namespace(name: &[u8]) -> Result<()> {
    if name == acl::ACCESS || name == acl::DEFAULT {
        return Ok(());
    }
    let namespaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    match namespaces.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        None => Err(Errno::OPNOTSUPP.into()),
        Some(b"") => Err(Errno::INVAL.into()),
        Some(_) => Ok(()),
    }
}

/// For a file, whether its content is compressed, and by which codec; for a directory, the setting for files made in it.
fn effective_compression(ino: Ino, raw: &RawInode) -> &'static str {
    match raw.kind == Kind::Regular as u8 {
        true => file::codec_of(&content_of(ino, raw)).map_or("plain", Codec::name),
        false => raw.compression().name(),
    }
}
