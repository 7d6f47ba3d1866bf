//! `fallocate(2)`.

use pram::Op;
use rustix::io::Errno;

use super::content::Writers;
use super::piece::Provision;
use super::update::Update;
use super::watch::Part;
use super::{Fallocate, Fs, Node};
use crate::attr::{Ino, Kind};
use crate::error::Result;
use crate::file;
use crate::inode::packing::Purpose;

impl Fs {
    /// `fallocate(2)`. Much is done in pieces, between which no other call writes to the file; if one fails, those before
    /// stay.
    pub fn fallocate(&self, ino: Ino, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.recall_content(ino);
        let shift = self.is_long_shift(ino, how)?;
        if len <= file::ATOMIC && !shift {
            self.update(|op| self.fallocate_in(op, ino, how, (offset, len), Writers::Others, false))?;
            self.note_cut(ino);
            return Ok(());
        }
        let _lock = self.session().long_lock(ino)?;
        if shift {
            // Now: unpacking may need a sweep if memory is full, which this call keeps away later. The block stays plain,
            // since the inode is long locked.
            self.unpack_block_for(ino, Purpose::Change, &[])?;
            self.move_to_disk(ino)?;
        }
        let _still = match self.union() {
            Some(_) if shift => Some(self.session().long_lock(ilfs::table::ORDERING)?),
            _ => None,
        };
        let _no_sweep = if shift { Some(self.session().without_sweeps()?) } else { None };
        self.update(|op| self.fallocate_in(op, ino, how, (offset, len), Writers::None, shift))?;
        self.note_cut(ino);
        Ok(())
    }

    fn fallocate_in(
        &self,
        op: &mut Update,
        ino: Ino,
        how: Fallocate,
        (offset, len): (u64, u64),
        others: Writers,
        shift: bool,
    ) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        if end > file::MAX_SIZE {
            return Err(Errno::FBIG.into());
        }
        let mut node = Node::blank();
        self.lock_content(op, ino, &mut node, others)?;
        match node.kind()? {
            Kind::Regular => {}
            Kind::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::NODEV.into()),
        }
        self.kill_capability(op, &mut node)?;
        // Before the first piece: those that are done stay if the next fails.
        op.tell_inode(ino, if how.may_grow() { Part::Growth } else { Part::Content });
        if shift && file::is_long(&node.content()) {
            return self.shift(op, &mut node, how, offset, len);
        }
        let (mut at, alone) = (offset, matches!(others, Writers::None));
        loop {
            let piece = |op: &mut Op, node: &mut Node| {
                let range = |_: &Node| (at, end);
                let change = |op: &mut &mut Op, node: &mut Node| self.fallocate_piece(op, node, how, at, end);
                self.with_content(&mut &mut *op, node, others, range, change)
            };
            at = match alone {
                true => self.piece(op, &mut node, Provision::of_piece(at == offset), piece)?,
                false => piece(op, &mut node)?,
            };
            if at >= end {
                return Ok(());
            }
            if alone {
                self.next_piece(op, &mut node)?;
            }
        }
    }

    /// One piece from `at` on; how far it came. After an error `node` is as it was.
    fn fallocate_piece(&self, op: &mut Op, node: &mut Node, how: Fallocate, at: u64, end: u64) -> Result<u64> {
        let mut changed = *node;
        changed.touch(self.stamp([&changed]));
        let mut tx = op.tx()?;
        let mut c = changed.content();
        let len = end - at;
        let mut edit = self.edit_of(&mut tx, &node.raw);
        let reached = match how {
            Fallocate::Allocate { keep_size } => file::allocate(&mut edit, &mut c, at, len, keep_size)?,
            Fallocate::PunchHole => file::punch(&mut edit, &mut c, at, len)?,
            Fallocate::ZeroRange { keep_size } => file::zero(&mut edit, &mut c, at, len, keep_size)?,
            Fallocate::CollapseRange => file::collapse(&mut edit, &mut c, at, len).map(|()| end)?,
            Fallocate::InsertRange => file::insert(&mut edit, &mut c, at, len).map(|()| end)?,
        };
        edit.finish()?;
        changed.set_content(&c);
        changed.save_hot(&mut tx)?;
        tx.commit()?;
        if c.is_large() && !node.content().is_large() {
            self.note_large(&changed);
        }
        *node = changed;
        Ok(reached)
    }
}
