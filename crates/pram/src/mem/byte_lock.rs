//! An open-file-description lock on one byte of a file. The kernel drops it when the process dies, so it shows whether
//! the process lives. (rustix has no such call.)

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Far beyond any content.
const BASE: i64 = 1 << 62;

fn call(fd: impl AsFd, command: i32, kind: i32, byte: u32) -> Result<libc::flock, Errno> {
    // SAFETY: `flock` is plain data, zero is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = BASE + i64::from(byte);
    lock.l_len = 1;
    // SAFETY: a valid descriptor and a pointer to a live `flock`, as the command wants.
    match unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &mut lock) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(lock),
    }
}

/// Locks `byte`; false if another open file holds it.
pub fn acquire(fd: impl AsFd, byte: u32) -> Result<bool, Errno> {
    match call(fd, libc::F_OFD_SETLK, libc::F_WRLCK, byte) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(e) => Err(e),
    }
}

pub fn release(fd: impl AsFd, byte: u32) -> Result<(), Errno> {
    call(fd, libc::F_OFD_SETLK, libc::F_UNLCK, byte).map(|_| ())
}

/// Does another open file hold `byte`?
pub fn is_held(fd: impl AsFd, byte: u32) -> Result<bool, Errno> {
    Ok(call(fd, libc::F_OFD_GETLK, libc::F_WRLCK, byte)?.l_type != libc::F_UNLCK as i16)
}
