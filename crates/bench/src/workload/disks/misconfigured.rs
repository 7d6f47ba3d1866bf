//! Two of four disks are one: a pool, and striping, over both halves of a disk and two whole ones (section 6.3).

use super::peer::{named, Bare, Btrfs, PoolOn, BTRFS_RAID0, STRIPING};
use super::unequal::{skip, WHOS};
use super::{faster, write_in_order, Bench, MB, MIB};
use crate::error::Error;
use crate::place::on_place;
use exraid::Layout;
use report::goals::Goal;
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const WRITE: &str = "write";
const SUM: &str = "sum of the disks";

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title = format!(
        "Three disks of {} MB/s, one of which is there as two halves: {} MiB written in order and synced",
        bench.args.fast,
        bench.size() / MIB
    );
    let mut section = Section::rates("disks-misconfigured", title, "MB/s");
    (section.baseline, section.plot) = (Some(STRIPING.into()), Plot::bars());
    if let Err(e) = measure(bench, &mut section) {
        bench.failed("misconfigured", std::slice::from_mut(&mut section), &e);
    }
    let row = |who| {
        let what = "two of four disks are halves of one, written in order against striping".to_owned();
        faster(&section, what, Goal::factor(1.35, 1.5), WRITE, who, STRIPING)
    };
    let findings = WHOS.into_iter().map(row).collect();
    Outcome { sections: vec![section], findings }
}

fn measure(bench: &Bench<'_>, section: &mut Section) -> Result<(), Error> {
    let rates = [bench.fast(); 3];
    let mut rig = bench.rig_of(&rates, bench.size() * 3)?;
    let sum = rig.verify(&rates)?;
    let mut paths = rig.paths();
    paths.splice(..1, rig.disks[0].halves()?);
    let bytes = bench.size();
    let chunk = Bare::best_chunk(&paths, bytes / 8)?;
    for round in 0..bench.context.rounds(ROUNDS) {
        section.add(SUM, WRITE, sum / MB);
        let add = |section: &mut Section, who: &'static str, done: Result<f64, Error>| match done {
            Ok(speed) => section.add(who, WRITE, speed / MB),
            Err(e) => skip(bench, section, who, &e),
        };
        for who in WHOS.into_iter().filter(|who| bench.context.wants(who.kind())) {
            bench.say("misconfigured", round, ROUNDS, who.name());
            let pool = PoolOn::make(bench, who, &named(&paths));
            let done =
                pool.and_then(|pool| on_place!(&pool.place, place => write_in_order(place, &rig, "large", bytes)));
            add(section, who.name(), done);
        }
        bench.say("misconfigured", round, ROUNDS, STRIPING);
        add(section, STRIPING, Bare::make(Layout::Stripe { chunk }, &paths).and_then(|bare| bare.write(bytes / 2)));
        bench.say("misconfigured", round, ROUNDS, BTRFS_RAID0);
        let btrfs = Btrfs::make(bench, "raid0", &paths);
        add(section, BTRFS_RAID0, btrfs.and_then(|btrfs| write_in_order(&btrfs.place()?, &rig, "large", bytes / 2)));
    }
    Ok(())
}
