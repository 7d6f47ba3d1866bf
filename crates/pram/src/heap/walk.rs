//! Walks over the descriptors of all blocks, piece by piece, for write-back and for eviction: the hand of a clock.

use super::Heap;
use crate::error::Result;
use crate::memory::{Descriptor, PER_CHUNK};

/// Where a walk goes on. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

/// Which blocks are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    All,
    /// Those without a place. Passes over chunks in which [`Op::walk_unplaced`](crate::Op::walk_unplaced) found none.
    Unplaced,
    /// Those without a place that no commit to the backing holds yet.
    Fresh,
}

/// How much memory blocks take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks in use.
    pub used: u64,
    /// Free ones in chunks of blocks.
    pub free: u64,
    /// Chunks of blocks, each of 16.
    pub chunks: u64,
    /// Blocks in use that have no place.
    pub unplaced: u64,
}

impl Usage {
    /// Blocks in use that have a place.
    pub fn placed(&self) -> u64 {
        self.used - self.unplaced
    }
}

impl Heap<'_> {
    /// How much memory blocks take, about: a process that died in an operation may have left `used` wrong by that
    /// operation's blocks, until all processes have left. Takes some hundred loads, however many blocks there are.
    pub fn block_usage(&self) -> Usage {
        let (used, chunks) = self.rt.blocks();
        Usage { used, free: chunks * PER_CHUNK - used, chunks, unplaced: self.unplaced().min(used) }
    }

    /// Blocks without a place, as exact as [`block_usage`](Self::block_usage), in one load.
    pub fn unplaced(&self) -> u64 {
        self.rt.unplaced()
    }

    /// Calls `f` with offset and descriptor of each block that is looked for, in at most `most` chunks from the cursor on,
    /// and moves the cursor on; false at the end, where the cursor begins anew.
    ///
    /// Each descriptor is a hint: another process may free or change the block meanwhile, and the descriptor may be
    /// torn. Before acting on it, look again in an operation, under the lock of the block's owner: does the owner that
    /// the descriptor names lead to this block? In or outside an operation; takes no lock and never waits.
    pub fn walk_blocks(
        &self,
        which: Which,
        cursor: &mut Cursor,
        most: usize,
        f: &mut dyn FnMut(u64, Descriptor),
    ) -> Result<bool> {
        let durable = self.rt.durable();
        let is_looked_for = |descriptor: &Descriptor| match which {
            Which::All => true,
            Which::Unplaced => descriptor.place == 0,
            Which::Fresh => descriptor.is_fresh(durable),
        };
        for _ in 0..most {
            let next = match which {
                Which::All => self.rt.next_block_chunk(cursor.0),
                Which::Unplaced => self.rt.next_unplaced(cursor.0),
                Which::Fresh => self.rt.next_fresh(cursor.0),
            };
            let Some(chunk) = next else {
                *cursor = Cursor::default();
                return Ok(false);
            };
            cursor.0 = chunk + 1;
            self.look_at(chunk, &mut |block, descriptor| {
                if is_looked_for(&descriptor) {
                    f(block, descriptor);
                }
            })?;
        }
        Ok(true)
    }

    /// [`Op::walk_unplaced`](crate::Op::walk_unplaced), which is in an operation.
    pub(crate) fn walk_unplaced(
        &self,
        cursor: &mut Cursor,
        most: usize,
        f: &mut dyn FnMut(u64, Descriptor),
    ) -> Result<bool> {
        for _ in 0..most {
            let Some(chunk) = self.rt.next_unplaced(cursor.0) else {
                *cursor = Cursor::default();
                return Ok(false);
            };
            cursor.0 = chunk + 1;
            self.look_for_unplaced(chunk, f)?;
        }
        Ok(true)
    }

    /// 1. Look at the descriptors of the chunk; if a block has no place, that is all. 2. The chunk counts as having
    ///    none. 3. Look again. 4. The chunk counts again, if a block has no place. (An operation that takes a block's
    ///    place away stores that first and makes the chunk count second, so one of the two sees the other.)
    fn look_for_unplaced(&self, chunk: u64, f: &mut dyn FnMut(u64, Descriptor)) -> Result<()> {
        let mut look = || {
            let mut any = false;
            self.look_at(chunk, &mut |block, descriptor| {
                if descriptor.place == 0 {
                    any = true;
                    f(block, descriptor);
                }
            })?;
            Ok(any)
        };
        // 1.
        if look()? {
            return Ok(());
        }
        // 2.
        self.rt.drop_unplaced(chunk);
        // 3 and 4.
        let any = look();
        if !matches!(any, Ok(false)) {
            self.rt.add_unplaced(chunk);
        }
        any.map(drop)
    }

    fn look_at(&self, chunk: u64, f: &mut dyn FnMut(u64, Descriptor)) -> Result<()> {
        let table = || self.memory.block_table(chunk).ok();
        let before = table();
        let (Some(_), Ok(seen)) = (before, self.memory.blocks_of(chunk)) else { return Ok(()) };
        // Else the table may have been freed and used again by then.
        if table() == before {
            seen.into_iter().for_each(|(block, descriptor)| f(block, descriptor));
        }
        Ok(())
    }
}
