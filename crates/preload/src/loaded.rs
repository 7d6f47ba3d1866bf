//! Libraries of the process that call the kernel past the C library: they must never meet a descriptor that only the engine understands.
//!
//! With one of them loaded all files are opened by the mount. To read the text of all that is loaded would take longer than to attach. So
//! a library is known by text that is short, as of those that do little else (liburing, libaio), or by the note of Go's compiler.

use std::ffi::{c_int, c_void, CStr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use direct::callers;

/// Text of at most so many bytes is looked at.
const SHORT: usize = 128 << 10;
/// The C library, whose calls come to us, its loader, the kernel's own code, and this library.
const KNOWN: [&[u8]; 4] = [b"libc.so.", b"ld-linux", b"linux-vdso", b"libconquest_preload"];

/// Has [`look`] found one? It stays in the memory of those that fork.
static FOUND: AtomicBool = AtomicBool::new(false);
/// Where the description of the last library that was looked at says which is next; 0: not looked yet.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// The loader's `struct r_debug` and `struct link_map`, as far as they are used.
const MAP: usize = 8;
const NEXT: usize = 24;

fn word(at: usize) -> Option<usize> {
    let bytes = direct::bytes(at, size_of::<usize>()).ok()?;
    bytes.try_into().ok().map(usize::from_ne_bytes)
}

/// Has a library been loaded since [`look`]? One that was unloaded may have been the last: its memory may hold anything.
#[inline]
pub fn has_grown() -> bool {
    word(LAST.load(Ordering::Relaxed)) != Some(0)
}

/// Is one loaded, now or before, that calls the kernel itself?
#[cold]
pub fn look() -> bool {
    // SAFETY: a name that ends with 0.
    let loader = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_r_debug".as_ptr()) } as usize;
    let mut next = loader + MAP;
    while let Some(map @ 1..) = word(next) {
        next = map + NEXT;
    }
    LAST.store(next, Ordering::Relaxed);
    let mut found = false;
    // SAFETY: `visit` takes what the pointer is to.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    FOUND.fetch_or(found, Ordering::Relaxed);
    FOUND.load(Ordering::Relaxed)
}

/// The process has rings of io_uring: it is as if it had such a library.
pub fn note_rings() {
    FOUND.store(true, Ordering::Relaxed);
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description, and what `look` has passed.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<bool>()) };
    // SAFETY: a name ends with 0.
    let name = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } }.to_bytes();
    let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if KNOWN.iter().any(|known| file.starts_with(known)) {
        return 0;
    }
    // SAFETY: so many program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    // SAFETY: segments are loaded, and text and notes stay as they are.
    let segment = |header: &libc::Elf64_Phdr| unsafe {
        std::slice::from_raw_parts((info.dlpi_addr + header.p_vaddr) as *const u8, header.p_memsz as usize)
    };
    let is_readable = |header: &&libc::Elf64_Phdr| header.p_flags & libc::PF_R != 0;
    *found |= headers.iter().filter(is_readable).any(|header| match header.p_type {
        libc::PT_NOTE => callers::is_of_go(segment(header)),
        libc::PT_LOAD if header.p_flags & libc::PF_X != 0 && header.p_memsz as usize <= SHORT => {
            callers::calls(segment(header))
        }
        _ => false,
    });
    c_int::from(*found)
}
