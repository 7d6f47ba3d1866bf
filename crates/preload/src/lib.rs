//! Direct access for unmodified programs: `conquest run` has the loader load this library into each of them.
//!
//! It maps a text of the C library in which each file call leads to
//! [`hook`], which asks the engine (`direct`) where the call concerns a pool, and the kernel otherwise. Where
//! the C library is not the one that `conquest run` has looked at it stays as it is: the mount serves the process.

mod counts;
mod emulator;
mod entry;
mod env;
mod hook;
mod libc_text;
mod loaded;
mod mounts;
mod operation;
mod process;
mod raw;
mod relocate;
mod signals;
mod stack;
mod thread;

use mounts::Mount;

/// The program's allocator is not ours to use: it may be at work itself when a signal handler of the program opens a file.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The loader calls this before the program's own initialisers.
#[used]
#[link_section = ".init_array"]
static INIT: extern "C" fn() = init;

extern "C" fn init() {
    let Some((text, mounts)) = env::value(env::TEXT).zip(env::value(env::MOUNTS)) else { return };
    // Nothing has been allocated yet.
    if process::has_limited_memory() {
        return;
    }
    let Some(mounts) = Mount::parse_all(mounts.to_bytes()).filter(|mounts| !mounts.is_empty()) else { return };
    if emulator::runs_this() {
        return;
    }
    // SAFETY: nothing else of this library has run yet.
    unsafe { dlmalloc::enable_alloc_after_fork() };
    process::watch_forks();
    counts::begin();
    mounts::set(mounts);
    match libc_text::replace(text) {
        Ok(()) => {
            // Hooks look at paths from now on, whatever their addresses are.
            signals::catch_faults();
            mounts::look_at_working_directory();
        }
        // The message is made of constants, which `on_own` has relocated.
        Err(why) if counts::are_kept() => stack::on_own(|| {
            mounts::all().iter().for_each(|mount| counts::report_refusal(mount.dir(), &why.to_string()));
        }),
        Err(_) => {}
    }
}
