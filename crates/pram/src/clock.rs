//! Times, in nanoseconds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{clock_gettime, ClockId};

/// Nanoseconds since 1970, as the kernel keeps them between two ticks.
#[inline(always)]
pub fn now() -> i64 {
    let t = clock_gettime(ClockId::RealtimeCoarse);
    t.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec)
}

/// [`now`] in seconds.
pub fn seconds() -> u64 {
    now().max(0) as u64 / 1_000_000_000
}

/// Nanoseconds since 1970.
pub fn precise() -> i64 {
    let t = clock_gettime(ClockId::Realtime);
    t.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec)
}

/// Nanoseconds of the monotonic clock, which nobody sets.
pub fn monotonic() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// [`monotonic`] as the kernel keeps it between two ticks.
#[inline(always)]
pub fn coarse() -> u64 {
    let t = clock_gettime(ClockId::MonotonicCoarse);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The clock that measures ages, periods and rests. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Nanoseconds that a test has moved it on.
    moved: Arc<AtomicU64>,
    /// Sleeping moves it on too.
    jumps: Arc<AtomicBool>,
}

impl Clock {
    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// [`now`], by this clock.
    pub fn now(&self) -> i64 {
        now().wrapping_add(self.moved() as i64)
    }

    /// [`seconds`], by this clock.
    pub fn seconds(&self) -> u64 {
        self.now().max(0) as u64 / 1_000_000_000
    }

    /// [`monotonic`], by this clock.
    pub fn monotonic(&self) -> u64 {
        monotonic() + self.moved()
    }

    /// [`coarse`], by this clock.
    #[inline(always)]
    pub fn coarse(&self) -> u64 {
        coarse() + self.moved()
    }

    /// [`Instant::now`], by this clock.
    pub fn instant(&self) -> Instant {
        Instant::now() + Duration::from_nanos(self.moved())
    }

    /// How long ago an [`instant`](Clock::instant) of this clock was.
    pub fn since(&self, instant: Instant) -> Duration {
        self.instant().saturating_duration_since(instant)
    }

    pub fn sleep(&self, time: Duration) {
        match self.jumps.load(Ordering::Relaxed) {
            true => self.advance(time),
            false => std::thread::sleep(time),
        }
    }

    /// For tests: a sleep by this clock moves it on instead.
    #[doc(hidden)]
    pub fn jump(&self) {
        self.jumps.store(true, Ordering::Relaxed);
    }

    /// For tests: time passes at once.
    #[doc(hidden)]
    pub fn advance(&self, time: Duration) {
        self.moved.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}
