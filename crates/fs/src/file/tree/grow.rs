//! Adding pages to a tree and writing to them.

use pram::Off;
use zerocopy::IntoBytes;

use super::entry::Entry;
use super::free::free_page;
use super::{adjacent, check_page, find, next, Found, Node, BATCH, BITS, FANOUT};
use crate::error::{Error, Result};
use crate::file::direct::Direct;
use crate::file::edit::Edit;
use crate::file::{form, has_room, Content, Form, LARGE_WORD, PAGE};
use crate::layout::{tag, Root};

/// Fewest entries of an index node.
const MIN_NODE: u64 = 8;

/// Changes a tree.
pub(in crate::file) struct Writer<'a, 'e, 'o> {
    pub tx: &'a mut Edit<'e, 'o>,
    pub c: &'a mut Content,
    /// Nothing that is linked leads to this tree yet: its nodes need no log.
    pub fresh: bool,
    /// Pages are blocks.
    pub large: bool,
}

/// An index node, and whether nothing that is linked leads to it yet.
#[derive(Clone, Copy)]
struct Grown {
    node: Node,
    fresh: bool,
}

/// The reference to a node.
enum Link {
    Root,
    /// An entry of a higher one.
    Entry {
        above: Grown,
        i: u64,
    },
}

/// A write to consecutive pages of one leaf.
struct Span<'d> {
    leaf: Grown,
    /// First page, and how many.
    page: u64,
    count: usize,
    /// The whole write that this is part of.
    off: u64,
    data: &'d [u8],
}

impl Span<'_> {
    /// The part of page `j` of this span that is written.
    #[inline]
    fn part(&self, j: usize) -> (u64, u64) {
        let start = (self.page + j as u64) * PAGE;
        let end = self.off + self.data.len() as u64;
        (self.off.saturating_sub(start), (end - start).min(PAGE))
    }

    /// The bytes to write to `a..b` of page `j`.
    #[inline]
    fn bytes(&self, j: usize, a: u64, b: u64) -> &[u8] {
        let start = (self.page + j as u64) * PAGE;
        &self.data[(start + a - self.off) as usize..(start + b - self.off) as usize]
    }
}

impl<'a, 'e, 'o> Writer<'a, 'e, 'o> {
    /// Turns the direct file `c` into a tree that can take bytes `off..end`. Pages that they cover wholly are
    /// not copied: the caller writes them.
    pub fn from_direct(tx: &'a mut Edit<'e, 'o>, c: &'a mut Content, d: Direct, off: u64, end: u64) -> Result<()> {
        let used = c.size.min(d.cap);
        let pages = used.div_ceil(PAGE);
        // The first leaf gets its final size at once, unless the write is far away.
        let expect = Some(end.div_ceil(PAGE)).filter(|n| *n <= FANOUT).unwrap_or(0);
        c.root = Root::EMPTY.pack();
        c.pages = 0;
        let mut w = Writer { tx, c, fresh: true, large: false };
        for page in 0..pages {
            let start = page * PAGE;
            if off <= start && start + PAGE <= end {
                continue;
            }
            let n = (used - start).min(PAGE);
            let new = w.tx.alloc(tag::DATA, PAGE)?.off;
            w.tx.init_copy(d.off + start, new, n)?;
            w.tx.init_zero(new + n, PAGE - n)?;
            w.link(page, Entry::Page(new), expect.max(pages))?;
        }
        if d.off != 0 {
            w.tx.free(d.off, tag::DATA)?;
        }
        Ok(())
    }

    /// Enters the target of `entry` as page `page` of a tree that has a hole there; `expect` pages are to come.
    pub fn link(&mut self, page: u64, entry: Entry, expect: u64) -> Result<()> {
        let last = page.max((page | (FANOUT - 1)).min(expect.saturating_sub(1)));
        let raised = self.raise(page)?;
        let leaf = self.leaf(page, last, raised)?;
        self.c.pages += 1;
        self.set_entries(&leaf, leaf.node.index(page), &[entry])
    }

    /// Enters these, the first and the last of which are no holes, from page `first` on of a tree that has holes there.
    pub fn link_all(&mut self, first: u64, entries: &[Entry]) -> Result<()> {
        self.each_batch(first, first + entries.len() as u64 - 1, |w, leaf, page, count| {
            let part = &entries[(page - first) as usize..][..count];
            w.c.pages += part.iter().filter(|e| **e != Entry::Hole).count() as u64;
            w.set_entries(&leaf, leaf.node.index(page), part)
        })
    }

    /// Makes entry `i` of a higher node lead to the node at `off`.
    fn set_link(&mut self, above: &Grown, i: u64, off: u64) -> Result<()> {
        self.store(above.fresh, above.node.at(i), &[above.node.link_word(i, off)])
    }

    /// Stores entries of a leaf, from the `first`th on.
    fn set_entries(&mut self, leaf: &Grown, first: u64, entries: &[Entry]) -> Result<()> {
        let mut words = [0u64; BATCH];
        let words = &mut words[..entries.len()];
        for (i, (word, entry)) in words.iter_mut().zip(entries).enumerate() {
            *word = leaf.node.entry_word(first + i as u64, *entry);
        }
        self.store(leaf.fresh, leaf.node.at(first), words)
    }

    /// Stores words of a node, unlogged if it is fresh.
    fn store(&mut self, fresh: bool, at: Off<u64>, words: &[u64]) -> Result<()> {
        match fresh {
            true => self.tx.init_bytes(at.raw(), words.as_bytes())?,
            false => self.tx.set_bytes(at.raw(), words.as_bytes())?,
        }
        Ok(())
    }

    fn root(&self) -> Result<Option<Node>> {
        match form(self.tx.memory(), self.c)? {
            Form::Tree(node) => Ok(Some(node)),
            Form::Direct(Direct { off: 0, .. }) => Ok(None),
            Form::Direct(_) | Form::Compressed(_) => Err(Error::Corrupt("a page tree was expected".into())),
        }
    }

    /// Makes an empty node of the kind of `like`, with room for entry `i` and for twice as many as that has.
    fn new_node(&mut self, like: Node, i: u64) -> Result<Node> {
        let entries = (i + 1).max(2 * like.len).max(MIN_NODE).next_power_of_two().min(FANOUT);
        let block = self.tx.alloc(tag::INDEX, entries * 8)?;
        let node = Node { off: block.off, len: (block.cap / 8).min(FANOUT), ..like };
        self.tx.init_zero(node.off, node.len * 8)?;
        Ok(node)
    }

    /// Makes the tree high enough for page `last`; true if it has a new root.
    fn raise(&mut self, last: u64) -> Result<bool> {
        let Some(mut root) = self.root()? else {
            let top = Node::root(self.c.owner, ((64 - last.leading_zeros()).div_ceil(BITS) as u8).max(1));
            let root = self.new_node(top, top.index(last))?;
            self.c.set_tree(root);
            if self.large {
                self.c.root |= LARGE_WORD;
            }
            return Ok(true);
        };
        let mut raised = false;
        while root.beyond(last) {
            let top = Node::root(self.c.owner, root.height + 1);
            let i = if top.beyond(last) { 0 } else { top.index(last) };
            let above = Grown { node: self.new_node(top, i)?, fresh: true };
            self.set_link(&above, 0, root.off)?;
            root = above.node;
            raised = true;
        }
        if raised {
            self.c.set_tree(root);
        }
        Ok(raised)
    }

    /// The leaf of page `page`, made if there is none, with room up to page `last` of the same leaf.
    fn leaf(&mut self, page: u64, last: u64, fresh_root: bool) -> Result<Grown> {
        let Some(root) = self.root()? else { return Err(Error::Corrupt("a page tree without root".into())) };
        let mut at = Grown { node: root, fresh: fresh_root || self.fresh };
        let mut link = Link::Root;
        loop {
            let need = at.node.index(if at.node.height == 1 { last } else { page });
            if need >= at.node.len {
                at = self.enlarge(at.node, need, &link)?;
            }
            if at.node.height == 1 {
                return Ok(at);
            }
            let (above, i) = (at, at.node.index(page));
            at = match above.node.child(self.tx.memory(), i)? {
                Some(child) if child.is_compact() => self.expand(child, &above, i)?,
                Some(child) => Grown { node: child, fresh: self.fresh },
                None => {
                    let below = above.node.below(i);
                    let new = self.new_node(below, below.index(if below.height == 1 { last } else { page }))?;
                    self.set_link(&above, i, new.off)?;
                    Grown { node: new, fresh: true }
                }
            };
            link = Link::Entry { above, i };
        }
    }

    /// Makes an ordinary leaf of a compact one, to which entry `i` of `above` leads.
    fn expand(&mut self, old: Node, above: &Grown, i: u64) -> Result<Grown> {
        let plain = Node { words: 0, len: 0, ..old };
        let new = Grown { node: self.new_node(plain, FANOUT - 1)?, fresh: true };
        let mut entries = [Entry::Hole; BATCH];
        for first in (0..FANOUT).step_by(BATCH) {
            old.load(self.tx.memory(), first, &mut entries)?;
            self.set_entries(&new, first, &entries)?;
        }
        self.set_link(above, i, new.node.off)?;
        self.tx.free(old.off, tag::INDEX)?;
        Ok(new)
    }

    /// Sets the entry of a page that has one.
    pub fn set(&mut self, page: u64, entry: Entry) -> Result<()> {
        let leaf = self.leaf(page, page, false)?;
        self.set_entries(&leaf, leaf.node.index(page), &[entry])
    }

    /// Makes the leaf of a page compact, if all that is in it lies on disk, in few runs.
    pub fn compact(&mut self, page: u64) -> Result<bool> {
        let Some(mut node) = self.root()? else { return Ok(false) };
        if node.beyond(page) {
            return Ok(false);
        }
        while node.height > 2 {
            match node.child(self.tx.memory(), node.index(page))? {
                Some(child) => node = child,
                None => return Ok(false),
            }
        }
        match node.height {
            2 => super::runs::compact(self.tx, node, node.index(page)),
            _ => Ok(false),
        }
    }

    /// Replaces a short node by one with room for entry `i`.
    fn enlarge(&mut self, old: Node, i: u64, link: &Link) -> Result<Grown> {
        let new = self.new_node(old, i)?;
        self.tx.init_copy(old.off, new.off, old.len * 8)?;
        match link {
            Link::Root => self.c.set_tree(new),
            Link::Entry { above, i } => self.set_link(above, *i, new.off)?,
        }
        self.tx.free(old.off, tag::INDEX)?;
        Ok(Grown { node: new, fresh: true })
    }

    /// Writes `data` at `off`. The allocated pages between the size and `off` have been zeroed.
    pub fn write(&mut self, off: u64, data: &[u8]) -> Result<()> {
        let last = (off + data.len() as u64 - 1) / PAGE;
        self.each_batch(off / PAGE, last, |w, leaf, page, count| w.write_span(&Span { leaf, page, count, off, data }))
    }

    /// Grows the tree for pages `page..=last` and hands them out in batches that lie in one leaf each: the leaf,
    /// the first page and how many.
    #[inline(always)]
    fn each_batch(
        &mut self,
        mut page: u64,
        last: u64,
        mut each: impl FnMut(&mut Self, Grown, u64, usize) -> Result<()>,
    ) -> Result<()> {
        let mut raised = self.raise(last)?;
        while page <= last {
            let leaf_last = last.min(page | (FANOUT - 1));
            let leaf = self.leaf(page, leaf_last, raised)?;
            raised = false;
            while page <= leaf_last {
                let count = (leaf_last - page + 1).min(BATCH as u64) as usize;
                each(self, leaf, page, count)?;
                page += count as u64;
            }
        }
        Ok(())
    }

    fn write_span(&mut self, s: &Span) -> Result<()> {
        let first = s.leaf.node.index(s.page);
        let mut entries = [Entry::Hole; BATCH];
        let entries = &mut entries[..s.count];
        s.leaf.node.load(self.tx.memory(), first, entries)?;
        let mut pages = [0u64; BATCH];
        // Bit j: page j has been written; its entry has changed.
        let (mut written, mut changed) = (0u64, 0u64);
        for (j, entry) in entries.iter_mut().enumerate() {
            let new = match self.large {
                true => Some(self.write_large(s, j, *entry)?),
                false => self.write_page(s, j, *entry)?,
            };
            match new {
                None => written |= 1 << j,
                Some(page) => {
                    pages[j] = page;
                    let new = if self.large { Entry::Block(page) } else { Entry::Page(page) };
                    if *entry != new {
                        *entry = new;
                        changed |= 1 << j;
                    }
                }
            }
        }
        match self.large {
            true => self.store_blocks(s, &pages)?,
            false => self.store_runs(s, &pages, written)?,
        }
        if changed != 0 {
            let (lo, hi) = (changed.trailing_zeros() as usize, BATCH - changed.leading_zeros() as usize);
            self.set_entries(&s.leaf, first + lo as u64, &entries[lo..hi])?;
        }
        Ok(())
    }

    /// The page that is to take the bytes of page `j` unlogged, or `None` if they have been stored already.
    #[inline(always)]
    fn write_page(&mut self, s: &Span, j: usize, entry: Entry) -> Result<Option<u64>> {
        match entry {
            Entry::Hole => self.new_page(s, j).map(Some),
            Entry::Reserved(page) => self.begin_page(s, j, page).map(Some),
            Entry::Page(old) => self.overwrite(s, j, old),
            Entry::Disk(_) => self.replace(s, j).map(Some),
            Entry::Block(block) => Err(misplaced(block)),
        }
    }

    /// The block that is to take the bytes of page `j`: all else of it that is below the size is there.
    fn write_large(&mut self, s: &Span, j: usize, entry: Entry) -> Result<u64> {
        let (page, valid) = (s.page + j as u64, self.valid(s, j));
        let (a, b) = s.part(j);
        let whole = a == 0 && b >= valid;
        let is = entry.as_it_is(self.tx.memory())?;
        if let Entry::Block(old) = is {
            let descriptor = self.tx.block_of(self.c.owner, page, old)?;
            if (a >= valid || self.tx.changes_in_place()) && self.tx.is_open(old, &descriptor)? {
                self.tx.extend_block(old)?;
                self.tx.zero_block(old + valid, a.saturating_sub(valid))?;
                return Ok(old);
            }
        }
        if matches!(is, Entry::Disk(_)) && !whole {
            return Err(Error::Elsewhere);
        }
        let new = self.tx.new_block(self.c.owner, page)?;
        match is {
            Entry::Block(old) | Entry::Page(old) if !whole => {
                let end = valid.min(a);
                self.tx.copy_to_block(old, new, end)?;
                self.tx.zero_block(new + end, a - end)?;
                if b < valid {
                    self.tx.copy_to_block(old + b, new + b, valid - b)?;
                }
            }
            _ => {
                self.tx.zero_block(new, a)?;
                self.tx.zero_block(new + b, valid.saturating_sub(b))?;
            }
        }
        self.free_entry(page, entry)?;
        self.c.pages += 1;
        Ok(new)
    }

    /// Frees the memory or promise of page `page`.
    fn free_entry(&mut self, page: u64, entry: Entry) -> Result<()> {
        free_page(self.tx, self.c.owner, page, entry, &mut self.c.pages)
    }

    /// Lets page `page`, whose entry is `old`, lead to `new`, and frees its old target.
    pub fn exchange(&mut self, page: u64, old: Entry, new: Entry) -> Result<()> {
        self.free_entry(page, old)?;
        self.c.pages += 1;
        if new == Entry::Reserved(0) {
            self.tx.promise(1);
        }
        self.set(page, new)
    }

    /// Makes blocks of those of pages `first..end` that are none.
    pub fn convert(&mut self, first: u64, end: u64) -> Result<()> {
        let mut at = first;
        while let (Some(root), true) = (self.root()?, at < end) {
            let Some(page) = next(self.tx.memory(), root, at)?.filter(|page| *page < end) else { break };
            let Found::Leaf(leaf) = find(self.tx.memory(), root, page)? else { break };
            let i = leaf.index(page);
            let entry = leaf.get(self.tx.memory(), i)?;
            if let Entry::Page(old) | Entry::Reserved(old) = entry {
                let new = match entry {
                    Entry::Page(_) => {
                        check_page(self.tx.memory(), old)?;
                        let new = self.tx.new_block(self.c.owner, page)?;
                        self.tx.copy_to_block(old, new, PAGE)?;
                        Entry::Block(new)
                    }
                    _ => Entry::Reserved(0),
                };
                if entry != new {
                    self.free_entry(page, entry)?;
                    self.c.pages += 1;
                    if new == Entry::Reserved(0) {
                        self.tx.promise(1);
                    }
                    self.set_entries(&Grown { node: leaf, fresh: self.fresh }, i, &[new])?;
                }
            }
            at = page + 1;
        }
        Ok(())
    }

    /// A page for a hole.
    #[inline]
    fn new_page(&mut self, s: &Span, j: usize) -> Result<u64> {
        let page = self.tx.alloc(tag::DATA, PAGE)?.off;
        self.c.pages += 1;
        self.begin_page(s, j, page)
    }

    /// Zeroes the unwritten part below the size in the page at `page`, which has no content yet.
    #[inline]
    fn begin_page(&mut self, s: &Span, j: usize, page: u64) -> Result<u64> {
        let (a, b) = s.part(j);
        if b - a < PAGE {
            self.tx.init_zero(page, a)?;
            let valid = self.valid(s, j);
            self.tx.init_zero(page + b, valid.saturating_sub(b))?;
        }
        Ok(page)
    }

    /// A page for one that lies on disk, if it is written wholly.
    #[cold]
    fn replace(&mut self, s: &Span, j: usize) -> Result<u64> {
        let (a, b) = s.part(j);
        match a == 0 && b >= self.valid(s, j) {
            true => Ok(self.tx.alloc(tag::DATA, PAGE)?.off),
            false => Err(Error::Elsewhere),
        }
    }

    /// How much of page `j` is below the size.
    #[inline(always)]
    fn valid(&self, s: &Span, j: usize) -> u64 {
        self.c.size.saturating_sub((s.page + j as u64) * PAGE).min(PAGE)
    }

    /// Prepares to write page `j`, which is at `old`: returns the page that is to take the bytes unlogged, or
    /// `None` if they have been stored already.
    #[inline]
    fn overwrite(&mut self, s: &Span, j: usize, old: u64) -> Result<Option<u64>> {
        check_page(self.tx.memory(), old)?;
        let (a, b) = s.part(j);
        let valid = self.valid(s, j);
        let lost = valid.min(b).saturating_sub(a);
        if lost == 0 {
            return Ok(Some(old));
        }
        let whole = a == 0 && b >= valid;
        let room = has_room(self.tx, lost);
        if whole || !room {
            match self.tx.alloc(tag::DATA, PAGE) {
                Ok(new) => {
                    if !whole {
                        self.tx.init_copy(old, new.off, valid)?;
                    }
                    self.tx.free(old, tag::DATA)?;
                    return Ok(Some(new.off));
                }
                Err(pram::Error::NoSpace) if room => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.tx.set_bytes(old + a, s.bytes(j, a, a + lost))?;
        if a + lost < b {
            self.tx.init_bytes(old + a + lost, s.bytes(j, a + lost, b))?;
        }
        Ok(None)
    }

    /// Stores the bytes of all pages that are not `written` yet, neighbouring pages in one go.
    #[inline]
    fn store_runs(&mut self, s: &Span, pages: &[u64], written: u64) -> Result<()> {
        let mut j = 0;
        while j < s.count {
            if written >> j & 1 == 1 {
                j += 1;
                continue;
            }
            let mut end = j + 1;
            while end < s.count && written >> end & 1 == 0 && adjacent(pages[end - 1], pages[end]) {
                end += 1;
            }
            let (a, _) = s.part(j);
            let (_, b) = s.part(end - 1);
            self.tx.init_bytes(pages[j] + a, s.bytes(j, a, (end - 1 - j) as u64 * PAGE + b))?;
            j = end;
        }
        Ok(())
    }

    /// Stores the bytes of all pages to their blocks.
    fn store_blocks(&mut self, s: &Span, blocks: &[u64]) -> Result<()> {
        for (j, block) in blocks[..s.count].iter().enumerate() {
            let (a, b) = s.part(j);
            self.tx.store_content(block + a, s.bytes(j, a, b))?;
        }
        Ok(())
    }

    /// Reserves a page for every hole of pages `first..end`.
    pub fn fill(&mut self, first: u64, end: u64) -> Result<()> {
        self.each_batch(first, end - 1, |w, leaf, page, count| w.fill_span(leaf, page, count))
    }

    fn fill_span(&mut self, leaf: Grown, page: u64, count: usize) -> Result<()> {
        let first = leaf.node.index(page);
        let mut entries = [Entry::Hole; BATCH];
        let entries = &mut entries[..count];
        leaf.node.load(self.tx.memory(), first, entries)?;
        let mut changed = false;
        for entry in entries.iter_mut().filter(|e| **e == Entry::Hole) {
            *entry = match self.large {
                true => {
                    self.tx.promise(1);
                    Entry::Reserved(0)
                }
                false => Entry::Reserved(self.tx.alloc(tag::DATA, PAGE)?.off),
            };
            self.c.pages += 1;
            changed = true;
        }
        if changed {
            self.set_entries(&leaf, first, entries)?;
        }
        Ok(())
    }
}

#[cold]
fn misplaced(block: u64) -> Error {
    Error::Corrupt(format!("block {block:#x} belongs to a file whose content is in memory"))
}
