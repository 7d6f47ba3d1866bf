//! Blocks: 4 KiB of memory each, aligned, for content that is too large to be copied twice.
//!
//! A store to an object of the heap is marked, and goes to the redo log and the image of a memory with a backing. A
//! store to the content of a block is not marked. On `battery` and `dax` that is enough, since a block is memory like
//! any other there. With a backing, the user of blocks writes their content elsewhere, once, before a commit counts (as
//! a [participant](crate::session)), and the block's *descriptor*, a part of the heap, says where. The commit takes
//! along content that has no place at its instant.
//!
//! ```text
//! chunk's entry: Blocks, which of the 16 are taken, table → table: 16 descriptors, one for each block
//! ```
//! Changes are methods of [`Tx`](crate::Tx) (`alloc_block`, `free_block`, `set_place`, `unset_place`, `set_owner`, `begin_change`, `store_content`,
//! `zero_content`, `copy_content`). Content is read with [`Memory::read_bytes`].
//!
//! A descriptor has 32 bytes: four words, each changed by one store. Its fields use some 47 (place), 64 (epoch), 28 and
//! 51 bits (inode and page), too many for 16 bytes. Packing them into 24 is not worth it: a cache line, the unit of a
//! redo log, holds two of them either way. A descriptor takes 0.8 % of the content.
//!
//! A memory made anew from its backing has all descriptors, but content only of blocks without a place
//! ([`Frozen::mark_fresh`](crate::session::Frozen::mark_fresh)). The other blocks are *void*. No walk has to find them:
//! their epoch shows it ([`Descriptor::is_void`]).

use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::chunk::{Meta, Tag};
use super::geometry::{BLOCK, CHUNK, PER_CHUNK, RECOVERED_ROOT};
use super::header::{survey, RawHeader};
use super::Memory;
use crate::error::{Error, Result};
use crate::medium::MediumKind;
use crate::mem::Mapping;
use crate::off::Off;

/// The tag of tables of descriptors: no other object has it.
pub const BLOCK_TABLE: Tag = Tag(15);
/// Bytes of such a table.
pub const BLOCK_TABLE_BYTES: u64 = PER_CHUNK * size_of::<Descriptor>() as u64;
/// In a chunk's entry, the bits of the second word that say which blocks are taken; the rest of it is the table's offset.
pub(crate) const TAKEN_BITS: u32 = PER_CHUNK as u32;

/// The descriptor of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Descriptor {
    /// Where its content also is, as the layer above says; 0: nowhere.
    pub place: u64,
    /// The epoch in which its content was last stored in memory.
    pub epoch: u64,
    /// The owner, as the layer above says.
    pub owner: [u64; 2],
}
const _: () = assert!(size_of::<Descriptor>() == 32);

impl Descriptor {
    /// Was the memory lost since the block's content was stored? Then the content is at its place. `recovered` comes
    /// from [`epochs`](crate::Session::epochs): the epoch that was running in the source that the memory was made from;
    /// 0 if it was never lost. (Content without a place went to the backing with the commit of its epoch: see
    /// [`Frozen::mark_fresh`].)
    ///
    /// [`Frozen::mark_fresh`]: crate::session::Frozen::mark_fresh
    #[inline(always)]
    pub fn is_void(&self, recovered: u64) -> bool {
        self.place != 0 && self.epoch < recovered
    }

    /// Has it no place, and does no commit hold it? Commits hold the epochs before `durable`.
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
    /// The offset of the descriptor of the block at `block`, allocated or not. Checks a reference before it is
    /// followed.
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

    /// The descriptor of a block: consistent only under the owner's lock or a sequence counter.
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
        self.resolve(table, BLOCK_TABLE).map(|_| table)
    }

    /// The epoch that was running in the source that the memory was made from; 0: the memory was never lost.
    #[inline(always)]
    pub fn recovered(&self) -> Result<u64> {
        self.load(self.root(RECOVERED_ROOT))
    }

    /// The used blocks of a chunk of blocks, each with its descriptor.
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
    pub(crate) fn table_word(&self, chunk: u64) -> Result<u64> {
        self.load(self.geo.entry(chunk).field(8))
    }
}

/// Sets the epochs of all blocks of a memory in `map` that was made from an image. A block whose content the image held
/// is of the running epoch; all others are void. `unplaced`: the image held content only of blocks without a place, as
/// one of ordinary RAM always does. Not flushed.
pub fn note_restored(map: &Mapping, raw: &RawHeader, unplaced: bool) -> Result<()> {
    let unplaced = unplaced || raw.medium == MediumKind::Logged as u32;
    let (geo, end, epoch) = survey(map, raw)?;
    for chunk in (0..end).filter(|n| geo.is_heap(*n)) {
        let [meta, bits] = map.read::<[u64; 2]>(geo.entry(chunk).raw())?;
        if Meta::decode(meta) != Meta::Blocks {
            continue;
        }
        for n in (0..PER_CHUNK).filter(|n| bits >> n & 1 == 1) {
            let at = Off::<Descriptor>::new(bits >> TAKEN_BITS).index(n);
            // A table outside the memory is damage: fsck reports it.
            let Ok(descriptor) = map.read::<Descriptor>(at.raw()) else { continue };
            let epoch = if !unplaced || descriptor.place == 0 { epoch } else { 0 };
            map.write(Descriptor::epoch_at(at).raw(), &epoch.to_le_bytes())?;
        }
    }
    Ok(())
}
