//! How many calls of a command and its children were direct, for `conquest run --check`: counters in a file that all of them map.

use std::sync::atomic::{AtomicU64, Ordering};

/// The variable that names the file.
pub const VARIABLE: &std::ffi::CStr = c"CONQUEST_COUNTS";
/// Calls have numbers below this.
const CALLS: usize = 512;
/// Bytes of the file.
pub const BYTES: usize = CALLS * 2 * 8;

/// The counters of each call: answered directly, and by the mount.
#[repr(transparent)]
pub struct Counts([[AtomicU64; 2]; CALLS]);

impl Counts {
    #[inline]
    pub fn add(&self, nr: u32, is_direct: bool) {
        if let Some(pair) = self.0.get(nr as usize) {
            pair[usize::from(!is_direct)].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The counters in the bytes of the file: the number of each call, and how often it was answered directly, and by the mount.
pub fn read(bytes: &[u8]) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
    let word = |bytes: &[u8]| u64::from_ne_bytes(std::array::from_fn(|i| bytes[i]));
    bytes.chunks_exact(16).zip(0..).map(move |(pair, nr)| (nr, word(pair), word(&pair[8..])))
}
