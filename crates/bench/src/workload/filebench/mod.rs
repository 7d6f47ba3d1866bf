//! Filebench's varmail, fileserver, webserver and webproxy with their stock parameters, in process and mounted, against
//! ext4 with its journal of metadata and with one of everything: operations per second, each flow operation one, as
//! Filebench counts them.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`personality`] | the parameters of each, and the loop of its threads |
//! | [`fileset`] | the files: names, sizes, and the threads that use them |

mod fileset;
pub mod personality;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::prelude::*;
use crate::setting::Ground;
use personality::{Flow, Stock, STOCKS};

const ROUNDS: usize = 3;
/// Bytes of the disk of each peer, for each multiple of the stock file sets.
const DISK: u64 = 4096 * MIB;
const WHOS: [Who; 6] = [ORDERED, JOURNAL, BATTERY, LOGGED, BATTERY_MOUNTED, LOGGED_MOUNTED];

options! { Options {
    grounds;
    only: "NAME,..." of &STOCKS, "Which of them [default: all]";
    seconds: real "SECONDS" = 3.0, "Seconds of a round";
    scale: count "N" = 1, "Files, times as many as in the stock file sets";
    cache: count "MIB" = 2048, "MiB of persistent RAM of pools that have a disk";
} }

impl InSettings for Options {
    const ID: &str = "filebench";

    fn grounds(&self) -> &Grounds {
        &self.grounds
    }

    fn measure(&self, setting: &Setting<'_>) -> Outcome {
        let (context, seconds) = (setting.context, setting.context.seconds(self.seconds));
        let title = format!("Filebench, file sets {} x the stock ones, {seconds} s a round", self.scale);
        let mut sections = [setting.rates("filebench", title, "1/s").against(JOURNAL.name)];
        let (times, disk) = if context.quick { (1, DISK / 8) } else { (self.scale as u64, DISK) };
        let sizes = Sizes { disk: disk * times, ram: context.mib(self.cache, 256) * times };
        let mut peers = setting.peers(&WHOS, sizes, &mut sections);
        for (_, _, stock) in wanted(&STOCKS, &self.only) {
            measure(context, &stock.times(self.scale, context.quick), seconds, &mut peers, &mut sections);
        }
        Outcome { findings: findings(setting.ground, &sections[0]), sections: sections.into() }
    }
}

/// The rounds of one workload. Its files are made before the first, and removed after the last.
pub fn measure(context: &Context, stock: &Stock, seconds: f64, peers: &mut Vec<Peer>, sections: &mut [Section; 1]) {
    let label = format!("filebench: {}", stock.name);
    let flow = Flow::new(stock);
    context.rounds(&label, ROUNDS, peers, sections, |peer, round, sections| {
        let rate = on_place!(&peer.place, place => {
            if round == 0 {
                flow.prepare(place)?;
                place.settle()?;
            }
            once(place, &flow, seconds, round as u64)?
        });
        sections[0].add(peer.who.name, stock.name, rate);
        on_place!(&peer.place, place => place.settle().and_then(|()| flow.between(place)))
    });
    context.once_each(
        (&label, 0, 1),
        peers,
        sections,
        |peer, _| on_place!(&peer.place, place => flow.remove(place).and_then(|()| place.settle())),
    );
}

/// Lets all threads work for `seconds`; returns operations per second.
pub fn once(place: &(impl Place + Sync), flow: &Flow, seconds: f64, round: u64) -> Result<f64, Error> {
    let start = now();
    Ok(per_second(passes(place, flow, seconds, round)?, start))
}

/// As `once`; returns the number of operations.
pub fn passes(place: &(impl Place + Sync), flow: &Flow, seconds: f64, round: u64) -> Result<u64, Error> {
    let (stop, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    let (files, threads) = (flow.files(place), flow.threads() as u64);
    let start = now();
    let done = std::thread::scope(|scope| {
        let (stop, operations, files) = (&stop, &operations, &files);
        let work = |thread: u64| {
            let work = move || {
                let mut worker = flow.worker(place, files, round * threads + thread)?;
                while !stop.load(Ordering::Relaxed) {
                    operations.fetch_add(worker.pass()?, Ordering::Relaxed);
                }
                Ok(())
            };
            scope.spawn(move || {
                let done: Result<(), Error> = work();
                if done.is_err() {
                    // The other threads would go on for nothing.
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
        let ended: Vec<_> = threads.into_iter().map(joined).collect();
        ended.into_iter().collect::<Result<(), Error>>()
    });
    done?;
    Ok(operations.load(Ordering::Relaxed))
}

/// The goals of each workload, mounted and in process.
fn findings(ground: Ground, section: &Section) -> Vec<Finding> {
    let row = |own: Who, name: &str, base: Who, (required, aim): (f64, f64)| {
        let what = format!("{}: {name}, against {}", own.how(), base.name);
        section.row(own.medium(), what, Goal::factor(required, aim)).factor(name, own.name, base.name)
    };
    let mounted =
        [("varmail", (3.4, 10.0)), ("fileserver", (1.0, 3.0)), ("webserver", (0.5, 0.7)), ("webproxy", (0.35, 0.5))];
    let mut findings = Vec::new();
    for (name, goal) in mounted.into_iter().filter(|(name, _)| section.measures().contains(name)) {
        // RAM-backed pools are compared with other servers, which are not made here.
        findings.extend((ground == Ground::OwnDisk).then(|| row(BATTERY_MOUNTED, name, JOURNAL, goal)));
        findings.extend([BATTERY, LOGGED].map(|own| row(own, name, ORDERED, (3.0, 8.0))));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_them_works_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        for (.., stock) in STOCKS {
            let stock = stock.times(1, true);
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
    fn a_failing_thread_ends_the_round_and_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let flow = Flow::new(&personality::WEBSERVER.times(1, true));
        flow.prepare(&place).expect("files");
        flow.remove(&place).expect("removed");
        assert!(once(&place, &flow, 60.0, 0).is_err());
    }
}
