//! Attributes that the kernel must not believe: sizes of files that grow at this moment, and counts of links that go.
//!
//! Where attributes tell the kernel of another size than it knows, it notes the size, and then zeroes its pages beyond,
//! without any lock. If the file has grown further between the two and somebody has read or mapped its new end, that is
//! zeros then, and a store to it is lost. So attributes must come with the size that the kernel knows, but for what it
//! cannot learn otherwise: that the file was cut by another process. Who makes a file longer tells the kernel otherwise:
//! - *Writes and allocations through the page cache* by themselves: it ignores all attributes until they have returned.
//! - *Other processes' changes* are notified by [`notify`](crate::notify), and announced before they can be seen.
//! - *Writes past the page cache* (O_DIRECT), but only when they return, and nobody tells us when they have. They have when the same
//!   thread asks for something else. (Only one at a time makes a file longer.) Else that is believed after a while.
//!
//! So with links: the kernel counts one down when UNLINK or RENAME returns, also from a count that came meanwhile.
//!
//! Until then attributes are made old before they are sent: who asked gets them, and the kernel notes nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use conquest_fs::Ino;
use rustix::time::{clock_gettime, ClockId};

/// Files are known by their numbers modulo this.
const SLOTS: u64 = 1 << 16;

/// A write returns so many milliseconds after it was answered at the latest, and so many after it was begun or where its
/// reply waits for a disk.
const RETURNS: u64 = 1000;
const RETURNS_DURABLE: u64 = 30_000;

/// Files that were written past the page cache, or had a link removed: the thread that did so last, and until when its call
/// may not have returned: the low 32 bits of a time in milliseconds.
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

    /// It will be answered now.
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

    /// May such a write not have returned yet, when `thread` asks?
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

    /// Another process has changed the file: attributes are how the kernel learns of a cut.
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

/// Milliseconds of a clock that goes on.
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
