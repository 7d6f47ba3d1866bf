//! Bytes written to disk for an operation of Filebench (UBJ 2, Figure 2), against those of ext4 without a journal. All is counted
//! that a loop device under everything takes, metadata and journals included, until nothing is dirty.

use super::{section, stocks, Bench, MIB};
use crate::error::Error;
use crate::place::{on_place, Place};
use crate::setting::Setting;
use crate::side::{self, rounds, Side, Who, BARE, BATTERY_MOUNTED, JOURNAL, ORDERED};
use crate::workload::filebench::personality::Flow;
use crate::workload::filebench::turns;
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

/// They differ little.
const ROUNDS: usize = 1;
const WHOS: [Who; 4] = [BARE, ORDERED, JOURNAL, BATTERY_MOUNTED];

pub fn run(bench: &Bench<'_>, setting: &Setting<'_>) -> Outcome {
    let seconds = bench.seconds(bench.args.long);
    let title = format!("UBJ Figure 2, bytes written to disk for an operation of Filebench, {seconds} s each");
    let mut section = section(setting, "ubj-2", title, "B/op", false);
    section.baseline = Some(BARE.name().into());
    section.plot = Plot::bars();
    section.notes.push("of a pool, files of up to 64 KiB are in persistent RAM alone: they go to no disk".into());
    let disk = bench.context.size(2048, 512) as u64 * MIB;
    let sizes = bench.sizes_of(disk);
    let (mut sides, skipped) = side::make(setting, &WHOS, |who| Side::make_counted(setting, who, sizes));
    section.skipped = skipped;
    let mut sections = [section];
    let mut names = Vec::new();
    for stock in stocks(bench.context) {
        names.push(stock.name);
        let (label, flow) = (format!("ubj: traffic of {}", stock.name), Flow::new(&stock));
        rounds(setting, &label, ROUNDS, &mut sides, &mut sections, |side, round, sections| {
            let (operations, written) = once(side, &flow, seconds, round as u64)?;
            sections[0].add(side.name(), stock.name, written as f64 / operations.max(1) as f64);
            Ok(())
        });
    }
    Outcome { findings: findings(&sections[0], &names), sections: sections.into() }
}

/// Operations, and bytes written to disk for them.
fn once(side: &Side, flow: &Flow, seconds: f64, round: u64) -> Result<(u64, u64), Error> {
    on_place!(&side.place, place => flow.prepare(place).and_then(|()| place.settle()))?;
    let before = side.written()?;
    let operations = on_place!(&side.place, place => {
        let operations = turns(place, flow, seconds, round)?;
        place.settle()?;
        operations
    });
    let written = side.written()? - before;
    on_place!(&side.place, place => flow.remove(place).and_then(|()| place.settle()))?;
    Ok((operations, written))
}

/// What the paper found: a journal of everything makes it 2.7 times as much on average, and the union leaves hardly any of that.
fn findings(section: &Section, names: &[&str]) -> Vec<Finding> {
    let row = |name: &&str| {
        let measured = [BATTERY_MOUNTED, BARE, JOURNAL].map(|who| section.text(who.name(), name)).join(" / ") + " B";
        let what =
            format!("UBJ Figure 2, {name}: bytes written, times those of {} (beside {})", BARE.name(), JOURNAL.name());
        let value = section.ratio(name, BATTERY_MOUNTED.name(), BARE.name());
        Finding::judge(BATTERY_MOUNTED.medium(), what, Goal::at_most(1.2, 1.0), measured, value)
    };
    names.iter().map(row).collect()
}
