//! The time of day, as the kernel keeps it between two ticks: nanoseconds since 1970.

/// The kernel's time at the resolution of its tick.
#[inline(always)]
pub fn now() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    t.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec)
}

/// The same in seconds.
pub fn seconds() -> u64 {
    now().max(0) as u64 / 1_000_000_000
}
