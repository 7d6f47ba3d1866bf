//! Plots of sections, as SVG: lines over a varying number, or bars for comparison.
//!
//! The viewer draws the text: no fonts of this machine are used.

use std::io;
use std::path::Path;

use plotters::coord::types::RangedCoordf64;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::section::{Outcome, Plot, Section, Shape};

const WIDTH: u32 = 960;
const HEIGHT: u32 = 440;
/// The width of the legend.
const LEGEND: u32 = 230;
/// The height of a line of the title, and its most characters.
const LINE: i32 = 18;
const CHARACTERS: usize = 130;
/// The axis of bars is logarithmic if the greatest figure is more than this many times the least.
const WIDE: f64 = 50.0;
const FONT: &str = "sans-serif";

const COLOURS: [RGBColor; 8] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0xe3, 0x77, 0xc2),
    RGBColor(0x7f, 0x7f, 0x7f),
];

/// Sections with a plot and with figures, and the names of their files.
pub fn of(outcome: &Outcome) -> impl Iterator<Item = (String, &Section, &Plot)> {
    let sections = outcome.sections.iter().filter(|section| !section.series.is_empty());
    sections.filter_map(|section| Some((format!("{}.svg", section.id), section, section.plot.as_ref()?)))
}

/// Writes the plots of an outcome to a directory.
pub fn write(dir: &Path, outcome: &Outcome) -> io::Result<()> {
    of(outcome).try_for_each(|(name, section, plot)| {
        let path = dir.join(name);
        std::fs::write(&path, draw(section, plot)?)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
    })
}

/// The text of an SVG.
pub fn draw(section: &Section, plot: &Plot) -> io::Result<String> {
    let mut text = String::new();
    let failed = |e: DrawingAreaErrorKind<io::Error>| io::Error::other(format!("a plot of {}: {e}", section.id));
    let backend = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
    on(&backend, section, plot).and_then(|()| backend.present()).map_err(failed)?;
    drop(backend);
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn on<'a>(area: &Area<'a>, section: &Section, plot: &Plot) -> Drawn<'a> {
    area.fill(&WHITE)?;
    let lines = wrapped(&section.title);
    let style = (FONT, 14).into_font().color(&BLACK);
    for (n, line) in lines.iter().enumerate() {
        area.draw_text(line, &style, (10, 8 + LINE * n as i32))?;
    }
    let (_, below) = area.split_vertically(14 + LINE * lines.len() as i32);
    let (left, right) = below.split_horizontally(WIDTH - LEGEND);
    legend(&right, section)?;
    let scale = Scale::of(section, plot.shape);
    let (measures, end) = (section.measures(), section.measures().len() as f64);
    let points: Vec<f64> = measures.iter().filter_map(|measure| number(measure)).collect();
    let across = match plot.shape {
        Shape::Bars => 0.0..end,
        // A single point is in the middle.
        Shape::Lines => match (least(&points), most(&points)) {
            (low, high) if high > low => low.min(0.0)..high * 1.03,
            (low, _) if low.is_finite() => low - 1.0..low + 1.0,
            _ => 0.0..1.0,
        },
    };
    let mut builder = ChartBuilder::on(&left);
    builder.margin(8).x_label_area_size(44).y_label_area_size(78);
    let mut chart = builder.build_cartesian_2d(across, scale.low..scale.high)?;
    let mut mesh = chart.configure_mesh();
    let label = |y: &f64| short(scale.figure(*y));
    mesh.disable_x_mesh().light_line_style(WHITE).bold_line_style(RGBColor(0xdd, 0xdd, 0xdd));
    mesh.label_style((FONT, 12)).axis_desc_style((FONT, 13));
    mesh.y_desc(section.unit.as_ref()).x_desc(plot.axis.as_ref()).y_label_formatter(&label);
    if scale.is_wide {
        mesh.y_labels((scale.high - scale.low) as usize + 1);
    }
    match plot.shape {
        Shape::Lines => {
            mesh.draw()?;
            lines_on(&mut chart, section, &scale)
        }
        Shape::Bars => {
            mesh.disable_x_axis().draw()?;
            bars_on(&mut chart, section, &measures, &scale)
        }
    }
}

fn legend<'a>(area: &Area<'a>, section: &Section) -> Drawn<'a> {
    let style = (FONT, 13).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    for (n, subject) in section.subjects().into_iter().enumerate() {
        let y = 24 + 22 * n as i32;
        area.draw(&Rectangle::new([(6, y - 6), (18, y + 6)], colour(n).filled()))?;
        area.draw_text(subject, &style, (26, y))?;
    }
    Ok(())
}

fn lines_on<'b>(chart: &mut Chart<'_, 'b>, section: &Section, scale: &Scale) -> Drawn<'b> {
    for (n, subject) in section.subjects().into_iter().enumerate() {
        let of_subject = section.series.iter().filter(|series| series.subject == subject);
        let mut points: Vec<(f64, f64)> =
            of_subject.filter_map(|series| Some((number(&series.measure)?, scale.place(series.median)?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart.draw_series(LineSeries::new(points.iter().copied(), colour(n).stroke_width(2)))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour(n).filled())))?;
    }
    Ok(())
}

fn bars_on<'b>(chart: &mut Chart<'_, 'b>, section: &Section, measures: &[&str], scale: &Scale) -> Drawn<'b> {
    let subjects = section.subjects();
    let width = 0.8 / subjects.len().max(1) as f64;
    for (n, subject) in subjects.iter().enumerate() {
        let bar = |(group, measure): (usize, &&str)| {
            let top = scale.place(section.get(subject, measure)?.median)?;
            let from = group as f64 + 0.1 + width * n as f64;
            Some(Rectangle::new([(from, scale.low), (from + width, top)], colour(n).filled()))
        };
        chart.draw_series(measures.iter().enumerate().filter_map(bar))?;
    }
    let style = (FONT, 13).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top));
    let name = |(group, measure): (usize, &&str)| {
        let at = EmptyElement::at((group as f64 + 0.5, scale.low));
        at + Text::new((*measure).to_owned(), (0, 8), style.clone())
    };
    chart.draw_series(measures.iter().enumerate().map(name))?;
    Ok(())
}

/// The axis of the figures.
struct Scale {
    low: f64,
    high: f64,
    is_wide: bool,
}

impl Scale {
    fn of(section: &Section, shape: Shape) -> Scale {
        let figures: Vec<f64> = section.series.iter().map(|s| s.median).filter(|f| f.is_finite()).collect();
        let above: Vec<f64> = figures.iter().copied().filter(|figure| *figure > 0.0).collect();
        match shape {
            Shape::Bars if !above.is_empty() && most(&above) / least(&above) > WIDE => {
                // So that the least bar is visible.
                let low = (least(&above) / 1.5).log10().floor();
                Scale { low, high: most(&above).log10().ceil().max(low + 1.0), is_wide: true }
            }
            // An axis even without figures.
            _ if above.is_empty() => Scale { low: 0.0, high: 1.0, is_wide: false },
            _ => Scale { low: 0.0, high: most(&above) * 1.05, is_wide: false },
        }
    }

    /// The place of a figure on the axis; none, if it has none.
    fn place(&self, figure: f64) -> Option<f64> {
        match self.is_wide {
            true => (figure > 0.0).then(|| figure.log10()),
            false => figure.is_finite().then_some(figure),
        }
    }

    fn figure(&self, place: f64) -> f64 {
        if self.is_wide {
            10f64.powf(place)
        } else {
            place
        }
    }
}

fn colour(n: usize) -> RGBColor {
    COLOURS[n % COLOURS.len()]
}

fn least(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// The number at the beginning of a measure.
fn number(measure: &str) -> Option<f64> {
    let end = measure.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(measure.len());
    measure[..end].parse().ok()
}

/// With as many digits as fit beside an axis.
fn short(figure: f64) -> String {
    match figure.abs() {
        f if f >= 100.0 => format!("{figure:.0}"),
        f if f >= 10.0 => format!("{figure:.1}"),
        _ => format!("{:.4}", figure).trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

/// Breaks a title into lines that fit.
fn wrapped(title: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in title.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + word.chars().count() < CHARACTERS => *line += &format!(" {word}"),
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(figures: &[(&str, &str, f64)]) -> Section {
        let mut section = Section::rates("t", "A title", "1/s");
        figures.iter().for_each(|(subject, measure, figure)| section.add(subject, measure, *figure));
        section
    }

    #[test]
    fn lines_go_through_each_figure_and_name_who_is_compared() {
        let section = section(&[("a", "0 %", 5.0), ("a", "10 %", 3.0), ("b <c>", "0 %", 2.0), ("b <c>", "10 %", 1.0)]);
        let text = draw(&section, &Plot::lines("percent of large files").expect("some")).expect("drawn");
        for wanted in ["<svg", "A title", "1/s", "percent of large files", "b &lt;c&gt;"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert_eq!(text.matches("<circle").count(), 4);
        assert!(text.matches("<polyline").count() >= 2, "{text}");
    }

    #[test]
    fn bars_of_very_different_height_have_steps_of_ten() {
        let section = section(&[("a", "write", 2.0), ("b", "write", 5_000.0), ("a", "read", 0.0)]);
        let scale = Scale::of(&section, Shape::Bars);
        assert!(scale.is_wide && scale.place(0.0).is_none());
        assert_eq!((scale.low, scale.high), (0.0, 4.0));
        let text = draw(&section, &Plot::bars().expect("some")).expect("drawn");
        assert!(text.contains("10000") && text.contains("read"), "{text}");
    }

    #[test]
    fn what_was_measured_once_or_not_at_all_is_drawn_all_the_same() {
        let plot = Plot::lines("x").expect("some");
        assert!(draw(&section(&[("a", "5", 1.0)]), &plot).expect("drawn").contains("<circle"));
        assert!(draw(&section(&[("a", "5", f64::NAN)]), &plot).expect("drawn").contains("<svg"));
        assert!(draw(&section(&[("a", "none", 0.0)]), &plot).is_ok());
    }

    #[test]
    fn only_sections_with_figures_have_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let drawn = Section { plot: Plot::bars(), ..section(&[("a", "x", 1.0)]) };
        let empty = Section { id: "empty".into(), plot: Plot::bars(), ..section(&[]) };
        let outcome = Outcome { sections: vec![drawn, empty, section(&[("a", "x", 1.0)])], findings: Vec::new() };
        write(dir.path(), &outcome).expect("written");
        let names: Vec<_> = std::fs::read_dir(dir.path()).expect("list").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["t.svg"]);
    }

    #[test]
    fn measures_begin_with_numbers_and_titles_are_wrapped() {
        assert_eq!(["0.7", "10 %", "100 MiB", "write"].map(number), [Some(0.7), Some(10.0), Some(100.0), None]);
        let lines = wrapped(&"word ".repeat(60));
        assert!(lines.len() > 1 && lines.iter().all(|line| line.chars().count() <= CHARACTERS));
    }
}
