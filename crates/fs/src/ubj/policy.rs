//! For comparisons with other caches (UBJ 4): the state of a page, the amount of memory, and a cache that is no journal.
//!
//! Only measurements use it. It is of this process, and the pool knows nothing of it.

use std::sync::atomic::{AtomicBool, Ordering};

use pram::memory::BLOCK;
use pram::Session;

use super::{all_memory, free_memory, Inodes, Union};
use crate::attr::Ino;
use crate::error::Result;
use crate::file;

/// The treatment of a dirty block that is written to again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// It stays as it was committed, and another takes its place.
    Union,
    /// It changes where it is, as in a buffer cache without a journal (BF-no): a crash leaves part of the old and part of the new.
    Buffer,
}

/// A page that is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// It is also on disk.
    Clean,
    /// Of the running transaction.
    Running,
    /// Of a transaction that is committed, and not on disk yet.
    Frozen,
}

/// Which scheme this process keeps to.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    buffer: AtomicBool,
}

impl Union {
    /// From now on. Commits of changes under [`Scheme::Buffer`] are not atomic.
    pub fn choose(&self, scheme: Scheme) {
        self.chosen.buffer.store(scheme == Scheme::Buffer, Ordering::Relaxed);
    }

    /// Do dirty blocks change where they are?
    #[inline]
    pub(crate) fn changes_in_place(&self) -> bool {
        self.chosen.buffer.load(Ordering::Relaxed)
    }

    /// The state of a page of a large file; none: it is not in memory.
    pub fn state(&self, fs: &dyn Inodes, ino: Ino, page: u64) -> Result<Option<BlockState>> {
        let session = fs.session();
        let (epoch, commits) = (session.epoch()?, backing::of(session).is_some());
        session.read(ino, || {
            let Some(block) = file::block_of(fs.memory(), &fs.node(ino)?.content(), page)? else { return Ok(None) };
            let descriptor = fs.memory().descriptor(block)?;
            Ok(Some(match descriptor.place {
                0 if commits && descriptor.epoch >= epoch => BlockState::Running,
                0 => BlockState::Frozen,
                _ => BlockState::Clean,
            }))
        })
    }

    /// How many blocks memory has room for beside all else that is in it, those that it has included.
    pub fn capacity(&self, session: &Session) -> u64 {
        free_memory(session).min(all_memory(session)) / BLOCK + super::usage(session).used
    }
}
