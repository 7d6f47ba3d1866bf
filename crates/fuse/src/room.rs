//! Room that is on its way: what a removed file held is free once the kernel has forgotten the file, a little after the
//! call that removed it has returned. Whoever finds no room waits for that, so that on a full pool a write that follows
//! a deletion finds what the deletion gave.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::dev;

/// Longest wait after a removal. The kernel gives up a large file's pages first, and is busy.
const PATIENCE: Duration = Duration::from_millis(500);
/// From one attempt to the next.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(16));

/// What the mount has removed.
#[derive(Default)]
pub struct Room {
    removals: AtomicU64,
    /// Removals after which somebody has waited in vain: no more comes of them.
    spent: AtomicU64,
}

impl Room {
    /// A name was removed.
    pub fn note(&self) {
        self.removals.fetch_add(1, Ordering::Relaxed);
    }

    /// Tries what has answered `full` again until it does not, or no more can be hoped for.
    pub fn retry<T: PartialEq>(&self, full: T, mut attempt: impl FnMut() -> T) -> T {
        let (start, removals) = (Instant::now(), self.removals.load(Ordering::Relaxed));
        // Other mounts remove files too.
        let patience = match self.spent.load(Ordering::Relaxed) == removals {
            true => dev::PAUSE * 2,
            false => PATIENCE,
        };
        let mut pause = PAUSES.0;
        loop {
            std::thread::sleep(pause);
            let answer = attempt();
            if answer != full {
                return answer;
            }
            if start.elapsed() >= patience {
                self.spent.store(removals, Ordering::Relaxed);
                return answer;
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    const FULL: Result<(), Errno> = Err(Errno::NOSPC);

    #[test]
    fn room_is_waited_for_after_a_removal_only() {
        let room = Room::default();
        let count = |most: u32| {
            let mut tries = 0;
            let answer = room.retry(FULL, || {
                tries += 1;
                match tries > most {
                    true => Ok(()),
                    false => FULL,
                }
            });
            (answer, tries)
        };
        assert!(count(1000).1 <= 4, "nothing was removed");
        room.note();
        assert_eq!(count(10), (Ok(()), 11));
        let (answer, tries) = count(1000);
        assert!(answer == FULL && tries > 10, "{tries}");
        assert!(count(1000).1 <= 4, "once in vain is enough");
    }
}
