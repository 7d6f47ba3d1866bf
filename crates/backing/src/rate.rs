//! How fast the backing is written where nobody waits for it: a token bucket for all processes of a pool.
//!
//! The bucket is one word, the instant until which what was written is paid for. Whoever writes a piece moves it on by
//! what the piece costs at the rate, and sleeps until it was before; a commit and a checkpoint at the same time share it. A
//! death loses no more than a piece. Nothing is held for its sake, and as soon as somebody waits the limit is lifted:
//! the rest is written at full speed and costs nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that are paid for at a time.
const PIECE: u64 = 64 << 10;
/// What was not used may be made up for, this much: sleeping is not exact.
const CREDIT: u64 = 50_000_000;
/// More than any piece costs: whoever wrote this has another clock.
const STRAY: u64 = 10_000_000_000;
/// How soon somebody who waits is noticed.
const GLANCE: Duration = Duration::from_millis(1);

/// What a commit or checkpoint is held to, until it ends or somebody waits.
pub struct RateLimit<'a> {
    limit: Option<Limit<'a>>,
    /// Bytes written and not yet paid for.
    owed: u64,
    slept: bool,
}

struct Limit<'a> {
    /// Bytes in a second.
    rate: u64,
    /// The bucket: nanoseconds of the monotonic clock.
    paid: &'a AtomicU64,
    /// Does anybody wait?
    lifted: Box<dyn Fn() -> bool + 'a>,
}

impl<'a> RateLimit<'a> {
    /// No limit.
    pub fn free() -> RateLimit<'a> {
        RateLimit { limit: None, owed: 0, slept: false }
    }

    /// `rate` bytes in a second, until `lifted` says that somebody waits.
    pub fn at(rate: u64, paid: &'a AtomicU64, lifted: impl Fn() -> bool + 'a) -> RateLimit<'a> {
        RateLimit { limit: Some(Limit { rate: rate.max(1), paid, lifted: Box::new(lifted) }), owed: 0, slept: false }
    }

    /// No limit from now on.
    pub fn lift(&mut self) {
        self.limit = None;
    }

    /// Is there no limit, or not any more?
    pub fn is_lifted(&mut self) -> bool {
        if self.limit.as_ref().is_some_and(|limit| (limit.lifted)()) {
            self.lift();
        }
        self.limit.is_none()
    }

    /// Has it held anybody up?
    pub fn has_slept(&self) -> bool {
        self.slept
    }

    /// `bytes` are about to be written. With whatever is needed by others let go of.
    pub fn spend(&mut self, bytes: u64) {
        if self.limit.is_some() {
            self.owed += bytes;
            if self.owed >= PIECE {
                self.pay();
            }
        }
    }

    /// Waits until all is paid for that was written before, by anybody.
    pub fn pay(&mut self) {
        let Some(due) = self.charge() else { return };
        while !self.is_lifted() {
            let left = due.saturating_sub(pram::clock::monotonic());
            if left == 0 {
                return;
            }
            self.slept = true;
            std::thread::sleep(GLANCE.min(Duration::from_nanos(left)));
        }
    }

    /// Takes what is owed from the bucket; until when the piece must wait.
    fn charge(&mut self) -> Option<u64> {
        let owed = std::mem::take(&mut self.owed);
        if self.is_lifted() {
            return None;
        }
        let limit = self.limit.as_ref()?;
        let cost = (u128::from(owed) * 1_000_000_000 / u128::from(limit.rate)) as u64;
        let now = pram::clock::monotonic();
        let from = |paid: u64| if paid > now + STRAY { now } else { paid.max(now.saturating_sub(CREDIT)) };
        let paid = limit.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| Some(from(paid) + cost));
        Some(from(paid.unwrap_or_else(|paid| paid)))
    }
}

impl Drop for RateLimit<'_> {
    /// The last bytes, fewer than a piece, are whoever comes next to wait for.
    fn drop(&mut self) {
        if self.owed > 0 {
            self.charge();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;

    const RATE: u64 = 2 << 20;

    #[test]
    fn all_who_write_share_a_rate() {
        let (paid, start) = (AtomicU64::new(0), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut pace = RateLimit::at(RATE, &paid, || false);
                    (0..RATE / 4).step_by(1 << 10).for_each(|_| pace.spend(1 << 10));
                    assert!(pace.has_slept());
                });
            }
        });
        // Half a second's worth, less the credit and the last pieces.
        assert!(start.elapsed() > Duration::from_millis(350), "{:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }

    #[test]
    fn what_little_commits_write_adds_up() {
        let (paid, start) = (AtomicU64::new(0), Instant::now());
        for _ in 0..100 {
            let mut pace = RateLimit::at(RATE, &paid, || false);
            pace.pay();
            pace.spend(RATE / 200);
        }
        assert!(start.elapsed() > Duration::from_millis(350), "{:?}", start.elapsed());
    }

    #[test]
    fn whoever_waits_lifts_it() {
        let (paid, waits, start) = (AtomicU64::new(0), AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                waits.store(true, Ordering::SeqCst);
            });
            let mut pace = RateLimit::at(1, &paid, || waits.load(Ordering::SeqCst));
            (0..100).for_each(|_| pace.spend(PIECE));
        });
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }

    #[test]
    fn a_stray_clock_stops_nobody() {
        let paid = AtomicU64::new(u64::MAX);
        let start = Instant::now();
        RateLimit::at(RATE, &paid, || false).pay();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}
