//! Chunks of blocks. A chunk of the heap becomes one of blocks, and is free again when its last block is: memory goes
//! where it is needed. Blocks are handed out as objects are: each transaction slot has a chunk of its own, so that
//! neither allocating nor freeing takes a lock or searches.
//!
//! Ordered steps of a chunk's life:
//! 1. A table is allocated, and zeroed. 2. The entry leads to it, durably. 3. The entry says that the chunk is of blocks.
//!    (Else a block could be without a descriptor. A crash before 3 leaves a table that nothing leads to: a leak.)
//! 4. When the chunk is empty, the entry says that it is free, durably. 5. The table is freed. (Else the entry could
//!    lead to a table that is used again.)

use std::sync::atomic::Ordering;

use super::Heap;
use crate::error::Result;
use crate::memory::{Meta, BLOCK, BLOCKS, BLOCK_CLASS, BLOCK_TABLE, BLOCK_TABLE_BYTES, CHUNK, PER_CHUNK, TAKEN_BITS};
use crate::runtime::FREED;

impl Heap<'_> {
    /// Is the block under transfer? The answer is right under the owner's lock, without which no transfer begins.
    pub fn is_under_transfer(&self, block: u64) -> bool {
        self.rt.pin(block).load(Ordering::SeqCst) != 0
    }

    /// Notes a use of the block: eviction passes it by once. Costs one load if a use is noted already.
    #[inline]
    pub fn note_use(&self, block: u64) {
        self.rt.note_block_use(block);
    }

    /// Was a use noted since the last call?
    pub fn take_use(&self, block: u64) -> bool {
        self.rt.take_block_use(block)
    }

    /// A chunk with room for a block, now owned by `slot`: a partly used one, or a free one.
    pub(crate) fn find_block_chunk(&self, slot: u32) -> Result<Option<u64>> {
        let hint = self.rt.block_hint();
        let partial = self.find_partial(slot, BLOCKS, BLOCK_CLASS, hint)?;
        self.rt.raise_block_hint(hint, partial.unwrap_or(u64::MAX));
        if partial.is_some() {
            return Ok(partial);
        }
        // 1.
        let table = self.alloc(slot, BLOCK_TABLE, BLOCK_TABLE_BYTES)?.off;
        let Some(chunk) = self.claim_free(slot)? else { return self.free(slot, table).map(|()| None) };
        self.memory.zero(table, BLOCK_TABLE_BYTES)?;
        self.memory.flush(table, BLOCK_TABLE_BYTES);
        // 2.
        let word = self.memory.geo.entry(chunk).field::<u64>(8).raw();
        self.memory.store_word(word, table << TAKEN_BITS)?;
        self.memory.persist(word, 8);
        self.rt.add_block_chunk(chunk);
        // 3.
        self.memory.set_meta(chunk, Meta::Blocks)?;
        Ok(Some(chunk))
    }

    /// Steps 4 and 5, of a chunk that `slot` owns.
    pub(crate) fn free_block_chunk(&self, slot: u32, chunk: u64) -> Result<()> {
        let table = self.memory.table_word(chunk)? >> TAKEN_BITS;
        self.memory.set_meta(chunk, Meta::Free)?;
        self.rt.drop_block_chunk(chunk);
        self.rt.add_free(chunk);
        self.free(slot, table)
    }

    /// Fills the runtime's maps from a chunk of blocks; with nobody else attached.
    pub(crate) fn index_blocks(&self, chunk: u64) -> Result<()> {
        // Never handed out from; fsck reports it.
        if self.memory.block_table(chunk).is_err() {
            return Ok(());
        }
        let taken = u64::from(self.memory.taken(chunk, BLOCK_CLASS as u8, 0)?.count_ones());
        self.rt.add_block_chunk(chunk);
        self.rt.add_unplaced(chunk);
        self.rt.found_blocks(taken);
        let unplaced = self.memory.blocks_of(chunk)?.iter().filter(|(_, descriptor)| descriptor.place == 0).count();
        self.rt.count_unplaced(unplaced as i64);
        if taken < PER_CHUNK {
            self.rt.add_partial(BLOCKS, BLOCK_CLASS, chunk);
        }
        Ok(())
    }

    /// Frees the blocks that were freed while under transfer, in an operation in `slot`; returns their number.
    pub(crate) fn free_ended(&self, slot: u32) -> Result<u64> {
        let mut freed = 0;
        while let Some(chunk) = self.rt.take_ended() {
            for block in (0..PER_CHUNK).map(|n| chunk * CHUNK + n * BLOCK) {
                let pin = self.rt.pin(block);
                if pin.compare_exchange(FREED, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    self.free(slot, block)?;
                    freed += 1;
                }
            }
        }
        Ok(freed)
    }

    /// Was the block freed while under transfer, and is it not free yet?
    pub fn is_put_off(&self, block: u64) -> bool {
        self.rt.pin(block).load(Ordering::SeqCst) & FREED != 0
    }
}
