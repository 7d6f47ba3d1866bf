//! Direct access for unmodified programs: `conquest run` has the loader load this library into each of them.
//!
//! It rewrites the system-call sites of the C library, so that each file call of the process comes to
//! [`hook`], which asks the engine (`direct`) where the call concerns a pool, and the kernel otherwise. Where
//! the C library is not the one that `conquest run` has looked at nothing is rewritten: the mount serves the process.

mod counts;
mod emulator;
mod env;
mod hook;
mod libc_text;
mod loaded;
mod mounts;
mod operation;
mod process;
mod raw;
mod signals;
mod stack;
mod trampoline;

/// The program's allocator is not ours to use: it may be at work itself when a signal handler of the program opens a file.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The loader calls this before the program's own initialisers.
#[used]
#[link_section = ".init_array"]
static INIT: extern "C" fn() = init;

extern "C" fn init() {
    let Some(plan) = env::plan().filter(|plan| !plan.mounts.is_empty()) else { return };
    if emulator::runs_this() {
        return;
    }
    // SAFETY: nothing else of this library has run yet.
    unsafe { dlmalloc::enable_alloc_after_fork() };
    process::watch_forks();
    counts::begin();
    mounts::set(plan.mounts);
    let Some(text) = libc_text::find(&plan.build_id) else { return };
    if trampoline::install(&text, &plan.sites).is_ok() {
        // Hooks look at paths from now on, whatever their addresses are.
        signals::catch_faults();
        mounts::look_at_working_directory();
    }
}
