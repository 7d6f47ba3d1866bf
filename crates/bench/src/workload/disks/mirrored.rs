//! Twenty files are written at a time, more and more of them mirrored (Figure 8).

use super::files::{self, Redundancy};
use super::peer::{named, Btrfs, PoolOn, BTRFS_RAID0, BTRFS_RAID1};
use super::unequal::skip;
use super::{Bench, COUNT, MB, MIB};
use crate::error::Error;
use crate::side::{Who, LOGGED_MOUNTED};
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 2;
const FILES: usize = 20;
const STEPS: [usize; 5] = [0, 25, 50, 75, 100];
const WHO: Who = LOGGED_MOUNTED;

fn measure_of(percent: usize) -> String {
    format!("{percent} % mirrored")
}

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title = format!(
        "Four disks of {} MB/s: {FILES} files of {} MiB in all, written at a time and synced, some of them mirrored (Figure 8)",
        bench.args.fast,
        bench.size() / MIB
    );
    let mut section = Section::rates("disks-mirrored", title, "MB/s");
    section.plot = Plot::lines("percent of the files that are mirrored");
    section.notes.push("btrfs mirrors all or nothing: raid0 and raid1".into());
    if let Err(e) = measure(bench, &mut section) {
        bench.failed("mirrored", std::slice::from_mut(&mut section), &e);
    }
    let (all, none) = (measure_of(100), measure_of(0));
    let measured = format!("{} / {} MB/s", section.text(WHO.name(), &all), section.text(WHO.name(), &none));
    let value = section.ratio_of((WHO.name(), &all), (WHO.name(), &none));
    let what = "mounted: all files mirrored, written against none of them mirrored";
    let finding = Finding::judge(WHO.medium(), what, Goal::factor(0.48, 0.5), measured, value);
    Outcome { sections: vec![section], findings: vec![finding] }
}

fn measure(bench: &Bench<'_>, section: &mut Section) -> Result<(), Error> {
    let rig = bench.rig(&bench.rates(COUNT))?;
    let (paths, each) = (rig.paths(), bench.size() / FILES as u64);
    for round in 0..bench.context.rounds(ROUNDS) {
        for percent in STEPS.into_iter().filter(|_| bench.context.wants(WHO.kind())) {
            let measure = measure_of(percent);
            bench.say("mirrored", round, ROUNDS, &measure);
            let pool = PoolOn::make(bench, WHO, &named(&paths));
            let done = pool.and_then(|pool| {
                let dir = pool.dir()?;
                files::require_redundancy(dir)?;
                let of = |n| if n * 100 < percent * FILES { Redundancy::Mirror } else { Redundancy::None };
                files::write(dir, "file", FILES, each, of)
            });
            match done {
                Ok(speed) => section.add(WHO.name(), &measure, speed / MB),
                Err(e) => skip(bench, section, WHO.name(), &e),
            }
        }
        for (who, profile, percent) in [(BTRFS_RAID0, "raid0", 0), (BTRFS_RAID1, "raid1", 100)] {
            bench.say("mirrored", round, ROUNDS, who);
            let btrfs = Btrfs::make(bench, profile, &paths);
            match btrfs.and_then(|btrfs| files::write(&btrfs.dir, "file", FILES, each, |_| Redundancy::Usual)) {
                Ok(speed) => section.add(who, &measure_of(percent), speed / MB),
                Err(e) => skip(bench, section, who, &e),
            }
        }
    }
    Ok(())
}
