//! Pages whose content is lost for good become holes, on request.

use super::content::Writers;
use super::update::Update;
use super::watch::Part;
use super::{Fs, Node};
use crate::attr::{Ino, Kind};
use crate::error::Result;
use crate::file::{self, PAGE};
use ilfs::Place;

/// Pages that one operation makes holes of.
const PIECE: usize = 64;

impl Fs {
    /// Makes holes of those of these pages that still lead to these unreadable places: content that was written since stays. Returns which
    /// ones became holes.
    pub(crate) fn punch_lost(&self, ino: Ino, generation: u32, lost: &[(u64, Place)]) -> Result<Vec<bool>> {
        let mut punched = Vec::with_capacity(lost.len());
        for some in lost.chunks(PIECE) {
            punched.extend(self.update(|op| self.punch_some(op, ino, generation, some))?);
        }
        Ok(punched)
    }

    fn punch_some(&self, op: &mut Update, ino: Ino, generation: u32, lost: &[(u64, Place)]) -> Result<Vec<bool>> {
        let mut node = Node::blank();
        self.lock_content(op, ino, &mut node, Writers::Others)?;
        if node.kind()? != Kind::Regular || node.raw.generation != generation {
            return Ok(vec![false; lost.len()]);
        }
        op.tell_inode(ino, Part::Content);
        node.touch(self.stamp([&node]));
        let mut tx = op.tx()?;
        let mut c = node.content();
        let (mut edit, mut punched) = (self.edit_of(&mut tx, &node.raw), Vec::with_capacity(lost.len()));
        for (page, place) in lost {
            let is_it = file::is_on_disk(self.memory(), &c, *page, *place)?;
            if is_it {
                file::punch(&mut edit, &mut c, page * PAGE, PAGE)?;
            }
            punched.push(is_it);
        }
        edit.finish()?;
        if punched.contains(&true) {
            node.set_content(&c);
            node.save_hot(&mut tx)?;
        }
        tx.commit()?;
        Ok(punched)
    }
}
