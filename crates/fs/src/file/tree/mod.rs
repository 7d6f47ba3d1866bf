//! Larger and sparse files: 4 KiB pages under a radix tree of index nodes; finding pages.
//!
//! An index node is a heap object of up to 512 [entries](super::entry): of pages (height 1) or of nodes one lower. Its size
//! class tells their number. Every loop here is bounded for any words.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`entry`] | the words of an index node |
//! | [`grow`] | adding pages and writing to them |
//! | [`clear`] | taking pages away: truncation, holes, the whole file |
//! | [`free`](mod@free) | freeing the targets of an entry, of a node, or of a whole tree |
//! | [`space`] | `fallocate`: reserve, punch |
//! | [`shift`] | `fallocate`: collapse, insert |
//! | [`runs`] | compact leaves: a word for each run of places |
//! | [`check`](mod@check) | every heap object, and its errors |
//! | [`tally`](mod@tally) | how many pages are where, a part at a time |
//! | [`salvage`](mod@salvage) | the readable part of a damaged tree |

mod check;
mod clear;
pub(super) mod entry;
mod free;
mod grow;
mod runs;
mod salvage;
mod shift;
mod space;
mod tally;

use pram::{Memory, Off, CHUNK};
use zerocopy::IntoBytes;

use entry::{Below, Entry, Spot};

use super::PAGE;
use crate::error::{Error, Result};
use crate::layout::tag;

pub(super) use check::{check, places, visit};
pub(super) use clear::{cut, truncate};
pub(super) use free::free;
pub(super) use grow::Writer;
pub(super) use salvage::salvage;
pub(crate) use shift::{collapse, insert, is_long, Leftover, Shift};
pub(super) use space::{allocate, punch};
pub(super) use tally::tally;

/// Most entries of an index node, and the bits of a page number that one level decides.
pub(super) const FANOUT: u64 = 512;
pub(super) const BITS: u32 = 9;
/// Six levels reach beyond the largest file.
pub(super) const MAX_HEIGHT: u8 = 6;
const _: () = assert!((super::MAX_SIZE / PAGE) >> (BITS * MAX_HEIGHT as u32) == 0);
/// Entries that are looked at together; a word has as many bits.
pub(super) const BATCH: usize = 64;

/// An index node, checked to be one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub off: u64,
    /// Entries that it has room for.
    pub len: u64,
    /// 1: its entries are pages.
    pub height: u8,
    /// The first page that it leads to.
    pub base: u64,
    /// The inode whose file it belongs to.
    pub owner: u64,
    /// Words of a compact leaf; 0: it is none.
    pub words: u8,
}

impl Node {
    /// The node at `off`, otherwise like `like`.
    #[inline]
    pub fn open(r: &Memory, off: u64, like: Node) -> Result<Node> {
        let cap = r.resolve(off, tag::INDEX)?;
        Ok(Node { off, len: (cap / 8).min(FANOUT), ..like })
    }

    /// The root of a tree, which is nowhere yet.
    #[inline(always)]
    pub fn root(owner: u64, height: u8) -> Node {
        Node { off: 0, len: 0, height, base: 0, owner, words: 0 }
    }

    /// The node that entry `i` leads to, wherever it is.
    #[inline(always)]
    pub fn below(&self, i: u64) -> Node {
        Node { off: 0, len: 0, height: self.height - 1, base: self.page(i), owner: self.owner, words: 0 }
    }

    /// Bits of a page number that the levels below decide.
    #[inline(always)]
    pub fn shift(&self) -> u32 {
        BITS * (u32::from(self.height) - 1)
    }

    /// Whether `page` is beyond the reach of a root of this height.
    #[inline(always)]
    pub fn beyond(&self, page: u64) -> bool {
        page >> (self.shift() + BITS) != 0
    }

    /// The entry that leads to `page`.
    #[inline(always)]
    pub fn index(&self, page: u64) -> u64 {
        page >> self.shift() & (FANOUT - 1)
    }

    /// The first page that entry `i` leads to.
    #[inline(always)]
    pub fn page(&self, i: u64) -> u64 {
        self.base + (i << self.shift())
    }

    #[inline(always)]
    pub fn at(&self, i: u64) -> Off<u64> {
        Off::<u64>::new(self.off).index(i)
    }

    #[inline(always)]
    fn spot(&self, i: u64) -> Spot {
        Spot::new(self.owner, self.height, self.page(i))
    }

    /// The word of entry `i`, 0 if there is no room for it.
    #[inline(always)]
    fn word(&self, r: &Memory, i: u64) -> Result<u64> {
        match i < self.len {
            true => Ok(r.load(self.at(i))?),
            false => Ok(0),
        }
    }

    /// Does entry `i` lead nowhere?
    #[inline(always)]
    pub fn is_null(&self, r: &Memory, i: u64) -> Result<bool> {
        match self.is_compact() {
            false => Ok(self.word(r, i)? == 0),
            true => Ok(runs::get(r, self, i)? == Entry::Hole),
        }
    }

    /// Entry `i` of a leaf.
    #[inline(always)]
    pub fn get(&self, r: &Memory, i: u64) -> Result<Entry> {
        match self.is_compact() {
            false => Entry::decode(self.word(r, i)?, self.spot(i)),
            true => runs::get(r, self, i),
        }
    }

    /// The node that entry `i` leads to.
    #[inline(always)]
    pub fn child(&self, r: &Memory, i: u64) -> Result<Option<Node>> {
        match entry::decode_node(self.word(r, i)?, self.spot(i))? {
            Below::Nothing => Ok(None),
            Below::Node(off) => Node::open(r, off, self.below(i)).map(Some),
            Below::Compact(off) => runs::open(r, off, self.below(i)).map(Some),
        }
    }

    /// The word by which entry `i` leads to a node at `off`.
    #[inline(always)]
    pub fn link_word(&self, i: u64, off: u64) -> u64 {
        entry::encode_node(off, self.spot(i))
    }

    /// The word of entry `i` of a leaf.
    #[inline(always)]
    pub fn entry_word(&self, i: u64, entry: Entry) -> u64 {
        entry.encode(self.spot(i))
    }

    /// `entries.len()` entries of a leaf, from the `first`th on.
    #[inline]
    pub fn load(&self, r: &Memory, first: u64, entries: &mut [Entry]) -> Result<()> {
        if self.is_compact() {
            return runs::load(r, self, first, entries);
        }
        let mut words = [0u64; BATCH];
        let words = &mut words[..entries.len()];
        let n = self.len.saturating_sub(first).min(words.len() as u64) as usize;
        r.read_bytes(self.at(first).raw(), words[..n].as_mut_bytes())?;
        for (i, (entry, word)) in entries.iter_mut().zip(words).enumerate() {
            *entry = Entry::decode(*word, self.spot(first + i as u64))?;
        }
        Ok(())
    }
}

/// Checks that a page lies at `off`.
#[inline]
pub(super) fn check_page(r: &Memory, off: u64) -> Result<()> {
    match r.resolve(off, tag::DATA)? {
        PAGE => Ok(()),
        cap => Err(Error::Corrupt(format!("page {off:#x} has {cap} bytes"))),
    }
}

/// Checks that a block lies at `off`, and is allocated.
pub(super) fn check_block(r: &Memory, off: u64) -> Result<()> {
    r.block(off)?;
    match r.is_allocated(off)? {
        true => Ok(()),
        false => Err(Error::Corrupt(format!("block {off:#x} belongs to a file but is free"))),
    }
}

/// Is the page at `b` the neighbour of that at `a` in one segment? Then checking `a` has checked both.
#[inline(always)]
pub(super) fn adjacent(a: u64, b: u64) -> bool {
    b == a + PAGE && b % CHUNK != 0
}

/// Where a page's entry is.
pub(super) enum Found {
    Leaf(Node),
    /// In no node: there is nothing before this page.
    Hole(u64),
}

#[inline]
pub(super) fn find(r: &Memory, root: Node, page: u64) -> Result<Found> {
    if root.beyond(page) {
        return Ok(Found::Hole(u64::MAX));
    }
    let mut node = root;
    while node.height > 1 {
        let i = node.index(page);
        match node.child(r, i)? {
            Some(child) => node = child,
            None => return Ok(Found::Hole(node.page(i + 1))),
        }
    }
    Ok(Found::Leaf(node))
}

/// The entry of `page`.
pub(super) fn get(r: &Memory, root: Node, page: u64) -> Result<Entry> {
    match find(r, root, page)? {
        Found::Leaf(leaf) => leaf.get(r, leaf.index(page)),
        Found::Hole(_) => Ok(Entry::Hole),
    }
}

/// How many nodes a walk may open: no memory has more. Ends walks of damaged trees.
pub(super) struct Budget(u64);

impl Budget {
    pub fn of(r: &Memory) -> Budget {
        Budget(r.size() / 64)
    }

    /// The node that entry `i` of `node` leads to.
    #[inline]
    pub fn child(&mut self, r: &Memory, node: Node, i: u64) -> Result<Option<Node>> {
        let Some(child) = node.child(r, i)? else { return Ok(None) };
        self.0 = self
            .0
            .checked_sub(1)
            .ok_or_else(|| Error::Corrupt(format!("index node {:#x} is in a cycle", child.off)))?;
        Ok(Some(child))
    }
}

/// Of which leaves entries are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    All,
    /// Not of compact ones, in which all is on disk.
    Plain,
}

/// Adds to `found` the first `most` pages of those from `first` on whose entries are `wanted`.
pub(super) fn select(
    r: &Memory,
    root: Node,
    first: u64,
    most: usize,
    leaves: Leaves,
    wanted: impl Fn(&Entry) -> bool,
    found: &mut Vec<(u64, Entry)>,
) -> Result<()> {
    Select { r, first, most, leaves, wanted, found, budget: Budget::of(r) }.node(root)
}

struct Select<'a, F> {
    r: &'a Memory,
    first: u64,
    most: usize,
    leaves: Leaves,
    wanted: F,
    found: &'a mut Vec<(u64, Entry)>,
    budget: Budget,
}

impl<F: Fn(&Entry) -> bool> Select<'_, F> {
    fn node(&mut self, node: Node) -> Result<()> {
        if node.is_compact() && self.leaves == Leaves::Plain {
            return Ok(());
        }
        for i in self.first.saturating_sub(node.base) >> node.shift()..node.len {
            if self.found.len() >= self.most {
                break;
            }
            if node.height == 1 {
                let entry = node.get(self.r, i)?;
                if (self.wanted)(&entry) {
                    self.found.push((node.page(i), entry));
                }
            } else if let Some(child) = self.budget.child(self.r, node, i)? {
                self.node(child)?;
            }
        }
        Ok(())
    }
}

/// The first page from `from` on that is no hole.
pub(super) fn next(r: &Memory, root: Node, from: u64) -> Result<Option<u64>> {
    if root.beyond(from) {
        return Ok(None);
    }
    next_below(r, root, from, &mut Budget::of(r))
}

fn next_below(r: &Memory, node: Node, from: u64, budget: &mut Budget) -> Result<Option<u64>> {
    for i in from.saturating_sub(node.base) >> node.shift()..node.len {
        if node.height == 1 {
            if !node.is_null(r, i)? {
                return Ok(Some(node.page(i)));
            }
        } else if let Some(child) = budget.child(r, node, i)? {
            if let Some(found) = next_below(r, child, from, budget)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}
