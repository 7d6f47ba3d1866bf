//! The throttle of background work on a region, which keeps it from slowing down others noticeably.
//!
//! A thread declares its requests background work ([`Background`]); all others are foreground. While a region has no
//! foreground request, nor had one a moment ago, the background has all of it. Otherwise it transfers in pieces that
//! keep the region busy for a few milliseconds, one at a time, and between them waits ([`Throttle::wait`]):
//!
//! - long enough to use the region for a quarter of the time: a rotating disk is as slow for others as it is busy;
//! - and long enough to keep to a rate. The rate grows while no request is slowed down, and is halved when one is: when
//!   a piece, or a foreground read, takes several times as long as usual. A device that counts bytes (a throttled one,
//!   a network disk, one with a full cache) is fast until it has been asked for too much; then all wait.
//!
//! It always gets a tenth of the region's speed, within bounds, so it ends under any load. A caller that waits for its
//! end can say so ([`Throttle::unthrottle`]).
//!
//! The decision uses words that all processes of the region share, since the process with foreground requests is
//! usually not the one with background work.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

use super::shared_state::{SharedState, THROTTLE as COUNT};
use crate::device::Kind;
use crate::sys::shared::Words;

/// The background gives way for this long after a foreground request.
const PRESENT: u64 = 250_000;
/// A piece keeps the region busy for about this long; its bytes are within these bounds.
const PIECE: Duration = Duration::from_millis(4);
const LEAST_PIECE: u64 = 64 << 10;
const MOST_PIECE: u64 = 1 << 20;
/// For a region of unknown speed.
const UNKNOWN_PIECE: u64 = 128 << 10;
const UNKNOWN_RATE: u64 = 8 << 20;
/// After a piece, the wait is this many times the time of the piece.
const REST: u64 = 3;
/// The background gets at least the region's speed divided by this, within these bounds.
const FLOOR: u64 = 10;
const FLOORS: std::ops::RangeInclusive<u64> = 1 << 20..=8 << 20;
/// The first rate: the region's speed divided by this, within these bounds.
const FIRST: u64 = 4;
const FIRSTS: std::ops::RangeInclusive<u64> = 4 << 20..=64 << 20;
const MOST_RATE: u64 = 1 << 32;
/// The rate grows by one part in `GROWTH` every `GROWS`, but not within `CALM` after a request was slowed down.
const GROWTH: u64 = 16;
const GROWS: u64 = 100_000;
const CALM: u64 = 300_000;
/// The shortest time between two halvings.
const FALLS: u64 = 100_000;
/// A request is slow if it takes more than this many times the usual time, and this many microseconds in addition.
const SLOW: u64 = 3;
const SLOW_BY: u64 = 4_000;
/// Longer foreground reads are not judged.
const SMALL: u64 = 128 << 10;
/// The usual time follows longer ones slowly: by one part in so many of the difference.
const FOLLOWS: u64 = 64;
/// Waiting threads check again this often.
const GLANCE: Duration = Duration::from_millis(20);
/// The longest wait: a word that demands more is invalid.
const LONGEST: u64 = 2_000_000;

/// Words: the time of the last foreground request or answer; when the background may go on; its rate; when a request
/// was last slowed down, and when the rate last grew; until when nothing waits; the usual times of a piece and of a
/// small foreground read. Times are microseconds of a clock that all processes share.
const SEEN: usize = 0;
const NEXT: usize = 1;
const RATE: usize = 2;
const SLOWED: usize = 3;
const GREW: usize = 4;
const UNTHROTTLED: usize = 5;
const PIECES: usize = 6;
const READS: usize = 7;

thread_local! {
    /// Whether this thread works in the background, and whether it gives way even where the region is not in use.
    static BACKGROUND: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Declares the requests of this thread background work until it is dropped.
#[must_use = "it ends when it is dropped"]
pub struct Background {
    before: Option<bool>,
}

impl Background {
    pub fn begin() -> Background {
        Background { before: BACKGROUND.replace(Some(BACKGROUND.get().unwrap_or(false))) }
    }

    /// Does this thread work in the background?
    pub fn is() -> bool {
        BACKGROUND.get().is_some()
    }

    /// Whether others work beside this thread, even without using a region: they need the processors.
    pub fn set_beside(others: bool) {
        BACKGROUND.set(BACKGROUND.get().map(|_| others));
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        BACKGROUND.set(self.before);
    }
}

/// The throttle of one region; see the [module](self).
pub struct Throttle {
    own: Box<[AtomicU64]>,
    shared: Option<Arc<SharedState>>,
}

/// A request, with its kind of work.
#[derive(Clone, Copy)]
pub struct Seen {
    kind: Kind,
    bytes: u64,
    at: u64,
    is_background: bool,
    beside: bool,
}

/// Microseconds of a clock that all processes share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

impl Throttle {
    pub fn new(shared: Option<Arc<SharedState>>) -> Throttle {
        Throttle { own: Words::own(if shared.is_some() { 0 } else { COUNT }), shared }
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        match &self.shared {
            Some(shared_state) => &shared_state.throttle_words()[n],
            None => &self.own[n],
        }
    }

    fn get(&self, n: usize) -> u64 {
        self.word(n).load(Ordering::Relaxed)
    }

    fn set(&self, n: usize, value: u64) {
        self.word(n).store(value, Ordering::Relaxed);
    }

    pub fn begin(&self, kind: Kind, bytes: u64) -> Seen {
        let (at, how) = (now(), BACKGROUND.get());
        if how.is_none() {
            self.set(SEEN, at);
        }
        Seen { kind, bytes, at, is_background: how.is_some(), beside: how == Some(true) }
    }

    /// Ends it. `delivers`: the speed of the region in bytes per second; 0: unknown.
    pub fn end(&self, seen: Seen, delivers: u64) {
        self.end_at(now(), seen, delivers);
    }

    fn end_at(&self, now: u64, seen: Seen, delivers: u64) {
        let took = now.saturating_sub(seen.at);
        if !seen.is_background {
            self.set(SEEN, now);
            if seen.kind == Kind::Read && seen.bytes <= SMALL && self.is_slow(READS, took) {
                self.slow_down(now, delivers);
            }
            return;
        }
        let transfers = matches!(seen.kind, Kind::Read | Kind::Write);
        if !transfers || !(seen.beside || self.is_used(now)) {
            return;
        }
        let rest = (took * REST).min(seen.bytes.saturating_mul(1_000_000) / floor(delivers)).min(LONGEST);
        self.word(NEXT).fetch_max(now + rest, Ordering::Relaxed);
        // A small request is too short to judge.
        if seen.bytes >= LEAST_PIECE / 2 && self.is_slow(PIECES, took) {
            self.slow_down(now, delivers);
        } else if now.saturating_sub(self.get(GREW)) >= GROWS && now.saturating_sub(self.get(SLOWED)) >= CALM {
            self.set(GREW, now);
            let (rate, reached) = (self.rate(delivers), seen.bytes.saturating_mul(1_000_000) / took.max(1));
            self.set(
                RATE,
                (rate + rate / GROWTH).min(reached.max(floor(delivers))).clamp(rate.min(MOST_RATE), MOST_RATE),
            );
        }
    }

    /// Did a request take several times as long as usual?
    fn is_slow(&self, which: usize, took: u64) -> bool {
        let (took, usual) = (took.max(1), self.get(which));
        let is_slow = usual > 0 && took > usual * SLOW + SLOW_BY;
        self.set(which, if usual == 0 || took < usual { took } else { usual + (took - usual).div_ceil(FOLLOWS) });
        is_slow
    }

    fn slow_down(&self, now: u64, delivers: u64) {
        if now.saturating_sub(self.get(SLOWED)) >= FALLS {
            self.set(SLOWED, now);
            self.set(RATE, (self.rate(delivers) / 2).max(floor(delivers)));
        }
    }

    /// The rate beside others, in bytes per second.
    fn rate(&self, delivers: u64) -> u64 {
        match (self.get(RATE), delivers) {
            (0, 0) => UNKNOWN_RATE,
            (0, delivers) => (delivers / FIRST).clamp(*FIRSTS.start(), *FIRSTS.end()),
            (rate, _) => rate.max(floor(delivers)),
        }
    }

    /// Does the region have foreground requests?
    pub fn is_used(&self, now: u64) -> bool {
        let seen = self.get(SEEN);
        seen != 0 && now.saturating_sub(seen) < PRESENT
    }

    /// Bytes that the background should transfer at a time.
    pub fn piece(&self, delivers: u64) -> u64 {
        if !(BACKGROUND.get() == Some(true) || self.is_used(now())) {
            return MOST_PIECE;
        }
        let bytes = match delivers {
            0 => UNKNOWN_PIECE,
            delivers => delivers / (1000 / PIECE.as_millis() as u64),
        };
        bytes.clamp(LEAST_PIECE, MOST_PIECE) / LEAST_PIECE * LEAST_PIECE
    }

    /// Waits until the background may transfer so many bytes, and tells whether others use the region. In a foreground
    /// thread it does not wait.
    pub fn wait(&self, bytes: u64, delivers: u64) -> bool {
        let Some(beside) = BACKGROUND.get() else { return false };
        while let Some(left) = self.left(now(), beside, bytes, delivers) {
            std::thread::sleep(left.min(GLANCE));
        }
        beside || self.is_used(now())
    }

    /// The remaining wait; `None`: it may go on.
    fn left(&self, now: u64, beside: bool, bytes: u64, delivers: u64) -> Option<Duration> {
        if self.get(UNTHROTTLED) > now || !(beside || self.is_used(now)) {
            return None;
        }
        let next = self.get(NEXT);
        if next > now && next - now <= LONGEST {
            return Some(Duration::from_micros(next - now));
        }
        let after = now + (bytes.saturating_mul(1_000_000) / self.rate(delivers)).min(LONGEST);
        let taken = self.word(NEXT).compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_err().then_some(Duration::ZERO)
    }

    /// Lifts the throttle for that time: somebody waits for the background work.
    pub fn unthrottle(&self, time: Duration) {
        let until = now() + (time.as_micros() as u64).min(LONGEST);
        self.word(UNTHROTTLED).fetch_max(until, Ordering::Relaxed);
    }
}

/// The least speed of the background, in bytes per second.
fn floor(delivers: u64) -> u64 {
    (delivers / FLOOR).clamp(*FLOORS.start(), *FLOORS.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000;

    fn foreground(throttle: &Throttle, at: u64, took: u64, delivers: u64) {
        throttle.set(SEEN, at);
        let seen = Seen { kind: Kind::Read, bytes: 4096, at, is_background: false, beside: false };
        throttle.end_at(at + took, seen, delivers);
    }

    /// Runs background work for some seconds beside reads of 4 KiB every two milliseconds. `takes`: the microseconds
    /// that the device takes at a time for so many bytes. Returns the bytes transferred.
    fn beside(throttle: &Throttle, delivers: u64, seconds: u64, takes: &mut dyn FnMut(u64, u64) -> u64) -> u64 {
        let (mut now, mut done, bytes) = (SECOND, 0, 256 << 10);
        while now < (1 + seconds) * SECOND {
            throttle.set(SEEN, now);
            match throttle.left(now, false, bytes, delivers) {
                Some(left) => now += (left.as_micros() as u64).clamp(1, 2000),
                None => {
                    let seen = Seen { kind: Kind::Read, bytes, at: now, is_background: true, beside: false };
                    now += takes(now, bytes);
                    throttle.end_at(now, seen, delivers);
                    done += bytes;
                }
            }
        }
        done
    }

    #[test]
    fn alone_it_has_all_and_waits_for_nothing() {
        let throttle = Throttle::new(None);
        assert_eq!(throttle.left(5 * SECOND, false, MIB, 0), None);
        foreground(&throttle, 5 * SECOND, 100, 0);
        assert_eq!(throttle.left(5 * SECOND + 1000, false, MIB, 0), None, "the first piece");
        assert!(throttle.left(5 * SECOND + 2000, false, MIB, 0).is_some(), "and then it waits");
        assert_eq!(throttle.left(6 * SECOND, false, MIB, 0), None, "until nobody was seen for a while");
        assert_eq!(throttle.left(6 * SECOND + 1, true, MIB, 0), None);
        assert!(throttle.left(6 * SECOND + 2, true, MIB, 0).is_some(), "others are at work elsewhere");
    }

    /// A rotating disk: 10 ms for 256 KiB.
    #[test]
    fn a_busy_disk_is_had_for_a_quarter_of_the_time_at_most() {
        let throttle = Throttle::new(None);
        let done = beside(&throttle, 150 * MIB, 10, &mut |_, _| 10_000);
        let share = (done / (256 << 10)) as f64 * 0.01 / 10.0;
        assert!((0.1..=0.26).contains(&share), "{share}");
    }

    /// The device takes 60 MB per second as fast as memory, and then nothing until the next second.
    #[test]
    fn what_a_throttle_lets_pass_is_found_and_kept_to() {
        const RATE: u64 = 60_000_000;
        let (throttle, mut tokens, mut at, mut stalls) = (Throttle::new(None), 6e6, SECOND, 0u32);
        let done = beside(&throttle, 400 * MIB, 20, &mut |now, bytes| {
            tokens = f64::min(6e6, tokens + (now - at) as f64 * 1e-6 * RATE as f64) - bytes as f64;
            at = now;
            stalls += u32::from(tokens < 0.0);
            if tokens < 0.0 {
                20_000 + (-tokens / RATE as f64 * 1e6) as u64
            } else {
                200
            }
        });
        let share = done as f64 / (20 * RATE) as f64;
        assert!((0.2..=1.0).contains(&share), "{share} of what it lets pass");
        assert!(stalls <= 20 * 3, "{stalls} times in 20 seconds somebody was slowed down");
    }

    /// Each piece takes seconds.
    #[test]
    fn it_never_starves() {
        let throttle = Throttle::new(None);
        let done = beside(&throttle, 20 * MIB, 60, &mut |now, _| if now < 3 * SECOND { 1000 } else { 100_000 });
        assert!(done >= 30 * MIB, "{} MiB in a minute", done / MIB);
        throttle.unthrottle(Duration::from_secs(1));
        throttle.set(SEEN, now());
        assert_eq!(throttle.left(now(), true, MIB, 20 * MIB), None, "and not at all where it is waited for");
    }

    #[test]
    fn a_word_that_nobody_meant_delays_nobody_for_long() {
        let throttle = Throttle::new(None);
        (0..COUNT).for_each(|n| throttle.set(n, u64::MAX));
        throttle.set(UNTHROTTLED, 0);
        throttle.set(SEEN, 5 * SECOND);
        assert_eq!(throttle.left(5 * SECOND, false, MIB, 0), None);
    }

    #[test]
    fn a_thread_says_that_it_works_in_the_background() {
        assert!(!Background::is());
        {
            let _outer = Background::begin();
            Background::set_beside(true);
            drop(Background::begin());
            assert!(Background::is());
            let throttle = Throttle::new(None);
            throttle.begin(Kind::Read, 4096);
            assert_eq!(throttle.get(SEEN), 0);
            assert!(throttle.piece(20 * MIB) < MOST_PIECE && throttle.piece(0) == UNKNOWN_PIECE);
        }
        assert!(!Background::is());
        let throttle = Throttle::new(None);
        throttle.begin(Kind::Write, 4096);
        assert!(throttle.is_used(now()));
    }
}
