//! How queues wait for the next request: the way that lets callers come back sooner, found by trying.
//!
//! - *Awake*, for a while: the queue gives way to its caller again and again. On a machine with nothing else to do
//!   the caller then stays on its CPU; if the queue slept, the CPU would be idle, and the caller sent from one idle
//!   CPU to the other with each request (on two virtual CPUs 10 us a request against 30).
//! - *Asleep*, and before everybody else once there is a request. On a busy machine whoever gives way waits for
//!   the time slices of others, each time (110 us a request against 15, and a commit is waited for twice).
//!
//! Where no processor is idle, as the host's count of running threads says, queues sleep: nobody is sent away then.
//! Elsewhere nothing says beforehand which it is. An *epoch* is some requests of a queue; the median time from one
//! request to the next tells how good the way was, whatever pauses the caller makes. Now and then, less often the
//! longer nothing changes, and when it suddenly takes longer, an epoch tries the other way.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use crate::sys::{set_priority, Priority};

const LOADAVG: &str = "/proc/loadavg";
/// Requests of an epoch.
const EPOCH: usize = 32;
/// Longest median that says anything, nanoseconds: a caller that takes so long does not wait for us.
const BUSY: u32 = 5_000_000;
/// Epochs until the other way is tried, at first and at most.
const TRIALS: (u32, u32) = (8, 1024);
/// Of the last 8 looks at the host, this many that saw no processor idle count as busy.
const MANY: u32 = 4;
/// Calls of [`Standing::review`] from one look to the next.
const CALLS: u32 = 4;

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
    host: Host,
    /// Bit 0: the way, 1 is asleep. The rest counts changes.
    now: AtomicU32,
    found: Mutex<Found>,
}

struct Found {
    looks: Looks,
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
        let host = Host::default();
        let found =
            Found { looks: Looks::default(), best: Way::Asleep, median: 0, trying: false, left: 1, pause: TRIALS.0 };
        Rhythm { host, now: AtomicU32::new(1), found: Mutex::new(found) }
    }
}

impl Rhythm {
    /// A queue's part in it.
    pub fn beat(&self) -> Beat<'_> {
        Beat { rhythm: self, now: None, last: Instant::now(), periods: [0; EPOCH], count: 0 }
    }

    fn change(&self, way: Way) {
        let count = self.now.load(Ordering::Relaxed) >> 1;
        self.now.store(count.wrapping_add(1) << 1 | u32::from(way == Way::Asleep), Ordering::Relaxed);
    }

    /// An epoch has ended that began at `now` and was all of the same way.
    fn note(&self, now: u32, median: u32) {
        let all_busy = self.host.all_busy();
        let mut found = self.found.lock().unwrap_or_else(|e| e.into_inner());
        if self.now.load(Ordering::Relaxed) != now {
            return;
        }
        if let Some(way) = found.after(all_busy, median) {
            self.change(way);
        }
    }
}

impl Found {
    /// The way to go on after an epoch, if it is to change.
    fn after(&mut self, all_busy: bool, median: u32) -> Option<Way> {
        if self.looks.add(all_busy) {
            let now = if self.trying { self.best.other() } else { self.best };
            (self.best, self.median, self.trying) = (Way::Asleep, 0, false);
            (self.pause, self.left) = (TRIALS.0, 1);
            return (now != Way::Asleep).then_some(Way::Asleep);
        }
        if median > BUSY && !self.trying {
            return None;
        }
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

/// What the host says of its processors.
struct Host {
    /// Where it says how many threads run; without it, ways are only tried.
    running: Option<File>,
    processors: u32,
}

impl Default for Host {
    fn default() -> Host {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Host { running: File::open(LOADAVG).ok(), processors }
    }
}

impl Host {
    /// Do threads run on all processors? The one that asks is not counted: its caller may still be where it was when it
    /// asked, or another queue be awake.
    fn all_busy(&self) -> bool {
        let mut text = [0; 64];
        let len = self.running.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        running_in(&text[..len]).is_some_and(|running| running > self.processors)
    }
}

/// The last looks at the host, a bit each: all processors were busy.
#[derive(Default)]
struct Looks(u8);

impl Looks {
    /// One more; are they busy for the most part?
    fn add(&mut self, all_busy: bool) -> bool {
        self.0 = self.0 << 1 | u8::from(all_busy);
        self.0.count_ones() >= MANY
    }
}

/// How a thread that sleeps until there is something to do stands among others: before them where all processors are
/// busy. Elsewhere such a thread would be sent from one to the other (a request over /dev/fuse took twice as long).
#[derive(Default)]
pub struct Standing {
    host: Host,
    looks: Looks,
    calls: u32,
    now: Option<Priority>,
}

impl Standing {
    /// To be called now and then by the thread that it is of.
    pub fn review(&mut self) {
        self.calls = self.calls.wrapping_add(1);
        if self.calls % CALLS != 0 {
            return;
        }
        let priority = if self.looks.add(self.host.all_busy()) { Priority::First } else { Priority::Shared };
        if self.now.replace(priority) != Some(priority) {
            set(priority);
        }
    }
}

fn set(priority: Priority) {
    if let Err(e) = set_priority(priority) {
        tracing::debug!(?priority, "the priority stays as it is: {e}");
    }
}

/// How many threads run, from such as `0.52 0.58 0.59 2/613 12345`.
fn running_in(loadavg: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(loadavg).ok()?;
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// One queue's part in the rhythm of its mount.
pub struct Beat<'a> {
    rhythm: &'a Rhythm,
    /// The word of the rhythm that this thread is set up for.
    now: Option<u32>,
    last: Instant,
    /// Nanoseconds from one request to the next.
    periods: [u32; EPOCH],
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
            set(priority);
        }
        way
    }

    /// A request came, or another completion.
    pub fn note(&mut self) {
        let now = Instant::now();
        let period = now - std::mem::replace(&mut self.last, now);
        self.periods[self.count] = u32::try_from(period.as_nanos()).unwrap_or(u32::MAX);
        self.count += 1;
        if self.count < EPOCH {
            return;
        }
        self.count = 0;
        let (_, median, _) = self.periods.select_nth_unstable(EPOCH / 2);
        if let Some(now) = self.now {
            self.rhythm.note(now, *median);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lives through `epochs` where the ways take `awake` and `asleep`; how many were asleep.
    fn live(found: &mut Found, way: &mut Way, all_busy: bool, epochs: u32, [awake, asleep]: [u32; 2]) -> u32 {
        let mut slept = 0;
        for _ in 0..epochs {
            slept += u32::from(*way == Way::Asleep);
            let median = if *way == Way::Awake { awake } else { asleep };
            *way = found.after(all_busy, median).unwrap_or(*way);
        }
        slept
    }

    #[test]
    fn the_better_way_is_found_and_kept_until_the_other_is_better() {
        let rhythm = Rhythm::default();
        let mut found = rhythm.found.lock().expect("nobody else has it");
        let mut way = Way::Asleep;
        let quiet = [5_000, 25_000];
        let pinned = [110_000, 12_000];
        assert!(live(&mut found, &mut way, false, 1000, quiet) < 20, "awake when nothing else is to do");
        assert!(live(&mut found, &mut way, false, 1000, pinned) > 980, "asleep where somebody computes");
        assert!(live(&mut found, &mut way, false, 3000, quiet) < 1100, "and back, when the other way is tried again");
        assert!(live(&mut found, &mut way, false, 3000, [8_000, 8_000]) < 30, "no better is not better");
        assert!(live(&mut found, &mut way, true, 1000, quiet) > 990, "asleep where all compute");
        assert!(live(&mut found, &mut way, false, 1000, [9_000_000, 6_000_000]) > 990, "a slow caller changes nothing");
    }

    #[test]
    fn the_host_says_how_many_run() {
        assert_eq!(running_in(b"0.52 0.58 0.59 2/613 12345\n"), Some(2));
        assert_eq!(running_in(b"0.52 0.58"), None);
        assert_eq!(running_in(b""), None);
        let host = Host { processors: 0, ..Host::default() };
        assert!(host.all_busy(), "this thread runs");
    }
}
