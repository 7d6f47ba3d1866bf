//! Lines: one panel with a name at the end of each line, or a panel for each line if they are many or hide each other.

use super::axis::Axis;
use super::svg::{Anchor, Point, Svg, COLOURS, PALE};
use super::{explain, MARGIN, WIDTH};
use crate::section::{Plot, Section};

/// The most lines of a panel with names.
const MOST: usize = COLOURS.len();
/// The part of the height within which one line hides another.
const HIDDEN: f64 = 0.02;
/// More points than this many have a band instead of whiskers, and no dots.
const DOTS: usize = 16;
const ACROSS: usize = 3;
/// The space for the marks of the axes, and for names behind the lines.
const SIDE: f64 = 58.0;
const FOOT: f64 = 36.0;
const NAMES: f64 = 170.0;
/// The least distance of names.
const APART: f64 = 14.0;

/// The points of a subject: number, median, and the interval of the median.
struct Line<'a> {
    subject: &'a str,
    points: Vec<(f64, f64, [f64; 2])>,
}

/// Draws from `y` on; returns where it ends.
pub fn draw(svg: &mut Svg, section: &Section, plot: &Plot, y: f64) -> f64 {
    let lines: Vec<Line> = section.subjects().into_iter().map(|subject| Line::of(section, subject)).collect();
    let mut numbers: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    let of_point = |(_, median, interval): &(f64, f64, [f64; 2])| [*median, interval[0], interval[1]];
    let figures: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().flat_map(of_point)).collect();
    let (across, up) = (Axis::of_measures(&numbers), Axis::of_lines(&figures));
    let axes = Axes { across, up, name: &plot.axis };
    let is_apart = lines.len() > MOST || axes.hides(&lines);
    let mut more = Vec::new();
    if axes.up.is_logarithmic() {
        more.push("logarithmic vertical axis");
    }
    if is_apart {
        more.push("a panel for each, the others in grey");
    }
    explain(svg, section, y, &more);
    let top = y + 18.0;
    match is_apart {
        true => apart(svg, &axes, &lines, top),
        false => together(svg, &axes, &lines, top),
    }
}

fn together(svg: &mut Svg, axes: &Axes, lines: &[Line], top: f64) -> f64 {
    let frame = Frame { left: MARGIN + SIDE, top, width: WIDTH - 2.0 * MARGIN - SIDE - NAMES, height: 300.0 };
    axes.draw(svg, &frame, true);
    for (line, colour) in lines.iter().zip(COLOURS) {
        axes.line(svg, &frame, line, colour);
    }
    // Names from the uppermost line down, not nearer than they are high.
    let end = |line: &Line| line.points.last().and_then(|(x, y, _)| axes.place(&frame, *x, *y));
    let mut names: Vec<(Point, &str, &str)> =
        lines.iter().zip(COLOURS).filter_map(|(line, colour)| Some((end(line)?, line.subject, colour))).collect();
    names.sort_by(|a, b| a.0 .1.total_cmp(&b.0 .1));
    let mut next = top;
    for (n, (at, subject, colour)) in names.iter().enumerate() {
        let below = APART * (names.len() - n - 1) as f64;
        let y = at.1.max(next).min(frame.foot() - below);
        let x = frame.left + frame.width + 22.0;
        svg.stroke(*at, (x - 3.0, y), colour);
        svg.text((x, y + 4.0), Anchor::Start, "", subject);
        next = y + APART;
    }
    frame.foot() + FOOT
}

fn apart(svg: &mut Svg, axes: &Axes, lines: &[Line], top: f64) -> f64 {
    let (wide, high) = ((WIDTH - 2.0 * MARGIN - SIDE) / ACROSS as f64, 190.0);
    for (n, line) in lines.iter().enumerate() {
        let left = MARGIN + SIDE + wide * (n % ACROSS) as f64;
        let top = top + high * (n / ACROSS) as f64 + 14.0;
        let frame = Frame { left, top, width: wide - 26.0, height: high - 14.0 - FOOT - 8.0 };
        axes.draw(svg, &frame, n % ACROSS == 0);
        svg.text((left, top - 5.0), Anchor::Start, "", line.subject);
        for other in lines.iter().filter(|other| other.subject != line.subject) {
            svg.path(&axes.places(&frame, other), PALE, 1.0);
        }
        axes.line(svg, &frame, line, if super::is_ours(line.subject) { COLOURS[0] } else { COLOURS[1] });
    }
    top + high * lines.len().div_ceil(ACROSS) as f64
}

impl<'a> Line<'a> {
    fn of(section: &'a Section, subject: &'a str) -> Line<'a> {
        let of_subject = section.series.iter().filter(|series| series.subject == subject);
        let mut points: Vec<_> = of_subject
            .filter(|series| series.median.is_finite())
            .filter_map(|series| Some((number(&series.measure)?, series.median, series.interval())))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { subject, points }
    }
}

struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Frame {
    fn foot(&self) -> f64 {
        self.top + self.height
    }
}

struct Axes<'a> {
    across: Axis,
    up: Axis,
    name: &'a str,
}

impl Axes<'_> {
    fn place(&self, frame: &Frame, x: f64, y: f64) -> Option<Point> {
        let (x, y) = (self.across.part(x)?, self.up.part(y)?);
        Some((frame.left + frame.width * x, frame.foot() - frame.height * y))
    }

    fn places(&self, frame: &Frame, line: &Line) -> Vec<Point> {
        line.points.iter().filter_map(|(x, y, _)| self.place(frame, *x, *y)).collect()
    }

    /// Is there a pair of lines that are one line for the eye?
    fn hides(&self, lines: &[Line]) -> bool {
        let part = |line: &Line, x: f64| {
            let found = line.points.iter().find(|point| point.0 == x);
            found.and_then(|point| self.up.part(point.1))
        };
        let is_hidden = |(n, line): (usize, &Line)| {
            lines[..n].iter().any(|other| {
                let distance = |(x, y, _): &(f64, f64, [f64; 2])| Some((self.up.part(*y)? - part(other, *x)?).abs());
                let distances: Vec<f64> = line.points.iter().filter_map(distance).collect();
                !distances.is_empty() && distances.iter().all(|distance| *distance < HIDDEN)
            })
        };
        lines.iter().enumerate().any(is_hidden)
    }

    fn draw(&self, svg: &mut Svg, frame: &Frame, has_marks: bool) {
        let (right, foot) = (frame.left + frame.width, frame.foot());
        for tick in &self.up.ticks {
            let Some(y) = self.up.part(*tick).map(|part| foot - frame.height * part) else { continue };
            svg.rule((frame.left, y), (right, y), "g");
            if has_marks {
                svg.text((frame.left - 6.0, y + 4.0), Anchor::End, "s", &self.up.label(*tick));
            }
        }
        svg.rule((frame.left, foot), (right, foot), "a");
        for tick in &self.across.ticks {
            let Some(part) = self.across.part(*tick) else { continue };
            let x = frame.left + frame.width * part;
            svg.rule((x, foot), (x, foot + 4.0), "a");
            // The last one would reach into the next panel.
            let anchor = if part < 1.0 { Anchor::Middle } else { Anchor::End };
            svg.text((x, foot + 16.0), anchor, "s", &self.across.label(*tick));
        }
        let marked = if self.across.is_logarithmic() { " (logarithmic)" } else { "" };
        let middle = frame.left + frame.width / 2.0;
        svg.text((middle, foot + 30.0), Anchor::Middle, "s", &format!("{}{marked}", self.name));
    }

    fn line(&self, svg: &mut Svg, frame: &Frame, line: &Line, colour: &str) {
        let bound =
            |n: usize| line.points.iter().filter_map(move |(x, _, interval)| self.place(frame, *x, interval[n]));
        let is_dotted = line.points.len() <= DOTS;
        if is_dotted {
            for (low, high) in bound(0).zip(bound(1)).filter(|(low, high)| low.1 - high.1 > 1.0) {
                svg.whisker(low, high, colour);
            }
        } else {
            let upper: Vec<Point> = bound(1).collect();
            svg.band(&bound(0).chain(upper.into_iter().rev()).collect::<Vec<_>>(), colour);
        }
        let places = self.places(frame, line);
        svg.path(&places, colour, 2.0);
        if is_dotted {
            places.iter().for_each(|place| svg.dot(*place, colour));
        }
    }
}

/// The number at the beginning of a measure.
fn number(measure: &str) -> Option<f64> {
    let end = measure.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(measure.len());
    measure[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::section;
    use super::*;

    fn drawn(figures: &[(&str, &str, f64)]) -> String {
        super::super::draw(&section(figures), &Plot::lines("percent of large files").expect("some"))
    }

    #[test]
    fn lines_go_through_each_figure_and_have_their_names_at_their_ends() {
        let text = drawn(&[("a", "0 %", 5.0), ("a", "10 %", 3.0), ("b <c>", "0 %", 2.0), ("b <c>", "10 %", 1.0)]);
        for wanted in ["<svg", "A title", "1/s", "percent of large files", ">b &lt;c&gt;<"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert_eq!((text.matches("<circle").count(), text.matches("<polyline").count()), (4, 2));
    }

    #[test]
    fn lines_that_hide_each_other_have_a_panel_each() {
        let text = drawn(&[("a", "0", 50.0), ("a", "1", 3.0), ("b", "0", 50.1), ("b", "1", 3.1)]);
        assert!(text.contains("a panel for each"), "{text}");
        assert_eq!(text.matches("<polyline").count(), 4, "each in its panel, and grey in the other");
        let many: Vec<(String, f64)> = (0..8).map(|n| (format!("s{n}"), f64::from(n + 1))).collect();
        let many: Vec<_> = many.iter().flat_map(|(name, y)| [(name.as_str(), "0", *y), (name, "1", *y)]).collect();
        assert!(drawn(&many).contains("a panel for each"));
    }

    #[test]
    fn many_points_have_a_band() {
        let measures: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        let figures: Vec<_> = measures.iter().flat_map(|m| [("a", m.as_str(), 3.0), ("a", m, 4.0)]).collect();
        assert!(drawn(&figures).contains("<polygon") && !drawn(&figures).contains("<circle"));
    }

    #[test]
    fn measures_begin_with_numbers() {
        assert_eq!(["0.7", "10 %", "100 MiB", "write"].map(number), [Some(0.7), Some(10.0), Some(100.0), None]);
    }
}
