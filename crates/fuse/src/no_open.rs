//! What the kernel learns of us by the first calls: that opening and closing take no messages.
//!
//! Such a call waits for our answer, and once it is read not even SIGKILL ends that wait. If we waited ourselves and were
//! killed just then, this process could not end, /dev/fuse would stay open, and everybody wait for ever. So a child calls,
//! which holds nothing open.

use std::ffi::CStr;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{open, Mode, OFlags};
use rustix::io::Errno;

use crate::sys::in_child_within;
use crate::unmount::c_path;

/// The mount works without; a frozen disk must not keep it from being used.
const PATIENCE: Duration = Duration::from_secs(5);

/// The first descriptor of a child that has none.
const FIRST: &CStr = c"/proc/self/fd/0";

/// Has the kernel learn it, of the mount at `dir` that this process serves.
pub fn prime(dir: &Path) {
    if let Err(e) = c_path(dir).and_then(|dir| in_child_within(PATIENCE, || open_once(&dir))) {
        tracing::debug!("the kernel will send a message for each file that is made and closed: {e}");
    }
}

/// Opens a file that has no name, and that file again. Nothing but system calls.
fn open_once(dir: &CStr) -> Result<(), Errno> {
    let _file = open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR)?;
    open(FIRST, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(drop)
}
