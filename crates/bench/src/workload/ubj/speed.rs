//! Filebench against ext4 with a journal of everything (UBJ Figure 10): operations per second, and seconds for so many of them.

use super::{section, stocks, Bench, MIB};
use crate::setting::Setting;
use crate::side::{Who, BATTERY, BATTERY_MOUNTED, JOURNAL, ORDERED};
use crate::workload::filebench::measure;
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const WHOS: [Who; 4] = [JOURNAL, ORDERED, BATTERY, BATTERY_MOUNTED];
/// Operations whose time is told.
const MANY: f64 = 1e6;

pub fn run(bench: &Bench<'_>, setting: &Setting<'_>) -> Outcome {
    let seconds = bench.seconds(bench.args.seconds);
    let title = format!("UBJ Figure 10, Filebench, {seconds} s a round");
    let mut section = section(setting, "ubj-10", title, "1/s", true);
    section.baseline = Some(JOURNAL.name().into());
    section.plot = Plot::bars();
    let mut sections = [section];
    let disk = bench.context.size(4096, 512) as u64 * MIB;
    let mut sides = bench.sides(setting, &WHOS, disk, &mut sections);
    for stock in stocks(bench.context) {
        measure(setting, &stock, seconds, &mut sides, &mut sections);
    }
    let [rates] = sections;
    let findings = findings(&rates);
    Outcome { sections: vec![times(&rates, setting), rates], findings }
}

/// The same rounds as times.
fn times(rates: &Section, setting: &Setting<'_>) -> Section {
    let mut times = Section {
        baseline: rates.baseline.clone(),
        plot: Plot::bars(),
        skipped: rates.skipped.clone(),
        ..section(
            setting,
            "ubj-10-time",
            "UBJ Figure 10, what a million operations of Filebench take".into(),
            "s",
            false,
        )
    };
    for series in &rates.series {
        series.rounds.iter().for_each(|rate| times.add(&series.subject, &series.measure, MANY / rate));
    }
    times
}

/// What the paper found: 3.4 times the operations of varmail, 1.23 times those of webserver and 1.11 times those of the proxy; of
/// fileserver it says that it gains less than varmail.
fn findings(rates: &Section) -> Vec<Finding> {
    let paper = [("varmail", 3.4), ("fileserver", 1.1), ("webserver", 1.23), ("webproxy", 1.11)];
    let row = |own: Who, (name, aim): (&str, f64)| {
        let measured = [own, JOURNAL].map(|who| rates.text(who.name(), name)).join(" / ") + " /s";
        let what = format!("{}: UBJ Figure 10, {name}, against {}", own.how(), JOURNAL.name());
        let value = rates.factor(name, own.name(), JOURNAL.name());
        Finding::judge(own.medium(), what, Goal::factor(1.0, aim), measured, value)
    };
    let both = |one| [row(BATTERY, one), row(BATTERY_MOUNTED, one)];
    paper.into_iter().flat_map(both).collect()
}
