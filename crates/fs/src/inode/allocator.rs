//! Allocation of free inodes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use pram::{Memory, Off, Op};

use super::{install, memory_blocks, place_in, reserved_by, Block, InodePlace, Table};
use crate::error::Result;
use crate::layout::{tag, InodeBlock, MAX_INODES, PER_BLOCK, TABLE};
use crate::Ino;

/// Freed numbers remembered per slot, for reuse while their memory is warm.
const REMEMBERED: usize = 256;
/// Blocks looked at for free inodes before a new one is made.
const LOOK: u64 = 8;
/// Places looked at for those blocks.
const GAP: u64 = 32;
/// The low bit of each byte of a word.
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

/// Finds free inodes. Per process; per slot, so that threads keep out of each other's blocks.
pub struct Allocator {
    /// A process has seldom more of them than threads.
    slots: Box<[OnceLock<Box<SlotState>>]>,
    rotor: Mutex<Rotor>,
}

/// The words of an operation, by its slot: no other has that meanwhile, so it stores without locks.
struct SlotState {
    /// Block that this slot takes inodes from; 0 for none, else one more than its number.
    block: AtomicU64,
    /// How many of `freed` are numbers, and these.
    count: AtomicU32,
    freed: [AtomicU32; REMEMBERED],
}
const _: () = assert!(MAX_INODES <= 1 << 32);

impl Default for SlotState {
    fn default() -> Self {
        let freed = std::array::from_fn(|_| AtomicU32::new(0));
        SlotState { block: AtomicU64::new(0), count: AtomicU32::new(0), freed }
    }
}

impl SlotState {
    #[inline(always)]
    fn block(&self) -> Option<u64> {
        self.block.load(Ordering::Relaxed).checked_sub(1)
    }

    fn set_block(&self, block: u64) {
        self.block.store(block + 1, Ordering::Relaxed);
    }

    #[inline(always)]
    fn pop(&self) -> Option<Ino> {
        let last = self.count.load(Ordering::Relaxed).checked_sub(1)?;
        self.count.store(last, Ordering::Relaxed);
        Some(u64::from(self.freed.get(last as usize)?.load(Ordering::Relaxed)))
    }

    #[inline(always)]
    fn push(&self, ino: Ino) {
        let count = self.count.load(Ordering::Relaxed);
        if let Some(place) = self.freed.get(count as usize) {
            place.store(ino as u32, Ordering::Relaxed);
            self.count.store(count + 1, Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
struct Rotor {
    /// Where to look for partly used blocks.
    look: u64,
    /// Where to look for the first block that does not exist.
    make: u64,
}

impl Allocator {
    pub fn new(slots: u32) -> Self {
        Allocator { slots: (0..slots.max(1)).map(|_| OnceLock::new()).collect(), rotor: Mutex::default() }
    }

    #[inline(always)]
    fn slot(&self, slot: u32) -> &SlotState {
        self.slots[(slot as usize).min(self.slots.len() - 1)].get_or_init(Box::default)
    }

    /// Reserves a free inode; give it to a transaction or [`unreserve`](Self::unreserve) it.
    pub fn reserve(&self, op: &mut Op, table: Table) -> Result<(Ino, InodePlace)> {
        let state = self.slot(op.slot());
        while let Some(ino) = state.pop() {
            if let Some(place) = try_reserve(table, ino, op.slot())? {
                return Ok((ino, place));
            }
        }
        loop {
            if let Some(block) = state.block() {
                if let Some(found) = reserve_in(table, block, op.slot())? {
                    return Ok(found);
                }
            }
            state.set_block(self.next(op, table)?);
        }
    }

    /// Gives back a reservation that was not used.
    pub fn unreserve(&self, memory: &Memory, place: InodePlace) -> Result<()> {
        Ok(memory.commit_byte(place.length, 0)?)
    }

    /// Frees the inode; with its lock held, after the commit (I1).
    pub fn free(&self, op: &Op, ino: Ino, place: InodePlace) -> Result<()> {
        op.session().memory().commit_byte(place.length, 0)?;
        op.session().runtime().count(op.slot());
        self.slot(op.slot()).push(ino);
        Ok(())
    }

    /// New blocks are looked for from `block` on: the place of one that was given back.
    pub(super) fn make_from(&self, memory: &Memory, block: u64) {
        let mut rotor = memory.lock_by(&self.rotor);
        rotor.make = rotor.make.min(block);
    }

    /// A block with free inodes: one of the next few that exist, or a new one.
    #[cold]
    #[inline(never)]
    fn next(&self, op: &mut Op, table: Table) -> Result<u64> {
        let mut rotor = table.memory.lock_by(&self.rotor);
        let mut looks = 0;
        // Blocks that were given back leave gaps, so steps bound the search, not blocks found.
        for _ in 0..GAP {
            let block = rotor.look;
            rotor.look += 1;
            if block >= memory_blocks(table.memory) || table.level_is_missing(block)? {
                rotor.look = 0;
                break;
            }
            // Packed blocks have free inodes too: taking one would unpack all.
            let Block::Plain(off) = table.block(block)? else { continue };
            if free_at(table, block, off)? >= PER_BLOCK / 2 {
                return Ok(block);
            }
            looks += 1;
            if looks == LOOK {
                break;
            }
        }
        match make_block(op, table, &mut rotor) {
            Err(crate::Error::Posix(rustix::io::Errno::NOSPC)) => any_free(table),
            made => made,
        }
    }
}

/// Free inodes of the block at `off`.
fn free_at(table: Table, block: u64, off: u64) -> Result<u64> {
    let lengths: [u8; PER_BLOCK as usize] = table.memory.read(Off::new(off))?;
    // Number 0 is never used: counting it would offer block 0 for ever on a full pool.
    let never = usize::from(block == 0);
    Ok(lengths.iter().skip(never).filter(|l| **l == 0).count() as u64)
}

/// A plain block with free inodes; the error that unpacks one if only packed ones have any.
fn any_free(table: Table) -> Result<u64> {
    let (mut from, mut packed) = (0, None);
    while let Some(block) = table.next_block(from)? {
        match table.block(block)? {
            Block::Plain(off) if free_at(table, block, off)? > 0 => return Ok(block),
            Block::Packed(_) if packed.is_none() && has_free(table, block)? => packed = Some(block),
            _ => {}
        }
        from = block + 1;
    }
    Err(packed.map_or(rustix::io::Errno::NOSPC.into(), |block| crate::Error::Packed(block * PER_BLOCK)))
}

fn has_free(table: Table, block: u64) -> Result<bool> {
    // Number 0 is never used.
    Ok(table.used_of(block)? | u16::from(block == 0) != u16::MAX)
}

#[inline(always)]
fn try_reserve(table: Table, ino: Ino, slot: u32) -> Result<Option<InodePlace>> {
    let Some(place) = table.place(ino)? else { return Ok(None) };
    Ok(table.memory.install_byte(place.length, 0, reserved_by(slot))?.then_some(place))
}

#[inline(always)]
fn reserve_in(table: Table, block: u64, slot: u32) -> Result<Option<(Ino, InodePlace)>> {
    let Block::Plain(off) = table.block(block)? else { return Ok(None) };
    let lengths: [u64; PER_BLOCK as usize / 8] = table.memory.read(Off::new(off))?;
    for (half, lengths) in (0..).step_by(8).zip(lengths) {
        // The high bit of each byte that is zero, as found from the lowest on: above one that is, others may be wrong.
        let mut free = lengths.wrapping_sub(LOW_BITS) & !lengths & LOW_BITS << 7;
        while free != 0 {
            let n = half + u64::from(free.trailing_zeros() / 8);
            let (ino, place) = (block * PER_BLOCK + n, place_in(off, n));
            if ino != 0 && table.memory.install_byte(place.length, 0, reserved_by(slot))? {
                return Ok(Some((ino, place)));
            }
            free &= free - 1;
        }
    }
    Ok(None)
}

/// Makes the first block that does not exist yet.
fn make_block(op: &mut Op, table: Table, rotor: &mut Rotor) -> Result<u64> {
    let memory = table.memory;
    let mut wrapped = rotor.make == 0;
    loop {
        let block = rotor.make;
        if block >= memory_blocks(memory) {
            if wrapped {
                return Err(rustix::io::Errno::NOSPC.into());
            }
            wrapped = true;
            rotor.make = 0;
            continue;
        }
        let level2 = table.top.index(block / TABLE);
        if memory.load(level2)? == 0 {
            install(op, level2, tag::INODE_TABLE, TABLE * 8)?;
        }
        rotor.make = block + 1;
        if let Some(word) = table.block_word(block)? {
            if memory.load(word)? == 0 && install(op, word, tag::INODE_BLOCK, size_of::<InodeBlock>() as u64)? {
                return Ok(block);
            }
        }
    }
}
