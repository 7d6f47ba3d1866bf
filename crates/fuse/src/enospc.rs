//! Room that is on its way: what a removed file held is free once the kernel has forgotten the file, a little after the
//! call that removed it has returned. Whoever finds no room waits for that, so that on a full pool a write that follows
//! a deletion finds what the deletion gave. Such a request is parked meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the thread beside io_uring rests after each message, so that FORGETs gather and one waking
/// handles many. What a removed file occupied is free that much later.
pub const FORGETS_GATHER: Duration = Duration::from_millis(2);
/// Longest wait after a removal. The kernel gives up a large file's pages first, and is busy.
const PATIENCE: Duration = Duration::from_millis(500);
/// From one attempt to the next.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(16));

/// What the mount has removed.
#[derive(Default)]
pub struct Removals {
    removals: AtomicU64,
    /// Removals after which somebody has waited in vain: no more comes of them.
    spent: AtomicU64,
}

/// One request's wait.
pub struct Retry {
    start: Instant,
    /// Removals before it.
    removals: u64,
    patience: Duration,
    pause: Duration,
}

impl Removals {
    /// A name was removed.
    pub fn note(&self) {
        self.removals.fetch_add(1, Ordering::Relaxed);
    }

    /// A wait for room begins. `alone`: no other process removes files.
    pub fn retry(&self, alone: bool) -> Retry {
        let removals = self.removals.load(Ordering::Relaxed);
        let patience = match self.spent.load(Ordering::Relaxed) == removals {
            true if alone => Duration::ZERO,
            true => FORGETS_GATHER * 2,
            false => PATIENCE,
        };
        Retry { start: Instant::now(), removals, patience, pause: PAUSES.0 }
    }

    /// Another attempt is due after this pause. `None`: no more can be hoped for.
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
