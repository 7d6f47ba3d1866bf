//! Medians. Means do not appear: one preempted round would move them.

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

/// The median of the ratios of single rounds. Each round compares neighbours in time, so a slow phase of the machine
/// affects both sides.
pub fn median_ratio(over: &[f64], under: &[f64]) -> f64 {
    let ratios: Vec<f64> = over.iter().zip(under).map(|(a, b)| a / b).collect();
    median(&ratios)
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
    fn a_slow_round_does_not_move_the_ratio() {
        let over = [10.0, 100.0, 10.0];
        let under = [5.0, 50.0, 5.0];
        assert_eq!(median_ratio(&over, &under), 2.0);
    }
}
