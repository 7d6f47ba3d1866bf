//! How the kernel schedules the calling thread.

use std::io;

/// Shared: among all others, by its share; first: before them, in the lowest real-time priority; last: after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Last,
    Shared,
    First,
}

/// May threads of this process come last? Each may go there, but needs CAP_SYS_NICE or RLIMIT_NICE to come back.
pub fn may_come_last() -> bool {
    let there_and_back = || set_priority(Priority::Last).and_then(|()| set_priority(Priority::Shared)).is_ok();
    // In a thread of its own, which may not be able to come back.
    std::thread::scope(|s| {
        let thread = std::thread::Builder::new().spawn_scoped(s, there_and_back);
        thread.is_ok_and(|thread| thread.join().unwrap_or(false))
    })
}

/// Changes the priority of the calling thread. `EPERM` without the right to it: CAP_SYS_NICE or RLIMIT_RTPRIO, or
/// RLIMIT_NICE to come back from last.
pub fn set_priority(priority: Priority) -> io::Result<()> {
    let (policy, level) = match priority {
        Priority::Last => (libc::SCHED_IDLE, 0),
        Priority::Shared => (libc::SCHED_OTHER, 0),
        Priority::First => (libc::SCHED_RR, 1),
    };
    // SAFETY: all zeros are a valid `sched_param`.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = level;
    // SAFETY: 0 is the calling thread, and `param` lives through the call. Threads that it starts must not inherit the
    // priority.
    match unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
