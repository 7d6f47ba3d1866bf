//! Is memory of the program there? As the kernel, the engine answers EFAULT where it is not.
//!
//! To ask the kernel would cost more than most calls. So a byte of each page is touched, by instructions of which the library's handler of
//! SIGSEGV and SIGBUS knows the addresses: [`after_fault`] tells it where to go on. A byte that is to be stored to is changed to itself, in one
//! step. Another thread that unmaps the memory in the midst of a call gets the signal.

/// No program has memory in the first one. A null pointer is the most frequent wrong address, and some calls take one: it costs no fault.
const PAGE: usize = 4096;

std::arch::global_asm!(
    ".globl conquest_touch",
    ".hidden conquest_touch",
    ".globl conquest_touch_to_store",
    ".hidden conquest_touch_to_store",
    ".globl conquest_touch_to_overwrite",
    ".hidden conquest_touch_to_overwrite",
    ".globl conquest_overwrite",
    ".hidden conquest_overwrite",
    ".globl conquest_touch_failed",
    ".hidden conquest_touch_failed",
    ".balign 16",
    "conquest_touch:",
    "movzx eax, byte ptr [rdi]",
    "ret",
    "conquest_touch_to_store:",
    "lock or byte ptr [rdi], 0",
    "xor eax, eax",
    "ret",
    "conquest_touch_to_overwrite:",
    "mov al, byte ptr [rdi]",
    "conquest_overwrite:",
    "mov byte ptr [rdi], al",
    "xor eax, eax",
    "ret",
    "conquest_touch_failed:",
    "mov eax, -1",
    "ret",
);

extern "C" {
    fn conquest_touch(at: usize) -> i32;
    fn conquest_touch_to_store(at: usize) -> i32;
    fn conquest_touch_to_overwrite(at: usize) -> i32;
    fn conquest_overwrite(at: usize) -> i32;
    fn conquest_touch_failed(at: usize) -> i32;
}

/// Where to go on after a fault of the instruction at `at`, if it is one of these.
pub fn after_fault(at: usize) -> Option<usize> {
    let touches = [conquest_touch, conquest_touch_to_store, conquest_touch_to_overwrite, conquest_overwrite];
    touches
        .into_iter()
        .any(|touch| touch as *const () as usize == at)
        .then_some(conquest_touch_failed as *const () as usize)
}

/// The byte there.
#[inline(always)]
pub fn byte(at: usize) -> Option<u8> {
    if at < PAGE {
        return None;
    }
    // SAFETY: it reads one byte, whatever it is; where there is none it returns -1.
    u8::try_from(unsafe { conquest_touch(at) }).ok()
}

/// So many bytes from `addr` on, of `len`, can be read.
#[inline(always)]
pub fn readable(addr: usize, len: usize) -> usize {
    // SAFETY: as in `byte`.
    reach(addr, len, |at| unsafe { conquest_touch(at) >= 0 })
}

/// So many can be stored to.
#[inline(always)]
pub fn writable(addr: usize, len: usize) -> usize {
    // SAFETY: as in `byte`, and the byte stays what it is.
    reach(addr, len, |at| unsafe { conquest_touch_to_store(at) >= 0 })
}

/// The same where all of that is about to be overwritten: quicker, but what another thread stores to one of those bytes may be lost.
#[inline(always)]
pub fn overwritable(addr: usize, len: usize) -> usize {
    // SAFETY: as in `byte`; the caller stores there.
    reach(addr, len, |at| unsafe { conquest_touch_to_overwrite(at) >= 0 })
}

#[inline(always)]
fn reach(addr: usize, len: usize, touch: impl Fn(usize) -> bool) -> usize {
    if addr < PAGE {
        return 0;
    }
    let mut at = addr;
    while at < addr + len {
        if !touch(at) {
            return at - addr;
        }
        at = (at & !(PAGE - 1)) + PAGE;
    }
    len
}
