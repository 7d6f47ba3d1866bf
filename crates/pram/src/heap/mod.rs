//! The heap of a memory: chunks of 64 KiB, size classes from 16 bytes, runs of whole chunks above.
//!
//! A bitmap says which slots of a chunk are taken: in the chunk table for classes of 1 KiB and more, at the
//! start of the chunk for smaller ones. Chunks of blocks are handed out the same way.
//!
//! A chunk is owned by one transaction slot at a time (in the runtime file); only the owner sets
//! bits, anybody clears them. So the fast path takes no lock.
//!
//! The bitmap is not part of the undo log. A transaction sets bits at once and clears them after its
//! commit; a bit that a crash leaves set is a leak, an object without a reference, which mark-and-sweep finds.
//!
//! Invariants:
//! - H1. The bit of an object is set from before the commit that links it until after the commit that
//!   unlinks it. (Otherwise a second owner could be given it.)
//! - H2. A chunk's state changes only in the hands of its owner.
//! - H3. A free chunk's bit is set in the runtime's free map only after its entry says free.
//! - H4. A chunk's entry says that the chunk is there only while it has memory.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the allocator |
//! | `blocks` | chunks of blocks: handed out, under transfer |
//! | `walk` | going over the descriptors of blocks, piece by piece; how many blocks there are |
//! | `supply` | memory for chunks: taken ahead of use |

mod blocks;
mod supply;
mod walk;

pub(crate) use supply::{bytes, is_full, STEP};
pub use walk::{Cursor, Usage, Which};

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::memory::{class_of, valid_bits, Memory, Meta, Tag, BLOCKS, CHUNK, CLASSES, MAX_SMALL, TAGS};
use crate::off::Off;
use crate::runtime::{Current, Runtime};

/// An object may be larger than its class by a half (`size / CLOSE`) where chunks are scarce, by a whole where there
/// are none.
const CLOSE: u32 = 2;
const ANY: u32 = 1;

/// An allocated object: where it is and how many bytes it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub off: u64,
    pub cap: u64,
}

/// The allocator: the memory's heap together with the runtime's hints about it.
#[derive(Clone, Copy)]
pub struct Heap<'a> {
    pub memory: &'a Memory,
    pub rt: &'a Runtime,
}

impl Heap<'_> {
    /// Allocates at least `size` bytes for transaction slot `slot`. Contents are undefined.
    #[inline(always)]
    pub(crate) fn alloc(&self, slot: u32, tag: Tag, size: u64) -> Result<Block> {
        if size <= MAX_SMALL {
            let class = class_of(size);
            let current = self.rt.current(slot, tag, class);
            if let Some(chunk) = current.chunk() {
                if let Some(off) = self.take(chunk, class, &current)? {
                    return Ok(Block { off, cap: u64::from(CLASSES[class].size) });
                }
            }
        }
        self.alloc_slow(slot, tag, size)
    }

    /// [`alloc`](Self::alloc) where the slot's current chunk does not serve.
    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, slot: u32, tag: Tag, size: u64) -> Result<Block> {
        if size > MAX_SMALL {
            return self.alloc_run(slot, tag, size);
        }
        let class = class_of(size);
        // An object that fills its class is never put into a larger one.
        let is_exact = tag == BLOCKS || size == u64::from(CLASSES[class].size);
        loop {
            if let Some(block) = self.take_current(slot, tag, class)? {
                return Ok(block);
            }
            if !is_exact && self.is_scarce() {
                if let Some(block) = self.alloc_close(slot, tag, class)? {
                    return Ok(block);
                }
            }
            let chunk = match self.find_chunk(slot, tag, class)? {
                Some(s) => s,
                None if self.take_within(slot, 1)? => continue,
                None => {
                    self.reclaim_idle(slot)?;
                    match self.find_chunk(slot, tag, class)? {
                        Some(s) => s,
                        None if is_exact => return Err(Error::NoSpace),
                        None => return self.alloc_larger(slot, tag, class, ANY)?.ok_or(Error::NoSpace),
                    }
                }
            };
            self.rt.current(slot, tag, class).set(Some(chunk));
        }
    }

    /// Takes an object of the chunk of `class` that this slot allocates from; gives a full chunk up.
    fn take_current(&self, slot: u32, tag: Tag, class: usize) -> Result<Option<Block>> {
        let current = self.rt.current(slot, tag, class);
        let Some(chunk) = current.chunk() else { return Ok(None) };
        if let Some(off) = self.take(chunk, class, &current)? {
            return Ok(Some(Block { off, cap: u64::from(CLASSES[class].size) }));
        }
        // Forgotten first: once given up, the chunk may be another slot's, and must not be given up by this one again.
        current.set(None);
        self.give_up(slot, chunk, tag, class)?;
        Ok(None)
    }

    /// Are there fewer chunks left than classes that could want one?
    fn is_scarce(&self) -> bool {
        self.rt.spare() + self.rt.absent() < CLASSES.len() as u64
    }

    /// Allocates an object of `class` or of one that is hardly larger, without taking a free chunk.
    fn alloc_close(&self, slot: u32, tag: Tag, class: usize) -> Result<Option<Block>> {
        match self.alloc_partial(slot, tag, class)? {
            Some(block) => Ok(Some(block)),
            None => self.alloc_larger(slot, tag, class, CLOSE),
        }
    }

    /// Allocates an object of a class larger than `class`, by at most a `part`th. Without this, many close classes
    /// would leave more free memory unusable than few classes do, in a full memory or a small one.
    fn alloc_larger(&self, slot: u32, tag: Tag, class: usize, part: u32) -> Result<Option<Block>> {
        let most = CLASSES[class].size + CLASSES[class].size / part;
        let larger = (class + 1..CLASSES.len()).take_while(|larger| CLASSES[*larger].size <= most);
        for larger in larger {
            if let Some(block) = self.alloc_partial(slot, tag, larger)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Allocates an object of `class` from a partly used chunk.
    fn alloc_partial(&self, slot: u32, tag: Tag, class: usize) -> Result<Option<Block>> {
        if let Some(block) = self.take_current(slot, tag, class)? {
            return Ok(Some(block));
        }
        let Some(chunk) = self.find_partial(slot, tag, class, 0)? else { return Ok(None) };
        self.rt.current(slot, tag, class).set(Some(chunk));
        self.take_current(slot, tag, class)
    }

    /// Takes a free object of a chunk that this slot owns.
    #[inline(always)]
    fn take(&self, chunk: u64, class: usize, current: &Current) -> Result<Option<u64>> {
        match self.take_in(chunk, class, current.hint())? {
            Some(off) => Ok(Some(off)),
            None => self.take_elsewhere(chunk, class, current),
        }
    }

    /// [`take`](Self::take) where the word of the bitmap that had the last one has no free object left.
    #[inline(never)]
    fn take_elsewhere(&self, chunk: u64, class: usize, current: &Current) -> Result<Option<u64>> {
        let words = CLASSES[class].count.div_ceil(64);
        let start = current.hint().min(words);
        for w in (start..words).chain(0..start) {
            if let Some(off) = self.take_in(chunk, class, w)? {
                current.set_hint(w);
                return Ok(Some(off));
            }
        }
        Ok(None)
    }

    /// Takes an object that is free according to word `w` of the bitmap.
    #[inline(always)]
    fn take_in(&self, chunk: u64, class: usize, w: u32) -> Result<Option<u64>> {
        let c = &CLASSES[class];
        let valid = valid_bits(c.count, w);
        if valid == 0 {
            return Ok(None);
        }
        let at = self.memory.bitmap(chunk, class as u8) + u64::from(w) * 8;
        let free = !self.memory.load(Off::new(at))? & valid;
        if free == 0 {
            return Ok(None);
        }
        let bit = free.trailing_zeros();
        let off = self.memory.geo.chunk(chunk) + u64::from(c.base) + u64::from(w * 64 + bit) * u64::from(c.size);
        // Noted before it is taken: a sweep must never see it taken, unmarked and not new.
        self.rt.note_new(off);
        self.memory.fetch_or(at, 1 << bit)?;
        self.memory.flush(at, 8);
        Ok(Some(off))
    }

    /// A chunk with room for `class`, now owned by `slot`: a partly used one, or a free one.
    ///
    /// A chunk gets its owner first and leaves its list second: if the taker dies in between,
    /// [`salvage`](Self::salvage) finds the chunk by its owner.
    fn find_chunk(&self, slot: u32, tag: Tag, class: usize) -> Result<Option<u64>> {
        if tag == BLOCKS {
            return self.find_block_chunk(slot);
        }
        if let Some(chunk) = self.find_partial(slot, tag, class, 0)? {
            return Ok(Some(chunk));
        }
        let Some(chunk) = self.claim_free(slot)? else { return Ok(None) };
        // 1. The bitmap is empty before the entry gives the chunk its class: a crash in between
        //    leaves a free chunk, not one with arbitrary objects taken.
        let c = &CLASSES[class];
        let bitmap = self.memory.bitmap(chunk, class as u8);
        self.memory.zero(bitmap, u64::from(c.count.div_ceil(64)) * 8)?;
        self.memory.persist(bitmap, u64::from(c.count.div_ceil(64)) * 8);
        // 2. The entry, one word.
        self.memory.set_meta(chunk, Meta::shared(tag, class))?;
        Ok(Some(chunk))
    }

    /// A partly used chunk at or after `from`, now owned by `slot`.
    pub(crate) fn find_partial(&self, slot: u32, tag: Tag, class: usize, from: u64) -> Result<Option<u64>> {
        let wanted = Meta::shared(tag, class);
        let mut from = from;
        while let Some(chunk) = self.rt.next_partial(tag, class, from) {
            from = chunk + 1;
            if !self.rt.own(chunk, slot) {
                continue;
            }
            self.rt.drop_partial(tag, class, chunk);
            if self.memory.meta(chunk)? != wanted {
                self.rt.disown(chunk);
            } else if self.has_room(chunk, class)? {
                return Ok(Some(chunk));
            } else {
                self.give_up(slot, chunk, tag, class)?;
            }
        }
        Ok(None)
    }

    /// Any free chunk, now owned by `slot` and off the free list.
    pub(crate) fn claim_free(&self, slot: u32) -> Result<Option<u64>> {
        let start = self.rt.first_free_hint();
        for (mut from, end) in [(start, u64::MAX), (0, start)] {
            while let Some(chunk) = self.rt.next_free(from).filter(|s| *s < end) {
                from = chunk + 1;
                if self.claim(chunk, slot)? {
                    self.rt.set_first_free_hint(chunk);
                    return Ok(Some(chunk));
                }
            }
        }
        Ok(None)
    }

    /// Makes `slot` the owner of a free chunk and takes it off the free list; false if it is not free.
    pub(crate) fn claim(&self, chunk: u64, slot: u32) -> Result<bool> {
        if !self.rt.own(chunk, slot) {
            return Ok(false);
        }
        if self.rt.drop_free(chunk) && self.memory.meta(chunk)? == Meta::Free {
            return Ok(true);
        }
        self.rt.disown(chunk);
        Ok(false)
    }

    fn has_room(&self, chunk: u64, class: usize) -> Result<bool> {
        let c = &CLASSES[class];
        let bitmap = self.memory.bitmap(chunk, class as u8);
        for w in 0..c.count.div_ceil(64) {
            if self.memory.load(Off::new(bitmap + u64::from(w) * 8))? & valid_bits(c.count, w) != valid_bits(c.count, w)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_empty(&self, chunk: u64, class: usize) -> Result<bool> {
        let c = &CLASSES[class];
        let bitmap = self.memory.bitmap(chunk, class as u8);
        for w in 0..c.count.div_ceil(64) {
            if self.memory.load(Off::new(bitmap + u64::from(w) * 8))? & valid_bits(c.count, w) != 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives up a chunk that the caller owns.
    fn give_up(&self, slot: u32, chunk: u64, tag: Tag, class: usize) -> Result<()> {
        // Given up before looking: the look then sees every free that still saw an owner.
        self.rt.disown(chunk);
        self.list(slot, chunk, tag, class)
    }

    /// Lists a chunk without owner where others find it if it has room; frees it if it is empty (mramfs,
    /// future work).
    fn list(&self, slot: u32, chunk: u64, tag: Tag, class: usize) -> Result<()> {
        // Another round only if somebody freed an object while we owned the chunk. The last slot to do so leaves the
        // list right, so the bound costs at most an empty chunk that stays with its class.
        for _ in 0..8 {
            if !self.has_room(chunk, class)? {
                return Ok(());
            }
            self.rt.add_partial(tag, class, chunk);
            if !self.is_empty(chunk, class)? || !self.rt.own(chunk, slot) {
                return Ok(());
            }
            let still = self.memory.meta(chunk)? == Meta::shared(tag, class);
            if !still || self.is_empty(chunk, class)? {
                self.rt.drop_partial(tag, class, chunk);
                let freed = if still { self.free_shared(slot, chunk, tag) } else { Ok(()) };
                self.rt.disown(chunk);
                return freed;
            }
            self.rt.disown(chunk);
        }
        Ok(())
    }

    /// Frees an empty chunk that `slot` owns.
    fn free_shared(&self, slot: u32, chunk: u64, tag: Tag) -> Result<()> {
        if tag == BLOCKS {
            return self.free_block_chunk(slot, chunk);
        }
        self.memory.set_meta(chunk, Meta::Free)?;
        self.rt.add_free(chunk);
        Ok(())
    }

    /// Makes this slot and all idle ones give up their chunks, and frees the empty ones without an owner, so that
    /// a nearly full memory can be used to the end.
    fn reclaim_idle(&self, mine: u32) -> Result<()> {
        self.drop_idle(mine)?;
        self.free_ended(mine)?;
        self.rt.set_block_hint(0);
        for chunk in self.memory.chunks() {
            if self.rt.own(chunk, mine) {
                self.settle(mine, chunk)?;
            }
        }
        Ok(())
    }

    /// Makes this slot and all idle ones give up their chunks; empty ones are free then.
    pub(crate) fn drop_idle(&self, mine: u32) -> Result<()> {
        self.drop_chunks(mine)?;
        for slot in (0..self.memory.geo.slots as u32).filter(|s| *s != mine) {
            if self.rt.try_slot(slot) {
                let dropped = self.drop_chunks(slot);
                _ = self.rt.free_slot(slot);
                dropped?;
            }
        }
        Ok(())
    }

    /// Gives up all chunks that `slot`, in the caller's hands, allocates from.
    fn drop_chunks(&self, slot: u32) -> Result<()> {
        for tag in (0..TAGS).map(|t| Tag(t as u8)) {
            for class in 0..CLASSES.len() {
                let current = self.rt.current(slot, tag, class);
                if let Some(chunk) = current.chunk() {
                    current.set(None);
                    self.give_up(slot, chunk, tag, class)?;
                }
            }
        }
        Ok(())
    }

    /// Lists the chunks that the slots of a dead process own, in any state that it left them in, so that others
    /// find them.
    pub(crate) fn salvage(&self, slots: &[u32]) -> Result<()> {
        for slot in slots {
            for tag in (0..TAGS).map(|t| Tag(t as u8)) {
                (0..CLASSES.len()).for_each(|class| self.rt.current(*slot, tag, class).set(None));
            }
        }
        for chunk in self.memory.chunks() {
            if let Some(slot) = self.rt.owner(chunk).filter(|o| slots.contains(o)) {
                self.settle(slot, chunk)?;
            }
        }
        Ok(())
    }

    /// Lists a chunk that `slot` owns according to its state, and gives it up.
    fn settle(&self, slot: u32, chunk: u64) -> Result<()> {
        let meta = self.memory.meta(chunk)?;
        if let Some((tag, class)) = meta.sharers() {
            return self.give_up(slot, chunk, tag, usize::from(class));
        }
        match meta {
            Meta::Free => self.rt.add_free(chunk),
            Meta::RunBody { dist } if !self.has_head(chunk, dist)? => {
                self.memory.set_meta(chunk, Meta::Free)?;
                self.rt.add_free(chunk);
            }
            _ => {}
        }
        self.rt.disown(chunk);
        Ok(())
    }

    /// Frees a chunk whose entry is damaged: for repair, while the pool is frozen and nothing refers to
    /// the chunk any more.
    pub fn reset_chunk(&self, chunk: u64) -> Result<()> {
        // Nobody may go on to allocate from it.
        let slots: Vec<u32> = (0..self.memory.geo.slots as u32).collect();
        self.salvage(&slots)?;
        self.memory.set_meta(chunk, Meta::Free)?;
        self.rt.add_free(chunk);
        Ok(())
    }

    /// Is the chunk, which says that it follows its head at `dist`, part of a run?
    fn has_head(&self, chunk: u64, dist: u32) -> Result<bool> {
        let Some(head) = chunk.checked_sub(u64::from(dist)) else { return Ok(false) };
        Ok(matches!(self.memory.meta(head)?, Meta::RunHead { len, .. } if len > dist))
    }

    fn alloc_run(&self, slot: u32, tag: Tag, size: u64) -> Result<Block> {
        let len = size.div_ceil(CHUNK);
        let first = match self.claim_run(slot, len)? {
            Some(s) => s,
            None if self.take_within(slot, len)? => return self.alloc_run(slot, tag, size),
            None => {
                self.reclaim_idle(slot)?;
                match self.claim_run(slot, len)? {
                    Some(s) => s,
                    // A chunk that was given up may lie beside one without memory.
                    None if self.rt.window(len).is_some() => {
                        self.rt.no_run().store(0, Ordering::SeqCst);
                        match self.take_within(slot, len)? {
                            true => return self.alloc_run(slot, tag, size),
                            false => return Err(Error::NoSpace),
                        }
                    }
                    None => return Err(Error::NoSpace),
                }
            }
        };
        let off = self.memory.geo.chunk(first);
        self.rt.note_new(off);
        // 1. Bodies, then the head: a crash in between leaves bodies without a head, which count as free.
        for i in 1..len {
            self.memory.set_meta(first + i, Meta::RunBody { dist: i as u32 })?;
        }
        self.memory.set_meta(first, Meta::RunHead { tag, len: len as u32 })?;
        (first..first + len).for_each(|s| self.rt.disown(s));
        Ok(Block { off, cap: len * CHUNK })
    }

    /// `len` neighbouring free chunks, now owned by `slot`.
    fn claim_run(&self, slot: u32, len: u64) -> Result<Option<u64>> {
        let mut end = self.memory.chunks_end();
        while let Some(first) = self.rt.free_window(len, end) {
            let mut claimed = 0;
            while claimed < len && self.claim(first + claimed, slot)? {
                claimed += 1;
            }
            if claimed == len {
                return Ok(Some(first));
            }
            for s in first..first + claimed {
                self.rt.add_free(s);
                self.rt.disown(s);
            }
            end = first + claimed;
        }
        Ok(None)
    }

    /// Frees the object or block at `off`, which durably nothing refers to any more (H1). A block under transfer
    /// becomes free when the transfer has ended.
    pub(crate) fn free(&self, slot: u32, off: u64) -> Result<()> {
        let place = self.memory.place(off)?;
        let Some((class, index)) = place.slot else {
            return self.free_run(slot, place.chunk, place.cap / CHUNK);
        };
        if place.tag == BLOCKS && self.rt.put_off(off)? {
            return Ok(());
        }
        let at = self.memory.bitmap(place.chunk, class) + u64::from(index / 64) * 8;
        let bit = 1 << (index % 64);
        let is_unplaced = place.tag == BLOCKS && self.memory.descriptor(off).is_ok_and(|it| it.place == 0);
        let old = self.memory.fetch_clear(at, bit)?;
        self.memory.flush(at, 8);
        if old & bit == 0 {
            return Err(Error::NotAllocated { off });
        }
        if place.tag == BLOCKS {
            self.rt.count_blocks(slot, -1);
            self.rt.count_unplaced(-i64::from(is_unplaced));
        }
        if self.rt.owner(place.chunk).is_none() {
            let class = usize::from(class);
            self.rt.add_partial(place.tag, class, place.chunk);
            if old & valid_bits(CLASSES[class].count, index / 64) == bit {
                self.list(slot, place.chunk, place.tag, class)?;
            }
        }
        Ok(())
    }

    /// Marks an object as taken that is in use but counts as free. For repairs, while no operation runs.
    pub fn adopt(&self, off: u64) -> Result<()> {
        let place = self.memory.place(off)?;
        if let Some((class, index)) = place.slot {
            let at = self.memory.bitmap(place.chunk, class) + u64::from(index / 64) * 8;
            self.memory.fetch_or(at, 1 << (index % 64))?;
            self.memory.persist(at, 8);
        }
        Ok(())
    }

    fn free_run(&self, slot: u32, first: u64, len: u64) -> Result<()> {
        // Owned meanwhile, so that a death half way is cleaned up. A slot that follows an outdated list, or looks at
        // all chunks, may own one for an instant only.
        let own = |s: &u64| (0..1000).any(|_| self.rt.own(*s, slot));
        let is_first_ours = own(&first);
        let (ours, others): (SmallVec<[u64; 16]>, SmallVec<[u64; 16]>) = (first + 1..first + len).partition(own);
        // The head first: bodies without a head count as free.
        for s in std::iter::once(&first).chain(&ours) {
            self.memory.set_meta(*s, Meta::Free)?;
        }
        self.rt.add_free(first);
        if is_first_ours {
            self.rt.disown(first);
        }
        for s in ours {
            self.rt.add_free(s);
            self.rt.disown(s);
        }
        // Without a head they go to any slot that looks at them, and may be in use again by now.
        others.iter().filter(|s| own(s)).try_for_each(|s| self.settle(slot, *s))
    }

    /// Fills the runtime's maps from the chunk table; with nobody else attached. Frees the bodies of
    /// runs that a crash left without a head.
    pub(crate) fn index(&self) -> Result<()> {
        let geo = &self.memory.geo;
        let (mut run_end, mut absent) = (0, geo.heap_chunks(self.memory.size()));
        for s in self.memory.chunks() {
            let meta = self.memory.meta(s)?;
            absent -= u64::from(meta != Meta::Absent);
            match meta {
                // Inside a run: damage. Never handed out, fsck reports it.
                Meta::Absent | Meta::Free | Meta::Small { .. } | Meta::Blocks if s < run_end => {}
                Meta::Absent => self.rt.add_absent(s),
                Meta::Free => self.rt.add_free(s),
                Meta::Blocks => self.index_blocks(s)?,
                Meta::Small { tag, class } => {
                    let count = CLASSES[usize::from(class)].count;
                    let full = CLASSES[usize::from(class)].base == 0
                        && self.memory.load(geo.entry(s).field(8))? & valid_bits(count, 0) == valid_bits(count, 0);
                    if !full {
                        self.rt.add_partial(tag, usize::from(class), s);
                    }
                }
                Meta::RunHead { len, .. } => run_end = run_end.max(s + u64::from(len)),
                Meta::RunBody { .. } if s < run_end => {}
                Meta::RunBody { .. } => {
                    self.memory.set_meta(s, Meta::Free)?;
                    self.rt.add_free(s);
                }
                // Left alone and never handed out; fsck reports it.
                Meta::Bad => {}
            }
        }
        self.rt.set_absent(absent);
        Ok(())
    }
}
