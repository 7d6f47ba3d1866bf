//! Compression of small files that are not in use, and packing of inodes and names, by age and by how full memory is, within a share of one
//! processor.
//!
//! One process of a pool does it, the first to take the role; each process itself makes plain again the files that it reads often. A round
//! goes over the inode table, and packs the inodes that it has passed; between rounds the task rests, unless memory is short. It works for
//! some milliseconds and then pauses to stay within its share, and its thread has low priority: on busy processors, others come first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pram::budget::Budget;
use pram::CHUNK;

use super::report::Job;
use super::task::{Next, Plan, Run, Task};
use super::ELSEWHERE;
use crate::CompressionConfig;
use conquest_fs::attr::Time;
use conquest_fs::compress::Compressor;
use conquest_fs::error::{Error, Result};
use conquest_fs::layout::PER_BLOCK;
use conquest_fs::node::{now, Fs, Packed};
use conquest_fs::wakeup::Wakeup;

/// The interval between its looks.
const TICK: Duration = Duration::from_secs(1);
/// Between two rounds it rests for the time after which a file counts as warm, divided by this, within these bounds.
const ROUNDS: u32 = 8;
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const ROUND: &str = "the next round is due later";
/// The thread's `nice` value.
const NICE: i32 = 10;
/// Inodes are packed some blocks at a time: each time waits for operations under way.
const BLOCKS: u64 = 1024;
/// Inodes from one report of progress to the next.
const REPORTED: u64 = 256;
/// The interval between walks that see whether a dictionary is due.
const TRAINING: Duration = Duration::from_secs(600);

pub fn start(fs: &Arc<Fs>, config: CompressionConfig) -> Result<Task> {
    if config.share() == 0 {
        fs.forbid_on_demand();
    }
    let mut work = Work { fs: fs.clone(), config, next: None, trained: None, profiled: None };
    let plan = Plan { job: Job::Compression, first: TICK, nice: NICE };
    Task::start(fs, plan, Arc::<Wakeup>::default(), move |run| work.tick(run))
}

struct Work {
    fs: Arc<Fs>,
    config: CompressionConfig,
    /// When the next round begins.
    next: Option<Instant>,
    /// The time of the last walk for a dictionary. There is none before there is anything to compress with it.
    trained: Option<Instant>,
    /// The same for a profile of inodes with times in seconds.
    profiled: Option<Instant>,
}

impl Work {
    fn now(&self) -> Instant {
        self.fs.session().clock().instant()
    }

    fn tick(&mut self, run: &Run) -> Next {
        if let Err(e) = self.fs.expand_hot() {
            tell(run, "making often read content plain", &e);
        }
        if self.config.share() == 0 {
            return Next::after(TICK, "its share is 0");
        }
        if !self.fs.session().try_maintenance() {
            return Next::waiting(TICK, ELSEWHERE);
        }
        let is_tight = self.is_tight();
        if !is_tight && self.next.is_some_and(|next| self.now() < next) {
            return Next::after(TICK, ROUND);
        }
        let again = self.round(run, is_tight).unwrap_or_else(|e| {
            tell(run, "compressing what nobody uses", &e);
            false
        });
        let rest = (self.config.plan().warm / ROUNDS).clamp(REST.0, REST.1);
        self.next = (!again).then(|| self.now() + rest);
        Next::after(TICK, ROUND)
    }

    /// Whether so much of the memory is in use that young files are compressed too.
    fn is_tight(&self) -> bool {
        let session = self.fs.session();
        let rt = session.runtime();
        let all = session.memory().geo.heap_chunks(session.memory().size()) * CHUNK;
        let free = (rt.free_chunks() + self.fs.obtainable()) * CHUNK;
        (all - free.min(all)) as u128 * 100 >= all as u128 * u128::from(self.config.pressure())
    }

    /// Goes over all inodes once; true if another round is due at once.
    fn round(&mut self, run: &Run, is_tight: bool) -> Result<bool> {
        let plan = self.config.plan();
        let (plan, age) = match is_tight {
            true => (plan.under_pressure(), self.config.packed().min(plan.under_pressure().warm)),
            false => (plan, self.config.packed()),
        };
        let quiet = Time(now().0.saturating_sub(age.as_nanos() as i64));
        if let Err(e) = self.fs.train_first_profile(quiet) {
            tell(run, "a profile of the pool's inodes", &e);
        }
        if self.profiled.is_none_or(|at| self.now() - at >= TRAINING) {
            self.profiled = Some(self.now());
            if let Err(e) = self.fs.train_profile_of_seconds(quiet) {
                tell(run, "a profile of inodes with times in seconds", &e);
            }
        }
        let rest = Box::new(|rest| run.pause(rest, "its share of a processor is used up"));
        let mut budget = Budget::processor(self.config.share(), self.fs.session().clock(), rest);
        let mut compressor = Compressor::new(&self.fs, plan)?;
        compressor.puts_off = self.trained.is_none_or(|at| self.now() - at >= TRAINING);
        let (mut from, mut blocks, mut packed) = (0, 0, Packed::default());
        let (mut seen, total) = (0, self.fs.count_inodes()?);
        while let Some(ino) = self.fs.next_used(from)? {
            let passed = ino / PER_BLOCK;
            if passed >= blocks + BLOCKS {
                packed += self.fs.pack_metadata(blocks..passed, quiet, &|| !run.is_stopped())?.1;
                blocks = passed;
            }
            if seen % REPORTED == 0 {
                run.progress(seen, total.max(seen), "inodes");
            }
            seen += 1;
            match compressor.see(ino) {
                // There is no room even for a smaller form: the names and inodes after it can make some.
                Err(e) if e.is_full() => {}
                seen => _ = seen?,
            }
            from = ino + 1;
            if !budget.turn() {
                break;
            }
        }
        if !run.is_stopped() {
            packed += self.fs.pack_metadata(blocks..from.div_ceil(PER_BLOCK), quiet, &|| !run.is_stopped())?.1;
        }
        let (done, put_off) = (compressor.done, compressor.put_off);
        if done.compressed > 0 || packed.blocks > 0 {
            let (files, saved) = (done.compressed, done.saved());
            tracing::debug!("{files} files compressed, {saved} bytes of memory saved; {} inodes packed", packed.inodes);
        }
        if put_off > 0 && !run.is_stopped() {
            self.fs.train_if_due(&mut || budget.turn())?;
            self.trained = Some(self.now());
        }
        Ok(put_off > 0)
    }
}

/// Reports a failure; that a pool is full or read-only is not worth a line in the log each second.
fn tell(run: &Run, what: &str, e: &Error) {
    use rustix::io::Errno;
    match e.errno() {
        Errno::NOSPC | Errno::ROFS => {
            tracing::debug!("{what}: {e}");
            run.note_failure(what, e);
        }
        _ => run.failed(what, e),
    }
}
