//! A call made by a child process, for calls that may wait for us in the kernel without a signal ending the wait. If we
//! are killed meanwhile, we end and close all descriptors: the waiting call sees that, and the child ends too.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{kill_process, pidfd_open, Pid, PidfdFlags, Signal};
use rustix::time::Timespec;

/// The exit status of a child may be any errno, and is 0 if there was none.
const OTHER: i32 = 255;

/// Has a child call `f`, and waits for it. `f` must do nothing but system calls, with memory that existed before.
pub fn in_child(f: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    wait_for(start(f)?)
}

/// As [`in_child`], with a time limit, after which the child is killed. The signal may take effect later, so the child
/// is not waited for.
pub fn in_child_within(limit: Duration, f: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    let child = start(f)?;
    let end = pidfd_open(child, PidfdFlags::empty());
    match end.and_then(|end| ends_within(limit, end)) {
        Ok(true) => wait_for(child),
        in_time => {
            let _ = kill_process(child, Signal::KILL);
            in_time.and(Err(Errno::TIMEDOUT))
        }
    }
}

fn ends_within(limit: Duration, process: impl AsFd) -> Result<bool, Errno> {
    let limit = Timespec::try_from(limit).map_err(|_| Errno::INVAL)?;
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)) {
            // A signal that asks for the end: one or two, not many.
            Err(Errno::INTR) => {}
            polled => return polled.map(|ended| ended > 0),
        }
    }
}

fn start(f: impl FnOnce() -> Result<(), Errno>) -> Result<Pid, Errno> {
    // SAFETY: the child does only what may be done in the child of a process with several threads: system calls. It
    // closes copies of the descriptors of others, which it never uses, and never returns.
    let child = unsafe {
        match libc::fork() {
            0 => {
                libc::syscall(libc::SYS_close_range, 0 as libc::c_uint, libc::c_uint::MAX, 0 as libc::c_uint);
                libc::_exit(f().map_or_else(|e| e.raw_os_error().min(OTHER), |()| 0))
            }
            child => child,
        }
    };
    match child {
        ..=0 => Err(last_error()),
        child => Pid::from_raw(child).ok_or(Errno::SRCH),
    }
}

fn wait_for(child: Pid) -> Result<(), Errno> {
    let mut status = 0;
    // SAFETY: the status is written through the pointer, which lives across the call.
    while unsafe { libc::waitpid(child.as_raw_nonzero().get(), &mut status, 0) } < 0 {
        let error = last_error();
        if error != Errno::INTR {
            return Err(error);
        }
    }
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(0) => Ok(()),
        Some(errno) => Err(Errno::from_raw_os_error(errno)),
        None => Err(Errno::INTR),
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn its_answers_are_reported() {
        assert_eq!(in_child(|| Ok(())), Ok(()));
        assert_eq!(in_child(|| Err(Errno::BUSY)), Err(Errno::BUSY));
    }

    #[test]
    fn it_is_not_waited_for_too_long() {
        let patient = Duration::from_secs(60);
        assert_eq!(in_child_within(patient, || Ok(())), Ok(()));
        assert_eq!(in_child_within(patient, || Err(Errno::BUSY)), Err(Errno::BUSY));
        let sleep = || poll(&mut [], None).map(drop);
        assert_eq!(in_child_within(Duration::from_millis(20), sleep), Err(Errno::TIMEDOUT));
    }

    #[test]
    fn it_holds_nothing_open_that_we_have() {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let is_open = || rustix::io::fcntl_getfd(file.as_fd()).map(drop);
        assert_eq!(is_open(), Ok(()));
        assert_eq!(in_child(is_open), Err(Errno::BADF));
        assert_eq!(is_open(), Ok(()));
    }
}
