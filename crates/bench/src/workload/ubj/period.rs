//! What an operation of varmail takes, by the period of commits (UBJ Figure 13). On `logged` a pool has one; on `battery` each write
//! commits, whatever the period.

use std::path::Path;
use std::process::Command;

use super::{section, Bench, MIB};
use crate::args::Personality;
use crate::error::Error;
use crate::hosts;
use crate::place::{on_place, Place};
use crate::setting::Setting;
use crate::side::{rounds, Side, Who, BATTERY_MOUNTED, JOURNAL, LOGGED_MOUNTED};
use crate::workload::filebench::once;
use crate::workload::filebench::personality::{Flow, Stock};
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 1;
const WHOS: [Who; 3] = [JOURNAL, BATTERY_MOUNTED, LOGGED_MOUNTED];

pub fn run(bench: &Bench<'_>, setting: &Setting<'_>) -> Outcome {
    let seconds = bench.seconds(bench.args.long);
    let title = format!("UBJ Figure 13, latency of an operation of varmail by the period of commits, {seconds} s each");
    let mut section = section(setting, "ubj-13", title, "us/op", false);
    section.baseline = Some(JOURNAL.name().into());
    section.plot = Plot::lines("seconds from commit to commit");
    let mut sections = [section];
    let disk = bench.context.size(2048, 512) as u64 * MIB;
    let mut sides = bench.sides(setting, &WHOS, disk, &mut sections);
    let flow = Flow::new(&Stock::of_ubj(Personality::Varmail).times(1, bench.context.quick));
    let periods = bench.few(&bench.args.periods);
    for &period in periods {
        let label = format!("ubj: varmail, commits each {period} s");
        rounds(setting, &label, ROUNDS, &mut sides, &mut sections, |side, round, sections| {
            commit_each(bench, side, period)?;
            let rate = on_place!(&side.place, place => {
                flow.prepare(place).and_then(|()| place.settle())?;
                let rate = once(place, &flow, seconds, round as u64)?;
                flow.remove(place).and_then(|()| place.settle())?;
                rate
            });
            sections[0].add(side.name(), &format!("{period} s"), flow.threads() as f64 * 1e6 / rate);
            Ok(())
        });
    }
    let findings = findings(&sections[0], periods);
    Outcome { findings, sections: sections.into() }
}

/// Mounts it anew with another period, where it has one.
fn commit_each(bench: &Bench<'_>, side: &Side, period: usize) -> Result<(), Error> {
    let dir: &Path = side.dir().ok_or_else(|| Error::Wrong(format!("{} is not mounted", side.name())))?;
    let mut mount = match (side.who, side.pool()) {
        (Who::Ext4(_), _) => Command::new("mount"),
        (LOGGED_MOUNTED, Some(pool)) => {
            let mut mount = Command::new(&bench.context.program);
            mount.arg("mount").arg(pool);
            mount
        }
        _ => return Ok(()),
    };
    hosts::run(mount.args(["-o", &format!("remount,commit={period}")]).arg(dir))
}

/// What the paper found: its latency hardly depends on the period, and is less than that of ext4 at each.
fn findings(section: &Section, periods: &[usize]) -> Vec<Finding> {
    let measure = |period: &usize| format!("{period} s");
    let row = |period: &usize| {
        let at = measure(period);
        let measured = [BATTERY_MOUNTED, JOURNAL].map(|who| section.text(who.name(), &at)).join(" / ") + " us";
        let what = format!("mounted: UBJ Figure 13, varmail, a commit each {at}, against {}", JOURNAL.name());
        let value = section.factor(&at, BATTERY_MOUNTED.name(), JOURNAL.name());
        Finding::judge(BATTERY_MOUNTED.medium(), what, Goal::factor(1.0, 3.4), measured, value)
    };
    let mut findings: Vec<Finding> = periods.iter().map(row).collect();
    if let (Some(least), Some(most)) = (periods.iter().min(), periods.iter().max()) {
        let (short, long) = (measure(least), measure(most));
        for own in [BATTERY_MOUNTED, LOGGED_MOUNTED] {
            let measured = [&short, &long].map(|at| section.text(own.name(), at)).join(" / ") + " us";
            let what = format!("mounted: UBJ Figure 13, varmail, a commit each {short}, times the latency at {long}");
            let value = section.ratio_of((own.name(), &short), (own.name(), &long));
            findings.push(Finding::judge(own.medium(), what, Goal::at_most(1.2, 1.05), measured, value));
        }
    }
    findings
}
