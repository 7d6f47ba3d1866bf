//! A change of content: a transaction, and its changes of the log of segments.
//!
//! A change gathers here which blocks it takes from the log or gives back to it, and stores that at its end, in the same transaction: the table
//! of segments is changed once, and an undone change has changed nothing of it.

use std::ops::{Deref, DerefMut};

use pram::memory::Descriptor;
use pram::{Session, Tx};
use smallvec::SmallVec;

use super::PAGE;
use crate::error::{Error, Result};
use ilfs::{Log, Place};

/// The disks of the pool, as files need to know them.
#[derive(Clone, Copy)]
pub(crate) struct Disks<'a> {
    pub log: &'a Log,
    pub session: &'a Session,
    /// The file has its content on disk if it reaches beyond so many bytes.
    pub threshold: u64,
    /// If it is an executable or a shared library, and memory is not short, it does not up to so many bytes.
    pub executables: u64,
    /// Blocks that are [open](Edit::is_open) change where they are: for [measurements](crate::ubj::policy).
    pub in_place: bool,
}

/// Of the memory executables beyond their threshold leave one part in so many to the union cache.
const LEFT: u64 = 4;

/// A change under way. A change of a [large](super::Content::is_large) file holds the lock of the log's table too
/// ([`KEY`](ilfs::KEY)), and ends by [`finish`](Edit::finish) before the transaction commits.
pub struct Edit<'a, 'o> {
    tx: &'a mut Tx<'o>,
    disks: Option<Disks<'a>>,
    /// Places to which nothing leads any more.
    unlinked: SmallVec<[Place; 8]>,
    /// Blocks promised to reserved pages, and given back.
    promised: i64,
}

impl<'o> Deref for Edit<'_, 'o> {
    type Target = Tx<'o>;
    #[inline(always)]
    fn deref(&self) -> &Tx<'o> {
        self.tx
    }
}

impl DerefMut for Edit<'_, '_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.tx
    }
}

impl<'a, 'o> Edit<'a, 'o> {
    /// Where `disks` are none no file becomes large.
    #[inline(always)]
    pub(crate) fn new(tx: &'a mut Tx<'o>, disks: Option<Disks<'a>>) -> Edit<'a, 'o> {
        Edit { tx, disks, unlinked: SmallVec::new(), promised: 0 }
    }

    /// Of content that stays in memory.
    #[inline(always)]
    pub fn in_memory(tx: &'a mut Tx<'o>) -> Edit<'a, 'o> {
        Edit::new(tx, None)
    }

    /// Does a file that reaches to `end` have its content on disk?
    #[inline(always)]
    pub fn is_beyond_threshold(&self, end: u64) -> bool {
        self.disks.is_some_and(|disks| end > disks.threshold)
    }

    /// Does an executable that reaches to `end` stay in memory all the same? Only while the union cache has room enough beside
    /// small files, so that nothing is refused for it.
    pub fn may_hold_executable(&self, end: u64) -> bool {
        let Some(disks) = self.disks.filter(|disks| end <= disks.executables) else { return false };
        let (memory, rt) = (disks.session.memory(), disks.session.runtime());
        let left = rt.free_chunks() + rt.absent() + disks.session.heap().block_usage().chunks;
        left >= memory.geo.heap_chunks(memory.size()) / LEFT
    }

    /// A block for a page of the file of inode `owner`, its content undefined.
    pub fn new_block(&mut self, owner: u64, page: u64) -> Result<u64> {
        let epoch = self.epoch()?;
        Ok(self.tx.alloc_block(epoch, [owner, page])?)
    }

    /// The descriptor of a block, if it is this page's.
    pub fn block_of(&self, owner: u64, page: u64, block: u64) -> Result<Descriptor> {
        let descriptor = self.tx.memory().descriptor(block)?;
        match descriptor.owner == [owner, page] && self.tx.memory().is_allocated(block)? {
            true => Ok(descriptor),
            false => Err(Error::Corrupt(format!("block {block:#x} is not of page {page} of inode {owner}"))),
        }
    }

    /// A block's content is nowhere else any more.
    pub fn unset_place(&mut self, block: u64) -> Result<()> {
        let epoch = self.epoch()?;
        Ok(self.tx.unset_place(block, epoch)?)
    }

    /// May the bytes behind the end of the file be stored to this block as it is?
    pub fn is_open(&self, block: u64, descriptor: &Descriptor) -> Result<bool> {
        Ok(descriptor.place == 0 && !self.disks()?.session.heap().is_under_transfer(block))
    }

    /// May also bytes below the end of the file be stored there?
    pub fn changes_in_place(&self) -> bool {
        self.disks.is_some_and(|disks| disks.in_place)
    }

    /// Before bytes behind the end of the file are stored to a block that is [open](Self::is_open).
    pub fn extend_block(&mut self, block: u64) -> Result<()> {
        let epoch = self.epoch()?;
        Ok(self.tx.begin_change(block, epoch)?)
    }

    /// Fills bytes of a block with zeros, if there are any.
    pub fn zero_block(&mut self, at: u64, len: u64) -> Result<()> {
        match len {
            0 => Ok(()),
            len => Ok(self.tx.zero_content(at, len)?),
        }
    }

    /// Copies bytes to a block, if there are any.
    pub fn copy_to_block(&mut self, from: u64, at: u64, len: u64) -> Result<()> {
        match len {
            0 => Ok(()),
            len => Ok(self.tx.copy_content(from, at, len)?),
        }
    }

    /// Frees a block that is this page's, and gives up its place.
    pub fn free_block_of(&mut self, owner: u64, page: u64, block: u64) -> Result<()> {
        let descriptor = self.block_of(owner, page, block)?;
        self.unlinked.extend(Place::from_word(descriptor.place));
        Ok(self.tx.free_block(block)?)
    }

    /// Nothing leads to this place any more.
    pub fn unlink(&mut self, place: Place) {
        self.unlinked.push(place);
    }

    /// So many pages more, or fewer, are reserved without memory.
    pub fn promise(&mut self, more: i64) {
        self.promised += more;
    }

    /// Stores the changes of the log. Not called after a failure: that transaction is undone.
    #[inline(always)]
    pub fn finish(self) -> Result<()> {
        match self.unlinked.is_empty() && self.promised == 0 && self.tx.more_unplaced() <= 0 {
            true => Ok(()),
            false => self.tell_log(),
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_log(mut self) -> Result<()> {
        let Some(Disks { log, .. }) = self.disks else {
            // In tests of this crate a map stands in for a log, and needs no note.
            return if cfg!(test) { Ok(()) } else { Err(no_log()) };
        };
        self.unlinked.sort_unstable();
        log.unlink(self.tx, &self.unlinked)?;
        log.promise(self.tx, self.promised)?;
        // A replacement needs no more room than the old content had.
        if self.tx.more_unplaced() + self.promised > self.unlinked.len() as i64 {
            log.admit(self.tx)?;
        }
        Ok(())
    }

    fn disks(&self) -> Result<Disks<'a>> {
        self.disks.ok_or_else(no_log)
    }

    fn epoch(&self) -> Result<u64> {
        match self.disks {
            Some(disks) => Ok(disks.session.epoch()?),
            None if cfg!(test) => Ok(1),
            None => Err(no_log()),
        }
    }
}

fn no_log() -> Error {
    Error::Corrupt("a file has content on disks, and the pool has none".into())
}

/// Bytes of a block are those of a page.
const _: () = assert!(pram::memory::BLOCK == PAGE && ilfs::place::BLOCK == PAGE);
