//! A few empty plain blocks, reserved for unpacking if memory is full. Otherwise packed inodes could not even be removed
//! there, since a change of an inode first makes it plain.
//!
//! They are chained from a root word, each by the word at [`NEXT`], under a lock of their own:
//! - One is added: 1. It leads to the first. 2. The root word leads to it. A crash before leaks it.
//! - One is taken: the root word leads to the next. A crash before something else leads to the block leaks it.

use pram::{Memory, Off, Op};

use crate::error::Result;
use crate::layout::{root, tag, MAX_INODES, PER_BLOCK};

/// The lock of the chain.
pub const KEY: u64 = MAX_INODES + 3;
/// Their number: twice the blocks that the greediest operation unpacks, a rename between two directories.
const COUNT: usize = 8;
/// Position of the offset of the next one in a block: after the lengths.
const NEXT: u64 = PER_BLOCK;

/// Adds some of these blocks, if there are too few; gives back the others. In an operation that holds no locks, or that holds up
/// all others.
pub fn store(op: &mut Op, mut blocks: Vec<u64>) -> Result<Vec<u64>> {
    let memory = op.session().memory();
    if blocks.is_empty() || objects(memory)?.len() >= COUNT {
        return Ok(blocks);
    }
    op.unlock();
    op.lock(&[KEY])?;
    let mut more = COUNT.saturating_sub(objects(memory)?.len());
    while more > 0 {
        let Some(off) = blocks.pop() else { break };
        // 1.
        memory.commit_word(Off::new(off + NEXT), memory.load(memory.root(root::SPARE))?)?;
        // 2.
        memory.commit_word(memory.root(root::SPARE), off)?;
        more -= 1;
    }
    op.unlock();
    Ok(blocks)
}

/// Takes one, if there is any; with the lock held.
pub fn take(memory: &Memory) -> Result<Option<u64>> {
    let off = memory.load(memory.root(root::SPARE))?;
    if off == 0 {
        return Ok(None);
    }
    memory.resolve(off, tag::INODE_BLOCK)?;
    memory.commit_word(memory.root(root::SPARE), memory.load(Off::new(off + NEXT))?)?;
    Ok(Some(off))
}

/// All of them, as far as the chain can be followed.
pub fn objects(memory: &Memory) -> Result<Vec<u64>> {
    let (mut all, mut off) = (Vec::new(), memory.load(memory.root(root::SPARE))?);
    while off != 0 && all.len() < COUNT && memory.resolve(off, tag::INODE_BLOCK).is_ok() {
        all.push(off);
        off = memory.load(Off::new(off + NEXT))?;
    }
    Ok(all)
}
