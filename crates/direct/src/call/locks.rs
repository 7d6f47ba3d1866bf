//! Locks of open files. The kernel has them, on a real descriptor of the same file that the program does not see.
//!
//! A process that closes any descriptor of a file loses its locks of it (POSIX): so they are taken back when one is closed that is
//! served here.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use libc::{c_int, F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_SETLK, F_SETLKW, F_UNLCK, SEEK_CUR, SEEK_END};
use pram::mem::descriptor::Own;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Outcome, Stop};
use crate::open_file::OpenFile;
use crate::raw;
use crate::state::State;

/// `struct flock`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
struct Lock {
    kind: i16,
    whence: i16,
    padding: u32,
    start: i64,
    len: i64,
    pid: i32,
    padding2: u32,
}

const _: () = assert!(size_of::<Lock>() == size_of::<libc::flock>());

impl State {
    pub fn lock(&self, file: &Arc<OpenFile>, cmd: c_int, arg: usize) -> Outcome {
        if !matches!(cmd, F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW) {
            return Err(Stop::Kernel);
        }
        let mut lock: Lock = raw::get(arg)?;
        // Position and size are those that are known here.
        let from = match c_int::from(lock.whence) {
            SEEK_CUR => file.position().at,
            // A directory's is what the mount says.
            SEEK_END if file.is_dir() => return Err(Stop::Kernel),
            SEEK_END => self.fs().size(file.ino)?,
            _ => 0,
        };
        if from > 0 || c_int::from(lock.whence) == SEEK_CUR || c_int::from(lock.whence) == SEEK_END {
            lock.start = lock.start.checked_add_unsigned(from).ok_or(Errno::OVERFLOW)?;
            lock.whence = 0;
        }
        let real = self.shadow(file)?;
        if matches!(cmd, F_SETLK | F_SETLKW) && !file.may_be_locked.swap(true, Ordering::Relaxed) {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.by.push((file.ino, Arc::downgrade(file)));
            self.lock_count.store(locks.by.len() + locks.by_real.len(), Ordering::Release);
        }
        // To wait is for the kernel: a signal ends that.
        let (at_once, waits) = match cmd {
            F_SETLKW => (F_SETLK, true),
            F_OFD_SETLKW => (F_OFD_SETLK, true),
            cmd => (cmd, false),
        };
        let done = match raw::fcntl(real.as_fd(), at_once as u32, &mut lock) {
            Err(Errno::AGAIN | Errno::ACCESS) if waits => return Err(Stop::Kernel),
            done => done?,
        };
        if matches!(cmd, F_GETLK | F_OFD_GETLK) {
            raw::put(arg, &lock)?;
        }
        Ok(done)
    }

    /// The descriptor that has the locks. Where the program may have no more, its own becomes real.
    fn shadow<'f>(&self, file: &'f Arc<OpenFile>) -> Outcome<&'f Own> {
        match self.real(file) {
            Err(Errno::MFILE) => Err(Stop::Kernel),
            real => Ok(real?),
        }
    }

    pub fn flock(&self, fd: usize, operation: u32) -> Outcome {
        let file = self.file(fd)?;
        let real = self.shadow(&file)?;
        match raw::flock(real.as_fd(), operation | libc::LOCK_NB as u32) {
            Err(Errno::WOULDBLOCK) if operation & libc::LOCK_NB as u32 == 0 => Err(Stop::Kernel),
            done => Ok(done?),
        }
    }

    /// A descriptor of this file was closed that was served here.
    #[inline(always)]
    pub fn closed(&self, file: Arc<OpenFile>) {
        if self.lock_count.load(Ordering::Acquire) > 0 {
            self.unlock(&file);
        }
    }

    /// Takes back the process's locks of the file, by whatever descriptor it got them.
    #[cold]
    fn unlock(&self, file: &Arc<OpenFile>) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.by.retain(|(_, other)| other.strong_count() > 0);
        let others = locks.by.iter().filter(|(ino, _)| *ino == file.ino).filter_map(|(_, other)| other.upgrade());
        let mut all: Vec<Arc<OpenFile>> = others.collect();
        let by_real = locks.by_real.iter().position(|ino| *ino == file.ino);
        by_real.into_iter().for_each(|n| _ = locks.by_real.swap_remove(n));
        self.lock_count.store(locks.by.len() + locks.by_real.len(), Ordering::Release);
        drop(locks);
        if by_real.is_some() && self.real(file).is_ok() {
            all.push(file.clone());
        }
        for other in all {
            let mut whole = Lock { kind: F_UNLCK as i16, ..Lock::default() };
            if let Some(real) = other.real.get() {
                // It has none where this fails.
                let _ = raw::fcntl(real.as_fd(), F_SETLK as u32, &mut whole);
            }
        }
    }
}
