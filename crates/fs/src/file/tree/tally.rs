//! The room of a tree, and where it lies: a part of it at a time.

use pram::Memory;

use super::entry::Entry;
use super::{Budget, Node, BATCH};
use crate::error::Result;
use crate::file::{Part, PAGE};
use crate::layout::tag;
use ilfs::Place;

/// Pages that one part of a walk looks at, those in holes of leaves among them.
const SOME: usize = 8192;

/// Calls `see` with the room from page `from` on; returns the page with which to go on, if there is more.
pub(in crate::file) fn tally(r: &Memory, root: Node, from: u64, see: &mut dyn FnMut(Part)) -> Result<Option<u64>> {
    let mut walk = Tally { r, from, left: SOME, next: None, see, budget: Budget::of(r) };
    walk.node(root)?;
    Ok(walk.next)
}

struct Tally<'a> {
    r: &'a Memory,
    from: u64,
    left: usize,
    next: Option<u64>,
    see: &'a mut dyn FnMut(Part),
    budget: Budget,
}

impl Tally<'_> {
    /// A node that was not seen by an earlier part is one that begins where this one does, or behind that.
    fn node(&mut self, node: Node) -> Result<()> {
        if self.left == 0 {
            self.next = self.next.or(Some(node.base));
            return Ok(());
        }
        if node.base >= self.from {
            (self.see)(Part::Index(self.r.resolve(node.off, tag::INDEX)?));
        }
        let first = self.from.saturating_sub(node.base) >> node.shift();
        if node.height == 1 {
            return self.leaf(&node, first);
        }
        for i in first..node.len {
            if self.next.is_some() {
                break;
            }
            if let Some(child) = self.budget.child(self.r, node, i)? {
                self.node(child)?;
            }
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: &Node, mut first: u64) -> Result<()> {
        let mut entries = [Entry::Hole; BATCH];
        while first < leaf.len {
            if self.left == 0 {
                self.next = Some(leaf.page(first));
                break;
            }
            let count = (leaf.len - first).min(BATCH as u64) as usize;
            leaf.load(self.r, first, &mut entries[..count])?;
            for (n, entry) in (first..).zip(&entries[..count]) {
                if let Some(part) = self.part(leaf.page(n), *entry)? {
                    (self.see)(part);
                }
            }
            first += count as u64;
            self.left = self.left.saturating_sub(count);
        }
        Ok(())
    }

    fn part(&self, page: u64, entry: Entry) -> Result<Option<Part>> {
        Ok(match entry.as_it_is(self.r)? {
            Entry::Hole => None,
            Entry::Page(_) | Entry::Reserved(1..) => Some(Part::Memory(PAGE)),
            Entry::Reserved(_) => Some(Part::Promised),
            Entry::Disk(place) => Some(Part::Disk { page, place, cached: false }),
            Entry::Block(block) => Some(match Place::from_word(self.r.descriptor(block)?.place) {
                Some(place) => Part::Disk { page, place, cached: true },
                None => Part::Waiting,
            }),
        })
    }
}
