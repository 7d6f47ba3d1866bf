//! Time: one monotonic clock that all processes of the machine share.

use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeValLike;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId, Timespec};

use crate::error::Error;

/// Nanoseconds of the monotonic clock, comparable between processes.
pub fn now() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds that the calling thread has had a processor.
pub fn thread_time() -> u64 {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
}

/// Nanoseconds that the threads of this process have had processors.
pub fn process_time() -> u64 {
    nanos(clock_gettime(ClockId::ProcessCPUTime))
}

/// Seconds that the threads of another process have had processors.
pub fn process_time_of(pid: u32) -> Result<f64, Error> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32)).map_err(system)?;
    let time = clock.now().map_err(system)?;
    Ok(time.num_nanoseconds() as f64 / 1e9)
}

/// Seconds that processes had processors which this one, or one of them, has waited for.
pub fn children_time() -> Result<f64, Error> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(system)?;
    Ok((usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6)
}

fn system(error: nix::Error) -> Error {
    Error::from(Errno::from_raw_os_error(error as i32))
}

fn nanos(t: Timespec) -> u64 {
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Spins until `when`: threads and processes that spin to the same instant start together to well below a
/// microsecond, which waking up from a barrier would not give.
pub fn spin_until(when: u64) {
    while now() < when {
        std::hint::spin_loop();
    }
}

/// Microseconds per operation since `start`.
pub fn us_per_op(start: u64, operations: usize) -> f64 {
    (now() - start) as f64 / 1000.0 / operations as f64
}

/// Seconds since `start`.
pub fn seconds_since(start: u64) -> f64 {
    (now() - start) as f64 / 1e9
}

/// The rate per second at which `count` were done since `start`.
pub fn per_second(count: u64, start: u64) -> f64 {
    count as f64 * 1e9 / (now() - start).max(1) as f64
}
