//! Changes the flags of one mount, attached to a directory or not yet.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Clears and then sets flags of the mount at `path`, relative to `dir`. An empty path means `dir` itself.
pub fn mount_setattr(dir: impl AsFd, path: &CStr, set: u32, clear: u32) -> Result<(), Errno> {
    let flags = if path.is_empty() { libc::AT_EMPTY_PATH } else { libc::AT_SYMLINK_NOFOLLOW };
    let attr = libc::mount_attr { attr_set: set.into(), attr_clr: clear.into(), propagation: 0, userns_fd: 0 };
    let (dir, size) = (dir.as_fd().as_raw_fd(), std::mem::size_of::<libc::mount_attr>());
    // SAFETY: `path` ends with a zero and `attr` is of the size that is passed; both live through the call.
    match unsafe { libc::syscall(libc::SYS_mount_setattr, dir, path.as_ptr(), flags, &attr, size) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
