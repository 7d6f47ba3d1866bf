//! Taking pages away: truncation, holes, the whole file. Nothing here allocates, so that it works on a
//! full region; the time is that of the nodes that are there, not of the offsets.

use pram::{Region, Tx};

use super::tree::{Budget, Node};
use super::{form, Content, Form, TREE};
use crate::error::Result;
use crate::layout::{tag, Root};

/// Frees all content; the file is empty then.
pub(crate) fn free(tx: &mut Tx, c: &mut Content) -> Result<()> {
    match form(tx.region(), c)? {
        Form::Direct(d) if d.off == 0 => {}
        Form::Direct(d) => tx.free(d.off, tag::DATA)?,
        Form::Tree(root) => free_node(tx, root, &mut Budget::of(tx.region()), &mut c.pages)?,
    }
    *c = Content::default();
    Ok(())
}

/// Frees a node with all below it.
fn free_node(tx: &mut Tx, node: Node, budget: &mut Budget, pages: &mut u64) -> Result<()> {
    let r: &Region = tx.region();
    for i in 0..node.len {
        match node.get(r, i)? {
            0 => {}
            off => free_entry(tx, node, off, budget, pages)?,
        }
    }
    Ok(tx.free(node.off, tag::INDEX)?)
}

/// Frees what an entry of `node` refers to.
fn free_entry(tx: &mut Tx, node: Node, off: u64, budget: &mut Budget, pages: &mut u64) -> Result<()> {
    if node.height > 1 {
        let child = budget.open(tx.region(), off, node.height - 1)?;
        return free_node(tx, child, budget, pages);
    }
    *pages = pages.saturating_sub(1);
    Ok(tx.free(off, tag::DATA)?)
}

/// Makes pages `first..end` of a tree holes. The undo log takes the entries of nodes at the two ends only.
pub(super) fn pages(tx: &mut Tx, c: &mut Content, first: u64, end: u64) -> Result<()> {
    let Form::Tree(root) = form(tx.region(), c)? else { return Ok(()) };
    if first >= end {
        return Ok(());
    }
    let budget = Budget::of(tx.region());
    let mut cut = Cut { tx, budget, pages: c.pages, first, end };
    if cut.node(root, 0)? {
        c.root = Root::EMPTY.pack();
    }
    c.pages = cut.pages;
    lower(tx, c)
}

struct Cut<'a, 'o> {
    tx: &'a mut Tx<'o>,
    budget: Budget,
    pages: u64,
    first: u64,
    end: u64,
}

impl Cut<'_, '_> {
    /// Clears what of the range is below `node`, which begins at page `base`. True if nothing is left: then
    /// the node is freed, unchanged.
    fn node(&mut self, node: Node, base: u64) -> Result<bool> {
        let r: &Region = self.tx.region();
        let mut left = false;
        // First and last entry that goes; those between are null or go too.
        let mut gone: Option<(u64, u64)> = None;
        for i in 0..node.len {
            let off = node.get(r, i)?;
            if off == 0 {
                continue;
            }
            let from = base + (i << node.shift());
            let to = from + (1 << node.shift());
            if to <= self.first || self.end <= from {
                left = true;
            } else if self.first <= from && to <= self.end {
                free_entry(self.tx, node, off, &mut self.budget, &mut self.pages)?;
                gone = Some((gone.map_or(i, |g| g.0), i));
            } else {
                let child = self.budget.open(r, off, node.height - 1)?;
                if self.node(child, from)? {
                    gone = Some((gone.map_or(i, |g| g.0), i));
                } else {
                    left = true;
                }
            }
        }
        if !left {
            self.tx.free(node.off, tag::INDEX)?;
        } else if let Some((a, b)) = gone {
            self.tx.set_zero(node.at(a).raw(), (b - a + 1) * 8)?;
        }
        Ok(!left)
    }
}

/// Removes root nodes that only lead to their first child.
fn lower(tx: &mut Tx, c: &mut Content) -> Result<()> {
    let r: &Region = tx.region();
    while let Form::Tree(root) = form(r, c)? {
        if root.height == 1 {
            break;
        }
        for i in 1..root.len {
            if root.get(r, i)? != 0 {
                return Ok(());
            }
        }
        c.root = match root.get(r, 0)? {
            0 => Root::EMPTY.pack(),
            off => Root { off, form: TREE, depth: root.height - 1 }.pack(),
        };
        tx.free(root.off, tag::INDEX)?;
    }
    Ok(())
}
