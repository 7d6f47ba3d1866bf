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

const PAGE: usize = 4096;
/// Bytes of [`Code::call_hook`], and of the stub that all trampolines call.
const CALL: usize = 24;
const STUB: usize = 13;
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

/// Code that is being written.
struct Code<'a> {
    room: &'a mut [u8],
    len: usize,
    /// The stub that leads to the hook.
    stub: usize,
}

impl Code<'_> {
    /// Where the next byte will be.
    fn here(&self) -> usize {
        self.room.as_ptr() as usize + self.len
    }

    fn put(&mut self, bytes: &[u8]) {
        self.room[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// A jump or call with this opcode and a displacement of 32 bits.
    fn jump(&mut self, opcode: &[u8], to: usize) {
        self.put(opcode);
        self.put(&displacement(self.here() + 4, to));
    }

    /// Goes to `answered` where the call was answered, else on.
    fn call_hook(&mut self, answered: usize) {
        // lea rsp,[rsp-128]; call stub; lea rsp,[rsp+128]
        self.put(&[0x48, 0x8d, 0x64, 0x24, 0x80]);
        self.jump(&[0xe8], self.stub);
        self.put(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]);
        self.jump(&[0x0f, 0x82], answered);
    }

    /// The trampolines are far from the hook, perhaps.
    fn put_stub(&mut self) {
        // mov r11,entry; jmp r11
        self.put(&[0x49, 0xbb]);
        self.put(&(conquest_preload_entry as *const () as usize).to_le_bytes());
        self.put(&[0x41, 0xff, 0xe3]);
    }
}

fn displacement(from: usize, to: usize) -> [u8; 4] {
    (to.wrapping_sub(from) as isize as i32).to_le_bytes()
}

/// Makes all sites lead to [`hook::hook`], or none.
pub fn install(text: &Text, sites: &[Site]) -> Result<()> {
    if !sites.iter().all(|site| (text.start..text.end).contains(&(site.at() as usize))) {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let place = |site: &Site| text.base + site.at() as usize;
    let Some((first, last)) = sites.iter().map(place).min().zip(sites.iter().map(place).max()) else { return Ok(()) };
    let (from, to) = (first / PAGE * PAGE, (last + JUMP).next_multiple_of(PAGE));
    let rx = MprotectFlags::READ | MprotectFlags::EXEC;
    // SAFETY: the program has no other thread yet; code goes on being executable, since we run in it.
    unsafe { mprotect(from as *mut c_void, to - from, rx | MprotectFlags::WRITE)? };
    let written = trampolines(text, sites).map(|room| {
        let mut trampoline = room + STUB;
        for site in sites {
            let at = place(site);
            let [a, b, c, d] = displacement(at + JUMP, trampoline);
            // SAFETY: the bytes are those of the site, which has been compared, and can be written.
            unsafe { std::ptr::copy_nonoverlapping([0xe9, a, b, c, d].as_ptr(), at as *mut u8, JUMP) };
            trampoline += len_of(*site);
        }
    });
    // SAFETY: as it was before.
    unsafe { mprotect(from as *mut c_void, to - from, rx)? };
    written
}

/// Makes the trampolines of all sites, if these look as they should, one behind the other behind the stub; where that is.
fn trampolines(text: &Text, sites: &[Site]) -> Result<usize> {
    if !sites.iter().all(|site| site.matches(text.from(site.at()))) {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let len = (STUB + sites.iter().map(|site| len_of(*site)).sum::<usize>()).next_multiple_of(PAGE);
    let room = room_near(text, len)?;
    // SAFETY: the memory is ours and writable.
    let memory = unsafe { std::slice::from_raw_parts_mut(room.cast::<u8>(), len) };
    let mut code = Code { room: memory, len: 0, stub: room as usize };
    code.put_stub();
    for site in sites {
        let end = code.len + len_of(*site);
        trampoline(text, *site, &mut code);
        assert_eq!(code.len, end);
    }
    // SAFETY: nothing refers to the room yet but code that is about to be used.
    unsafe { mprotect(room, len, MprotectFlags::READ | MprotectFlags::EXEC)? };
    Ok(room as usize)
}

/// Memory from which a jump reaches all of the text.
fn room_near(text: &Text, len: usize) -> Result<*mut c_void> {
    let start = (text.base + text.start) / PAGE * PAGE;
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // All of it will be used at once.
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::POPULATE;
    let nearest = start.saturating_sub(len);
    for hint in (0..REACH / STRIDE).map(|n| nearest.saturating_sub(n * STRIDE)) {
        // SAFETY: a new mapping where there is none.
        match unsafe { mmap_anonymous(hint as *mut c_void, len, rw, flags) } {
            Ok(room) => return Ok(room),
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(std::io::ErrorKind::OutOfMemory.into())
}

/// Bytes of the trampoline of a site.
fn len_of(site: Site) -> usize {
    match site {
        Site::Before { at, syscall } => syscall.saturating_sub(at) as usize + CALL + 5,
        Site::Read { .. } => 2 + CALL + 10 + 4 + 5,
        Site::Short { .. } => 2 + CALL + 2 + COMPARE.len() + 5,
    }
}

/// `cmp $-4096,%rax`
const COMPARE: [u8; 6] = [0x48, 0x3d, 0, 0xf0, 0xff, 0xff];

fn trampoline(text: &Text, site: Site, code: &mut Code) {
    let place = |offset: u32| text.base + offset as usize;
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
            code.put(&[0x31, 0xc0]);
            let answered = code.here() + CALL + 2;
            code.call_hook(answered);
            code.put(&[0x0f, 0x05]);
            debug_assert_eq!(code.here(), answered);
            code.put(&COMPARE);
            code.jump(&[0xe9], place(at + 10));
        }
    }
}
