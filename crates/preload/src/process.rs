//! fork, vfork and exec: the new process gets descriptors of the kernel, and an engine of its own.

use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use rustix::process::{getrlimit, Resource};
use rustix::thread::gettid;

use crate::{mounts, operation, stack, thread};

const CLONE_VM: u64 = 0x100;
const CLONE_FILES: u64 = 0x400;
const CLONE_THREAD: u64 = 0x10000;

/// The C library's mark that the process has one thread, if it has such a mark.
static ALONE: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

/// Locks of this library that another thread could hold while the process forks: the child could never take them.
type Held = (mounts::Held, stack::Held);

/// Is the memory limited that this process may have? The engine needs some at any moment, and could only end the program where there is none.
pub fn has_limited_memory() -> bool {
    [Resource::As, Resource::Data].into_iter().any(|resource| getrlimit(resource).current.is_some())
}

/// May this call limit it?
pub fn limits_memory(nr: u32, args: &[usize; 6]) -> bool {
    let (resource, limit) = if nr == libc::SYS_setrlimit as u32 { (args[0], args[1]) } else { (args[1], args[2]) };
    limit != 0 && matches!(resource as u32, libc::RLIMIT_AS | libc::RLIMIT_DATA)
}

/// Has `fork` make descriptors real, and take our locks, before it locks our allocator: the handler that is registered last is
/// called first.
pub fn watch_forks() {
    // SAFETY: a name that ends with 0.
    let alone = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    ALONE.store(alone.cast(), Ordering::Relaxed);
    // SAFETY: the handlers stay for as long as the process lives.
    _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
}

/// Until `fork` has returned no handler of a signal runs, which could wait for what is locked here.
unsafe extern "C" fn before_fork() {
    if is_guest() || !operation::begin() {
        return;
    }
    stack::on_own(|| {
        mounts::engines().for_each(|engine| _ = engine.make_all_real());
        thread::this().held.set(Box::into_raw(Box::<Held>::new((mounts::hold(), stack::hold()))).cast());
    });
}

unsafe extern "C" fn after_fork() {
    if give_back() {
        operation::end();
    }
}

unsafe extern "C" fn after_fork_in_child() {
    if give_back() {
        mounts::forget_engines();
        operation::end();
    }
}

/// Gives back what [`before_fork`] took; `false`: nothing.
fn give_back() -> bool {
    let held = thread::this().held.replace(std::ptr::null_mut());
    if !held.is_null() {
        // SAFETY: `before_fork` has made it, and nobody else takes it.
        drop(unsafe { Box::from_raw(held.cast::<Held>()) });
        return true;
    }
    false
}

/// The process is about to be cloned, with these flags.
pub fn before_clone(flags: u64) {
    if flags & CLONE_THREAD != 0 {
        return;
    }
    mounts::engines().for_each(|engine| _ = engine.make_all_real());
    let this = thread::this();
    this.clone_shares_memory.set(flags & CLONE_VM != 0);
    this.clone_was_alone.set(is_alone() && flags & CLONE_FILES == 0);
    this.cloned_by.set(gettid().as_raw_nonzero().get());
}

/// Is this the child of a vfork, whose memory is its parent's? All its calls are the kernel's.
#[inline]
pub fn is_guest() -> bool {
    thread::this().cloned_by.get() != 0 && after_clone()
}

#[cold]
fn after_clone() -> bool {
    let this = thread::this();
    let is_child = gettid().as_raw_nonzero().get() != this.cloned_by.get();
    if is_child && this.clone_shares_memory.get() {
        return true;
    }
    match this.clone_was_alone.get() {
        _ if !is_child => {}
        true => stack::on_own(mounts::forget_engines),
        false => mounts::forget_for_good(),
    }
    this.cloned_by.set(0);
    false
}

/// Has this process one thread? As the C library knows it.
fn is_alone() -> bool {
    // SAFETY: a byte of the C library.
    unsafe { ALONE.load(Ordering::Relaxed).as_ref().is_some_and(|alone| alone.load(Ordering::Relaxed) != 0) }
}
