//! Waits for space that is about to become free. The content of a removed file is freed once the kernel has forgotten
//! the file, a little after the call that removed it returned. A request that finds no space waits for that, so that on
//! a full pool a write after a deletion finds the space of the deleted file. Meanwhile the request is parked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the thread beside io_uring rests after each message, so that FORGETs gather and one wake-up handles many.
/// The content of a removed file is freed that much later.
pub const FORGETS_GATHER: Duration = Duration::from_millis(2);
/// Longest wait after a removal. The kernel first gives up the pages of a large file, which takes time.
const PATIENCE: Duration = Duration::from_millis(500);
/// Shortest and longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(16));

/// The removals of the mount.
#[derive(Default)]
pub struct Removals {
    removals: AtomicU64,
    /// Removals after which a request waited in vain: they free no more space.
    spent: AtomicU64,
}

/// One request's wait.
pub struct Retry {
    start: Instant,
    /// Removals before the request.
    removals: u64,
    patience: Duration,
    pause: Duration,
}

impl Removals {
    /// A name was removed.
    pub fn note(&self) {
        self.removals.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a request's wait for space. `alone`: no other process removes files.
    pub fn retry(&self, alone: bool) -> Retry {
        let removals = self.removals.load(Ordering::Relaxed);
        let patience = match self.spent.load(Ordering::Relaxed) == removals {
            true if alone => Duration::ZERO,
            true => FORGETS_GATHER * 2,
            false => PATIENCE,
        };
        Retry { start: Instant::now(), removals, patience, pause: PAUSES.0 }
    }

    /// The pause before the next attempt. `None`: no more space is to be expected.
    pub fn next_pause(&self, retry: &mut Retry) -> Option<Duration> {
        if retry.start.elapsed() >= retry.patience {
            self.spent.store(retry.removals, Ordering::Relaxed);
            return None;
        }
        let pause = retry.pause;
        retry.pause = (pause * 2).min(PAUSES.1);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_waited_for_after_a_removal_only() {
        let removals = Removals::default();
        let pauses = |most: usize, alone: bool| {
            let mut retry = removals.retry(alone);
            let next = || removals.next_pause(&mut retry).map(std::thread::sleep);
            std::iter::from_fn(next).take(most).count()
        };
        assert_eq!(pauses(1000, true), 0, "nothing was removed");
        assert!((1..=4).contains(&pauses(1000, false)), "nothing was removed here");
        removals.note();
        assert_eq!(pauses(11, true), 11);
        assert!(pauses(1000, true) > 10);
        assert_eq!(pauses(1000, true), 0, "once in vain is enough");
    }
}
