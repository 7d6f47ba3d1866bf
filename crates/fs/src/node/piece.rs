//! Changes of several pieces, each a transaction in an operation of its own: between them slot and locks are given back, and the file's long
//! lock keeps others from writing to it.

use pram::{Op, Session};

use super::update::Relieved;
use super::{At, Fs, Node};
use crate::error::{Error, Lack, Result};
use crate::retry::{self, Provides};

/// The provisions for a piece. Each level includes those above it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Provision {
    /// Memory. (No room can be made while pages of a file get other numbers.)
    Memory,
    /// Room too. The first piece fails as a whole, and the whole change with it, which then begins anew.
    Room,
    /// Memory that compressing files frees, too.
    Shortage,
}

impl Provision {
    /// Is it the first piece?
    pub fn of_piece(is_first: bool) -> Provision {
        match is_first {
            true => Provision::Room,
            false => Provision::Shortage,
        }
    }
}

/// One piece: its operation, and the inode of its file as it was read.
pub(super) struct Piece<'p, 'f> {
    pub op: &'p mut Op<'f>,
    pub node: &'p mut Node,
    provided: Provision,
    shortage: Relieved<'p>,
}

impl Piece<'_, '_> {
    fn fs(&self) -> &Fs {
        self.shortage.fs
    }

    /// Ends the operation, calls `outside`, begins it anew and reads the file as it is now.
    fn go_on(&mut self, outside: impl FnOnce(&mut Op) -> Result<()>) -> Result<()> {
        self.shortage.fs.go_on(self.op, self.node, outside)
    }
}

impl Provides for Piece<'_, '_> {
    fn session(&self) -> &Session {
        self.fs().session()
    }

    fn memory(&mut self) -> Result<()> {
        self.go_on(|op| Ok(op.renew_with_memory()?))
    }

    fn room(&mut self, lack: Lack) -> Result<()> {
        if self.provided == Provision::Memory {
            return Err(Error::MustMakeRoom(lack));
        }
        let fs = self.shortage.fs;
        self.go_on(|op| op.outside(|| fs.make_room(lack))?)
    }

    fn more(&mut self, failed: &Error) -> Result<bool> {
        match self.fs().lack(failed) {
            Some(lack) if self.provided != Provision::Memory => return self.room(lack).map(|()| true),
            _ if self.provided != Provision::Shortage => return Ok(false),
            _ => {}
        }
        let (shortage, mut again) = (&mut self.shortage, false);
        shortage.fs.go_on(self.op, self.node, |op| Ok(op.outside(|| again = shortage.again().unwrap_or(false))?))?;
        Ok(again)
    }
}

impl Fs {
    /// Runs `work` as one piece until it lacks nothing, on a copy of `node` that is dropped where it fails. After an error the operation may
    /// hold no lock, and `node` may be out of date.
    pub(super) fn piece<'f, T>(
        &self,
        op: &mut Op<'f>,
        node: &mut Node,
        provided: Provision,
        mut work: impl FnMut(&mut Op<'f>, &mut Node) -> Result<T>,
    ) -> Result<T> {
        let mut piece = Piece { op, node, provided, shortage: Relieved::of(self) };
        retry::run(&mut piece, |piece| {
            piece.shortage.begin();
            let mut changed = *piece.node;
            let done = work(piece.op, &mut changed)?;
            *piece.node = changed;
            Ok(done)
        })
    }

    /// Ends the operation and begins it anew for the next piece of a change, as of now.
    pub(super) fn next_piece(&self, op: &mut Op, node: &mut Node) -> Result<()> {
        self.go_on(op, node, |op| match self.is_nearly_full() {
            // A caller that may not wait for it goes on without.
            true => Ok(op.outside(|| _ = self.above.free_memory_ahead(self))?),
            false => Ok(op.renew()?),
        })
    }

    fn go_on(&self, op: &mut Op, node: &mut Node, outside: impl FnOnce(&mut Op) -> Result<()>) -> Result<()> {
        let at = At::seen(node.ino, &node.raw);
        outside(op)?;
        self.lock_node(op, at, node)?;
        node.touch(self.stamp([&*node]));
        Ok(())
    }
}
