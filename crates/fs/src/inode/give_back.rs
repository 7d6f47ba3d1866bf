//! Empty inode blocks go back to the heap.
//!
//! Four parties may know a block: an operation that reserves in it, one that works on an inode of it, readers without lock, and
//! sweeps. Steps for a block whose inodes are all free:
//! 1. The locks of its inodes are taken. (So a reader that located an inode before step 3 finds its look
//!    torn, with any content of the memory by then.)
//! 2. All its inodes are reserved. (Else an operation could create a file in memory that is about to be freed.)
//! 3. One word unlinks the block. A crash from here on leaks it, which mark-and-sweep finds.
//! 4. Operations under way are waited for: they may have located the block before step 3.
//! 5. The object is freed.
//!
//! The caller holds the mark of a sweep, which keeps sweeps out.

use pram::{Off, Op, Session};

use super::{place_in, reserved_by, Allocator, Block, Table};
use crate::error::Result;
use crate::layout::{tag, PER_BLOCK};

/// Blocks unlinked before they are waited for and freed together.
const BATCH: usize = 256;

/// Gives back blocks without inodes; returns how many.
pub fn give_back(session: &Session, table: Table, inodes: &Allocator) -> Result<u64> {
    let (mut given, mut from) = (0, 1);
    let mut unlinked = Vec::new();
    while let Some(block) = table.next_block(from)? {
        from = block + 1;
        // A packed one has inodes.
        if empty(table, table.block_outside(block)?)?.is_some() {
            let mut op = session.begin()?;
            if let Some(off) = unlink(&mut op, table, block)? {
                inodes.make_from(session.memory(), block);
                unlinked.push(off);
                given += 1;
            }
        }
        if unlinked.len() == BATCH {
            free(session, &mut unlinked)?;
        }
    }
    free(session, &mut unlinked)?;
    Ok(given)
}

/// The offset of a block, if it is there and empty.
fn empty(table: Table, block: Block) -> Result<Option<u64>> {
    let Block::Plain(off) = block else { return Ok(None) };
    let lengths: [u8; PER_BLOCK as usize] = table.memory.read(Off::new(off))?;
    Ok((lengths == [0; PER_BLOCK as usize]).then_some(off))
}

/// Steps 1 to 3; the offset of the block if it could be had.
fn unlink(op: &mut Op, table: Table, block: u64) -> Result<Option<u64>> {
    let numbers: [u64; PER_BLOCK as usize] = std::array::from_fn(|n| block * PER_BLOCK + n as u64);
    op.lock(&numbers)?;
    let Some(off) = empty(table, table.block(block)?)? else { return Ok(None) };
    if !close(op, table, off, u16::MAX)? {
        return Ok(None);
    }
    match table.block_word(block)? {
        Some(word) if table.memory.install_word(word, off, 0)? => Ok(Some(off)),
        _ => Ok(None),
    }
}

/// Reserves these inodes of the block at `off`, a bit each; all, or none if one is not free.
pub(super) fn close(op: &Op, table: Table, off: u64, which: u16) -> Result<bool> {
    let numbers = || (0..PER_BLOCK).filter(|n| which >> n & 1 == 1);
    let closed = reserved_by(op.slot());
    for n in numbers() {
        if !table.memory.install_byte(place_in(off, n).length, 0, closed)? {
            for m in numbers().take_while(|m| *m < n) {
                table.memory.install_byte(place_in(off, m).length, closed, 0)?;
            }
            return Ok(false);
        }
    }
    Ok(true)
}

/// Frees the inodes that [`close`] has reserved.
pub(super) fn reopen(op: &Op, table: Table, off: u64, which: u16) -> Result<()> {
    for n in (0..PER_BLOCK).filter(|n| which >> n & 1 == 1) {
        table.memory.install_byte(place_in(off, n).length, reserved_by(op.slot()), 0)?;
    }
    Ok(())
}

/// Steps 4 and 5.
fn free(session: &Session, unlinked: &mut Vec<u64>) -> Result<()> {
    if unlinked.is_empty() {
        return Ok(());
    }
    session.drain()?;
    let mut op = session.begin()?;
    let mut tx = op.tx()?;
    for off in unlinked.drain(..) {
        tx.free(off, tag::INODE_BLOCK)?;
    }
    Ok(tx.commit()?)
}
