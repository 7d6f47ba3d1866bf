//! An open-file-description lock on one byte of a file. The kernel drops it when the process dies, so it shows whether
//! the process lives. (rustix has no such call.)

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Far beyond any content.
const BASE: i64 = 1 << 62;

fn call(fd: impl AsFd, command: i32, kind: i32, bytes: Range<u32>) -> Result<libc::flock, Errno> {
    // SAFETY: `flock` is plain data, zero is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = BASE + i64::from(bytes.start);
    lock.l_len = i64::from(bytes.end - bytes.start);
    // SAFETY: a valid descriptor and a pointer to a live `flock`, as the command wants.
    match unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &mut lock) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(lock),
    }
}

/// Locks `byte`; false if another open file holds it.
pub fn acquire(fd: impl AsFd, byte: u32) -> Result<bool, Errno> {
    match call(fd, libc::F_OFD_SETLK, libc::F_WRLCK, byte..byte + 1) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(e) => Err(e),
    }
}

pub fn release(fd: impl AsFd, byte: u32) -> Result<(), Errno> {
    call(fd, libc::F_OFD_SETLK, libc::F_UNLCK, byte..byte + 1).map(|_| ())
}

/// Does another open file hold `byte`?
pub fn is_held(fd: impl AsFd, byte: u32) -> Result<bool, Errno> {
    is_any_held(fd, byte..byte + 1)
}

/// Does another open file hold any of these bytes? One question, however many they are.
pub fn is_any_held(fd: impl AsFd, bytes: Range<u32>) -> Result<bool, Errno> {
    Ok(call(fd, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)?.l_type != libc::F_UNLCK as i16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_question_finds_a_lock_anywhere_in_a_range_and_none_outside() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let other = file.reopen().expect("opened again");
        assert!(acquire(&other, 77).expect("locked") && !acquire(file.as_file(), 77).expect("asked"));
        let held = |bytes| is_any_held(file.as_file(), bytes).expect("asked");
        assert!(held(0..4096) && held(77..78) && !held(0..77) && !held(78..4096));
        assert!(!is_any_held(&other, 0..4096).expect("asked"), "its own");
        release(&other, 77).expect("released");
        assert!(!held(0..4096));
    }
}
