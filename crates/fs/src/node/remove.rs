//! Unlink, rmdir, references and the end of inodes.
//!
//! An inode ends when it has neither name nor reference. Who takes the last of either ends it:
//! 1. With the inode's lock held, a transaction unlinks its content and sets `nlink` to 0.
//! 2. After the commit its number becomes free (`inode`, I1). A crash in between leaves an inode without
//!    name, which mark-and-sweep ends.
//!
//! A process takes its reference first and looks at `nlink` second; who unlinks sets `nlink` under the lock
//! first and looks for references second. So one of the two sees the other.

use pram::{Op, Tx};
use rustix::io::Errno;

use super::{check_name, now, Fs, Node};
use crate::attr::{Caller, Ino, Kind};
use crate::dir;
use crate::error::Result;
use crate::{file, xattr};

const STICKY: u32 = 0o1000;

impl Fs {
    pub fn unlink(&self, parent: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        self.remove(parent, name, caller, false)
    }

    pub fn rmdir(&self, parent: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        match name {
            b"." => Err(Errno::INVAL.into()),
            b".." => Err(Errno::NOTEMPTY.into()),
            _ => self.remove(parent, name, caller, true),
        }
    }

    #[inline]
    fn remove(&self, parent: Ino, name: &[u8], caller: &Caller, want_dir: bool) -> Result<()> {
        check_name(name)?;
        self.writable()?;
        let mut op = self.session().begin()?;
        let (mut dir, mut node) = self.lock_entry(&mut op, parent, name)?;
        self.permit_removal(&dir, &node, caller)?;
        match (want_dir, node.is_dir()) {
            (true, false) => return Err(Errno::NOTDIR.into()),
            (false, true) => return Err(Errno::ISDIR.into()),
            (true, true) if node.raw.size > 0 => return Err(Errno::NOTEMPTY.into()),
            _ => {}
        }
        let time = now();
        let mut tx = op.tx()?;
        let mut d = dir.dir();
        dir::remove(&mut tx, self.hash_key(), &mut d, name)?;
        dir.set_dir(&d);
        dir.touch(time);
        if want_dir {
            dir.raw.nlink = dir.raw.nlink.saturating_sub(1);
            dir.save(&mut tx)?;
        } else {
            dir.save_hot(&mut tx)?;
        }
        node.raw.ctime = time.0;
        let ended = self.drop_name(&mut tx, &mut node)?;
        tx.commit()?;
        if ended {
            self.inodes.free(&op, node.ino, node.place)?;
        }
        drop(op);
        self.tell_entry(parent, name);
        self.tell_inode(node.ino, true);
        Ok(())
    }

    /// Locks a directory and the inode that `name` names in it.
    pub(super) fn lock_entry(&self, op: &mut Op, parent: Ino, name: &[u8]) -> Result<(Node, Node)> {
        loop {
            let guess = self.session().read(parent, || -> Result<_> {
                let Some((_, raw)) = self.table().get(parent)? else { return Err(Errno::STALE.into()) };
                if raw.kind != Kind::Directory as u32 {
                    return Err(Errno::NOTDIR.into());
                }
                Ok(self.find(&raw, name)?.ok_or(Errno::NOENT)?.ino)
            })?;
            op.lock(&[parent, guess])?;
            let dir = self.dir_node(parent)?;
            if self.find(&dir.raw, name)?.is_some_and(|e| e.ino == guess) {
                return Ok((dir, self.node(guess)?));
            }
            op.unlock();
        }
    }

    /// May `caller` remove the name of `node` from `dir`? The sticky bit reserves that to the owners.
    pub(super) fn permit_removal(&self, dir: &Node, node: &Node, caller: &Caller) -> Result<()> {
        self.permit_entry(dir, caller)?;
        if caller.checked || caller.uid == 0 {
            return Ok(());
        }
        let above = self.perms().get(self.region(), dir.raw.perm)?;
        let own = self.perms().get(self.region(), node.raw.perm)?;
        if above.mode & STICKY != 0 && caller.uid != above.uid && caller.uid != own.uid {
            return Err(Errno::PERM.into());
        }
        Ok(())
    }

    /// Takes a name from `node` (all names from a directory) and saves it; true if it has ended: free its
    /// number after the commit.
    pub(super) fn drop_name(&self, tx: &mut Tx, node: &mut Node) -> Result<bool> {
        node.raw.nlink = if node.is_dir() { 0 } else { node.raw.nlink.saturating_sub(1) };
        let ended = node.raw.nlink == 0 && !self.session().is_referenced(node.ino);
        if ended {
            self.drop_content(tx, node)?;
        }
        node.save(tx)?;
        Ok(ended)
    }

    /// Step 1: unlinks everything that the inode refers to.
    fn drop_content(&self, tx: &mut Tx, node: &mut Node) -> Result<()> {
        match node.kind()? {
            Kind::Regular | Kind::Symlink => {
                let mut c = node.content();
                file::free(tx, &mut c)?;
                node.set_content(&c);
            }
            Kind::Directory => {
                let mut d = node.dir();
                dir::free(tx, &mut d)?;
                node.set_dir(&d);
            }
            _ => {}
        }
        if node.raw.xattr != 0 {
            xattr::free(tx, &mut node.raw.xattr)?;
        }
        Ok(())
    }

    /// Takes `n` references: the inode outlives its last name while this process holds any.
    #[inline]
    pub fn retain(&self, ino: Ino, n: u32) {
        self.session().retain(ino, n);
    }

    /// Gives back `n` references; frees an inode that has neither name nor reference left, and gives back
    /// the unused tail of a file at the last one.
    #[inline]
    pub fn release(&self, ino: Ino, n: u32) {
        if self.session().release(ino, n) > 0 {
            return;
        }
        let Ok(raw) = self.snapshot(ino) else { return };
        let slack =
            raw.kind == Kind::Regular as u32 && file::has_slack(self.region(), &super::lookup::content_of(&raw));
        let done = match raw.nlink {
            0 => self.end_unreferenced(ino),
            _ if slack && !self.policy.get().read_only => self.trim(ino),
            _ => return,
        };
        if let Err(e) = done {
            tracing::warn!("inode {ino}: {e}");
        }
    }

    #[cold]
    fn end_unreferenced(&self, ino: Ino) -> Result<()> {
        let mut op = self.session().begin()?;
        op.lock(&[ino])?;
        match self.node(ino) {
            Ok(node) if node.raw.nlink == 0 && !self.session().is_referenced(ino) => self.end(&mut op, node),
            _ => Ok(()),
        }
    }

    /// Ends an inode without name and reference, whose lock `op` holds.
    pub(crate) fn end(&self, op: &mut Op, mut node: Node) -> Result<()> {
        let mut tx = op.tx()?;
        self.drop_content(&mut tx, &mut node)?;
        node.save(&mut tx)?;
        tx.commit()?;
        self.inodes.free(op, node.ino, node.place)
    }
}
