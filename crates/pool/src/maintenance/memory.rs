//! Memory ahead of need: every process that does background work takes some when little is left, so that no operation has to wait for it.
//! Guests wake this task too when they lack room, on disks or in memory, that another task makes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use super::report::Job;
use super::task::{Next, Plan, Rest, Task};
use conquest_fs::error::Result;
use conquest_fs::node::Fs;

/// How long it rests unless it is woken: a host that had no memory may have some again.
const REST: Duration = Duration::from_secs(1);

/// Rests until an operation of any process finds little memory left.
struct UntilWanted {
    fs: Arc<Fs>,
    seen: AtomicU32,
}

impl Rest for UntilWanted {
    fn rest(&self, most: Duration) {
        let mut seen = self.seen.load(Ordering::Relaxed);
        self.fs.session().wait_supply(&mut seen, most.as_nanos() as i64);
        self.seen.store(seen, Ordering::Relaxed);
    }

    fn wake(&self) {
        self.fs.session().ring_supply();
    }
}

pub fn start(fs: &Arc<Fs>) -> Result<Task> {
    let (rest, fs) = (UntilWanted { fs: fs.clone(), seen: AtomicU32::new(0) }, fs.clone());
    let plan = Plan { job: Job::Preallocate, first: Duration::ZERO, nice: 0 };
    let mut asked = 0;
    Task::start(&fs.clone(), plan, rest, move |run| {
        let before = std::mem::replace(&mut asked, fs.session().runtime().room_asked());
        if let Some(union) = fs.union().filter(|_| asked != before) {
            union.wake();
        }
        if let Err(e) = fs.session().supply_soon() {
            run.failed("taking memory", &e);
        }
        Next::after(REST, "there is enough memory, or no more")
    })
}
