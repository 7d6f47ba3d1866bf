//! Reading a file in order, cold, of which every block was overwritten once, in any order; against the raw disk. The
//! cleaner, and whatever else goes on by itself, has come to rest before.

use std::time::{Duration, Instant};

use super::{cold, content, faster, Bench, MIB};
use crate::error::Error;
use crate::place::{name, on_place, Place};
use crate::raw::{beside, Raw, RAW};
use crate::side::{rounds, Side, Sizes, Who, BATTERY, LOGGED};
use report::goals::Goal;
use report::{Outcome, Section};

const ROUNDS: usize = 2;
const READ: &str = "read";
const WHOS: [Who; 2] = [BATTERY, LOGGED];
/// How long nothing must have been written for a side to be at rest, and how long that is waited for.
const QUIET: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title =
        format!("Cold read in order of a file of {} MiB after all was overwritten at random", bench.file() / MIB);
    let speed = bench.rates("large-aged", title, "MiB/s");
    let title = "The same: bytes that the process had read of the disk, per byte of the file";
    let mut sections = [speed, bench.times("large-aged-transferred", title, "B/B")];
    if let Err(e) = measure(bench, &mut sections) {
        bench.setting.context.failed("large: aged", &e);
        sections[0].fail(RAW, e.to_string());
    }
    let row = |&own: &Who| {
        let what = "cold read in order after random overwrites";
        let speed = faster(&sections[0], what, Goal::factor(0.3, 0.6), READ, own, &beside(own.name()));
        cold(&bench.setting, &sections[1], READ, own, speed)
    };
    Outcome { findings: WHOS.iter().map(row).collect(), sections: sections.into() }
}

fn measure(bench: &Bench<'_>, sections: &mut [Section; 2]) -> Result<(), Error> {
    let setting = &bench.setting;
    let bytes = bench.file();
    let sizes = Sizes { disk: Bench::room(2 * bytes), ram: bench.little(bytes) };
    setting.require(bytes)?;
    let raw = Raw::at(setting.file("raw"), bytes)?;
    raw.write()?;
    let path = name("large".into());
    let mut sides = bench.made(&WHOS, &mut sections[..], |who| Side::make(setting, who, sizes));
    rounds(setting, "large: aged", ROUNDS, &mut sides, &mut sections[..], |side, round, sections| {
        on_place!(&side.place, place => {
            if round == 0 {
                content::write(place, &path, bytes)?;
            }
            let file = place.open_update(&path)?;
            content::Overwrites::new(round as u64, bytes).all(place, &file)?;
            place.fsync(&file)?;
            place.settle()
        })?;
        if !comes_to_rest(side)? {
            let late = format!("{}, round {}: still writing after {} s", side.name(), round + 1, PATIENCE.as_secs());
            sections[0].notes.push(late);
        }
        let before = side.transferred()?;
        let speed = on_place!(&side.place, place => content::read(place, &path, bytes))?;
        sections[0].add(side.name(), READ, speed / MIB as f64);
        if let (Some(before), Some(after)) = (before, side.transferred()?) {
            sections[1].add(side.name(), READ, after.since(before).read as f64 / bytes as f64);
        }
        sections[0].add(&beside(side.name()), READ, raw.read()? / MIB as f64);
        Ok(())
    });
    Ok(())
}

/// Waits until a side writes nothing any more; did it come to that?
fn comes_to_rest(side: &Side) -> Result<bool, Error> {
    let begun = Instant::now();
    let mut last = side.transferred()?;
    while begun.elapsed() < PATIENCE {
        std::thread::sleep(QUIET);
        let now = side.transferred()?;
        if now == last {
            return Ok(true);
        }
        last = now;
    }
    Ok(false)
}
