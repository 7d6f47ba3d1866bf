//! stat, access.

use conquest_fs::{Attr, Kind};
use rustix::io::Errno;

use super::place::{number, At};
use super::{Outcome, Stop};
use crate::raw;
use crate::stat::{Stat, Statx, KNOWN};
use crate::state::State;

const NOFOLLOW: u32 = libc::AT_SYMLINK_NOFOLLOW as u32;
const EMPTY_PATH: u32 = libc::AT_EMPTY_PATH as u32;
/// `AT_STATX_SYNC_TYPE`
const SYNC_TYPE: u32 = 0x6000;
const STAT_FLAGS: u32 = NOFOLLOW | EMPTY_PATH | libc::AT_NO_AUTOMOUNT as u32 | SYNC_TYPE;
const ACCESS_FLAGS: u32 = NOFOLLOW | EMPTY_PATH | libc::AT_EACCESS as u32;
/// `STATX__RESERVED`
const RESERVED: u32 = 0x8000_0000;

impl State {
    #[inline(always)]
    pub fn stat(&self, at: At, buf: usize, flags: u32) -> Outcome {
        let attr = self.attr_at(at, flags)?;
        raw::put(buf, &Stat::new(&attr, self.mount.dev))?;
        Ok(0)
    }

    #[inline(always)]
    pub fn fstat(&self, fd: usize, buf: usize) -> Outcome {
        let file = self.file_or_place(fd)?;
        let attr = self.fs().getattr(file.ino)?;
        raw::put(buf, &Stat::new(&attr, self.mount.dev))?;
        Ok(0)
    }

    #[inline(always)]
    fn attr_at(&self, at: At, flags: u32) -> Outcome<Attr> {
        if flags & !STAT_FLAGS != 0 {
            return Err(Errno::INVAL.into());
        }
        // These calls alone take a null pointer for an empty path.
        if flags & EMPTY_PATH != 0 && (at.1 == 0 || self.is_of_descriptor(at, flags)?) {
            return Ok(match number(at.0) {
                libc::AT_FDCWD => self.fs().getattr(self.working_directory()?)?,
                _ => self.fs().getattr(self.file_or_place(at.0)?.ino)?,
            });
        }
        let place = match self.place(at) {
            Err(Stop::Kernel) => return Ok(self.fs().getattr(self.hold(at, flags)?.ino())?),
            place => place?,
        };
        Ok(match flags & NOFOLLOW {
            0 => place.view().stat(place.path)?,
            _ => place.view().lstat(place.path)?,
        })
    }

    pub fn statx(&self, at: At, flags: u32, mask: u32, buf: usize) -> Outcome {
        if mask & RESERVED != 0 || flags & SYNC_TYPE == SYNC_TYPE {
            return Err(Errno::INVAL.into());
        }
        let attr = self.attr_at(at, flags)?;
        if mask & !KNOWN != 0 {
            return Err(Stop::Kernel);
        }
        raw::put(buf, &Statx::new(&attr, &self.mount, mask))?;
        Ok(0)
    }

    pub fn access(&self, at: At, mode: u32, flags: u32) -> Outcome {
        if mode & !7 != 0 || flags & !ACCESS_FLAGS != 0 {
            return Err(Errno::INVAL.into());
        }
        // The real user's rights are the kernel's to tell, where another acts.
        if flags & libc::AT_EACCESS as u32 == 0 && !self.identity()?.is_real {
            return Err(Stop::Kernel);
        }
        let kind = if self.is_of_descriptor(at, flags)? {
            let (held, caller) = (self.hold(at, flags)?, self.identities.caller(self.identity()?));
            self.fs().access(held.ino(), mode, &caller)?;
            self.fs().getattr(held.ino())?.kind
        } else {
            let place = self.place(at)?;
            place.view().access(place.path, mode, flags & NOFOLLOW == 0)?
        };
        if self.noexec && mode & libc::X_OK as u32 != 0 && kind == Kind::Regular {
            return Err(Errno::ACCESS.into());
        }
        Ok(0)
    }
}
