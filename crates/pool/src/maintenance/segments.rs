//! Content of large files: write-back, eviction, and cleaning of its segments (see [`conquest_fs::ubj`]).
//!
//! Every process that may write has this task, and writes and evicts; the one with the role of maintenance cleans.

use std::sync::Arc;
use std::time::Duration;

use super::report::Job;
use super::task::{Next, Plan, Task};
use conquest_fs::error::Result;
use conquest_fs::node::Fs;
use conquest_fs::ubj::Union;

/// The interval between its own looks.
const TICK: Duration = Duration::from_millis(200);
/// How long it rests after a failure.
const REST: Duration = Duration::from_secs(1);

/// While it exists, other threads may wait for the task.
struct Attended(Arc<Union>);

impl Attended {
    fn begin(union: &Arc<Union>) -> Attended {
        union.set_thread(true);
        Attended(union.clone())
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.0.set_thread(false);
    }
}

/// Starts the task; none if the pool has no disks.
pub fn start(fs: &Arc<Fs>) -> Result<Option<Task>> {
    let Some(union) = fs.union() else { return Ok(None) };
    let (fs, attended, mut written) = (fs.clone(), Attended::begin(union), fs.session().clock().instant());
    let plan = Plan { job: Job::WriteBack, first: Duration::ZERO, nice: 0 };
    let task = Task::start(&fs.clone(), plan, union.wakeup().clone(), move |run| {
        let (cleans, asked) = (fs.session().try_maintenance(), fs.session().runtime().room_asked());
        match attended.0.work(&fs, &mut written, cleans, &|| run.is_stopped()) {
            Ok(true) => Next::NOW,
            Ok(false) => {
                fs.session().runtime().note_room_made(asked);
                Next::after(TICK, "there is nothing to write or to clean")
            }
            Err(e) => {
                run.failed("writing and cleaning segments", &e);
                Next::after(REST, "the last run failed")
            }
        }
    })?;
    Ok(Some(task))
}
