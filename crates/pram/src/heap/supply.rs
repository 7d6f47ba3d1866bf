//! Memory for chunks: taken ahead of use, and given back.
//!
//! A memory has the memory that its entries say: an [absent](Meta::Absent) chunk has none. Memory is taken in steps: by
//! the maintenance thread ahead of need, by whoever begins an operation when little is left, and by whoever ran out of it,
//! after the operation has ended ([`Error::MustGrow`]), since asking the host may take long. One at a time, and whoever it
//! is has the role of the *supplier* in the runtime file.
//!
//! Ordered steps of taking:
//! 1. Memory, from the host. (Else a store would meet a full disk, and be a signal.) For a new group first for what
//!    belongs to it in the runtime file and in the marks.
//! 2. In an operation, a new group's table, then the number of groups, then entries: durable before anybody is given a
//!    chunk. (Else an object could be in one that counts as absent after a crash, and is given a second time.)
//! 3. The chunks are listed as free.
//!
//! Ordered steps of giving back:
//! 1. The chunks are owned and off the list of free ones.
//! 2. Their entries say absent, durably. (Else, after a crash, objects would go where there is no memory.)
//! 3. The memory goes. Whoever dies before leaves memory that is taken again without harm, or given back by the next who
//!    comes to the memory alone.
//!
//! Tables stay where they are while anybody is attached, so whoever follows an old reference finds an entry that says no.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::{Heap, Meta};
use crate::clock::monotonic;
use crate::error::{Error, Result};
use crate::memory::{Memory, CHUNK, PER_GROUP};
use crate::reserve;
use crate::runtime::{pause, Hold, LOW};
use crate::session::{Op, Session};

/// Chunks taken at a time by who waits for them: 4 MiB.
const STEP: u64 = 64;
/// Chunks that the maintenance thread keeps free: an eighth of what is in use, between these.
const AHEAD: Range<u64> = 64..4096;
/// How often a host without memory is asked for some, nanoseconds.
const ASK: u64 = 1_000_000_000;
/// How often whoever is in an operation looks whether another one has taken memory.
const PATIENCE: u32 = 500;
/// Blocks that a file may have beside what is in it.
const SLACK: u64 = 1 << 20;

/// What came of the wish for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    Taken,
    /// The memory has all that was said, or no run of that length is left.
    Nothing,
    /// The host has none.
    HostFull,
}

/// The right to take memory and to give it back.
struct Supplier<'a>(&'a Session);

impl Drop for Supplier<'_> {
    fn drop(&mut self) {
        self.0.runtime().supplier().store(0, Ordering::SeqCst);
        self.0.memory().step();
    }
}

/// What to take.
#[derive(Clone, Debug)]
struct Plan {
    /// Chunks without memory, in one group.
    chunks: Vec<Range<u64>>,
    /// The group is to be begun.
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

    /// In an operation in `slot` that found no room for `len` chunks: true if there is some now. Where taking memory is
    /// more than to note it, the operation has to end first.
    pub(super) fn take_within(&self, slot: u32, len: u64) -> Result<bool> {
        if !self.is_untaken(len) {
            return Ok(false);
        }
        // Who holds everybody up cannot end its operation for others to take memory.
        let alone = self.rt.hold() == Hold::Frozen(self.rt.me());
        if self.memory.map().growing_file().is_some() && !alone {
            return Err(Error::MustGrow);
        }
        let me = u64::from(self.rt.me() + 1);
        let mut round = 0;
        while self.rt.supplier().compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            if round == PATIENCE {
                // It may have died.
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

    /// Where the next `step` chunks without memory are, so that `run` in a row can be had.
    fn plan(&self, run: u64, step: u64) -> Option<Plan> {
        if run == 1 {
            let next = self.rt.next_absent(0, step).map(|(first, len)| first..first + len);
            if let Some(chunks) = next {
                return Some(Plan { chunks: vec![chunks], new: None });
            }
        } else if let Some(first) = self.rt.window(run) {
            return Some(Plan { chunks: self.absent_in(first..first + run), new: None });
        }
        let (size, group) = (self.memory.size(), self.memory.groups());
        let first = group * PER_GROUP + 1;
        let end = (first + run.max(step)).min((group + 1) * PER_GROUP).min(size / CHUNK);
        let fits = group < self.memory.geo.groups(size) && end >= first + run;
        fits.then(|| Plan { chunks: Some(first..end).into_iter().collect(), new: Some(group) })
    }

    /// The chunks without memory among those.
    fn absent_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut found, mut from) = (Vec::new(), range.start);
        while let Some((first, len)) = self.rt.next_absent(from, range.end - from).filter(|next| next.0 < range.end) {
            from = (first + len).min(range.end);
            found.push(first..from);
        }
        found
    }

    /// Step 1.
    fn take_memory(&self, plan: &Plan) -> Result<()> {
        if let Some(group) = plan.new {
            self.rt.take_groups(group + 1)?;
            self.memory.marks().map_or(Ok(()), |marks| marks.take_groups(group + 1))?;
            self.memory.take(self.memory.geo.head(group))?;
        }
        plan.chunks.iter().try_for_each(|chunks| self.memory.take(bytes(chunks)))
    }

    /// Steps 2 and 3, in an operation in `slot`.
    fn enter(&self, slot: u32, plan: &Plan) -> Result<()> {
        if let Some(group) = plan.new {
            self.memory.begin_group(group)?;
            let end = self.memory.chunks_end();
            (group * PER_GROUP + 1..end).for_each(|n| self.rt.add_absent(n));
        }
        plan.chunks.iter().try_for_each(|chunks| self.enter_run(slot, chunks))
    }

    fn enter_run(&self, slot: u32, chunks: &Range<u64>) -> Result<()> {
        let geo = &self.memory.geo;
        // Owned meanwhile, so that a death half way is cleaned up; who looks at all chunks may own one for an instant.
        let owned: Vec<u64> = chunks.clone().filter(|n| self.own_soon(*n, slot)).collect();
        for n in &owned {
            // One that somebody was at who died is listed twice.
            if self.memory.meta(*n)? == Meta::Absent {
                self.memory.store_word(geo.entry(*n).raw(), Meta::Free.encode())?;
            }
        }
        let entries = (chunks.end - chunks.start) * size_of::<super::ChunkEntry>() as u64;
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

    /// Notes what the memory has once it is larger: the last group may have more chunks.
    fn enter_size(&self, old: u64, new: u64) {
        let (geo, begun) = (&self.memory.geo, self.memory.chunks_end());
        let before = (old / CHUNK).max(1);
        (before..begun).filter(|n| geo.is_heap(*n)).for_each(|n| self.rt.add_absent(n));
        self.rt.count_absent(geo.heap_chunks(new) as i64 - geo.heap_chunks(old) as i64);
        self.rt.no_run().store(0, Ordering::SeqCst);
    }
}

impl Heap<'_> {
    /// Bytes of memory that the memory has: what is in use, and what is free.
    pub fn taken(&self) -> u64 {
        let (memory, geo) = (self.memory, &self.memory.geo);
        let heads: u64 = (0..memory.groups()).map(|n| geo.head(n)).map(|head| head.end - head.start).sum();
        heads + geo.heap_chunks(memory.size()).saturating_sub(self.rt.absent()) * CHUNK
    }
}

impl Memory {
    /// Makes sure that the memory's file has memory exactly where the entries say: holes are made and lost where a file is
    /// copied, and a crash may have come between an entry and its memory. With nobody attached.
    pub(crate) fn settle_memory(&self) -> Result<()> {
        let Some(file) = self.map().growing_file() else { return Ok(()) };
        let mut kept: Vec<_> = (0..self.groups()).map(|n| self.geo.head(n)).chain(self.held()?).collect();
        kept.sort_unstable_by_key(|range| range.start);
        kept.dedup_by(|next, range| {
            let joins = next.start <= range.end;
            range.end = if joins { range.end.max(next.end) } else { range.end };
            joins
        });
        let expected: u64 = kept.iter().map(|range| range.end - range.start).sum();
        let stat = rustix::fs::fstat(file).map_err(Error::host("looking at the memory's file"))?;
        if (expected..=expected + SLACK).contains(&(stat.st_blocks as u64 * 512)) {
            return Ok(());
        }
        let mut at = 0;
        for range in kept {
            self.give_back(at..range.start)?;
            at = range.end;
            reserve::keep(file, range).map_err(Error::host("taking the memory that the pool uses"))?;
        }
        self.give_back(at..self.size().max(at))
    }
}

impl Session {
    /// Before an operation, when little is left. Whatever comes of it, the operation may find that there is enough.
    #[cold]
    #[inline(never)]
    pub(crate) fn supply_ahead(&self) {
        let _ = self.supply(1, STEP, false);
        if self.runtime().spare() > LOW || self.runtime().absent() == 0 || self.is_host_full() {
            self.runtime().end_demand();
        }
    }

    /// After an operation that failed with [`Error::MustGrow`]: takes what it needs, or waits for who does.
    pub fn supply_needed(&self) -> Result<Supply> {
        let run = self.runtime().wanted().swap(0, Ordering::SeqCst).max(1);
        self.supply(run, STEP, true)
    }

    /// Takes memory until as much is free as is expected to be needed soon. For the maintenance thread.
    pub fn supply_soon(&self) -> Result<Supply> {
        let rt = self.runtime();
        let used = self.memory().geo.heap_chunks(self.memory().size()).saturating_sub(rt.absent());
        let ahead = (used / 8).clamp(AHEAD.start, AHEAD.end);
        let mut supply = Supply::Nothing;
        while rt.spare() < ahead && rt.absent() > 0 {
            supply = self.supply(1, STEP, false)?;
            if supply != Supply::Taken {
                break;
            }
        }
        rt.ring_below(ahead / 2);
        Ok(supply)
    }

    /// Waits until the maintenance thread is called, at most so long; true if it was since `seen`, which is replaced.
    pub fn wait_supply(&self, seen: &mut u32, nanos: i64) -> bool {
        let wakeup = self.runtime().supply_wakeup();
        if wakeup.load(Ordering::SeqCst) == *seen {
            crate::runtime::wait(wakeup, *seen, nanos);
        }
        let now = wakeup.load(Ordering::SeqCst);
        std::mem::replace(seen, now) != now
    }

    /// Wakes whoever waits so.
    pub fn ring_supply(&self) {
        self.runtime().supply_wakeup().fetch_add(1, Ordering::SeqCst);
        crate::runtime::wake(self.runtime().supply_wakeup());
    }

    /// Has the host refused memory lately?
    pub fn is_host_full(&self) -> bool {
        self.runtime().host_full().load(Ordering::SeqCst) > 0
    }

    /// Becomes the supplier. `None` if somebody else is and has done something meanwhile, or `wait` is false.
    fn supplier(&self, wait: bool) -> Result<Option<Supplier<'_>>> {
        let mut round = 0;
        loop {
            if self.take_role(self.runtime().supplier())? {
                return Ok(Some(Supplier(self)));
            }
            if !wait {
                return Ok(None);
            }
            self.memory().wait_by(|| pause(round));
            round += 1;
        }
    }

    fn supply(&self, run: u64, step: u64, wait: bool) -> Result<Supply> {
        let Some(_role) = self.supplier(wait)? else { return Ok(Supply::Taken) };
        let (heap, rt) = (self.heap(), self.runtime());
        rt.count_spare();
        if monotonic() < rt.host_full().load(Ordering::SeqCst) {
            return Ok(Supply::HostFull);
        }
        let Some(plan) = heap.plan(run, step) else {
            rt.no_run().store(run, Ordering::SeqCst);
            return Ok(Supply::Nothing);
        };
        crate::session::assert_may_wait();
        match heap.take_memory(&plan) {
            Ok(()) => {
                if rt.host_full().swap(0, Ordering::SeqCst) != 0 {
                    tracing::info!("the host has memory for the pool again");
                }
            }
            Err(e) if is_full(&e) => {
                if rt.host_full().swap(monotonic() + ASK, Ordering::SeqCst) == 0 {
                    tracing::error!(
                        "the host has no memory for the pool, which was to have {} MiB more; until it has, the pool is full",
                        (rt.absent() * CHUNK) >> 20
                    );
                }
                return Ok(Supply::HostFull);
            }
            Err(e) => return Err(e),
        }
        let op = self.begin_unsupplied()?;
        heap.enter(op.slot(), &plan)?;
        Ok(Supply::Taken)
    }

    /// Gives back the memory of all free chunks: when the last process goes.
    pub(crate) fn give_all_back(&self) -> Result<()> {
        if self.memory().map().growing_file().is_none() {
            return Ok(());
        }
        let Some(_role) = self.supplier(true)? else { return Ok(()) };
        (0..self.memory().groups()).try_for_each(|group| self.give_group_back(group))
    }

    /// Gives back the memory of groups in which nothing is now, nor was when they were put into `idle`. For the maintenance
    /// thread, seldom: whoever still reads there what was removed long ago would take memory that nobody counts.
    pub fn give_idle_back(&self, idle: &mut Vec<u64>) -> Result<()> {
        // Else what slots allocated from last, of each kind and size, would stay for good, and hold up its group.
        let op = self.begin_unsupplied()?;
        self.heap().drop_idle(op.slot())?;
        drop(op);
        if self.memory().map().growing_file().is_none() {
            return Ok(());
        }
        let Some(_role) = self.supplier(false)? else { return Ok(()) };
        let before = std::mem::take(idle);
        for group in 0..self.memory().groups() {
            if !self.is_idle(group)? {
                continue;
            }
            match before.contains(&group) {
                true => self.give_group_back(group)?,
                false => idle.push(group),
            }
        }
        Ok(())
    }

    /// Is nothing in a group, which has memory?
    fn is_idle(&self, group: u64) -> Result<bool> {
        let mut free = 0;
        for n in self.memory().chunks_of(group) {
            match self.memory().meta(n)? {
                Meta::Free => free += 1,
                Meta::Absent => {}
                _ => return Ok(false),
            }
        }
        Ok(free > 0 && self.runtime().spare() >= free + AHEAD.start)
    }

    fn give_group_back(&self, group: u64) -> Result<()> {
        let mut given: Vec<Range<u64>> = Vec::new();
        {
            let op: Op = self.begin_unsupplied()?;
            let (heap, memory) = (self.heap(), self.memory());
            for n in self.memory().chunks_of(group) {
                // 1, 2.
                if memory.meta(n)? != Meta::Free || !heap.claim(n, op.slot())? {
                    continue;
                }
                memory.set_meta(n, Meta::Absent)?;
                self.runtime().add_absent(n);
                self.runtime().count_absent(1);
                self.runtime().disown(n);
                match given.last_mut().filter(|last| last.end == n * CHUNK) {
                    Some(last) => last.end += CHUNK,
                    None => given.push(bytes(&(n..n + 1))),
                }
            }
        }
        self.runtime().no_run().store(0, Ordering::SeqCst);
        // 3.
        given.into_iter().try_for_each(|range| self.memory().give_back(range))
    }

    /// Makes the memory larger, up to `size` bytes, whoever works on it. On disk it counts with the next commit.
    /// 1. Its file is as long. (Else memory would be taken where there is none.)
    /// 2. The header says so. 3. Everybody may take more.
    pub fn resize(&self, size: u64) -> Result<()> {
        let (memory, size) = (self.memory(), size / CHUNK * CHUNK);
        crate::memory::check_size(size)?;
        let Some(_role) = self.supplier(true)? else { return Ok(()) };
        let old = memory.size();
        if size < old {
            return Err(Error::Unusable(format!(
                "it has {} MiB and cannot become smaller: what is in use may lie anywhere in it. Memory that nothing is in \
                 is given back without that; for less, save the pool's files and make it anew",
                old >> 20
            )));
        }
        let most = self.runtime().limit();
        if size > most {
            return Err(Error::Unusable(format!(
                "{} MiB are more than the {} MiB that the processes which work on it have set aside, or than the device has; \
                 unmount the pool first, or resize it to that much, unmount, and then to more",
                size >> 20,
                most >> 20
            )));
        }
        // 1.
        if let Some(file) = memory.map().growing_file() {
            let longer = |errno| Error::Host { what: "making the memory's file longer".into(), errno };
            if (rustix::fs::fstat(file).map_err(longer)?.st_size as u64) < size {
                rustix::fs::ftruncate(file, size).map_err(longer)?;
                rustix::fs::fsync(file).map_err(longer)?;
            }
        }
        if size > old {
            let _op = self.begin_unsupplied()?;
            // 2.
            memory.set_size(size)?;
            // 3.
            self.heap().enter_size(old, size);
        }
        Ok(())
    }
}

/// Has the host no memory?
fn is_full(e: &Error) -> bool {
    matches!(e, Error::Host { errno: Errno::NOSPC | Errno::NOMEM | Errno::DQUOT, .. })
}

fn bytes(chunks: &Range<u64>) -> Range<u64> {
    chunks.start * CHUNK..chunks.end * CHUNK
}
