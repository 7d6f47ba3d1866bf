//! System calls of the program that are made here.

/// Makes the call; the result is as the kernel returns it.
pub fn call(nr: u32, args: &[usize; 6]) -> isize {
    let result;
    // SAFETY: the program asked for this call with these arguments.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") nr as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result
}
