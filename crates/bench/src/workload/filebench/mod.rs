//! Filebench's varmail, fileserver, webserver and webproxy with their stock parameters, in process and mounted, against
//! ext4 with its journal of metadata and with one of everything: operations per second, each flow operation one, as
//! Filebench counts them.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`personality`] | the parameters of each, and the loop of its threads |
//! | [`fileset`] | the files: names, sizes, and who has which at the moment |

mod fileset;
pub mod personality;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use conquest::MediumKind;

use crate::args::{self, Filebench};
use crate::clock::now;
use crate::context::Context;
use crate::error::Error;
use crate::place::{on_place, Place};
use crate::raw::per_second;
use crate::setting::{self, Setting};
use crate::side::{
    self, fail, rounds, Side, Sizes, Who, BATTERY, BATTERY_MOUNTED, JOURNAL, LOGGED, LOGGED_MOUNTED, ORDERED,
};
use personality::{Flow, Stock};
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const MIB: u64 = 1 << 20;
/// Bytes of the disk of each, for each time that the file sets are as large as the stock ones.
const DISK: u64 = 4096 * MIB;
const WHOS: [Who; 6] = [ORDERED, JOURNAL, BATTERY, LOGGED, BATTERY_MOUNTED, LOGGED_MOUNTED];

pub fn run(context: &Context, args: &Filebench) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    for setting in Setting::all(context, &args.grounds) {
        match setting {
            Ok(setting) => outcome.extend(in_setting(&setting, args)),
            Err((which, reason)) => {
                let mut section = Section::rates("filebench", "Filebench", "1/s");
                section.id = setting::id("filebench", which).into();
                section.skip(ORDERED.name(), reason);
                outcome.sections.push(section);
            }
        }
    }
    Ok(outcome)
}

fn in_setting(setting: &Setting<'_>, args: &Filebench) -> Outcome {
    let context = setting.context;
    let seconds = if context.quick { args.seconds.min(0.3) } else { args.seconds };
    let title = format!("Filebench, file sets {} x the stock ones, {seconds} s a round; {}", args.scale, setting.name);
    let mut section = Section::rates("filebench", title, "1/s");
    section.id = setting.id("filebench").into();
    section.baseline = Some(JOURNAL.name().into());
    let times = if context.quick { 1 } else { args.scale as u64 };
    let disk = if context.quick { DISK / 8 } else { DISK };
    let ram = context.size(args.cache, 256) as u64 * MIB;
    let sizes = Sizes { disk: disk * times, ram: ram * times };
    let (mut sides, skipped) = side::make(setting, &WHOS, |who| Side::make(setting, who, sizes));
    section.skipped = skipped;
    let mut sections = [section];
    let wanted = |which: &&args::Personality| args.only.is_empty() || args.only.contains(which);
    for &which in args::Personality::value_variants().iter().filter(wanted) {
        let stock = Stock::of(which).times(args.scale, context.quick);
        measure(setting, &stock, seconds, &mut sides, &mut sections);
    }
    let mut findings = findings(setting.which, &sections[0]);
    setting.tell(&mut findings);
    Outcome { findings, sections: sections.into() }
}

/// The rounds of one workload. Its files are made before the first, and removed after the last.
pub fn measure(setting: &Setting<'_>, stock: &Stock, seconds: f64, sides: &mut Vec<Side>, sections: &mut [Section; 1]) {
    let label = format!("filebench: {}", stock.name);
    let flow = Flow::new(stock);
    rounds(setting, &label, ROUNDS, sides, &mut sections[..], |side, round, sections| {
        let rate = on_place!(&side.place, place => {
            if round == 0 {
                flow.prepare(place)?;
                place.settle()?;
            }
            once(place, &flow, seconds, round as u64)?
        });
        sections[0].add(side.name(), stock.name, rate);
        on_place!(&side.place, place => {
            place.settle()?;
            flow.between(place)
        })
    });
    sides.retain(|side| {
        let removed = on_place!(&side.place, place => flow.remove(place).and_then(|()| place.settle()));
        removed.map_err(|e| fail(setting, &label, side.who, &mut sections[..], &e)).is_ok()
    });
}

/// Lets all threads work for so many seconds; operations per second.
pub fn once(place: &(impl Place + Sync), flow: &Flow, seconds: f64, round: u64) -> Result<f64, Error> {
    let start = now();
    Ok(per_second(turns(place, flow, seconds, round)?, start))
}

/// The same; operations.
pub fn turns(place: &(impl Place + Sync), flow: &Flow, seconds: f64, round: u64) -> Result<u64, Error> {
    let (stop, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    let (files, threads) = (flow.files(place)?, flow.threads() as u64);
    let start = now();
    let done = std::thread::scope(|scope| {
        let (stop, operations, files) = (&stop, &operations, &files);
        let work = |thread: u64| {
            let work = move || {
                let mut worker = flow.worker(place, files, round * threads + thread)?;
                while !stop.load(Ordering::Relaxed) {
                    operations.fetch_add(worker.turn()?, Ordering::Relaxed);
                }
                Ok(())
            };
            scope.spawn(move || {
                let done: Result<(), Error> = work();
                if done.is_err() {
                    // The others would go on for nothing.
                    stop.store(true, Ordering::Relaxed);
                }
                done
            })
        };
        let threads: Vec<_> = (0..threads).map(work).collect();
        let until = start + (seconds * 1e9) as u64;
        while now() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_nanos(until.saturating_sub(now()).min(50_000_000)));
        }
        stop.store(true, Ordering::Relaxed);
        let panicked = |_| Err(Error::Wrong("a worker thread panicked".into()));
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect();
        ended.into_iter().collect::<Result<(), Error>>()
    });
    done?;
    Ok(operations.load(Ordering::Relaxed))
}

/// What must be reached mounted, and in process, of each of them.
fn findings(which: args::Setting, section: &Section) -> Vec<Finding> {
    let row = |own: Who, name: &'static str, base: Who, goal: Goal| {
        let measured = [own, base].map(|who| section.text(who.name(), name)).join(" / ") + " /s";
        let what = format!("{}: {name}, against {}", own.how(), base.name());
        Finding::judge(own.medium(), what, goal, measured, section.factor(name, own.name(), base.name()))
    };
    let mounted = [
        ("varmail", Goal::factor(3.4, 10.0)),
        ("fileserver", Goal::factor(1.0, 3.0)),
        ("webserver", Goal::factor(0.5, 0.7)),
        ("webproxy", Goal::factor(0.35, 0.5)),
    ];
    let measured = |name: &str| section.measures().contains(&name);
    let mut findings = Vec::new();
    for (name, goal) in mounted.into_iter().filter(|(name, _)| measured(name)) {
        // What is RAM-backed is compared with other servers, which are not made here.
        if which == args::Setting::OwnDisk {
            findings.push(row(BATTERY_MOUNTED, name, JOURNAL, goal));
        }
        for medium in [MediumKind::Battery, MediumKind::Logged] {
            findings.push(row(Who::InProcess(medium), name, ORDERED, Goal::factor(3.0, 8.0)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Mounted;

    #[test]
    fn each_of_them_works_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        for &which in args::Personality::value_variants() {
            let stock = Stock::of(which).times(1, true);
            let flow = Flow::new(&stock);
            flow.prepare(&place).expect("files");
            for round in 0..2 {
                assert!(once(&place, &flow, 0.05, round).expect(stock.name) > 0.0);
                flow.between(&place).expect("back to the beginning");
            }
            flow.remove(&place).expect("removed");
            assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0, "{}", stock.name);
        }
    }

    #[test]
    fn a_failing_thread_ends_the_round_and_is_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let flow = Flow::new(&Stock::of(args::Personality::Webserver).times(1, true));
        flow.prepare(&place).expect("files");
        let files = flow.files(&place).expect("all of them");
        drop(files);
        flow.remove(&place).expect("removed");
        assert!(once(&place, &flow, 60.0, 0).is_err());
    }
}
