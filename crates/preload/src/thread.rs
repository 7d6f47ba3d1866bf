//! What this library keeps for each thread of the program: a record that the loader reserves, with zeros at first.
//!
//! `thread_local!` finds its values by constants, which are not there yet when the first hooks run (`relocate`), and by a
//! function of the loader.

use std::arch::{asm, global_asm};
use std::cell::Cell;
use std::ffi::c_void;

/// With zeros alone the thread is in no operation, has no stack, and knows of no clone.
#[repr(C)]
pub struct Thread {
    /// Is it in an `operation`?
    pub is_under_way: Cell<bool>,
    /// Was a signal put off meanwhile, and which signals did the program block then?
    pub has_put_off: Cell<bool>,
    pub blocked: Cell<u64>,
    /// The lowest address of its `stack`.
    pub stack: Cell<usize>,
    /// A clone of the process that was under way when this thread last looked: the thread that asked for it.
    pub cloned_by: Cell<i32>,
    pub clone_shares_memory: Cell<bool>,
    /// Was that the only thread, with descriptors of its own? Else others may have held locks of this library, which nobody gives back in the child.
    pub clone_was_alone: Cell<bool>,
    /// What it holds while it forks, as `process` knows it.
    pub held: Cell<*mut c_void>,
}

global_asm!(
    ".section .tbss.conquest_preload_thread, \"awT\", @nobits",
    ".balign 16",
    ".globl conquest_preload_thread",
    ".hidden conquest_preload_thread",
    ".type conquest_preload_thread, @object",
    ".size conquest_preload_thread, {size}",
    "conquest_preload_thread:",
    ".zero {size}",
    ".text",
    size = const size_of::<Thread>(),
);

/// The record of the calling thread.
#[inline(always)]
pub fn this<'a>() -> &'a Thread {
    // SAFETY: where the loader has put it, as long as the thread lives; nobody else refers to it, and the reference cannot be sent.
    unsafe {
        let at: *const Thread;
        asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + conquest_preload_thread@GOTTPOFF]",
            out(reg) at,
            options(pure, readonly, nostack)
        );
        &*at
    }
}
