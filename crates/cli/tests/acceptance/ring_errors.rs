//! Errors of `io_uring_enter` in a queue of the mount: passing errors are waited out, and after any other error the
//! mount ends for all its users. A debugger injects the errors.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;

use crate::hanging::threads;
use crate::lab::{wait_until, Lab, Process};
use crate::parked::stay_on_one_processor;
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("ring_errors::what_passes_is_waited_out", what_passes),
    ("ring_errors::after_any_other_the_mount_ends", any_other),
];

const PATIENCE: Duration = Duration::from_secs(60);
const IO_URING_ENTER: u64 = libc::SYS_io_uring_enter as u64;
/// The result register at the entry of a call.
const NOT_DONE: u64 = -(libc::ENOSYS as i64) as u64;

fn what_passes() -> Outcome {
    let lab = Lab::with_pool("64M");
    lab.mount_with("transport=uring");
    for errno in [Errno::EAGAIN, Errno::EBUSY, Errno::ENOMEM] {
        let missed = while_asked(&lab, || answer_with(&lab, errno, 20));
        assert!(!missed, "{errno}: a request was not answered");
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// The mount once continued without the queue of one processor: callers on that processor waited for ever.
fn any_other() -> Outcome {
    let lab = Lab::with_pool("64M");
    lab.mount_with("transport=uring");
    let server = Process::open(lab.server());
    let missed = while_asked(&lab, || answer_with(&lab, Errno::EFAULT, 1));
    wait_until(PATIENCE, "the server ends", || server.has_ended());
    assert!(missed || std::fs::metadata(lab.mnt().join("absent")).is_err());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    assert!(!mounts.contains(lab.mnt().to_str().expect("text")), "{mounts}");
    lab.mount();
    lab.umount();
    lab.check();
    Ok(())
}

/// Makes various calls to the mount, on the first processor, until `act` has ended. Did one fail?
fn while_asked(lab: &Lab, act: impl FnOnce()) -> bool {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            stay_on_one_processor();
            let mut n = 0;
            while !ended.load(SeqCst) {
                n += 1;
                let found = std::fs::metadata(lab.mnt().join(format!("absent-{n}"))).expect_err("stat");
                if found.kind() != std::io::ErrorKind::NotFound {
                    return true;
                }
            }
            false
        });
        act();
        ended.store(true, SeqCst);
        asks.join().expect("who asks")
    })
}

/// Makes the next `times` calls of the first queue fail, instead of being executed.
fn answer_with(lab: &Lab, errno: Errno, times: usize) {
    let server = lab.server().as_raw_nonzero().get();
    let queue = Pid::from_raw(threads(server, "fuse-uring-0")[0]);
    let stopped = || waitpid(queue, Some(WaitPidFlag::__WALL)).expect("it stops");
    ptrace::seize(queue, ptrace::Options::PTRACE_O_TRACESYSGOOD).expect("ptrace");
    ptrace::interrupt(queue).expect("ptrace");
    stopped();
    let (mut left, mut skips) = (times, false);
    while left > 0 {
        ptrace::syscall(queue, None).expect("ptrace");
        if !matches!(stopped(), WaitStatus::PtraceSyscall(_)) {
            continue;
        }
        let mut registers = ptrace::getregs(queue).expect("ptrace");
        if skips {
            registers.rax = (-(errno as i64)) as u64;
            (skips, left) = (false, left - 1);
        } else if registers.orig_rax == IO_URING_ENTER && registers.rax == NOT_DONE {
            registers.orig_rax = u64::MAX;
            skips = true;
        }
        ptrace::setregs(queue, registers).expect("ptrace");
    }
    ptrace::detach(queue, None).expect("ptrace");
}
