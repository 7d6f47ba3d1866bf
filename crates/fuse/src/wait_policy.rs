//! How queues wait for the next request: in the way that brings callers back sooner, found by trying.
//!
//! - *Last*: the queue sleeps, and its thread has the lowest priority. The kernel then takes a CPU where no other
//!   thread runs for idle, and leaves the caller there when the reply wakes it. With any other priority of the queue,
//!   the kernel moves the caller with each reply to an idle CPU, which has to be woken (on two virtual CPUs 13 us a
//!   request against 30 to 100).
//! - *Awake*, where threads may not raise their priority again, which *last* needs: the queue stays awake for a while
//!   and yields to its caller again and again. Most of the time this has the same effect.
//! - *First*: the queue sleeps, and precedes all other threads once there is a request. On a busy machine a thread that
//!   comes last or yields waits for the time slices of others, each time (50 ms or 110 us a request against 15, and a
//!   commit needs two waits).
//!
//! Where no processor is idle, by the host's count of running threads, queues come first: then the kernel moves no
//! caller. Elsewhere nothing tells beforehand which way is better. An *epoch* is a number of requests of a queue. Its
//! median time from one request to the next measures the way, since the median ignores the caller's pauses. Now and
//! then an epoch tries the other way: less often the longer nothing changes, and at once when the median suddenly
//! grows. A queue that had to wait for a processor while it yielded stops yielding at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pram::host_cpus::{Delay, Host, Looks};
use pram::priority::{self, may_come_last, Priority};

/// The requests of an epoch; and of one that tries the other way, which may be far worse.
const EPOCH: usize = 32;
const TRIAL: usize = 12;
/// Longest median that is of use, in nanoseconds: a slower caller does not wait for us.
const BUSY: u32 = 5_000_000;
/// A queue that waited so long for a processor waited for the time slices of a computing thread. (A thread that comes
/// last may wait 50 ms at each request, so the queue does not wait for the end of the epoch.)
const HELD: Duration = Duration::from_millis(1);
/// Epochs until the other way is tried, at first and at most.
const TRIALS: (u32, u32) = (8, 1024);

/// The ways between which a queue chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Last or awake, by what is possible.
    Yielding,
    First,
}

impl Way {
    fn other(self) -> Way {
        match self {
            Way::Yielding => Way::First,
            Way::First => Way::Yielding,
        }
    }
}

/// The state of the policy that the queues of a mount share.
pub struct WaitPolicy {
    host: Host,
    /// Queues that yield come last; else they stay awake.
    last: bool,
    /// Bit 0: the way, 1 is first. Bit 1: it is a trial. The rest counts changes.
    now: AtomicU32,
    found: Mutex<Found>,
}

struct Found {
    looks: Looks,
    /// The better way as far as is known, and its median, 0 if unknown.
    best: Way,
    median: u32,
    /// The other way is being tried.
    trying: bool,
    /// Epochs until the next trial, and the number of the last pause.
    left: u32,
    pause: u32,
}

impl Default for WaitPolicy {
    fn default() -> WaitPolicy {
        let host = Host::default();
        let found =
            Found { looks: Looks::default(), best: Way::First, median: 0, trying: false, left: 1, pause: TRIALS.0 };
        WaitPolicy { host, last: may_come_last(), now: AtomicU32::new(1), found: Mutex::new(found) }
    }
}

impl WaitPolicy {
    /// The state of one queue.
    pub fn of_queue(&self) -> QueueWait<'_> {
        let delay = Delay::of_this_thread();
        let periods = [0; EPOCH];
        QueueWait { policy: self, delay, now: None, last: Instant::now(), periods, count: 0 }
    }

    fn change(&self, way: Way, trial: bool) {
        let count = self.now.load(Ordering::Relaxed) >> 2;
        let bits = u32::from(trial) << 1 | u32::from(way == Way::First);
        self.now.store(count.wrapping_add(1) << 2 | bits, Ordering::Relaxed);
    }

    /// Records an epoch that began at `now` and kept one way throughout.
    fn note(&self, now: u32, median: u32) {
        let all_busy = self.host.all_busy();
        let mut found = self.found.lock().unwrap_or_else(|e| e.into_inner());
        if self.now.load(Ordering::Relaxed) != now {
            return;
        }
        if let Some(way) = found.after(all_busy, median) {
            self.change(way, found.trying);
        }
    }

    /// Records that other threads held up a queue that yields, as of `now`.
    fn note_held(&self, now: u32) {
        let mut found = self.found.lock().unwrap_or_else(|e| e.into_inner());
        if self.now.load(Ordering::Relaxed) == now {
            found.held();
            self.change(Way::First, false);
        }
    }
}

impl Found {
    /// The way to go on after an epoch, if it changes, or is no trial any more.
    fn after(&mut self, all_busy: bool, median: u32) -> Option<Way> {
        if self.looks.add(all_busy) {
            return self.come_first();
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
            return Some(self.best);
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

    /// Makes queues come first, since no processor is idle.
    fn come_first(&mut self) -> Option<Way> {
        let now = if self.trying { self.best.other() } else { self.best };
        (self.best, self.median, self.trying) = (Way::First, 0, false);
        (self.pause, self.left) = (TRIALS.0, 1);
        (now != Way::First).then_some(Way::First)
    }

    /// Other threads held the queue up: it does not yield for a while.
    fn held(&mut self) {
        self.pause = match self.trying && self.best == Way::First {
            true => (self.pause * 2).min(TRIALS.1),
            false => TRIALS.0,
        };
        (self.best, self.median, self.trying, self.left) = (Way::First, 0, false, self.pause);
    }
}

/// The way in the word of a policy.
fn way_of(word: u32) -> Way {
    match word & 1 {
        1 => Way::First,
        _ => Way::Yielding,
    }
}

/// The length of an epoch that begins with that word.
fn epoch_of(word: u32) -> usize {
    match word & 2 {
        2 => TRIAL,
        _ => EPOCH,
    }
}

/// One queue's state in the policy of its mount.
pub struct QueueWait<'a> {
    policy: &'a WaitPolicy,
    delay: Delay,
    /// The word of the policy that this thread is set up for.
    now: Option<u32>,
    last: Instant,
    /// Nanoseconds from one request to the next.
    periods: [u32; EPOCH],
    count: usize,
}

impl QueueWait<'_> {
    /// Sets up the calling thread for its wait for the next request. Should it stay awake?
    pub fn prepare(&mut self) -> bool {
        let now = self.policy.now.load(Ordering::Relaxed);
        let way = way_of(now);
        if self.now != Some(now) {
            (self.now, self.count) = (Some(now), 0);
            priority::set(match way {
                Way::First => Priority::First,
                Way::Yielding if self.policy.last => Priority::Last,
                // A thread of the first priority would yield to nobody.
                Way::Yielding => Priority::Shared,
            });
        }
        way == Way::Yielding && !self.policy.last
    }

    /// A request came, or another completion.
    pub fn note(&mut self) {
        let now = Instant::now();
        let period = now - std::mem::replace(&mut self.last, now);
        if period >= HELD && self.delay.grew_by() >= HELD {
            if let Some(now) = self.now.filter(|now| way_of(*now) == Way::Yielding) {
                self.policy.note_held(now);
            }
        }
        self.periods[self.count] = u32::try_from(period.as_nanos()).unwrap_or(u32::MAX);
        self.count += 1;
        let epoch = self.now.map_or(EPOCH, epoch_of);
        if self.count < epoch {
            return;
        }
        self.count = 0;
        // The short wait of each request in an epoch is no holding up.
        self.delay.grew_by();
        let (_, median, _) = self.periods[..epoch].select_nth_unstable(epoch / 2);
        if let Some(now) = self.now {
            self.policy.note(now, *median);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `epochs` in which the ways take `yielding` and `first`. Returns in how many of them queues came first.
    fn live(found: &mut Found, way: &mut Way, all_busy: bool, epochs: u32, [yielding, first]: [u32; 2]) -> u32 {
        let mut came_first = 0;
        for _ in 0..epochs {
            came_first += u32::from(*way == Way::First);
            let median = if *way == Way::Yielding { yielding } else { first };
            *way = found.after(all_busy, median).unwrap_or(*way);
        }
        came_first
    }

    #[test]
    fn the_better_way_is_found_and_kept_until_the_other_is_better() {
        let policy = WaitPolicy::default();
        let mut found = policy.found.lock().expect("nobody else has it");
        let mut way = Way::First;
        let quiet = [5_000, 25_000];
        let pinned = [110_000, 12_000];
        assert!(live(&mut found, &mut way, false, 1000, quiet) < 20, "yielding when nothing else is to do");
        assert!(live(&mut found, &mut way, false, 1000, pinned) > 980, "first where somebody computes");
        assert!(live(&mut found, &mut way, false, 3000, quiet) < 1100, "and back, when the other way is tried again");
        assert!(live(&mut found, &mut way, false, 3000, [8_000, 8_000]) < 30, "no better is not better");
        assert!(live(&mut found, &mut way, true, 1000, quiet) > 990, "first where all compute");
        assert!(live(&mut found, &mut way, false, 1000, [9_000_000, 6_000_000]) > 990, "a slow caller changes nothing");
    }

    #[test]
    fn a_trial_that_succeeds_is_none_any_more() {
        let policy = WaitPolicy { host: Host::unknown(), ..WaitPolicy::default() };
        let word = || policy.now.load(Ordering::Relaxed);
        policy.note(word(), 30_000);
        assert_eq!((way_of(word()), epoch_of(word())), (Way::Yielding, TRIAL));
        policy.note(word(), 10_000);
        assert_eq!((way_of(word()), epoch_of(word())), (Way::Yielding, EPOCH));
    }

    #[test]
    fn who_is_held_up_comes_first_and_tries_less_and_less_often() {
        let policy = WaitPolicy::default();
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let mut found = policy.found.lock().expect("nobody else has it");
            let epochs = (1..).find(|_| found.after(false, 10_000) == Some(Way::Yielding));
            policy.change(Way::Yielding, true);
            drop(found);
            policy.note_held(policy.now.load(Ordering::Relaxed));
            assert_eq!(way_of(policy.now.load(Ordering::Relaxed)), Way::First);
            pauses.extend(epochs);
        }
        assert_eq!(pauses, [1, 16, 32, 64]);
        let old = policy.now.load(Ordering::Relaxed);
        policy.change(Way::Yielding, true);
        policy.note_held(old);
        assert_eq!(way_of(policy.now.load(Ordering::Relaxed)), Way::Yielding, "that was before the change");
    }
}
