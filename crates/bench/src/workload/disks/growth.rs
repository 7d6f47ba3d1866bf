//! A pool is written in order, and gets a disk each time so much has been written (Figure 4): how fast it is, and the new disk's share of
//! what is written in the two seconds after the command. What is written after the last one came is half of all.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::peer::{named, Btrfs, PoolOn, BTRFS_RAID0};
use super::trace::{watched, Trace};
use super::unequal::{skip, WHOS};
use super::{write_in_order, Bench, COUNT, MB, MIB};
use crate::error::Error;
use crate::hosts;
use crate::place::on_place;
use crate::rig::Rig;
use crate::side::Who;
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 2;
/// Seconds after the command in which the share is looked at.
const WINDOW: f64 = 2.0;
/// Points of the plot.
const POINTS: u64 = 24;
/// A disk comes after each such part, until there are four.
const STAGES: u64 = 6;
/// A window that is shorter, as the next disk came or all was written, says nothing.
const SHORTEST: f64 = 0.8;
/// Seconds of a point of the plot of each disk.
const STEP: f64 = 0.5;
/// Of what would be fair, in the least of the windows.
const SHARE: &str = "share of its fair share, the least";

pub fn run(bench: &Bench<'_>) -> Outcome {
    let (rate, mib) = (bench.args.fast / 2, bench.size() / MIB);
    let title =
        format!("{mib} MiB written in order; a disk of {rate} MB/s more after each sixth, three times (Figure 4)");
    let mut speed = Section::rates("disks-growth", format!("{title}, over what was written"), "MB/s");
    speed.plot = Plot::lines("MiB written");
    let mut share =
        Section::rates("disks-growth-share", format!("{title}: the new disk in {WINDOW:.0} s after it came"), "x");
    share.notes.push("1 is as much as each of the others".into());
    let mut each = Section::rates("disks-growth-each", format!("{title}, over time, each disk"), "MB/s");
    each.plot = Plot::lines("seconds");
    let mut sections = [speed, share, each];
    if let Err(e) = measure(bench, &mut sections) {
        bench.failed("growth", &mut sections, &e);
    }
    let row = |who: Who| {
        let what = format!("{}: a new disk: its share of what is written in {WINDOW:.0} s, of a fair one", who.how());
        let (measured, value) = (sections[1].text(who.name(), SHARE), sections[1].median(who.name(), SHARE));
        Finding::judge(who.medium(), what, Goal::factor(0.9, 0.97), measured, value)
    };
    let findings = WHOS.into_iter().map(row).collect();
    Outcome { sections: sections.into(), findings }
}

fn measure(bench: &Bench<'_>, sections: &mut [Section; 3]) -> Result<(), Error> {
    let rig = bench.rig(&[bench.fast() / 2; COUNT])?;
    let (paths, bytes) = (rig.paths(), bench.size());
    let program = &bench.context.program;
    for round in 0..bench.context.rounds(ROUNDS) {
        for who in WHOS.into_iter().filter(|who| bench.context.wants(who.kind())) {
            bench.say("growth", round, ROUNDS, who.name());
            let pool = PoolOn::make(bench, who, &named(&paths[..1]));
            let done = pool.and_then(|pool| {
                let dir = pool.pool().to_owned();
                let grow = move |disk: &Path| {
                    hosts::run(Command::new(program).args(["region", "add"]).arg(&dir).arg(disk).arg("--force"))
                };
                let work = || on_place!(&pool.place, place => write_in_order(place, &rig, "large", bytes));
                grown(&rig, &paths, bytes, grow, work)
            });
            add(bench, sections, who.name(), bytes, done);
        }
        bench.say("growth", round, ROUNDS, BTRFS_RAID0);
        let btrfs = Btrfs::make(bench, "raid0", &paths[..1]);
        let done = btrfs.and_then(|mut btrfs| {
            let place = btrfs.place()?;
            let dir = btrfs.dir.clone();
            let grow = move |disk: &Path| {
                hosts::run(Command::new("btrfs").args(["device", "add", "-f", "-K"]).arg(disk).arg(&dir))
            };
            let done = grown(&rig, &paths, bytes, grow, || write_in_order(&place, &rig, "large", bytes));
            btrfs.has(&paths);
            done
        });
        add(bench, sections, BTRFS_RAID0, bytes, done);
    }
    Ok(())
}

/// Writes by `work`, and has a further disk added by `grow` at each quarter; when each was there.
fn grown(
    rig: &Rig,
    paths: &[PathBuf],
    bytes: u64,
    grow: impl Fn(&Path) -> Result<(), Error> + Sync,
    work: impl FnOnce() -> Result<f64, Error>,
) -> Result<(Trace, Vec<f64>), Error> {
    let (due, wanted) = std::sync::mpsc::channel::<usize>();
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        // By a thread of its own: it is looked on meanwhile.
        let adding = scope.spawn(|| {
            let add = |n: usize| grow(&paths[n]).map(|()| start.elapsed().as_secs_f64());
            wanted.into_iter().map(add).collect::<Result<Vec<f64>, Error>>()
        });
        let mut next = 1;
        let see = move |_: f64, written: u64| {
            while next < COUNT && written >= bytes * next as u64 / STAGES {
                // Where that has failed it is told below.
                let _ = due.send(next);
                next += 1;
            }
            Ok(())
        };
        let done = watched(rig, see, work);
        let added =
            adding.join().unwrap_or_else(|_| Err(Error::Wrong("the thread that adds disks panicked".into())))?;
        Ok((done?.1, added))
    })
}

fn add(
    bench: &Bench<'_>,
    sections: &mut [Section; 3],
    who: &'static str,
    bytes: u64,
    done: Result<(Trace, Vec<f64>), Error>,
) {
    let (trace, added) = match done {
        Ok(done) => done,
        Err(e) => return sections.iter_mut().for_each(|section| skip(bench, section, who, &e)),
    };
    let [speed, share, each] = sections;
    if WHOS.iter().any(|own| own.name() == who) {
        trace.add_rates_of_each(each, who, STEP);
    }
    let mut from = 0.0;
    for n in 1..=POINTS {
        let Some(to) = trace.when((bytes * n / POINTS) as f64) else { break };
        speed.add(who, &format!("{} MiB", bytes * n / POINTS / MIB), trace.rate(from, to) / MB);
        from = to;
    }
    let mut least = f64::INFINITY;
    for (n, at) in added.iter().enumerate() {
        let end = (at + WINDOW).min(added.get(n + 1).copied().unwrap_or(trace.end()));
        if end - at < SHORTEST {
            share.notes.push(format!("{who}: disk {} had less than {SHORTEST} s", n + 2));
            continue;
        }
        let (before, after) = (trace.written(*at), trace.written(end));
        let new = after[n + 1] - before[n + 1];
        let of_fair = new / (trace.all_written(end) - trace.all_written(*at)).max(1.0) * (n + 2) as f64;
        share.add(who, &format!("disk {}", n + 2), of_fair);
        least = least.min(of_fair);
    }
    if least.is_finite() {
        share.add(who, SHARE, least);
    }
}
