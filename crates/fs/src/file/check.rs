//! Every heap object of a file, for mark-and-sweep; and what is wrong with a file.

use pram::heap::MAX_SMALL;
use pram::{Region, Tag};

use super::entry::Entry;
use super::tree::{check_page, Budget, Node};
use super::{form, Content, Form, MAX_SIZE, PAGE};
use crate::error::{Error, Result};
use crate::layout::{tag, Root};

/// Calls `object` with every heap object of the file. Fails at the first reference that is damaged: then
/// not all objects have been named.
pub(crate) fn visit(r: &Region, c: &Content, object: &mut dyn FnMut(u64, Tag)) -> Result<()> {
    match form(r, c)? {
        Form::Direct(d) if d.off == 0 => Ok(()),
        Form::Direct(d) => {
            object(d.off, tag::DATA);
            Ok(())
        }
        Form::Tree(root) => {
            let mut walk = Walk { r, object, problem: None, budget: Budget::of(r), pages: 0, end: 0, patience: 0 };
            walk.node(root)
        }
    }
}

/// Calls `problem` with a sentence for everything that is wrong with the content.
pub(crate) fn check(r: &Region, c: &Content, problem: &mut dyn FnMut(String)) {
    if c.size > MAX_SIZE {
        problem(format!("its size {} is beyond {MAX_SIZE}", c.size));
    }
    if Root::unpack(c.root).off == 0 && c.root != 0 {
        problem(format!("its root {:#x} makes no sense", c.root));
    }
    match form(r, c) {
        Err(e) => problem(e.to_string()),
        Ok(Form::Direct(d)) => {
            if d.cap > MAX_SMALL {
                problem(format!("its data block {:#x} has {} bytes", d.off, d.cap));
            }
            if d.off != 0 {
                check_allocated(r, d.off, problem);
            }
            if c.pages != 0 {
                problem(format!("it says that it has {} pages, and has none", c.pages));
            }
        }
        Ok(Form::Tree(root)) => {
            let budget = Budget::of(r);
            // What a truncation cut off is still there for a while.
            let end = if c.is_cut() { u64::MAX } else { c.size.div_ceil(PAGE) };
            let mut walk =
                Walk { r, object: &mut |_, _| {}, problem: Some(problem), budget, pages: 0, end, patience: PATIENCE };
            let result = walk.node(root);
            let pages = walk.pages;
            match result {
                Err(e) => problem(e.to_string()),
                Ok(()) if pages != c.pages => {
                    problem(format!("it says that it has {} pages, and has {pages}", c.pages))
                }
                Ok(()) => {}
            }
        }
    }
}

fn check_allocated(r: &Region, off: u64, problem: &mut dyn FnMut(String)) {
    match r.is_allocated(off) {
        Ok(true) => {}
        Ok(false) => problem(format!("object {off:#x} belongs to it but is free")),
        Err(e) => problem(e.to_string()),
    }
}

/// Problems that are reported of one tree.
const PATIENCE: u32 = 16;

/// A walk through a tree. With `problem` it goes on after damage, until it has seen too much.
struct Walk<'a> {
    r: &'a Region,
    object: &'a mut dyn FnMut(u64, Tag),
    problem: Option<&'a mut dyn FnMut(String)>,
    budget: Budget,
    pages: u64,
    /// Pages from here on are beyond the end.
    end: u64,
    patience: u32,
}

impl Walk<'_> {
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
            Entry::Page(off) | Entry::Reserved(off) => {
                check_page(self.r, off)?;
                self.pages += 1;
                self.name(off, tag::DATA)?;
                self.place(node.page(i), entry)
            }
            Entry::Disk(_) => {
                self.pages += 1;
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
