//! Gives this library's pointers to itself their values, most of them when they are first needed.
//!
//! The loader would do it at once, in a copy of each page that holds one, also in a process that never touches a pool. So the linker
//! (`build.rs`) puts these relocations into a table that the loader does not read, packed as in the ELF standard's `DT_RELR`.
//!
//! What waits for [`rest`] are the constants that hold pointers: tables of methods, texts in tables, places in the source of panics. Code that
//! runs before, in a process that has called no engine yet, must use none of them: no `dyn`, no panic, no `OnceLock`, no `thread_local!`. This module
//! itself calls no function of another crate: the calls lead through pointers.

use std::arch::{asm, global_asm};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use direct::rewritten::PAGE;

const WORD: usize = size_of::<usize>();
const READ: i32 = libc::PROT_READ;
const WRITE: i32 = libc::PROT_WRITE;

/// Tags of the dynamic section: the table, and its bytes.
const TABLE: i64 = 0x6fff_e000;
const TABLE_BYTES: i64 = 0x6fff_e001;

global_asm!(
    ".globl conquest_preload_start",
    ".hidden conquest_preload_start",
    "conquest_preload_start:",
    "jmp {first}",
    first = sym first,
);

/// Has [`rest`] been here?
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// The loader calls this first of all, if the linker was told so.
extern "C" fn first() {
    relocate(false);
}

/// What code of the engine may use. The caller holds a lock.
pub fn rest() {
    if !IS_DONE.swap(true, Ordering::Relaxed) {
        relocate(true);
    }
}

/// Relocates the constants, or all else.
fn relocate(constants: bool) {
    let (base, dynamic): (usize, *const [i64; 2]);
    // SAFETY: two addresses, which the linker knows.
    unsafe {
        asm!(
            ".hidden __ehdr_start",
            ".hidden _DYNAMIC",
            "lea {}, [rip + __ehdr_start]",
            "lea {}, [rip + _DYNAMIC]",
            out(reg) base,
            out(reg) dynamic,
            options(pure, nomem, nostack)
        );
    }
    // SAFETY: the linker's sections. The pages are of this library, the loader has protected them, and so they are again.
    unsafe {
        let (mut table, mut bytes, mut next) = (0, 0, dynamic);
        while (*next)[0] != 0 {
            match *next {
                [TABLE, at] => table = base + at as usize,
                [TABLE_BYTES, len] => bytes = len as usize,
                _ => {}
            }
            next = next.add(1);
        }
        // Without the table the loader has done it.
        if bytes != 0 {
            let protected = protected(base);
            // Whole pages: those at their ends have what is needed at once, or what the loader has written.
            let lazy = Range { start: (protected.start | (PAGE - 1)) + 1, end: dynamic as usize & !(PAGE - 1) };
            protect(&protected, READ | WRITE);
            apply(base, table as *const usize, bytes / WORD, &lazy, constants);
            protect(&protected, READ);
        }
    }
}

/// The pages that the loader has written and then protected.
unsafe fn protected(base: usize) -> Range<usize> {
    // SAFETY: the headers of a library that is loaded, among which the linker has put this one.
    unsafe {
        let header = base as *const libc::Elf64_Ehdr;
        let mut next = (base + (*header).e_phoff as usize) as *const libc::Elf64_Phdr;
        while (*next).p_type != libc::PT_GNU_RELRO {
            next = next.add(1);
        }
        let (start, len) = (base + (*next).p_vaddr as usize, (*next).p_memsz as usize);
        Range { start: start & !(PAGE - 1), end: (start + len) & !(PAGE - 1) }
    }
}

unsafe fn protect(pages: &Range<usize>, protection: i32) {
    // SAFETY: the kernel changes registers that are named.
    unsafe {
        asm!(
            "syscall",
            inout("rax") libc::SYS_mprotect => _,
            in("rdi") pages.start,
            in("rsi") pages.end - pages.start,
            in("rdx") i64::from(protection),
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
}

/// Adds `base` to the words that the table names, if they lie in `lazy` as asked. An even entry is the place of a word; an odd one has a bit for
/// each of the 63 words behind those before it.
unsafe fn apply(base: usize, table: *const usize, entries: usize, lazy: &Range<usize>, within: bool) {
    let (mut n, mut place) = (0, 0);
    while n < entries {
        // SAFETY: the table has so many entries.
        let mut entry = unsafe { *table.add(n) };
        let mut next = place + 63 * WORD;
        if entry & 1 == 0 {
            place = base + entry;
            next = place + WORD;
            entry = 3;
        }
        while entry != 1 && entry != 0 {
            entry >>= 1;
            if entry & 1 != 0 && (lazy.start <= place && place < lazy.end) == within {
                // SAFETY: a word of this library that can be written.
                unsafe { *(place as *mut usize) += base };
            }
            place += WORD;
        }
        place = next;
        n += 1;
    }
}
