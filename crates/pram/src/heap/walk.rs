//! Going over the descriptors of all blocks, piece by piece, for those who write content elsewhere and for those who make
//! room: the hand of a clock.

use super::Heap;
use crate::error::Result;
use crate::memory::{Descriptor, PER_CHUNK};

/// Where a walk goes on. The default begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

/// Which blocks are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    All,
    /// Those without a place. Chunks in which there were none when [`Op::walk_unplaced`](crate::Op::walk_unplaced) came by are passed over, whatever they
    /// have.
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
    /// How much memory blocks take, about: an operation whose process died may have left `used` wrong by what it was at, until
    /// all processes have left. Takes some hundred loads, however many blocks there are.
    pub fn block_usage(&self) -> Usage {
        let (used, chunks) = self.rt.blocks();
        Usage { used, free: chunks * PER_CHUNK - used, chunks, unplaced: self.unplaced().min(used) }
    }

    /// Blocks without a place, as exact, in one load.
    pub fn unplaced(&self) -> u64 {
        self.rt.unplaced()
    }

    /// Calls `f` with offset and descriptor of each block that is looked for, in at most `most` chunks from the cursor on,
    /// and moves that on; false at the end, where it begins anew.
    ///
    /// What is seen is a hint: another one may free or change the block meanwhile, and of a descriptor that changes parts may be
    /// old and parts new. Whoever wants to do anything about it looks again in an operation, under the lock of the block's
    /// owner: does what the descriptor names lead to this block? In or outside an operation; takes no lock and waits for nobody.
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

    /// 1. Its descriptors are looked at; if there is any, that is all. 2. The chunk counts as having none. 3. They are looked at
    ///    again. 4. It counts again, if there is any. (Whoever takes the place away from a block stores that first and makes the
    ///    chunk count second, so one of us sees the other.)
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
        // Else the table may have been another's by then.
        if table() == before {
            seen.into_iter().for_each(|(block, descriptor)| f(block, descriptor));
        }
        Ok(())
    }
}
