//! The union cache: one space of persistent RAM that is both the cache and the journal of the content of large files (UBJ).
//!
//! What is written to a [large](crate::file) file lies in *blocks* ([`pram::blocks`]), and stays where it is: a commit copies nothing.
//! What becomes of a block its descriptor tells, by the place and the epoch that it has:
//!
//! | state (UBJ 3.2, Figure 3) | place | epoch |
//! | --- | --- | --- |
//! | normal, dirty: of the running transaction | none | the running one, where commits have intervals |
//! | frozen, dirty: of a committed transaction, for a checkpoint to write | none | an earlier one; with neither copy nor interval, any: each write commits |
//! | clean: what is at its place on disk | that | any |
//! | out of date | it is free at once: whoever writes to a page takes another block, and gives up the old version |
//!
//! So moving the epoch on freezes all running blocks at once, in no time; frozen blocks are read as others are; a checkpoint finds
//! only the last committed version of each page, since older ones are gone; and a page that has a place keeps its block until the
//! memory is wanted for something else.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | what a process knows of the union cache: the log, the settings, counts |
//! | [`write_back`] | the checkpoint: dirty blocks go to segments |
//! | [`evict`] | clean blocks give their memory back |
//! | [`reads`] | what lies on disk alone: fetching it, ahead too |
//! | [`clean`] | what the cleaner asks of files; freeing segments |
//! | [`commit`] | the part in commits of a copy |
//! | [`room`] | memory and disk for what is about to be written |
//!
//! All of it works by operations of its own, each short, beside others at work in whatever process; nothing here is called within
//! one.

mod clean;
mod commit;
mod evict;
mod reads;
mod room;
#[cfg(test)]
pub(crate) mod tests;
mod write_back;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use exraid::Region;
use pram::blocks::{Cursor, Usage, Which, BLOCK};
use pram::Session;

use crate::error::Result;
use crate::ilfs::{self, Log};

pub use commit::Commits;

/// Files that reach beyond so many bytes have their content on disk, where nothing else is said (Conquest 3.2).
pub const THRESHOLD: u64 = 1 << 20;

/// Bytes that executables and shared libraries have at most if they stay in memory beyond their threshold.
const EXECUTABLES: u64 = 64 << 20;

/// How a process uses the union cache.
#[derive(Clone, Debug)]
pub struct Options {
    /// Files that reach beyond so many bytes become large.
    pub threshold: u64,
    /// Executables and shared libraries stay in memory up to so many bytes each, as long as there is room for other files.
    pub executables: u64,
    /// Dirty blocks are written once they take one part in so many of the memory (UBJ 3.4: a quarter) ...
    pub dirty_share: u64,
    /// ... or so many bytes where commits to a copy have to wait for them, so that none waits long ...
    pub behind: u64,
    /// ... or are so old (UBJ 3.4: 5 minutes).
    pub age: Duration,
    pub log: ilfs::Options,
}

impl Default for Options {
    fn default() -> Options {
        let (behind, age) = (8 << 20, Duration::from_secs(300));
        let executables = EXECUTABLES;
        Options { threshold: THRESHOLD, executables, dirty_share: 4, behind, age, log: ilfs::Options::default() }
    }
}

/// What was done since this process opened the pool.
#[derive(Debug, Default)]
struct Counters {
    written: AtomicU64,
    /// Dirty blocks that were left to others, who are writing them.
    elsewhere: AtomicU64,
    evicted: AtomicU64,
    fetched: AtomicU64,
    ahead: AtomicU64,
    moved: AtomicU64,
    freed: AtomicU64,
}

/// The union cache as it is, in blocks and segments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    /// Blocks in memory: all, and those that have not been written to a segment yet; of these the ones of epochs that have ended.
    pub blocks: u64,
    pub dirty: u64,
    pub frozen: u64,
    pub log: ilfs::Counts,
    /// Blocks that this process wrote to segments, took out of memory, fetched for readers, and fetched ahead of them.
    pub written: u64,
    pub evicted: u64,
    pub fetched: u64,
    pub ahead: u64,
    /// Blocks that this process moved in cleaning, and segments that it freed.
    pub moved: u64,
    pub freed: u64,
    /// Bytes beyond which a file's content goes to disk.
    pub threshold: u64,
}

/// What large files have and can have, in blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    /// Of content, on all disks.
    pub capacity: u64,
    /// Of that neither written nor promised nor dirty.
    pub free: u64,
    /// In memory, and also on disk.
    pub clean: u64,
}

/// What a process has of the union cache.
pub struct Union {
    log: Log,
    options: Options,
    reads: reads::Reads,
    counters: Counters,
    /// Where write-back and eviction go on.
    to_write: Mutex<Cursor>,
    to_evict: Mutex<Cursor>,
    room: room::Room,
    /// Work for the thread that writes and cleans: rung when there is some.
    bell: (Mutex<bool>, Condvar),
}

impl Union {
    /// The union cache of a pool with these disks; none where the pool has no log. Puts the log in order where memory was lost.
    pub fn open(session: &Session, regions: &[Arc<dyn Region>], options: Options) -> Result<Option<Arc<Union>>> {
        let Some(log) = Log::open(session, regions, options.log.clone())? else { return Ok(None) };
        if !log.is_whole() {
            tracing::warn!("disks are missing: what lies there cannot be read, and no content can be written to disks");
        } else if let Some(found) = log.settle(session)? {
            tracing::info!(
                "the log was put in order after the loss of memory: {} segments and {} parts were found",
                found.segments,
                found.parts
            );
        }
        Ok(Some(Arc::new(Union {
            log,
            options,
            reads: reads::Reads::default(),
            counters: Counters::default(),
            to_write: Mutex::default(),
            to_evict: Mutex::default(),
            room: room::Room::default(),
            bell: (Mutex::new(false), Condvar::new()),
        })))
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Bytes beyond which a file becomes large.
    pub fn threshold(&self) -> u64 {
        self.options.threshold
    }

    /// Bytes up to which executables and shared libraries stay in memory beyond it.
    pub fn executables(&self) -> u64 {
        self.options.executables
    }

    /// States and counts.
    pub fn status(&self, session: &Session) -> Result<Status> {
        let Dirty { blocks: dirty, frozen } = dirty(session)?;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        Ok(Status {
            blocks: usage(session).used,
            dirty,
            frozen,
            log: self.log.counts(session)?,
            written: of(&counters.written),
            evicted: of(&counters.evicted),
            fetched: of(&counters.fetched),
            ahead: of(&counters.ahead),
            moved: of(&counters.moved),
            freed: of(&counters.freed),
            threshold: self.options.threshold,
        })
    }

    /// Capacity and room. What cannot be read counts as nothing: fsck tells why.
    pub(crate) fn sizes(&self, session: &Session) -> Sizes {
        let (Ok(counts), Ok(dirty)) = (self.log.counts(session), dirty(session)) else { return Sizes::default() };
        Sizes {
            capacity: counts.capacity,
            free: counts.capacity.saturating_sub(counts.live + counts.promised + dirty.blocks),
            clean: usage(session).used.saturating_sub(dirty.blocks),
        }
    }

    /// There is something to write, or room to make.
    pub(crate) fn ring(&self) {
        let (rung, bell) = &self.bell;
        *rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        bell.notify_one();
    }

    /// Waits until somebody rings, or for so long.
    pub(crate) fn wait(&self, most: Duration) {
        let (rung, bell) = &self.bell;
        let rung = rung.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rung, _) = bell.wait_timeout_while(rung, most, |rung| !*rung).unwrap_or_else(PoisonError::into_inner);
        *rung = false;
    }
}

/// How many blocks have no place, and of these how many are of epochs that have ended.
#[derive(Clone, Copy, Debug, Default)]
struct Dirty {
    blocks: u64,
    frozen: u64,
}

/// Counted one by one: the time is that of those that there are.
fn dirty(session: &Session) -> Result<Dirty> {
    let (epoch, mut count, mut cursor) = (session.epoch()?, Dirty::default(), Cursor::default());
    let mut see = |_, descriptor: pram::blocks::Descriptor| {
        count.blocks += 1;
        count.frozen += u64::from(descriptor.epoch < epoch || session.copy().is_none());
    };
    while session.heap().walk_blocks(Which::Unplaced, &mut cursor, 1024, &mut see)? {}
    Ok(count)
}

fn usage(session: &Session) -> Usage {
    session.heap().block_usage()
}

/// Bytes of memory in which nothing is: whole free segments, also those that have no memory of the host's yet, and free blocks.
fn free_memory(session: &Session) -> u64 {
    let rt = session.runtime();
    (rt.free_segments() + rt.absent()) * pram::SEGMENT + usage(session).free * BLOCK
}

/// Bytes of memory for objects and blocks in all.
fn all_memory(session: &Session) -> u64 {
    let region = session.region();
    region.geo.heap_segments(region.size()) * pram::SEGMENT
}
