//! An axis: figures to places, and the figures that are marked.

/// A factor between the greatest and the least figure of lines beyond which their axis is logarithmic.
const WIDE: f64 = 40.0;
/// Fewer powers of two than this many make no logarithmic axis.
const POWERS: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    /// The base of a logarithmic axis.
    base: Option<f64>,
    pub ticks: Vec<f64>,
}

impl Axis {
    /// From zero up.
    pub fn from_zero(figures: impl Iterator<Item = f64>, about: usize) -> Axis {
        let most = figures.filter(|figure| figure.is_finite()).fold(0.0, f64::max);
        let high = if most > 0.0 { most * 1.04 } else { 1.0 };
        let step = step(high / about as f64);
        let ticks = (0..).map(|n| f64::from(n) * step).take_while(|tick| *tick <= high).collect();
        Axis { low: 0.0, high, base: None, ticks }
    }

    /// The vertical axis of lines: logarithmic, in steps of ten, if the figures are far apart.
    pub fn of_lines(figures: &[f64]) -> Axis {
        let above = || figures.iter().copied().filter(|figure| *figure > 0.0 && figure.is_finite());
        let (least, most) = (above().fold(f64::INFINITY, f64::min), above().fold(0.0, f64::max));
        if figures.contains(&0.0) || most <= least * WIDE {
            return Axis::from_zero(figures.iter().copied(), 5);
        }
        let (low, high) = (least.log10().floor() as i32, most.log10().ceil() as i32);
        let ticks = (low..=high).map(|power| 10f64.powi(power)).collect();
        Axis { low: f64::from(low), high: f64::from(high), base: Some(10.0), ticks }
    }

    /// The horizontal axis of lines: the numbers of the measures, in steps of two if they are powers of two.
    pub fn of_measures(numbers: &[f64]) -> Axis {
        const MARKED: usize = 8;
        let (low, high) = numbers.iter().fold((f64::INFINITY, 0f64), |(l, h), n| (l.min(*n), h.max(*n)));
        if numbers.len() >= POWERS && numbers.iter().all(|n| *n >= 1.0 && n.log2().fract() == 0.0) {
            let each = numbers.len().div_ceil(MARKED);
            let ticks = numbers.iter().copied().step_by(each).collect();
            return Axis { low: low.log2(), high: high.log2(), base: Some(2.0), ticks };
        }
        let mut axis = Axis::from_zero([high].into_iter(), 6);
        // A single number is in the middle.
        (axis.low, axis.high) = if low < high { (0.0, high) } else { (low - 1.0, low + 1.0) };
        if numbers.len() <= MARKED {
            axis.ticks = numbers.to_vec();
        }
        axis
    }

    pub fn is_logarithmic(&self) -> bool {
        self.base.is_some()
    }

    /// The part of the axis below a figure; none, if it has no place.
    pub fn part(&self, figure: f64) -> Option<f64> {
        let at = match self.base {
            Some(base) if figure > 0.0 => figure.log(base),
            Some(_) => return None,
            None => figure,
        };
        at.is_finite().then_some(((at - self.low) / (self.high - self.low)).clamp(0.0, 1.0))
    }

    /// A figure as the axis shows it.
    pub fn label(&self, figure: f64) -> String {
        match (self.base, figure) {
            (Some(2.0), f) if f >= 1024.0 * 1024.0 => format!("{:.0} Mi", f / 1024.0 / 1024.0),
            (Some(2.0), f) if f >= 1024.0 => format!("{:.0} Ki", f / 1024.0),
            (_, f) => short(f),
        }
    }
}

/// The least of 1, 2, 2.5 and 5, times a power of ten, that is at least `wanted`.
fn step(wanted: f64) -> f64 {
    let power = 10f64.powf(wanted.log10().floor());
    let digit = [1.0, 2.0, 2.5, 5.0].into_iter().find(|digit| digit * power >= wanted * 0.999);
    digit.unwrap_or(10.0) * power
}

/// With as many digits as are needed, and with k, M and G for large figures.
pub fn short(figure: f64) -> String {
    let (scaled, suffix) = match figure.abs() {
        f if f >= 1e9 => (figure / 1e9, "G"),
        f if f >= 1e6 => (figure / 1e6, "M"),
        f if f >= 1e4 => (figure / 1e3, "k"),
        _ => (figure, ""),
    };
    let digits = match scaled.abs() {
        f if f >= 100.0 => 0,
        f if f >= 10.0 => 1,
        f if f >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_steps() {
        let axis = Axis::from_zero([3.0, 9.4].into_iter(), 5);
        assert_eq!(axis.ticks, [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!((axis.part(0.0), axis.is_logarithmic()), (Some(0.0), false));
        assert_eq!(Axis::from_zero([f64::NAN].into_iter(), 5).part(0.5), Some(0.5));
    }

    #[test]
    fn figures_far_apart_have_steps_of_ten() {
        let axis = Axis::of_lines(&[2.0, 5_000.0]);
        assert_eq!((axis.ticks.as_slice(), axis.part(0.0)), ([1.0, 10.0, 100.0, 1000.0, 10_000.0].as_slice(), None));
        assert!(!Axis::of_lines(&[0.0, 5_000.0]).is_logarithmic());
    }

    #[test]
    fn powers_of_two_have_steps_of_two() {
        let axis = Axis::of_measures(&[512.0, 1024.0, 2048.0, 4096.0]);
        assert_eq!((axis.part(1024.0), axis.label(4096.0).as_str()), (Some(1.0 / 3.0), "4 Ki"));
        assert!(!Axis::of_measures(&[5000.0, 15000.0, 30000.0]).is_logarithmic());
        assert_eq!(Axis::of_measures(&[5.0]).part(5.0), Some(0.5));
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([0.5, 12.0, 1234.0, 125_000.0, 0.0].map(short), ["0.5", "12", "1234", "125k", "0"]);
    }
}
