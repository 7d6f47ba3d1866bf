//! Extended attributes.
//!
//! What the kernel itself has a say in (`trusted.`, changes of `security.` and of access control lists) is left to it.

use conquest_fs::node::SetXattr;
use conquest_fs::{Attr, Kind};
use rustix::io::Errno;

use super::place::At;
use super::{Outcome, Stop};
use crate::state::State;
use crate::{mapped, raw};

const NAME_MAX: usize = 255;
/// Most bytes of a value, and of a list.
const SIZE_MAX: usize = 64 << 10;
const STICKY: u32 = 0o1000;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

impl State {
    pub fn setxattr(&self, at: At, follow: u32, name: usize, value: (usize, usize), flags: u32) -> Outcome {
        let how = match flags as i32 {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::INVAL.into()),
        };
        let name = name_at(name)?;
        if value.1 > SIZE_MAX {
            return Err(Errno::TOOBIG.into());
        }
        let value = mapped::safe(raw::bytes(value.0, value.1)?);
        if name == ACCESS && self.needs_paths() {
            // The list may refuse the process what its descriptors may.
            let _ = self.make_all_real(false);
        }
        let held = self.hold(at, follow)?;
        let caller = self.identities.caller(self.identity()?);
        self.may_change(name, &self.fs().getattr(held.ino())?, caller.uid)?;
        self.fs().setxattr(held.ino(), name, &value, how, &caller)?;
        Ok(0)
    }

    pub fn removexattr(&self, at: At, follow: u32, name: usize) -> Outcome {
        let name = name_at(name)?;
        let held = self.hold(at, follow)?;
        let caller = self.identities.caller(self.identity()?);
        self.may_change(name, &self.fs().getattr(held.ino())?, caller.uid)?;
        self.fs().removexattr(held.ino(), name, &caller)?;
        Ok(0)
    }

    /// Is the change of this attribute one that is made here, and does the kernel allow it?
    fn may_change(&self, name: &[u8], attr: &Attr, uid: u32) -> Outcome<()> {
        if !name.starts_with(b"user.") {
            return Err(Stop::Kernel);
        }
        match attr.kind {
            Kind::Directory if attr.perm & STICKY != 0 && uid != 0 && uid != attr.uid => Err(Errno::PERM.into()),
            Kind::Directory | Kind::Regular => Ok(()),
            _ => Err(Errno::PERM.into()),
        }
    }

    pub fn getxattr(&self, at: At, follow: u32, name: usize, buf: (usize, usize)) -> Outcome {
        let name = name_at(name)?;
        if name.starts_with(b"trusted.") {
            return Err(Stop::Kernel);
        }
        let held = self.hold(at, follow)?;
        if name.starts_with(b"user.") {
            if !matches!(self.fs().getattr(held.ino())?.kind, Kind::Directory | Kind::Regular) {
                return Err(Errno::NODATA.into());
            }
            let caller = self.identities.caller(self.identity()?);
            self.fs().access(held.ino(), libc::R_OK as u32, &caller)?;
        }
        let is_acl = name == ACCESS || name == DEFAULT;
        if is_acl && self.fs().getattr(held.ino())?.kind == Kind::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        let value = self.fs().getxattr(held.ino(), name)?;
        // Others may see them in another form.
        if name.starts_with(b"security.") || is_acl {
            return Err(Stop::Kernel);
        }
        put(&value, (buf.0, buf.1.min(SIZE_MAX)))
    }

    pub fn listxattr(&self, at: At, follow: u32, buf: (usize, usize)) -> Outcome {
        let held = self.hold(at, follow)?;
        let names = self.fs().listxattr(held.ino())?;
        // They are not for everybody.
        if names.split(|b| *b == 0).any(|name| name.starts_with(b"trusted.")) {
            return Err(Stop::Kernel);
        }
        put(&names, (buf.0, buf.1.min(SIZE_MAX)))
    }
}

fn name_at<'a>(addr: usize) -> Outcome<&'a [u8]> {
    match raw::string(addr, NAME_MAX)? {
        None | Some(b"") => Err(Errno::RANGE.into()),
        Some(name) => Ok(name),
    }
}

/// Puts a value into a buffer; without one, tells its size.
fn put(value: &[u8], (addr, room): (usize, usize)) -> Outcome {
    match room {
        0 => {}
        room if room < value.len() => return Err(Errno::RANGE.into()),
        _ => raw::bytes_mut(addr, value.len())?.copy_from_slice(value),
    }
    Ok(value.len())
}
