//! Blocks: 4 KiB of memory each, aligned, for content that is too large to be copied twice.
//!
//! What the heap holds is marked when it is stored to, goes to the redo log of a memory with a backing, and lies in its
//! image. The content of a block is left out of all three: it is only stored. On `battery` and `dax` that is enough, since it
//! is memory like any other there. With a backing whoever uses blocks writes their content elsewhere himself, once, before
//! a commit counts (a [participant](crate::session)), and the block's *descriptor*, which is part of the heap, says where.
//!
//! ```text
//! chunk's entry: Blocks, which of the 16 are taken, table → table: 16 descriptors, one for each block
//! ```
//! A chunk of the heap becomes one of blocks, and is free again when its last block is: memory goes to whom it is needed
//! by. Blocks are handed out as objects are: each transaction slot has a chunk of its own, so that neither allocating nor freeing
//! takes a lock or searches.
//!
//! | part | responsibility |
//! | --- | --- |
//! | this | descriptors, chunks of blocks |
//! | [`walk`] | going over descriptors, piece by piece; how many blocks there are |
//! | [`transfer`] | what a device reads or writes |
//!
//! Changes are methods of [`Tx`](crate::Tx) (`alloc_block`, `free_block`, `set_place`, `unset_place`, `set_owner`, `begin_change`, `store_content`,
//! `zero_content`, `copy_content`). Content is read with [`Memory::read_bytes`].
//!
//! A descriptor has 32 bytes: four words, each changed by one store. Its fields have some 47 (place), 64 (epoch), 28 and 51
//! bits (inode and page) in use, too many for 16; and two descriptors to a cache line, which is what a redo log holds, are
//! not worth packing them into 24. It is 0.8 % of the content.
//!
//! Ordered steps of a chunk's life:
//! 1. A table is allocated, and zeroed. 2. The entry leads to it, durably. 3. The entry says that the chunk is of blocks.
//!    (Else a block could be without a descriptor. A crash before 3 leaves a table that nothing leads to: a leak.)
//! 4. It is empty: the entry says that it is free, durably. 5. The table is freed. (Else the table would be another's.)
//!
//! A memory made anew from its backing has descriptors, and of what they describe only the content of blocks without a place, which
//! goes with a commit where it was not written elsewhere before ([`Frozen::mark_fresh`](crate::session::Frozen::mark_fresh)). The
//! others are *void*. Nobody has to go over them; who meets one sees it by its epoch ([`Descriptor::is_void`]).

pub mod transfer;
pub mod walk;

use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Result};
use crate::heap::{Heap, Meta, Tag, BLOCKS, BLOCK_CLASS};
use crate::medium::MediumKind;
use crate::mem::Mapping;
use crate::memory::{self, Memory, RawHeader, CHUNK, RECOVERED_ROOT};
use crate::off::Off;

pub(crate) use transfer::Pinned;
pub use transfer::Transfer;
pub use walk::{Cursor, Usage, Which};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Blocks of a chunk.
pub const PER_CHUNK: u64 = CHUNK / BLOCK;
/// The tag of tables of descriptors: no other object has it.
pub const TABLE: Tag = Tag(15);
/// Bytes of a table.
pub const TABLE_BYTES: u64 = PER_CHUNK * size_of::<Descriptor>() as u64;
/// In a chunk's entry, the bits of the second word that say which blocks are taken; the rest of it is the table's offset.
const TAKEN_BITS: u32 = PER_CHUNK as u32;

/// What is known of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Descriptor {
    /// Where its content also is, as the layer above says; 0: nowhere.
    pub place: u64,
    /// The epoch in which its content was stored here last, by whomever.
    pub epoch: u64,
    /// Whose it is, as the layer above says.
    pub owner: [u64; 2],
}
const _: () = assert!(size_of::<Descriptor>() == 32);

impl Descriptor {
    /// Has its memory been lost since its content was stored? `recovered` is what [`epochs`](crate::Session::epochs) says: the
    /// epoch that was running in what the memory was made from; 0 where that was never lost. The content is then what is at
    /// its place. (What has no place went to the backing with the commit of its epoch: see [`Frozen::mark_fresh`].)
    ///
    /// [`Frozen::mark_fresh`]: crate::session::Frozen::mark_fresh
    #[inline(always)]
    pub fn is_void(&self, recovered: u64) -> bool {
        self.place != 0 && self.epoch < recovered
    }

    /// Has it no place, and is of none of the epochs before `durable`, which commits hold?
    pub(crate) fn is_fresh(&self, durable: u64) -> bool {
        self.place == 0 && self.epoch >= durable
    }

    pub(crate) fn place_at(at: Off<Descriptor>) -> Off<u64> {
        at.field(std::mem::offset_of!(Descriptor, place))
    }

    pub(crate) fn epoch_at(at: Off<Descriptor>) -> Off<u64> {
        at.field(std::mem::offset_of!(Descriptor, epoch))
    }

    pub(crate) fn owner_at(at: Off<Descriptor>) -> Off<[u64; 2]> {
        at.field(std::mem::offset_of!(Descriptor, owner))
    }
}

impl Memory {
    /// Where the descriptor is of the block at `block`, allocated or not, before the reference is followed.
    ///
    /// # Errors
    /// [`Error::BadAddress`] or [`Error::WrongType`] where no block can be: damage.
    #[inline]
    pub fn block(&self, block: u64) -> Result<Off<Descriptor>> {
        if block % BLOCK != 0 {
            return Err(Error::BadAddress { off: block, len: BLOCK });
        }
        let table = self.block_table(self.geo.chunk_of(block))?;
        Ok(Off::<Descriptor>::new(table).index(block % CHUNK / BLOCK))
    }

    /// What is known of a block: consistent only under its owner's lock or a sequence counter.
    #[inline]
    pub fn descriptor(&self, block: u64) -> Result<Descriptor> {
        self.read(self.block(block)?)
    }

    /// The table of a chunk of blocks.
    pub fn block_table(&self, chunk: u64) -> Result<u64> {
        if self.meta(chunk)? != Meta::Blocks {
            return Err(Error::BadAddress { off: self.geo.chunk(chunk), len: BLOCK });
        }
        let table = self.table_word(chunk)? >> TAKEN_BITS;
        self.resolve(table, TABLE).map(|_| table)
    }

    /// The epoch that was running in what the memory was made from; 0: that was never lost.
    #[inline(always)]
    pub fn recovered(&self) -> Result<u64> {
        self.load(self.root(RECOVERED_ROOT))
    }

    /// The blocks of a chunk of them that are in use, with what is known of each.
    pub fn blocks_of(&self, chunk: u64) -> Result<SmallVec<[(u64, Descriptor); PER_CHUNK as usize]>> {
        let table = Off::<Descriptor>::new(self.block_table(chunk)?);
        let taken = self.table_word(chunk)?;
        let mut blocks = SmallVec::new();
        for n in (0..PER_CHUNK).filter(|n| taken >> n & 1 == 1) {
            blocks.push((self.geo.chunk(chunk) + n * BLOCK, self.read(table.index(n))?));
        }
        Ok(blocks)
    }

    #[inline]
    fn table_word(&self, chunk: u64) -> Result<u64> {
        self.load(self.geo.entry(chunk).field(8))
    }
}

/// Of a memory in `map` that was made from an image: the blocks whose content that held are of the epoch that runs now, all
/// others are void. `unplaced`: it held that of those without a place, as an image of ordinary RAM always does. Not
/// flushed.
pub fn note_restored(map: &Mapping, raw: &RawHeader, unplaced: bool) -> Result<()> {
    let unplaced = unplaced || raw.medium == MediumKind::Logged as u32;
    let (geo, end, epoch) = memory::survey(map, raw)?;
    for chunk in (0..end).filter(|n| geo.is_heap(*n)) {
        let [meta, bits] = map.read::<[u64; 2]>(geo.entry(chunk).raw())?;
        if Meta::decode(meta) != Meta::Blocks {
            continue;
        }
        for n in (0..PER_CHUNK).filter(|n| bits >> n & 1 == 1) {
            let at = Off::<Descriptor>::new(bits >> TAKEN_BITS).index(n);
            // Damage, if there is no such place: fsck reports it.
            let Ok(descriptor) = map.read::<Descriptor>(at.raw()) else { continue };
            let epoch = if !unplaced || descriptor.place == 0 { epoch } else { 0 };
            map.write(Descriptor::epoch_at(at).raw(), &epoch.to_le_bytes())?;
        }
    }
    Ok(())
}

impl Heap<'_> {
    /// Is the block under transfer? Whoever holds its owner's lock is told right: nobody else begins one.
    pub fn is_under_transfer(&self, block: u64) -> bool {
        self.rt.pin(block).load(std::sync::atomic::Ordering::SeqCst) != 0
    }

    /// Notes that the block is of use: whoever makes room passes it by once. Costs a load where that is noted already.
    #[inline]
    pub fn note_use(&self, block: u64) {
        self.rt.note_block_use(block);
    }

    /// Was its use noted since this was asked last?
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
        let table = self.alloc(slot, TABLE, TABLE_BYTES)?.off;
        let Some(chunk) = self.claim_free(slot)? else { return self.free(slot, table).map(|()| None) };
        self.memory.zero(table, TABLE_BYTES)?;
        self.memory.flush(table, TABLE_BYTES);
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
}
