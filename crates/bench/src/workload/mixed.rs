//! PostMark with large files among the small ones (Figure 5.6 of the Conquest paper): so many percent of the files have 2 to
//! 5 MB, the others 512 B to 16 KB.
//!
//! By default a fifth of the paper's files, so that it takes minutes.

use crate::args::PostmarkLarge;
use crate::context::Context;
use crate::error::Error;
use crate::place::on_place;
use crate::setting::{self, Setting};
use crate::side::{self, rounds, Side, Sizes, Who, BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED, ORDERED};
use crate::workload::plan::{LARGE, SIZES};
use crate::workload::postmark::Run;
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const MIB: u64 = 1 << 20;
const ID: &str = "postmark-5.6";
const WHOS: [Who; 5] = [ORDERED, BATTERY, LOGGED, BATTERY_MOUNTED, LOGGED_MOUNTED];

pub fn run(context: &Context, args: &PostmarkLarge) -> Result<Outcome, Error> {
    if let Some(percent) = args.percent.iter().find(|percent| !(0.0..=100.0).contains(*percent)) {
        return Err(Error::Usage(format!("--percent {percent}: must be 0 to 100")));
    }
    let mut outcome = Outcome::default();
    for setting in Setting::all(context, &args.grounds) {
        match setting {
            Ok(setting) => outcome.extend(in_setting(&setting, args)),
            Err((which, reason)) => {
                let mut section = Section::rates(ID, "PostMark with large files", "1/s");
                section.id = setting::id(ID, which).into();
                section.skip(ORDERED.name(), reason);
                outcome.sections.push(section);
            }
        }
    }
    Ok(outcome)
}

fn in_setting(setting: &Setting<'_>, args: &PostmarkLarge) -> Outcome {
    let context = setting.context;
    let (files, transactions) = (context.size(args.files, 200), context.size(args.transactions, 200));
    let title = format!(
        "Figure 5.6, PostMark transaction rate by percent of large files ({files} files, {transactions} transactions, \
         calls of {} B); {}",
        args.block, setting.name
    );
    let mut section = Section::rates(ID, title, "1/s");
    section.id = setting.id(ID).into();
    section.baseline = Some(ORDERED.name().into());
    section.plot = Plot::lines("percent of the files are large");
    let most = args.percent.iter().copied().fold(0.0, f64::max);
    let sizes =
        Sizes { disk: bytes(files + transactions, most) + 512 * MIB, ram: context.size(args.cache, 128) as u64 * MIB };
    let (mut sides, skipped) = side::make(setting, &WHOS, |who| Side::make(setting, who, sizes));
    section.skipped = skipped;
    let mut sections = [section];
    for &percent in &args.percent {
        let run = Run::with_large(files, transactions, args.block, percent);
        let label = format!("PostMark, {percent} % large files");
        rounds(setting, &label, ROUNDS, &mut sides, &mut sections, |side, _, sections| {
            let [rate, ..] = on_place!(&side.place, place => run.round(place))?;
            sections[0].add(side.name(), &format!("{percent} %"), rate);
            Ok(())
        });
    }
    let mut findings = findings(&sections[0], most);
    setting.tell(&mut findings);
    Outcome { findings, sections: sections.into() }
}

/// What so many files take at most: a transaction in two makes one, and one in five makes one longer.
fn bytes(files: usize, percent: f64) -> u64 {
    let large = files as f64 * percent / 100.0;
    // A few more than there are on average may be drawn.
    (large * 1.2 + 10.0) as u64 * LARGE.end() + files as u64 * SIZES.end()
}

/// What the paper found: 1.29 to 4.1 times as fast as ext2, in the end 1.75 times, with the most large files.
fn findings(section: &Section, most: f64) -> Vec<Finding> {
    let measure = format!("{most} %");
    let row = |own: Who| {
        let measured = [own, ORDERED].map(|who| section.text(who.name(), &measure)).join(" / ") + " /s";
        let what = format!("{}: Figure 5.6, {measure} large files, against {}", own.how(), ORDERED.name());
        let value = section.factor(&measure, own.name(), ORDERED.name());
        Finding::judge(own.medium(), what, Goal::factor(1.29, 1.75), measured, value)
    };
    [BATTERY_MOUNTED, LOGGED_MOUNTED, BATTERY, LOGGED].map(row).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Mounted;

    #[test]
    fn a_run_with_large_files_gives_rates_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let run = Run::with_large(20, 40, 65_536, 50.0);
        let rates = run.round(&place).expect("a round");
        assert!(rates.iter().all(|&rate| rate > 0.0), "{rates:?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }
}
