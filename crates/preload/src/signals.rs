//! No signal handler of the program runs in the midst of an operation on a pool: it could wait for ever for what the operation has locked.
//!
//! The kernel calls [`arrive`] in place of each handler. In the midst of an operation the signal goes back into the kernel's queue, and the
//! thread blocks all signals until the operation ends; then the kernel delivers it again.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::{operation, raw};

/// Signals are numbered from 1 to this.
const SIGNALS: usize = 64;
const SET: usize = operation::SIGNAL_SET;

/// The kernel's `struct sigaction`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// What the program asked for.
struct Asked {
    handler: AtomicUsize,
    flags: AtomicU64,
}

static ASKED: [Asked; SIGNALS + 1] =
    [const { Asked { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicU64::new(0) } }; SIGNALS + 1];

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// `rt_sigaction` as the program sees it.
pub fn set_action(nr: u32, args: &[usize; 6]) -> isize {
    let asked = ASKED.get(args[0]).filter(|_| args[0] > 0 && args[3] == SET);
    let Some(asked) = asked else { return raw::call(nr, args) };
    // The handler of a signal may ask for an action too.
    let before = operation::block(u64::MAX);
    let old = (asked.handler.load(Ordering::SeqCst), asked.flags.load(Ordering::SeqCst));
    let result = replace(nr, args, asked);
    if result == 0 && args[2] != 0 {
        // SAFETY: the kernel has just written there.
        let seen = unsafe { &mut *(args[2] as *mut Action) };
        if seen.handler == arrive as *const () as usize {
            (seen.handler, seen.flags) = old;
        }
    }
    operation::block_exactly(before);
    result
}

fn replace(nr: u32, args: &[usize; 6], asked: &Asked) -> isize {
    if args[1] < 0x1000 {
        return raw::call(nr, args);
    }
    // SAFETY: the kernel would read the same structure.
    let new = unsafe { (args[1] as *const Action).read_unaligned() };
    if new.handler == libc::SIG_DFL || new.handler == libc::SIG_IGN {
        return raw::call(nr, args);
    }
    let was = (asked.handler.swap(new.handler, Ordering::SeqCst), asked.flags.swap(new.flags, Ordering::SeqCst));
    let flags = (new.flags | libc::SA_SIGINFO as u64) & !(libc::SA_RESETHAND as u32 as u64);
    let ours = Action { handler: arrive as *const () as usize, flags, ..new };
    let result = raw::call(nr, &[args[0], &raw const ours as usize, args[2], SET, 0, 0]);
    if result != 0 {
        asked.handler.store(was.0, Ordering::SeqCst);
        asked.flags.store(was.1, Ordering::SeqCst);
    }
    result
}

/// The kernel delivers a signal.
unsafe extern "C" fn arrive(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both.
    if operation::is_under_way() && unsafe { can_wait(signal, &*info) } {
        // SAFETY: the same.
        unsafe { put_off(signal, info, context.cast()) };
        return;
    }
    let asked = &ASKED[signal as usize];
    let (handler, flags) = (asked.handler.load(Ordering::SeqCst), asked.flags.load(Ordering::SeqCst));
    if flags & libc::SA_RESETHAND as u32 as u64 != 0 {
        let default = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
        let nr = libc::SYS_rt_sigaction as u32;
        raw::call(nr, &[signal as usize, &raw const default as usize, 0, SET, 0, 0]);
    }
    // SAFETY: the program's handler, which takes one argument or three; two too many do no harm.
    unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) }
}

/// Is it no fault of the instruction at hand?
fn can_wait(signal: c_int, info: &libc::siginfo_t) -> bool {
    let is_fault = matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP);
    !(is_fault && info.si_code > 0)
}

unsafe fn put_off(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the first word of the set is the kernel's, which it takes when the handler returns.
    let mask = unsafe { &mut *(&raw mut (*context).uc_sigmask).cast::<u64>() };
    *mask = operation::put_off(*mask);
    let (process, thread) = (rustix::process::getpid(), rustix::thread::gettid());
    let number = |pid: rustix::process::Pid| pid.as_raw_nonzero().get() as usize;
    let nr = libc::SYS_rt_tgsigqueueinfo as u32;
    raw::call(nr, &[number(process), number(thread), signal as usize, info as usize, 0, 0]);
}
