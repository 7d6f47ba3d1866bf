//! The stretches of a thread in which no signal handler of the program may run, since the engine may hold locks.

use pram::session::stopped::is_asked_to_stop;

use crate::{raw, thread};

/// Bytes of the kernel's set of signals.
pub const SIGNAL_SET: usize = 8;

/// Is this thread in such a stretch? Calls that it makes there are the kernel's.
#[inline]
pub fn is_under_way() -> bool {
    thread::this().is_under_way.get()
}

/// Does something in such a stretch; `None` if this thread is in one already.
#[inline]
pub fn within<R>(f: impl FnOnce() -> R) -> Option<R> {
    if !begin() {
        return None;
    }
    let done = f();
    end();
    Some(done)
}

/// Begins such a stretch; `false` if this thread is in one already.
#[inline]
pub fn begin() -> bool {
    !thread::this().is_under_way.replace(true)
}

#[inline]
pub fn end() {
    if is_asked_to_stop() {
        stop();
    }
    let this = thread::this();
    this.is_under_way.set(false);
    if this.has_put_off.replace(false) {
        // They come now.
        block_exactly(this.blocked.get());
    }
}

/// Stops this process, which others had go on: see [`stopped`](pram::session::stopped). Before signals that were put off come: a SIGCONT
/// among them was not the user's, and goes with this.
#[cold]
#[inline(never)]
fn stop() {
    let [process, thread] =
        [rustix::process::getpid(), rustix::thread::gettid()].map(|pid| pid.as_raw_nonzero().get() as usize);
    raw::call(libc::SYS_tgkill as u32, &[process, thread, libc::SIGSTOP as usize, 0, 0, 0]);
}

/// A signal came within: what is to be blocked until the end, where `mask` was.
pub fn put_off(mask: u64) -> u64 {
    let this = thread::this();
    if !this.has_put_off.replace(true) {
        this.blocked.set(mask);
    }
    u64::MAX
}

/// Blocks these signals too; the set that was blocked before.
pub fn block(set: u64) -> u64 {
    let mut before = 0u64;
    let nr = libc::SYS_rt_sigprocmask as u32;
    raw::call(nr, &[libc::SIG_BLOCK as usize, &raw const set as usize, &raw mut before as usize, SIGNAL_SET, 0, 0]);
    before
}

pub fn block_exactly(set: u64) {
    let nr = libc::SYS_rt_sigprocmask as u32;
    raw::call(nr, &[libc::SIG_SETMASK as usize, &raw const set as usize, 0, SIGNAL_SET, 0, 0]);
}
