//! System calls of the program that are made here.

/// Makes the call; the result is as the kernel returns it.
pub fn call(nr: u32, args: &[usize; 6]) -> isize {
    // SAFETY: the program asked for this call with these arguments.
    unsafe { direct::system_call(nr, args) }
}
