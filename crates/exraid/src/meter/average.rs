//! Averages that forget with age, and latencies.

use std::time::Duration;

use super::buckets;
use super::store::{Store, OF_LATENCY};

/// Bytes and seconds of work: those of one horizon ago count 1/e of new ones.
#[derive(Clone, Copy)]
pub struct Average {
    pub horizon: f64,
    pub bytes: f64,
    pub worked: f64,
}

impl Average {
    /// The average after so many seconds, with so many bytes and so many seconds of work in them.
    pub fn passed(self, seconds: f64, bytes: f64, worked: f64) -> Average {
        if seconds <= 0.0 {
            return Average { bytes: self.bytes + bytes, ..self };
        }
        let left = libm::exp(-seconds / self.horizon);
        let weight = self.horizon * (1.0 - left) / seconds;
        Average {
            horizon: self.horizon,
            bytes: self.bytes * left + bytes * weight,
            worked: self.worked * left + worked.min(seconds) * weight,
        }
    }

    /// While nothing happens both sides lose weight alike, until the ratio is unknown.
    pub fn speed(&self) -> Option<f64> {
        (self.worked > 1e-9).then(|| self.bytes / self.worked)
    }

    pub fn load(&self) -> f64 {
        self.bytes / self.horizon
    }
}

/// [Buckets](buckets); behind them, the number of requests in all of them.
const BUCKETS: usize = OF_LATENCY - 1;
/// Requests after which older ones weigh half.
const WINDOW: u64 = 4096;

/// The distribution of the last requests' times.
pub struct Latency<'s> {
    pub store: &'s Store,
    pub at: usize,
}

impl Latency<'_> {
    pub fn add(&self, took: Duration) {
        self.store.add(self.at + buckets::of(took, BUCKETS), 1);
        self.store.add(self.at + BUCKETS, 1);
    }

    /// Called by one thread at a time.
    pub fn age(&self) {
        if self.store.get(self.at + BUCKETS) < WINDOW {
            return;
        }
        let mut left = 0;
        for n in self.at..self.at + BUCKETS {
            let count = self.store.get(n);
            self.store[n].fetch_sub(count / 2, std::sync::atomic::Ordering::SeqCst);
            left += count - count / 2;
        }
        self.store.put(self.at + BUCKETS, left);
    }

    /// The time within which this share of the requests was answered, to a fifth.
    pub fn within(&self, share: f64) -> Duration {
        buckets::within((self.at..self.at + BUCKETS).map(|n| self.store.get(n)), share)
    }
}
