//! The book of figures: each figure and table of the four papers with ours beside it.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | what a figure has, as data, and the page made of it |
//! | [`conquest`], [`mramfs`], [`ubj`], [`exraid`] | the figures of a paper, with the values that its text gives |
//! | [`bounds`] | what bounds a goal that is missed |
//!
//! Values of the papers are typed, each with the place of its text. Ours are computed from the published rounds.

mod bounds;
mod conquest;
mod exraid;
mod mramfs;
mod ubj;

use std::fmt::Write;

use report::stats::{interval, median};
use report::{plot, Report, Section};

use crate::peer::{BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED};
use crate::published::{code, command_of, table, times};
use crate::workload::direct::{BATTERY_DIRECT, LOGGED_DIRECT};

pub use bounds::bound;

/// The four papers, in their order.
pub const PAPERS: [&Paper; 4] = [&conquest::PAPER, &mramfs::PAPER, &ubj::PAPER, &exraid::PAPER];

/// The pools of a comparison, in the order of their columns.
const POOLS: [(&str, &str); 6] = [
    (BATTERY.name, "`battery`, in process"),
    (BATTERY_DIRECT.name, "`battery`, direct"),
    (BATTERY_MOUNTED.name, "`battery`, mounted"),
    (LOGGED.name, "`logged`, in process"),
    (LOGGED_DIRECT.name, "`logged`, direct"),
    (LOGGED_MOUNTED.name, "`logged`, mounted"),
];
/// The column of values that belong to no single pool.
const OURS: &str = "ours";
/// Ours is as good as the paper's from this part of it on.
const ALIKE: f64 = 0.95;

pub struct Paper {
    pub name: &'static str,
    pub title: &'static str,
    /// What it was measured on.
    pub machine: &'static str,
    pub figures: &'static [Figure],
}

/// A figure or a table of a paper, or several that one section here answers.
pub struct Figure {
    pub name: &'static str,
    pub question: &'static str,
    /// The published workload that measures it.
    pub workload: &'static str,
    /// The sections to show.
    pub sections: &'static [&'static str],
    pub claims: &'static [Claim],
    /// What the experiments have in common.
    pub alike: &'static str,
    /// What differs, and why.
    pub differs: &'static str,
}

/// A value that the text of a paper gives.
pub struct Claim {
    pub what: &'static str,
    /// The value, which begins with its number if ours is compared with it.
    pub paper: &'static str,
    /// Where the text gives it.
    pub source: &'static str,
    pub ours: Ours,
    pub sense: Sense,
}

/// The better side of a claim's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sense {
    More,
    Less,
    /// Only shown beside ours.
    Neither,
}

/// How our value is computed.
pub enum Ours {
    /// How many times as good as the first of these bases that was measured each pool is.
    Pools {
        section: &'static str,
        measure: &'static str,
        bases: &'static [&'static str],
    },
    /// One series against another, each named by subject and measure.
    Ratio {
        section: &'static str,
        over: Series,
        under: Series,
    },
    Median {
        section: &'static str,
        of: Series,
    },
    /// Nothing here has the same unit and meaning.
    Nothing,
}

type Series = (&'static str, &'static str);

impl Claim {
    /// How many times as good as others the paper's system is.
    const fn factor(
        what: &'static str,
        paper: &'static str,
        source: &'static str,
        (section, measure, bases): (&'static str, &'static str, &'static [&'static str]),
    ) -> Claim {
        Claim { what, paper, source, ours: Ours::Pools { section, measure, bases }, sense: Sense::More }
    }

    const fn ratio(
        what: &'static str,
        paper: &'static str,
        source: &'static str,
        (section, over, under): (&'static str, Series, Series),
    ) -> Claim {
        Claim { what, paper, source, ours: Ours::Ratio { section, over, under }, sense: Sense::More }
    }

    const fn median(
        what: &'static str,
        paper: &'static str,
        source: &'static str,
        (section, of): (&'static str, Series),
    ) -> Claim {
        Claim { what, paper, source, ours: Ours::Median { section, of }, sense: Sense::More }
    }

    /// A value that is shown alone.
    const fn quoted(what: &'static str, paper: &'static str, source: &'static str) -> Claim {
        Claim { what, paper, source, ours: Ours::Nothing, sense: Sense::Neither }
    }

    /// The same, where less is better.
    const fn less(self) -> Claim {
        Claim { sense: Sense::Less, ..self }
    }

    /// The same, where ours is only shown.
    const fn beside(self) -> Claim {
        Claim { sense: Sense::Neither, ..self }
    }

    /// The section that it needs.
    fn section(&self) -> Option<&'static str> {
        match self.ours {
            Ours::Pools { section, .. } | Ours::Ratio { section, .. } | Ours::Median { section, .. } => Some(section),
            Ours::Nothing => None,
        }
    }

    /// Our values by column, and what they are compared with.
    fn values(&self, section: Option<&Section>) -> (Vec<(&'static str, Vec<f64>)>, String) {
        let Some(section) = section else { return (Vec::new(), "-".into()) };
        match self.ours {
            Ours::Pools { measure, bases, .. } => {
                let known = section.subjects();
                let Some(base) = bases.iter().find(|base| known.contains(base)) else {
                    return (Vec::new(), bases.join(" or "));
                };
                let of =
                    |(who, column): (&str, &'static str)| Some((column, section.factors(measure, who, base).ok()?));
                (POOLS.into_iter().filter_map(of).collect(), (*base).to_owned())
            }
            Ours::Ratio { over, under, .. } => {
                let ratios = section.ratios_of(over, under).ok();
                (ratios.into_iter().map(|ratios| (OURS, ratios)).collect(), under.0.to_owned())
            }
            Ours::Median { of: (subject, measure), .. } => {
                let series = section.get(subject, measure);
                (series.into_iter().map(|series| (OURS, series.rounds.clone())).collect(), "-".into())
            }
            Ours::Nothing => (Vec::new(), "-".into()),
        }
    }

    /// One of our values, with its interval, and how it compares with the paper's.
    fn cell(&self, rounds: &[f64]) -> String {
        let ([low, high], value) = (interval(rounds), median(rounds));
        let unit = self.paper.split_once(' ').map_or("", |(_, unit)| unit);
        let spread = if low < high { format!(" ({} to {})", times(low), times(high)) } else { String::new() };
        let text = format!("{} {unit}{spread}", times(value));
        let Some(theirs) = number(self.paper) else { return text };
        let is_worse = |value: f64| match self.sense {
            Sense::More => value < theirs * ALIKE,
            Sense::Less => value * ALIKE > theirs,
            Sense::Neither => false,
        };
        match (is_worse(value), is_worse(low) != is_worse(high)) {
            (_, true) => format!("{text} ?"),
            (true, _) => format!("**{text}**"),
            _ => text,
        }
    }
}

fn number(text: &str) -> Option<f64> {
    text.split(' ').next()?.parse().ok()
}

/// The part of the page with the papers.
pub fn page(reports: &[(&str, Report)]) -> String {
    let mut out = String::new();
    for paper in PAPERS {
        let _ = write!(out, "## {}\n\n*{}*. Measured there on {}.\n\n", paper.name, paper.title, paper.machine);
        paper.figures.iter().for_each(|figure| out += &figure.show(reports));
    }
    out
}

impl Figure {
    fn show(&self, reports: &[(&str, Report)]) -> String {
        let mut out = format!("### {}\n\n{}\n\n", self.name, self.question);
        for id in self.sections {
            let Some((_, section)) = find(reports, id) else { continue };
            if let (Some(_), false) = (&section.plot, section.series.is_empty()) {
                let _ = write!(out, "![{}](figures/{id}.svg)\n\n", section.title);
            }
            if let Some(texts) = &section.table {
                let _ = write!(out, "{}\n\n{}", section.title, report::cells::markdown(texts));
            }
            for of_one_reason in section.skipped.chunk_by(|a, b| a.reason == b.reason) {
                let subjects: Vec<&str> = of_one_reason.iter().map(|skipped| &*skipped.subject).collect();
                let _ = write!(out, "Not measured: {}: {}\n\n", subjects.join(", "), of_one_reason[0].reason);
            }
        }
        out += &self.values(reports);
        let _ = write!(out, "Alike: {}\n\nDifferent: {}\n\n", self.alike, self.differs);
        out + &self.origin(reports)
    }

    /// The table of the paper's values and ours.
    fn values(&self, reports: &[(&str, Report)]) -> String {
        if self.claims.is_empty() {
            return "The text of the paper gives no values.\n\n".into();
        }
        let of = |claim: &Claim| claim.values(claim.section().and_then(|id| Some(find(reports, id)?.1)));
        let found: Vec<_> = self.claims.iter().map(|claim| (claim, of(claim))).collect();
        let is_used =
            |column: &&str| found.iter().any(|(_, (values, _))| values.iter().any(|(name, _)| name == column));
        let columns = POOLS.map(|(_, column)| column).into_iter().chain([OURS]);
        let columns: Vec<&str> = columns.filter(is_used).collect();
        let rows = found.iter().map(|(claim, (values, base))| {
            let value = |column: &&str| {
                let rounds = values.iter().find(|(name, _)| name == column).map(|(_, rounds)| rounds);
                rounds.map_or("-".into(), |rounds| claim.cell(rounds))
            };
            let paper = format!("{} ({})", claim.paper, claim.source);
            let mut cells = vec![claim.what.to_owned(), paper, base.clone()];
            cells.extend(columns.iter().map(value));
            cells
        });
        let heads = ["what", "in the paper", "ours against"].into_iter().chain(columns.iter().copied());
        table(&heads.collect::<Vec<_>>(), rows)
    }

    fn origin(&self, reports: &[(&str, Report)]) -> String {
        let command = code(format_args!("conquest bench {}", command_of(self.workload)));
        match reports.iter().find(|(name, _)| *name == self.workload) {
            Some((name, report)) => {
                let day = report.date.split('T').next().unwrap_or_default();
                format!("Made by {command}, {day}: [all rounds](figures/{name}.json).\n\n")
            }
            None => format!("Not published yet: {command} measures it.\n\n"),
        }
    }
}

/// A published section, and the report that has it.
fn find<'r>(reports: &'r [(&str, Report)], id: &str) -> Option<(&'r Report, &'r Section)> {
    reports.iter().find_map(|(_, report)| {
        let section = report.outcome.sections.iter().find(|section| section.id == id)?;
        Some((report, section))
    })
}

/// Sections with a plot that no figure shows, as links.
pub fn other_plots(reports: &[(&str, Report)]) -> String {
    let is_shown = |id: &str| PAPERS.iter().flat_map(|paper| paper.figures).any(|f| f.sections.contains(&id));
    let drawn = reports.iter().flat_map(|(_, report)| plot::of(&report.outcome));
    let links: Vec<String> = drawn
        .filter(|(_, section, _)| !is_shown(&section.id))
        .map(|(file, section, _)| format!("[{}](figures/{file})", section.id))
        .collect();
    match links.is_empty() {
        true => String::new(),
        false => format!("Further plots: {}\n\n", links.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::WORKLOADS;
    use report::Outcome;

    fn figures() -> impl Iterator<Item = &'static Figure> {
        PAPERS.into_iter().flat_map(|paper| paper.figures)
    }

    #[test]
    fn each_figure_has_a_question_a_published_workload_and_values_with_sources() {
        for figure in figures() {
            assert!(figure.question.ends_with('?'), "{}", figure.name);
            assert!(WORKLOADS.iter().any(|(name, _)| *name == figure.workload), "{}", figure.workload);
            assert!(!figure.sections.is_empty() && !figure.alike.is_empty() && !figure.differs.is_empty());
            for claim in figure.claims {
                assert!(!claim.source.is_empty(), "{}", claim.what);
                assert!(number(claim.paper).is_some() || claim.sense == Sense::Neither, "{}", claim.paper);
            }
        }
    }

    /// A renamed section or measure would leave gaps.
    #[test]
    fn what_is_published_has_the_sections_and_measures_that_the_figures_name() {
        let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/figures"));
        let reports = crate::published::reports(dir).expect("the committed figures");
        for figure in figures().filter(|figure| reports.iter().any(|(name, _)| *name == figure.workload)) {
            for claim in figure.claims {
                let Some(id) = claim.section() else { continue };
                let Some((_, section)) = find(&reports, id) else { panic!("{}: no section {id}", figure.name) };
                if let Ours::Pools { measure, .. } = claim.ours {
                    assert!(section.measures().contains(&measure), "{}: no {measure}", figure.name);
                } else {
                    assert!(!claim.values(Some(section)).0.is_empty(), "{}: {}", figure.name, claim.what);
                }
            }
        }
    }

    const CLAIM: Claim = Claim::factor("create", "1.50 x", "section 5", ("s", "create", &["ext2", "ext4"]));

    fn section() -> Section {
        let mut section = Section::rates("s", "Title", "1/s");
        for (subject, figures) in [("ext4", [1.0, 1.0]), (BATTERY.name, [2.0, 3.0]), (LOGGED.name, [0.5, 0.5])] {
            figures.iter().for_each(|figure| section.add(subject, "create", *figure));
        }
        section.add(LOGGED_MOUNTED.name, "create", 1.0);
        section.add(LOGGED_MOUNTED.name, "create", 2.0);
        section
    }

    #[test]
    fn ours_stands_beside_the_papers_and_says_if_it_is_worse_or_uncertain() {
        let figure = Figure {
            name: "Figure 1",
            question: "Is it fast?",
            workload: "smallfile",
            sections: &["s"],
            claims: &[CLAIM],
            alike: "all",
            differs: "nothing",
        };
        let outcome = Outcome { sections: vec![section()], findings: Vec::new() };
        let text = figure.show(&[("smallfile", Report { outcome, ..Report::begin(false) })]);
        let row = "| create | 1.50 x (section 5) | ext4 | 2.5 x (2.0 to 3.0) | **0.50 x** | 1.5 x (1.0 to 2.0) ? |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("`conquest bench smallfile`") && text.contains("(figures/smallfile.json)"), "{text}");
        let text = figure.show(&[]);
        assert!(text.contains("Not published yet") && text.contains("| create | 1.50 x (section 5) | - |"), "{text}");
    }
}
