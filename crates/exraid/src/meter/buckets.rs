//! Times counted in buckets, by quarters of a power of two of microseconds.

use std::time::Duration;

/// Bits of a microsecond behind the point.
const POINT: u32 = 16;
/// The second, third and fourth quarter of a power of two begin here: 2 to the 63 and a quarter, a half, and three quarters.
const QUARTERS: [u64; 3] = [10_968_499_650_544_839_024, 13_043_817_825_332_782_213, 15_511_800_964_685_064_949];

/// The bucket for a time; the last one has all that is longer. Each request of a mount is counted, so without a logarithm.
pub fn of(took: Duration, buckets: usize) -> usize {
    let nanos = (took.as_nanos() as u64).clamp(1000, u64::MAX >> POINT);
    let micros = (nanos << POINT) / 1000;
    let mantissa = micros << micros.leading_zeros();
    let quarter = QUARTERS.iter().filter(|begin| mantissa >= **begin).count();
    ((micros.ilog2() - POINT) as usize * 4 + quarter).min(buckets - 1)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_a_quarter_of_a_power_of_two() {
        for nanos in (0..10_000).chain((10_000..100_000_000).step_by(977)).chain((0..40).map(|n| 1_500_000_000 << n)) {
            let wanted = (libm::log2((nanos as f64 / 1000.0).max(1.0)) * 4.0) as usize;
            let found = of(Duration::from_nanos(nanos), 104);
            assert_eq!(found, wanted.min(103), "{nanos} ns");
        }
    }
}
