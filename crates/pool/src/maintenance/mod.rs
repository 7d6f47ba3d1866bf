//! Background work (decision 17).
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | all threads of a process; the role that one attached process at a time has, another taking over when it detaches or dies; giving back the memory of freed inodes; moving the epoch on where no commits do |
//! | [`reaper`] | noticing processes that died, and sweeping what they left |
//! | [`memory`] | memory ahead of need; by every process |
//! | [`commits`] | commits in time, and checkpoints; by every process |
//! | [`segments`] | content of large files: write-back, eviction, cleaning; by every process |
//! | [`disks`] | copies that are lacking, regions that leave, balance, scrubbing; by the one with the role |
//! | [`compression`] | of small files that nobody uses, and packing inodes; by the one with the role |
//! | [`periodic`] | a thread that does something again and again |
//!
//! What a process alone knows of, the unused tails of files it appended to, each process's own thread sees to.

pub mod commits;
mod compression;
mod disks;
mod memory;
mod periodic;
mod reaper;
mod segments;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use exraid::duplex::Duplex;

use crate::compression_config::CompressionConfig;
use crate::config::Config;
use crate::options::OpenOptions;
use commits::CommitTimer;
use compression::Compression;
use conquest_fs::error::Result;
use conquest_fs::node::Fs;
use disks::DiskWork;
use memory::MemoryAhead;
use periodic::Periodic;
use reaper::Reaper;
use segments::Segments;

/// The threads of a process that has a pool open; dropping them ends them.
#[derive(Default)]
pub struct Threads {
    _disks: Option<DiskWork>,
    pub segments: Option<Segments>,
    _maintenance: Option<Maintenance>,
    pub commits: Option<CommitTimer>,
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
        let maintenance =
            if how.read_only { None } else { Some(Maintenance::start(fs, interval.into(), config.compression)?) };
        let commits = match backing::of(fs.session()) {
            Some(_) => Some(CommitTimer::start(fs, interval)?),
            None => None,
        };
        let (segments, disks) = match how.read_only || disks_are_read_only {
            true => (None, None),
            false => (Segments::start(fs)?, if how.without_disks { None } else { DiskWork::start(fs, dir, duplex)? }),
        };
        Ok(Threads { _disks: disks, segments, _maintenance: maintenance, commits })
    }
}

/// How often it looks.
const TICK: Duration = Duration::from_secs(1);
/// Freed inodes after which empty inode blocks are looked for at once; fewer wait for a quiet tick.
const MANY_FREED: u64 = 4096;
/// Ticks from one look for memory that nobody needs to the next.
const IDLE: u32 = 10;

/// The thread of background work; dropping it ends it.
pub struct Maintenance {
    _compression: Compression,
    _memory: MemoryAhead,
    _thread: Periodic,
}

impl Maintenance {
    /// `interval`: from epoch to epoch, where no commits to a backing move it on.
    pub fn start(fs: &Arc<Fs>, interval: Duration, compression: CompressionConfig) -> Result<Maintenance> {
        let memory = MemoryAhead::start(fs)?;
        let compression = Compression::start(fs, compression)?;
        let fs = fs.clone();
        let mut tasks = None;
        let thread = Periodic::start(
            "maintenance",
            || TICK,
            move || {
                if let Err(e) = fs.trim_tails() {
                    tracing::warn!("giving back unused tails: {e}");
                }
                if tasks.is_none() && fs.session().try_maintenance() {
                    tasks = Some(Tasks::default());
                }
                if let Some(tasks) = &mut tasks {
                    tasks.work(&fs);
                    // Whoever fails tells every process and the log.
                    let _ = fs.session().move_on_if_due(interval);
                }
            },
        )?;
        Ok(Maintenance { _compression: compression, _memory: memory, _thread: thread })
    }
}

/// What is remembered from tick to tick.
#[derive(Default)]
struct Tasks {
    reaper: Reaper,
    /// Inodes freed in the pool: when blocks were given back, and at the last tick.
    given_at: u64,
    freed: u64,
    /// Groups in which nothing was at the last look, and ticks since then.
    idle: Vec<u64>,
    ticks: u32,
}

impl Tasks {
    fn work(&mut self, fs: &Fs) {
        self.reaper.work(fs);
        self.give_back(fs);
        self.give_memory_back(fs);
    }

    fn give_memory_back(&mut self, fs: &Fs) {
        self.ticks += 1;
        if self.ticks % IDLE == 0 {
            if let Err(e) = fs.session().give_idle_back(&mut self.idle) {
                tracing::error!("giving back memory: {e}");
            }
        }
    }

    /// Empty inode blocks go back after many files were deleted, or when nobody deletes any more.
    fn give_back(&mut self, fs: &Fs) {
        let freed = fs.session().runtime().counted();
        let since = freed.wrapping_sub(self.given_at);
        let quiet = freed == self.freed;
        self.freed = freed;
        if since == 0 || (since < MANY_FREED && !quiet) {
            return;
        }
        self.given_at = freed;
        if let Err(e) = fs.give_back() {
            tracing::error!("giving back inode blocks: {e}");
        }
    }
}
