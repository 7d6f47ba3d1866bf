//! Changes of content that lies on disk: the pages that they need are fetched first. (Compressed content is made plain first, in the same
//! way: see [`compress`](super::compress).)
//!
//! No call waits for a device inside an operation. A change takes its lock and sets out as if all content were in memory,
//! which costs nothing if it is. If it finds a page of which it changes a part, and which lies on disk, its
//! transaction is undone, and:
//! 1. Under the lock, it lists all pages that it needs, three at most.
//! 2. The operation ends, and they are fetched into memory of this thread. (Entered into the file one by one, the first
//!    could be evicted again before the last is there.)
//! 3. The operation begins anew and takes its lock. Everything is looked at again: the file may have changed.
//! 4. Under the same lock, the pages that still lie where they did are entered into the file, and the change sets out again. (No page
//!    of a locked file is evicted.)
//!
//! If a page lies elsewhere by then, all this repeats; after some times with the file's long lock, which eviction respects as
//! writers do. If it cannot be fetched, the call fails and nothing has changed.

#[cfg(test)]
mod tests;

use std::ops::{DerefMut, Range};

use pram::session::LongLock;
use pram::Op;
use rustix::io::Errno;

use super::content::Writers;
use super::{Fs, Node, ReadFlags};
use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::file::{self, Content, Fetched, FetchedPage, Fetching, Missing, Needed};
use crate::ubj;
use ilfs::Place;

/// How many times a change fetches pages without a long lock.
const TRIES: u32 = 3;

/// The pages that a change has fetched.
#[derive(Default)]
struct Prepared<'s> {
    needed: Needed,
    fetched: Fetched,
    tries: u32,
    lock: Option<LongLock<'s>>,
}

impl Fs {
    /// Runs `change`, of a range of bytes that may depend on the inode, under the lock of `node` that `op` has, with `node` read; and again
    /// with the content that it needs from elsewhere.
    #[inline(always)]
    pub(super) fn with_content<'f, O: DerefMut<Target = Op<'f>>, T>(
        &self,
        op: &mut O,
        node: &mut Node,
        others: Writers,
        range: impl Fn(&Node) -> (u64, u64),
        mut change: impl FnMut(&mut O, &mut Node) -> Result<T>,
    ) -> Result<T> {
        match change(op, node) {
            Err(Error::Elsewhere) => self.again_with_content(op, node, others, range, change),
            done => done,
        }
    }

    /// Runs a change again that has failed with [`Error::Elsewhere`].
    #[cold]
    #[inline(never)]
    pub(super) fn again_with_content<'f, O: DerefMut<Target = Op<'f>>, T>(
        &self,
        op: &mut O,
        node: &mut Node,
        others: Writers,
        range: impl Fn(&Node) -> (u64, u64),
        mut change: impl FnMut(&mut O, &mut Node) -> Result<T>,
    ) -> Result<T> {
        let mut prepared = Prepared::default();
        loop {
            self.prepare(op, node, others, &range, &mut prepared)?;
            match change(op, node) {
                Err(Error::Elsewhere) => {}
                done => return done,
            }
        }
    }

    /// One round of it: steps 1 to 4.
    #[cold]
    #[inline(never)]
    fn prepare<'s>(
        &'s self,
        op: &mut Op,
        node: &mut Node,
        others: Writers,
        range: impl Fn(&Node) -> (u64, u64),
        prepared: &mut Prepared<'s>,
    ) -> Result<()> {
        let Prepared { needed, fetched, tries, lock } = prepared;
        // 1. The failed change has left `node` in a worthless state.
        self.read_node(node.ino, node)?;
        if file::is_compressed(&node.content()) {
            return self.prepare_compressed(op, node, if lock.is_some() { Writers::None } else { others });
        }
        self.before_fetching()?;
        let (ino, generation) = (node.ino, node.raw.generation);
        let (off, end) = range(node);
        *needed = file::needed(self.memory(), &node.content(), off, end)?;
        // 2.
        *tries += 1;
        let places: Missing = needed.iter().map(|(_, place)| *place).collect();
        op.outside(|| -> Result<()> {
            if *tries > TRIES && lock.is_none() && matches!(others, Writers::Others) {
                *lock = Some(self.session().long_lock(ino)?);
            }
            fetched.fetch(self, &places);
            Ok(())
        })??;
        // 3.
        self.lock_content(op, ino, node, if lock.is_some() { Writers::None } else { others })?;
        if node.raw.generation != generation {
            return Err(Errno::STALE.into());
        }
        node.touch(self.stamp([&*node]));
        // 4.
        let mut tx = op.tx()?;
        let mut edit = self.edit(&mut tx);
        if let Err(e) = file::enter(&mut edit, &node.content(), needed, fetched) {
            for (page, place) in needed.iter() {
                self.tell_unfetched(ino, page * file::PAGE, *place, fetched);
            }
            return Err(e);
        }
        edit.finish()?;
        Ok(tx.commit()?)
    }

    /// Reads a file of which something lies on disk: fetches it, outside of the section, and looks again, until one look
    /// finds all of it. `None`: it is compressed by now.
    #[cold]
    #[inline(never)]
    pub(super) fn read_fetched(
        &self,
        ino: Ino,
        offset: u64,
        buf: &mut [u8],
        flags: ReadFlags,
        node: &mut Node,
    ) -> Result<Option<usize>> {
        self.before_fetching()?;
        let (mut fetched, mut missing) = (Fetched::default(), Missing::new());
        self.read_ahead(ino, offset, buf.len() as u64, node)?;
        loop {
            let done = self.session().read(ino, || {
                missing.clear();
                self.read_regular(ino, node)?;
                let found = |at, len| ubj::note_hit(self.session(), at, len, flags.caller_caches);
                file::read_with(self.memory(), &node.content(), offset, buf, (&fetched, &mut missing), found)
            });
            match done {
                Err(Error::Elsewhere) if file::is_compressed(&node.content()) => return Ok(None),
                Err(Error::Elsewhere) => fetched.fetch(self, &missing),
                Ok(n) => {
                    if let Some(union) = self.union() {
                        union.note_use(ino, &node.raw);
                        if !flags.caller_caches {
                            union.admit(self, ino, pages(offset, n as u64), &fetched);
                        }
                    }
                    return Ok(Some(n));
                }
                Err(e) => {
                    self.tell_unreadable(ino, (offset, buf.len() as u64), &node.content(), &fetched);
                    return Err(e);
                }
            }
        }
    }

    /// Says which bytes of a range could not be read, if disks are why.
    fn tell_unreadable(&self, ino: Ino, (offset, len): (u64, u64), content: &Content, fetched: &Fetched) {
        // Changes in between need no notification.
        let look = || file::unfetched(self.memory(), content, offset, len, fetched);
        for (at, place) in self.session().read(ino, look).unwrap_or_default() {
            self.tell_unfetched(ino, at, place, fetched);
        }
    }

    fn tell_unfetched(&self, ino: Ino, at: u64, place: Place, fetched: &Fetched) {
        if let (Some(union), Some(e)) = (self.union(), fetched.failure(place)) {
            union.tell_unreadable(ino, at, e);
        }
    }

    /// Begins to fetch the content that a reader of these bytes will probably read next.
    fn read_ahead(&self, ino: Ino, offset: u64, len: u64, node: &mut Node) -> Result<()> {
        let Some(union) = self.union() else { return Ok(()) };
        for pages in union.note_read(ino, pages(offset, len)) {
            let mut places = Missing::new();
            self.session().read(ino, || {
                places.clear();
                self.read_regular(ino, node)?;
                file::on_disk(self.memory(), &node.content(), pages.clone(), &mut places)
            })?;
            union.read_ahead(self.session(), &places);
        }
        Ok(())
    }
}

impl Fetching for Fs {
    fn fetch(&self, places: &[Place]) -> Vec<Box<dyn FetchedPage>> {
        match self.union() {
            Some(union) => union.fetch(self.session(), places),
            None => file::fetch_without(places),
        }
    }
}

/// The pages that have bytes of a range.
fn pages(offset: u64, len: u64) -> Range<u64> {
    offset / file::PAGE..(offset + len).div_ceil(file::PAGE)
}
