//! close, dup, fcntl: calls about descriptors.

use std::os::fd::RawFd;

use libc::{c_int, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_SETFD, F_SETFL, O_CLOEXEC};
use rustix::io::{Errno, FdFlags};

use super::place::number;
use super::{Outcome, Stop};
use crate::descriptors::MOST;
use crate::open_file::OpenFile;
use crate::raw;
use crate::state::State;

/// Flags that F_SETFL changes.
const CHANGED: u32 = (libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME) as u32;
const ASYNC: u32 = libc::O_ASYNC as u32;

const UNSHARE: u32 = 2;
const CLOSE_ON_EXEC: u32 = 4;

impl State {
    #[inline(always)]
    pub fn close(&self, fd: usize) -> Outcome {
        let mut slot = self.descriptors.existing(number(fd)).ok_or(Stop::Kernel)?;
        let file = slot.take().ok_or(Stop::Kernel)?;
        // With the slot locked: nobody else gets the number before.
        raw::close(number(fd));
        drop(slot);
        self.closed(file);
        Ok(0)
    }

    pub fn duplicate(&self, fd: usize, first: RawFd, close_on_exec: bool) -> Outcome {
        let file = self.file_or_place(fd)?;
        self.stand_for(self.placeholder_from(first, close_on_exec)?, file)
    }

    pub fn dup2(&self, old: usize, new: usize) -> Outcome {
        match number(old) == number(new) {
            true => self.file_or_place(old).map(|_| new),
            false => self.replace(old, new, false),
        }
    }

    pub fn dup3(&self, old: usize, new: usize, flags: u32) -> Outcome {
        if flags & !(O_CLOEXEC as u32) != 0 || number(old) == number(new) {
            return Err(Errno::INVAL.into());
        }
        self.replace(old, new, flags != 0)
    }

    /// Puts `old` in the place of `new`; either may be served here.
    fn replace(&self, old: usize, new: usize, close_on_exec: bool) -> Outcome {
        let (from, to) = (number(old), number(new));
        let Some(file) = self.descriptors.get(from) else {
            let Some(mut slot) = self.descriptors.existing(to) else { return Err(Stop::Kernel) };
            raw::put_at(raw::borrow(from)?, to, close_on_exec)?;
            let replaced = slot.take();
            drop(slot);
            replaced.into_iter().for_each(|file| self.closed(file));
            return Ok(to as usize);
        };
        if to as usize >= MOST {
            return Err(Stop::Kernel);
        }
        let mut slot = self.descriptors.slot(to).ok_or(Errno::BADF)?;
        let useless = self.useless.lend().map_err(|_| Stop::Kernel)?;
        raw::put_at(&useless, to, close_on_exec)?;
        let replaced = slot.put(file);
        drop(slot);
        replaced.into_iter().for_each(|file| self.closed(file));
        Ok(to as usize)
    }

    pub fn fcntl(&self, fd: usize, cmd: u32, arg: usize) -> Outcome {
        let file = self.file_or_place(fd)?;
        match cmd as c_int {
            F_DUPFD | F_DUPFD_CLOEXEC => {
                let first = RawFd::try_from(arg).map_err(|_| Errno::INVAL)?;
                self.duplicate(fd, first, cmd as c_int == F_DUPFD_CLOEXEC)
            }
            F_GETFD => Ok(rustix::io::fcntl_getfd(raw::borrow(number(fd))?)?.bits() as usize),
            F_SETFD => {
                let flags = FdFlags::from_bits_truncate(arg as u32);
                rustix::io::fcntl_setfd(raw::borrow(number(fd))?, flags)?;
                Ok(0)
            }
            _ if file.is_place() => Err(Stop::Kernel),
            F_GETFL => Ok(file.flags() as usize),
            F_SETFL => {
                let (old, new) = (file.flags(), arg as u32);
                let may_not_note = new & !old & libc::O_NOATIME as u32 != 0 && self.identity()?.uid != 0;
                if new & ASYNC != 0 || may_not_note {
                    return Err(Stop::Kernel);
                }
                if file.is_dir() && new & libc::O_DIRECT as u32 != 0 {
                    return Err(Errno::INVAL.into());
                }
                file.set_flags(old & !CHANGED | new & CHANGED);
                file.real.get().map_or(Ok(()), |real| {
                    rustix::fs::fcntl_setfl(real, rustix::fs::OFlags::from_bits_retain(new & CHANGED))
                })?;
                Ok(0)
            }
            cmd => self.lock(&file, cmd, arg),
        }
    }

    pub fn ioctl(&self, fd: usize, cmd: u32, arg: usize) -> Outcome {
        let file = self.file(fd)?;
        match u64::from(cmd) {
            libc::FIOCLEX => Ok(rustix::io::fcntl_setfd(raw::borrow(number(fd))?, FdFlags::CLOEXEC).map(|()| 0)?),
            libc::FIONCLEX => Ok(rustix::io::fcntl_setfd(raw::borrow(number(fd))?, FdFlags::empty()).map(|()| 0)?),
            // stdio asks whether it is a terminal.
            libc::TCGETS | libc::TIOCGWINSZ | libc::TIOCGPGRP => Err(Errno::NOTTY.into()),
            libc::FIONREAD if !file.is_dir() => {
                let left = self.fs().size(file.ino)?.wrapping_sub(file.position().at);
                raw::put(arg, &(left as i32))?;
                Ok(0)
            }
            // No file shares content with another. `cp` asks first.
            libc::FICLONE if self.may_clone(&file, arg) => Err(Errno::OPNOTSUPP.into()),
            libc::FICLONE if !self.is_direct(arg) && self.is_elsewhere(arg)? => Err(Errno::XDEV.into()),
            _ => Err(Stop::Kernel),
        }
    }

    /// Are these two files between which content could be shared, if any could?
    fn may_clone(&self, target: &OpenFile, source: usize) -> bool {
        let writes = target.writes() && !target.has(libc::O_APPEND) && !target.is_dir();
        writes && self.file(source).is_ok_and(|source| source.reads() && !source.is_dir())
    }

    pub fn is_direct(&self, fd: usize) -> bool {
        self.descriptors.has(number(fd))
    }

    /// Is it a descriptor of a file on another file system?
    pub fn is_elsewhere(&self, fd: usize) -> Outcome<bool> {
        Ok(rustix::fs::fstat(raw::borrow(number(fd))?)?.st_dev != self.mounted.dev)
    }

    /// The program has closed or replaced descriptors by calls that nobody saw: numbers that have no placeholder any more are the kernel's.
    #[cold]
    pub fn drop_lost(&self) {
        for fd in self.descriptors.numbers(0, usize::MAX) {
            let Some(mut slot) = self.descriptors.existing(fd) else { continue };
            let is_lost = slot.file().is_some() && !raw::borrow(fd).is_ok_and(|fd| self.useless.is_alike(fd));
            let file = if is_lost { slot.take() } else { None };
            drop(slot);
            drop(file);
        }
    }

    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> Outcome {
        if flags & UNSHARE != 0 {
            self.make_all_real(false)?;
        } else if flags & CLOSE_ON_EXEC == 0 && first <= last {
            for fd in self.descriptors.numbers(first as usize, last as usize) {
                // Others may have closed it since.
                let _ = self.close(fd as usize);
            }
        }
        Err(Stop::Kernel)
    }
}
