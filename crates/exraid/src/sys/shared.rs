//! Words that several processes have mapped, and locks on ranges of bytes of an open file.
//!
//! The locks are those of open file descriptions (`F_OFD_SETLK`): they end with the last reference to the description.
//! So they end when their owner dies in any way, or with the last request of a ring in which it is registered.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};

/// Bytes of a page, the alignment of mappings.
const PAGE: u64 = 4096;

/// Mapped words, all zero at first.
pub struct Words {
    at: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping is accessed as atomics alone (invariant 2), and stays mapped until this is dropped.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Words in this process's own memory.
    pub fn own(count: usize) -> Box<[AtomicU64]> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    /// Words of a file from `at` on, a multiple of a page. Overwrites the last byte of each page with zero, so that the
    /// host has storage for it from now on.
    pub fn of(file: &File, at: u64, count: usize) -> io::Result<Words> {
        let len = (count * size_of::<AtomicU64>()) as u64;
        for page in (0..len).step_by(PAGE as usize) {
            file.write_all_at(&[0], at + page + PAGE - 1)?;
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: nothing is mapped there yet; nobody makes such a file shorter.
        let mapped =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len as usize, protection, flags, file.as_fd(), at) };
        let at = NonNull::new(mapped?.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Words { at, count })
    }
}

impl Deref for Words {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: these words are mapped, for reading and writing, until this is dropped; pages are aligned; any bytes
        // are valid atomics (invariant 2).
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and there is no reference to it any more.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.count * size_of::<AtomicU64>()) };
    }
}

/// The kind of a lock; `None` unlocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    Shared,
    Exclusive,
    None,
}

fn request(range: &Range<u64>, lock: Lock) -> libc::flock {
    let kind = match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
        Lock::None => libc::F_UNLCK,
    };
    // SAFETY: any bytes are such a structure.
    let mut asked: libc::flock = unsafe { std::mem::zeroed() };
    asked.l_type = kind as libc::c_short;
    asked.l_whence = libc::SEEK_SET as libc::c_short;
    asked.l_start = range.start as libc::off_t;
    asked.l_len = (range.end - range.start) as libc::off_t;
    asked
}

/// Locks a range, and replaces this description's former locks in it; false where another description has it.
pub fn lock(file: &File, range: &Range<u64>, lock: Lock) -> io::Result<bool> {
    let asked = request(range, lock);
    loop {
        // SAFETY: the kernel reads a structure that is there.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &asked) } == 0 {
            return Ok(true);
        }
        let e = io::Error::last_os_error();
        match e.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => return Ok(false),
            Some(libc::EINTR) => {}
            _ => return Err(e),
        }
    }
}

/// Does another description hold a lock that excludes this one?
pub fn is_excluded(file: &File, range: &Range<u64>, lock: Lock) -> io::Result<bool> {
    let mut asked = request(range, lock);
    // SAFETY: the kernel reads and writes a structure that is there.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut asked) } {
        0 => Ok(i32::from(asked.l_type) != libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}
