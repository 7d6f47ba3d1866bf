//! Fast and slow disks, f of one kind and s of the other, written in order (Figure 5): against what all of them deliver together, and
//! against striping, which goes at the slowest disk's speed.

use super::peer::{named, Bare, Btrfs, PoolOn, BTRFS_RAID0, STRIPING};
use super::{faster, write_in_order, Bench, COUNT, MB, MIB};
use crate::error::Error;
use crate::place::on_place;
use crate::side::{Who, BATTERY, LOGGED_MOUNTED};
use exraid::Layout;
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const SUM: &str = "sum of the disks";
pub const WHOS: [Who; 2] = [BATTERY, LOGGED_MOUNTED];

/// How a measure is called, by how many disks are fast.
fn measure_of(fast: usize) -> String {
    format!("{} slow ({fast}:{})", COUNT - fast, COUNT - fast)
}

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title = format!(
        "Four disks of {} or {} MB/s: {} MiB written in order and synced (Figure 5)",
        bench.args.fast,
        bench.args.slow,
        bench.size() / MIB
    );
    let mut section = Section::rates("disks-unequal", title, "MB/s");
    (section.baseline, section.plot) = (Some(SUM.into()), Plot::lines("slow disks of four"));
    if let Err(e) = measure(bench, &mut section) {
        bench.failed("unequal", std::slice::from_mut(&mut section), &e);
    }
    let findings = WHOS.into_iter().flat_map(|who| findings(&section, who)).collect();
    Outcome { sections: vec![section], findings }
}

fn measure(bench: &Bench<'_>, section: &mut Section) -> Result<(), Error> {
    let rig = bench.rig(&bench.rates(COUNT))?;
    let (paths, bytes) = (rig.paths(), bench.size());
    let chunk = Bare::best_chunk(&paths, bytes / 8)?;
    section.notes.push(format!("striping: chunks of {} KiB, the best of three sizes", chunk >> 10));
    for round in 0..bench.context.rounds(ROUNDS) {
        for fast in (0..=COUNT).rev() {
            let (rates, measure) = (bench.rates(fast), measure_of(fast));
            rig.set_rates(&rates)?;
            let add = |section: &mut Section, who: &'static str, done: Result<f64, Error>| match done {
                Ok(speed) => section.add(who, &measure, speed / MB),
                Err(e) => skip(bench, section, who, &e),
            };
            bench.say("unequal", round, ROUNDS, &format!("{measure}, {SUM}"));
            section.add(SUM, &measure, rig.verify(&rates)? / MB);
            for who in WHOS.into_iter().filter(|who| bench.context.wants(who.kind())) {
                bench.say("unequal", round, ROUNDS, &format!("{measure}, {}", who.name()));
                let pool = PoolOn::make(bench, who, &named(&paths));
                let done =
                    pool.and_then(|pool| on_place!(&pool.place, place => write_in_order(place, &rig, "large", bytes)));
                add(section, who.name(), done);
            }
            bench.say("unequal", round, ROUNDS, &format!("{measure}, {STRIPING}"));
            // Half as much: nothing there begins slowly.
            add(section, STRIPING, Bare::make(Layout::Stripe { chunk }, &paths).and_then(|bare| bare.write(bytes / 2)));
            bench.say("unequal", round, ROUNDS, &format!("{measure}, {BTRFS_RAID0}"));
            let btrfs = Btrfs::make(bench, "raid0", &paths);
            add(
                section,
                BTRFS_RAID0,
                btrfs.and_then(|btrfs| write_in_order(&btrfs.place()?, &rig, "large", bytes / 2)),
            );
        }
    }
    Ok(())
}

/// A subject that is lacking is told of once; one that failed counts as failed.
pub fn skip(bench: &Bench<'_>, section: &mut Section, who: &'static str, e: &Error) {
    if section.skipped.iter().any(|skipped| skipped.subject == who) {
        return;
    }
    match e {
        Error::Usage(reason) => section.skip(who, reason.clone()),
        Error::Program { said, .. } if said == "not installed" => section.skip(who, e.to_string()),
        e => {
            bench.context.failed(&format!("disks: {who}"), e);
            section.fail(who, e.to_string());
        }
    }
}

fn findings(section: &Section, who: Who) -> [Finding; 2] {
    let ratios: Vec<Result<f64, String>> =
        (0..=COUNT).map(|fast| section.ratio(&measure_of(fast), who.name(), SUM)).collect();
    let shown: Vec<String> =
        ratios.iter().map(|ratio| ratio.as_ref().map_or("-".into(), |ratio| format!("{ratio:.2}"))).collect();
    let least = ratios.into_iter().collect::<Result<Vec<f64>, String>>();
    let least = least.map(|ratios| ratios.into_iter().fold(f64::INFINITY, f64::min));
    let what = format!("{}: unequal disks, 4:0 to 0:4, written in order against their sum, the least", who.how());
    let sum = Finding::judge(who.medium(), what, Goal::factor(0.9, 0.97), shown.join(", "), least);
    let what = "disks 2:2, written in order against striping at the slowest disk's speed".to_owned();
    [sum, faster(section, what, Goal::factor(1.7, 1.95), &measure_of(2), who, STRIPING)]
}
