//! The speed of a device: moving averages at two horizons, latency, queue, errors; and whether it has become slow.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `store` | the words that hold all of it, of one process or of all that share a region |
//! | [`shared`] | the words that all processes of a region share |
//! | `average` | averages, and latencies |
//! | [`buckets`] | times in buckets |
//! | [`stutter`] | a disk that slows down, distinguished from one with many requests |
//!
//! *Speed* is bytes per second of work, the time with a request under way. So a disk that idles is not slow, and one
//! that does not answer is. *Load* is bytes per second. Both are weighted by age: events of one horizon ago count 1/e
//! of new ones. Bytes count when their request ends.

mod average;
pub mod buckets;
pub mod shared;
mod store;
pub mod stutter;
#[cfg(test)]
mod stutter_tests;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{clock_gettime, ClockId};

use crate::device::Kind;
use crate::error::Class;
use crate::label::Uuid;
use average::{Average, Latency};
use shared::Meters;
pub use shared::{PROCESSES, WORDS};
use store::{direction, latency, Of, Store, ERRORS, FOLDED, LAST_AT, LAST_END, VERSION};
use stutter::{Ended, Judge, Stutter};

/// The horizon for noticing a disk that slows down.
pub const SHORT: Duration = Duration::from_millis(500);
/// The horizon for a disk's usual speed.
pub const LONG: Duration = Duration::from_secs(30);

/// The measurements of reads, or of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// Bytes per second of work, lately ([`SHORT`]); 0: unknown.
    pub speed: f64,
    /// The same, at [`LONG`].
    pub usual_speed: f64,
    /// Bytes per second, lately.
    pub load: f64,
    /// The same, at [`LONG`].
    pub usual_load: f64,
    /// The time within which half of the last requests were answered; zero: none was.
    pub median: Duration,
    /// The same for 99 of 100.
    pub p99: Duration,
    /// Requests and bytes that succeeded, since a process first opened the device, as long as one has it.
    pub requests: u64,
    pub bytes: u64,
    /// Requests and bytes under way.
    pub queue: u64,
    pub queued_bytes: u64,
}

/// The measurements of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Performance {
    pub read: Flow,
    pub write: Flow,
    /// The times within which half, and 99 of 100, of the last flushes were answered.
    pub flush_median: Duration,
    pub flush_p99: Duration,
    /// Age of the oldest request under way.
    pub oldest: Duration,
    /// Failures since a process first opened the device, by [`Class::ALL`].
    pub errors: [u64; Class::ALL.len()],
    /// It delivers much less than before for the same requests. For a region: its first such disk.
    pub stutter: Option<Stutter>,
}

impl Performance {
    pub fn errors_of(&self, class: Class) -> u64 {
        self.errors[place(class)]
    }

    /// It does not answer: a request is under way for too long. Requests avoid it where others can serve them.
    pub fn is_stuck(&self) -> bool {
        self.oldest > STUCK
    }
}

fn place(class: Class) -> usize {
    Class::ALL.iter().position(|one| *one == class).unwrap_or(0)
}

/// A disk answers within this, unless it fails or has a very long queue.
const STUCK: Duration = Duration::from_millis(50);
/// The interval of updating averages, in nanoseconds; and the time after which a process in the middle of an update
/// counts as dead.
const FOLD: u64 = 5_000_000;
const DEAD: u64 = 1_000_000_000;
/// The interval of asking the kernel whether processes with requests under way are alive.
const ASKED: u64 = 50_000_000;

/// Nanoseconds of a clock that all processes share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Measures one device, for all processes that share it.
pub struct Meter {
    store: Store,
    /// The number of the verdict that this process reported last.
    reported: AtomicU64,
    asked: AtomicU64,
    /// This process closed a window after the last answered request.
    closed: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
pub struct Begun {
    kind: Kind,
    bytes: u64,
    at: u64,
    goes_on: bool,
    wakes: bool,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::of(Store::default())
    }
}

fn way(kind: Kind) -> Option<usize> {
    match kind {
        Kind::Read => Some(0),
        Kind::Write => Some(1),
        Kind::Flush | Kind::Discard | Kind::Reserve => None,
    }
}

impl Meter {
    fn of(store: Store) -> Meter {
        let reported = AtomicU64::new(Judge(&store).changes());
        Meter { store, reported, asked: AtomicU64::new(0), closed: AtomicBool::new(false) }
    }

    /// For a device that processes share: the region itself (0), or a member of it (1 and more). If they cannot share,
    /// it measures for this process alone.
    pub fn shared(meters: Option<&Arc<Meters>>, which: usize, device: Uuid) -> Meter {
        let Some(meters) = meters else { return Meter::default() };
        let (one, other) = device.0.split_at(8);
        let identity = [one, other].map(|half| u64::from_le_bytes(half.try_into().expect("half of it")));
        match Store::shared(meters, which, identity) {
            Ok(Some(store)) => Meter::of(store),
            Ok(None) => Meter::default(),
            Err(e) => {
                tracing::warn!("what is measured of {device} is not shared with other processes: {e}");
                Meter::default()
            }
        }
    }

    pub fn begin(&self, kind: Kind, range: Range<u64>) -> Begun {
        self.begin_at(now(), kind, range)
    }

    /// True: it is time to [judge](Self::judge).
    pub fn end(&self, begun: Begun, failed: Option<Class>) -> bool {
        self.end_at(now(), begun, failed)
    }

    fn begin_at(&self, now: u64, kind: Kind, range: Range<u64>) -> Begun {
        let bytes = range.end - range.start;
        let (mut goes_on, mut wakes) = (false, false);
        if let (Some(way), Some(slot)) = (way(kind), self.store.slot()) {
            self.fold(now);
            let last = self.store.get(LAST_END);
            wakes = now.saturating_sub(last) > stutter::REST && self.queued() == 0;
            goes_on = self.store[LAST_AT].swap(range.end, Ordering::SeqCst) == range.start;
            self.store.under_way(way, slot, bytes, true, now);
        }
        Begun { kind, bytes, at: now, goes_on, wakes }
    }

    fn end_at(&self, now: u64, begun: Begun, failed: Option<Class>) -> bool {
        let took = Duration::from_nanos(now.saturating_sub(begun.at));
        let Some(slot) = self.store.slot() else { return false };
        if let Some(class) = failed {
            self.store.add(ERRORS.start + place(class), 1);
        }
        let Some(way) = way(begun.kind) else {
            if begun.kind == Kind::Flush && failed.is_none() {
                self.latency(2).add(took);
            }
            return false;
        };
        let depth = self.queued();
        let last = self.store[LAST_END].swap(now, Ordering::SeqCst);
        self.store.under_way(way, slot, begun.bytes, false, now);
        if matches!(failed, None | Some(Class::Timeout)) {
            let takes = direction(way, Of::Takes);
            let had = self.store.real(takes);
            self.store.put_real(takes, had + (took.as_secs_f64() - had) / 8.0);
        }
        if failed.is_none() {
            self.latency(way).add(took);
            self.store.add(direction(way, Of::Requests), 1);
            self.store.add(direction(way, Of::Bytes), begun.bytes);
            let took = now.saturating_sub(last.max(begun.at));
            let Begun { bytes, goes_on, wakes, .. } = begun;
            Judge(&self.store).ended(&Ended { way, bytes, took, depth, goes_on, wakes });
        }
        self.fold(now);
        self.closed.load(Ordering::Relaxed) && self.closed.swap(false, Ordering::SeqCst)
    }

    fn latency(&self, which: usize) -> Latency<'_> {
        Latency { store: &self.store, at: latency(which) }
    }

    fn queued(&self) -> u64 {
        self.store.queue(0).0 + self.store.queue(1).0
    }

    /// Updates the averages, and closes a window, when it is time.
    fn fold(&self, now: u64) {
        let (version, folded) = (self.store.get(VERSION), self.store.get(FOLDED));
        let since = now.saturating_sub(folded);
        let next = match version % 2 {
            _ if since < FOLD => return,
            0 => version + 1,
            _ if since > DEAD => version + 2,
            _ => return,
        };
        if self.store[VERSION].compare_exchange(version, next, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        for way in 0..2 {
            let worked = self.store.worked(way, now);
            let bytes = self.store.get(direction(way, Of::Bytes));
            let averages = self.averages(way, now, worked, bytes);
            let (_, worked) = worked;
            self.store[direction(way, Of::FoldedWorked)].fetch_max(worked, Ordering::SeqCst);
            let moved = bytes != self.store[direction(way, Of::FoldedBytes)].swap(bytes, Ordering::SeqCst);
            let words = [(Of::Short, Of::ShortWorked, Of::KnownShort), (Of::Long, Of::LongWorked, Of::KnownLong)];
            for (average, (total, seconds, known)) in averages.into_iter().zip(words) {
                self.store.put_real(direction(way, total), average.bytes);
                self.store.put_real(direction(way, seconds), average.worked);
                if let Some(speed) = average.speed().filter(|_| moved) {
                    self.store.put_real(direction(way, known), speed);
                }
            }
            self.latency(way).age();
        }
        self.latency(2).age();
        self.store.put(FOLDED, now);
        if Judge(&self.store).look(now, clock()) {
            self.closed.store(true, Ordering::SeqCst);
        }
        self.store[VERSION].store(next + 1, Ordering::SeqCst);
    }

    /// The averages at `now`, with the present totals. If no request is under way, all of the difference was complete
    /// when the last one ended.
    fn averages(&self, way: usize, now: u64, (busy, worked): (Option<u64>, u64), bytes: u64) -> [Average; 2] {
        let real = |of| self.store.real(direction(way, of));
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let worked = worked.saturating_sub(self.store.get(direction(way, Of::FoldedWorked)));
        let bytes = bytes.saturating_sub(self.store.get(direction(way, Of::FoldedBytes))) as f64;
        let folded = self.store.get(FOLDED).min(now);
        let until = if busy.is_some() { now } else { self.store.get(LAST_END).clamp(folded, now) };
        let short = Average { horizon: SHORT.as_secs_f64(), bytes: real(Of::Short), worked: real(Of::ShortWorked) };
        let long = Average { horizon: LONG.as_secs_f64(), bytes: real(Of::Long), worked: real(Of::LongWorked) };
        [short, long].map(|average| {
            let then = average.passed(seconds(until - folded), bytes, seconds(worked));
            then.passed(seconds(now - until), 0.0, 0.0)
        })
    }

    /// The present averages of a direction. Read again if another process updated them meanwhile.
    fn averages_now(&self, way: usize, now: u64) -> [Average; 2] {
        let mut averages = None;
        for _ in 0..8 {
            let version = self.store.get(VERSION);
            let worked = self.store.worked(way, now);
            let bytes = self.store.get(direction(way, Of::Bytes));
            averages = Some(self.averages(way, now, worked, bytes));
            if version % 2 == 0 && self.store.get(VERSION) == version {
                break;
            }
        }
        averages.expect("it was read")
    }

    fn flow(&self, way: usize, now: u64) -> Flow {
        let word = |of| self.store.get(direction(way, of));
        let [short, long] = self.averages_now(way, now);
        let (requests, known) = (word(Of::Requests), |of| self.store.real(direction(way, of)));
        // Requests under way that do not end lower it. The last known speed counts once the averages have forgotten
        // all.
        let speed = |average: Average, of| match requests {
            0 => 0.0,
            _ => average.speed().unwrap_or_else(|| known(of)),
        };
        let (queue, queued_bytes) = self.store.queue(way);
        Flow {
            speed: speed(short, Of::KnownShort),
            usual_speed: speed(long, Of::KnownLong),
            load: short.load(),
            usual_load: long.load(),
            median: self.latency(way).within(0.5),
            p99: self.latency(way).within(0.99),
            requests,
            bytes: word(Of::Bytes),
            queue,
            queued_bytes,
        }
    }

    /// The expected time of a read that begins now, behind those under way; zero: unknown.
    pub fn expected_read(&self) -> Duration {
        Duration::from_secs_f64(self.store.real(direction(0, Of::Takes)) * (self.queued() + 1) as f64)
    }

    /// The usual speed in bytes per second, of reads or writes, the slower ones; 0: unknown.
    pub fn delivers(&self) -> u64 {
        let known = (0..2).map(|way| self.store.real(direction(way, Of::KnownLong))).filter(|known| *known > 0.0);
        known.min_by(f64::total_cmp).map_or(0, |slower| slower.min(1e12) as u64)
    }

    /// The present measurements. `oldest` is the age of the oldest request under way in this process.
    pub fn performance(&self, oldest: Duration) -> Performance {
        let now = now();
        let asked = self.asked.load(Ordering::Relaxed);
        if now.saturating_sub(asked) > ASKED && self.store.slot().is_some() {
            self.asked.store(now, Ordering::Relaxed);
            self.store.reap(now);
        }
        self.performance_at(now, oldest)
    }

    fn performance_at(&self, now: u64, oldest: Duration) -> Performance {
        Performance {
            read: self.flow(0, now),
            write: self.flow(1, now),
            flush_median: self.latency(2).within(0.5),
            flush_p99: self.latency(2).within(0.99),
            oldest: oldest.max(self.unanswered(now)),
            errors: std::array::from_fn(|n| self.store.get(ERRORS.start + n)),
            stutter: self.stutter(),
        }
    }

    /// The time since the last answer, or since requests of any process began if that is later; zero if none is under
    /// way.
    fn unanswered(&self, now: u64) -> Duration {
        let since = (0..2).filter_map(|way| self.store.worked(way, now).0).min();
        let last = self.store.get(LAST_END);
        since.map_or(Duration::ZERO, |since| Duration::from_nanos(now.saturating_sub(since.max(last))))
    }

    pub fn stutter(&self) -> Option<Stutter> {
        Judge(&self.store).stutter()
    }

    /// The ratio of present to usual times; none: unknown.
    pub fn times(&self) -> Option<f64> {
        Judge(&self.store).times(now())
    }

    /// Decides whether it stutters, when that is due. `peers` are the [times](Self::times) of disks that do the same
    /// work.
    pub fn judge(&self, peers: impl FnOnce() -> Vec<f64>) {
        self.judge_at(now(), peers);
    }

    fn judge_at(&self, now: u64, peers: impl FnOnce() -> Vec<f64>) {
        if Judge(&self.store).is_suspect(now) {
            Judge(&self.store).accuse(&mut peers());
        }
    }

    /// A change of the verdict that this process has not reported yet: a stutter, or a recovery.
    pub fn news(&self) -> Option<Option<Stutter>> {
        let changes = Judge(&self.store).changes();
        let reported = self.reported.swap(changes, Ordering::SeqCst);
        // A stutter that ended before any report is not reported.
        ((changes ^ reported) % 2 == 1).then(|| self.stutter())
    }
}
