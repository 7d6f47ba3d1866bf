//! Attributes that the kernel must not believe: sizes of files that are growing, and counts of links that are being
//! removed.
//!
//! When attributes carry another size than the kernel knows, it notes the size and then zeroes its pages beyond,
//! without any lock. If the file has grown further between the two and a program has read or mapped its new end, that
//! part becomes zeros, and a store to it is lost. So attributes must carry the size that the kernel knows, except where
//! it cannot learn otherwise that another process cut the file. The kernel learns of growth in other ways:
//! - *Writes and allocations through the page cache*: the kernel ignores all attributes until they have returned.
//! - *Other processes' changes* are notified by [`notify`](crate::notify), and announced before they can be seen.
//! - *Writes past the page cache* (O_DIRECT): the kernel learns when they return, but does not report that to us. A
//!   write has returned when the same thread makes another request. (Only one at a time makes a file longer.) Else it
//!   is assumed after a while.
//!
//! The same holds for links: the kernel counts one down when UNLINK or RENAME returns, even from a count that came
//! meanwhile.
//!
//! Until then attributes are made old before they are sent: the caller gets them, and the kernel stores nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use conquest_fs::Ino;
use rustix::time::{clock_gettime, ClockId};

/// Files are identified by their numbers modulo this.
const SLOTS: u64 = 1 << 16;

/// The longest time, in milliseconds, until a write returns: after its answer, and after its beginning or while its
/// reply waits for a disk.
const RETURNS: u64 = 1000;
const RETURNS_DURABLE: u64 = 30_000;

/// Files that were written past the page cache, or had a link removed. Each slot holds the last thread that did so, and
/// the time until which its call may not have returned: the low 32 bits of a time in milliseconds.
pub struct StaleAttrs(Box<[AtomicU64]>);

impl Default for StaleAttrs {
    fn default() -> StaleAttrs {
        StaleAttrs((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl StaleAttrs {
    /// `thread` is about to write past the page cache, or to remove a link.
    #[inline(always)]
    pub fn begin(&self, ino: Ino, thread: u32) {
        self.slot(ino).store(noted(thread, RETURNS_DURABLE), Ordering::SeqCst);
    }

    /// Its request is answered now.
    #[inline(always)]
    pub fn end(&self, ino: Ino, thread: u32) {
        self.slot(ino).store(noted(thread, RETURNS), Ordering::SeqCst);
    }

    /// The reply to that write will wait for a disk.
    #[cold]
    pub fn prolong(&self, ino: Ino, thread: u32) {
        if self.slot(ino).load(Ordering::SeqCst) >> 32 == u64::from(thread) {
            self.slot(ino).store(noted(thread, RETURNS_DURABLE), Ordering::SeqCst);
        }
    }

    /// May such a call not have returned yet, at a request of `thread`?
    #[inline(always)]
    pub fn is_under_way(&self, ino: Ino, thread: u32) -> bool {
        let noted = self.slot(ino).load(Ordering::SeqCst);
        noted != 0 && self.may_last(ino, noted, thread)
    }

    #[cold]
    fn may_last(&self, ino: Ino, noted: u64, thread: u32) -> bool {
        let (by, until) = ((noted >> 32) as u32, noted as u32);
        let left = until.wrapping_sub(now() as u32);
        if left == 0 || u64::from(left) > RETURNS_DURABLE {
            let _ = self.slot(ino).compare_exchange(noted, 0, Ordering::SeqCst, Ordering::Relaxed);
            return false;
        }
        by != thread || thread == 0
    }

    /// Another process has changed the file: the kernel learns of a cut by attributes.
    pub fn forget(&self, ino: Ino) {
        self.slot(ino).store(0, Ordering::SeqCst);
    }

    pub fn forget_all(&self) {
        self.0.iter().for_each(|slot| slot.store(0, Ordering::SeqCst));
    }

    fn slot(&self, ino: Ino) -> &AtomicU64 {
        &self.0[(ino % SLOTS) as usize]
    }
}

fn noted(thread: u32, returns: u64) -> u64 {
    u64::from(thread) << 32 | u64::from((now() + returns) as u32)
}

/// Milliseconds of a monotonic clock.
fn now() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_under_way_until_its_thread_asks_or_time_has_passed() {
        let stale = StaleAttrs::default();
        assert!(!stale.is_under_way(7, 1));
        stale.end(7, 1);
        assert!(stale.is_under_way(7, 2), "another thread may ask before it has returned");
        assert!(!stale.is_under_way(7, 1), "who writes does not ask");
        assert!(!stale.is_under_way(8, 2), "another file");
        stale.end(7, 0);
        assert!(stale.is_under_way(7, 0), "threads that the kernel does not name");
        for past in [1, 1 << 31, 1 << 30, 3 << 30] {
            let past = (now() as u32).wrapping_sub(past);
            stale.slot(7).store(1 << 32 | u64::from(past), Ordering::SeqCst);
            assert!(!stale.is_under_way(7, 2), "long ago");
        }
        stale.end(7, 1);
        stale.forget(7);
        assert!(!stale.is_under_way(7, 2), "another process has changed it since");
    }
}
