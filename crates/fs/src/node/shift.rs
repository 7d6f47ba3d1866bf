//! Collapse and insert in large files, piece by piece: see [`file::Shift`].
//!
//! 1. With the file's long lock, so that no other call changes it, and while no sweep runs, so that unreferenced objects
//!    stay, the new index is built beside the old one, in operations of their own. (A crash leaves leaks.)
//! 2. One transaction makes it the file's: the change becomes visible.
//! 3. The blocks that only the old one had are freed, in operations of their own. (A crash leaves leaks.)

use pram::Op;

use super::piece::Provision;
use super::update::Update;
use super::{Fallocate, Fs, Node};
use crate::attr::Ino;
use crate::error::Result;
use crate::file::{self, Leftover, Shift};

impl Fs {
    /// Is this a change of a file that one operation would take long for?
    pub(super) fn is_long_shift(&self, ino: Ino, how: Fallocate) -> Result<bool> {
        Ok(matches!(how, Fallocate::CollapseRange | Fallocate::InsertRange)
            && file::is_long(&super::content_of(ino, &self.snapshot(ino)?)))
    }

    /// Has no page of a large file in a block: before its pages get other numbers, by a caller with its long lock.
    pub(super) fn move_to_disk(&self, ino: Ino) -> Result<()> {
        self.above.move_to_disk(self, ino)
    }

    /// Collapses or inserts, for a caller with the file's long lock.
    pub(super) fn shift(&self, op: &mut Update, node: &mut Node, how: Fallocate, off: u64, len: u64) -> Result<()> {
        let _unfinished = self.session().unfinished();
        let c = node.content();
        let mut shift = match how {
            Fallocate::InsertRange => Shift::insert(&c, off, len)?,
            _ => Shift::collapse(&c, off, len)?,
        };
        let done = self.build(op, node, &mut shift);
        let done = done.and_then(|()| self.switch(op, node, shift));
        let (done, leftover) = match done {
            Ok(leftover) => (Ok(()), Ok(leftover)),
            Err(e) => (Err(e), shift.give_up(self.memory())),
        };
        if let Err(e) = leftover.and_then(|left| self.free_leftover(op, left)) {
            tracing::warn!("inode {}: freeing an index: {e}", node.ino);
            self.session().runtime().set_leaks_pending(true);
        }
        done
    }

    fn build(&self, op: &mut Op, node: &mut Node, shift: &mut Shift) -> Result<()> {
        loop {
            if self.piece(op, node, Provision::Memory, |op, node| self.build_piece(op, node, shift))? {
                return Ok(());
            }
            self.next_piece(op, node)?;
        }
    }

    fn build_piece(&self, op: &mut Op, node: &Node, shift: &mut Shift) -> Result<bool> {
        let mut next = *shift;
        let mut tx = op.tx()?;
        let mut edit = self.edit(&mut tx);
        let done = next.build(&mut edit, &node.content())?;
        edit.finish()?;
        tx.commit()?;
        *shift = next;
        Ok(done)
    }

    /// Step 2.
    fn switch(&self, op: &mut Op, node: &mut Node, shift: Shift) -> Result<Leftover> {
        let (new, leftover) = shift.switch(self.memory(), &node.content())?;
        let mut changed = *node;
        changed.touch(self.stamp([&changed]));
        changed.set_content(&new);
        let mut tx = op.tx()?;
        changed.save_hot(&mut tx)?;
        tx.commit()?;
        *node = changed;
        Ok(leftover)
    }

    fn free_leftover(&self, op: &mut Op, mut leftover: Leftover) -> Result<()> {
        loop {
            op.renew()?;
            op.lock(&[ilfs::KEY])?;
            let mut tx = op.tx()?;
            let mut edit = self.edit(&mut tx);
            let done = leftover.free(&mut edit)?;
            edit.finish()?;
            tx.commit()?;
            if done {
                return Ok(());
            }
        }
    }
}
