//! Transfers by ordinary system calls, and calls that have no safe wrapper.

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::io::Errno;

use super::memory::Buffers;

/// `BLKDISCARD`, `_IO(0x12, 119)`.
const BLKDISCARD: libc::c_ulong = 0x1277;
/// The most parts of a system call.
pub const MOST_PARTS: usize = libc::UIO_MAXIOV as usize;

fn count_of(returned: libc::ssize_t) -> Result<u32, Errno> {
    u32::try_from(returned).map_err(|_| last())
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Reads into memory; returns the number of bytes.
pub fn read(file: &File, at: u64, into: &Buffers) -> Result<u32, Errno> {
    let parts = into.parts();
    // SAFETY: the parts are mapped as long as `into` is borrowed (invariant 1); the kernel stores there as another
    // process would (invariant 2); `Part` is a `repr(transparent)` iovec.
    count_of(unsafe { libc::preadv(file.as_raw_fd(), parts.as_ptr().cast(), parts.len() as i32, at as libc::off_t) })
}

/// Writes from memory; returns the number of bytes.
pub fn write(file: &File, at: u64, from: &Buffers) -> Result<u32, Errno> {
    let parts = from.parts();
    // SAFETY: as in `read`.
    count_of(unsafe { libc::pwritev(file.as_raw_fd(), parts.as_ptr().cast(), parts.len() as i32, at as libc::off_t) })
}

/// Tells a block device that a range is needed no more.
pub fn discard(file: &File, at: u64, len: u64) -> Result<(), Errno> {
    let range = [at, len];
    // SAFETY: the kernel reads two words, which are there.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}
