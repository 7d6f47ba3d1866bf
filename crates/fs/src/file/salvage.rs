//! What can still be read of a damaged file, made whole.

use std::collections::HashSet;

use pram::heap::MAX_SMALL;
use pram::Tx;

use super::direct::Direct;
use super::entry::Entry;
use super::grow::Writer;
use super::tree::{check_page, Node};
use super::{form, Content, Form, MAX_SIZE, PAGE};
use crate::error::Result;
use crate::layout::tag;

/// Rebuilds damaged content from what can be read; the rest becomes a hole. Returns the bytes that were
/// lost, as far as they can be told. Everything is copied, since what the old form refers to may belong to
/// others too; that is left for mark-and-sweep.
pub(crate) fn salvage(tx: &mut Tx, c: &mut Content) -> Result<u64> {
    let old = *c;
    *c = Content { size: old.size.min(MAX_SIZE), owner: old.owner, ..Content::default() };
    match form(tx.region(), &old) {
        Err(_) => Ok(c.size),
        Ok(Form::Direct(d)) => salvage_direct(tx, c, d),
        Ok(Form::Tree(root)) => {
            let mut s = Salvage { tx, c, seen: HashSet::from([root.off]), lost: 0 };
            s.node(root)?;
            Ok(s.lost.min(c.size))
        }
    }
}

fn salvage_direct(tx: &mut Tx, c: &mut Content, d: Direct) -> Result<u64> {
    let used = c.size.min(d.cap);
    let n = used.min(MAX_SMALL);
    if n > 0 {
        let new = tx.alloc(tag::DATA, n)?;
        tx.init_copy(d.off, new.off, n)?;
        tx.init_zero(new.off + n, c.size.min(new.cap) - n)?;
        c.root = Direct { off: new.off, cap: new.cap, reserved: false }.root(false);
    }
    Ok(used - n)
}

struct Salvage<'a, 'o> {
    tx: &'a mut Tx<'o>,
    c: &'a mut Content,
    /// Nodes and pages met so far; met again, they are damage.
    seen: HashSet<u64>,
    lost: u64,
}

impl Salvage<'_, '_> {
    fn node(&mut self, node: Node) -> Result<()> {
        for i in 0..node.len {
            // Pages beyond the size hold nothing.
            if node.page(i) >= self.c.size.div_ceil(PAGE) || node.is_null(self.tx.region(), i)? {
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

    /// Keeps what is below entry `i`; false if nothing can be known of it.
    fn child(&mut self, node: Node, i: u64) -> Result<bool> {
        match node.child(self.tx.region(), i) {
            Ok(Some(child)) if self.seen.insert(child.off) => self.node(child).map(|()| true),
            _ => Ok(false),
        }
    }

    fn leaf_entry(&mut self, node: Node, i: u64) -> Result<bool> {
        let r = self.tx.region();
        match node.get(r, i) {
            Ok(Entry::Page(off)) if self.seen.insert(off) && check_page(r, off).is_ok() => {
                let new = self.tx.alloc(tag::DATA, PAGE)?.off;
                self.tx.init_copy(off, new, PAGE)?;
                Writer { tx: self.tx, c: self.c, fresh: true }.link(node.page(i), Entry::Page(new), 0)?;
                Ok(true)
            }
            Ok(Entry::Hole | Entry::Reserved(_)) => Ok(true),
            Ok(entry @ Entry::Disk(_)) => {
                Writer { tx: self.tx, c: self.c, fresh: true }.link(node.page(i), entry, 0)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
