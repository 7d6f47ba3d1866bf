//! One of four fast disks delivers 27 % while the middle third is written (Figure 6).

use super::peer::{named, Bare, Btrfs, PoolOn, BTRFS_RAID0, STRIPING};
use super::trace::{watched, Trace};
use super::unequal::{skip, WHOS};
use super::{faster, write_in_order, Bench, COUNT, MB, MIB};
use crate::error::Error;
use crate::place::on_place;
use crate::rig::Rig;
use exraid::Layout;
use report::goals::Goal;
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 3;
/// What the disk delivers of its speed then: 5.8 of 21.6 MB/s.
const LEFT: f64 = 0.27;
/// Times as much is written as in other parts, so that a third of it is some seconds.
const TIMES: u64 = 2;
const THIRDS: [&str; 3] = ["first third", "middle third", "last third"];
/// Seconds of a point of the plot.
const STEP: f64 = 0.25;

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title = format!(
        "Four disks of {} MB/s, one of which delivers {:.0} % while the middle third of {} MiB is written (Figure 6)",
        bench.args.fast,
        LEFT * 100.0,
        bench.size() * TIMES / MIB
    );
    let mut thirds = Section::rates("disks-degraded", title.clone(), "MB/s");
    (thirds.baseline, thirds.plot) = (Some(STRIPING.into()), Plot::bars());
    let mut time = Section::rates("disks-degraded-time", format!("{title}, over time"), "MB/s");
    time.plot = Plot::lines("seconds");
    let mut each = Section::rates("disks-degraded-each", format!("{title}, over time, each disk"), "MB/s");
    each.plot = Plot::lines("seconds");
    let mut sections = [thirds, time, each];
    if let Err(e) = measure(bench, &mut sections) {
        bench.failed("degraded", &mut sections, &e);
    }
    let row = |who| {
        let what = "one of four disks slowed to 27 % for the middle third: that third, against striping".to_owned();
        faster(&sections[0], what, Goal::factor(2.0, 2.8), THIRDS[1], who, STRIPING)
    };
    let findings = WHOS.into_iter().map(row).collect();
    Outcome { sections: sections.into(), findings }
}

fn measure(bench: &Bench<'_>, sections: &mut [Section; 3]) -> Result<(), Error> {
    let rates = bench.rates(COUNT);
    let bytes = bench.size() * TIMES;
    let rig = bench.rig_of(&rates, bytes + 256 * MIB)?;
    let paths = rig.paths();
    let chunk = Bare::best_chunk(&paths, bench.size() / 8)?;
    for round in 0..bench.context.rounds(ROUNDS) {
        for who in WHOS.into_iter().filter(|who| bench.context.wants(who.kind())) {
            bench.say("degraded", round, ROUNDS, who.name());
            let pool = PoolOn::make(bench, who, &named(&paths));
            let done = pool.and_then(|pool| {
                disturbed(
                    &rig,
                    &rates,
                    bytes,
                    || on_place!(&pool.place, place => write_in_order(place, &rig, "large", bytes)),
                )
            });
            add(bench, sections, who.name(), bytes, done);
        }
        bench.say("degraded", round, ROUNDS, STRIPING);
        let bare = Bare::make(Layout::Stripe { chunk }, &paths);
        let done = bare.and_then(|bare| disturbed(&rig, &rates, bytes, || bare.write(bytes)));
        add(bench, sections, STRIPING, bytes, done);
        bench.say("degraded", round, ROUNDS, BTRFS_RAID0);
        let btrfs = Btrfs::make(bench, "raid0", &paths);
        let done = btrfs.and_then(|btrfs| {
            let place = btrfs.place()?;
            disturbed(&rig, &rates, bytes, || write_in_order(&place, &rig, "large", bytes))
        });
        add(bench, sections, BTRFS_RAID0, bytes, done);
    }
    Ok(())
}

/// Writes so many bytes by `work`, of whose middle third the last disk knows when it begins and ends.
fn disturbed(rig: &Rig, rates: &[u64], bytes: u64, work: impl FnOnce() -> Result<f64, Error>) -> Result<Trace, Error> {
    let (disk, rate) = (&rig.disks[COUNT - 1], rates[COUNT - 1]);
    let mut next = 1;
    let see = |_: f64, written: u64| {
        while next < 3 && written >= bytes * next / 3 {
            disk.set_rate(if next == 1 { (rate as f64 * LEFT) as u64 } else { rate })?;
            next += 1;
        }
        Ok(())
    };
    let done = watched(rig, see, work);
    rig.set_rates(rates)?;
    Ok(done?.1)
}

fn add(bench: &Bench<'_>, sections: &mut [Section; 3], who: &'static str, bytes: u64, done: Result<Trace, Error>) {
    match done {
        Ok(trace) => {
            let [thirds, time, each] = sections;
            let mut from = 0.0;
            for (n, third) in THIRDS.iter().enumerate() {
                // A pool may keep the last of it.
                let to = trace.when((bytes * (n as u64 + 1) / 3) as f64).unwrap_or(trace.end());
                thirds.add(who, third, trace.rate(from, to) / MB);
                from = to;
            }
            trace.add_rates(time, who, STEP);
            if WHOS.iter().any(|own| own.name() == who) {
                trace.add_rates_of_each(each, who, STEP);
            }
        }
        Err(e) => sections.iter_mut().for_each(|section| skip(bench, section, who, &e)),
    }
}
