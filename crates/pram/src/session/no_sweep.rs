//! Excludes sweeps while nothing leads to new objects yet: a change builds them beside the old, over several
//! operations. If its process dies, they are leaks.

use std::time::Duration;

use super::Session;
use crate::error::Result;

/// No sweep runs while this lives.
#[must_use = "sweeps go on when it is dropped"]
pub struct NoSweep<'s>(&'s Session);

impl Drop for NoSweep<'_> {
    fn drop(&mut self) {
        self.0.runtime().end_sweep();
        self.0.heed();
    }
}

impl Session {
    /// Excludes sweeps by any process. Waits for a sweep that is under way. For a thread that is in no operation.
    pub fn without_sweeps(&self) -> Result<NoSweep<'_>> {
        for round in 1u32.. {
            if self.runtime().exclude_sweeps() {
                break;
            }
            self.memory().wait_by(|| std::thread::sleep(Duration::from_millis(2)));
            if round % 100 == 0 {
                self.reap()?;
            }
            if round % 10 == 0 {
                let excludes = || self.runtime().sweeper();
                excludes().into_iter().for_each(|n| self.urge_session(n, || excludes() == Some(n)));
            }
        }
        Ok(NoSweep(self))
    }
}
