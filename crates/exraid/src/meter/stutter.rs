//! A disk that slows down (*fail-stutter*), distinguished from one with many requests.
//!
//! The time of a request counts from the answer before it, or from its own start if that is later. So waiting behind
//! others counts for the others, and the times of all requests add up to the time in which the disk worked. Long-term
//! times are learned per kind of request: a *cell* for each direction, power of two of bytes, number of requests under
//! way, and for requests that go on where the last one ended. For a kind with few requests, other kinds give an upper
//! bound. A larger request takes no less, and no more than in proportion to its bytes. More at a time take no longer
//! each; one alone takes at most as many times as long as one of several. Going on takes no longer than going
//! elsewhere.
//!
//! Each *window* of half a second compares the times of its requests with the usual times of the same requests. The
//! ratio is 1 for a disk with a long queue, or with another mixture of small and large requests than before; it is five
//! where the disk delivers a fifth of its former speed. A disk that idles has no windows.
//!
//! | the verdict | when |
//! | --- | --- |
//! | it stutters | [`WINDOWS`] windows with [`SLOW`] times the usual times, over [`PATIENCE`], and hardly any normal one between; and its peers have not become as slow |
//! | it is well again | [`WELL_WINDOWS`] windows at no more than [`WELL`] times, with those before them at half their weight each, over [`WELL_PATIENCE`] |
//!
//! Not judged, and why:
//! - the first [`LEARNING`] of work, and kinds of fewer than [`KNOWN`] requests: nothing is known;
//! - the first request after a [`REST`]: a disk that sleeps wakes up;
//! - [`SLACK`] of each request: the machine itself may take an answer late;
//! - a window in which no request ended: their age shows a disk that does not answer.
//!
//! So a machine that stands still for a second makes one window slow, and a verdict needs five. Slow times are hardly
//! learned; after [`SLOW_MEMORY`] of work they are the usual ones. A kind of requests seen for the first time while the
//! disk stutters counts as slowed down like all others; otherwise the disk would look well as soon as smaller requests
//! came.

use std::sync::atomic::Ordering;

use super::store::{Store, CELLS, VERDICT};

/// Multiples of the usual time: at least this for a stuttering disk, at most this for a normal one, at most this for a
/// recovered one.
const SLOW: f64 = 2.5;
const FAIR: f64 = 1.67;
const WELL: f64 = 1.43;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
const WINDOW: u64 = SECOND / 2;
const WINDOWS: u64 = 5;
const PATIENCE: u64 = 4 * SECOND;
/// Requests and time of work in the slow windows together.
const REQUESTS: u64 = 6;
const WORK: u64 = SECOND;
/// Windows further apart do not belong together.
const APART: u64 = 30 * SECOND;
const WELL_WINDOWS: u64 = 2;
const WELL_PATIENCE: u64 = 3 * SECOND;
const LEARNING: u64 = 5 * SECOND;
const KNOWN: u64 = 24;
/// The bytes from which a request alone gets most of the disk's speed, and how many times that speed several together
/// have at most.
const LARGE: u64 = 1 << 20;
const TOGETHER: f64 = 1.5;
/// A normal window cancels so many slow ones.
const BACK: u64 = 2;
/// A request of a new kind while it stutters counts as so many.
const IN_NEED: u64 = 8;
pub const REST: u64 = 10 * SECOND;
const SLACK: f64 = 2e6;
/// Work after which older knowledge counts 1/e; the second for slow times.
const MEMORY: f64 = 600.0 * SECOND as f64;
const SLOW_MEMORY: f64 = 6.0 * 3600.0 * SECOND as f64;
/// A single request counts as at most so many times the usual time in learning.
const OUTLIER: f64 = 4.0;
/// The cause is a common one if the peers' median is at least this part of its ratio.
const ALIKE: f64 = 0.6;
/// The time for which a peer's last window counts.
const FRESH: u64 = 5 * SECOND;

/// Powers of two of bytes from 4 KiB on, and classes of numbers under way.
const SIZES: usize = 13;
const DEPTHS: usize = 4;
const _: () = assert!(CELLS + 2 * SIZES * DEPTHS * 2 * 2 <= VERDICT);

const LEARNED: usize = VERDICT;
const START: usize = VERDICT + 1;
/// Sums of the window: its requests' times and usual times, in nanoseconds; bytes; requests; requests under way at each
/// end.
const TOOK: usize = VERDICT + 2;
const SUMS: usize = 5;
/// The same of the slow windows together, in the same order.
const SLOW_TOOK: usize = TOOK + SUMS;
const SLOW_WINDOWS: usize = SLOW_TOOK + SUMS;
const SLOW_SINCE: usize = SLOW_WINDOWS + 1;
const SLOW_LAST: usize = SLOW_SINCE + 1;
const WELL_SEEN: usize = SLOW_LAST + 1;
const WELL_SINCE: usize = WELL_SEEN + 1;
/// The last window: its ratio, and its time.
const LAST: usize = WELL_SINCE + 1;
const LAST_WHEN: usize = LAST + 1;
/// Changes of the verdict; odd while it stutters.
const CHANGES: usize = LAST_WHEN + 1;
/// Time of day in seconds; bytes per second, now and before; requests under way.
const SINCE: usize = CHANGES + 1;
const DELIVERS: usize = SINCE + 1;
const USED_TO: usize = DELIVERS + 1;
const DEPTH: usize = USED_TO + 1;
/// While it stutters: times and usual times; each window halves the earlier sums.
const LATELY_TOOK: usize = DEPTH + 1;
const LATELY_USUAL: usize = LATELY_TOOK + 1;
const _: () = assert!(LATELY_USUAL < super::shared::WORDS - 1);

/// A disk that delivers much less than before for the same requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stutter {
    /// Seconds since 1970.
    pub since: u64,
    /// Bytes per second of work, now, and before for the same requests.
    pub delivers: f64,
    pub used_to: f64,
    /// The mean number of requests under way.
    pub under_way: f64,
}

impl std::fmt::Display for Stutter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = |bytes: f64| match bytes / 1e6 {
            mb if mb >= 10.0 => format!("{mb:.0}"),
            mb => format!("{mb:.1}"),
        };
        let (now, before, depth) = (rate(self.delivers), rate(self.used_to), self.under_way.round().max(1.0));
        let requests = if depth == 1.0 { "request" } else { "requests" };
        write!(f, "{now} MB/s where it used to deliver {before}, at {depth:.0} {requests} under way")
    }
}

/// A request that succeeded.
#[derive(Clone, Copy)]
pub struct Ended {
    pub way: usize,
    pub bytes: u64,
    /// Nanoseconds since its start, or since the answer before.
    pub took: u64,
    /// Requests under way, with this one.
    pub depth: u64,
    pub goes_on: bool,
    /// It came after a [`REST`] of the disk.
    pub wakes: bool,
}

/// The usual time of requests of a kind.
#[derive(Clone, Copy)]
struct Cell {
    nanos: f32,
    bytes: f32,
    seen: u64,
}

/// Judges one device by the words of its [`Store`].
pub struct Judge<'s>(pub &'s Store);

fn depth_of(under_way: u64) -> usize {
    (under_way.max(1).ilog2() as usize).min(DEPTHS - 1)
}

fn place(way: usize, size: usize, depth: usize, goes_on: bool) -> usize {
    ((way * SIZES + size) * DEPTHS + depth) * 2 + usize::from(goes_on)
}

fn cell_of(ended: &Ended) -> usize {
    let size = (ended.bytes.max(4096).ilog2() as usize - 12).min(SIZES - 1);
    CELLS + 2 * place(ended.way, size, depth_of(ended.depth), ended.goes_on)
}

impl Judge<'_> {
    fn cell(&self, at: usize) -> Cell {
        let word = self.0.get(at);
        Cell {
            nanos: f32::from_bits(word as u32),
            bytes: f32::from_bits((word >> 32) as u32),
            seen: self.0.get(at + 1),
        }
    }

    fn put_cell(&self, at: usize, cell: Cell) {
        self.0.put(at, u64::from(cell.nanos.to_bits()) | u64::from(cell.bytes.to_bits()) << 32);
        self.0.put(at + 1, cell.seen);
    }

    pub fn is_stuttering(&self) -> bool {
        self.0.get(CHANGES) % 2 == 1
    }

    pub fn changes(&self) -> u64 {
        self.0.get(CHANGES)
    }

    /// Counts a request in the window, and learns from it.
    pub fn ended(&self, ended: &Ended) {
        if ended.wakes {
            return;
        }
        let at = cell_of(ended);
        let cell = self.cell(at);
        let took = ended.took as f64;
        self.0.add(LEARNED, ended.took);
        if cell.seen < KNOWN {
            let share = |counts: u64| counts as f64 / (cell.seen + counts) as f64;
            if self.is_stuttering() {
                let factor = (self.0.real(USED_TO) / self.0.real(DELIVERS).max(1.0)).max(1.0);
                return self.learn(at, cell, took / factor, ended.bytes, share(IN_NEED), IN_NEED);
            }
            let Some(most) = self.most(ended) else { return self.learn(at, cell, took, ended.bytes, share(1), 1) };
            self.count(ended, most);
            return self.learn(at, cell, took.min(most * FAIR), ended.bytes, share(1), 1);
        }
        // At most in proportion to the bytes, and at least as much as smaller ones.
        let usual = f64::from(cell.nanos) * (ended.bytes as f64 / f64::from(cell.bytes)).max(1.0);
        self.count(ended, usual);
        let learned = took.min(usual * OUTLIER);
        let is_slow = self.is_stuttering() || self.0.real(LAST) > FAIR;
        let share = if is_slow { took / SLOW_MEMORY } else { (1.0 / (cell.seen + 1) as f64).max(learned / MEMORY) };
        self.learn(at, cell, learned, ended.bytes, share.min(1.0), 1);
    }

    fn count(&self, ended: &Ended, usual: f64) {
        let counts = [ended.took, usual as u64, ended.bytes, 1, ended.depth];
        counts.into_iter().enumerate().for_each(|(n, much)| self.0.add(TOOK + n, much));
    }

    /// The most time for a request, by the known kinds.
    fn most(&self, ended: &Ended) -> Option<f64> {
        let depth = depth_of(ended.depth);
        let cells = (0..SIZES * DEPTHS * 2).map(|n| {
            let (size, of, goes_on) = (n / (DEPTHS * 2), n / 2 % DEPTHS, n % 2 == 1);
            (CELLS + 2 * place(ended.way, size, of, goes_on), of, goes_on)
        });
        let bounds = cells.filter(|(_, _, goes_on)| ended.goes_on || !goes_on).filter_map(|(at, of, _)| {
            let cell = self.cell(at);
            let alone = (1u64 << of.saturating_sub(depth)) as f64;
            let alone = if ended.bytes >= LARGE { alone.min(TOGETHER) } else { alone };
            let bytes = (ended.bytes as f64 / f64::from(cell.bytes)).max(1.0);
            (cell.seen >= KNOWN).then(|| f64::from(cell.nanos) * bytes * alone)
        });
        bounds.reduce(f64::min)
    }

    fn learn(&self, at: usize, cell: Cell, took: f64, bytes: u64, share: f64, counts: u64) {
        let toward = |had: f32, new: f64| (f64::from(had) + (new - f64::from(had)) * share) as f32;
        let (nanos, bytes) = (toward(cell.nanos, took), toward(cell.bytes, bytes as f64));
        self.put_cell(at, Cell { nanos, bytes, seen: cell.seen.saturating_add(counts) });
    }

    /// Ends the window, if it is due; called by one thread at a time. False: it goes on. `clock` is the time of day.
    pub fn look(&self, now: u64, clock: u64) -> bool {
        let start = self.0.get(START);
        if now.saturating_sub(start) < WINDOW {
            return false;
        }
        let requests = self.0.get(TOOK + 3);
        self.0.put(START, now);
        if requests == 0 {
            return false;
        }
        let sums: [u64; SUMS] = std::array::from_fn(|n| self.0[TOOK + n].swap(0, Ordering::SeqCst));
        let [took, usual, bytes, requests, depth] = sums.map(|sum| sum as f64);
        if requests == 0.0 || took == 0.0 {
            return false;
        }
        let times = took / (usual + SLACK * requests);
        self.0.put_real(LAST, times);
        self.0.put(LAST_WHEN, now);
        match self.is_stuttering() {
            false => self.count_slow(&sums, times, start.max(now.saturating_sub(2 * WINDOW)), now, clock),
            true => {
                for (word, new) in [(DELIVERS, bytes / took * 1e9), (USED_TO, bytes / usual.max(1.0) * 1e9)] {
                    self.0.put_real(word, self.0.real(word) * 0.7 + new * 0.3);
                }
                self.0.put_real(DEPTH, self.0.real(DEPTH) * 0.7 + depth / requests * 0.3);
                // There may be few requests: a single early or late one must not decide.
                self.0.put_real(LATELY_TOOK, self.0.real(LATELY_TOOK) / 2.0 + took);
                self.0.put_real(LATELY_USUAL, self.0.real(LATELY_USUAL) / 2.0 + usual + SLACK * requests);
                self.count_well(self.0.real(LATELY_TOOK) / self.0.real(LATELY_USUAL), start, now);
            }
        }
        true
    }

    fn count_slow(&self, sums: &[u64; SUMS], times: f64, start: u64, now: u64, clock: u64) {
        let seen = self.0.get(SLOW_WINDOWS);
        if now.saturating_sub(self.0.get(SLOW_LAST)) > APART {
            self.0.put(SLOW_WINDOWS, 0);
        } else if times <= FAIR {
            self.0.put(SLOW_WINDOWS, seen.saturating_sub(BACK));
        }
        if times < SLOW || self.0.get(LEARNED) < LEARNING {
            return;
        }
        if self.0.get(SLOW_WINDOWS) == 0 {
            (0..SUMS).for_each(|n| self.0.put(SLOW_TOOK + n, 0));
            self.0.put(SLOW_SINCE, start);
            self.0.put(SINCE, clock.saturating_sub(now.saturating_sub(start) / SECOND));
        }
        sums.iter().enumerate().for_each(|(n, sum)| self.0.add(SLOW_TOOK + n, *sum));
        self.0.add(SLOW_WINDOWS, 1);
        self.0.put(SLOW_LAST, now);
    }

    fn count_well(&self, times: f64, start: u64, now: u64) {
        if times > FAIR {
            return self.0.put(WELL_SEEN, 0);
        }
        if times > WELL {
            return;
        }
        if self.0.get(WELL_SEEN) == 0 {
            self.0.put(WELL_SINCE, start);
        }
        self.0.add(WELL_SEEN, 1);
        if self.0.get(WELL_SEEN) >= WELL_WINDOWS && now.saturating_sub(self.0.get(WELL_SINCE)) >= WELL_PATIENCE {
            self.0.put(SLOW_WINDOWS, 0);
            self.0.add(CHANGES, 1);
        }
    }

    /// Has it been slow for long enough?
    pub fn is_suspect(&self, now: u64) -> bool {
        !self.is_stuttering()
            && self.0.get(SLOW_WINDOWS) >= WINDOWS
            && now.saturating_sub(self.0.get(SLOW_SINCE)) >= PATIENCE
            && self.0.get(SLOW_TOOK) >= WORK
            && self.0.get(SLOW_TOOK + 3) >= REQUESTS
    }

    /// The ratio of the last window; none where that is old or unknown.
    pub fn times(&self, now: u64) -> Option<f64> {
        let when = self.0.get(LAST_WHEN);
        (when > 0 && now.saturating_sub(when) <= FRESH).then(|| self.0.real(LAST))
    }

    /// Decides on a disk that [is suspect](Self::is_suspect), given the ratios of its peers. True: it stutters.
    pub fn accuse(&self, peers: &mut [f64]) -> bool {
        let [took, usual, bytes, requests, depth]: [f64; SUMS] =
            std::array::from_fn(|n| self.0.get(SLOW_TOOK + n) as f64);
        let times = took / (usual + SLACK * requests);
        peers.sort_by(f64::total_cmp);
        if peers.get(peers.len() / 2).is_some_and(|median| *median >= times * ALIKE) {
            return false;
        }
        let before = self.0.get(CHANGES);
        if before % 2 == 1 {
            return false;
        }
        self.0.put_real(DELIVERS, bytes / took * 1e9);
        self.0.put_real(USED_TO, bytes / usual.max(1.0) * 1e9);
        self.0.put_real(DEPTH, depth / requests.max(1.0));
        self.0.put(WELL_SEEN, 0);
        // The mean of the slow windows counts as one.
        self.0.put_real(LATELY_TOOK, took / WINDOWS as f64);
        self.0.put_real(LATELY_USUAL, usual / WINDOWS as f64);
        self.0[CHANGES].compare_exchange(before, before + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub fn stutter(&self) -> Option<Stutter> {
        self.is_stuttering().then(|| Stutter {
            since: self.0.get(SINCE),
            delivers: self.0.real(DELIVERS),
            used_to: self.0.real(USED_TO),
            under_way: self.0.real(DEPTH),
        })
    }
}
