//! Collapse and insert: every page behind a place gets another number.
//!
//! The index is built anew; the pages stay where they are. Of a file with few pages that is one transaction. Of a large
//! one, a [`Shift`] builds the new index beside the old, piece by piece: nothing leads there, so that a crash leaves no
//! more than leaks. Then one transaction makes it the file's, and the nodes that only the old one had are freed, piece by piece too.
//! The caller keeps others from changing the file meanwhile, and from sweeping.

use pram::Memory;
use rustix::io::Errno;

use super::entry::Entry;
use super::free::free_page;
use super::grow::Writer;
use super::{clear, find, get, next, Budget, Found, Node, BATCH, FANOUT};
use crate::error::{Error, Result};
use crate::file::edit::Edit;
use crate::file::{end_of, form, is_compressed, Content, Form, FREED, MAX_SIZE, MOVED_WORD, PAGE};
use crate::layout::{tag, Root};

/// Batches of entries that one piece of a long shift enters: as many as the undo log takes with ease.
const BATCHES: u32 = 8;

/// Where pages go.
#[derive(Clone, Copy, Debug)]
struct Move {
    /// Pages from here on move, those of a collapse but `..last`, which go.
    first: u64,
    last: u64,
    gap: u64,
    down: bool,
    /// The size then.
    size: u64,
}

impl Move {
    fn collapse(c: &Content, off: u64, len: u64) -> Result<Move> {
        let end = end_of(off, len)?;
        if off % PAGE != 0 || len % PAGE != 0 || len == 0 || end >= c.size {
            return Err(Errno::INVAL.into());
        }
        Ok(Move { first: off / PAGE, last: end / PAGE, gap: len / PAGE, down: true, size: c.size - len })
    }

    fn insert(c: &Content, off: u64, len: u64) -> Result<Move> {
        if off % PAGE != 0 || len % PAGE != 0 || len == 0 || off >= c.size {
            return Err(Errno::INVAL.into());
        }
        let size = end_of(c.size, len)?;
        Ok(Move { first: off / PAGE, last: off / PAGE, gap: len / PAGE, down: false, size })
    }

    /// The number that page `p` gets; `None`: it goes.
    fn place(&self, p: u64) -> Result<Option<u64>> {
        let new = match self.down {
            _ if p < self.first => p,
            true if p < self.last => return Ok(None),
            true => p - self.gap,
            false => p + self.gap,
        };
        match new > MAX_SIZE / PAGE {
            true => Err(Errno::FBIG.into()),
            false => Ok(Some(new)),
        }
    }
}

/// Removes `off..off + len` and moves the rest there. Whole pages, not up to the end of the file.
pub(crate) fn collapse(tx: &mut Edit, c: &mut Content, off: u64, len: u64) -> Result<()> {
    let how = Move::collapse(c, off, len)?;
    renumber(tx, c, how)
}

/// Inserts a hole of `len` bytes at `off` and moves the rest behind it. Whole pages, inside the file.
pub(crate) fn insert(tx: &mut Edit, c: &mut Content, off: u64, len: u64) -> Result<()> {
    let how = Move::insert(c, off, len)?;
    renumber(tx, c, how)
}

/// All in one transaction.
fn renumber(tx: &mut Edit, c: &mut Content, how: Move) -> Result<()> {
    if is_compressed(c) {
        return Err(Error::Elsewhere);
    }
    if let Form::Direct(d) = form(tx.memory(), c)? {
        if d.off == 0 {
            c.size = how.size;
            return Ok(());
        }
        Writer::from_direct(tx, c, d, 0, 0)?;
    }
    let Form::Tree(root) = form(tx.memory(), c)? else {
        c.size = how.size;
        return Ok(());
    };
    let mut new = Content { root: Root::EMPTY.pack(), pages: 0, size: how.size, ..*c };
    move_node(tx, c, &mut new, root, &how, &mut Budget::of(tx.memory()))?;
    *c = moved(new);
    Ok(())
}

/// Of a large file: pages are elsewhere than their places were written for.
fn moved(new: Content) -> Content {
    let flag = if new.is_large() { MOVED_WORD } else { 0 };
    Content { root: new.root | flag, ..new }
}

fn move_node(
    tx: &mut Edit,
    old: &Content,
    new: &mut Content,
    node: Node,
    how: &Move,
    budget: &mut Budget,
) -> Result<()> {
    for i in 0..node.len {
        if node.height > 1 {
            if let Some(child) = budget.child(tx.memory(), node, i)? {
                move_node(tx, old, new, child, how, budget)?;
            }
            continue;
        }
        let entry = node.get(tx.memory(), i)?;
        match how.place(node.page(i))? {
            _ if entry == Entry::Hole => {}
            Some(p) => {
                set_page(tx, node.owner, node.page(i), p, entry)?;
                Writer { tx, c: new, fresh: true, large: old.is_large() }.link(p, entry, 0)?;
            }
            None => free_page(tx, node.owner, node.page(i), entry, &mut 0)?,
        }
    }
    Ok(tx.free(node.off, tag::INDEX)?)
}

/// The page of `entry` becomes page `to` of the file of inode `owner`, instead of `from`.
fn set_page(tx: &mut Edit, owner: u64, from: u64, to: u64, entry: Entry) -> Result<()> {
    match entry {
        Entry::Block(block) if from != to => {
            tx.block_of(owner, from, block)?;
            Ok(tx.set_owner(block, [owner, to])?)
        }
        _ => Ok(()),
    }
}

/// Has a file so many pages that one transaction would take long to collapse it, or to insert something?
pub(crate) fn is_long(c: &Content) -> bool {
    c.pages > FREED
}

/// A long collapse or insert under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shift {
    how: Move,
    /// The part that has been built so far.
    new: Content,
    /// Old pages from here on are yet to be entered.
    at: u64,
}

impl Shift {
    pub fn collapse(c: &Content, off: u64, len: u64) -> Result<Shift> {
        Ok(Shift::of(c, Move::collapse(c, off, len)?))
    }

    pub fn insert(c: &Content, off: u64, len: u64) -> Result<Shift> {
        Ok(Shift::of(c, Move::insert(c, off, len)?))
    }

    fn of(c: &Content, how: Move) -> Shift {
        Shift { how, new: Content { root: Root::EMPTY.pack(), pages: 0, size: how.size, ..*c }, at: 0 }
    }

    /// Enters some pages of `old` into the new index: a transaction. True if those were the last. After an error this is
    /// as before. [`Error::Elsewhere`]: a page lies in a block, which belongs to that page; it has to go to disk first.
    pub fn build(&mut self, tx: &mut Edit, old: &Content) -> Result<bool> {
        let mut later = *self;
        let done = later.build_part(tx, old)?;
        *self = later;
        Ok(done)
    }

    fn build_part(&mut self, tx: &mut Edit, old: &Content) -> Result<bool> {
        let r = tx.memory();
        let Form::Tree(root) = form(r, old)? else { return Err(Error::Corrupt("a page tree was expected".into())) };
        let mut entries = [Entry::Hole; BATCH];
        for _ in 0..BATCHES {
            let Some(page) = next(r, root, self.at)? else { return Ok(true) };
            let Found::Leaf(leaf) = find(r, root, page)? else { return Ok(true) };
            let i = leaf.index(page);
            let mut n = (FANOUT - i).min(BATCH as u64);
            // A batch goes to one place, or nowhere.
            if let Some(border) = [self.how.first, self.how.last].into_iter().find(|b| (page + 1..page + n).contains(b))
            {
                n = border - page;
            }
            let entries = &mut entries[..n as usize];
            leaf.load(r, i, entries)?;
            if entries.iter().any(|entry| matches!(entry, Entry::Block(_))) {
                return Err(Error::Elsewhere);
            }
            if let Some(to) = self.how.place(page)? {
                let used = entries.iter().rposition(|e| *e != Entry::Hole).map_or(0, |last| last + 1);
                self.how.place(page + used as u64 - 1)?;
                let large = old.is_large();
                Writer { tx, c: &mut self.new, fresh: false, large }.link_all(to, &entries[..used])?;
            }
            self.at = page + n;
        }
        Ok(false)
    }

    /// The content once the new index is the file's, and the nodes to free then.
    pub fn switch(self, r: &Memory, old: &Content) -> Result<(Content, Leftover)> {
        let removed = (self.how.first, if self.how.down { self.how.last } else { self.how.first });
        Ok((moved(self.new), Leftover::of(r, *old, removed)?))
    }

    /// The nodes to free if this is given up.
    pub fn give_up(self, r: &Memory) -> Result<Leftover> {
        Leftover::of(r, self.new, (0, 0))
    }
}

/// An index that nothing leads to, and which of its pages nothing else has.
pub(crate) struct Leftover {
    c: Content,
    pages: (u64, u64),
    nodes: Vec<u64>,
}

impl Leftover {
    fn of(r: &Memory, c: Content, pages: (u64, u64)) -> Result<Leftover> {
        let mut nodes = Vec::new();
        if let Form::Tree(root) = form(r, &c)? {
            nodes_below(r, root, &mut nodes, &mut Budget::of(r))?;
        }
        Ok(Leftover { c, pages, nodes })
    }

    /// Frees a part: a transaction. True if that was the last. Not again after a commit that has failed.
    pub fn free(&mut self, tx: &mut Edit) -> Result<bool> {
        let r = tx.memory();
        let (at, end) = self.pages;
        if let (true, Form::Tree(root)) = (at < end, form(r, &self.c)?) {
            let stop = clear::part(r, root, at, end)?;
            let mut page = at;
            while let Some(p) = next(r, root, page)?.filter(|p| *p < stop) {
                let entry = get(r, root, p)?;
                free_page(tx, self.c.owner, p, entry, &mut 0)?;
                page = p + 1;
            }
            self.pages.0 = stop;
            return Ok(false);
        }
        let rest = self.nodes.len().saturating_sub(FREED as usize);
        self.nodes.drain(rest..).try_for_each(|off| tx.free(off, tag::INDEX))?;
        Ok(rest == 0)
    }
}

fn nodes_below(r: &Memory, node: Node, nodes: &mut Vec<u64>, budget: &mut Budget) -> Result<()> {
    nodes.push(node.off);
    for i in 0..if node.height > 1 { node.len } else { 0 } {
        if let Some(child) = budget.child(r, node, i)? {
            nodes_below(r, child, nodes, budget)?;
        }
    }
    Ok(())
}
