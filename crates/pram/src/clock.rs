//! Times, in nanoseconds.

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

/// Nanoseconds of the clock that nobody sets.
pub fn monotonic() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
