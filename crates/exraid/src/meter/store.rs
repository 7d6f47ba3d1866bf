//! The words of a meter: this process's own, or those that all processes of a pool have mapped ([`Meters`]).
//!
//! | words | |
//! | --- | --- |
//! | identity | the device that they describe; for another one they begin anew |
//! | version | odd during an update of averages or the end of a window; no process waits for that |
//! | of each direction | the processes with requests under way, and since when there are any; totals; averages |
//! | of each process | its requests under way, in each direction |
//! | latencies | counts by quarters of a power of two |
//! | cells, window, verdict | see [`super::stutter`] |
//!
//! All are atomics without a lock. If two processes store at the same instant, at most one request of an average is
//! lost. The queue must be exact: each process counts its own requests, in a slot of its own while it lives, and those
//! of a dead process do not count.

use std::io;
use std::ops::{Index, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::shared::{Meters, PROCESSES, WORDS};
use crate::error::Class;
use crate::sys::shared::Words;

/// Changes with any meaning of a word.
const LAYOUT: u64 = 1;

const IDENTITY: usize = 0;
pub const VERSION: usize = 2;
pub const FOLDED: usize = 3;
pub const LAST_END: usize = 4;
pub const LAST_AT: usize = 5;
const DIRECTIONS: usize = 16;
const OF_DIRECTION: usize = 16;
pub const ERRORS: Range<usize> = 48..48 + Class::ALL.len();
const SLOTS: usize = 64;
const OF_SLOT: usize = 4;
const LATENCIES: usize = 144;
pub const OF_LATENCY: usize = 113;
/// The words of [`super::stutter`].
pub const CELLS: usize = 512;
pub const VERDICT: usize = 960;
const _: () = assert!(ERRORS.end <= SLOTS && SLOTS + PROCESSES * OF_SLOT <= LATENCIES);
const _: () = assert!(LATENCIES + 3 * OF_LATENCY < CELLS);

/// The words of a direction.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Of {
    /// A mask of processes with requests under way, and since when there are any.
    Busy,
    /// Totals: nanoseconds of work, bytes, requests.
    Worked,
    Bytes,
    Requests,
    /// Seconds that a request takes, by the last ones most; those that timed out count too.
    Takes,
    /// The totals up to which the averages go.
    FoldedWorked,
    FoldedBytes,
    /// Two averages, of bytes and of seconds.
    Short,
    ShortWorked,
    Long,
    LongWorked,
    /// The last known speeds, for when the averages have forgotten.
    KnownShort,
    KnownLong,
}

enum Place {
    Own(Box<[AtomicU64]>),
    Shared(Words, Arc<Meters>),
}

/// The words of a meter; see the [module](self).
pub struct Store(Place);

impl Default for Store {
    fn default() -> Store {
        Store(Place::Own(Words::own(WORDS)))
    }
}

impl Index<usize> for Store {
    type Output = AtomicU64;

    fn index(&self, n: usize) -> &AtomicU64 {
        match &self.0 {
            Place::Own(words) => &words[n],
            Place::Shared(words, _) => &words[n],
        }
    }
}

impl Store {
    /// The words of meter `which` of a region, for the device `identity`. One process at a time calls this. None in a
    /// process that only looks, if that device was not measured.
    pub fn shared(meters: &Arc<Meters>, which: usize, identity: [u64; 2]) -> io::Result<Option<Store>> {
        let store = Store(Place::Shared(meters.words(which)?, meters.clone()));
        let identity = [identity[0] ^ LAYOUT.rotate_left(32), identity[1] ^ LAYOUT];
        let is_it = (0..2).all(|n| store.get(IDENTITY + n) == identity[n]);
        let Some(slot) = meters.slot() else { return Ok(is_it.then_some(store)) };
        if !is_it {
            (0..WORDS).for_each(|n| store.put(n, 0));
            (0..2).for_each(|n| store.put(IDENTITY + n, identity[n]));
        }
        // The former owner of the slot has died, perhaps during an update.
        if meters.begins(which) {
            if store.get(VERSION) % 2 == 1 && meters.is_alone() {
                store[VERSION].fetch_add(1, Ordering::SeqCst);
            }
            store.forget(slot, super::now());
        }
        Ok(Some(store))
    }

    /// The slot of this process; none in one that only looks.
    pub fn slot(&self) -> Option<usize> {
        match &self.0 {
            Place::Own(_) => Some(0),
            Place::Shared(_, meters) => meters.slot(),
        }
    }

    fn is_alive(&self, slot: usize) -> bool {
        match &self.0 {
            Place::Own(_) => slot == 0,
            Place::Shared(_, meters) => meters.slot() == Some(slot) || meters.is_alive(slot),
        }
    }

    pub fn get(&self, n: usize) -> u64 {
        self[n].load(Ordering::SeqCst)
    }

    pub fn put(&self, n: usize, to: u64) {
        self[n].store(to, Ordering::SeqCst);
    }

    pub fn add(&self, n: usize, more: u64) {
        self[n].fetch_add(more, Ordering::SeqCst);
    }

    pub fn real(&self, n: usize) -> f64 {
        f64::from_bits(self.get(n))
    }

    pub fn put_real(&self, n: usize, to: f64) {
        self.put(n, to.to_bits());
    }

    /// Counts the beginning or end of a request.
    pub fn under_way(&self, way: usize, slot: usize, bytes: u64, begins: bool, now: u64) {
        let at = SLOTS + slot * OF_SLOT + way * 2;
        for (n, much) in [(at, 1), (at + 1, bytes)] {
            let next = |had: u64| Some(if begins { had + much } else { had.saturating_sub(much) });
            let _ = self[n].fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        }
        self.mark_busy(way, slot, now);
    }

    /// Sets the bit of a process by its count. Each change of the count is followed by a call of this, so the last one
    /// to store the bit has seen the final count.
    fn mark_busy(&self, way: usize, slot: usize, now: u64) {
        let (count, busy) = (SLOTS + slot * OF_SLOT + way * 2, direction(way, Of::Busy));
        loop {
            let is_busy = self.get(count) > 0;
            let next = |word: u64| {
                let was = Busy::of(word);
                let mask = if is_busy { was.mask | 1 << slot } else { was.mask & !(1 << slot) };
                let since = if was.mask == 0 { now / 1000 } else { was.since };
                (mask != was.mask).then(|| Busy { mask, since }.word())
            };
            if let Ok(before) = self[busy].fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) {
                let before = Busy::of(before);
                if !is_busy && before.mask == 1 << slot {
                    self.add(direction(way, Of::Worked), (now / 1000).saturating_sub(before.since) * 1000);
                }
            }
            if (self.get(count) > 0) == is_busy {
                return;
            }
        }
    }

    /// Requests and bytes under way in a direction, of live processes.
    pub fn queue(&self, way: usize) -> (u64, u64) {
        let mask = self.living(Busy::of(self.get(direction(way, Of::Busy))).mask);
        (0..PROCESSES).filter(|slot| mask & 1 << slot != 0).fold((0, 0), |(requests, bytes), slot| {
            let at = SLOTS + slot * OF_SLOT + way * 2;
            (requests + self.get(at), bytes + self.get(at + 1))
        })
    }

    /// Since when requests are under way in a direction, and the total time of work until now.
    pub fn worked(&self, way: usize, now: u64) -> (Option<u64>, u64) {
        let before = self.get(direction(way, Of::Worked));
        let busy = Busy::of(self.get(direction(way, Of::Busy)));
        match self.living(busy.mask) {
            0 => (None, before),
            _ => (Some(busy.since * 1000), before + (now / 1000).saturating_sub(busy.since) * 1000),
        }
    }

    /// The live processes of a mask, in a process that only looks; one that measures has [reaped](Self::reap) the dead.
    fn living(&self, mask: u64) -> u64 {
        match self.slot() {
            Some(_) => mask,
            None => (0..PROCESSES)
                .filter(|slot| mask & 1 << slot != 0 && self.is_alive(*slot))
                .fold(0, |all, slot| all | 1 << slot),
        }
    }

    /// Ends the requests of dead processes. Asks the kernel about each other process with requests under way.
    pub fn reap(&self, now: u64) {
        let masks = (0..2).fold(0, |all, way| all | Busy::of(self.get(direction(way, Of::Busy))).mask);
        let dead = |slot: &usize| masks & 1 << slot != 0 && !self.is_alive(*slot);
        (0..PROCESSES).filter(dead).for_each(|slot| self.forget(slot, now));
    }

    /// Sets the requests of a slot to none.
    fn forget(&self, slot: usize, now: u64) {
        for way in 0..2 {
            let at = SLOTS + slot * OF_SLOT + way * 2;
            self.put(at, 0);
            self.put(at + 1, 0);
            self.mark_busy(way, slot, now);
        }
    }
}

/// The processes with requests under way, and since when there are any: microseconds, of which 48 bits last for nine
/// years.
struct Busy {
    mask: u64,
    since: u64,
}

impl Busy {
    fn of(word: u64) -> Busy {
        Busy { mask: word >> 48, since: word & ((1 << 48) - 1) }
    }

    fn word(&self) -> u64 {
        self.mask << 48 | self.since & ((1 << 48) - 1)
    }
}

/// A word of a direction.
pub fn direction(way: usize, of: Of) -> usize {
    DIRECTIONS + way * OF_DIRECTION + of as usize
}

/// The latencies of reads, writes and flushes.
pub fn latency(which: usize) -> usize {
    LATENCIES + which * OF_LATENCY
}
