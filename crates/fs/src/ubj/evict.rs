//! Eviction: clean blocks give their memory back; their pages are read from disk next time.
//!
//! The hand of a clock goes over all blocks. It passes by those that have no place, and once by those whose use was noted since it
//! was there: readers note it, by a byte beside the heap, which they store to only where it is not set. A fetched page comes into
//! memory only if it was read more than once lately ([`super::admit`]), so that a scan evicts nothing. A block that may be the last copy of a page stays ([`super::doubtful`]).

use std::sync::PoisonError;

use pram::heap::{Cursor, Which};
use pram::memory::PER_CHUNK;

use super::inodes::{regular, Inodes};
use super::{count, Count, Union};
use crate::error::Result;
use crate::file;
use crate::retry::with_memory;
use ilfs::table::ORDERING;
use ilfs::Place;

/// Blocks that one transaction frees.
const PIECE: usize = 256;
/// Chunks of the heap whose descriptors are looked at in one step.
const STEP: usize = 64;
/// The hand passes by so many times the wanted blocks for a caller that does not need them.
const PASSED: u64 = 4;

impl Union {
    /// Takes `wanted` clean blocks out of memory, as far as there are so many; how many. `only`: of this inode, whether in use or
    /// not.
    pub fn evict(&self, fs: &dyn Inodes, wanted: u64, only: Option<u64>) -> Result<u64> {
        let (mut own, mut rounds, mut evicted) = (Cursor::default(), 0, 0);
        while evicted < wanted && rounds < 2 {
            let (some, more) = self.evict_next(fs, only, &mut own)?;
            evicted += some;
            rounds += u32::from(!more) * if only.is_some() { 2 } else { 1 };
        }
        Ok(evicted)
    }

    /// The same as far as the hand comes while it passes by a few times as many blocks: for whom it is not worth more.
    pub(super) fn evict_passed(&self, fs: &dyn Inodes, wanted: u64) -> Result<u64> {
        let steps = (PASSED * wanted).div_ceil(STEP as u64 * PER_CHUNK);
        let mut evicted = 0;
        for _ in 0..steps {
            if evicted >= wanted {
                break;
            }
            evicted += self.evict_next(fs, None, &mut Cursor::default())?.0;
        }
        Ok(evicted)
    }

    /// One step of the hand, or of a walk of one's `own` for the blocks of one inode: blocks that were taken out, and whether there are more
    /// to come in this round.
    fn evict_next(&self, fs: &dyn Inodes, only: Option<u64>, own: &mut Cursor) -> Result<(u64, bool)> {
        let heap = fs.session().heap();
        let mut found = Vec::new();
        let mut see = |block, descriptor: pram::memory::Descriptor| {
            let [ino, page] = descriptor.owner;
            let is_wanted = match only {
                Some(only) => only == ino,
                None => !heap.take_use(block),
            };
            if let Some(place) = Place::from_word(descriptor.place).filter(|_| is_wanted) {
                found.push(((ino, page, block), place));
            }
        };
        let more = match only {
            Some(_) => heap.walk_blocks(Which::All, own, STEP, &mut see)?,
            None => {
                let mut cursor = self.to_evict.lock().unwrap_or_else(PoisonError::into_inner);
                heap.walk_blocks(Which::All, &mut cursor, STEP, &mut see)?
            }
        };
        let mut found = self.without_doubtful(fs, found)?;
        found.sort_unstable();
        let mut evicted = 0;
        for some in found.chunk_by(|a, b| a.0 == b.0).flat_map(|of_one| of_one.chunks(PIECE)) {
            evicted += with_memory(fs.session(), || evict_some(fs, some))?;
        }
        count(fs.session(), Count::Evicted, evicted);
        if evicted > 0 {
            self.room.note_progress();
        }
        Ok((evicted, more))
    }
}

/// Blocks of one file.
fn evict_some(fs: &dyn Inodes, some: &[(u64, u64, u64)]) -> Result<u64> {
    let mut op = fs.session().begin()?;
    let ino = some[0].0;
    op.lock(&[ino])?;
    // Another operation is giving pages of a file other numbers, and looks at their entries.
    if op.is_long_locked(ORDERING) {
        return Ok(0);
    }
    let Some(node) = regular(fs, ino)? else { return Ok(0) };
    let (content, mut evicted) = (node.content(), 0);
    let mut tx = op.tx()?;
    let mut edit = fs.edit(&mut tx);
    for (_, page, block) in some {
        evicted += u64::from(file::evict(&mut edit, &content, *page, *block)?);
    }
    file::compact(&mut edit, &content, some.iter().map(|(_, page, _)| *page))?;
    edit.finish()?;
    tx.commit()?;
    Ok(evicted)
}
