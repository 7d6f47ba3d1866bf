//! The processor time of this thread, without that of others.

use rustix::time::{clock_gettime, ClockId};

/// An instant of processor time.
pub struct Busy(f64);

impl Busy {
    pub fn now() -> Busy {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Busy(now.tv_sec as f64 + now.tv_nsec as f64 / 1e9)
    }

    /// Seconds since then.
    pub fn seconds(&self) -> f64 {
        Busy::now().0 - self.0
    }
}
