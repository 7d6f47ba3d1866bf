//! The budget of background work: bytes per second, or a share of one processor. The work rests between its pieces.
//!
//! The budget is an instant of the monotonic clock until which all work is paid for. Each piece of work moves the
//! instant on by its cost, and the work rests while the instant is ahead of the clock. Processes may share the instant
//! as a word: a process that dies loses one piece at most. No lock is held during a rest. A rest ends early when
//! somebody waits for the work or when the work is to stop: then the budget ends too, and the remaining work costs
//! nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

use crate::clock::{monotonic, Clock};

/// Bytes, and processor time, that are paid for together.
const PIECE: u64 = 64 << 10;
const TIME: Duration = Duration::from_millis(4);
/// Unused nanoseconds that may be made up for: sleeping is not exact.
const CREDIT: u64 = 50_000_000;
/// A shared word more nanoseconds ahead than this was written by another clock. No piece costs more than half of it.
const STRAY: u64 = 10_000_000_000;

/// Sleeps for the given time, and returns false at once when the rest is to end. A time of zero only asks.
pub type Rest<'a> = Box<dyn FnMut(Duration) -> bool + 'a>;

/// A [`Rest`] that asks every `glance` whether to go on.
pub fn looking<'a>(glance: Duration, mut go_on: impl FnMut() -> bool + 'a) -> Rest<'a> {
    Box::new(move |time| {
        let until = monotonic() + time.as_nanos() as u64;
        while go_on() {
            match until.saturating_sub(monotonic()) {
                0 => return true,
                left => std::thread::sleep(Duration::from_nanos(left).min(glance)),
            }
        }
        false
    })
}

/// See the [module](self). One thread uses it.
pub struct Budget<'a> {
    limit: Limit<'a>,
    clock: Clock,
    rest: Rest<'a>,
    /// Bytes that are not paid for yet.
    owed: u64,
    rested: bool,
}

enum Limit<'a> {
    None,
    /// Bytes in a second, and the instant until which those of a piece of work are paid for.
    Bytes(u64, u64),
    /// The same of several processes.
    Shared(u64, &'a AtomicU64),
    /// Percent of a processor, until when its time is paid for, and the processor time of this thread then.
    Processor(u32, u64, Duration),
}

/// The processor time of this thread.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

impl<'a> Budget<'a> {
    fn new(limit: Limit<'a>, clock: &Clock, rest: Rest<'a>) -> Budget<'a> {
        Budget { limit, clock: clock.clone(), rest, owed: 0, rested: false }
    }

    /// No limit.
    pub fn unlimited() -> Budget<'a> {
        Budget::pieces(&Clock::default(), Box::new(|_| true))
    }

    /// No limit but the one that each piece of work [begins](Budget::begin) with.
    pub fn pieces(clock: &Clock, rest: Rest<'a>) -> Budget<'a> {
        Budget::new(Limit::None, clock, rest)
    }

    /// `rate` bytes in a second, with all others that share `paid`.
    pub fn shared(rate: u64, paid: &'a AtomicU64, clock: &Clock, rest: Rest<'a>) -> Budget<'a> {
        Budget::new(Limit::Shared(rate.max(1), paid), clock, rest)
    }

    /// `share` percent of one processor, 1 to 100, by this thread.
    pub fn processor(share: u32, clock: &Clock, rest: Rest<'a>) -> Budget<'a> {
        Budget::new(Limit::Processor(share.clamp(1, 100), clock.monotonic(), used()), clock, rest)
    }

    /// A piece of work begins, for which so many bytes in a second are to be spent; 0: no limit.
    pub fn begin(&mut self, rate: u64) {
        self.owed = 0;
        self.limit = if rate == 0 { Limit::None } else { Limit::Bytes(rate, self.clock.monotonic()) };
    }

    /// `bytes` were spent while the caller holds something that others need: the rest comes later.
    pub fn add(&mut self, bytes: u64) {
        self.owed += bytes;
    }

    /// `bytes` are about to be spent. The caller holds nothing that others need.
    pub fn spend(&mut self, bytes: u64) {
        self.add(bytes);
        if self.owed >= PIECE {
            self.rest(Duration::ZERO);
        }
    }

    /// Called between two pieces of work on a share of a processor; false if the work is to stop.
    pub fn turn(&mut self) -> bool {
        match self.limit {
            Limit::Processor(_, _, began) if used().saturating_sub(began) < TIME => self.goes_on(),
            _ => self.rest(Duration::ZERO),
        }
    }

    /// Is the work to go on?
    pub fn goes_on(&mut self) -> bool {
        self.rest_for(Duration::ZERO)
    }

    fn rest_for(&mut self, time: Duration) -> bool {
        let goes_on = (self.rest)(time);
        if !goes_on {
            self.lift();
        }
        goes_on
    }

    /// No limit from now on.
    pub fn lift(&mut self) {
        self.limit = Limit::None;
    }

    /// Is there no limit, or no longer one?
    pub fn is_lifted(&mut self) -> bool {
        !self.goes_on() || matches!(self.limit, Limit::None)
    }

    /// Has the budget made the work rest?
    pub fn has_rested(&self) -> bool {
        self.rested
    }

    /// Rests until the spent bytes or time are paid for, but at least `least`; false if the work is to stop.
    pub fn rest(&mut self, least: Duration) -> bool {
        if !self.goes_on() {
            return false;
        }
        let left = self.charge().max(least);
        if left.is_zero() {
            return true;
        }
        self.rested = true;
        self.rest_for(left)
    }

    /// Pays for the owed bytes or time; returns how long to rest. Under a shared limit, the next charge rests for this
    /// one.
    fn charge(&mut self) -> Duration {
        let (now, owed) = (self.clock.monotonic(), std::mem::take(&mut self.owed));
        let cost = |rate: u64| (u128::from(owed) * 1_000_000_000 / u128::from(rate)) as u64;
        let until = match &mut self.limit {
            Limit::None => now,
            Limit::Bytes(rate, paid) => {
                *paid = paid.saturating_add(cost(*rate));
                *paid
            }
            Limit::Shared(rate, paid) => {
                let from = |paid: u64| if paid > now + STRAY { now } else { paid.max(now.saturating_sub(CREDIT)) };
                let charge = |paid| Some(from(paid).saturating_add(cost(*rate).min(STRAY / 2)));
                let before = paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge);
                from(before.unwrap_or_else(|paid| paid))
            }
            Limit::Processor(share, paid, began) => {
                let used = used();
                let worked = used.saturating_sub(std::mem::replace(began, used)).as_nanos() as u64;
                *paid = (*paid).max(now.saturating_sub(CREDIT)) + worked * 100 / u64::from(*share);
                *paid
            }
        };
        Duration::from_nanos(until.saturating_sub(now))
    }
}

impl Drop for Budget<'_> {
    /// Charges the last bytes, fewer than a piece; the next process rests for them.
    fn drop(&mut self) {
        if self.owed > 0 && matches!(self.limit, Limit::Shared(..)) && self.goes_on() {
            self.charge();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 2 << 20;
    const SECOND: u64 = 1_000_000_000;

    /// A rest that moves the clock instead.
    fn moving(clock: &Clock) -> Rest<'static> {
        let clock = clock.clone();
        Box::new(move |time| {
            clock.advance(time);
            true
        })
    }

    /// Seconds of `clock` that `work` takes.
    fn seconds(clock: &Clock, work: impl FnOnce()) -> f64 {
        let start = clock.monotonic();
        work();
        (clock.monotonic() - start) as f64 / SECOND as f64
    }

    #[test]
    fn all_who_write_share_a_rate() {
        let (paid, clock) = (AtomicU64::new(0), Clock::default());
        let took = seconds(&clock, || {
            let mut both = [0, 1].map(|_| Budget::shared(RATE, &paid, &clock, moving(&clock)));
            (0..RATE / 4).step_by(1 << 10).for_each(|_| both.iter_mut().for_each(|budget| budget.spend(1 << 10)));
            assert!(both.iter().all(Budget::has_rested));
        });
        // Half a second's worth, less the credit and the last pieces.
        assert!((0.35..0.6).contains(&took), "{took}");
    }

    #[test]
    fn what_little_is_spent_adds_up() {
        let (paid, clock) = (AtomicU64::new(0), Clock::default());
        let took = seconds(&clock, || {
            for _ in 0..100 {
                let mut budget = Budget::shared(RATE, &paid, &clock, moving(&clock));
                budget.rest(Duration::ZERO);
                budget.spend(RATE / 200);
            }
        });
        assert!((0.35..0.6).contains(&took), "{took}");
    }

    #[test]
    fn where_a_rest_ends_early_there_is_no_limit_any_more() {
        let (paid, clock) = (AtomicU64::new(0), Clock::default());
        let mut rests = 0;
        let rest = Box::new(|time: Duration| {
            rests += u32::from(!time.is_zero());
            rests < 3
        });
        let mut budget = Budget::shared(1, &paid, &clock, rest);
        (0..100).for_each(|_| budget.spend(PIECE));
        assert!(budget.has_rested() && budget.is_lifted());
        drop(budget);
        assert_eq!(rests, 3);
    }

    #[test]
    fn a_stray_clock_stops_nobody() {
        let (paid, clock) = (AtomicU64::new(u64::MAX), Clock::default());
        let mut budget = Budget::shared(RATE, &paid, &clock, moving(&clock));
        assert!(budget.rest(Duration::ZERO) && !budget.has_rested());
    }

    #[test]
    fn a_piece_may_take_what_it_costs_and_leaves_nothing_behind() {
        let clock = Clock::default();
        let mut budget = Budget::pieces(&clock, moving(&clock));
        for (piece, least) in [(0.0, 0.5), (0.3, 0.2), (0.7, 0.002)] {
            budget.begin(RATE);
            clock.advance(Duration::from_secs_f64(piece));
            budget.add(RATE / 2);
            let took = seconds(&clock, || assert!(budget.rest(Duration::from_millis(2))));
            assert!((least - 0.01..least + 0.1).contains(&took), "{took} after {piece}");
        }
        budget.begin(0);
        budget.add(RATE);
        assert!(seconds(&clock, || assert!(budget.rest(Duration::ZERO))) < 0.1);
    }

    #[test]
    fn it_takes_its_share_of_a_processor() {
        let clock = Clock::default();
        let work = |share: u32| {
            let (mut budget, begun) = (Budget::processor(share, &clock, moving(&clock)), used());
            let took = seconds(&clock, || {
                while used() - begun < Duration::from_millis(100) {
                    std::hint::black_box((0..1000u64).sum::<u64>());
                    assert!(budget.turn());
                }
            });
            drop(budget);
            took
        };
        // Four times as long as it works, less the credit and the last piece. It may wait for a processor meanwhile.
        let took = work(25);
        assert!(took > 0.32, "{took}");
        let took = work(10);
        assert!(took > 0.9, "{took}");
    }

    #[test]
    fn a_rest_that_looks_ends_when_it_is_not_to_go_on() {
        let mut looks = 0;
        let mut rest = looking(Duration::from_millis(1), || {
            looks += 1;
            looks < 5
        });
        assert!(rest(Duration::ZERO) && !rest(Duration::from_secs(1000)));
        drop(rest);
        assert_eq!(looks, 5);
    }
}
