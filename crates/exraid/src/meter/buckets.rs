//! Times counted in buckets, by quarters of a power of two of microseconds.

use std::time::Duration;

/// The bucket for a time; the last one has all that is longer.
pub fn of(took: Duration, buckets: usize) -> usize {
    let micros = (took.as_nanos() as f64 / 1000.0).max(1.0);
    ((libm::log2(micros) * 4.0) as usize).min(buckets - 1)
}

/// The end of a bucket.
pub fn end(bucket: usize) -> Duration {
    Duration::from_nanos((libm::exp2((bucket + 1) as f64 / 4.0) * 1000.0) as u64)
}

/// The time within which this share of all was over, to a fifth; zero if there is nothing. `counts`: of each bucket.
pub fn within(counts: impl Iterator<Item = u64> + Clone, share: f64) -> Duration {
    let wanted = (counts.clone().sum::<u64>() as f64 * share).ceil() as u64;
    let mut sum = 0;
    let reached = |count| {
        sum += count;
        sum >= wanted
    };
    counts.into_iter().position(reached).filter(|_| wanted > 0).map_or(Duration::ZERO, end)
}
