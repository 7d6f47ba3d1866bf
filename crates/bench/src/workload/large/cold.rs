//! Random reads of 4 KiB of a file that is not in the cache, 32 at a time, in process and mounted, against the raw disk; and
//! what of the disk is read for each.
//!
//! In process, 32 threads read: a read is a call that returns when it is done.

use super::{cold, content, faster, Bench, MIB};
use crate::clock::now;
use crate::error::Error;
use crate::place::{name, on_place, Name, Place};
use crate::raw::{beside, per_second, Raw, RAW};
use crate::side::{rounds, Side, Sizes, Who, BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED};
use report::goals::{Finding, Goal};
use report::{Outcome, Section};
use rng::Rng;

const ROUNDS: usize = 3;
const DEPTH: usize = 32;
const READ: &str = "read";
const BLOCKS: &str = "blocks";
const WHOS: [Who; 4] = [BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED];

pub fn run(bench: &Bench<'_>) -> Outcome {
    let mib = bench.cold_size() / MIB;
    let title = format!("Random 4 KiB reads of a cold file of {mib} MiB, {DEPTH} at a time");
    let speed = bench.rates("large-cold", title, "1/s");
    let title = "The same: blocks of 4 KiB read from the disk for each";
    let mut sections = [speed, bench.times("large-cold-blocks", title, "blocks")];
    if let Err(e) = measure(bench, &mut sections) {
        bench.setting.context.failed("large: cold", &e);
        sections.iter_mut().for_each(|section| section.fail(RAW, e.to_string()));
    }
    Outcome { findings: findings(bench, &sections), sections: sections.into() }
}

fn measure(bench: &Bench<'_>, sections: &mut [Section; 2]) -> Result<(), Error> {
    let setting = &bench.setting;
    let (bytes, count) = (bench.cold_size(), setting.context.size(bench.args.reads, 1_000));
    let sizes = Sizes { disk: Bench::room(bytes), ram: bench.little(bytes) };
    setting.require(bytes)?;
    let raw = Raw::at(setting.file("raw"), bytes)?;
    raw.write()?;
    let path = name("large".into());
    for who in WHOS {
        // One after the other, each with rounds of the raw disk between its own: together they would take several times
        // the memory.
        let mut sides = bench.made(&[who], &mut sections[..], |who| Side::make(setting, who, sizes));
        rounds(setting, "large: cold", ROUNDS, &mut sides, &mut sections[..], |side, round, sections| {
            if round == 0 {
                on_place!(&side.place, place => {
                    content::write(place, &path, bytes)?;
                    place.settle()
                })?;
            }
            once(side, &path, bytes, count, round as u64, sections)?;
            let alone = raw.read_at_random(count, DEPTH)?;
            sections[0].add(&beside(side.name()), READ, alone);
            Ok(())
        });
    }
    Ok(())
}

fn once(side: &Side, path: &Name, bytes: u64, count: usize, round: u64, sections: &mut [Section]) -> Result<(), Error> {
    on_place!(&side.place, place => place.forget(&place.open_read(path)?))?;
    let before = side.transferred()?;
    let speed = on_place!(&side.place, place => read(place, path, bytes, count, round))?;
    sections[0].add(side.name(), READ, speed);
    if let (Some(before), Some(after)) = (before, side.transferred()?) {
        let blocks = after.since(before).read as f64 / content::BLOCK as f64;
        sections[1].add(side.name(), BLOCKS, blocks / count as f64);
    }
    Ok(())
}

/// Reads by as many threads as there are reads at a time; reads per second.
fn read(place: &(impl Place + Sync), path: &Name, bytes: u64, count: usize, round: u64) -> Result<f64, Error> {
    let each = count / DEPTH;
    let work = |thread: u64| {
        let file = place.open_read(path)?;
        let (mut random, mut buf) = (Rng::new(round * DEPTH as u64 + thread), [0; content::BLOCK]);
        let blocks = bytes / content::BLOCK as u64;
        (0..each).try_for_each(|_| {
            let at = random.below(blocks) * content::BLOCK as u64;
            content::read_block(place, &file, at, &mut buf)
        })
    };
    let start = now();
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..DEPTH as u64).map(|thread| scope.spawn(move || work(thread))).collect();
        let panicked = |_| Err(Error::Wrong("a worker thread panicked".into()));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })?;
    Ok(per_second((each * DEPTH) as u64, start))
}

fn findings(bench: &Bench<'_>, sections: &[Section]) -> Vec<Finding> {
    let speed = |own: Who| {
        let (what, goal) = (format!("cold random 4 KiB reads, {DEPTH} at a time"), Goal::factor(0.8, 0.95));
        cold(
            &bench.setting,
            &sections[1],
            BLOCKS,
            own,
            faster(&sections[0], &what, goal, READ, own, &beside(own.name())),
        )
    };
    let blocks = |own: Who| {
        let what = "in process: blocks read from the disk for a cold random read";
        let (measured, value) = (sections[1].text(own.name(), BLOCKS), sections[1].median(own.name(), BLOCKS));
        let goal = Goal::quantity(1.1, 1.0, "blocks");
        cold(&bench.setting, &sections[1], BLOCKS, own, Finding::judge(own.medium(), what, goal, measured, value))
    };
    vec![speed(BATTERY), speed(LOGGED), blocks(BATTERY), blocks(LOGGED)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Mounted;

    #[test]
    fn threads_read_all_that_is_asked_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let path = name("large".into());
        content::write(&place, &path, 1 << 20).expect("written");
        assert!(read(&place, &path, 1 << 20, 320, 0).expect("read") > 0.0);
        assert!(matches!(read(&place, &path, 8 << 20, 320, 0), Err(Error::Wrong(_))));
    }
}
