//! Freeing the targets of a tree, a node or an entry.

use super::entry::Entry;
use super::{check_page, Budget, Node};
use crate::error::{Error, Result};
use crate::file::edit::Edit;
use crate::layout::tag;

/// Frees all of a tree.
pub(in crate::file) fn free(tx: &mut Edit, root: Node, pages: &mut u64) -> Result<()> {
    free_node(tx, root, &mut Budget::of(tx.memory()), pages)
}

/// Frees a node with all below it.
pub(super) fn free_node(tx: &mut Edit, node: Node, budget: &mut Budget, pages: &mut u64) -> Result<()> {
    for i in 0..node.len {
        free_entry(tx, node, i, budget, pages)?;
    }
    Ok(tx.free(node.off, tag::INDEX)?)
}

/// Frees the target of entry `i` of `node`.
pub(super) fn free_entry(tx: &mut Edit, node: Node, i: u64, budget: &mut Budget, pages: &mut u64) -> Result<()> {
    if node.height > 1 {
        return match budget.child(tx.memory(), node, i)? {
            Some(child) => free_node(tx, child, budget, pages),
            None => Ok(()),
        };
    }
    let entry = node.get(tx.memory(), i)?;
    free_page(tx, node.owner, node.page(i), entry, pages)
}

/// Frees the memory or promise of page `page` of the file of inode `owner`. Not anything else that a damaged entry leads to: an object that is
/// free already may be reused meanwhile.
pub(in crate::file) fn free_page(tx: &mut Edit, owner: u64, page: u64, entry: Entry, pages: &mut u64) -> Result<()> {
    if entry != Entry::Hole {
        *pages = pages.saturating_sub(1);
    }
    match entry {
        Entry::Hole => {}
        Entry::Reserved(0) => tx.promise(-1),
        Entry::Page(off) | Entry::Reserved(off) => {
            check_page(tx.memory(), off)?;
            if !tx.memory().is_allocated(off)? {
                return Err(Error::Corrupt(format!("page {off:#x} belongs to a file but is free")));
            }
            tx.free(off, tag::DATA)?;
        }
        Entry::Block(block) => tx.free_block_of(owner, page, block)?,
        Entry::Disk(place) => tx.unlink(place),
    }
    Ok(())
}
