//! Measured figures: every round, for the JSON and for the tables.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use conquest::MediumKind;
use serde::{Deserialize, Serialize};

use crate::cells::Table;
use crate::goals::{Finding, Goal};
use crate::stats::{interval, median, ratios};

/// One workload's figures: subjects × measures, each with all its rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    pub id: Cow<'static, str>,
    pub title: String,
    /// The unit of the figures, such as `us/op`.
    pub unit: Cow<'static, str>,
    pub notes: Vec<String>,
    /// The subject to which the table's ratios relate.
    pub baseline: Option<Cow<'static, str>>,
    /// True for rates, false for times.
    pub more_is_better: bool,
    pub skipped: Vec<Skipped>,
    pub series: Vec<Series>,
    /// The kind of its plot, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plot: Option<Plot>,
    /// What is in no one unit, instead of series.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
}

/// The kind of a section's plot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plot {
    pub shape: Shape,
    /// The title of the axis of measures.
    pub axis: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Each measure begins with a number.
    Lines,
    Bars,
}

impl Plot {
    pub const fn lines(axis: &'static str) -> Option<Plot> {
        Some(Plot { shape: Shape::Lines, axis: Cow::Borrowed(axis) })
    }

    pub const fn bars() -> Option<Plot> {
        Some(Plot { shape: Shape::Bars, axis: Cow::Borrowed("") })
    }
}

/// A file system that was not measured, and the reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Skipped {
    pub subject: Cow<'static, str>,
    pub reason: String,
}

/// The rounds of one measure on one subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    pub subject: String,
    pub measure: String,
    pub rounds: Vec<f64>,
    pub median: f64,
}

impl Series {
    /// The 90 % interval of the median.
    pub fn interval(&self) -> [f64; 2] {
        interval(&self.rounds)
    }
}

impl Section {
    /// A section of times.
    pub fn times(id: &'static str, title: impl Into<String>, unit: &'static str) -> Section {
        Section {
            id: id.into(),
            title: title.into(),
            unit: unit.into(),
            notes: Vec::new(),
            baseline: None,
            more_is_better: false,
            skipped: Vec::new(),
            series: Vec::new(),
            plot: None,
            table: None,
        }
    }

    /// A section that is a table of texts.
    pub fn of_table(id: &'static str, title: impl Into<String>, table: Table) -> Section {
        Section { table: Some(table), ..Section::times(id, title, "") }
    }

    /// A section of rates.
    pub fn rates(id: &'static str, title: impl Into<String>, unit: &'static str) -> Section {
        Section { more_is_better: true, ..Section::times(id, title, unit) }
    }

    /// The same, with ratios against a subject in its table.
    pub fn against(self, baseline: &'static str) -> Section {
        Section { baseline: Some(baseline.into()), ..self }
    }

    pub fn drawn(self, plot: Option<Plot>) -> Section {
        Section { plot, ..self }
    }

    pub fn noting(mut self, note: impl Into<String>) -> Section {
        self.notes.push(note.into());
        self
    }

    /// Adds one round's figure.
    pub fn add(&mut self, subject: &str, measure: &str, figure: f64) {
        let found = self.series.iter_mut().find(|s| s.subject == subject && s.measure == measure);
        match found {
            Some(series) => {
                series.rounds.push(figure);
                series.median = median(&series.rounds);
            }
            None => self.series.push(Series {
                subject: subject.into(),
                measure: measure.into(),
                rounds: vec![figure],
                median: figure,
            }),
        }
    }

    /// Adds the rounds of another section.
    pub fn add_all(&mut self, other: &Section) {
        for series in &other.series {
            series.rounds.iter().for_each(|figure| self.add(&series.subject, &series.measure, *figure));
        }
    }

    /// Records why a subject is missing.
    pub fn skip(&mut self, subject: &'static str, reason: impl Into<String>) {
        self.skipped.push(Skipped { subject: subject.into(), reason: reason.into() });
    }

    /// Removes a failed subject: its rounds would be compared with the wrong ones of others.
    pub fn fail(&mut self, subject: &'static str, reason: String) {
        self.series.retain(|s| s.subject != subject);
        self.skipped.push(Skipped { subject: subject.into(), reason: format!("FAILED: {reason}") });
    }

    pub fn get(&self, subject: &str, measure: &str) -> Option<&Series> {
        self.series.iter().find(|s| s.subject == subject && s.measure == measure)
    }

    /// The median of a series, or the reason why there is none.
    pub fn median(&self, subject: &str, measure: &str) -> Result<f64, String> {
        self.rounds_of((subject, measure)).map(median)
    }

    /// The median ratio of `over` to `under` for one measure, or the reason why it is unknown.
    pub fn ratio(&self, measure: &str, over: &str, under: &str) -> Result<f64, String> {
        self.ratio_of((over, measure), (under, measure))
    }

    /// The same between any two series, each named by subject and measure.
    pub fn ratio_of(&self, over: (&str, &str), under: (&str, &str)) -> Result<f64, String> {
        self.ratios_of(over, under).map(|ratios| median(&ratios))
    }

    /// The same of each round.
    pub fn ratios_of(&self, over: (&str, &str), under: (&str, &str)) -> Result<Vec<f64>, String> {
        Ok(ratios(self.rounds_of(over)?, self.rounds_of(under)?))
    }

    fn rounds_of(&self, (subject, measure): (&str, &str)) -> Result<&[f64], String> {
        if let Some(series) = self.get(subject, measure) {
            return Ok(&series.rounds);
        }
        // If nothing at all was measured, the first reason holds for all.
        let of_all = self.skipped.first().filter(|_| self.series.is_empty());
        let skipped = self.skipped.iter().find(|s| s.subject == subject).or(of_all);
        Err(skipped.map_or(format!("{subject} was not measured"), |s| format!("{}: {}", s.subject, s.reason)))
    }

    /// How many times as good as `base` a subject is: above 1 is better for times and for rates.
    pub fn factor(&self, measure: &str, subject: &str, base: &str) -> Result<f64, String> {
        self.factors(measure, subject, base).map(|factors| median(&factors))
    }

    /// The same of each round.
    pub fn factors(&self, measure: &str, subject: &str, base: &str) -> Result<Vec<f64>, String> {
        let (over, under) = if self.more_is_better { (subject, base) } else { (base, subject) };
        self.ratios_of((over, measure), (under, measure))
    }

    /// A row of the goals that these figures decide.
    pub fn row(&self, medium: MediumKind, what: impl Into<String>, goal: Goal) -> Row<'_> {
        Row { section: self, medium, what: what.into(), goal }
    }

    /// The median as text, for a column of measured figures.
    pub fn text(&self, subject: &str, measure: &str) -> String {
        self.get(subject, measure).map_or("-".into(), |s| format!("{:.2}", s.median))
    }

    /// Subjects and measures in the order of their first appearance.
    pub fn subjects(&self) -> Vec<&str> {
        in_order(self.series.iter().map(|s| s.subject.as_str()))
    }

    pub fn measures(&self) -> Vec<&str> {
        in_order(self.series.iter().map(|s| s.measure.as_str()))
    }
}

/// A goal whose figures are still to be chosen.
pub struct Row<'a> {
    section: &'a Section,
    medium: MediumKind,
    what: String,
    goal: Goal,
}

impl Row<'_> {
    /// How many times as good as `base` a subject is.
    pub fn factor(self, measure: &str, subject: &str, base: &str) -> Finding {
        let factors = self.section.factors(measure, subject, base);
        self.judge_rounds([(subject, measure), (base, measure)], factors)
    }

    /// The median ratio of `over` to `under`.
    pub fn ratio(self, measure: &str, over: &str, under: &str) -> Finding {
        self.between((over, measure), (under, measure))
    }

    /// The same between any two series, each named by subject and measure.
    pub fn between(self, over: (&str, &str), under: (&str, &str)) -> Finding {
        let ratios = self.section.ratios_of(over, under);
        self.judge_rounds([over, under], ratios)
    }

    pub fn median(self, subject: &str, measure: &str) -> Finding {
        let rounds = self.section.rounds_of((subject, measure)).map(<[f64]>::to_vec);
        self.judge_rounds([(subject, measure)], rounds)
    }

    fn judge_rounds<const N: usize>(self, shown: [(&str, &str); N], rounds: Result<Vec<f64>, String>) -> Finding {
        let spread = rounds.as_ref().ok().filter(|rounds| rounds.len() > 1).map(|rounds| interval(rounds));
        Finding { spread, ..self.judge(shown, rounds.map(|rounds| median(&rounds))) }
    }

    /// A value that the caller computed from these series.
    pub fn judge<const N: usize>(self, shown: [(&str, &str); N], value: Result<f64, String>) -> Finding {
        let texts = shown.map(|(subject, measure)| self.section.text(subject, measure));
        let measured = format!("{} {}", texts.join(" / "), of_each(&self.section.unit));
        Finding::judge(self.medium, self.what, self.goal, measured, value)
    }
}

/// A unit of single things, without the thing.
fn of_each(unit: &str) -> &str {
    match unit {
        "1/s" => "/s",
        "1000/s" | "1000 files/s" => "k/s",
        "B each" => "B",
        unit => ["/op", "/entry", "/B"].iter().find_map(|each| unit.strip_suffix(each)).unwrap_or(unit),
    }
}

fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// The results of one workload.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub sections: Vec<Section>,
    pub findings: Vec<Finding>,
}

impl Outcome {
    pub fn extend(&mut self, other: Outcome) {
        self.sections.extend(other.sections);
        self.findings.extend(other.findings);
    }
}

/// The whole run, in the form that `--json` writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub program: Cow<'static, str>,
    pub version: Cow<'static, str>,
    /// When the run began, in UTC, in the format of RFC 3339.
    pub date: String,
    pub quick: bool,
    pub machine: Machine,
    /// What the programs were, told apart by a checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// How long the run took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(flatten)]
    pub outcome: Outcome,
    pub failures: Vec<String>,
}

impl Report {
    /// The report of a run that begins now.
    pub fn begin(quick: bool) -> Report {
        Report {
            program: "conquest bench".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            quick,
            machine: Machine::this(),
            build: None,
            seconds: None,
            outcome: Outcome::default(),
            failures: Vec::new(),
        }
    }

    pub fn write(&self, mut file: File) -> io::Result<()> {
        writeln!(file, "{}", serde_json::to_string_pretty(self)?)
    }

    pub fn read(path: &Path) -> io::Result<Report> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }
}

/// The machine's properties that influence the figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub kernel: String,
    pub processor: String,
    pub processors: usize,
    /// Bytes of RAM.
    pub memory: u64,
    /// Processes that waited for a processor or ran, averaged over the minute before the run.
    pub load: f64,
    /// The part of the processors' time that other programs took just before the run, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
}

/// Load above which figures of two threads on two processors are doubtful.
const BUSY: f64 = 0.3;

impl Machine {
    pub fn this() -> Machine {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let info = rustix::system::sysinfo();
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = processors.lines().find_map(|l| l.strip_prefix("model name").and_then(|l| l.split_once(':')));
        let loads = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Machine {
            kernel,
            processor: model.map_or("unknown".into(), |(_, name)| name.trim().into()),
            memory: info.totalram * u64::from(info.mem_unit),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            load: loads.split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(0.0),
            others: None,
        }
    }

    /// The first lines of a report.
    pub fn describe(&self) -> String {
        let mut text = format!("Linux {}, {} x {}", self.kernel, self.processors, self.processor);
        if self.load > BUSY {
            text += &format!("\nOther programs keep the machine busy (load {:.1}): expect noise.", self.load);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section() -> Section {
        let mut section = Section::times("t", "t", "us");
        for (a, b) in [(2.0, 4.0), (3.0, 9.0), (2.0, 4.0)] {
            section.add("a", "create", a);
            section.add("b", "create", b);
        }
        section
    }

    #[test]
    fn ratios_pair_the_rounds() {
        assert_eq!(section().ratio("create", "b", "a"), Ok(2.0));
    }

    #[test]
    fn a_row_shows_the_figures_that_it_judges() {
        let section = section();
        let row = |goal| section.row(MediumKind::Logged, "a row", goal);
        let of_base = row(Goal::factor(1.5, 2.0)).factor("create", "a", "b");
        assert_eq!((of_base.value, of_base.measured.as_str()), (Some(2.0), "2.00 / 4.00 us"));
        let spread = row(Goal::factor(2.5, 3.0)).factor("create", "a", "b");
        assert_eq!((spread.spread, spread.is_hidden()), (Some([2.0, 3.0]), true));
        assert_eq!(row(Goal::at_most(1.5, 2.0)).ratio("create", "a", "b").value, Some(0.5));
        assert_eq!(row(Goal::quantity(1.5, 2.0, "us")).median("a", "create").value, Some(2.0));
        assert_eq!(["us/op", "B/B", "1/s", "MB/s"].map(of_each), ["us", "B", "/s", "MB/s"]);
    }

    #[test]
    fn what_failed_has_no_ratio_but_a_reason() {
        let mut section = section();
        section.fail("b", "no room".into());
        let reason = section.ratio("create", "b", "a").expect_err("no ratio");
        assert!(reason.contains("FAILED: no room"), "{reason}");
        assert!(section.ratio("create", "c", "a").expect_err("no ratio").contains("not measured"));
        section.fail("a", "no disk".into());
        assert!(section.ratio("create", "c", "a").expect_err("no ratio").contains("no room"));
    }
}
