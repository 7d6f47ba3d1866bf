//! How queues wait for the next request: the way that lets callers come back sooner, found by trying.
//!
//! - *Awake*, for a while: the queue gives way to its caller again and again. On a machine with nothing else to do
//!   the caller then stays on its CPU; if the queue slept, the CPU would be idle, and the caller sent from one idle
//!   CPU to the other with each request (on two virtual CPUs 10 us a request against 30).
//! - *Asleep*, and before everybody else once there is a request. On a busy machine whoever gives way waits for
//!   the time slices of others, each time (110 us a request against 15, and a commit is waited for twice).
//!
//! Nothing says beforehand which it is. An *epoch* is some requests of a queue; the median of the times from a
//! reply to the next request tells how good the way was. Now and then, less often the longer nothing changes, and
//! when it suddenly takes longer, an epoch tries the other way.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;
use std::time::Duration;

use crate::sys::{set_priority, Priority};

/// Requests of an epoch.
const EPOCH: usize = 32;
/// Longest median that says anything: a caller that takes so long does not wait for us.
const BUSY: u32 = 1_000_000;
/// Epochs until the other way is tried, at first and at most.
const TRIALS: (u32, u32) = (8, 1024);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Awake,
    Asleep,
}

impl Way {
    fn other(self) -> Way {
        match self {
            Way::Awake => Way::Asleep,
            Way::Asleep => Way::Awake,
        }
    }
}

/// What the queues of a mount have found out.
pub struct Rhythm {
    /// Bit 0: the way, 1 is asleep. The rest counts changes.
    now: AtomicU32,
    found: Mutex<Found>,
}

struct Found {
    /// The way that is better as far as is known, and its median, 0 if unknown.
    best: Way,
    median: u32,
    /// The other way is being tried.
    trying: bool,
    /// Epochs until the next trial, and how many it was last time.
    left: u32,
    pause: u32,
}

impl Default for Rhythm {
    fn default() -> Rhythm {
        let found = Found { best: Way::Asleep, median: 0, trying: false, left: 1, pause: TRIALS.0 };
        Rhythm { now: AtomicU32::new(1), found: Mutex::new(found) }
    }
}

impl Rhythm {
    /// A queue's part in it.
    pub fn beat(&self) -> Beat<'_> {
        Beat { rhythm: self, now: None, gaps: [0; EPOCH], count: 0 }
    }

    fn change(&self, way: Way) {
        let count = self.now.load(Ordering::Relaxed) >> 1;
        self.now.store(count.wrapping_add(1) << 1 | u32::from(way == Way::Asleep), Ordering::Relaxed);
    }

    /// An epoch has ended that began at `now` and was all of the same way.
    fn note(&self, now: u32, median: u32) {
        let mut found = self.found.lock().unwrap_or_else(|e| e.into_inner());
        if self.now.load(Ordering::Relaxed) != now || median > BUSY {
            return;
        }
        if let Some(way) = found.after(median) {
            self.change(way);
        }
    }
}

impl Found {
    /// The way to go on after an epoch, if it is to change.
    fn after(&mut self, median: u32) -> Option<Way> {
        if self.trying {
            self.trying = false;
            let better = median < self.median - self.median / 5;
            if !better {
                (self.pause, self.left) = ((self.pause * 2).min(TRIALS.1), self.pause);
                return Some(self.best);
            }
            (self.best, self.median) = (self.best.other(), median);
            (self.pause, self.left) = (TRIALS.0, TRIALS.0);
            return None;
        }
        let suddenly = self.median != 0 && median > self.median * 2;
        self.median = median;
        if suddenly {
            (self.pause, self.left) = (TRIALS.0, 0);
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return None;
        }
        self.trying = true;
        Some(self.best.other())
    }
}

/// One queue's part in the rhythm of its mount.
pub struct Beat<'a> {
    rhythm: &'a Rhythm,
    /// The word of the rhythm that this thread is set up for.
    now: Option<u32>,
    gaps: [u32; EPOCH],
    count: usize,
}

impl Beat<'_> {
    /// How to wait for the next request. Sets up the calling thread for it.
    pub fn way(&mut self) -> Way {
        let now = self.rhythm.now.load(Ordering::Relaxed);
        let way = if now & 1 == 1 { Way::Asleep } else { Way::Awake };
        if self.now != Some(now) {
            (self.now, self.count) = (Some(now), 0);
            // Whoever comes first and gives way gives way to nobody.
            let priority = if way == Way::Asleep { Priority::First } else { Priority::Shared };
            if let Err(e) = set_priority(priority) {
                tracing::debug!(?priority, "the priority stays as it is: {e}");
            }
        }
        way
    }

    /// A request came after waiting for `gap`.
    pub fn note(&mut self, gap: Duration) {
        self.gaps[self.count] = u32::try_from(gap.as_nanos()).unwrap_or(u32::MAX);
        self.count += 1;
        if self.count < EPOCH {
            return;
        }
        self.count = 0;
        let (_, median, _) = self.gaps.select_nth_unstable(EPOCH / 2);
        if let Some(now) = self.now {
            self.rhythm.note(now, *median);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lives through `epochs` on a machine where the ways take `awake` and `asleep`; how many were asleep.
    fn live(found: &mut Found, way: &mut Way, epochs: u32, [awake, asleep]: [u32; 2]) -> u32 {
        let mut slept = 0;
        for _ in 0..epochs {
            slept += u32::from(*way == Way::Asleep);
            let median = if *way == Way::Awake { awake } else { asleep };
            *way = found.after(median).unwrap_or(*way);
        }
        slept
    }

    #[test]
    fn the_better_way_is_found_and_kept_until_the_other_is_better() {
        let rhythm = Rhythm::default();
        let mut found = rhythm.found.lock().expect("nobody else has it");
        let mut way = Way::Asleep;
        let quiet = [5_000, 25_000];
        let busy = [110_000, 12_000];
        assert!(live(&mut found, &mut way, 1000, quiet) < 20, "awake when nothing else is to do");
        assert!(live(&mut found, &mut way, 1000, busy) > 980, "asleep when all is busy");
        assert!(live(&mut found, &mut way, 3000, quiet) < 1100, "and back, when the other way is tried again");
        assert!(live(&mut found, &mut way, 3000, [8_000, 8_000]) < 30, "no better is not better");
    }
}
