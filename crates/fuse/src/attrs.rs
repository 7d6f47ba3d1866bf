//! Requests about attributes, plain and extended.

use conquest_fs::node::SetXattr;
use conquest_fs::{Attr, Caller, Ino, Kind, SetAttr};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::abi::{fattr, GetxattrIn, GetxattrOut, InHeader, SetattrIn, SetxattrIn, SETXATTR_ACL_KILL_SGID};
use crate::convert::{attr_out, errno, is_bare, set_attr, statx_out};
use crate::process::{self, Process};
use crate::request::{Answer, Request};
use crate::server::{caller, is_refused, Server};

const SUID: u32 = 0o4000;
const SGID: u32 = 0o2000;

const CAPABILITY: &[u8] = b"security.capability";
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

impl Server {
    pub(crate) fn getattr(&self, req: &mut Request) -> Answer {
        let valid = self.read_valid(req.head.nodeid);
        let attr = self.attr(req)?;
        req.reply(&attr_out(&attr, valid))
    }

    pub(crate) fn statx(&self, req: &mut Request) -> Answer {
        let valid = self.read_valid(req.head.nodeid);
        let attr = self.attr(req)?;
        req.reply(&statx_out(&attr, valid))
    }

    fn attr(&self, req: &Request) -> Result<Attr, Errno> {
        let attr = self.fs().getattr(req.head.nodeid).map_err(errno)?;
        if attr.kind != Kind::Directory && self.is_growing(attr.ino, req.head.pid) {
            self.notifier.outdate(attr.ino);
        }
        Ok(attr)
    }

    /// May the file's size be one that the kernel does not know yet, but is about to learn? Call this after reading it.
    pub(crate) fn is_growing(&self, ino: Ino, thread: u32) -> bool {
        self.notifier.stale.is_under_way(ino, thread) || self.fs().is_changing(ino)
    }

    pub(crate) fn setattr(&self, req: &mut Request) -> Answer {
        let args: SetattrIn = req.args()?;
        let valid = self.made_valid(req.head.nodeid);
        let set = self.as_meant(req, set_attr(&args));
        let caller = Caller { checked: !is_bare(&args), ..caller(req) };
        let done = match caller.uid != 0 && self.asks_for_groups(req.head.nodeid, &set, &caller) {
            true => Err(Errno::PERM),
            false => self.fs().setattr(req.head.nodeid, &set, &caller).map_err(errno),
        };
        let attr = match done {
            Err(e) if is_refused(e) && caller.uid != 0 => self.setattr_by_process(req, &set, &caller)?,
            done => done?,
        };
        if attr.nlink == 0 && args.valid & fattr::CHANGES == fattr::MODE {
            self.privileges.mode_set(&req.head);
        }
        req.reply(&attr_out(&attr, valid))
    }

    /// Adds the privileges that the change takes but the message does not name. For an inode without a name the kernel
    /// names all others: no other process can have given it a capability.
    fn as_meant(&self, req: &Request, set: SetAttr) -> SetAttr {
        let nameless = || self.fs().getattr(req.head.nodeid).is_ok_and(|attr| attr.nlink == 0);
        match (set.size, set.uid.is_some() || set.gid.is_some()) {
            (Some(_), false) if nameless() => SetAttr { retains_privileges: true, ..set },
            (None, true) if self.privileges.is_kernels(&req.head) => {
                SetAttr { retains_privileges: true, kill_suidgid: false, ..set }
            }
            (None, false)
                if self.privileges.is_before_write(&req.head) && may_retain_setid(&Process::behind(&req.head)) =>
            {
                SetAttr { kill_suidgid: false, ..set }
            }
            _ => set,
        }
    }

    /// Does the change depend on the caller's groups, which a SETATTR does not carry? They decide about the
    /// set-group-id bit.
    fn asks_for_groups(&self, ino: Ino, set: &SetAttr, caller: &Caller) -> bool {
        let sets = set.mode.is_some_and(|mode| mode & SGID != 0);
        let members_retain = || self.fs().getattr(ino).is_ok_and(|attr| members_may_retain(attr.perm));
        !caller.checked || sets || set.kill_suidgid && members_retain()
    }

    /// The change where it depends on groups or capabilities of the caller, which the request lacks.
    #[cold]
    fn setattr_by_process(&self, req: &Request, set: &SetAttr, caller: &Caller) -> Result<Attr, Errno> {
        let process = Process::behind(&req.head);
        let old = self.fs().getattr(req.head.nodeid).map_err(errno)?;
        let groups = groups(&process, &old, set);
        // A change that only clears bits may precede a write, through any descriptor.
        let writes = || !caller.checked && process.writes(self.file_system(), req.head.nodeid);
        let owns: &[u32] = if may_set(&process, set, &old) || writes() { &[old.uid] } else { &[] };
        let caller = Caller { groups: &groups, owns, ..*caller };
        self.fs().setattr(req.head.nodeid, set, &caller).map_err(errno)
    }

    /// Clears the set-id bits of a file whose content changes, unless the caller may retain them. The kernel has
    /// cleared the bits that it knew of, and reports only for WRITE that the caller may not retain them.
    #[inline(always)]
    pub(crate) fn clear_setid(&self, req: &Request, ino: Ino, may_retain: fn(&Process) -> bool) -> Result<(), Errno> {
        match self.fs().has_setid(ino).map_err(errno)? {
            true => self.clear_setid_of(req, ino, may_retain),
            false => Ok(()),
        }
    }

    #[cold]
    fn clear_setid_of(&self, req: &Request, ino: Ino, may_retain: fn(&Process) -> bool) -> Result<(), Errno> {
        let process = Process::behind(&req.head);
        if may_retain(&process) {
            return Ok(());
        }
        let set = SetAttr { kill_suidgid: true, ..Default::default() };
        let old = self.fs().getattr(ino).map_err(errno)?;
        let groups = groups(&process, &old, &set);
        let caller = Caller { groups: &groups, ..caller(req) };
        // A change that changes nothing would set ctime.
        if members_may_retain(old.perm) && old.perm & SUID == 0 && (caller.uid == 0 || caller.in_group(old.gid)) {
            return Ok(());
        }
        self.fs().setattr(ino, &set, &caller).map_err(errno)?;
        Ok(())
    }

    pub(crate) fn getxattr(&self, req: &mut Request) -> Answer {
        let args: GetxattrIn = req.args()?;
        let name = req.name()?;
        if name == conquest::brief::ATTRIBUTE.as_bytes() {
            let brief = self.pool.brief().map_err(errno)?;
            return reply_value(req, &serde_json::to_vec(&brief).map_err(|_| Errno::IO)?, args.size);
        }
        if name == conquest::operations::ATTRIBUTE.as_bytes() {
            let known = serde_json::to_vec(&self.counters.tell()).map_err(|_| Errno::IO)?;
            return reply_value(req, &known, args.size);
        }
        let value = self.fs().getxattr(req.head.nodeid, name).map_err(errno);
        if name == CAPABILITY {
            match args.size {
                0 => self.privileges.asked(&req.head, value.is_ok()),
                _ => self.privileges.forget(&req.head),
            }
        }
        reply_value(req, &value?, args.size)
    }

    pub(crate) fn listxattr(&self, req: &mut Request) -> Answer {
        let args: GetxattrIn = req.args()?;
        let names = self.fs().listxattr(req.head.nodeid).map_err(errno)?;
        if has_trusted(&names) && !may_see_trusted(&req.head) {
            return reply_value(req, &without_trusted(&names), args.size);
        }
        reply_value(req, &names, args.size)
    }

    pub(crate) fn setxattr(&self, req: &Request) -> Answer {
        let args: SetxattrIn = req.args()?;
        let how = match XattrFlags::from_bits_retain(args.flags) {
            XattrFlags::CREATE => SetXattr::Create,
            XattrFlags::REPLACE => SetXattr::Replace,
            flags if flags.is_empty() => SetXattr::Any,
            _ => return Err(Errno::INVAL),
        };
        let (name, value) = req.name_and_value(args.size as usize)?;
        self.as_owner(req, |caller| self.fs().setxattr(req.head.nodeid, name, value, how, caller))?;
        if name == CAPABILITY {
            self.privileges.forget(&req.head);
        }
        // The kernel sets this flag for default ACLs as well, which grant nobody any rights.
        if name == ACCESS_ACL && args.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
            self.clear_sgid(req)?;
        }
        Ok(0)
    }

    /// A new ACL set by one outside the file's group takes the set-group-id bit away.
    fn clear_sgid(&self, req: &Request) -> Result<(), Errno> {
        let perm = self.fs().getattr(req.head.nodeid).map_err(errno)?.perm;
        if perm & SGID != 0 {
            let set = SetAttr { mode: Some(perm & !SGID), ..Default::default() };
            self.fs().setattr(req.head.nodeid, &set, &Caller { checked: true, ..Caller::root() }).map_err(errno)?;
        }
        Ok(())
    }

    pub(crate) fn removexattr(&self, req: &Request) -> Answer {
        let name = req.name()?;
        self.as_owner(req, |caller| self.fs().removexattr(req.head.nodeid, name, caller))?;
        Ok(0)
    }

    /// Performs a change that needs the owner of the request's inode, or the capability to act for the owner.
    pub(crate) fn as_owner(
        &self,
        req: &Request,
        act: impl Fn(&Caller) -> conquest_fs::Result<()>,
    ) -> Result<(), Errno> {
        self.as_owners(req, &act, || {
            let attr = self.fs().getattr(req.head.nodeid).ok();
            attr.into_iter().map(|attr| (attr.uid, None)).collect()
        })
    }
}

/// May a file that this process changes retain its set-id bits? For a proxy only the kernel knows.
pub(crate) fn may_retain_setid(process: &Process) -> bool {
    process.is_proxy() || process.rules(process::FSETID, 0, None)
}

/// The groups of `process` that count for the set-group-id bit of an inode. The capability counts as membership in the
/// inode's group, and so does being a proxy, whose groups only the kernel knows.
fn groups(process: &Process, old: &Attr, set: &SetAttr) -> Vec<u32> {
    let mut groups = process.groups();
    if process.is_proxy() {
        groups.extend([old.gid, set.gid.unwrap_or(old.gid)]);
    } else if process.rules(process::FSETID, old.uid, Some(old.gid)) {
        groups.push(old.gid);
    }
    groups
}

/// Does this mode have the set-group-id bit without the group's execute bit? Then members of the group may retain it.
fn members_may_retain(perm: u32) -> bool {
    perm & (SGID | 0o010) == SGID
}

/// Does the process have the capabilities to make this change without being the owner?
fn may_set(process: &Process, set: &SetAttr, old: &Attr) -> bool {
    let chown = set.uid.is_some() || set.gid.is_some();
    let other = !chown || set.mode.is_some() || set.atime.is_some() || set.mtime.is_some();
    (!chown || process.rules(process::CHOWN, old.uid, Some(old.gid)))
        && (!other || process.rules(process::FOWNER, old.uid, None))
}

fn has_trusted(names: &[u8]) -> bool {
    names.split(|b| *b == 0).any(|name| name.starts_with(b"trusted."))
}

/// May the caller read `trusted.` attributes, and so learn that they exist?
#[cold]
fn may_see_trusted(head: &InHeader) -> bool {
    let process = Process::behind(head);
    match process.is_proxy() {
        true => head.uid == 0,
        false => process.rules(process::SYS_ADMIN, 0, None),
    }
}

/// The names, each ended by a zero byte, without those that only the superuser may see.
fn without_trusted(names: &[u8]) -> Vec<u8> {
    names.split_inclusive(|b| *b == 0).filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect()
}

/// Replies with a value, or with its size only if `room` is 0.
fn reply_value(req: &mut Request, value: &[u8], room: u32) -> Answer {
    match room as usize {
        0 => req.reply(&GetxattrOut { size: value.len() as u32, padding: 0 }),
        room if room < value.len() => Err(Errno::RANGE),
        _ => req.reply_bytes(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusted_attributes_are_not_listed_for_everybody() {
        assert_eq!(without_trusted(b"trusted.a\0user.b\0trusted.c\0security.d\0"), b"user.b\0security.d\0");
        assert_eq!(without_trusted(b""), b"");
    }
}
