//! Chunks of blocks: which they are, how many blocks they hold, which blocks are under transfer.
//!
//! Four maps have a bit for each chunk. The first, of the chunks of blocks, may have some that are none any more. So
//! may the second, of chunks that perhaps have blocks without a place: a process that looks there clears the bit,
//! looks, and sets the bit again if it found any. The third is of chunks with a block that perhaps no commit has looked
//! at.
//!
//! A block's *use* is a byte that readers set and eviction clears.
//!
//! A block under transfer is *pinned*: its byte has the number of the session that began the transfer + 1. A free adds
//! [`FREED`] meanwhile, and the end of the transfer leaves that; the bit in the fourth map says that there is such
//! a block.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

use super::chunks::{BITS, BLOCK_MAPS, PINS};
use super::{Runtime, H_BLOCKS, H_BLOCK_CHUNKS, H_BLOCK_HINT, H_UNPLACED};
use crate::error::{Error, Result};
use crate::mem::Stretch;
use crate::memory::{BLOCK, CHUNK, PER_CHUNK, PER_GROUP};

// Where the maps and pins are in a group's part.
const OF_BLOCKS: u64 = BLOCK_MAPS;
const UNPLACED: u64 = OF_BLOCKS + BITS;
const FRESH: u64 = UNPLACED + BITS;
const ENDED: u64 = FRESH + BITS;
const PINS_AT: u64 = ENDED + BITS;
const USES_AT: u64 = PINS_AT + PINS;

/// In a block's pin: the block is to be freed.
pub(crate) const FREED: u8 = 0x80;
const _: () = assert!(super::FULL < FREED as u32);

/// The pins of blocks under transfer. Dropping it ends the transfer.
pub(crate) struct Pinned {
    pub pins: Stretch,
    /// The byte of the map that says that blocks of this chunk were freed meanwhile, and its bit.
    pub ended: Stretch,
    pub bit: u8,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let freed = |pin: &AtomicU8| pin.fetch_and(FREED, Ordering::SeqCst) & FREED != 0;
        // All of them: no `any`, which would stop.
        if self.pins.as_ref().iter().filter(|pin| freed(pin)).count() > 0 {
            self.ended.as_ref().iter().for_each(|byte| _ = byte.fetch_or(self.bit, Ordering::SeqCst));
        }
    }
}

impl Runtime {
    /// Lists a chunk as one of blocks.
    pub(crate) fn add_block_chunk(&self, chunk: u64) {
        let (word, bit) = self.map_bit(OF_BLOCKS, chunk);
        word.fetch_or(bit, Ordering::AcqRel);
        self.header(H_BLOCK_CHUNKS).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn drop_block_chunk(&self, chunk: u64) {
        for map in [OF_BLOCKS, UNPLACED, FRESH] {
            let (word, bit) = self.map_bit(map, chunk);
            word.fetch_and(!bit, Ordering::AcqRel);
        }
        self.header(H_BLOCK_CHUNKS).fetch_sub(1, Ordering::Relaxed);
    }

    /// The first chunk of blocks at or after `from`.
    pub(crate) fn next_block_chunk(&self, from: u64) -> Option<u64> {
        self.next_bit(OF_BLOCKS, from)
    }

    /// Notes that a block of the chunk may have no place, and that no commit has looked at it since.
    pub(crate) fn add_unplaced(&self, chunk: u64) {
        let (word, bit) = self.map_bit(UNPLACED, chunk);
        word.fetch_or(bit, Ordering::SeqCst);
        // Cleared only while no operation runs.
        let (word, bit) = self.map_bit(FRESH, chunk);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Clears the chunk's bit; the caller looks at the chunk afterwards.
    pub(crate) fn drop_unplaced(&self, chunk: u64) {
        let (word, bit) = self.map_bit(UNPLACED, chunk);
        word.fetch_and(!bit, Ordering::SeqCst);
    }

    pub(crate) fn next_unplaced(&self, from: u64) -> Option<u64> {
        self.next_bit(UNPLACED, from)
    }

    /// Notes that a commit has looked at the chunk's blocks without a place, while no operation runs.
    pub(crate) fn drop_fresh(&self, chunk: u64) {
        let (word, bit) = self.map_bit(FRESH, chunk);
        word.fetch_and(!bit, Ordering::SeqCst);
    }

    pub(crate) fn next_fresh(&self, from: u64) -> Option<u64> {
        self.next_bit(FRESH, from)
    }

    /// Sets the bits of all chunks of blocks: a process that died may have cleared some and not looked.
    pub(crate) fn doubt_unplaced(&self) {
        for first in (0..self.groups() * PER_GROUP).step_by(64) {
            let of_blocks = self.map_bit(OF_BLOCKS, first).0.load(Ordering::Acquire);
            if of_blocks != 0 {
                self.map_bit(UNPLACED, first).0.fetch_or(of_blocks, Ordering::SeqCst);
                self.map_bit(FRESH, first).0.fetch_or(of_blocks, Ordering::SeqCst);
            }
        }
    }

    /// Where to begin to look for a chunk with room: most below have none.
    pub(crate) fn block_hint(&self) -> u64 {
        self.header(H_BLOCK_HINT).load(Ordering::Relaxed)
    }

    pub(crate) fn set_block_hint(&self, chunk: u64) {
        self.header(H_BLOCK_HINT).store(chunk, Ordering::Relaxed);
    }

    /// Raises the hint from `seen` to `chunk`, as no chunk in between had room, unless it has changed meanwhile.
    pub(crate) fn raise_block_hint(&self, seen: u64, chunk: u64) {
        let hint = self.header(H_BLOCK_HINT);
        let _ = hint.compare_exchange(seen, chunk, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn lower_block_hint(&self, chunk: u64) {
        self.header(H_BLOCK_HINT).fetch_min(chunk, Ordering::Relaxed);
    }

    fn slot_blocks(&self, slot: u32) -> &AtomicU64 {
        self.word(self.slot_at(slot) + 16)
    }

    /// Adds `more`, perhaps negative, to the blocks in use: by the holder of the slot.
    #[inline(always)]
    pub(crate) fn count_blocks(&self, slot: u32, more: i64) {
        let blocks = self.slot_blocks(slot);
        blocks.store(blocks.load(Ordering::Relaxed).wrapping_add(more as u64), Ordering::Relaxed);
    }

    /// Adds `n` blocks that were found in use when the runtime file was made.
    pub(crate) fn found_blocks(&self, n: u64) {
        self.header(H_BLOCKS).fetch_add(n, Ordering::Relaxed);
    }

    /// Blocks in use, and chunks of blocks. Each death may leave the first wrong by the blocks of the operations that
    /// it interrupted, until all processes have left.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        let found = self.header(H_BLOCKS).load(Ordering::Relaxed);
        let since = (0..self.slots()).map(|slot| self.slot_blocks(slot).load(Ordering::Relaxed));
        let chunks = self.header(H_BLOCK_CHUNKS).load(Ordering::Relaxed);
        (since.fold(found, u64::wrapping_add).min(chunks * PER_CHUNK), chunks)
    }

    /// Adds `more`, perhaps negative, to the blocks without a place.
    #[inline(always)]
    pub(crate) fn count_unplaced(&self, more: i64) {
        self.header(H_UNPLACED).fetch_add(more as u64, Ordering::Relaxed);
    }

    /// Blocks without a place, as exact as [`blocks`](Self::blocks).
    pub(crate) fn unplaced(&self) -> u64 {
        (self.header(H_UNPLACED).load(Ordering::Relaxed) as i64).max(0) as u64
    }

    // Transfers.

    fn pin_at(&self, block: u64) -> u64 {
        let chunk = block / CHUNK;
        self.part(chunk) + PINS_AT + chunk % PER_GROUP * PER_CHUNK + block % CHUNK / BLOCK
    }

    pub(crate) fn pin(&self, block: u64) -> &AtomicU8 {
        self.map.atomic8(self.pin_at(block)).expect("runtime offsets are computed within its size")
    }

    fn use_of(&self, block: u64) -> &AtomicU8 {
        let at = self.pin_at(block) - PINS_AT + USES_AT;
        self.map.atomic8(at).expect("runtime offsets are computed within its size")
    }

    #[inline]
    pub(crate) fn note_block_use(&self, block: u64) {
        let of = self.use_of(block);
        if of.load(Ordering::Relaxed) == 0 {
            of.store(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn take_block_use(&self, block: u64) -> bool {
        self.use_of(block).swap(0, Ordering::Relaxed) != 0
    }

    /// Pins `count` blocks of one chunk for this process; `None` if any is pinned already.
    pub(crate) fn pin_blocks(&self, block: u64, count: u64) -> Result<Option<Pinned>> {
        let blocks = || (0..count).map(|n| block + n * BLOCK);
        let mine = self.me() as u8 + 1;
        // First: after a death, a look for transfers to end must not miss these.
        self.pinned(self.me()).store(1, Ordering::SeqCst);
        let taken = |at: &u64| self.pin(*at).compare_exchange(0, mine, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let done = blocks().take_while(taken).count() as u64;
        if done < count {
            blocks().take(done as usize).for_each(|at| self.pin(at).store(0, Ordering::SeqCst));
            return Ok(None);
        }
        let chunk = block / CHUNK;
        let bit = chunk % PER_GROUP;
        let pins = self.map.stretch(self.pin_at(block), count)?;
        let ended = self.map.stretch(self.part(chunk) + ENDED + bit / 8, 1)?;
        Ok(Some(Pinned { pins, ended, bit: 1 << (bit % 8) }))
    }

    /// If the block is under transfer, has it freed at the end of that, and returns true. Fails if it was freed already.
    pub(crate) fn put_off(&self, block: u64) -> Result<bool> {
        let pin = self.pin(block);
        let mut seen = pin.load(Ordering::SeqCst);
        loop {
            if seen == 0 {
                return Ok(false);
            }
            if seen & FREED != 0 {
                return Err(Error::NotAllocated { off: block });
            }
            match pin.compare_exchange(seen, seen | FREED, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Ok(true),
                Err(now) => seen = now,
            }
        }
    }

    /// Has session `n`, dead or alive, begun transfers that are not known to have ended?
    pub(crate) fn has_pinned(&self, n: u32) -> bool {
        self.pinned(n).load(Ordering::SeqCst) != 0
    }

    /// Ends the transfers of session `n`, which will never touch memory again.
    pub(crate) fn end_transfers_of(&self, n: u32) {
        let mut chunk = 0;
        while let Some(next) = self.next_block_chunk(chunk) {
            for block in (next * CHUNK..(next + 1) * CHUNK).step_by(BLOCK as usize) {
                let pin = self.pin(block);
                if pin.load(Ordering::SeqCst) & !FREED == n as u8 + 1
                    && pin.fetch_and(FREED, Ordering::SeqCst) & FREED != 0
                {
                    let (word, bit) = self.map_bit(ENDED, next);
                    word.fetch_or(bit, Ordering::SeqCst);
                }
            }
            chunk = next + 1;
        }
        self.pinned(n).store(0, Ordering::SeqCst);
    }

    /// A chunk with blocks that were freed during a transfer that has ended.
    pub(crate) fn take_ended(&self) -> Option<u64> {
        let chunk = self.next_bit(ENDED, 0)?;
        let (word, bit) = self.map_bit(ENDED, chunk);
        word.fetch_and(!bit, Ordering::SeqCst);
        Some(chunk)
    }

    /// Is there a block that was freed and is not free yet?
    pub(crate) fn any_put_off(&self) -> bool {
        (0..super::FULL).any(|n| self.has_pinned(n)) && {
            let mut from = 0;
            std::iter::from_fn(|| {
                let chunk = self.next_block_chunk(from)?;
                from = chunk + 1;
                Some(chunk * CHUNK)
            })
            .any(|at| (0..PER_CHUNK).any(|n| self.pin(at + n * BLOCK).load(Ordering::SeqCst) & FREED != 0))
        }
    }
}
