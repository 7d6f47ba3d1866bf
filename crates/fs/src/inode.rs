//! The inode table: two levels of offsets, then blocks of sixteen inodes (mramfs, 5.1). The number of an
//! inode is its place.
//!
//! A free inode has length 0 in its block's header. An operation that wants one turns the 0 into a reservation
//! ([`reserved_by`] its slot) by a compare-and-swap, outside any transaction; the transaction that creates
//! the file then logs the change from there to [`INODE`]. So two creators never meet, and undoing one never
//! touches the other. A crash leaves a reserved inode at worst, which mark-and-sweep frees: once it has the
//! slot, no operation under way can have made the reservation.
//!
//! Inodes are freed after the commit of the transaction that took their last name (I1): until then the number must not
//! be reserved. Blocks whose inodes are all free go back to the heap ([`give_back`]).
//!
//! A block is plain, or packed once all its inodes have been quiet:
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the table |
//! | [`allocator`] | the choice of a free inode |
//! | [`packed`] | reading inodes of a packed block where they are |
//! | [`node`] | an inode in the hands of an operation |
//! | [`decoded`] | inodes that this process has read last |
//! | [`packing`] | packing and unpacking blocks |
//! | [`profiles`] | the codes of packed inodes |
//! | [`spare`] | memory for unpacking where there is none |
//! | [`give_back`] | the end of empty blocks |

mod allocator;
mod decoded;
mod give_back;
mod node;
mod packed;
pub(crate) mod packing;
pub(crate) mod profiles;
pub(crate) mod spare;

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use pram::{Error as Pram, Memory, Off, Op, Session};
use zerocopy::FromZeros;

use crate::error::Result;
use crate::file::Content;
use crate::layout::{tag, InodeBlock, RawInode, Super, INODE, MAX_INODES, PACKED, PER_BLOCK, TABLE};
use crate::Ino;

pub use allocator::Allocator;
pub use give_back::give_back;
pub(crate) use node::{content_of, Node};

use decoded::Decoded;
use profiles::Profiles;

/// Length bytes from here on are reservations; below lie lengths.
const RESERVED: u8 = 0xc0;

/// The length byte of an inode that the operation in `slot` is about to use.
#[inline(always)]
pub fn reserved_by(slot: u32) -> u8 {
    RESERVED | slot as u8 & !RESERVED
}

/// The slot of the operation that reserved an inode with this length byte.
pub fn reserver(length: u8) -> Option<u32> {
    (length >= RESERVED).then_some(u32::from(length & !RESERVED))
}

/// Where the words of an inode begin that make up its [`Content`].
const CONTENT: usize = offset_of!(RawInode, content);
const _: () = assert!(offset_of!(RawInode, size) == CONTENT + 8 && offset_of!(RawInode, extra) == CONTENT + 16);

/// Where a plain inode and its length byte lie.
#[derive(Clone, Copy, Debug)]
pub struct InodePlace {
    pub inode: Off<RawInode>,
    pub length: Off<u8>,
}

impl InodePlace {
    /// There is none: the inode is packed, or yet to be read.
    pub const NOWHERE: InodePlace = InodePlace { inode: Off::new(0), length: Off::new(0) };

    #[inline(always)]
    pub fn is_nowhere(self) -> bool {
        self.inode.raw() == 0
    }
}

/// The target of the word of a block, by offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    None,
    Plain(u64),
    Packed(u64),
}

impl Block {
    pub fn is_there(self) -> bool {
        self != Block::None
    }

    pub fn plain(self) -> Option<u64> {
        match self {
            Block::Plain(off) => Some(off),
            _ => None,
        }
    }

    /// The word.
    pub fn word(self) -> u64 {
        match self {
            Block::None => 0,
            Block::Plain(off) => off,
            Block::Packed(off) => off | PACKED,
        }
    }
}

/// Where an operation works: the number of an inode and, from callers that hold no reference to it, the
/// generation that they saw, so that they do not take another inode for theirs that got its number since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub ino: Ino,
    pub generation: Option<u32>,
}

impl From<Ino> for At {
    #[inline(always)]
    fn from(ino: Ino) -> At {
        At { ino, generation: None }
    }
}

impl At {
    /// The inode as it was seen.
    #[inline(always)]
    pub fn seen(ino: Ino, raw: &RawInode) -> At {
        At { ino, generation: Some(raw.generation) }
    }

    #[inline(always)]
    pub fn is(&self, raw: &RawInode) -> bool {
        self.generation.is_none_or(|g| g == raw.generation)
    }
}

/// Reads of the inode table.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    pub memory: &'a Memory,
    session: &'a Session,
    /// First level.
    pub top: Off<u64>,
    known: &'a Known,
}

/// A process's knowledge of the table.
#[derive(Default)]
pub struct Known {
    levels: Levels,
    profiles: Profiles,
    decoded: Decoded,
}

/// Offsets of second levels that this process has found to be ones, by the last digits of their places. One that the table does not
/// refer to any more (after a repair) is looked at anew.
#[derive(Default)]
struct Levels([AtomicU64; LEVELS as usize]);

/// Each is of four thousand blocks.
const LEVELS: u64 = 32;

impl<'a> Table<'a> {
    /// The offset of the word that refers to the block of `ino`, if its second level exists.
    #[inline(always)]
    pub fn block_word(&self, block: u64) -> Result<Option<Off<u64>>> {
        if block / TABLE >= TABLE {
            return Ok(None);
        }
        let known = &self.known.levels.0[(block / TABLE % LEVELS) as usize];
        let level2 = self.memory.load(self.top.index(block / TABLE))?;
        if level2 == 0 {
            return Ok(None);
        }
        if level2 != known.load(Ordering::Relaxed) {
            self.memory.resolve(level2, tag::INODE_TABLE)?;
            known.store(level2, Ordering::Relaxed);
        }
        Ok(Some(Off::<u64>::new(level2).index(block % TABLE)))
    }

    /// The target of the word of block number `block`, unchecked.
    #[inline(always)]
    fn lead(&self, block: u64) -> Result<Block> {
        let Some(word) = self.block_word(block)? else { return Ok(Block::None) };
        Ok(match self.memory.load(word)? {
            0 => Block::None,
            off if off & PACKED != 0 => Block::Packed(off - PACKED),
            off => Block::Plain(off),
        })
    }

    /// Block number `block`.
    #[inline(always)]
    pub fn block(&self, block: u64) -> Result<Block> {
        let found = self.lead(block)?;
        match found {
            Block::None => {}
            Block::Plain(off) => self.memory.resolve(off, tag::INODE_BLOCK).map(|_| ())?,
            Block::Packed(off) => self.check_packed(off)?,
        }
        Ok(found)
    }

    /// [`block`](Self::block), for a caller that is neither in an operation nor in a section of one of its inodes: it may be packed or
    /// unpacked, and its memory reused, between the look at the word and that at the memory.
    pub fn block_outside(&self, block: u64) -> Result<Block> {
        if matches!(self.lead(block), Ok(Block::None)) {
            return Ok(Block::None);
        }
        self.outside(block, || self.block(block))
    }

    /// Calls `look` until the block has stayed where it is meanwhile.
    fn outside<R>(&self, block: u64, look: impl Fn() -> Result<R>) -> Result<R> {
        let word = || self.block_word(block)?.map_or(Ok(0), |word| Ok(self.memory.load(word)?));
        loop {
            let before: Result<u64> = word();
            let seen = look();
            match (before, word()) {
                (Ok(before), Ok(after)) if before != after => {}
                _ => return seen,
            }
        }
    }

    /// Takes a reference that leads to no block out of the table: the one to the block of `ino`, or to the
    /// second level that should hold it. For repairs.
    pub fn forget(&self, ino: Ino) -> Result<()> {
        let block = ino / PER_BLOCK;
        let word = match self.block_word(block) {
            Ok(Some(word)) => word,
            Ok(None) => return Ok(()),
            Err(_) => self.top.index(block / TABLE),
        };
        if word.raw() == self.top.index(block / TABLE).raw() || self.block(block).is_err() {
            self.memory.commit_word(word, 0)?;
        }
        Ok(())
    }

    /// Where `ino` lies in a plain block, whether or not it is in use.
    #[inline(always)]
    pub fn place(&self, ino: Ino) -> Result<Option<InodePlace>> {
        Ok(self.block(ino / PER_BLOCK)?.plain().map(|off| place_in(off, ino % PER_BLOCK)))
    }

    /// The inode, if it is in use.
    #[inline(always)]
    pub fn get(&self, ino: Ino) -> Result<Option<RawInode>> {
        let mut raw = RawInode::new_zeroed();
        Ok(self.read(ino, &mut raw)?.map(|_| raw))
    }

    /// Reads the inode to `raw`, if it is in use; says where it can be changed: nowhere, if it is packed.
    #[inline(always)]
    pub fn read(&self, ino: Ino, raw: &mut RawInode) -> Result<Option<InodePlace>> {
        match self.lead(ino / PER_BLOCK)? {
            Block::None => Ok(None),
            Block::Plain(off) => {
                self.memory.resolve(off, tag::INODE_BLOCK)?;
                let place = place_in(off, ino % PER_BLOCK);
                if !self.is_used(place)? {
                    return Ok(None);
                }
                *raw = self.memory.read(place.inode)?;
                Ok(Some(place))
            }
            Block::Packed(off) => Ok(self.read_packed(off, ino, raw)?.then_some(InodePlace::NOWHERE)),
        }
    }

    #[inline(always)]
    fn is_used(&self, place: InodePlace) -> Result<bool> {
        match self.memory.read(place.length)? {
            n if u64::from(n) == INODE => Ok(true),
            n if n == 0 || n >= RESERVED => Ok(false),
            _ => Err(bad_length(place)),
        }
    }

    /// Links, type and content of an inode, if it is in use.
    #[inline(always)]
    pub fn summary(&self, ino: Ino) -> Result<Option<(u32, u8, Content)>> {
        let Block::Plain(off) = self.block(ino / PER_BLOCK)? else {
            let content = |raw: &RawInode| Content { root: raw.content, size: raw.size, pages: raw.extra, owner: ino };
            return Ok(self.get(ino)?.map(|raw| (raw.nlink, raw.kind, content(&raw))));
        };
        let place = place_in(off, ino % PER_BLOCK);
        if !self.is_used(place)? {
            return Ok(None);
        }
        let [root, size, pages]: [u64; 3] = self.memory.read(place.inode.field(CONTENT))?;
        let nlink = self.memory.read(place.inode.field(offset_of!(RawInode, nlink)))?;
        let kind = self.memory.read(place.inode.field(offset_of!(RawInode, kind)))?;
        Ok(Some((nlink, kind, Content { root, size, pages, owner: ino })))
    }

    /// Generation and type of an inode, if it is in use.
    #[inline(always)]
    pub fn identity(&self, ino: Ino) -> Result<Option<(u32, u8)>> {
        let Block::Plain(off) = self.block(ino / PER_BLOCK)? else {
            return Ok(self.get(ino)?.map(|raw| (raw.generation, raw.kind)));
        };
        let place = place_in(off, ino % PER_BLOCK);
        if !self.is_used(place)? {
            return Ok(None);
        }
        let generation = self.memory.read(place.inode.field(offset_of!(RawInode, generation)))?;
        Ok(Some((generation, self.memory.read(place.inode.field(offset_of!(RawInode, kind)))?)))
    }

    /// Is the second level that would refer to `block` not there?
    fn level_is_missing(&self, block: u64) -> Result<bool> {
        Ok(self.block_word(block)?.is_none())
    }

    /// The first inode from `first` on that is in use.
    pub fn next_used(&self, first: Ino) -> Result<Option<Ino>> {
        let mut from = first;
        while let Some(block) = self.next_block(from / PER_BLOCK)? {
            from = from.max(block * PER_BLOCK);
            // Checks report unreadable blocks, and no other caller may stop there for good.
            let used = self.used_of(block).unwrap_or(0) >> (from % PER_BLOCK);
            if used != 0 {
                return Ok(Some(from + u64::from(used.trailing_zeros())));
            }
            from = (block + 1) * PER_BLOCK;
        }
        Ok(None)
    }

    /// Which inodes of a block are in use, a bit each.
    pub fn used_of(&self, block: u64) -> Result<u16> {
        self.outside(block, || {
            let lengths = match self.block(block)? {
                // Given back since.
                Block::None => return Ok(0),
                Block::Plain(off) => self.memory.read::<[u8; PER_BLOCK as usize]>(Off::new(off))?,
                Block::Packed(off) => {
                    return self.packed_lengths(off).map(|lengths| mask(&lengths, |length| length > 0))
                }
            };
            Ok(mask(&lengths, |length| u64::from(length) == INODE))
        })
    }

    /// Numbers of the blocks that exist, ascending, from `first` on. References that lead nowhere are passed over: checks
    /// report them, and no other caller may stop there for good.
    pub fn next_block(&self, first: u64) -> Result<Option<u64>> {
        let mut block = first;
        while block < MAX_INODES / PER_BLOCK {
            match self.block_word(block) {
                Ok(Some(_)) if self.block_outside(block).is_ok_and(Block::is_there) => return Ok(Some(block)),
                Ok(Some(_)) => block += 1,
                _ => block = (block / TABLE + 1) * TABLE,
            }
        }
        Ok(None)
    }
}

fn mask(lengths: &[u8; PER_BLOCK as usize], is_used: impl Fn(u8) -> bool) -> u16 {
    lengths.iter().rev().fold(0, |mask, length| mask << 1 | u16::from(is_used(*length)))
}

#[cold]
#[inline(never)]
fn bad_length(place: InodePlace) -> crate::Error {
    Pram::BadAddress { off: place.length.raw(), len: 1 }.into()
}

/// The `n`th inode of the block at `off`.
#[inline(always)]
pub fn place_in(off: u64, n: u64) -> InodePlace {
    InodePlace { inode: Off::new(off + PER_BLOCK + n * INODE), length: Off::new(off + n) }
}

/// Makes the block of `ino`, if there is none.
pub(crate) fn make_block_of(op: &mut Op, table: Table, ino: Ino) -> Result<()> {
    let block = ino / PER_BLOCK;
    let level2 = table.top.index(block / TABLE);
    if table.memory.load(level2)? == 0 {
        install(op, level2, tag::INODE_TABLE, TABLE * 8)?;
    }
    if let Some(word) = table.block_word(block)? {
        if table.memory.load(word)? == 0 {
            install(op, word, tag::INODE_BLOCK, size_of::<InodeBlock>() as u64)?;
        }
    }
    Ok(())
}

/// Blocks beyond this cannot all exist in a memory of this size; inode numbers index runtime tables.
fn memory_blocks(memory: &Memory) -> u64 {
    max_inodes(memory.size()) / PER_BLOCK
}

/// Inode numbers in a memory of `size` bytes are below this.
pub fn max_inodes(size: u64) -> u64 {
    (size / 64).next_multiple_of(PER_BLOCK).min(MAX_INODES)
}

/// Links a zeroed object at `word`, unless another process has linked one; true if it is ours.
fn install(op: &mut Op, word: Off<u64>, tag: pram::Tag, size: u64) -> Result<bool> {
    let memory = op.session().memory();
    // 1. The object, zeroed, durable.
    let block = zeroed(op, tag, size)?;
    // 2. One word links it. A crash before leaks the object; it never links a half-made one.
    if memory.install_word(word, 0, block)? {
        return Ok(true);
    }
    let mut tx = op.tx()?;
    tx.free(block, tag)?;
    tx.commit()?;
    Ok(false)
}

/// An object of zeros in a transaction of its own.
pub(crate) fn zeroed(op: &mut Op, tag: pram::Tag, size: u64) -> Result<u64> {
    let mut tx = op.tx()?;
    let block = tx.alloc(tag, size)?;
    tx.init_zero(block.off, size)?;
    tx.commit()?;
    Ok(block.off)
}

/// Makes the empty table: its first level, zeroed.
pub fn format(op: &mut Op) -> Result<Off<u64>> {
    zeroed(op, tag::INODE_TABLE, TABLE * 8).map(Off::new)
}

/// The table of a superblock.
#[inline(always)]
pub fn table<'a>(session: &'a Session, sup: &Super, known: &'a Known) -> Table<'a> {
    Table { memory: session.memory(), session, top: sup.inodes, known }
}
