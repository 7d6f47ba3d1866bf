//! PostMark on files of 500 KB on average (UBJ Figure 12): bytes read, and written, in a second of its transactions, by how many there
//! are.

use super::{section, Bench, MIB};
use crate::place::on_place;
use crate::setting::Setting;
use crate::side::{rounds, Who, BATTERY_MOUNTED, JOURNAL, ORDERED};
use crate::workload::postmark::Run;
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 1;
const WHOS: [Who; 3] = [JOURNAL, ORDERED, BATTERY_MOUNTED];
const SIZES: std::ops::RangeInclusive<u64> = 100_000..=900_000;
/// Bytes of a call.
const CALL: usize = 4096;
/// Read, and written.
const HOW: [(&str, &str); 2] = [("ubj-12-read", "read"), ("ubj-12-write", "written")];

pub fn run(bench: &Bench<'_>, setting: &Setting<'_>) -> Outcome {
    let files = bench.context.size(bench.args.files, 20);
    let counts: Vec<usize> = bench.few(&bench.args.transactions).iter().map(|&n| bench.context.size(n, 50)).collect();
    let mut sections = HOW.map(|(id, how)| {
        let title = format!("UBJ Figure 12, PostMark, {files} files of 500 KB, {how} by the number of transactions");
        let mut section = section(setting, id, title, "MiB/s", true);
        section.baseline = Some(JOURNAL.name().into());
        section.plot = Plot::lines("transactions");
        section
    });
    let most = counts.iter().copied().max().unwrap_or(0);
    // Half of the transactions make a file, and as many remove one, give or take some.
    let disk = (files + most / 20 + 50) as u64 * SIZES.end() * 5 / 4 + 512 * MIB;
    let mut sides = bench.sides(setting, &WHOS, disk, &mut sections);
    for &count in &counts {
        let run = Run::with_sizes(files, count, CALL, SIZES);
        let label = format!("ubj: PostMark, {count} transactions");
        rounds(setting, &label, ROUNDS, &mut sides, &mut sections, |side, _, sections| {
            let [rate, ..] = on_place!(&side.place, place => run.round(place))?;
            for (section, bytes) in sections.iter_mut().zip(run.bytes()) {
                section.add(side.name(), &count.to_string(), rate * bytes / MIB as f64);
            }
            Ok(())
        });
    }
    let findings = sections.iter().zip(HOW).flat_map(|(section, (_, how))| findings(section, how, &counts));
    Outcome { findings: findings.collect(), sections: sections.into() }
}

/// What the paper found: 2.09 times as fast on average.
fn findings(section: &Section, how: &str, counts: &[usize]) -> Vec<Finding> {
    let row = |count: &usize| {
        let measure = count.to_string();
        let measured = [BATTERY_MOUNTED, JOURNAL].map(|who| section.text(who.name(), &measure)).join(" / ") + " MiB/s";
        let what = format!("mounted: UBJ Figure 12, {how}, {count} transactions, against {}", JOURNAL.name());
        let value = section.factor(&measure, BATTERY_MOUNTED.name(), JOURNAL.name());
        Finding::judge(BATTERY_MOUNTED.medium(), what, Goal::factor(1.0, 2.09), measured, value)
    };
    counts.iter().map(row).collect()
}
