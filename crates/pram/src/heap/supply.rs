//! Memory for chunks: which to take next, and how it becomes a part of the heap.
//!
//! A chunk's entry says whether the chunk has memory: an [absent](Meta::Absent) chunk has none. A process that takes
//! memory has the role of the *supplier* in the runtime file, one at a time; the session decides when.
//!
//! Ordered steps of taking:
//! 1. The host gives memory, for a new group first for its parts of the runtime file and of the marks. (Else a store
//!    would meet a full disk, which is a signal.)
//! 2. In an operation, a new group's table, then the number of groups, then entries become durable, before any chunk is
//!    handed out. (Else an object could be in a chunk that counts as absent after a crash, and that is handed out
//!    again.)
//! 3. The chunks are listed as free.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::Heap;
use crate::clock::monotonic;
use crate::error::{Error, Result};
use crate::memory::{ChunkEntry, Meta, CHUNK, PER_GROUP};
use crate::runtime::{pause, Hold};

/// Chunks that a waiting operation takes at a time: 4 MiB.
pub(crate) const STEP: u64 = 64;
/// Rounds that an operation waits for another supplier.
const PATIENCE: u32 = 500;

/// Memory to take.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Chunks without memory, in one group.
    chunks: Vec<Range<u64>>,
    /// The group to begin, if any.
    new: Option<u64>,
}

impl Heap<'_> {
    /// Could memory for `len` chunks in a row be taken? Notes that somebody needs them.
    fn is_untaken(&self, len: u64) -> bool {
        let no_run = self.rt.no_run().load(Ordering::SeqCst);
        if len >= PER_GROUP || self.rt.absent() == 0 || no_run != 0 && len >= no_run {
            return false;
        }
        if monotonic() < self.rt.host_full().load(Ordering::SeqCst) {
            return false;
        }
        self.rt.wanted().fetch_max(len, Ordering::SeqCst);
        true
    }

    /// Takes memory for `len` chunks that an operation in `slot` did not find; true if there is some now. Where the
    /// host has to give memory, the operation has to end first: [`Error::MustGrow`].
    pub(super) fn take_within(&self, slot: u32, len: u64) -> Result<bool> {
        if !self.is_untaken(len) {
            return Ok(false);
        }
        // A process that froze the pool cannot end its operation for others to take memory.
        let alone = self.rt.hold() == Hold::Frozen(self.rt.me());
        if self.memory.map().growing_file().is_some() && !alone {
            return Err(Error::MustGrow);
        }
        let me = u64::from(self.rt.me() + 1);
        let mut round = 0;
        while self.rt.supplier().compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            if round == PATIENCE {
                // The supplier may have died.
                return Err(Error::MustGrow);
            }
            self.memory.wait_by(|| pause(round));
            round += 1;
        }
        let taken = match self.plan(len, STEP) {
            Some(plan) => match self.take_memory(&plan) {
                Ok(()) => self.enter(slot, &plan).map(|()| true),
                Err(e) if is_full(&e) => Ok(false),
                Err(e) => Err(e),
            },
            None => {
                self.rt.no_run().store(len, Ordering::SeqCst);
                Ok(false)
            }
        };
        self.rt.supplier().store(0, Ordering::SeqCst);
        taken
    }

    /// The next chunks to take memory for, such that `run` chunks in a row become free: up to a multiple of `step`, since huge
    /// pages lie at such.
    pub(crate) fn plan(&self, run: u64, step: u64) -> Option<Plan> {
        if run == 1 {
            let next = self.rt.next_absent(0, step).map(|(first, len)| first..first + len.min(step - first % step));
            if let Some(chunks) = next {
                return Some(Plan { chunks: vec![chunks], new: None });
            }
        } else if let Some(first) = self.rt.window(run) {
            return Some(Plan { chunks: self.absent_in(first..(first + run).next_multiple_of(step)), new: None });
        }
        let (size, group) = (self.memory.size(), self.memory.groups());
        let first = group * PER_GROUP + 1;
        let end = (first + run).next_multiple_of(step).min((group + 1) * PER_GROUP).min(size / CHUNK);
        let fits = group < self.memory.geo.groups(size) && end >= first + run;
        fits.then(|| Plan { chunks: Some(first..end).into_iter().collect(), new: Some(group) })
    }

    /// The chunks of `range` without memory.
    fn absent_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut found, mut from) = (Vec::new(), range.start);
        while let Some((first, len)) = self.rt.next_absent(from, range.end - from).filter(|next| next.0 < range.end) {
            from = (first + len).min(range.end);
            found.push(first..from);
        }
        found
    }

    /// Step 1.
    pub(crate) fn take_memory(&self, plan: &Plan) -> Result<()> {
        if let Some(group) = plan.new {
            self.rt.take_groups(group + 1)?;
            self.memory.marks().map_or(Ok(()), |marks| marks.take_groups(group + 1))?;
            self.memory.take(self.memory.geo.head(group))?;
        }
        plan.chunks.iter().try_for_each(|chunks| self.memory.take(bytes(chunks)))
    }

    /// Steps 2 and 3, in an operation in `slot`.
    pub(crate) fn enter(&self, slot: u32, plan: &Plan) -> Result<()> {
        if let Some(group) = plan.new {
            self.memory.begin_group(group)?;
            let end = self.memory.chunks_end();
            (group * PER_GROUP + 1..end).for_each(|n| self.rt.add_absent(n));
        }
        plan.chunks.iter().try_for_each(|chunks| self.enter_run(slot, chunks))
    }

    fn enter_run(&self, slot: u32, chunks: &Range<u64>) -> Result<()> {
        let geo = &self.memory.geo;
        // Owned meanwhile, so that a death half way is cleaned up; a look at all chunks may own one for an instant.
        let owned: Vec<u64> = chunks.clone().filter(|n| self.own_soon(*n, slot)).collect();
        for n in &owned {
            // A process that died here may have left a chunk free but still listed as absent.
            if self.memory.meta(*n)? == Meta::Absent {
                self.memory.store_word(geo.entry(*n).raw(), Meta::Free.encode())?;
            }
        }
        let entries = (chunks.end - chunks.start) * size_of::<ChunkEntry>() as u64;
        self.memory.persist(geo.entry(chunks.start).raw(), entries);
        for n in owned {
            if self.rt.drop_absent(n) {
                self.rt.count_absent(-1);
            }
            if self.memory.meta(n)? == Meta::Free {
                self.rt.add_free(n);
            }
            self.rt.disown(n);
        }
        Ok(())
    }

    fn own_soon(&self, chunk: u64, slot: u32) -> bool {
        (0..1000).any(|_| self.rt.own(chunk, slot))
    }

    /// Notes the chunks that a larger memory has in addition: the last group may have more.
    pub(crate) fn enter_size(&self, old: u64, new: u64) {
        let (geo, begun) = (&self.memory.geo, self.memory.chunks_end());
        let before = (old / CHUNK).max(1);
        (before..begun).filter(|n| geo.is_heap(*n)).for_each(|n| self.rt.add_absent(n));
        self.rt.count_absent(geo.heap_chunks(new) as i64 - geo.heap_chunks(old) as i64);
        self.rt.no_run().store(0, Ordering::SeqCst);
    }

    /// Bytes that the host has given to the memory, used and free.
    pub fn taken(&self) -> u64 {
        let (memory, geo) = (self.memory, &self.memory.geo);
        let heads: u64 = (0..memory.groups()).map(|n| geo.head(n)).map(|head| head.end - head.start).sum();
        heads + geo.heap_chunks(memory.size()).saturating_sub(self.rt.absent()) * CHUNK
    }
}

/// Has the host no memory?
pub(crate) fn is_full(e: &Error) -> bool {
    matches!(e, Error::Host { errno: Errno::NOSPC | Errno::NOMEM | Errno::DQUOT, .. })
}

pub(crate) fn bytes(chunks: &Range<u64>) -> Range<u64> {
    chunks.start * CHUNK..chunks.end * CHUNK
}
