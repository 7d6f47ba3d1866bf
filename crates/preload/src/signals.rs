//! No signal handler of the program runs in the midst of an operation on a pool: it could wait for ever for what the operation has locked.
//!
//! The kernel calls [`arrive`] in place of each handler. In the midst of an operation the signal goes back into the kernel's queue, and the
//! thread blocks all signals until the operation ends; then the kernel delivers it again.
//!
//! It is also called for faults where the program has no handler: the engine looks at the program's memory before it uses it, and
//! a fault then is an answer ([`direct::after_fault`]).

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

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

/// Signals that come when memory is not there.
const OF_MEMORY: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The kernel calls [`arrive`] for these, whatever the program asks for (but to ignore them).
static ARE_CAUGHT: AtomicBool = AtomicBool::new(false);
/// On the stack that the program has for signals, if it has one: its own may be full.
const DEFAULT: Action =
    Action { handler: libc::SIG_DFL, flags: (libc::SA_ONSTACK | SA_RESTORER) as u64, restorer: 0, mask: 0 };
const SA_RESTORER: c_int = 0x0400_0000;

std::arch::global_asm!(
    ".globl conquest_restore",
    ".hidden conquest_restore",
    "conquest_restore:",
    "mov rax, 15",
    "syscall"
);

extern "C" {
    /// Where a handler returns to, as the kernel wants it.
    fn conquest_restore();
}

fn is_caught(signal: c_int) -> bool {
    OF_MEMORY.contains(&signal) && ARE_CAUGHT.load(Ordering::Relaxed)
}

/// From now on faults come here first.
pub fn catch_faults() {
    if ARE_CAUGHT.swap(true, Ordering::Relaxed) {
        return;
    }
    let nr = libc::SYS_rt_sigaction as u32;
    for signal in OF_MEMORY {
        let mut now = DEFAULT;
        let asked = raw::call(nr, &[signal as usize, 0, &raw mut now as usize, SET, 0, 0]);
        if asked == 0 && now.handler == libc::SIG_DFL {
            set_ours(signal, DEFAULT, 0);
        }
    }
}

/// Has the kernel call [`arrive`] where the program asks for `new`.
fn set_ours(signal: c_int, new: Action, old: usize) -> isize {
    let flags = (new.flags | libc::SA_SIGINFO as u64) & !(libc::SA_RESETHAND as u32 as u64);
    let mut ours = Action { handler: arrive as *const () as usize, flags, ..new };
    if ours.restorer == 0 && flags & SA_RESTORER as u64 != 0 {
        ours.restorer = conquest_restore as *const () as usize;
    }
    raw::call(libc::SYS_rt_sigaction as u32, &[signal as usize, &raw const ours as usize, old, SET, 0, 0])
}

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
    if direct::bytes(args[1], size_of::<Action>()).is_err() {
        return raw::call(nr, args);
    }
    // SAFETY: the memory is there, and any bytes are an action.
    let new = unsafe { (args[1] as *const Action).read_unaligned() };
    let is_caught = is_caught(args[0] as c_int) && new.handler == libc::SIG_DFL;
    if !is_caught && (new.handler == libc::SIG_DFL || new.handler == libc::SIG_IGN) {
        return raw::call(nr, args);
    }
    let was = (asked.handler.swap(new.handler, Ordering::SeqCst), asked.flags.swap(new.flags, Ordering::SeqCst));
    let result = set_ours(args[0] as c_int, if is_caught { DEFAULT } else { new }, args[2]);
    if result != 0 {
        asked.handler.store(was.0, Ordering::SeqCst);
        asked.flags.store(was.1, Ordering::SeqCst);
    }
    result
}

/// The kernel delivers a signal.
unsafe extern "C" fn arrive(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both.
    if unsafe { is_fault(signal, &*info) && go_on_after_fault(context.cast()) } {
        return;
    }
    // SAFETY: the same.
    if operation::is_under_way() && unsafe { !is_fault(signal, &*info) } {
        // SAFETY: the same.
        unsafe { put_off(signal, info, context.cast()) };
        return;
    }
    let asked = &ASKED[signal as usize];
    let (handler, flags) = (asked.handler.load(Ordering::SeqCst), asked.flags.load(Ordering::SeqCst));
    if flags & libc::SA_RESETHAND as u32 as u64 != 0 || handler == libc::SIG_DFL {
        let default = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
        let nr = libc::SYS_rt_sigaction as u32;
        raw::call(nr, &[signal as usize, &raw const default as usize, 0, SET, 0, 0]);
    }
    if handler == libc::SIG_DFL {
        // A fault occurs again when this returns; another signal is sent again.
        // SAFETY: the same.
        if !unsafe { is_fault(signal, &*info) } {
            send_again(signal, info);
        }
        return;
    }
    // SAFETY: the program's handler, which takes one argument or three; two too many do no harm.
    unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) }
}

/// Is it a fault of the instruction at hand?
fn is_fault(signal: c_int, info: &libc::siginfo_t) -> bool {
    let may_be = matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP);
    may_be && info.si_code > 0
}

/// Has the engine only looked whether memory is there?
unsafe fn go_on_after_fault(context: *mut libc::ucontext_t) -> bool {
    // SAFETY: the kernel's, which it takes when the handler returns.
    let at = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
    let next = direct::after_fault(*at as usize);
    *at = next.map_or(*at, |next| next as i64);
    next.is_some()
}

unsafe fn put_off(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the first word of the set is the kernel's, which it takes when the handler returns.
    let mask = unsafe { &mut *(&raw mut (*context).uc_sigmask).cast::<u64>() };
    *mask = operation::put_off(*mask);
    send_again(signal, info);
}

fn send_again(signal: c_int, info: *mut libc::siginfo_t) {
    let (process, thread) = (rustix::process::getpid(), rustix::thread::gettid());
    let number = |pid: rustix::process::Pid| pid.as_raw_nonzero().get() as usize;
    let nr = libc::SYS_rt_tgsigqueueinfo as u32;
    raw::call(nr, &[number(process), number(thread), signal as usize, info as usize, 0, 0]);
}
