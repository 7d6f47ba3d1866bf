//! A file written in order until it is durable, and read cold, in process and mounted, against the raw disk.
//!
//! A pool is made anew for each round. What it still has in its cache when the write ends has not been written as the raw disk
//! has: judged is what had reached the disk by then, where that is counted. Before the file is read, another one goes through the cache that is as large as that.

use super::{cold, content, faster, Bench, MIB, PIECE};
use crate::args;
use crate::error::Error;
use crate::place::{name, on_place, Place};
use crate::raw::{Raw, RAW};
use crate::side::{fail, Side, Sizes, Who, BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED};
use report::goals::Goal;
use report::{Outcome, Section};

const ROUNDS: usize = 2;
const WRITE: &str = "write";
/// What of it had reached the disk at the end.
const REACHED: &str = "write, to the disk";
const READ: &str = "cold read";
/// Of the second section: bytes transferred by the end, for each byte of the file.
const WRITTEN: &str = "written";
const WAS_READ: &str = "read";
const WHOS: [Who; 4] = [BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED];

pub fn run(bench: &Bench<'_>) -> Outcome {
    let mib = bench.size() / MIB;
    let title = format!("A file of {mib} MiB written in order and synced, and read cold");
    let mut speed = bench.rates("large-sequential", title, "MiB/s");
    speed.baseline = Some(RAW.into());
    let title = "The same: bytes that the process had transferred by the end of each, per byte of the file";
    let shares = bench.times("large-sequential-transferred", title, "B/B");
    let mut sections = [speed, shares];
    if let Err(e) = measure(bench, &mut sections) {
        bench.setting.context.failed("large: sequential", &e);
        sections[0].fail(RAW, e.to_string());
    }
    let row = |own: Who, measure| {
        let goal = match own {
            Who::InProcess(_) => Goal::factor(0.85, 0.97),
            _ => Goal::factor(0.65, 0.85),
        };
        faster(&sections[0], &format!("{measure} of {mib} MiB in order"), goal, measure, own, RAW)
    };
    let write = if bench.setting.which == args::Setting::OwnDisk { REACHED } else { WRITE };
    let rows = |own| [row(own, write), cold(&bench.setting, &sections[1], WAS_READ, own, row(own, READ))];
    let findings = WHOS.into_iter().flat_map(rows).collect();
    Outcome { sections: sections.into(), findings }
}

fn measure(bench: &Bench<'_>, sections: &mut [Section; 2]) -> Result<(), Error> {
    let setting = &bench.setting;
    let context = setting.context;
    let (bytes, cache) = (bench.size(), bench.cache());
    setting.require(bytes + Bench::room(bytes + cache))?;
    let raw = Raw::at(setting.file("raw"), bytes)?;
    let mut whos = WHOS.to_vec();
    for round in 0..context.rounds(ROUNDS) {
        context.say_round("large files in order", round, ROUNDS, RAW);
        let written = raw.write()? / MIB as f64;
        sections[0].add(RAW, WRITE, written);
        sections[0].add(RAW, REACHED, written);
        sections[0].add(RAW, READ, raw.read()? / MIB as f64);
        // One after the other: together they would take several times the memory.
        whos.retain(|&who| {
            let sizes = Sizes { disk: Bench::room(bytes + cache), ram: cache };
            let made = bench.made(&[who], &mut sections[..], |who| Side::make(setting, who, sizes));
            let Some(side) = made.first() else { return false };
            context.say_round("large files in order", round, ROUNDS, side.name());
            let done = once(side, bytes, cache, sections);
            done.map_err(|e| fail(setting, "large: sequential", who, sections, &e)).is_ok()
        });
    }
    Ok(())
}

fn once(side: &Side, bytes: u64, cache: u64, sections: &mut [Section; 2]) -> Result<(), Error> {
    let (path, other) = (name("large".into()), name("other".into()));
    let [speed, shares] = sections;
    let mut share = |measure, bytes_now: u64| shares.add(side.name(), measure, bytes_now as f64 / bytes as f64);
    let before = side.transferred()?;
    let written = on_place!(&side.place, place => content::write(place, &path, bytes))?;
    speed.add(side.name(), WRITE, written / MIB as f64);
    if let (Some(before), Some(after)) = (before, side.transferred()?) {
        let reached = after.since(before).written;
        share(WRITTEN, reached);
        // More than the file has are summaries and logs.
        speed.add(side.name(), REACHED, written / MIB as f64 * (reached as f64 / bytes as f64).min(1.0));
    }
    on_place!(&side.place, place => {
        content::write(place, &other, cache.next_multiple_of(PIECE as u64))?;
        place.settle()?;
        place.forget(&place.open_read(&path)?)?;
        Ok::<(), Error>(())
    })?;
    let before = side.transferred()?;
    let read = on_place!(&side.place, place => content::read(place, &path, bytes))?;
    speed.add(side.name(), READ, read / MIB as f64);
    if let (Some(before), Some(after)) = (before, side.transferred()?) {
        share(WAS_READ, after.since(before).read);
    }
    Ok(())
}
