//! Random stores of 4 KiB to a mapped file, and the sync of all of them, mounted, against ext4.

use std::fs::File;

use pram::Mapping;

use super::{content, faster, Bench, MIB};
use crate::clock::{now, us_per_op};
use crate::error::Error;
use crate::place::{name, on_place, Place};
use crate::side::{rounds, Who, BATTERY_MOUNTED, LOGGED_MOUNTED, ORDERED};
use report::goals::Goal;
use report::Outcome;
use rng::Rng;

const ROUNDS: usize = 2;
const STORE: &str = "store";
const SYNCED: &str = "with the sync at the end";
const WHOS: [Who; 3] = [ORDERED, BATTERY_MOUNTED, LOGGED_MOUNTED];

pub fn run(bench: &Bench<'_>) -> Outcome {
    let bytes = bench.file();
    // As often as there are pages: two thirds of them are stored to.
    let count = bytes as usize / content::BLOCK;
    let title = format!("{count} random 4 KiB stores to a mapped file of {} MiB", bytes / MIB);
    let mut section = bench.times("large-mapped", title, "us/op");
    section.baseline = Some(ORDERED.name().into());
    let mut sections = [section];
    let mut sides = bench.sides(&WHOS, bytes, &mut sections);
    let path = name("large".into());
    rounds(&bench.setting, "large: mapped", ROUNDS, &mut sides, &mut sections, |side, round, sections| {
        let dir = side.dir().ok_or_else(|| Error::Wrong(format!("{} is not mounted", side.name())))?;
        on_place!(&side.place, place => {
            if round == 0 {
                content::write(place, &path, bytes)?;
            }
            place.settle()
        })?;
        let path = dir.join("large");
        let file = File::options().read(true).write(true).open(&path).map_err(Error::file(&path))?;
        let map = Mapping::file(&file, bytes)?;
        let (mut random, data) = (Rng::new(round as u64), [round as u8; content::BLOCK]);
        let start = now();
        for _ in 0..count {
            let at = random.below(bytes / content::BLOCK as u64) * content::BLOCK as u64;
            map.write(at, &data).map_err(|e| Error::Wrong(format!("a mapped file: {e}")))?;
        }
        let stored = us_per_op(start, count);
        // Of a file that is mapped, the sync is also that of the pages stored to.
        file.sync_all().map_err(Error::file(&path))?;
        sections[0].add(side.name(), STORE, stored);
        sections[0].add(side.name(), SYNCED, us_per_op(start, count));
        Ok(())
    });
    let row = |own| {
        let what = "random 4 KiB stores to a mapped file, synced";
        faster(&sections[0], what, Goal::factor(0.5, 1.0), SYNCED, own, ORDERED.name())
    };
    let findings = [BATTERY_MOUNTED, LOGGED_MOUNTED].map(row).into();
    Outcome { findings, sections: sections.into() }
}
