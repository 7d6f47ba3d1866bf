//! A memory takes memory from the host, and gives it back, in steps. The maintenance thread takes it ahead of need. Any
//! process takes it before an operation when little is left, and after an operation that ran out of it
//! ([`Error::MustGrow`]), since the host may take long. The heap says how memory is taken.
//!
//! Ordered steps of giving back:
//! 1. The chunks are owned and off the list of free ones.
//! 2. Their entries say absent, durably. (Else, after a crash, objects would go where there is no memory.)
//! 3. The memory goes. A process that dies before leaves memory that is taken again without harm, or given back by the
//!    next process that attaches alone.
//!
//! Tables stay where they are while any process is attached, so an old reference leads to an entry that says no.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::waiting::assert_may_wait;
use super::{Op, Session};
use crate::clock::monotonic;
use crate::error::{Error, Result};
use crate::heap::{bytes, is_full, STEP};
use crate::memory::{check_size, Meta, CHUNK};
use crate::runtime::{pause, wait, wake, LOW};

/// Chunks that the maintenance thread provides ahead: an eighth of those in use, between these.
const AHEAD: Range<u64> = 64..4096;
/// How often a host without memory is asked for some, nanoseconds.
const ASK: u64 = 1_000_000_000;

/// The result of asking for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    Taken,
    /// The memory has its full size, or no run of that length is left.
    Nothing,
    /// The host has none.
    HostFull,
}

/// The right to take memory and to give it back.
struct Supplier<'a>(&'a Session);

impl Drop for Supplier<'_> {
    fn drop(&mut self) {
        self.0.runtime().supplier().store(0, Ordering::SeqCst);
        self.0.heed();
        self.0.memory().step();
    }
}

impl Session {
    /// Takes memory before an operation, when little is left. It ignores failures: the operation may need none.
    #[cold]
    #[inline(never)]
    pub(crate) fn supply_ahead(&self) {
        let _ = self.supply(1, STEP, false);
        if self.runtime().spare() > LOW || self.runtime().absent() == 0 || self.is_host_full() {
            self.runtime().end_demand();
        }
    }

    /// After an operation that failed with [`Error::MustGrow`]: takes the memory that it needs, or waits for the supplier.
    pub fn supply_needed(&self) -> Result<Supply> {
        let run = self.runtime().wanted().swap(0, Ordering::SeqCst).max(1);
        self.supply(run, STEP, true)
    }

    /// Takes memory until enough is free for the near future. For the maintenance thread.
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

    /// Waits until the maintenance thread is woken, at most `nanos`; true if it was since `seen`, which is replaced.
    pub fn wait_supply(&self, seen: &mut u32, nanos: i64) -> bool {
        let wakeup = self.runtime().supply_wakeup();
        if wakeup.load(Ordering::SeqCst) == *seen {
            wait(wakeup, *seen, nanos);
        }
        let now = wakeup.load(Ordering::SeqCst);
        std::mem::replace(seen, now) != now
    }

    /// Wakes a thread in [`wait_supply`](Self::wait_supply).
    pub fn ring_supply(&self) {
        self.runtime().supply_wakeup().fetch_add(1, Ordering::SeqCst);
        wake(self.runtime().supply_wakeup());
    }

    /// Has the host refused memory lately?
    pub fn is_host_full(&self) -> bool {
        self.runtime().host_full().load(Ordering::SeqCst) > 0
    }

    /// Becomes the supplier; waits for another one if `wait`, and else returns `None`.
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
            if round % 100 == 0 {
                let has_it = || self.runtime().supplier().load(Ordering::SeqCst);
                let seen = has_it();
                self.urge_session((seen as u32).wrapping_sub(1), || has_it() == seen);
            }
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
        assert_may_wait();
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

    /// Gives back the memory of groups that are empty now and were when they were put into `idle`. For the maintenance
    /// thread, seldom: a process that still reads objects removed long ago there would take memory that nobody counts.
    pub fn give_idle_back(&self, idle: &mut Vec<u64>) -> Result<()> {
        // Else the chunks that slots last allocated from, of each kind and size, would stay for good with their groups.
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

    /// Is a group empty, and has it memory?
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

    /// Makes the memory larger, up to `size` bytes, also while other processes use it. On disk the size counts with the
    /// next commit.
    /// 1. The file gets its new length. (Else memory would be taken where there is none.)
    /// 2. The header has the new size. 3. Every process may take more.
    pub fn resize(&self, size: u64) -> Result<()> {
        let (memory, size) = (self.memory(), size / CHUNK * CHUNK);
        check_size(size)?;
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
            let file = file.lend().map_err(longer)?;
            if (rustix::fs::fstat(&file).map_err(longer)?.st_size as u64) < size {
                rustix::fs::ftruncate(&file, size).map_err(longer)?;
                rustix::fs::fsync(&file).map_err(longer)?;
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
