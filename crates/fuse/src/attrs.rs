//! Requests about attributes, plain and extended.

use fs::node::SetXattr;
use fs::{Caller, SetAttr};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::abi::{GetxattrIn, GetxattrOut, SetattrIn, SetxattrIn, SETXATTR_ACL_KILL_SGID};
use crate::convert::{attr_out, is_bare, set_attr, statx_out};
use crate::request::{Answer, Request};
use crate::server::{caller, errno, Server};

const SGID: u32 = 0o2000;

impl Server {
    pub(crate) fn getattr(&self, req: &mut Request) -> Answer {
        let attr = self.fs().getattr(req.head.nodeid).map_err(errno)?;
        req.reply(&attr_out(&attr))
    }

    pub(crate) fn statx(&self, req: &mut Request) -> Answer {
        let attr = self.fs().getattr(req.head.nodeid).map_err(errno)?;
        req.reply(&statx_out(&attr))
    }

    pub(crate) fn setattr(&self, req: &mut Request) -> Answer {
        let args: SetattrIn = req.args()?;
        let groups;
        let caller = match is_bare(&args) {
            true => {
                groups = groups_of(req.head.pid);
                Caller { groups: &groups, checked: false, ..caller(req) }
            }
            false => caller(req),
        };
        let attr = self.fs().setattr(req.head.nodeid, &set_attr(&args), &caller).map_err(errno)?;
        req.reply(&attr_out(&attr))
    }

    pub(crate) fn getxattr(&self, req: &mut Request) -> Answer {
        let args: GetxattrIn = req.args()?;
        let value = self.fs().getxattr(req.head.nodeid, req.name()?).map_err(errno)?;
        reply_value(req, &value, args.size)
    }

    pub(crate) fn listxattr(&self, req: &mut Request) -> Answer {
        let args: GetxattrIn = req.args()?;
        let names = self.fs().listxattr(req.head.nodeid).map_err(errno)?;
        let seen = match req.head.uid {
            0 => names,
            _ => without_trusted(&names),
        };
        reply_value(req, &seen, args.size)
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
        self.fs().setxattr(req.head.nodeid, name, value, how, &caller(req)).map_err(errno)?;
        if args.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
            self.clear_sgid(req)?;
        }
        Ok(0)
    }

    /// A new ACL set by one outside the file's group takes the set-group-id bit away.
    fn clear_sgid(&self, req: &Request) -> Result<(), Errno> {
        let perm = self.fs().getattr(req.head.nodeid).map_err(errno)?.perm;
        if perm & SGID != 0 {
            let set = SetAttr { mode: Some(perm & !SGID), ..Default::default() };
            self.fs().setattr(req.head.nodeid, &set, &caller(req)).map_err(errno)?;
        }
        Ok(())
    }

    pub(crate) fn removexattr(&self, req: &Request) -> Answer {
        self.fs().removexattr(req.head.nodeid, req.name()?, &caller(req)).map_err(errno)?;
        Ok(0)
    }
}

/// The supplementary groups of a process that waits for its answer; a SETATTR does not bring them.
#[cold]
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Names, each with a zero byte, but for those that only the superuser has to do with.
fn without_trusted(names: &[u8]) -> Vec<u8> {
    names.split_inclusive(|b| *b == 0).filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect()
}

/// A value, or only its size if the caller gave no room.
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
