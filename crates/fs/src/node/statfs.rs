//! Sizes of the pool, as `statfs` reports them.
//!
//! Inodes are not counted as they come and go: that would be one word that every creation, of all processes, has to
//! change. They are counted on request, and the count is used for a while.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use pram::clock::Clock;

use super::Fs;
use crate::error::Result;
use crate::inode;
use crate::layout::INODE;

/// Counting takes one part in so many of the time.
const SHARE: u32 = 50;
/// A count is good for so long in any case.
const GLANCE: Duration = Duration::from_millis(1);

/// Sizes of the pool, in the units of `statfs`.
#[derive(Clone, Copy, Debug)]
pub struct StatFs {
    /// Bytes per block of the counts below (4096).
    pub block_size: u32,
    pub blocks: u64,
    pub free_blocks: u64,
    /// Those that one more file can have, however large: not those for its index, and not memory where it would go to disks.
    pub available_blocks: u64,
    /// Inodes in use, and those that the free memory has room for.
    pub inodes: u64,
    pub free_inodes: u64,
    /// Longest name, bytes.
    pub name_max: u32,
}

/// The last count.
#[derive(Default)]
pub(super) struct Census(Mutex<Option<Count>>);

#[derive(Clone, Copy)]
struct Count {
    inodes: u64,
    at: Instant,
    took: Duration,
}

impl Count {
    fn is_fresh(&self, clock: &Clock) -> bool {
        clock.since(self.at) < (self.took * SHARE).max(GLANCE)
    }
}

/// Blocks on disks for which a block of memory has the index, at least.
const INDEXED: u64 = 256;

/// Chunks, of so many free ones, that the index of a file in them takes at most. Each 512 pages take a node of a page, and each
/// 512 nodes another; the first nodes are small ones of some size classes, and the inode takes a block.
fn index_of(chunks: u64) -> u64 {
    const CLASSES: u64 = 10;
    chunks.div_ceil(512) + chunks.div_ceil(512 * 512) + CLASSES
}

impl Fs {
    /// Sizes of the pool: of its memory, which small files and everything else take, and of its disks, which the content of large
    /// files takes, together. Free memory is that of whole free chunks, also those for which no memory has been taken
    /// yet, and of blocks that are also on disk.
    pub fn statfs(&self) -> StatFs {
        let block_size = 4096;
        let (memory, rt) = (self.memory(), self.session.runtime());
        let bytes = memory.geo.heap_chunks(memory.size()) * pram::CHUNK;
        let free_chunks = rt.free_chunks() + rt.absent();
        let disks = self.union().map(|union| union.sizes(&self.session)).unwrap_or_default();
        // Clean blocks are in memory only until it is wanted for something else.
        let free = free_chunks * pram::CHUNK + disks.clean * u64::from(block_size);
        let used = self.recent_count();
        let free_inodes = (free / (INODE + 1)).min(inode::max_inodes(memory.size()).saturating_sub(used));
        let index = index_of(free.div_ceil(pram::CHUNK)) * pram::CHUNK;
        let in_memory = free.saturating_sub(index) / u64::from(block_size);
        let available_blocks = match self.union() {
            Some(union) => {
                let on_disks = disks.free.min(in_memory.saturating_mul(INDEXED));
                on_disks.max(in_memory.min(union.threshold() / u64::from(block_size)))
            }
            None => in_memory,
        };
        StatFs {
            block_size,
            blocks: bytes / u64::from(block_size) + disks.capacity,
            free_blocks: free / u64::from(block_size) + disks.free,
            available_blocks,
            inodes: used + free_inodes,
            free_inodes,
            name_max: crate::attr::NAME_MAX as u32,
        }
    }

    fn recent_count(&self) -> u64 {
        let clock = self.session().clock();
        let mut last = self.census.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(count) = last.filter(|count| count.is_fresh(clock)) {
            return count.inodes;
        }
        let start = clock.instant();
        // In a damaged table some cannot be counted; that is for others to tell.
        let inodes = self.count_inodes().unwrap_or(0);
        *last = Some(Count { inodes, at: clock.instant(), took: clock.since(start) });
        inodes
    }

    /// Inodes in use, counted one by one.
    pub fn count_inodes(&self) -> Result<u64> {
        let table = self.table();
        let (mut n, mut from) = (0, 0);
        while let Some(block) = table.next_block(from)? {
            n += u64::from(table.used_of(block)?.count_ones());
            from = block + 1;
        }
        Ok(n)
    }
}
