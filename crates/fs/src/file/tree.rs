//! Larger and sparse files: 4 KiB pages under a radix tree of index nodes; reading and searching.
//!
//! An index node is a heap object of up to 512 words: references of pages (height 1) or of nodes one
//! lower. How many it has, its size class says. Every loop here is bounded whatever the words say.

use pram::{Off, Region, SEGMENT};
use zerocopy::IntoBytes;

use super::PAGE;
use crate::error::{Error, Result};
use crate::layout::tag;

/// Most entries of an index node, and the bits of a page number that one level decides.
pub(super) const FANOUT: u64 = 512;
pub(super) const BITS: u32 = 9;
/// Six levels reach beyond the largest file.
pub(super) const MAX_HEIGHT: u8 = 6;
const _: () = assert!((super::MAX_SIZE / PAGE) >> (BITS * MAX_HEIGHT as u32) == 0);
/// Entries that are looked at together; a word has as many bits.
pub(super) const BATCH: usize = 64;

/// An entry of an index node, as it lies there: bits 0 to 46 are the offset of what it refers to, which no region goes
/// beyond; the others, for the state of a block, are zero.
#[derive(Clone, Copy)]
pub(super) struct Entry(u64);

impl Entry {
    const OFFSET_BITS: u32 = 47;
    const _REACHES: () = assert!(pram::region::MAX_SIZE == 1 << Entry::OFFSET_BITS);

    /// Where it leads; 0: nowhere.
    #[inline(always)]
    pub fn off(self) -> Result<u64> {
        match self.0 >> Entry::OFFSET_BITS {
            0 => Ok(self.0),
            state => Err(Error::Corrupt(format!("an index entry has a state that there is not: {state:#x}"))),
        }
    }
}

/// An index node, checked to be one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub off: u64,
    /// Entries that it has room for.
    pub len: u64,
    /// 1: its entries are pages.
    pub height: u8,
}

impl Node {
    #[inline]
    pub fn open(r: &Region, off: u64, height: u8) -> Result<Node> {
        let cap = r.resolve(off, tag::INDEX)?;
        Ok(Node { off, len: (cap / 8).min(FANOUT), height })
    }

    /// Bits of a page number that the levels below decide.
    #[inline(always)]
    pub fn shift(&self) -> u32 {
        BITS * (u32::from(self.height) - 1)
    }

    /// Is `page` beyond what a root of this height reaches?
    #[inline(always)]
    pub fn beyond(&self, page: u64) -> bool {
        page >> (self.shift() + BITS) != 0
    }

    /// The entry that leads to `page`.
    #[inline(always)]
    pub fn index(&self, page: u64) -> u64 {
        page >> self.shift() & (FANOUT - 1)
    }

    #[inline(always)]
    pub fn at(&self, i: u64) -> Off<u64> {
        Off::<u64>::new(self.off).index(i)
    }

    #[inline(always)]
    pub fn get(&self, r: &Region, i: u64) -> Result<u64> {
        match i < self.len {
            true => Entry(r.load(self.at(i))?).off(),
            false => Ok(0),
        }
    }

    /// The entries from `i` on.
    #[inline]
    pub fn load(&self, r: &Region, i: u64, entries: &mut [u64]) -> Result<()> {
        let n = self.len.saturating_sub(i).min(entries.len() as u64) as usize;
        r.read_bytes(self.at(i).raw(), entries[..n].as_mut_bytes())?;
        entries[n..].fill(0);
        Entry(entries.iter().fold(0, |all, e| all | e)).off().map(|_| ())
    }
}

/// Checks that a page lies at `off`.
#[inline]
pub(super) fn check_page(r: &Region, off: u64) -> Result<()> {
    match r.resolve(off, tag::DATA)? {
        PAGE => Ok(()),
        cap => Err(Error::Corrupt(format!("page {off:#x} has {cap} bytes"))),
    }
}

/// Is the page at `b` the neighbour of that at `a` in one segment? Then checking `a` has checked both.
#[inline(always)]
pub(super) fn adjacent(a: u64, b: u64) -> bool {
    b == a + PAGE && b % SEGMENT != 0
}

/// Where a page's reference is.
enum Spot {
    Leaf(Node),
    /// In no node: there is nothing before this page.
    Hole(u64),
}

#[inline]
fn find(r: &Region, root: Node, page: u64) -> Result<Spot> {
    if root.beyond(page) {
        return Ok(Spot::Hole(u64::MAX));
    }
    let mut node = root;
    while node.height > 1 {
        let child = node.get(r, node.index(page))?;
        if child == 0 {
            return Ok(Spot::Hole(((page >> node.shift()) + 1) << node.shift()));
        }
        node = Node::open(r, child, node.height - 1)?;
    }
    Ok(Spot::Leaf(node))
}

/// Fills `buf` with what is at `off`; all of it is below the size.
pub(super) fn read(r: &Region, root: Node, off: u64, mut buf: &mut [u8]) -> Result<()> {
    let mut pos = off;
    while !buf.is_empty() {
        let page = pos / PAGE;
        let n = match find(r, root, page)? {
            Spot::Leaf(leaf) => read_leaf(r, leaf, pos, buf)?,
            Spot::Hole(next) => {
                let n = (next - page).saturating_mul(PAGE).saturating_sub(pos % PAGE).min(buf.len() as u64) as usize;
                buf[..n].fill(0);
                n
            }
        };
        pos += n as u64;
        buf = &mut buf[n..];
    }
    Ok(())
}

/// Reads as much as one batch of a leaf's entries gives; neighbouring pages in one go.
#[inline]
fn read_leaf(r: &Region, leaf: Node, pos: u64, buf: &mut [u8]) -> Result<usize> {
    let mut entries = [0u64; BATCH];
    let first = leaf.index(pos / PAGE);
    let skip = pos % PAGE;
    let n = (skip + buf.len() as u64).div_ceil(PAGE).min(FANOUT - first).min(BATCH as u64) as usize;
    let entries = &mut entries[..n];
    leaf.load(r, first, entries)?;
    let total = (n as u64 * PAGE - skip).min(buf.len() as u64) as usize;
    let (mut i, mut done, mut skip) = (0, 0, skip);
    while i < n {
        let start = entries[i];
        let mut k = 1;
        if start != 0 {
            check_page(r, start)?;
            while i + k < n && adjacent(entries[i + k - 1], entries[i + k]) {
                k += 1;
            }
        }
        let bytes = (k as u64 * PAGE - skip).min((total - done) as u64) as usize;
        let part = &mut buf[done..done + bytes];
        if start == 0 {
            part.fill(0);
        } else {
            r.read_bytes(start + skip, part)?;
        }
        done += bytes;
        i += k;
        skip = 0;
    }
    Ok(total)
}

/// How many nodes a walk may open: no region has more. Ends walks of damaged trees.
pub(super) struct Budget(u64);

impl Budget {
    pub fn of(r: &Region) -> Budget {
        Budget(r.size() / 64)
    }

    #[inline]
    pub fn open(&mut self, r: &Region, off: u64, height: u8) -> Result<Node> {
        self.0 = self.0.checked_sub(1).ok_or_else(|| Error::Corrupt(format!("index node {off:#x} is in a cycle")))?;
        Node::open(r, off, height)
    }
}

/// The first allocated page from `from` on: its number and where it is.
pub(super) fn next(r: &Region, root: Node, from: u64) -> Result<Option<(u64, u64)>> {
    if root.beyond(from) {
        return Ok(None);
    }
    next_below(r, root, 0, from, &mut Budget::of(r))
}

fn next_below(r: &Region, node: Node, base: u64, from: u64, budget: &mut Budget) -> Result<Option<(u64, u64)>> {
    let shift = node.shift();
    for i in from.saturating_sub(base) >> shift..node.len {
        let off = node.get(r, i)?;
        if off == 0 {
            continue;
        }
        let page = base + (i << shift);
        if node.height == 1 {
            return Ok(Some((page, off)));
        }
        let child = budget.open(r, off, node.height - 1)?;
        if let Some(found) = next_below(r, child, page, from, budget)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The first page from `from` on, but before `end`, that is a hole; else `end`.
pub(super) fn next_hole(r: &Region, root: Node, from: u64, end: u64) -> Result<u64> {
    let mut budget = r.size() / PAGE / FANOUT + 2;
    let mut page = from;
    while page < end {
        let Spot::Leaf(leaf) = find(r, root, page)? else { return Ok(page) };
        for i in leaf.index(page)..FANOUT {
            if leaf.get(r, i)? == 0 {
                return Ok((page - leaf.index(page) + i).min(end));
            }
        }
        page = (page | (FANOUT - 1)) + 1;
        budget =
            budget.checked_sub(1).ok_or_else(|| Error::Corrupt(format!("index node {:#x} is in a cycle", leaf.off)))?;
    }
    Ok(end)
}
