//! Memory from the host: taken and given back, as a memory's chunk table says.

use std::ops::Range;

use super::{Memory, Meta, BLOCK, CHUNK, GROUP, TABLE_AT};
use crate::error::{Error, Result};
use crate::medium::{MediumKind, Ram};
use crate::mem::Mapping;
use crate::reserve;

/// Bytes of blocks that a file may have beside its content.
const SLACK: u64 = 1 << 20;

/// Takes exactly the memory from the host that the chunk table in `map` says.
pub fn settle_memory(map: Mapping, kind: MediumKind) -> Result<()> {
    Memory::open(map, Box::new(Ram::like(kind)))?.settle_memory()
}

impl Memory {
    /// The ranges with content: all but undo logs, and chunks that have no memory.
    pub fn held(&self) -> Result<Vec<Range<u64>>> {
        self.held_but(&[Meta::Absent])
    }

    /// The ranges that a backing holds too: [`held`](Self::held) without the content of blocks that have a place.
    pub fn copied(&self) -> Result<Vec<Range<u64>>> {
        let mut copied = self.held_but(&[Meta::Absent, Meta::Blocks])?;
        for chunk in self.chunks() {
            // fsck reports a damaged chunk.
            let Ok(blocks) = self.blocks_of(chunk) else { continue };
            let unplaced = blocks.iter().filter(|(_, descriptor)| descriptor.place == 0);
            copied.extend(unplaced.map(|(block, _)| *block..*block + BLOCK));
        }
        Ok(copied)
    }

    /// All ranges but undo logs, and chunks of these states.
    fn held_but(&self, states: &[Meta]) -> Result<Vec<Range<u64>>> {
        let (undo, geo) = (self.geo.undo_logs(), self.geo);
        let mut held = vec![0..undo.start, undo.end..geo.heap()];
        for group in 0..self.groups() {
            if group > 0 {
                held.push(group * GROUP + TABLE_AT..geo.head(group).end);
            }
            for n in self.chunks_of(group) {
                let at = n * CHUNK..(n + 1) * CHUNK;
                match self.meta(n)? {
                    meta if states.contains(&meta) => {}
                    _ => match held.last_mut().filter(|last| last.end == at.start) {
                        Some(last) => last.end = at.end,
                        None => held.push(at),
                    },
                }
            }
        }
        Ok(held)
    }

    /// Whether there is memory at an offset. Only chunks of the heap can lack it.
    pub fn has_memory(&self, off: u64) -> Result<bool> {
        let chunk = self.geo.chunk_of(off);
        Ok(!self.geo.is_heap(chunk) || self.meta(chunk)? != Meta::Absent)
    }

    /// Makes sure that there is memory for a range, which is not in use yet.
    pub(crate) fn take(&self, range: Range<u64>) -> Result<()> {
        match self.map.growing_file() {
            Some(file) => {
                if self.info.medium != MediumKind::Dax {
                    self.map.take_huge(range.clone());
                }
                let taken = file.lend().and_then(|file| reserve::take(file, range, self.info.medium));
                taken.map_err(Error::host("taking memory"))
            }
            None => Ok(()),
        }
    }

    /// Gives the memory of a range back, which is no longer in use.
    pub(crate) fn give_back(&self, range: Range<u64>) -> Result<()> {
        match self.map.growing_file() {
            Some(file) => {
                let given = file.lend().and_then(|file| reserve::give_back(file, range));
                given.map_err(Error::host("giving memory back"))
            }
            None => Ok(()),
        }
    }

    /// Makes sure that the memory's file has memory exactly where the entries say. A copy of a file may gain or lose
    /// holes, and a crash may have come between an entry and its memory. With nobody attached.
    pub(crate) fn settle_memory(&self) -> Result<()> {
        let Some(file) = self.map().growing_file() else { return Ok(()) };
        let mut kept: Vec<_> = (0..self.groups()).map(|n| self.geo.head(n)).chain(self.held()?).collect();
        kept.sort_unstable_by_key(|range| range.start);
        kept.dedup_by(|next, range| {
            let joins = next.start <= range.end;
            range.end = if joins { range.end.max(next.end) } else { range.end };
            joins
        });
        let expected: u64 = kept.iter().map(|range| range.end - range.start).sum();
        let looking = "looking at the memory's file";
        let file = file.lend().map_err(Error::host(looking))?;
        let stat = rustix::fs::fstat(&file).map_err(Error::host(looking))?;
        if (expected..=expected + SLACK).contains(&(stat.st_blocks as u64 * 512)) {
            return Ok(());
        }
        let mut at = 0;
        for range in kept {
            self.give_back(at..range.start)?;
            at = range.end;
            reserve::fill_holes(&file, range).map_err(Error::host("taking the memory that the pool uses"))?;
        }
        self.give_back(at..self.size().max(at))
    }
}
