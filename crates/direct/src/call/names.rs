//! Make, rename, remove, read symbolic links.

use conquest_fs::node::Rename;
use rustix::io::Errno;

use super::place::At;
use super::{Outcome, Stop};
use crate::raw;
use crate::state::State;

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;

impl State {
    pub fn mkdir(&self, at: At, mode: u32) -> Outcome {
        let place = self.place(at)?;
        place.view().mkdir(place.path, mode & 0o1777)?;
        Ok(0)
    }

    #[inline(always)]
    pub fn unlink(&self, at: At, flags: u32) -> Outcome {
        const REMOVEDIR: u32 = libc::AT_REMOVEDIR as u32;
        if flags & !REMOVEDIR != 0 {
            return Err(Errno::INVAL.into());
        }
        let place = self.place(at)?;
        match flags {
            REMOVEDIR => place.view().rmdir(place.path)?,
            _ => place.view().unlink(place.path)?,
        }
        Ok(0)
    }

    #[inline(always)]
    pub fn rename(&self, from: At, to: At, flags: u32) -> Outcome {
        let how = match flags {
            0 => Rename::Replace,
            NOREPLACE => Rename::NoReplace,
            EXCHANGE => Rename::Exchange,
            // Only some processes may make devices.
            WHITEOUT => return Err(Stop::Kernel),
            flags if flags == NOREPLACE | WHITEOUT => return Err(Stop::Kernel),
            _ => return Err(Errno::INVAL.into()),
        };
        let (from, to) = (self.place(from)?, self.place(to)?);
        from.view().rename_to(from.path, &to.view(), to.path, how)?;
        Ok(0)
    }

    pub fn readlink(&self, at: At, buf: usize, len: i32) -> Outcome {
        let len = usize::try_from(len).ok().filter(|len| *len > 0).ok_or(Errno::INVAL)?;
        let place = self.place(at)?;
        let target = place.view().readlink(place.path)?;
        let len = len.min(target.len());
        raw::bytes_mut(buf, len)?.copy_from_slice(&target[..len]);
        Ok(len)
    }
}
