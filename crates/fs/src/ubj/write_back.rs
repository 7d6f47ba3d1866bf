//! Write-back, which UBJ calls a checkpoint. Dirty blocks go to segments, from where they lie, and stay as clean ones.
//!
//! | step | action | otherwise |
//! | --- | --- | --- |
//! | 1 | dirty blocks are looked for, and put in the order of their files | |
//! | 2 | each that its page still leads to is pinned, under the lock of its file | it is freed and reused while a disk reads it |
//! | 3 | they are written, those of each class as far as there is room for it; durable | a page leads to an empty place; blocks that found room are written in vain, again and again, because another block of the batch found none |
//! | 4 | under the locks of file and log each gets its place, if its page still leads to it and the segment takes links; until then it is pinned | blocks that were given up meanwhile count as live, or blocks in a segment that is being cleaned as linked; bytes appended since, or another version of the page in the same block, count as written |
//! | 5 | places that nothing got are given up | they count as live until their segment is cleaned |
//!
//! A block that has been pinned or has a place does not change (F6 of [`crate::file`]): so step 4 finds the content that step 3 has
//! written.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::PoisonError;

use exraid::Buffers;
use pram::heap::Cursor;
use pram::memory::BLOCK;
use pram::session::assert_may_wait;
use pram::CHUNK;

use super::inodes::{regular, Inodes};
use super::{count, Count, Union};
use crate::error::Result;
use crate::file;
use crate::inode::Node;
use crate::retry::with_memory;
use ilfs::part::Owner;
use ilfs::sorted::{Kind, Sorted};
use ilfs::write::Block;
use ilfs::{Head, Place};

/// Blocks that one transaction pins or gives places to.
const PIECE: usize = 256;
/// Chunks of the heap whose descriptors are looked at in one step.
const STEP: usize = 64;
/// Blocks that are written at a time where there are so many: one flush for some segments.
pub(crate) const MUCH: usize = 8192;
/// Pieces under way for each region where there are several, and in all: enough that a disk has the next one when one ends.
const LANES: usize = 4;
const LANES_MOST: usize = 32;

/// A dirty block, and its owner when that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    ino: u64,
    page: u64,
    block: u64,
}

/// Blocks on their way to segments: steps 2 and 3.
pub(super) struct Batch<'l> {
    writer: Sorted<'l>,
    written: Vec<Found>,
    /// The writer lets go of blocks that are on disk; these do not.
    pins: Vec<Buffers>,
    _under_way: UnderWay<'l>,
}

/// So many blocks are being written.
struct UnderWay<'l>(&'l AtomicU64, u64);

impl UnderWay<'_> {
    fn of(all: &AtomicU64, blocks: u64) -> UnderWay<'_> {
        all.fetch_add(blocks, Ordering::Relaxed);
        UnderWay(all, blocks)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Union {
    /// Writes up to `most` dirty blocks, as many of a segment's worth at a time as there are; how many got a place. `only`: of
    /// this inode.
    pub fn write_back(&self, fs: &dyn Inodes, most: usize, only: Option<u64>) -> Result<u64> {
        match self.begin_batch(fs, most, only)? {
            Some(batch) => self.end_batch(fs, batch),
            None => Ok(0),
        }
    }

    /// Writes dirty blocks, `most` of them looked for at a time, as long as `go_on` says so and there are any; how many got a place.
    ///
    /// Disks are not waited for together: pieces are under way side by side, and each ends when it is on disk, so that a disk that is
    /// slow holds up its own pieces alone. Where there is one region, two large pieces are enough, with one flush each.
    pub(crate) fn write_on(
        &self,
        fs: &dyn Inodes,
        most: usize,
        go_on: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<u64> {
        let segment = self.log().content_of_segment() as usize;
        // Asked again each time: this may go on for long, and a region come meanwhile.
        let shape = || match self.log().taking().len() {
            ..=1 => (2, most),
            regions => ((LANES * regions).min(LANES_MOST), segment),
        };
        let (mut placed, mut failed, mut under_way) = (0, None, 0);
        // Others are writing the blocks that were found last, or these have gone.
        let mut found_nothing = false;
        let (mut found, mut at): (Vec<Found>, usize) = (Vec::new(), 0);
        // The count of placed blocks at the last search for more.
        let mut before = None;
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::scope(|scope| loop {
            let (lanes, piece) = shape();
            let mut wait = under_way >= lanes || (found_nothing && under_way > 0);
            if !wait && failed.is_none() && !found_nothing {
                match go_on() {
                    Ok(true) if at < found.len() => {}
                    // These blocks are being written: more may have come by when some of them have been.
                    Ok(true) if under_way > 0 && self.idle(fs) < segment as u64 => wait = true,
                    // None of the found blocks got a place: others write them, or nothing leads there.
                    Ok(true) if under_way == 0 && before == Some(placed) => (found, at) = (Vec::new(), 0),
                    Ok(true) => match self.find_room_and_dirty(fs, most, None) {
                        Ok(some) => (found, at, before) = (some, 0, Some(placed)),
                        Err(e) => failed = Some(e),
                    },
                    Ok(false) => (found, at) = (Vec::new(), 0),
                    // A failure concerns the next one only.
                    Err(e) => failed = Some(e),
                }
            }
            if !wait && failed.is_none() && !found_nothing && at < found.len() {
                let some = found[at..found.len().min(at + piece)].to_vec();
                at += some.len();
                let (under, ended) = (UnderWay::of(&self.under_way, some.len() as u64), ended.clone());
                scope.spawn(move || _ = ended.send(self.write_piece(fs, &some, under)));
                under_way += 1;
                continue;
            }
            if under_way == 0 {
                return match failed {
                    Some(e) if placed == 0 || e.errno() != rustix::io::Errno::NOSPC => Err(e),
                    _ => Ok(placed),
                };
            }
            // All that ended: there may be several.
            let first = end.recv().ok();
            for one in first.into_iter().chain(end.try_iter()) {
                under_way -= 1;
                match one {
                    Ok(some) => (placed, found_nothing) = (placed + some, some == 0),
                    Err(e) => failed = failed.take().or(Some(e)),
                }
            }
        })
    }

    /// Dirty blocks that this process is not writing.
    fn idle(&self, fs: &dyn Inodes) -> u64 {
        super::dirty(fs.session()).saturating_sub(self.under_way.load(Ordering::Relaxed))
    }

    fn write_piece(&self, fs: &dyn Inodes, found: &[Found], under_way: UnderWay<'_>) -> Result<u64> {
        match self.begin_piece(fs, found, under_way)? {
            Some(batch) => self.end_batch(fs, batch),
            None => Ok(0),
        }
    }

    /// Steps 1 and 2, and 3 as far as requests are under way. None where nothing is dirty.
    fn begin_batch<'l>(&'l self, fs: &'l dyn Inodes, most: usize, only: Option<u64>) -> Result<Option<Batch<'l>>> {
        let found = self.find_room_and_dirty(fs, most, only)?;
        let under_way = UnderWay::of(&self.under_way, found.len() as u64);
        self.begin_piece(fs, &found, under_way)
    }

    /// 1.
    fn find_room_and_dirty(&self, fs: &dyn Inodes, most: usize, only: Option<u64>) -> Result<Vec<Found>> {
        assert_may_wait();
        // A block that finds no room is written for nothing, with all that was written before it.
        let room = self.log().room(fs.session())?;
        if room == 0 {
            return Err(ilfs::Error::NoSpace.into());
        }
        let mut found = self.find_dirty(fs, most.min(room as usize), only)?;
        found.sort_unstable();
        Ok(found)
    }

    /// 2, and 3 as far as requests are under way. None where nothing is dirty any more.
    fn begin_piece<'l>(
        &'l self,
        fs: &'l dyn Inodes,
        found: &[Found],
        under_way: UnderWay<'l>,
    ) -> Result<Option<Batch<'l>>> {
        let writer = self.log().sorted(fs.session(), Head::Hot, None);
        let (written, pins) = (Vec::with_capacity(found.len()), Vec::with_capacity(found.len()));
        let mut batch = Batch { writer, written, pins, _under_way: under_way };
        let mut full: Vec<Kind> = Vec::new();
        // 2 and 3.
        for of_one in found.chunk_by(|a, b| a.ino == b.ino) {
            let kind = self.kind_of(fs, of_one[0].ino)?;
            for some in of_one.chunks(PIECE) {
                if full.contains(&kind) {
                    break;
                }
                for (found, block) in self.pin(fs, some)? {
                    batch.pins.push(block.content.clone());
                    batch.written.push(found);
                    match batch.writer.push(kind, block) {
                        Err(ilfs::Error::NoSpace) => {
                            full.push(kind);
                            break;
                        }
                        pushed => pushed?,
                    }
                }
            }
        }
        Ok(Some(batch).filter(|batch| !batch.written.is_empty()))
    }

    /// The rest of step 3, 4 and 5; how many got a place.
    fn end_batch(&self, fs: &dyn Inodes, batch: Batch<'_>) -> Result<u64> {
        let Batch { writer, written, pins, _under_way } = batch;
        let places = writer.finish_some()?;
        // 4 and 5.
        let written: Vec<(Found, Place)> =
            written.into_iter().zip(places).filter_map(|(found, place)| Some((found, place?))).collect();
        if written.is_empty() {
            return Err(ilfs::Error::NoSpace.into());
        }
        let (mut placed, mut rest) = (0, Vec::new());
        for some in written.chunk_by(|a, b| a.0.ino == b.0.ino).flat_map(|of_one| of_one.chunks(PIECE)) {
            placed += self.set_places(fs, some, &mut rest)?;
        }
        drop(pins);
        self.log().give_up(fs.session(), &rest)?;
        count(fs.session(), Count::Written, placed);
        self.room.note_progress();
        Ok(placed)
    }

    fn find_dirty(&self, fs: &dyn Inodes, most: usize, only: Option<u64>) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        let step = |cursor: &mut Cursor, found: &mut Vec<Found>| {
            let op = fs.session().begin()?;
            op.walk_unplaced(cursor, STEP, &mut |block, descriptor| {
                let [ino, page] = descriptor.owner;
                if only.is_none_or(|only| only == ino) {
                    found.push(Found { ino, page, block });
                }
            })
        };
        if only.is_some() {
            let mut cursor = Cursor::default();
            while step(&mut cursor, &mut found)? {}
            return Ok(found);
        }
        // On from where the last one stopped, and round once.
        let mut cursor = self.to_write.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ends = 0;
        while found.len() < most && ends < 2 {
            ends += u32::from(!step(&mut cursor, &mut found)?);
        }
        found.sort_unstable();
        found.dedup();
        found.truncate(most);
        Ok(found)
    }

    /// Step 4, for blocks of one file; places that nothing got go to `rest`.
    fn set_places(&self, fs: &dyn Inodes, some: &[(Found, Place)], rest: &mut Vec<Place>) -> Result<u64> {
        with_memory(fs.session(), || self.try_set_places(fs, some, rest))
    }

    fn try_set_places(&self, fs: &dyn Inodes, some: &[(Found, Place)], rest: &mut Vec<Place>) -> Result<u64> {
        let mut op = fs.session().begin()?;
        op.lock(&[some[0].0.ino, ilfs::KEY])?;
        let Some(node) = regular(fs, some[0].0.ino)? else {
            rest.extend(some.iter().map(|(_, place)| *place));
            return Ok(0);
        };
        let (content, mut left, mut placed) = (node.content(), Vec::new(), 0);
        let mut tx = op.tx()?;
        for (found, place) in some {
            let is_there = file::is_at(fs.memory(), &content, found.page, found.block)?
                && fs.memory().descriptor(found.block)?.place == 0;
            match is_there && self.log().can_link(&mut tx, *place)? {
                true => {
                    tx.set_place(found.block, place.word())?;
                    placed += 1;
                }
                false => left.push(*place),
            }
        }
        tx.commit()?;
        rest.extend(left);
        Ok(placed)
    }

    /// Step 2, for blocks of one file.
    fn pin(&self, fs: &dyn Inodes, some: &[Found]) -> Result<Vec<(Found, Block)>> {
        let mut op = fs.session().begin()?;
        op.lock(&[some[0].ino])?;
        let Some(node) = regular(fs, some[0].ino)? else { return Ok(Vec::new()) };
        let (content, mut there) = (node.content(), Vec::with_capacity(some.len()));
        for found in some {
            if file::is_at(fs.memory(), &content, found.page, found.block)?
                && fs.memory().descriptor(found.block)?.place == 0
            {
                there.push(*found);
            }
        }
        let mut pinned = Vec::with_capacity(there.len());
        for run in there.chunk_by(|a, b| a.block + BLOCK == b.block && a.block / CHUNK == b.block / CHUNK) {
            if !pin_run(fs, run, &node, &mut pinned)? {
                // Another thread is writing some of them.
                for one in run.chunks(1) {
                    let is_elsewhere = !pin_run(fs, one, &node, &mut pinned)?;
                    count(fs.session(), Count::Elsewhere, u64::from(is_elsewhere));
                }
            }
        }
        Ok(pinned)
    }
}

/// Pins blocks that lie one behind the other, all or none.
fn pin_run(fs: &dyn Inodes, run: &[Found], node: &Node, pinned: &mut Vec<(Found, Block)>) -> Result<bool> {
    let Some(transfer) = fs.session().transfer(run[0].block, run.len() as u64)? else { return Ok(false) };
    pinned.extend(run.iter().zip((0..).step_by(BLOCK as usize)).map(|(found, at)| {
        let owner = Owner { ino: found.ino, generation: node.raw.generation, page: found.page };
        (*found, Block { owner, content: Buffers::part(&transfer, at..at + BLOCK as usize), moved: None })
    }));
    Ok(true)
}
