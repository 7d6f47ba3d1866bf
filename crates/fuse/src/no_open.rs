//! Teaches the kernel by first calls that opening and closing need no messages.
//!
//! Such a call waits for our answer, and once we have read it not even SIGKILL ends that wait. If this process called
//! itself and were killed just then, it could not end: /dev/fuse would stay open, and all callers would wait for ever.
//! So a child calls, which has nothing open.

use std::ffi::CStr;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{open, Mode, OFlags};
use rustix::io::Errno;

use crate::sys::in_child_within;
use crate::unmount::c_path;

/// The mount works without it; a frozen disk must not delay its use for longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The first descriptor that a child without any gets.
const FIRST: &CStr = c"/proc/self/fd/0";

/// Teaches the kernel, by the mount at `dir` that this process serves.
pub fn prime(dir: &Path) {
    if let Err(e) = c_path(dir).and_then(|dir| in_child_within(PATIENCE, || open_once(&dir))) {
        tracing::debug!("the kernel will send a message for each file that is made and closed: {e}");
    }
}

/// Opens a file without a name, and that file again. Does nothing but system calls.
fn open_once(dir: &CStr) -> Result<(), Errno> {
    let _file = open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR)?;
    open(FIRST, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(drop)
}
