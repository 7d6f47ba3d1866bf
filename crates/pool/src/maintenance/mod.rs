//! Background work.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | all tasks of a process; the role that one attached process at a time has, until another takes over when it detaches or dies; giving back the memory of freed inodes; beginning a new epoch if no commits do |
//! | [`task`] | how a task runs, rests, is woken and stopped |
//! | [`report`] | what each task does, in the shared state, where `status` reads it |
//! | [`dead_processes`] | noticing dead processes, and sweeping what they left |
//! | [`memory`] | memory ahead of need; by every process |
//! | [`commit_timer`] | commits in time, and checkpoints; by every process |
//! | [`segments`] | content of large files: write-back, eviction, cleaning; by every process |
//! | [`disks`] | lacking replicas, regions that leave, balance, scrubbing; by the process with the role |
//! | [`compression`] | compressing small files that are not in use, and packing inodes; by the process with the role |
//!
//! The unused tails of files are known only to the process that appended to them: each process's own task gives them back.

pub mod commit_timer;
mod compression;
mod dead_processes;
mod disks;
mod memory;
pub mod report;
mod segments;
pub mod task;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use exraid::duplex::Duplex;

use crate::config::Config;
use crate::options::OpenOptions;
use commit_timer::CommitTimer;
use conquest_fs::error::Result;
use conquest_fs::node::Fs;
use conquest_fs::wakeup::Wakeup;
use dead_processes::Reaper;
use report::{Job, TaskState};
use task::{Next, Plan, Run, Task};

/// The tasks of a process that has a pool open. They stop in this order when it is dropped.
#[derive(Default)]
pub struct Threads {
    disks: Option<Task>,
    segments: Option<Task>,
    /// By this process for itself, and for all while it has the role.
    upkeep: Vec<Task>,
    pub commits: Option<CommitTimer>,
    /// Those for disks too, if there are any.
    is_for_disks: bool,
}

impl Threads {
    pub fn start(
        fs: &Arc<Fs>,
        dir: &Path,
        config: &Config,
        how: &OpenOptions,
        disks_are_read_only: bool,
        duplex: Option<&Arc<Duplex>>,
    ) -> Result<Threads> {
        let interval = how.commit_interval.unwrap_or_else(|| config.interval());
        let mut threads = Threads::default();
        if !how.read_only {
            let memory = memory::start(fs)?;
            threads.upkeep.push(compression::start(fs, config.compression)?);
            threads.upkeep.push(memory);
            threads.upkeep.push(start(fs, interval.into())?);
        }
        if backing::of(fs.session()).is_some() {
            threads.commits = Some(CommitTimer::start(fs, interval)?);
        }
        if !how.read_only && !disks_are_read_only {
            threads.segments = segments::start(fs)?;
            threads.is_for_disks = !how.without_disks;
            if !how.without_disks {
                threads.disks = disks::start(fs, dir, duplex)?;
            }
        }
        Ok(threads)
    }

    /// Do they do all background work that there is?
    pub fn do_all(&self) -> bool {
        !self.upkeep.is_empty() && self.is_for_disks
    }

    /// Stops writing to segments; false if nothing did.
    pub fn stop_segments(&mut self) -> bool {
        self.segments.take().is_some()
    }

    /// The state of each task.
    pub fn tasks(&self) -> Vec<TaskState> {
        let commits = self.commits.iter().flat_map(|timer| [&timer.commits, &timer.checkpoints]);
        self.disks.iter().chain(&self.segments).chain(&self.upkeep).chain(commits).map(Task::state).collect()
    }
}

/// Why a task waits: another process does its work.
const ELSEWHERE: &str = "another process has the role of maintenance";
/// The interval between its looks.
const TICK: Duration = Duration::from_secs(1);
/// Freed inodes after which empty inode blocks are looked for at once; fewer wait for a quiet tick.
const MANY_FREED: u64 = 4096;
/// Ticks between two looks for memory that is not needed.
const IDLE: u32 = 10;

/// `interval`: from epoch to epoch, if no commits to a backing begin a new one.
fn start(fs: &Arc<Fs>, interval: Duration) -> Result<Task> {
    let (fs, mut role) = (fs.clone(), None::<Role>);
    let plan = Plan { job: Job::Reclaim, first: TICK, nice: 0 };
    Task::start(&fs.clone(), plan, Arc::<Wakeup>::default(), move |run| {
        if let Err(e) = fs.trim_tails() {
            tracing::warn!("giving back unused tails: {e}");
            run.note_failure("giving back unused tails", &e);
        }
        if role.is_none() && fs.session().try_maintenance() {
            role = Some(Role::default());
        }
        let Some(role) = &mut role else { return Next::waiting(TICK, ELSEWHERE) };
        role.work(&fs, run);
        // A failure is reported to all processes and to the log where it occurs.
        if let Err(e) = fs.session().move_on_if_due(interval) {
            run.note_failure("moving the epoch on", &e);
        }
        Next::after(TICK, "the next look is due later")
    })
}

/// The state of the role from tick to tick.
#[derive(Default)]
struct Role {
    reaper: Reaper,
    /// Inodes freed in the pool: when blocks were given back, and at the last tick.
    given_at: u64,
    freed: u64,
    /// Groups that were empty at the last look, and ticks since then.
    idle: Vec<u64>,
    ticks: u32,
}

impl Role {
    fn work(&mut self, fs: &Fs, run: &Run) {
        self.reaper.work(fs, run);
        self.give_back(fs, run);
        self.give_memory_back(fs, run);
    }

    fn give_memory_back(&mut self, fs: &Fs, run: &Run) {
        self.ticks += 1;
        if self.ticks % IDLE == 0 {
            if let Err(e) = fs.session().give_idle_back(&mut self.idle) {
                run.failed("giving back memory", &e);
            }
        }
    }

    /// Gives back empty inode blocks after many deletions, or once deletions have ceased.
    fn give_back(&mut self, fs: &Fs, run: &Run) {
        let freed = fs.session().runtime().counted();
        let since = freed.wrapping_sub(self.given_at);
        let quiet = freed == self.freed;
        self.freed = freed;
        if since == 0 || (since < MANY_FREED && !quiet) {
            return;
        }
        self.given_at = freed;
        if let Err(e) = fs.give_back() {
            run.failed("giving back inode blocks", &e);
        }
    }
}
