//! CRC-32C of little, as headers and inodes are. The crate `crc32c` asks the processor for all its features before the first one: some ten
//! traps in a virtual machine, 100 µs, which each process would pay that opens a pool.

use std::sync::atomic::{AtomicU8, Ordering};

/// Beyond this many bytes several streams at once, as the crate has them, are faster.
const LITTLE: usize = 8192;

const UNKNOWN: u8 = 0;
const HAS: u8 = 1;
const HAS_NOT: u8 = 2;
/// Has the processor an instruction for it?
static INSTRUCTION: AtomicU8 = AtomicU8::new(UNKNOWN);

#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The sum of what has the sum `so_far` and of `bytes` behind it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn crc32c_append(so_far: u32, bytes: &[u8]) -> u32 {
    let has = match INSTRUCTION.load(Ordering::Relaxed) {
        UNKNOWN => ask(),
        known => known,
    };
    match has == HAS && bytes.len() <= LITTLE {
        // SAFETY: the processor has SSE4.2.
        true => unsafe { of_little(so_far, bytes) },
        false => crc32c::crc32c_append(so_far, bytes),
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub use crc32c::crc32c_append;

#[cfg(target_arch = "x86_64")]
#[cold]
fn ask() -> u8 {
    const SSE4_2: u32 = 1 << 20;
    // SAFETY: every x86-64 has CPUID and this leaf. (Newer compilers know.)
    #[allow(unused_unsafe)]
    let found = unsafe { std::arch::x86_64::__cpuid(1) };
    let has = if found.ecx & SSE4_2 != 0 { HAS } else { HAS_NOT };
    INSTRUCTION.store(has, Ordering::Relaxed);
    has
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
unsafe fn of_little(so_far: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u64, _mm_crc32_u8};
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    let word = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|n| bytes[n]));
    let sum = words.fold(u64::from(!so_far), |sum, bytes| _mm_crc32_u64(sum, word(bytes)));
    !rest.iter().fold(sum as u32, |sum, byte| _mm_crc32_u8(sum, *byte))
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_the_sum_that_others_make() {
        let bytes: Vec<u8> = (0..9000u32).map(|n| ((n * n) >> 3) as u8).collect();
        for len in (0..70).chain([4096, 8191, 8192, 8193, 9000]) {
            let (bytes, all) = (&bytes[..len], crc32c::crc32c(&bytes[..len]));
            assert_eq!(super::crc32c(bytes), all, "{len} bytes");
            let (head, rest) = bytes.split_at(len / 3);
            assert_eq!(super::crc32c_append(super::crc32c(head), rest), all, "{len} bytes");
        }
    }
}
