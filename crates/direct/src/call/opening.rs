//! open, creat.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use conquest_fs::path::Open;
use libc::{O_CLOEXEC, O_CREAT, O_DIRECTORY, O_EXCL, O_NOATIME, O_NOCTTY, O_NOFOLLOW, O_PATH, O_TMPFILE, O_TRUNC};

use rustix::io::Errno;

use super::place::{At, Place};
use super::{Outcome, Stop};
use crate::descriptors::MOST;
use crate::open_file::OpenFile;
use crate::raw;
use crate::state::State;

/// Flags that an open file does not show.
const OF_OPENING: i32 = O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_CLOEXEC;
/// Set for all files of 64-bit programs: `O_LARGEFILE`, which is 0 in their headers.
const LARGE: u32 = 0o100000;
/// Other flags are none, or mean what only the kernel knows.
const KNOWN: i32 = OF_OPENING
    | libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DIRECT
    | O_DIRECTORY
    | O_NOFOLLOW
    | O_NOATIME
    | LARGE as i32;

/// `struct open_how`, as it is at least.
const HOW: usize = 24;

impl State {
    #[inline(always)]
    pub fn open(&self, at: At, flags: u32, mode: u32) -> Outcome {
        let flags = flags as i32;
        let has = |flag: i32| flags & flag == flag;
        if self.opens_only_real.load(Ordering::Relaxed) {
            return Err(Stop::Kernel);
        }
        if has(O_PATH) {
            return self.open_as_place(&self.place(at)?, flags);
        }
        let access = flags & libc::O_ACCMODE;
        let strange = flags & !KNOWN != 0 || has(O_TMPFILE) || has(O_CREAT | O_DIRECTORY);
        if strange || access == libc::O_ACCMODE || has(O_NOATIME) && self.identity()?.uid != 0 {
            return Err(Stop::Kernel);
        }
        if has(O_CREAT) && self.could_not_open_again(access, mode)? {
            return Err(Stop::Kernel);
        }
        let place = self.place(at)?;
        let how = Open::new()
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .create(has(O_CREAT))
            .create_new(has(O_CREAT | O_EXCL))
            .truncate(has(O_TRUNC))
            .no_follow(has(O_NOFOLLOW))
            .directory(has(O_DIRECTORY))
            .mode(mode & 0o7777);
        // Without a number nothing is made or cut.
        let changes = has(O_CREAT) || has(O_TRUNC);
        let early = if changes { Some(self.placeholder(has(O_CLOEXEC))?) } else { None };
        let opened = match place.view().open_ino(place.path, how) {
            Ok(opened) => opened,
            Err(e) => {
                early.into_iter().for_each(raw::close);
                return Err(e.into());
            }
        };
        let what = (opened.ino, opened.kind, opened.parent);
        let file = OpenFile::new(self.pool.clone(), what, (flags & !OF_OPENING) as u32 | LARGE);
        if has(libc::O_DIRECT) && file.is_dir() {
            early.into_iter().for_each(raw::close);
            return Err(Errno::INVAL.into());
        }
        let fd = match early {
            Some(fd) => fd,
            None => self.placeholder(has(O_CLOEXEC))?,
        };
        self.stand_for(fd, Arc::new(file))
    }

    /// A file may be made with a mode that refuses its maker. Where only a path leads to it, it could not be made real later.
    fn could_not_open_again(&self, access: i32, mode: u32) -> Outcome<bool> {
        let wanted = match access {
            libc::O_RDONLY => 0o400,
            libc::O_WRONLY => 0o200,
            _ => 0o600,
        };
        let identity = self.identity()?;
        Ok(!identity.opens_handles && mode & !self.identities.caller(identity).umask & wanted != wanted)
    }

    /// A directory, for paths that begin there (O_PATH). All else that is opened so is the kernel's, and other flags mean nothing.
    #[cold]
    fn open_as_place(&self, place: &Place, flags: i32) -> Outcome {
        let how = Open::new().directory(true).no_follow(flags & O_NOFOLLOW != 0);
        let opened = place.view().open_ino(place.path, how).map_err(|_| Stop::Kernel)?;
        let shown = flags & (O_PATH | O_DIRECTORY | O_NOFOLLOW);
        let file = OpenFile::new(self.pool.clone(), (opened.ino, opened.kind, opened.parent), shown as u32);
        file.position().is_kernels = true;
        let fd = self.placeholder(flags & O_CLOEXEC != 0)?;
        self.stand_for(fd, Arc::new(file))
    }

    /// From now on a placeholder stands for this file; returns its number.
    #[inline(always)]
    pub fn stand_for(&self, placeholder: RawFd, file: Arc<OpenFile>) -> Outcome {
        let old = self.descriptors.slot(placeholder).ok_or(Stop::Kernel)?.put(file);
        drop(old);
        Ok(placeholder as usize)
    }

    /// Reserves a number. One that the table has no room for is the kernel's.
    #[inline(always)]
    pub fn placeholder(&self, close_on_exec: bool) -> Outcome<RawFd> {
        self.placeholder_from(0, close_on_exec)
    }

    #[inline(always)]
    pub fn placeholder_from(&self, first: RawFd, close_on_exec: bool) -> Outcome<RawFd> {
        let fd = self.duplicate_useless(first, close_on_exec)?;
        if fd as usize >= MOST {
            raw::close(fd);
            return Err(Stop::Kernel);
        }
        Ok(fd)
    }

    #[inline(always)]
    fn duplicate_useless(&self, first: RawFd, close_on_exec: bool) -> Outcome<RawFd> {
        loop {
            let number = self.useless.number();
            match raw::duplicate(raw::borrow(number)?, first, close_on_exec) {
                // It was moved meanwhile, and the number may be another's.
                Ok(fd) if self.useless.number() != number => raw::close(fd),
                Err(Errno::BADF) if self.useless.number() == number => {
                    self.drop_lost();
                    return Err(Stop::Kernel);
                }
                Err(Errno::BADF) => {}
                done => return Ok(done?),
            }
        }
    }

    pub fn openat2(&self, at: At, how: usize, size: usize) -> Outcome {
        if size != HOW {
            return Err(Stop::Kernel);
        }
        let [flags, mode, resolve]: [u64; 3] = raw::get(how)?;
        let makes = flags & O_CREAT as u64 != 0;
        let strange = flags & !(KNOWN as u64) != 0 || mode & !0o7777 != 0 || !makes && mode != 0;
        if resolve != 0 || strange {
            return Err(Stop::Kernel);
        }
        self.open(at, flags as u32, mode as u32)
    }
}
