//! Locks on the bytes that are being written: a partly written block is read first, and must not be written meanwhile.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub struct RangeLocks {
    /// As many as writing threads: a handful.
    busy: Mutex<Vec<Range<u64>>>,
    ended: Condvar,
}

/// A lock; it ends when this is dropped.
pub struct RangeLock<'a> {
    range_locks: &'a RangeLocks,
    range: Range<u64>,
}

impl RangeLocks {
    fn lock(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no lock is on these bytes.
    pub fn take(&self, range: Range<u64>) -> RangeLock<'_> {
        let mut busy = self.lock();
        while busy.iter().any(|other| other.start < range.end && range.start < other.end) {
            busy = self.ended.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        busy.push(range.clone());
        RangeLock { range_locks: self, range }
    }

    /// The number of locks.
    #[cfg(test)]
    fn taken(&self) -> usize {
        self.lock().len()
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        let mut busy = self.range_locks.lock();
        if let Some(place) = busy.iter().position(|range| *range == self.range) {
            busy.swap_remove(place);
        }
        drop(busy);
        self.range_locks.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_would_write_the_same_waits() {
        let (range_locks, ended) = (RangeLocks::default(), AtomicBool::new(false));
        let first = range_locks.take(0..10);
        drop(range_locks.take(10..20));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _second = range_locks.take(9..11);
                assert!(ended.load(Ordering::SeqCst));
            });
            std::thread::sleep(Duration::from_millis(20));
            ended.store(true, Ordering::SeqCst);
            drop(first);
        });
        assert_eq!(range_locks.taken(), 0);
    }
}
