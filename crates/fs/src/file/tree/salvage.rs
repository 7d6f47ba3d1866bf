//! The readable part of a damaged tree, made whole.

use std::collections::HashSet;

use super::entry::Entry;
use super::grow::Writer;
use super::{check_page, Node};
use crate::error::Result;
use crate::file::edit::Edit;
use crate::file::{Content, PAGE};
use crate::layout::tag;

/// Copies to `c`, which is empty, the readable part of the tree below `root`; the bytes that cannot be read.
pub(in crate::file) fn salvage(tx: &mut Edit, c: &mut Content, root: Node, large: bool) -> Result<u64> {
    let mut s = Salvage { tx, large, c, seen: HashSet::from([root.off]), lost: 0 };
    s.node(root)?;
    Ok(s.lost.min(c.size))
}

struct Salvage<'a, 'e, 'o> {
    tx: &'a mut Edit<'e, 'o>,
    /// The file is large.
    large: bool,
    c: &'a mut Content,
    /// Nodes and pages met so far; met again, they are damage.
    seen: HashSet<u64>,
    lost: u64,
}

impl Salvage<'_, '_, '_> {
    fn node(&mut self, node: Node) -> Result<()> {
        for i in 0..node.len {
            // Pages beyond the size hold nothing.
            if node.page(i) >= self.c.size.div_ceil(PAGE) || node.is_null(self.tx.memory(), i)? {
                continue;
            }
            let kept = match node.height {
                1 => self.leaf_entry(node, i)?,
                _ => self.child(node, i)?,
            };
            if !kept {
                self.lost = self.lost.saturating_add(PAGE << node.shift());
            }
        }
        Ok(())
    }

    /// Keeps the pages below entry `i`; false if nothing can be known of it.
    fn child(&mut self, node: Node, i: u64) -> Result<bool> {
        match node.child(self.tx.memory(), i) {
            Ok(Some(child)) if self.seen.insert(child.off) => self.node(child).map(|()| true),
            _ => Ok(false),
        }
    }

    fn leaf_entry(&mut self, node: Node, i: u64) -> Result<bool> {
        let r = self.tx.memory();
        match node.get(r, i) {
            Ok(Entry::Page(off)) if self.seen.insert(off) && check_page(r, off).is_ok() => {
                let new = self.tx.alloc(tag::DATA, PAGE)?.off;
                self.tx.init_copy(off, new, PAGE)?;
                self.link(node.page(i), Entry::Page(new))
            }
            Ok(Entry::Hole | Entry::Reserved(_)) => Ok(true),
            // Its descriptor says that it is this page's: no other's.
            Ok(entry @ Entry::Block(block)) if self.tx.block_of(node.owner, node.page(i), block).is_ok() => {
                self.link(node.page(i), entry)
            }
            Ok(entry @ Entry::Disk(_)) => self.link(node.page(i), entry),
            _ => Ok(false),
        }
    }

    fn link(&mut self, page: u64, entry: Entry) -> Result<bool> {
        Writer { tx: self.tx, c: self.c, fresh: true, large: self.large }.link(page, entry, 0)?;
        Ok(true)
    }
}
