//! Bytes written to disk for random overwrites of 4 KiB, synced every hundred: all that a loop device under everything
//! takes, metadata and journals included. A pool lies with directory and disk on an ext4 of the usual kind.
//!
//! Counted is the steady state: half as many overwrites come before. A pool has half as much RAM as the file has bytes.

use super::{content, Bench, MIB};
use crate::error::Error;
use crate::place::{name, on_place, Name, Place};
use crate::side::{rounds, Side, Sizes, Who, BARE, BATTERY_MOUNTED, JOURNAL, LOGGED_MOUNTED, ORDERED};
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

/// They differ little.
const ROUNDS: usize = 1;
const WRITTEN: &str = "written";
/// Overwrites from sync to sync.
const SYNCED: u64 = 100;
const WHOS: [Who; 5] = [BARE, ORDERED, JOURNAL, BATTERY_MOUNTED, LOGGED_MOUNTED];

pub fn run(bench: &Bench<'_>) -> Outcome {
    let bytes = bench.setting.context.size(bench.args.counted, 8) as u64 * MIB;
    let title = format!(
        "Random 4 KiB overwrites of a file of {} MiB, fsync every {SYNCED}: bytes written to disk for each",
        bytes / MIB
    );
    let mut section = bench.times("large-volume", title, "B/B");
    section.baseline = Some(BARE.name().into());
    let mut sections = [section];
    let sizes = Sizes { disk: Bench::room(bytes), ram: (bytes / 2).max(64 * MIB) };
    let mut sides = bench.made(&WHOS, &mut sections, |who| Side::make_counted(&bench.setting, who, sizes));
    let path = name("large".into());
    rounds(&bench.setting, "large: volume", ROUNDS, &mut sides, &mut sections, |side, round, sections| {
        if round == 0 {
            on_place!(&side.place, place => content::write(place, &path, bytes))?;
        }
        let count = bytes / content::BLOCK as u64;
        overwrite(side, &path, bytes, count / 2, 2 * round as u64)?;
        let before = side.written()?;
        overwrite(side, &path, bytes, count, 2 * round as u64 + 1)?;
        let written = side.written()? - before;
        sections[0].add(side.name(), WRITTEN, written as f64 / bytes as f64);
        Ok(())
    });
    Outcome { findings: findings(&sections[0]), sections: sections.into() }
}

fn overwrite(side: &Side, path: &Name, bytes: u64, count: u64, seed: u64) -> Result<(), Error> {
    on_place!(&side.place, place => {
        let file = place.open_update(path)?;
        let mut writes = content::Overwrites::new(seed, bytes);
        for n in 1..=count {
            writes.one(place, &file)?;
            if n % SYNCED == 0 {
                place.fsync(&file)?;
            }
        }
        place.fsync(&file)
    })
}

fn findings(section: &Section) -> Vec<Finding> {
    let row = |own: Who, base: Who, goal| {
        let measured = [own, base].map(|who| section.text(who.name(), WRITTEN)).join(" / ") + " B";
        let what = format!("overwrites, fsync every {SYNCED}: bytes written to disk, times those of {}", base.name());
        Finding::judge(own.medium(), what, goal, measured, section.ratio(WRITTEN, own.name(), base.name()))
    };
    vec![row(BATTERY_MOUNTED, BARE, Goal::at_most(1.0, 0.5)), row(LOGGED_MOUNTED, ORDERED, Goal::at_most(1.3, 1.0))]
}
