//! Where the trampolines of the C library's text lead to.
//!
//! A system call changes no register but rax, rcx and r11: neither may the hook, whose
//! vector registers are saved too. (Of these the C library's own code, which is built for any x86-64, uses the low 16 bytes.)

use crate::hook;

std::arch::global_asm!(
    ".balign 16",
    "conquest_preload_entry:",
    "push rbp",
    "mov rbp, rsp",
    "push rax",
    "push r9",
    "push r8",
    "push r10",
    "push rdx",
    "push rsi",
    "push rdi",
    "mov rsi, rsp",
    "and rsp, -16",
    "sub rsp, 256",
    "movups [rsp], xmm0",
    "movups [rsp+16], xmm1",
    "movups [rsp+32], xmm2",
    "movups [rsp+48], xmm3",
    "movups [rsp+64], xmm4",
    "movups [rsp+80], xmm5",
    "movups [rsp+96], xmm6",
    "movups [rsp+112], xmm7",
    "movups [rsp+128], xmm8",
    "movups [rsp+144], xmm9",
    "movups [rsp+160], xmm10",
    "movups [rsp+176], xmm11",
    "movups [rsp+192], xmm12",
    "movups [rsp+208], xmm13",
    "movups [rsp+224], xmm14",
    "movups [rsp+240], xmm15",
    "mov edi, eax",
    "cld",
    "call {hook}",
    "movups xmm0, [rsp]",
    "movups xmm1, [rsp+16]",
    "movups xmm2, [rsp+32]",
    "movups xmm3, [rsp+48]",
    "movups xmm4, [rsp+64]",
    "movups xmm5, [rsp+80]",
    "movups xmm6, [rsp+96]",
    "movups xmm7, [rsp+112]",
    "movups xmm8, [rsp+128]",
    "movups xmm9, [rsp+144]",
    "movups xmm10, [rsp+160]",
    "movups xmm11, [rsp+176]",
    "movups xmm12, [rsp+192]",
    "movups xmm13, [rsp+208]",
    "movups xmm14, [rsp+224]",
    "movups xmm15, [rsp+240]",
    "lea rsp, [rbp-56]",
    // Carry: answered.
    "bt edx, 0",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "jc 2f",
    "mov rax, [rsp]",
    "2:",
    "lea rsp, [rsp+8]",
    "pop rbp",
    "ret",
    hook = sym hook::hook,
);

extern "C" {
    fn conquest_preload_entry();
}

/// Its address.
pub fn address() -> usize {
    conquest_preload_entry as *const () as usize
}
