//! Freeing the pages that large files lose, piece by piece: truncation, and the end of an inode.
//!
//! A truncation is one transaction, of any length: the size is set, and the root word says that the part beyond the
//! end is being freed ([`Content::is_cut`](file::Content::is_cut)). No reader sees the pages there any more. They are freed
//! in transactions of some 2 MiB, each in an operation of its own, so that no call waits long for a slot, a lock or a
//! commit; the truncating call does it before it returns. If its process dies, the next change of the content goes on with
//! it first, or else the sweep that follows the death of a process with [unfinished](pram::Session::unfinished) work.

use pram::Op;

use super::{At, Fs, Node};
use crate::error::Result;
use crate::file;

impl Fs {
    /// Frees all that was cut off a file that is being truncated, and was just seen so by `op`. Each piece takes the lock
    /// anew; that of the last one is held when this returns.
    #[cold]
    #[inline(never)]
    pub(crate) fn cut_off(&self, op: &mut Op, node: &mut Node) -> Result<()> {
        let _unfinished = self.session().unfinished();
        while self.next_to_cut(op, node)? {
            self.cut_piece(op, node)?;
        }
        Ok(())
    }

    /// [`cut_off`](Self::cut_off) after a truncation, which is done, even if this fails.
    #[inline(always)]
    pub(super) fn free_cut(&self, op: &mut Op, node: &mut Node) {
        if node.content().is_cut() {
            let _unfinished = self.session().unfinished();
            if let Err(e) = self.cut_off(op, node) {
                self.leave_to_sweep(node, &e);
            }
        }
    }

    /// Ends an inode without name and reference whose content is being freed.
    #[cold]
    #[inline(never)]
    pub(super) fn end_large(&self, op: &mut Op, mut node: Node) -> Result<()> {
        let _unfinished = self.session().unfinished();
        let done = loop {
            match self.next_to_cut(op, &mut node) {
                // Others have ended it, or refer to it: then they will.
                Ok(_) if node.raw.nlink > 0 || self.session().is_referenced(node.ino) => return Ok(()),
                Ok(false) => break node.plain().and_then(|place| self.inodes.free(op, node.ino, place)),
                Ok(true) => {}
                Err(e) if e.errno() == rustix::io::Errno::NOENT => return Ok(()),
                Err(e) => break Err(e),
            }
            if let Err(e) = self.cut_piece(op, &mut node) {
                break Err(e);
            }
        };
        // Its name is gone: no reason to say that nothing happened.
        if let Err(e) = done {
            self.leave_to_sweep(&node, &e);
        }
        Ok(())
    }

    fn leave_to_sweep(&self, node: &Node, e: &crate::Error) {
        tracing::warn!("inode {}: freeing what was cut off: {e}", node.ino);
        self.session().runtime().set_leaks_pending(true);
    }

    /// Begins the operation anew, locks the file and reads it; is anything left to free? Others may have gone on with it.
    fn next_to_cut(&self, op: &mut Op, node: &mut Node) -> Result<bool> {
        let at = At::seen(node.ino, &node.raw);
        op.renew()?;
        self.lock_node(op, at, node)?;
        Ok(node.content().is_cut())
    }

    fn cut_piece(&self, op: &mut Op, node: &mut Node) -> Result<()> {
        let mut tx = op.tx()?;
        let mut c = node.content();
        let mut edit = self.edit(&mut tx);
        file::cut(&mut edit, &mut c)?;
        edit.finish()?;
        node.set_content(&c);
        node.save_hot(&mut tx)?;
        Ok(tx.commit()?)
    }
}
