//! Freeing triples that no inode names: else any user who may change modes could fill the table for good.
//!
//! While others work, this is exact. Ordered steps:
//! 1. A new numbering begins: the memories of processes of the table do not count any more, and a process that takes a triple
//!    up notes it, under the table's lock.
//! 2. Operations under way are waited for. (Else one that found its triple before 1 would name it in an inode that has been
//!    looked at.)
//! 3. The triples that inodes name are marked, each inode under its sequence counter: it names one that is marked, or was
//!    taken up since 1 and is noted.
//! 4. Those neither marked nor noted are freed, under the table's lock, some at a time. A crash leaves the rest, and the
//!    next sweep finds them.
//!
//! A reader of an inode without its lock, and of its triple afterwards, looks again: [`Fs::seen_perm`].
//! Other sweeps, and giving back inode blocks, are kept out.

use std::mem::offset_of;
use std::time::Duration;

use rustix::io::Errno;

use super::mark::Marks;
use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::layout::{RawInode, RawPerm, PER_BLOCK};
use crate::node::{At, Fs};
use crate::perm::{Perms, LIMIT, PERM_KEY};

/// Triples freed in one transaction.
const BATCH: u64 = 64;
/// The pause after a sweep that found nothing.
const REST: Duration = Duration::from_secs(1);

/// The triples that inodes name: a bit each.
struct Named(Vec<u64>);

impl Named {
    fn mark(&mut self, id: u32) -> Result<()> {
        let word = self.0.get_mut(id as usize / 64);
        let word = word.ok_or_else(|| Error::Corrupt(format!("permission triple {id} cannot be")))?;
        *word |= 1 << (id % 64);
        Ok(())
    }

    fn is_marked(&self, id: u64) -> bool {
        self.0[id as usize / 64] >> (id % 64) & 1 == 1
    }
}

/// Ends the numbering of a sweep.
struct Numbering<'a>(&'a Fs);

impl Drop for Numbering<'_> {
    fn drop(&mut self) {
        self.0.session().runtime().end_numbering();
    }
}

impl Fs {
    /// Frees triples that no inode names, while others work; returns how many. Fails if an inode cannot be read: it
    /// may name any.
    pub fn free_unused_triples(&self) -> Result<u64> {
        let _others = Marks::begin(self.session())?;
        self.session().runtime().begin_numbering();
        let _numbering = Numbering(self);
        self.session().drain()?;
        let mut named = Named(vec![0; LIMIT as usize / 64]);
        let mut from = 0;
        while let Some(block) = self.table().next_block(from)? {
            (block * PER_BLOCK..(block + 1) * PER_BLOCK).try_for_each(|ino| self.mark_named(ino, &mut named))?;
            from = block + 1;
        }
        let mut freed = 0;
        for first in (0..LIMIT).step_by(BATCH as usize) {
            freed += self.perms().free(self, first, &named)?;
        }
        Ok(freed)
    }

    fn mark_named(&self, ino: Ino, named: &mut Named) -> Result<()> {
        let perm =
            self.session().read(ino, || -> Result<Option<u32>> { Ok(self.table().get(ino)?.map(|raw| raw.perm)) })?;
        perm.map_or(Ok(()), |id| named.mark(id))
    }

    /// For an operation that has found the table full: ENOSPC if nothing can be freed.
    #[cold]
    pub(crate) fn make_triples(&self) -> Result<()> {
        let mut found_nothing = self.found_nothing.lock().unwrap_or_else(|e| e.into_inner());
        if found_nothing.is_some_and(|since| self.session().clock().since(since) < REST) {
            return Err(Errno::NOSPC.into());
        }
        let freed = self.free_unused_triples()?;
        *found_nothing = (freed == 0).then(|| self.session().clock().instant());
        match freed {
            0 => Err(Errno::NOSPC.into()),
            _ => Ok(()),
        }
    }

    /// The triple of an inode that was seen, is not locked and not being read. It may be another's since, if any was ever
    /// freed: then it is the one that the inode has now.
    #[inline(always)]
    pub(crate) fn seen_perm(&self, ino: Ino, raw: &RawInode) -> Result<RawPerm> {
        let perm = self.perms().get(self.session(), raw.perm);
        match self.session().runtime().numbering() {
            0 => perm,
            _ => self.perm_now(At::seen(ino, raw)).or(perm),
        }
    }

    #[cold]
    fn perm_now(&self, at: At) -> Result<RawPerm> {
        self.session().read(at.ino, || self.perms().get(self.session(), self.node(at)?.raw.perm))
    }
}

impl Perms {
    /// Step 4 for the triples from `first` on.
    fn free(&self, fs: &Fs, first: u64, named: &Named) -> Result<u64> {
        let (memory, rt) = (fs.memory(), fs.session().runtime());
        if self.at(memory, first)?.is_none() {
            return Ok(0);
        }
        let mut op = fs.session().begin()?;
        op.lock(&[PERM_KEY])?;
        let mut tx = op.tx()?;
        let mut freed = 0;
        for id in (first..first + BATCH).filter(|id| !named.is_marked(*id) && !rt.is_number_noted(*id)) {
            let Some(off) = self.at(memory, id)? else { break };
            let mode = off.field::<u32>(offset_of!(RawPerm, mode));
            if memory.read(mode)? != 0 {
                tx.set(mode, &0)?;
                freed += 1;
            }
        }
        if freed > 0 {
            tx.commit()?;
        }
        Ok(freed)
    }
}
