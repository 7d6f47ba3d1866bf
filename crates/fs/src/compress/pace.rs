//! A share of one processor: who works for a while then sleeps as long as it takes.

use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

/// Work is cut in pieces of so long.
const PIECE: Duration = Duration::from_millis(4);

/// Keeps one thread to its share, in percent of one processor, 1 to 100.
pub struct Pace {
    share: u32,
    began: Duration,
}

/// The processor time of this thread.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

impl Pace {
    pub fn new(share: u32) -> Pace {
        Pace { share: share.clamp(1, 100), began: used() }
    }

    /// How long to sleep now: nothing while the piece lasts.
    pub fn rest(&mut self) -> Option<Duration> {
        let worked = used().saturating_sub(self.began);
        if worked < PIECE {
            return None;
        }
        self.began = used();
        Some(worked * (100 - self.share) / self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_its_share() {
        let work = |pace: &mut Pace| loop {
            std::hint::black_box((0..1000u64).sum::<u64>());
            if let Some(rest) = pace.rest() {
                return rest;
            }
        };
        let quarter = work(&mut Pace::new(25));
        assert!(quarter >= PIECE * 3 && quarter < PIECE * 300, "{quarter:?}");
        assert_eq!(work(&mut Pace::new(100)), Duration::ZERO);
    }
}
