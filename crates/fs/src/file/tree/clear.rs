//! Taking pages away: truncation, holes, the whole file. Nothing here allocates, so that it works on a
//! full memory; the time is that of the nodes that are there, not of the offsets.

use pram::tx::{LOG_CAPACITY, RECORD};
use pram::Memory;

use super::entry::Entry;
use super::free::{free_entry, free_page};
use super::grow::Writer;
use super::{find, next, runs, Budget, Found, Node, BITS, FANOUT, MAX_HEIGHT};
use crate::error::{Error, Result};
use crate::file::edit::Edit;
use crate::file::{form, Content, Form, CUT_WORD, FREED, MAX_SIZE, PAGE, RESERVE};
use crate::layout::{tag, Root};

/// Frees all from `size` on, which is no more than the size of the file; much of it only [later](cut).
pub(in crate::file) fn truncate(tx: &mut Edit, c: &mut Content, size: u64) -> Result<()> {
    if c.pages > FREED || c.is_large() {
        c.root |= CUT_WORD;
        return Ok(());
    }
    pages(tx, c, size.div_ceil(PAGE), u64::MAX)
}

/// Frees some of the part that a truncation cut off: a transaction.
pub(in crate::file) fn cut(tx: &mut Edit, c: &mut Content) -> Result<()> {
    let Form::Tree(root) = form(tx.memory(), c)? else { return Err(Error::Corrupt("a page tree was expected".into())) };
    let first = c.size.div_ceil(PAGE);
    let end = part(tx.memory(), root, first, u64::MAX)?;
    pages(tx, c, first, end)?;
    let done = match form(tx.memory(), c)? {
        Form::Tree(root) => next(tx.memory(), root, end)?.is_none(),
        Form::Direct(_) | Form::Compressed(_) => true,
    };
    if done {
        c.root &= !CUT_WORD;
    }
    Ok(())
}

/// Makes pages `first..end` of a tree holes. The undo log takes the entries of nodes at the two ends only.
pub(in crate::file) fn pages(tx: &mut Edit, c: &mut Content, first: u64, end: u64) -> Result<()> {
    for border in [first, end] {
        cut_compact(tx, c, first, end, border)?;
    }
    let r = tx.memory();
    let (mut budget, mut pages) = (Budget::of(r), c.pages);
    let emptied = walk(r, c, first, end, |step| match step {
        Step::Free { node, i } => free_entry(tx, node, i, &mut budget, &mut pages),
        Step::Drop(node) => Ok(tx.free(node.off, tag::INDEX)?),
        Step::Clear { at, len } => Ok(tx.set_zero(at, len)?),
    })?;
    if emptied {
        c.root = Root::EMPTY.pack();
    }
    c.pages = pages;
    lower(tx, c)
}

/// Makes holes of pages `first..end` in the compact leaf, if it is one, that has pages before and behind `border`.
fn cut_compact(tx: &mut Edit, c: &mut Content, first: u64, end: u64, border: u64) -> Result<()> {
    let Form::Tree(root) = form(tx.memory(), c)? else { return Ok(()) };
    if border % FANOUT == 0 {
        return Ok(());
    }
    let Found::Leaf(leaf) = find(tx.memory(), root, border)? else { return Ok(()) };
    if !leaf.is_compact() {
        return Ok(());
    }
    let (from, to) = (first.max(leaf.base) - leaf.base, end.min(leaf.base + FANOUT) - leaf.base);
    let mut entries = [Entry::Hole; FANOUT as usize];
    leaf.load(tx.memory(), 0, &mut entries)?;
    if !runs::clear(tx, &leaf, from, to)? {
        // An ordinary leaf takes them.
        return Writer { tx, c, fresh: false, large: true }.set(border, entries[(border - leaf.base) as usize]);
    }
    for i in from..to {
        free_page(tx, leaf.owner, leaf.page(i), entries[i as usize], &mut c.pages)?;
    }
    Ok(())
}

/// Where the first part of pages `first..end` ends that one transaction frees: no more than [`FREED`] are in it.
pub(in crate::file) fn part(r: &Memory, root: Node, first: u64, end: u64) -> Result<u64> {
    const _: () = assert!(FREED == FANOUT);
    Ok(match next(r, root, first)? {
        // The end of its leaf.
        Some(page) => ((page | (FANOUT - 1)) + 1).min(end),
        None => end,
    })
}

/// Bytes of undo log that [`pages`] takes.
pub(in crate::file) fn log_needed(r: &Memory, c: &Content, first: u64, end: u64) -> Result<u64> {
    let mut sum = 0;
    walk(r, c, first, end, |step| {
        if let Step::Clear { len, .. } = step {
            sum += len + RECORD;
        }
        Ok(())
    })?;
    Ok(sum)
}

/// Where to part pages `first..end` if the undo log cannot take both ends: a page from which on there is only one.
/// That is `end` if there is but one anyway.
pub(in crate::file) fn half(first: u64, end: u64) -> u64 {
    match (first ^ end).checked_ilog2() {
        Some(bit) => end & u64::MAX << (bit / BITS * BITS),
        None => end,
    }
}

/// Most undo log that one end takes: a node of each level; of the highest, the largest file reaches 64 entries.
const ONE_END: u64 = (MAX_HEIGHT as u64 - 1) * (FANOUT * 8 + RECORD) + 64 * 8 + RECORD;
const _: () = assert!((MAX_SIZE / PAGE) >> (BITS * (MAX_HEIGHT as u32 - 1)) < 64);
// With parts of two pages.
const _: () = assert!(ONE_END + 2 * (PAGE + RECORD) + RECORD + RESERVE <= LOG_CAPACITY);

/// The result of taking pages out of a tree.
enum Step {
    /// Frees the target of entry `i` of `node`, with all below it.
    Free { node: Node, i: u64 },
    /// Nothing is left of a node: it goes, unchanged.
    Drop(Node),
    /// Entries of a node become null.
    Clear { at: u64, len: u64 },
}

/// Calls `step` for each step that makes holes of pages `first..end` of a tree. True if nothing is left of it.
fn walk(r: &Memory, c: &Content, first: u64, end: u64, step: impl FnMut(Step) -> Result<()>) -> Result<bool> {
    match form(r, c)? {
        Form::Tree(root) if first < end => Cut { r, budget: Budget::of(r), first, end, step }.node(root),
        _ => Ok(false),
    }
}

struct Cut<'r, F> {
    r: &'r Memory,
    budget: Budget,
    first: u64,
    end: u64,
    step: F,
}

impl<F: FnMut(Step) -> Result<()>> Cut<'_, F> {
    /// Clears the part of the range below `node`. True if nothing is left.
    fn node(&mut self, node: Node) -> Result<bool> {
        let mut left = false;
        // First and last entry that goes; those between are null or go too.
        let mut gone: Option<(u64, u64)> = None;
        for i in 0..node.len {
            if node.is_null(self.r, i)? {
                continue;
            }
            if self.entry(node, i)? {
                gone = Some((gone.map_or(i, |g| g.0), i));
            } else {
                left = true;
            }
        }
        if !left {
            (self.step)(Step::Drop(node))?;
        } else if let Some((a, b)) = gone {
            (self.step)(Step::Clear { at: node.at(a).raw(), len: (b - a + 1) * 8 })?;
        }
        Ok(!left)
    }

    /// The same for the target of entry `i` of `node`.
    fn entry(&mut self, node: Node, i: u64) -> Result<bool> {
        let (from, to) = (node.page(i), node.page(i + 1));
        if to <= self.first || self.end <= from {
            return Ok(false);
        }
        if self.first <= from && to <= self.end {
            (self.step)(Step::Free { node, i })?;
            return Ok(true);
        }
        match self.budget.child(self.r, node, i)? {
            Some(child) => self.node(child),
            None => Ok(true),
        }
    }
}

/// Removes root nodes that only lead to their first child.
fn lower(tx: &mut Edit, c: &mut Content) -> Result<()> {
    let r: &Memory = tx.memory();
    while let Form::Tree(root) = form(r, c)? {
        if root.height == 1 {
            break;
        }
        for i in 1..root.len {
            if !root.is_null(r, i)? {
                return Ok(());
            }
        }
        match root.child(r, 0)? {
            None => c.root = Root::EMPTY.pack(),
            // The root word tells which part of ordinary nodes exists.
            Some(child) if child.is_compact() => return Ok(()),
            Some(child) => c.set_tree(child),
        }
        tx.free(root.off, tag::INDEX)?;
    }
    Ok(())
}
