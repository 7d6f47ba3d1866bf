//! The processor's instructions that write cache lines back, store past them, and order stores.

/// How this processor writes a cache line back to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFlush {
    /// CLWB: the line stays in the cache.
    Keep,
    /// CLFLUSHOPT: the line leaves the cache.
    Drop,
    /// CLFLUSH: so too, one line after the other.
    DropInOrder,
}

#[cfg(target_arch = "x86_64")]
impl LineFlush {
    /// The best that this processor has.
    pub fn of_this_processor() -> Option<LineFlush> {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const CLFLUSHOPT: u32 = 1 << 23;
        const CLWB: u32 = 1 << 24;
        // SAFETY: every x86-64 has CPUID, and leaf 0 tells which leaves there are. (Newer compilers know.)
        #[allow(unused_unsafe)]
        let ebx = unsafe {
            match __cpuid(0).eax {
                7.. => __cpuid_count(7, 0).ebx,
                _ => 0,
            }
        };
        Some(match ebx {
            b if b & CLWB != 0 => LineFlush::Keep,
            b if b & CLFLUSHOPT != 0 => LineFlush::Drop,
            _ => LineFlush::DropInOrder,
        })
    }

    #[inline(always)]
    pub(super) fn line(self, p: *mut u8) {
        use std::arch::asm;
        // SAFETY: the instructions change no content and fault only where a load would; `p` is mapped (1).
        unsafe {
            match self {
                LineFlush::Keep => asm!("clwb [{}]", in(reg) p, options(nostack, preserves_flags)),
                LineFlush::Drop => asm!("clflushopt [{}]", in(reg) p, options(nostack, preserves_flags)),
                LineFlush::DropInOrder => asm!("clflush [{}]", in(reg) p, options(nostack, preserves_flags)),
            }
        }
    }
}

/// Stores 16 bytes past the caches.
///
/// # Safety
/// `to` must be mapped for writing, 16 bytes, and a multiple of 16.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn stream_16(to: *mut u8, from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    debug_assert!(from.len() == 16 && to as usize % 16 == 0);
    // SAFETY: SSE2 is part of x86-64; `from` has 16 bytes, and the caller guarantees `to`.
    unsafe { _mm_stream_si128(to.cast::<__m128i>(), _mm_loadu_si128(from.as_ptr().cast())) };
}

/// Orders stores and write-backs before it before those after it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn store_fence() {
    // SAFETY: SFENCE is part of x86-64.
    unsafe { std::arch::asm!("sfence", options(nostack, preserves_flags)) };
}

/// Other processors are not supported: no `LineFlush` exists there, so nothing below is ever called.
#[cfg(not(target_arch = "x86_64"))]
impl LineFlush {
    pub fn of_this_processor() -> Option<LineFlush> {
        None
    }
    pub(super) fn line(self, _: *mut u8) {}
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn stream_16(to: *mut u8, from: &[u8]) {
    // SAFETY: the caller guarantees `to`; a Rust slice cannot overlap the mapping.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
}

#[cfg(not(target_arch = "x86_64"))]
pub fn store_fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}
