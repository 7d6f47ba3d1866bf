//! The union cache: one space of persistent RAM that is both the cache and the journal of the content of large files (UBJ).
//!
//! Writes to a [large](crate::file) file go to *blocks* ([`pram::memory::Descriptor`]), and stay there: a commit copies nothing.
//! The place and the epoch in a block's descriptor are its state:
//!
//! | state (UBJ 3.2, Figure 3) | place | epoch |
//! | --- | --- | --- |
//! | normal, dirty: of the running transaction | none | the running one, where commits have intervals |
//! | frozen, dirty: of a committed transaction, for a checkpoint to write | none | an earlier one; with neither backing nor interval, any: each write commits |
//! | clean: the same is at its place on disk | that | any |
//! | out of date | it is free at once: a write to a page takes another block, and gives up the old version |
//!
//! So moving the epoch on freezes all running blocks at once, in no time, and frozen blocks are read as others are. A checkpoint finds
//! only the last committed version of each page, since older ones are gone. A page that has a place keeps its block until the
//! memory is wanted for something else.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | a process's knowledge of the union cache: the log, the settings, counts |
//! | [`inodes`] | the operations of the file system that the cache calls |
//! | [`write_back`] | the checkpoint: dirty blocks go to segments |
//! | [`commit`] | the part in commits of a backing |
//! | [`evict`] | clean blocks give their memory back |
//! | [`doubtful`] | but for those that may be the last copy of a page |
//! | [`fetch`] | fetching content that lies on disk alone, ahead too |
//! | [`ghosts`] | which places were read lately |
//! | [`admit`] | pages that were read again come into memory |
//! | [`hits`] | content that readers find in memory: its use, for the clock, and counts |
//! | [`room`] | room in memory and on disk for the next writes |
//! | [`storage_class`] | how the content of files is to lie |
//! | [`threshold_side`] | the side of its threshold for each file, and the files that may be on the other |
//! | [`policy`] | for comparisons with other caches: states of pages, and a cache that is no journal |
//!
//! Above it, [`tier`](crate::tier) moves files between memory and disk and makes room, and [`maintenance`](crate::maintenance) looks after
//! the disks.
//!
//! All of it works by operations of its own, each short, beside others at work in any process; no operation calls
//! anything here.

mod admit;
mod commit;
pub(crate) mod doubtful;
mod evict;
mod fetch;
mod ghosts;
mod hits;
pub(crate) mod inodes;
pub mod policy;
pub(crate) mod room;
mod storage_class;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod threshold_side;
pub(crate) mod write_back;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exraid::Region;
use pram::heap::{Cursor, Usage, Which};
use pram::memory::BLOCK;
use pram::Session;

use crate::attr::Ino;
use crate::error::Result;
use crate::wakeup::Wakeup;
use ilfs::Log;

pub use commit::Commits;
pub(crate) use hits::note_hit;
pub use inodes::Inodes;

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
    /// So many percent of the memory the cache keeps while some is made free ahead of need: an operation that finds none takes it from there too.
    pub floor: u64,
    /// So many percent it has at most.
    pub ceiling: u64,
    /// Dirty blocks are written once they take so many percent of the memory (UBJ 3.4: a quarter) ...
    pub dirty: u64,
    /// ... or so many bytes, for each region, where commits to a backing have to wait for them, so that none waits long ...
    pub behind: u64,
    /// ... or are so old (UBJ 3.4: 5 minutes).
    pub age: Duration,
    pub log: ilfs::Options,
}

impl Default for Options {
    fn default() -> Options {
        let (behind, age) = (16 << 20, Duration::from_secs(300));
        let executables = EXECUTABLES;
        let (floor, ceiling, dirty) = (0, 100, 25);
        let log = ilfs::Options { activity: ACTIVITY, ..ilfs::Options::default() };
        Options { threshold: THRESHOLD, executables, floor, ceiling, dirty, behind, age, log }
    }
}

/// The counts of each process since it opened the pool: a word of its session for each, which others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    /// Bytes written to large files.
    Stored,
    /// Dirty blocks that were written to segments, and those that were left to other threads, which are writing them.
    Written,
    Elsewhere,
    Evicted,
    /// Blocks read from a disk for a waiting reader, and ahead of a sequential one; those that came into the cache.
    Fetched,
    Ahead,
    Admitted,
    /// Blocks that the cleaner moved, and segments that it freed.
    Moved,
    Freed,
    /// Blocks that were read where they lie: running, frozen and clean ones, about; and among those fetched before.
    FromRunning,
    FromFrozen,
    FromClean,
    FromFetched,
    /// Pages of files that went from memory to disk, and from there into memory.
    Sent,
    Brought,
    /// Blocks that were copied so that there is another copy of them.
    Copied,
}

/// The counters of the use of files.
const ACTIVITY: &[usize] = &[
    Count::Stored as usize,
    Count::Fetched as usize,
    Count::FromRunning as usize,
    Count::FromFrozen as usize,
    Count::FromClean as usize,
];

/// Adds to the counts of this process.
pub(crate) fn count(session: &Session, what: Count, more: u64) {
    session.runtime().session_count(what as usize).fetch_add(more, Ordering::Relaxed);
}

pub(crate) fn counted(session: &Session, what: Count) -> u64 {
    session.runtime().session_count(what as usize).load(Ordering::Relaxed)
}

/// Blocks that readers found, by where: about, as one reading in some is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// In memory: not committed; committed and not on disk; on disk too.
    pub running: u64,
    pub frozen: u64,
    pub clean: u64,
    /// Among the blocks that the process fetched lately.
    pub fetched: u64,
    /// Nowhere: they were read from a disk.
    pub missed: u64,
}

/// The union cache as it is, in blocks and segments. Counts are of all processes that have the pool open.
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    /// Blocks in memory: all, and those that have not been written to a segment yet; of these the ones of epochs that have ended.
    pub blocks: u64,
    pub dirty: u64,
    pub frozen: u64,
    pub log: ilfs::Counts,
    /// Bytes that were written to large files.
    pub stored: u64,
    /// Blocks that were written to segments, taken out of memory, let in, fetched for readers, and fetched ahead of them.
    pub written: u64,
    pub evicted: u64,
    pub admitted: u64,
    pub fetched: u64,
    pub ahead: u64,
    /// Blocks that were copied to give content its redundancy.
    pub copied: u64,
    /// Blocks that were moved in cleaning, and segments that were freed.
    pub moved: u64,
    pub freed: u64,
    /// Pages of files that went from memory to disk, and from there into memory.
    pub sent: u64,
    pub brought: u64,
    pub hits: Hits,
    /// Blocks that the cache keeps, has at most, and that may be dirty, by the settings; how old these may be, and bytes of them where
    /// commits are waited for.
    pub floor: u64,
    pub ceiling: u64,
    pub dirty_most: u64,
    pub age: Duration,
    pub behind: u64,
    /// Bytes beyond which a file's content goes to disk.
    pub threshold: u64,
}

/// The blocks that large files have and can have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Of content, on all disks.
    pub capacity: u64,
    /// Of that neither written nor promised nor dirty.
    pub free: u64,
    /// In memory, and also on disk.
    pub clean: u64,
}

/// A process's part of the union cache.
pub struct Union {
    log: Log,
    pub(crate) options: Options,
    /// That of the options, until another one is set.
    threshold: AtomicU64,
    reads: fetch::Reads,
    /// Where write-back and eviction go on.
    to_write: Mutex<Cursor>,
    to_evict: Mutex<Cursor>,
    pub(crate) room: room::Room,
    /// Blocks that this process is writing: the log counts them as live, and memory as without a place.
    pub(crate) under_way: AtomicU64,
    chosen: policy::Chosen,
    /// Files whose content is being sent to disk by this process.
    pub(crate) sending: Mutex<HashSet<Ino>>,
    /// Where the clock of small files goes on.
    pub(crate) hand: Mutex<Ino>,
    pub(crate) follow: threshold_side::Follow,
    /// When cleaning gained nothing.
    pub(crate) gained_nothing: Mutex<Option<Instant>>,
    ahead: room::Ahead,
    /// Regions in doubt whose content in memory was made dirty.
    pub(crate) redirtied_for: Mutex<Vec<u32>>,
    /// Wakes the task that writes and cleans.
    wakeup: Arc<Wakeup>,
}

impl Union {
    /// The union cache of a pool with these disks; none where the pool has no log. Puts the log in order where memory was lost.
    pub fn open(session: &Session, regions: &[Arc<dyn Region>], options: Options) -> Result<Option<Arc<Union>>> {
        let Some(union) = Union::open_as_it_is(session, regions, options)? else { return Ok(None) };
        if !union.log.is_whole() {
            tracing::warn!("disks are missing: what only they have cannot be read");
        } else if let Some(found) = union.log.put_in_order(session)? {
            tracing::info!(
                "the log was put in order after the loss of memory: {} segments and {} parts were found",
                found.segments,
                found.parts
            );
        }
        Ok(Some(Arc::new(union)))
    }

    /// The same, without putting the log in order: for inspection.
    pub fn open_as_it_is(session: &Session, regions: &[Arc<dyn Region>], options: Options) -> Result<Option<Union>> {
        let Some(log) = Log::open(session, regions, options.log.clone())? else { return Ok(None) };
        Ok(Some(Union {
            log,
            threshold: AtomicU64::new(options.threshold),
            options,
            reads: fetch::Reads::new(all_memory(session) / BLOCK),
            to_write: Mutex::default(),
            to_evict: Mutex::default(),
            room: room::Room::default(),
            under_way: AtomicU64::new(0),
            chosen: policy::Chosen::default(),
            sending: Mutex::default(),
            hand: Mutex::new(0),
            follow: threshold_side::Follow::default(),
            gained_nothing: Mutex::default(),
            ahead: room::Ahead::default(),
            redirtied_for: Mutex::default(),
            wakeup: Arc::default(),
        }))
    }

    /// How regions are opened that come later.
    pub fn set_opener(&self, opener: ilfs::areas::Opener) {
        self.log.set_opener(opener);
    }

    /// The regions of the log that are there.
    pub fn regions(&self) -> Vec<Arc<dyn Region>> {
        self.log.regions()
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Bytes beyond which a file becomes large.
    pub fn threshold(&self) -> u64 {
        self.threshold.load(Ordering::Relaxed)
    }

    /// It is another one for this process from now on, and files follow it.
    pub fn set_threshold(&self, bytes: u64) {
        self.threshold.store(bytes, Ordering::Relaxed);
        self.wake();
    }

    /// Bytes up to which executables and shared libraries stay in memory beyond it.
    pub fn executables(&self) -> u64 {
        self.options.executables
    }

    /// Blocks up to which the cache admits content that is read.
    pub(crate) fn most(&self, session: &Session) -> u64 {
        part(session, self.options.ceiling)
    }

    /// States and counts.
    pub fn status(&self, session: &Session) -> Result<Status> {
        let Dirty { blocks: dirty, frozen } = count_dirty(session)?;
        let sessions = session.runtime().sessions();
        let of = |what: Count| sessions.iter().map(|session| session.counts[what as usize]).sum();
        Ok(Status {
            blocks: usage(session).used,
            dirty,
            frozen,
            log: self.log.counts(session)?,
            stored: of(Count::Stored),
            written: of(Count::Written),
            evicted: of(Count::Evicted),
            admitted: of(Count::Admitted),
            fetched: of(Count::Fetched),
            ahead: of(Count::Ahead),
            copied: of(Count::Copied),
            moved: of(Count::Moved),
            freed: of(Count::Freed),
            sent: of(Count::Sent),
            brought: of(Count::Brought),
            hits: Hits {
                running: of(Count::FromRunning),
                frozen: of(Count::FromFrozen),
                clean: of(Count::FromClean),
                fetched: of(Count::FromFetched),
                missed: of(Count::Fetched),
            },
            threshold: self.threshold(),
            floor: part(session, self.options.floor),
            ceiling: part(session, self.options.ceiling),
            dirty_most: part(session, self.options.dirty),
            age: self.options.age,
            behind: self.options.behind,
        })
    }

    /// Capacity and room. Unreadable tables count as nothing: fsck reports why.
    pub fn sizes(&self, session: &Session) -> Sizes {
        let Ok(counts) = self.log.counts(session) else { return Sizes::default() };
        let usage = usage(session);
        let free = counts.capacity.saturating_sub(counts.physical + counts.promised + usage.unplaced);
        // Hosts may have less than the disks that lie on them have in name.
        let given = self.log.available_with_hosts(session).unwrap_or(0).saturating_sub(usage.unplaced).min(free);
        Sizes { capacity: counts.capacity - (free - given), free: given, clean: usage.placed() }
    }

    /// There is something to write, or room to make.
    pub fn wake(&self) {
        self.wakeup.wake();
    }

    /// The wake-up of the task that writes and cleans.
    pub fn wakeup(&self) -> &Arc<Wakeup> {
        &self.wakeup
    }
}

/// How many blocks have no place, and of these how many are of epochs that have ended.
#[derive(Clone, Copy, Debug, Default)]
struct Dirty {
    blocks: u64,
    frozen: u64,
}

/// Counted one by one: the time is that of those that there are.
fn count_dirty(session: &Session) -> Result<Dirty> {
    let (epoch, mut count, mut cursor) = (session.epoch()?, Dirty::default(), Cursor::default());
    let mut see = |_, descriptor: pram::memory::Descriptor| {
        count.blocks += 1;
        count.frozen += u64::from(descriptor.epoch < epoch || backing::of(session).is_none());
    };
    while session.heap().walk_blocks(Which::Unplaced, &mut cursor, 1024, &mut see)? {}
    Ok(count)
}

/// Dirty blocks, as exact as [`usage`].
pub(crate) fn dirty(session: &Session) -> u64 {
    session.heap().unplaced()
}

pub(crate) fn usage(session: &Session) -> Usage {
    session.heap().block_usage()
}

/// Bytes of memory in which nothing is: whole free segments, also those that have no memory of the host's yet, and free blocks.
pub(crate) fn free_memory(session: &Session) -> u64 {
    let rt = session.runtime();
    (rt.free_chunks() + rt.absent()) * pram::CHUNK + usage(session).free * BLOCK
}

/// Blocks that so many percent of the memory are.
pub(crate) fn part(session: &Session, percent: u64) -> u64 {
    all_memory(session) / BLOCK / 100 * percent
}

/// Bytes of memory for objects and blocks in all.
pub(crate) fn all_memory(session: &Session) -> u64 {
    let memory = session.memory();
    memory.geo.heap_chunks(memory.size()) * pram::CHUNK
}
