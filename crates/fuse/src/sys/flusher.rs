//! Saying that this process writes back what others have changed.

use std::io;

/// `include/uapi/linux/prctl.h`
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// From now on the kernel does not write pages back on behalf of this thread, and those that it starts, when they need
/// memory: that might wait for themselves. `EPERM` without CAP_SYS_RESOURCE.
pub fn flushes_for_others() -> io::Result<()> {
    // SAFETY: this request takes numbers only.
    match unsafe {
        libc::prctl(PR_SET_IO_FLUSHER, 1 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
