//! Unlink, rmdir, references and the end of inodes.
//!
//! An inode ends when it has neither name nor reference. The removal of the last of either ends it:
//! 1. With the inode's lock held, a transaction unlinks its content and sets `nlink` to 0. Of a large file it only
//!    sets the size to 0.
//! 2. The content of a large file is freed piece by piece, each in an operation of its own ([`truncate`](super::truncate)).
//! 3. After the last commit its number becomes free (`inode`, I1). A crash in between leaves an inode without
//!    name, which mark-and-sweep ends: the first process to come does the next piece.
//!
//! A process takes its reference first and looks at `nlink` second; an unlink sets `nlink` under the lock
//! first and looks for references second. So one of the two sees the other's change.

use pram::{Op, Tx};
use rustix::io::Errno;

use super::update::Update;
use super::watch::Part;
use super::{check_name, want, At, Fs, Node};
use crate::attr::{Caller, Ino, Kind};
use crate::dir::{self, EntryPlace};
use crate::error::Result;
use crate::file::{self, Edit};
use crate::inode::packing::Purpose;
use crate::xattr;

const STICKY: u32 = 0o1000;

impl Fs {
    pub fn unlink(&self, parent: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        self.remove(parent.into(), name, caller, false)
    }

    pub fn rmdir(&self, parent: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        self.remove(parent.into(), name, caller, true)
    }

    #[inline]
    pub(crate) fn remove(&self, parent: At, name: &[u8], caller: &Caller, want_dir: bool) -> Result<()> {
        match name {
            b"." if want_dir => return Err(Errno::INVAL.into()),
            b".." if want_dir => return Err(Errno::NOTEMPTY.into()),
            _ => check_name(name)?,
        }
        self.update_for(Purpose::Removal, |op| self.remove_in(op, parent, name, caller, want_dir))
    }

    #[inline]
    fn remove_in<'n>(
        &self,
        op: &mut Update<'_, '_, 'n>,
        parent: At,
        name: &'n [u8],
        caller: &Caller,
        want_dir: bool,
    ) -> Result<()> {
        let (mut dir, mut node) = (Node::blank(), Node::blank());
        let spot = self.lock_entry(op, parent, name, caller, (&mut dir, &mut node))?;
        self.permit_removal(&dir, &node, caller)?;
        match (want_dir, node.is_dir()) {
            (true, false) => return Err(Errno::NOTDIR.into()),
            (false, true) => return Err(Errno::ISDIR.into()),
            (true, true) if node.raw.size > 0 => return Err(Errno::NOTEMPTY.into()),
            _ => {}
        }
        let time = self.stamp([&dir, &node]);
        let mut tx = op.tx()?;
        let mut d = dir.dir();
        dir::take(&mut tx, &self.names(), &mut d, spot)?;
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
            self.end_rest(op, &node)?;
        }
        op.tell_entry(parent.ino, name, Some(node.ino));
        op.tell_inode(node.ino, Part::Attributes);
        Ok(())
    }

    /// Locks a directory and the inode that `name` names in it, reads both, and says where the name is.
    #[inline(always)]
    fn lock_entry(
        &self,
        op: &mut Op,
        parent: At,
        name: &[u8],
        caller: &Caller,
        (dir, node): (&mut Node, &mut Node),
    ) -> Result<EntryPlace> {
        loop {
            let mut found = Err(Errno::NOENT.into());
            let seen = op.look(parent.ino, || found = self.entry(parent, name, caller, dir))?;
            let mut spot = found?;
            let guess = spot.entry().ino;
            op.lock(&[parent.ino, guess])?;
            // Nearly always there was no change in between.
            if !op.is_as_seen(parent.ino, seen) {
                self.read_dir_node(parent, dir)?;
                match self.spot(dir, name)?.filter(|s| s.entry().ino == guess) {
                    Some(there) => spot = there,
                    None => {
                        op.unlock();
                        continue;
                    }
                }
            }
            self.read_node(guess, node)?;
            return Ok(spot);
        }
    }

    /// Where `name` is in a directory that the caller may search, and which goes to `dir`.
    #[inline(always)]
    fn entry(&self, parent: At, name: &[u8], caller: &Caller, dir: &mut Node) -> Result<EntryPlace> {
        self.read_dir_node(parent, dir)?;
        // A caller that may not search the directory does not learn its names.
        self.permit(&dir.raw, caller, want::EXEC)?;
        Ok(self.spot(dir, name)?.ok_or(Errno::NOENT)?)
    }

    #[inline(always)]
    fn spot(&self, dir: &Node, name: &[u8]) -> Result<Option<EntryPlace>> {
        dir::spot(self.memory(), &self.names(), &dir.dir(), name)
    }

    /// May `caller` remove the name of `node` from `dir`? The sticky bit reserves that to the owners.
    pub(super) fn permit_removal(&self, dir: &Node, node: &Node, caller: &Caller) -> Result<()> {
        self.permit_entry(dir, caller)?;
        let above = self.perms().get(self.session(), dir.raw.perm)?;
        if above.mode & STICKY == 0 || caller.acts_for(above.uid) {
            return Ok(());
        }
        let own = self.perms().get(self.session(), node.raw.perm)?;
        match caller.acts_for(own.uid) {
            true => Ok(()),
            false => Err(Errno::PERM.into()),
        }
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

    /// Step 1: unlinks everything that the inode refers to, but much content, which [is cut
    /// off](file::Content::is_cut).
    fn drop_content(&self, tx: &mut Tx, node: &mut Node) -> Result<()> {
        match node.kind()? {
            Kind::Regular | Kind::Symlink => {
                let mut c = node.content();
                // Of a large file this frees nothing yet.
                file::truncate(&mut Edit::in_memory(tx), &mut c, 0)?;
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
    pub fn retain(&self, ino: Ino, n: u32) -> Result<()> {
        Ok(self.session().retain(ino, n)?)
    }

    /// Has this process references to it?
    pub fn is_retained(&self, ino: Ino) -> bool {
        self.session().holds(ino)
    }

    /// Gives back `n` references; frees an inode that has neither name nor reference left, and gives back
    /// the unused tail of a file at the last one.
    #[inline(always)]
    pub fn release(&self, ino: Ino, n: u32) {
        if self.session().release(ino, n) > 0 {
            return;
        }
        let idle = self.session().read(ino, || {
            let Some((nlink, kind, content)) = self.table().summary(ino)? else { return Ok(true) };
            let slack = kind == Kind::Regular as u8 && file::has_slack(self.memory(), &content);
            Ok::<_, crate::Error>(nlink > 0 && !slack)
        });
        if !idle.unwrap_or(true) {
            self.finish(ino);
        }
    }

    /// Does the rest of the work on an inode to which this process refers no more.
    #[cold]
    #[inline(never)]
    fn finish(&self, ino: Ino) {
        let Ok(raw) = self.snapshot(ino) else { return };
        let slack = raw.kind == Kind::Regular as u8 && file::has_slack(self.memory(), &super::content_of(ino, &raw));
        let done = match raw.nlink {
            0 => self.end_unreferenced(At::seen(ino, &raw)),
            _ if slack && !self.policy.get().read_only => self.trim(ino),
            _ => return,
        };
        if let Err(e) = done {
            tracing::warn!("inode {ino}: {e}");
            // A sweep ends it if this has stopped.
            self.session().runtime().set_leaks_pending(true);
        }
    }

    #[cold]
    fn end_unreferenced(&self, at: At) -> Result<()> {
        self.removing(|op| {
            op.lock(&[at.ino])?;
            match self.node(at) {
                Ok(node) if node.raw.nlink == 0 && !self.session().is_referenced(at.ino) => self.end(op, node),
                _ => Ok(()),
            }
        })
    }

    /// Gives back all references of this process: inodes that nothing else holds end.
    pub(super) fn release_all(&self) {
        for ino in self.session().runtime().referenced(self.session().runtime().me()) {
            self.release(ino, u32::MAX);
        }
    }

    /// Ends an inode without name and reference, whose lock `op` holds.
    pub(crate) fn end(&self, op: &mut Op, mut node: Node) -> Result<()> {
        let mut tx = op.tx()?;
        self.drop_content(&mut tx, &mut node)?;
        node.save(&mut tx)?;
        tx.commit()?;
        self.end_rest(op, &node)
    }

    /// Steps 2 and 3, of an inode whose lock `op` holds.
    #[inline(always)]
    pub(super) fn end_rest(&self, op: &mut Op, node: &Node) -> Result<()> {
        match node.raw.kind == Kind::Regular as u8 && node.content().is_cut() {
            true => self.end_large(op, *node),
            false => self.inodes.free(op, node.ino, node.plain()?),
        }
    }
}
