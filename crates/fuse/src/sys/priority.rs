//! How the kernel schedules the calling thread.

use std::io;

/// Among all others, by its share; or before them, in the lowest of the real-time priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Shared,
    First,
}

/// Changes the priority of the calling thread. `EPERM` without the right to it (CAP_SYS_NICE, or RLIMIT_RTPRIO).
pub fn set_priority(priority: Priority) -> io::Result<()> {
    let (policy, level) = match priority {
        Priority::Shared => (libc::SCHED_OTHER, 0),
        Priority::First => (libc::SCHED_RR, 1),
    };
    // SAFETY: all zeros are a valid `sched_param`.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = level;
    // SAFETY: 0 is the calling thread, and `param` lives through the call. What it starts is not to inherit it.
    match unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
