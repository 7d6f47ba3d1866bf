//! Jumps in the C library's text, and where they lead to.
//!
//! A site's trampoline skips the red zone below the stack, calls [`conquest_preload_entry`], and goes on behind the
//! `syscall` where the call was answered, or at it. A system call changes no register but rax, rcx and r11: neither may the hook, whose
//! vector registers are saved too. (Of these the C library's own code, which is built for any x86-64, uses the low 16 bytes.)

use std::ffi::c_void;
use std::io::Result;

use rustix::mm::{mmap_anonymous, mprotect, MapFlags, MprotectFlags, ProtFlags};

use crate::hook;
use crate::libc_text::Text;
use direct::sites::{Site, JUMP};

/// Most bytes of a trampoline.
const TRAMPOLINE: usize = 128;
const PAGE: usize = 4096;
/// Bytes of [`Code::call_hook`].
const CALL: usize = 32;
/// How far from the text the trampolines are looked room for, and how densely.
const REACH: usize = 1 << 30;
const STRIDE: usize = 1 << 20;

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

/// The code of one trampoline.
struct Code {
    bytes: Vec<u8>,
    /// Where it will be.
    at: usize,
}

impl Code {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// A jump with this opcode and a displacement of 32 bits.
    fn jump(&mut self, opcode: &[u8], to: usize) {
        self.put(opcode);
        let from = self.at + self.bytes.len() + 4;
        self.put(&displacement(from, to));
    }

    /// Goes to `answered` where the call was answered, else on.
    fn call_hook(&mut self, answered: usize) {
        // lea rsp,[rsp-128]; mov r11,entry; call r11; lea rsp,[rsp+128]
        self.put(&[0x48, 0x8d, 0x64, 0x24, 0x80, 0x49, 0xbb]);
        self.put(&(conquest_preload_entry as *const () as usize).to_le_bytes());
        self.put(&[0x41, 0xff, 0xd3, 0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]);
        self.jump(&[0x0f, 0x82], answered);
    }
}

fn displacement(from: usize, to: usize) -> [u8; 4] {
    (to.wrapping_sub(from) as isize as i32).to_le_bytes()
}

/// Makes all sites lead to [`hook::hook`], or none.
pub fn install(text: &Text, sites: &[Site]) -> Result<()> {
    let holds =
        |site: &Site| (text.start..text.end).contains(&(site.at() as usize)) && site.matches(text.from(site.at()));
    if !sites.iter().all(holds) {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let len = (sites.len() * TRAMPOLINE).next_multiple_of(PAGE);
    let room = room_near(text, len)?;
    for (n, site) in sites.iter().enumerate() {
        let code = trampoline(text, *site, room as usize + n * TRAMPOLINE);
        assert!(code.len() <= TRAMPOLINE);
        // SAFETY: the room is ours, writable and large enough.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), room.cast::<u8>().add(n * TRAMPOLINE), code.len()) };
    }
    // SAFETY: nothing refers to the room yet but code that is about to be used.
    unsafe { mprotect(room, len, MprotectFlags::READ | MprotectFlags::EXEC)? };
    write_jumps(text, sites, room as usize)
}

/// Memory from which a jump reaches all of the text.
fn room_near(text: &Text, len: usize) -> Result<*mut c_void> {
    let start = (text.base + text.start) / PAGE * PAGE;
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    let nearest = start.saturating_sub(len);
    for hint in (0..REACH / STRIDE).map(|n| nearest.saturating_sub(n * STRIDE)) {
        // SAFETY: a new mapping where there is none.
        match unsafe { mmap_anonymous(hint as *mut c_void, len, rw, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE) } {
            Ok(room) => return Ok(room),
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(std::io::ErrorKind::OutOfMemory.into())
}

fn trampoline(text: &Text, site: Site, at: usize) -> Vec<u8> {
    let place = |offset: u32| text.base + offset as usize;
    let mut code = Code { bytes: Vec::with_capacity(TRAMPOLINE), at };
    match site {
        Site::Before { at, syscall } => {
            code.put(&text.from(at)[..(syscall - at) as usize]);
            code.call_hook(place(syscall + 2));
            code.jump(&[0xe9], place(syscall));
        }
        Site::Read { at, flag, syscall } => {
            // xor eax,eax: the number of read.
            code.put(&[0x31, 0xc0]);
            code.call_hook(place(syscall + 2));
            // mov r11,flag; cmp byte [r11],0
            code.put(&[0x49, 0xbb]);
            code.put(&place(flag).to_le_bytes());
            code.put(&[0x41, 0x80, 0x3b, 0]);
            code.jump(&[0xe9], place(at + 7));
        }
        Site::Short { at } => {
            const COMPARE: [u8; 6] = [0x48, 0x3d, 0, 0xf0, 0xff, 0xff];
            code.put(&[0x31, 0xc0]);
            let answered = code.bytes.len() + CALL + 2;
            code.call_hook(code.at + answered);
            code.put(&[0x0f, 0x05]);
            debug_assert_eq!(code.bytes.len(), answered);
            code.put(&COMPARE);
            code.jump(&[0xe9], place(at + 10));
        }
    }
    code.bytes
}

/// Writes the jumps. The library's pages become this process's own.
fn write_jumps(text: &Text, sites: &[Site], room: usize) -> Result<()> {
    let place = |site: &Site| text.base + site.at() as usize;
    let Some((first, last)) = sites.iter().map(place).min().zip(sites.iter().map(place).max()) else { return Ok(()) };
    let (from, to) = (first / PAGE * PAGE, (last + JUMP).next_multiple_of(PAGE));
    let rx = MprotectFlags::READ | MprotectFlags::EXEC;
    // SAFETY: the program has no other thread yet; code goes on being executable, since we run in it.
    unsafe { mprotect(from as *mut c_void, to - from, rx | MprotectFlags::WRITE)? };
    for (n, site) in sites.iter().enumerate() {
        let at = place(site);
        let [a, b, c, d] = displacement(at + JUMP, room + n * TRAMPOLINE);
        // SAFETY: the bytes are those of the site, which has been compared, and can be written.
        unsafe { std::ptr::copy_nonoverlapping([0xe9, a, b, c, d].as_ptr(), at as *mut u8, JUMP) };
    }
    // SAFETY: as it was before.
    unsafe { mprotect(from as *mut c_void, to - from, rx)? };
    Ok(())
}
