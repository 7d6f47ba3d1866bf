//! Commits in time: what nobody waits for goes to the backing after the commit interval, or earlier when much
//! has changed; and what a log holds goes into the image.
//!
//! Every attached process has these threads, and any of them does what is due: there is no interval without
//! commits when one dies. Checkpoints have a thread of its own, since a commit must not wait for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::periodic::Periodic;
use crate::config::CommitInterval;
use conquest_fs::error::Result;
use conquest_fs::node::Fs;

/// How often it is looked whether a commit is due, at most.
const TICK: Duration = Duration::from_millis(100);
/// Commits that only volume makes due take one part in so many of the time.
const SHARE: u32 = 10;

/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Bytes changed after which a commit is due before its time, where somebody may come to wait for it: the more there is to
/// write, the longer. Where nobody will, what changes again within the interval need not be written twice.
fn much(fs: &Fs, awaited: bool) -> u64 {
    match awaited {
        true => (fs.memory().size() / 32).clamp(16 << 20, 64 << 20),
        false => u64::MAX,
    }
}

/// The threads; dropping it ends them.
pub struct CommitTimer {
    fs: Arc<Fs>,
    interval: Arc<Interval>,
    _commits: Periodic,
    _checkpoints: Periodic,
}

impl CommitTimer {
    pub fn start(fs: &Arc<Fs>, interval: CommitInterval) -> Result<CommitTimer> {
        let interval = Arc::new(Interval::new(interval));
        let (of, [now, then]) = (fs.clone(), [interval.clone(), interval.clone()]);
        let tick = move || TICK.min(now.get().into());
        let commits =
            Periodic::start("commits", tick, unless_full(of.clone(), move || commit(&of, then.get().into())))?;
        let of = fs.clone();
        let checkpoints = Periodic::start("checkpoints", || TICK, unless_full(of.clone(), move || checkpoint(&of)))?;
        Ok(CommitTimer { fs: fs.clone(), interval, _commits: commits, _checkpoints: checkpoints })
    }

    /// Seconds from commit to commit where nobody waits for one.
    pub fn interval(&self) -> CommitInterval {
        self.interval.get()
    }

    /// Another interval, from the next tick on.
    pub fn set_interval(&self, interval: CommitInterval) {
        self.interval.set(interval);
    }
}

/// An interval that changes while the threads run: the bits of its seconds.
struct Interval(AtomicU64);

impl Interval {
    fn new(interval: CommitInterval) -> Interval {
        Interval(AtomicU64::new(f64::from(interval).to_bits()))
    }

    fn get(&self) -> CommitInterval {
        // None but intervals are stored.
        CommitInterval::try_from(f64::from_bits(self.0.load(Ordering::Relaxed))).unwrap_or(CommitInterval::SHORTEST)
    }

    fn set(&self, interval: CommitInterval) {
        self.0.store(f64::from(interval).to_bits(), Ordering::Relaxed);
    }
}

impl Drop for CommitTimer {
    /// What they are at ends soon.
    fn drop(&mut self) {
        if let Some(backing) = backing::of(self.fs.session()) {
            backing.hurry();
        }
    }
}

/// Does `work`, while the disk of the backing is full only every [`RETRY`].
fn unless_full(fs: Arc<Fs>, mut work: impl FnMut() + Send + 'static) -> impl FnMut() + Send + 'static {
    let mut tried: Option<Instant> = None;
    move || {
        if !fs.session().runtime().backing_full() {
            tried = None;
        } else if tried.is_some_and(|tried| tried.elapsed() < RETRY) {
            return;
        } else {
            tried = Some(Instant::now());
        }
        work();
    }
}

fn commit(fs: &Fs, interval: Duration) {
    let Some(backing) = backing::of(fs.session()).filter(|_| fs.session().runtime().backing_failure().is_none()) else {
        return;
    };
    let pending = backing.pending(fs.session()).unwrap_or(u64::MAX);
    let wait = match pending {
        0 => return,
        // Where much changes all the time, commits must not take more than a share of it.
        bytes if bytes >= much(fs, backing.is_awaited()) => (backing.takes(fs.session()) * SHARE).min(interval),
        _ => interval,
    };
    // Whoever fails tells every process and the log.
    let _ = backing.commit_if_due(fs.session(), wait.as_nanos() as u64);
}

fn checkpoint(fs: &Fs) {
    if let Some(backing) = backing::of(fs.session()) {
        let _ = backing.checkpoint_if_due(fs.session());
    }
}
