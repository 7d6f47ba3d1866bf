//! Threads that must not wait for a disk: a thread that serves many would keep all of them from work that needs no disk.
//!
//! Such a thread calls within [`Fs::without_waiting`]. A call that would have to wait (for content that has to be fetched, room that has
//! to be made, a disk that is far behind) fails there, before it has changed anything that it would not change again. A thread that may
//! wait then repeats it.

use std::cell::Cell;

use rustix::io::Errno;

use super::Fs;
use crate::error::{Error, Result};

thread_local! {
    /// Inside `without_waiting`: has anything failed for that?
    static REFUSED: Cell<Option<bool>> = const { Cell::new(None) };
}

/// May this thread not wait for a disk?
pub(crate) fn is_hurried() -> bool {
    REFUSED.get().is_some()
}

impl Fs {
    /// Calls `f`, in which nothing waits for a disk. True: something would have, and failed with EAGAIN for that.
    pub fn without_waiting<R>(&self, f: impl FnOnce() -> R) -> (R, bool) {
        let before = REFUSED.replace(Some(false));
        let result = f();
        (result, REFUSED.replace(before) == Some(true))
    }

    /// Before this thread fetches content from a disk.
    ///
    /// # Errors
    /// As below; [`Error::OnDisk`] where this process leaves disks to others.
    pub(crate) fn before_fetching(&self) -> Result<()> {
        match self.session().is_guest() {
            true => Err(Error::OnDisk),
            false => self.before_waiting(),
        }
    }

    /// Before this thread waits for a disk.
    ///
    /// # Errors
    /// EAGAIN if it may not.
    pub(crate) fn before_waiting(&self) -> Result<()> {
        match is_hurried() {
            false => Ok(()),
            true => {
                REFUSED.set(Some(true));
                Err(Errno::AGAIN.into())
            }
        }
    }
}
