//! Declares to the kernel that this process writes back the changes of others.

use std::io;

/// `include/uapi/linux/prctl.h`
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// From now on this thread, and those that it starts, do not write pages back when they allocate memory: that
/// write-back might wait for this process itself. `EPERM` without CAP_SYS_RESOURCE.
pub fn flushes_for_others() -> io::Result<()> {
    // SAFETY: this request takes numbers only.
    match unsafe {
        libc::prctl(PR_SET_IO_FLUSHER, 1 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
