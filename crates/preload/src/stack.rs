//! Stacks for the engine: a thread of the program may have little, and a signal handler less.
//!
//! A thread takes a stack when it first asks an engine, and keeps it. When it ends the next one takes it.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{operation, relocate, thread};

use rustix::mm::{madvise, mmap_anonymous, mprotect, Advice, MapFlags, MprotectFlags, ProtFlags};

/// Bytes of a stack: several times what an operation was seen to take.
const SIZE: usize = 512 << 10;
/// What attaching was seen to take.
const USUAL: usize = 48 << 10;
/// Bytes below it that nobody may touch.
const GUARD: usize = 4096;

/// Stacks of threads that have ended.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Tells of the end of threads that have a stack.
static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();

/// Calls `f` on a stack of ours, or on the program's where there is no memory for one.
#[inline]
pub fn on_own<R>(f: impl FnOnce() -> R) -> R {
    let stack = match thread::this().stack.get() {
        0 => take(),
        stack => stack,
    };
    if stack == 0 {
        return f();
    }
    // SAFETY: the memory is this thread's, and `f` does not unwind: the engine catches panics.
    unsafe { psm::on_stack(stack as *mut u8, SIZE, f) }
}

/// What [`hold`] holds.
pub type Held = MutexGuard<'static, Vec<usize>>;

/// Takes the lock of this module.
pub fn hold() -> Held {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cold]
fn take() -> usize {
    let free = {
        let mut free = hold();
        relocate::rest();
        free.pop()
    };
    let Some(stack) = free.or_else(make) else { return 0 };
    thread::this().stack.set(stack);
    if let Some(key) = KEY.get_or_init(new_key) {
        // SAFETY: the key is ours.
        unsafe { libc::pthread_setspecific(*key, stack as *const c_void) };
    }
    stack
}

fn make() -> Option<usize> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
    // SAFETY: a new mapping.
    let memory =
        unsafe { mmap_anonymous(std::ptr::null_mut(), GUARD + SIZE, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let memory = memory.ok()?;
    // SAFETY: nobody uses the mapping yet.
    unsafe { mprotect(memory, GUARD, MprotectFlags::empty()) }.ok()?;
    // SAFETY: the same. Without it each page is a fault.
    _ = unsafe { madvise(memory.byte_add(GUARD + SIZE - USUAL), USUAL, Advice::LinuxPopulateWrite) };
    Some(memory as usize + GUARD)
}

fn new_key() -> Option<libc::pthread_key_t> {
    let mut key = 0;
    // SAFETY: the function stays loaded for as long as the process lives.
    (unsafe { libc::pthread_key_create(&mut key, Some(give_back)) } == 0).then_some(key)
}

/// The thread ends. Should it ask an engine all the same, in the destructor of something else, it takes another stack.
unsafe extern "C" fn give_back(stack: *mut c_void) {
    operation::within(|| {
        thread::this().stack.set(0);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(stack as usize);
    });
}
