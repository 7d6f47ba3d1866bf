//! Timed commits: changes that no process waits for go to the backing after the commit interval, or earlier when much
//! has changed; and a log goes into the checkpoint.
//!
//! Every attached process but guests has these tasks, and any of them does the work that is due: the death of one leaves no interval
//! without commits. Guests ask for the commits that they wait for. Checkpoints have a task of their own, since a commit must not wait for
//! one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::report::Job;
use super::task::{Next, Plan, Rest, Run, Task};
use crate::config::CommitInterval;
use conquest_fs::error::Result;
use conquest_fs::node::Fs;
use conquest_fs::wakeup::Wakeup;
use pram::priority::ThreadPriority;

/// The longest interval between two looks whether a commit is due.
const TICK: Duration = Duration::from_millis(100);
/// Commits that only volume makes due take one part in so many of the time.
const SHARE: u32 = 10;

/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Bytes changed after which a commit is due before its time, if a process may come to wait for it: a larger one takes
/// longer. If none will, bytes that change again within the interval need not be written twice.
fn much(fs: &Fs, awaited: bool) -> u64 {
    match awaited {
        true => (fs.memory().size() / 32).clamp(16 << 20, 64 << 20),
        false => u64::MAX,
    }
}

/// The tasks; dropping it stops them.
pub struct CommitTimer {
    fs: Arc<Fs>,
    interval: Arc<Interval>,
    pub commits: Task,
    pub checkpoints: Task,
}

impl CommitTimer {
    pub fn start(fs: &Arc<Fs>, interval: CommitInterval) -> Result<CommitTimer> {
        let interval = Arc::new(Interval::new(interval));
        let (of, now) = (fs.clone(), interval.clone());
        let plan = Plan { job: Job::Commit, first: interval.tick(), nice: 0 };
        let (mut disk, mut priority) = (Disk::default(), ThreadPriority::default());
        let rest = UntilAsked { fs: fs.clone(), seen: AtomicU32::new(0) };
        let commits = Task::start(fs, plan, rest, move |run| {
            disk.unless_full(&of, now.tick(), || commit(&of, &mut priority, (now.get().into(), now.tick()), run))
        })?;
        let (of, plan) = (fs.clone(), Plan { job: Job::Checkpoint, first: TICK, nice: 0 });
        let mut disk = Disk::default();
        let checkpoints = Task::start(fs, plan, Arc::<Wakeup>::default(), move |run| {
            disk.unless_full(&of, TICK, || checkpoint(&of, run))
        })?;
        Ok(CommitTimer { fs: fs.clone(), interval, commits, checkpoints })
    }

    /// The commit interval.
    pub fn interval(&self) -> CommitInterval {
        self.interval.get()
    }

    /// Changes the interval, from the next tick on.
    pub fn set_interval(&self, interval: CommitInterval) {
        self.interval.set(interval);
    }
}

/// Until a guest asks for a commit.
struct UntilAsked {
    fs: Arc<Fs>,
    seen: AtomicU32,
}

impl Rest for UntilAsked {
    fn rest(&self, most: Duration) {
        if let Some(backing) = backing::of(self.fs.session()) {
            backing.wait_until_asked(self.fs.session(), &self.seen, most);
        }
    }

    fn wake(&self) {
        if let Some(backing) = backing::of(self.fs.session()) {
            backing.ring(self.fs.session());
        }
    }
}

/// An interval that changes while the tasks run: the bits of its seconds.
struct Interval(AtomicU64);

impl Interval {
    fn new(interval: CommitInterval) -> Interval {
        Interval(AtomicU64::new(f64::from(interval).to_bits()))
    }

    fn get(&self) -> CommitInterval {
        // None but intervals are stored.
        CommitInterval::try_from(f64::from_bits(self.0.load(Ordering::Relaxed))).unwrap_or(CommitInterval::SHORTEST)
    }

    /// How long to rest until the next look.
    fn tick(&self) -> Duration {
        TICK.min(self.get().into())
    }

    fn set(&self, interval: CommitInterval) {
        self.0.store(f64::from(interval).to_bits(), Ordering::Relaxed);
    }
}

impl Drop for CommitTimer {
    /// Ends the throttle, so that their present work ends soon.
    fn drop(&mut self) {
        if let Some(backing) = backing::of(self.fs.session()) {
            backing.unthrottle();
        }
    }
}

/// The disk of the backing, which may be full.
#[derive(Default)]
struct Disk {
    tried: Option<Instant>,
}

impl Disk {
    /// Does `work`; while the disk is full, only every [`RETRY`].
    fn unless_full(&mut self, fs: &Fs, tick: Duration, work: impl FnOnce() -> Next) -> Next {
        if !fs.session().runtime().backing_full() {
            self.tried = None;
        } else if self.tried.is_some_and(|tried| fs.session().clock().since(tried) < RETRY) {
            return Next::waiting(tick, "the disk of the backing is full");
        } else {
            self.tried = Some(fs.session().clock().instant());
        }
        work()
    }
}

/// Commits if that is due or a guest asks. While guests ask, this thread comes first where no processor is idle: else they would
/// also wait for the time slices of other programs.
fn commit(fs: &Fs, priority: &mut ThreadPriority, (interval, tick): (Duration, Duration), run: &Run) -> Next {
    let Some(backing) = backing::of(fs.session()).filter(|_| fs.session().runtime().backing_failure().is_none()) else {
        return Next::waiting(tick, "the backing has failed");
    };
    match backing.commit_if_asked(fs.session()) {
        Ok(true) => {
            priority.review();
            return Next::NOW;
        }
        Ok(false) => {}
        Err(e) => run.note_failure("a commit", &e),
    }
    let pending = backing.pending(fs.session()).unwrap_or(u64::MAX);
    let wait = match pending {
        0 => return Next::after(tick, "nothing has changed"),
        // If much changes all the time, commits must not take more than a share of it.
        bytes if bytes >= much(fs, backing.is_awaited()) => (backing.takes(fs.session()) * SHARE).min(interval),
        _ => interval,
    };
    priority.come_among_others();
    // A commit that fails reports that to every process, and to the log, by itself.
    if let Err(e) = backing.commit_if_due(fs.session(), wait.as_nanos() as u64) {
        run.note_failure("a commit", &e);
    }
    Next::after(tick, "the next commit is due later")
}

fn checkpoint(fs: &Fs, run: &Run) -> Next {
    if let Some(Err(e)) = backing::of(fs.session()).map(|backing| backing.checkpoint_if_due(fs.session())) {
        run.note_failure("a checkpoint", &e);
    }
    Next::after(TICK, "the next checkpoint is due later")
}
