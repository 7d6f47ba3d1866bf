//! Every heap object of a tree, and its errors.

use pram::memory::BLOCKS;
use pram::{Memory, Tag};

use super::entry::Entry;
use super::{check_block, check_page, Budget, Node};
use crate::error::{Error, Result};
use crate::file::{Content, PAGE};
use crate::layout::tag;
use ilfs::Place;

/// Calls `object` with every heap object.
pub(in crate::file) fn visit(r: &Memory, root: Node, object: &mut dyn FnMut(u64, Tag)) -> Result<()> {
    Walk { object, ..Walk::of(r, &mut |_, _| {}) }.node(root)
}

/// Calls `see` with every page that has a place, or none yet and is promised one.
pub(in crate::file) fn places(r: &Memory, root: Node, see: &mut dyn FnMut(u64, Option<Place>)) -> Result<()> {
    Walk { places: Some(see), ..Walk::of(r, &mut |_, _| {}) }.node(root)
}

/// Calls `problem` with each fault.
pub(in crate::file) fn check(r: &Memory, c: &Content, root: Node, problem: &mut dyn FnMut(String)) {
    // Pages that a truncation cut off are still there for a while.
    let end = if c.is_cut() { u64::MAX } else { c.size.div_ceil(PAGE) };
    let mut nothing = |_, _| {};
    let mut walk = Walk { problem: Some(problem), end, patience: PATIENCE, ..Walk::of(r, &mut nothing) };
    let result = walk.node(root);
    let pages = walk.pages;
    match result {
        Err(e) => problem(e.to_string()),
        Ok(()) if pages != c.pages => problem(format!("it says that it has {} pages, and has {pages}", c.pages)),
        Ok(()) => {}
    }
}

/// Problems that are reported of one tree.
const PATIENCE: u32 = 16;

/// A walk through a tree. With `problem` it goes on after damage, until it has seen too much.
struct Walk<'a> {
    r: &'a Memory,
    object: &'a mut dyn FnMut(u64, Tag),
    problem: Option<&'a mut dyn FnMut(String)>,
    places: Option<&'a mut dyn FnMut(u64, Option<Place>)>,
    budget: Budget,
    pages: u64,
    /// Pages from here on are beyond the end.
    end: u64,
    patience: u32,
}

impl<'a> Walk<'a> {
    fn of(r: &'a Memory, object: &'a mut dyn FnMut(u64, Tag)) -> Walk<'a> {
        Walk { r, object, problem: None, places: None, budget: Budget::of(r), pages: 0, end: 0, patience: 0 }
    }

    fn node(&mut self, node: Node) -> Result<()> {
        self.name(node.off, tag::INDEX)?;
        let mut empty = true;
        for i in 0..node.len {
            if node.is_null(self.r, i)? {
                continue;
            }
            empty = false;
            if let Err(e) = self.entry(node, i) {
                self.damage(e)?;
            }
        }
        if empty && self.problem.is_some() {
            self.damage(Error::Corrupt(format!("index node {:#x} is empty", node.off)))?;
        }
        Ok(())
    }

    fn entry(&mut self, node: Node, i: u64) -> Result<()> {
        if node.height > 1 {
            return match self.budget.child(self.r, node, i)? {
                Some(child) => self.node(child),
                None => Ok(()),
            };
        }
        let entry = node.get(self.r, i)?;
        match entry {
            Entry::Hole => Ok(()),
            Entry::Reserved(0) => {
                self.pages += 1;
                if let Some(see) = &mut self.places {
                    see(node.page(i), None);
                }
                Ok(())
            }
            Entry::Page(off) | Entry::Reserved(off) => {
                check_page(self.r, off)?;
                self.pages += 1;
                self.name(off, tag::DATA)?;
                self.place(node.page(i), entry)
            }
            Entry::Block(block) => {
                check_block(self.r, block)?;
                self.pages += 1;
                self.name(block, BLOCKS)?;
                let descriptor = self.r.descriptor(block)?;
                if descriptor.owner != [node.owner, node.page(i)] {
                    let (page, is) = (node.page(i), descriptor.owner);
                    return Err(Error::Corrupt(format!("block {block:#x} lies at page {page} and is of {is:?}")));
                }
                if let (Some(see), Some(place)) = (&mut self.places, Place::from_word(descriptor.place)) {
                    see(node.page(i), Some(place));
                }
                self.place(node.page(i), entry)
            }
            Entry::Disk(place) => {
                self.pages += 1;
                if let Some(see) = &mut self.places {
                    see(node.page(i), Some(place));
                }
                self.place(node.page(i), entry)
            }
        }
    }

    /// F5.
    fn place(&mut self, page: u64, entry: Entry) -> Result<()> {
        if self.problem.is_some() && page >= self.end && !matches!(entry, Entry::Reserved(_)) {
            self.damage(Error::Corrupt(format!("its page {page} is beyond its end and not reserved")))?;
        }
        Ok(())
    }

    fn name(&mut self, off: u64, tag: Tag) -> Result<()> {
        (self.object)(off, tag);
        if self.problem.is_some() && !self.r.is_allocated(off)? {
            self.damage(Error::Corrupt(format!("object {off:#x} belongs to it but is free")))?;
        }
        Ok(())
    }

    /// Reports damage and goes on, or gives up.
    fn damage(&mut self, e: Error) -> Result<()> {
        match &mut self.problem {
            Some(problem) if self.patience > 0 => {
                self.patience -= 1;
                problem(e.to_string());
                Ok(())
            }
            _ => Err(e),
        }
    }
}
