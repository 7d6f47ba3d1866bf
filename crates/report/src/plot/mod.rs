//! Plots of sections, as SVG: lines over a varying number, or bars for comparison.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`bars`] | a panel for each measure, a bar for each subject |
//! | [`lines`] | a line for each subject, or a panel for each if they would hide each other |
//! | [`axis`] | scales and their marks |
//! | [`svg`] | the text of the file |
//!
//! Bars begin at zero. A whisker or a band is the interval of the median. The viewer draws the text: no fonts of
//! this machine are used.

mod axis;
mod bars;
mod lines;
mod svg;

use std::io;
use std::path::Path;

use crate::section::{Outcome, Plot, Section, Shape};
use crate::stats::ENOUGH;
use svg::{Anchor, Svg};

const WIDTH: f64 = 960.0;
/// The place of the content beside the edges of the card.
const MARGIN: f64 = 14.0;
/// The height of a line of the title, and its most characters.
const LINE: f64 = 18.0;
const CHARACTERS: usize = 108;

/// Sections with a plot and with figures, and the names of their files.
pub fn of(outcome: &Outcome) -> impl Iterator<Item = (String, &Section, &Plot)> {
    let sections = outcome.sections.iter().filter(|section| !section.series.is_empty());
    sections.filter_map(|section| Some((format!("{}.svg", section.id), section, section.plot.as_ref()?)))
}

/// Writes the plots of an outcome to a directory, which it makes if it is missing.
pub fn write(dir: &Path, outcome: &Outcome) -> io::Result<()> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"))
    };
    std::fs::create_dir_all(dir).map_err(failed(dir))?;
    of(outcome).try_for_each(|(name, section, plot)| {
        let path = dir.join(name);
        std::fs::write(&path, draw(section, plot)).map_err(failed(&path))
    })
}

/// The text of an SVG.
pub fn draw(section: &Section, plot: &Plot) -> String {
    let mut svg = Svg::default();
    let mut y = MARGIN + 4.0;
    for line in wrapped(&section.title) {
        svg.text((MARGIN, y + 6.0), Anchor::Start, "h", &line);
        y += LINE;
    }
    let height = match plot.shape {
        Shape::Bars => bars::draw(&mut svg, section, y),
        Shape::Lines => lines::draw(&mut svg, section, plot, y),
    };
    svg.finish(WIDTH, height + MARGIN)
}

/// Small print under the title: the unit, the better side, the rounds, and what is unusual.
fn explain(svg: &mut Svg, section: &Section, y: f64, more: &[&str]) {
    let better = if section.more_is_better { "more is better" } else { "less is better" };
    let rounds = section.series.iter().map(|series| series.rounds.len()).max().unwrap_or(0);
    let mut parts = vec![section.unit.to_string(), better.to_owned()];
    match rounds {
        0 | 1 => {}
        ENOUGH.. => parts.push(format!("medians of {rounds} rounds with 90 % intervals")),
        rounds => parts.push(format!("medians of {rounds} rounds, from the least to the greatest")),
    }
    parts.extend(more.iter().map(|part| (*part).to_owned()));
    svg.text((MARGIN, y + 4.0), Anchor::Start, "s", &parts.join("; "));
}

/// Is it a pool, and not something that it is compared with?
fn is_ours(subject: &str) -> bool {
    subject.starts_with("conquest")
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

    pub fn section(figures: &[(&str, &str, f64)]) -> Section {
        let mut section = Section::rates("t", "A title", "1/s");
        figures.iter().for_each(|(subject, measure, figure)| section.add(subject, measure, *figure));
        section
    }

    #[test]
    fn what_was_measured_once_or_not_at_all_is_drawn_all_the_same() {
        let plot = Plot::lines("x").expect("some");
        assert!(draw(&section(&[("a", "5", 1.0)]), &plot).contains("<circle"));
        for figures in [[("a", "5", f64::NAN)], [("a", "none", 0.0)]] {
            assert!(draw(&section(&figures), &plot).contains("</svg>"));
            assert!(draw(&section(&figures), &Plot::bars().expect("some")).contains("</svg>"));
        }
    }

    #[test]
    fn only_sections_with_figures_have_files_in_a_directory_that_is_made() {
        let parent = tempfile::tempdir().expect("a directory");
        let dir = parent.path().join("plots");
        let drawn = Section { plot: Plot::bars(), ..section(&[("a", "x", 1.0)]) };
        let empty = Section { id: "empty".into(), plot: Plot::bars(), ..section(&[]) };
        let outcome = Outcome { sections: vec![drawn, empty, section(&[("a", "x", 1.0)])], findings: Vec::new() };
        write(&dir, &outcome).expect("written");
        let names: Vec<_> = std::fs::read_dir(&dir).expect("list").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["t.svg"]);
    }

    #[test]
    fn titles_are_wrapped() {
        let lines = wrapped(&"word ".repeat(60));
        assert!(lines.len() > 1 && lines.iter().all(|line| line.chars().count() <= CHARACTERS));
    }
}
