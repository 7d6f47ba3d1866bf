//! One file that is written in order, and then at random all over, in calls of 4 KiB, with a sync at the end (UBJ Figure 11): what
//! IOzone does with `-i 0 -i 2 -e`. Done by fio, of which every distribution has a package.

use std::path::Path;

use super::{section, Bench, MIB};
use crate::error::Error;
use crate::raw::Raw;
use crate::setting::Setting;
use crate::side::{rounds, Who, BATTERY_MOUNTED, JOURNAL, ORDERED};
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const WHOS: [Who; 3] = [JOURNAL, ORDERED, BATTERY_MOUNTED];
/// Figures 11a and 11b: how it is written, and how fio calls that.
const HOW: [(&str, &str, &str); 2] =
    [("ubj-11-random", "random write", "randwrite"), ("ubj-11-sequential", "sequential write", "write")];

pub fn run(bench: &Bench<'_>, setting: &Setting<'_>) -> Outcome {
    let filesets: Vec<u64> = bench.few(&bench.args.filesets).iter().map(|&f| bench.context.size(f, 8) as u64).collect();
    let mut sections = HOW.map(|(id, how, _)| {
        let title = format!("UBJ Figure 11, the pattern of IOzone by fio, {how} of 4 KiB by the size of the file");
        let mut section = section(setting, id, title, "MiB/s", true);
        section.baseline = Some(JOURNAL.name().into());
        section.plot = Plot::lines("MiB of the file");
        section
    });
    let most = filesets.iter().copied().max().unwrap_or(0) * MIB;
    let mut sides = bench.sides(setting, &WHOS, 3 * most + 512 * MIB, &mut sections);
    for &fileset in &filesets {
        let label = format!("ubj: IOzone, {fileset} MiB");
        rounds(setting, &label, ROUNDS, &mut sides, &mut sections, |side, _, sections| {
            let dir = side.dir().ok_or_else(|| Error::Wrong(format!("{} is not mounted", side.name())))?;
            let [random, sequential] = once(dir, fileset * MIB)?;
            let measure = format!("{fileset} MiB");
            sections[0].add(side.name(), &measure, random / MIB as f64);
            sections[1].add(side.name(), &measure, sequential / MIB as f64);
            Ok(())
        });
    }
    let findings = sections.iter().zip(HOW).flat_map(|(section, (_, how, _))| findings(section, how, &filesets));
    Outcome { findings: findings.collect(), sections: sections.into() }
}

/// Bytes per second of each of [`HOW`]; the file is written in order first.
fn once(dir: &Path, bytes: u64) -> Result<[f64; 2], Error> {
    let file = Raw::at(dir.join("iozone"), bytes)?;
    let sequential = file.write_buffered(HOW[1].2)?;
    Ok([file.write_buffered(HOW[0].2)?, sequential])
}

/// What the paper found: 2.1 times as fast on average.
fn findings(section: &Section, how: &str, filesets: &[u64]) -> Vec<Finding> {
    let row = |fileset: &u64| {
        let measure = format!("{fileset} MiB");
        let measured = [BATTERY_MOUNTED, JOURNAL].map(|who| section.text(who.name(), &measure)).join(" / ") + " MiB/s";
        let what = format!("mounted: UBJ Figure 11, {how}, {measure}, against {}", JOURNAL.name());
        let value = section.factor(&measure, BATTERY_MOUNTED.name(), JOURNAL.name());
        Finding::judge(BATTERY_MOUNTED.medium(), what, Goal::factor(1.0, 2.1), measured, value)
    };
    filesets.iter().map(row).collect()
}
