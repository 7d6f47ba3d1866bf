//! Random reads of 4 KiB of a file that is in the cache, in process and mounted, against the page cache of ext4.

use super::{content, faster, Bench, MIB};
use crate::clock::{now, us_per_op};
use crate::place::{name, on_place, Place};
use crate::side::{rounds, Who, BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED, ORDERED};
use report::goals::Goal;
use report::Outcome;
use rng::Rng;

const ROUNDS: usize = 3;
const READ: &str = "read";
const WHOS: [Who; 5] = [ORDERED, BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED];

pub fn run(bench: &Bench<'_>) -> Outcome {
    // Half of the cache: the other half may be what is dirty, or was seen once.
    let bytes = bench.file().min(bench.cache() / 2);
    let count = bench.setting.context.size(bench.args.reads, 1_000);
    let title = format!("Random 4 KiB reads of a file of {} MiB that is in the cache", bytes / MIB);
    let mut section = bench.times("large-cached", title, "us/op");
    section.baseline = Some(ORDERED.name().into());
    let mut sections = [section];
    let path = name("large".into());
    let mut sides = bench.sides(&WHOS, bytes, &mut sections);
    rounds(&bench.setting, "large: cached", ROUNDS, &mut sides, &mut sections, |side, round, sections| {
        let figure = on_place!(&side.place, place => {
            if round == 0 {
                content::write(place, &path, bytes)?;
                place.settle()?;
                // Twice, so that a cache knows that it is used again.
                content::read(place, &path, bytes)?;
            }
            content::read(place, &path, bytes)?;
            let file = place.open_read(&path)?;
            let (mut random, mut buf) = (Rng::new(round as u64), [0; content::BLOCK]);
            let blocks = bytes / content::BLOCK as u64;
            let start = now();
            for _ in 0..count {
                content::read_block(place, &file, random.below(blocks) * content::BLOCK as u64, &mut buf)?;
            }
            us_per_op(start, count)
        });
        sections[0].add(side.name(), READ, figure);
        Ok(())
    });
    let row = |own: Who| {
        let goal = if matches!(own, Who::InProcess(_)) { Goal::factor(1.0, 3.0) } else { Goal::factor(0.8, 1.0) };
        faster(&sections[0], "random 4 KiB read from the cache", goal, READ, own, ORDERED.name())
    };
    let findings = WHOS[1..].iter().map(|&own| row(own)).collect();
    Outcome { findings, sections: sections.into() }
}
