//! Valgrind runs a program's code by itself: it makes the system calls, has descriptors and signal handlers of its own, and looks at each
//! access to memory. The engine would run under that too: slowly,
//! and with system calls that valgrind changes.

use std::arch::asm;

/// The request that valgrind answers with how often it runs inside of itself.
const RUNNING_ON_VALGRIND: u64 = 0x1001;

/// Does valgrind run this process?
pub fn runs_this() -> bool {
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0_u64;
    // SAFETY: a processor turns a register by 128 bits in all, and exchanges one with itself. Valgrind knows these instructions: it reads the request and
    // sets the answer.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") &raw const request,
            inout("rdx") answer,
            options(nostack, readonly)
        );
    }
    answer != 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_processor_itself_runs_this() {
        assert!(!super::runs_this());
    }
}
