//! Bars: a panel for each measure, and in it a bar for each subject, with its name and figure beside it.

use super::axis::{short, Axis};
use super::svg::{Anchor, Svg, COLOURS, DARK, GREY};
use super::{explain, is_ours, MARGIN, WIDTH};
use crate::section::{Section, Series};

/// The height of a bar with the space around it, and of a panel's name and axis.
const ROW: f64 = 18.0;
const NAME: f64 = 30.0;
const AXIS: f64 = 22.0;
/// The most panels beside each other, and the space behind a bar for its figure.
const ACROSS: usize = 4;
const FIGURE: f64 = 46.0;
/// The width of a character, about.
const CHARACTER: f64 = 6.6;
/// Panels have one scale if their greatest figures are within this factor.
const ALIKE: f64 = 4.0;

/// Draws from `y` on; returns where it ends.
pub fn draw(svg: &mut Svg, section: &Section, y: f64) -> f64 {
    let grid = Grid::of(section);
    let across = grid.panels.len().clamp(1, ACROSS);
    let longest = grid.rows.iter().map(|row| row.chars().count()).max().unwrap_or(0);
    let left = MARGIN + (longest as f64 * CHARACTER + 8.0).min(WIDTH / 3.0);
    let width = (WIDTH - MARGIN - left) / across as f64;
    let most: Vec<f64> = grid.panels.iter().map(|panel| grid.most(panel)).collect();
    let (low, high) = most.iter().fold((f64::INFINITY, 0f64), |(l, h), m| (l.min(*m), h.max(*m)));
    let is_one_scale = high <= low * ALIKE;
    let more = if is_one_scale { [].as_slice() } else { ["each panel has a scale of its own"].as_slice() };
    explain(svg, section, y, more);
    let height = NAME + ROW * grid.rows.len() as f64 + AXIS;
    for (n, panel) in grid.panels.iter().enumerate() {
        let at = (left + width * (n % across) as f64, y + 12.0 + height * (n / across) as f64);
        let axis = Axis::from_zero([if is_one_scale { high } else { most[n] }].into_iter(), 2);
        grid.panel(svg, panel, &axis, at, width);
        if n % across == 0 {
            for (row, name) in grid.rows.iter().enumerate() {
                let place = (left - 6.0, at.1 + NAME + ROW * (row as f64 + 0.7));
                svg.text(place, Anchor::End, "", name);
            }
        }
    }
    y + 12.0 + height * grid.panels.len().div_ceil(across) as f64
}

/// What is a panel, and what is a row of it.
struct Grid<'a> {
    section: &'a Section,
    panels: Vec<&'a str>,
    rows: Vec<&'a str>,
    /// A single subject has one panel, with a row for each measure.
    is_turned: bool,
}

impl<'a> Grid<'a> {
    fn of(section: &'a Section) -> Grid<'a> {
        let (subjects, measures) = (section.subjects(), section.measures());
        match subjects.len() == 1 && measures.len() > 1 {
            true => Grid { section, panels: subjects, rows: measures, is_turned: true },
            false => Grid { section, panels: measures, rows: subjects, is_turned: false },
        }
    }

    fn series(&self, panel: &str, row: &str) -> Option<&'a Series> {
        let (subject, measure) = if self.is_turned { (panel, row) } else { (row, panel) };
        self.section.get(subject, measure).filter(|series| series.median.is_finite())
    }

    /// The end of the longest bar or whisker of a panel.
    fn most(&self, panel: &str) -> f64 {
        let series = self.rows.iter().filter_map(|row| self.series(panel, row));
        series.map(|series| series.median.max(series.interval()[1])).fold(0.0, f64::max)
    }

    /// Pools stand out from those they are compared with: blue in process, and light blue mounted.
    fn colour(&self, row: &str) -> &'static str {
        match row {
            _ if self.is_turned || !self.rows.iter().any(|row| is_ours(row)) => COLOURS[0],
            row if !is_ours(row) => GREY,
            row if row.contains('+') => COLOURS[5],
            _ => COLOURS[0],
        }
    }

    fn panel(&self, svg: &mut Svg, panel: &str, axis: &Axis, (left, top): (f64, f64), width: f64) {
        let (upper, lower) = (top + NAME - 4.0, top + NAME + ROW * self.rows.len() as f64);
        let long = width - FIGURE - 8.0;
        let place = |figure: f64| axis.part(figure).map(|part| left + long * part);
        svg.text((left, top + NAME - 12.0), Anchor::Start, "", panel);
        for tick in &axis.ticks {
            let Some(x) = place(*tick) else { continue };
            svg.rule((x, upper), (x, lower), if *tick == 0.0 { "a" } else { "g" });
            svg.text((x, lower + 13.0), Anchor::Middle, "s", &axis.label(*tick));
        }
        for (n, row) in self.rows.iter().enumerate() {
            let Some(series) = self.series(panel, row) else { continue };
            let middle = top + NAME + ROW * (n as f64 + 0.5);
            let Some(end) = place(series.median) else { continue };
            svg.bar((left, middle - ROW * 0.36), end - left, ROW * 0.72, self.colour(row));
            let [from, to] = series.interval().map(|bound| place(bound).unwrap_or(end));
            if to - from > 1.0 {
                svg.whisker((from, middle), (to, middle), DARK);
            }
            svg.text((to.max(end) + 5.0, middle + 4.0), Anchor::Start, "", &short(series.median));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::section;
    use super::*;
    use crate::section::Plot;

    fn drawn(figures: &[(&str, &str, f64)]) -> String {
        super::super::draw(&section(figures), &Plot::bars().expect("some"))
    }

    #[test]
    fn each_bar_has_a_name_and_a_figure_and_begins_at_zero() {
        let text = drawn(&[("conquest x", "write", 2.0), ("b <c>", "write", 5_000.0), ("b <c>", "read", 7.0)]);
        for wanted in [">b &lt;c&gt;<", ">5000<", ">2<", ">write<", ">0<", COLOURS[0], GREY] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert_eq!(text.matches("fill=\"#").count(), 3 + 1, "three bars and the card: {text}");
        assert!(text.contains("a scale of its own"));
    }

    #[test]
    fn a_spread_has_a_whisker_and_a_single_subject_one_panel() {
        let text = drawn(&[("a", "x", 1.0), ("a", "x", 2.0), ("a", "y", 3.0)]);
        assert!(text.contains(DARK) && text.contains("2 rounds, from the least"), "{text}");
        assert_eq!(text.matches(">0<").count(), 1, "one axis: {text}");
    }
}
