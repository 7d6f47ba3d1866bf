//! An inode in the hands of an operation.

use pram::Tx;
use zerocopy::{FromZeros, IntoBytes};

use super::InodePlace;
use crate::attr::{Ino, Time};
use crate::error::{Error, Result};
use crate::file::Content;
use crate::layout::{RawInode, INODE_HOT};

/// An inode as an operation works on it: read once, under its lock, written back once. It lies nowhere if it is packed.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    pub ino: Ino,
    pub place: InodePlace,
    pub raw: RawInode,
}

impl Node {
    /// A place for one that is yet to be read.
    #[inline(always)]
    pub fn blank() -> Node {
        Node { ino: 0, place: InodePlace::NOWHERE, raw: RawInode::new_zeroed() }
    }

    /// The content as `file` works on it; put it back with [`set_content`](Self::set_content).
    #[inline(always)]
    pub(crate) fn content(&self) -> Content {
        content_of(self.ino, &self.raw)
    }

    #[inline(always)]
    pub(crate) fn set_content(&mut self, c: &Content) {
        self.raw.content = c.root;
        self.raw.size = c.size;
        self.raw.extra = c.pages;
    }

    #[inline(always)]
    pub fn touch(&mut self, now: Time) {
        self.raw.mtime = now.0;
        self.raw.ctime = now.0;
    }

    /// Where the inode can be changed.
    #[inline(always)]
    pub fn plain(&self) -> Result<InodePlace> {
        match self.place.is_nowhere() {
            false => Ok(self.place),
            true => Err(Error::Packed(self.ino)),
        }
    }

    /// Writes back the fields that change with content.
    #[inline(always)]
    pub fn save_hot(&self, tx: &mut Tx) -> Result<()> {
        self.pass_on(tx);
        Ok(tx.set_bytes(self.plain()?.inode.raw(), &self.raw.as_bytes()[..INODE_HOT])?)
    }

    /// Writes back everything.
    #[inline(always)]
    pub fn save(&self, tx: &mut Tx) -> Result<()> {
        self.pass_on(tx);
        Ok(tx.set(self.plain()?.inode, &self.raw)?)
    }

    /// A change of a strict inode waits until it is durable.
    #[inline(always)]
    fn pass_on(&self, tx: &mut Tx) {
        if self.raw.is_strict() {
            tx.urge();
        }
    }
}

#[inline(always)]
pub(crate) fn content_of(ino: Ino, raw: &RawInode) -> Content {
    Content { root: raw.content, size: raw.size, pages: raw.extra, owner: ino }
}
