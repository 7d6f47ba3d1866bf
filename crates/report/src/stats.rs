//! Medians and their intervals. Means do not appear: one preempted round would move them.

/// The median of `values`; NaN if there is none, so that every comparison is false.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The value that this part of the `sorted` values does not exceed; NaN if there is none.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((sorted.len() as f64 * part) as usize).or(sorted.get(last)).copied().unwrap_or(f64::NAN)
}

/// The part of all cases in which an [`interval`] does not hold the median of what was sampled.
const WRONG: f64 = 0.1;

/// The number of values from which on an [`interval`] has its confidence.
pub const ENOUGH: usize = 5;

/// The 90 % confidence interval of the median, whatever the distribution: the innermost values with this confidence as
/// order statistics. Of fewer than [`ENOUGH`] values it is from the least to the greatest, and holds the median less surely.
pub fn interval(values: &[f64]) -> [f64; 2] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // The median lies outside if at most `skipped` of the values are on one side of it: a binomial tail, twice.
    let (mut skipped, mut tail, mut term) = (0, 0.0, 2.0 * 0.5f64.powi(count as i32));
    loop {
        tail += term;
        term *= (count - skipped) as f64 / (skipped + 1) as f64;
        if tail + term > WRONG || 2 * (skipped + 1) >= count {
            break;
        }
        skipped += 1;
    }
    [sorted.get(skipped), sorted.get((count - skipped).wrapping_sub(1))].map(|bound| bound.copied().unwrap_or(f64::NAN))
}

/// The ratios of single rounds. Each round compares neighbours in time, so a slow phase of the machine affects both
/// sides.
pub fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(a, b)| a / b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn percentiles_are_of_what_is_there() {
        let sorted: Vec<f64> = (0..1000).map(f64::from).collect();
        assert_eq!([0.5, 0.99, 0.999, 1.0].map(|part| percentile(&sorted, part)), [500.0, 990.0, 999.0, 999.0]);
        assert_eq!(percentile(&[3.0], 0.999), 3.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn an_interval_leaves_out_values_once_there_are_enough() {
        let upto = |n: u32| interval(&(1..=n).map(f64::from).collect::<Vec<_>>());
        // The least and the greatest of five hold the median with 94 %, the second and the seventh of eight with 93 %.
        assert_eq!([upto(1), upto(3), upto(5), upto(7)], [[1.0, 1.0], [1.0, 3.0], [1.0, 5.0], [1.0, 7.0]]);
        assert_eq!([upto(8), upto(30)], [[2.0, 7.0], [11.0, 20.0]]);
        assert!(interval(&[]).iter().all(|bound| bound.is_nan()));
    }

    #[test]
    fn a_slow_round_does_not_move_the_ratio() {
        let over = [10.0, 100.0, 10.0];
        let under = [5.0, 50.0, 5.0];
        assert_eq!(median(&ratios(&over, &under)), 2.0);
    }
}
