//! A file written in pieces of 1 MiB and synced once, mounted, against the ext4 that the pool lies on; and the bytes that a
//! loop device under all of it takes for each.

use conquest::MediumKind;

use super::{content, faster, Bench, MIB};
use crate::place::{name, on_place, Place};
use crate::side::{rounds, Side, Sizes, Who, BATTERY_MOUNTED, LOGGED_MOUNTED, ORDERED};
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const SPEED: &str = "write + fsync";
const WRITTEN: &str = "written";
const WHOS: [Who; 3] = [ORDERED, BATTERY_MOUNTED, LOGGED_MOUNTED];

pub fn run(bench: &Bench<'_>) -> Outcome {
    let bytes = bench.file();
    let title = format!("A file of {} MiB written in pieces of 1 MiB, and one fsync", bytes / MIB);
    let mut speed = bench.rates("large-stream", title, "MiB/s");
    speed.baseline = Some(ORDERED.name().into());
    let title = "The same: bytes written to disk, per byte of the file, until nothing is under way";
    let mut sections = [speed, bench.times("large-stream-written", title, "B/B")];
    let sizes = Sizes { disk: Bench::room(bytes), ram: bench.cache() };
    let mut sides = bench.made(&WHOS, &mut sections, |who| Side::make_counted(&bench.setting, who, sizes));
    let path = name("large".into());
    rounds(&bench.setting, "large: stream", ROUNDS, &mut sides, &mut sections, |side, _, sections| {
        let before = side.written()?;
        let speed = on_place!(&side.place, place => {
            let speed = content::write(place, &path, bytes)?;
            place.settle()?;
            speed
        });
        let written = side.written()? - before;
        sections[0].add(side.name(), SPEED, speed / MIB as f64);
        sections[1].add(side.name(), WRITTEN, written as f64 / bytes as f64);
        on_place!(&side.place, place => {
            place.unlink(&path)?;
            place.settle()
        })
    });
    Outcome { findings: findings(&sections), sections: sections.into() }
}

fn findings(sections: &[Section]) -> Vec<Finding> {
    let what = "1 MiB writes and one fsync";
    let speed = faster(&sections[0], what, Goal::factor(0.8, 1.0), SPEED, LOGGED_MOUNTED, ORDERED.name());
    let measured = format!("{} B", sections[1].text(LOGGED_MOUNTED.name(), WRITTEN));
    let what = format!("mounted: {what}: bytes written to disk for each");
    let written = sections[1].median(LOGGED_MOUNTED.name(), WRITTEN);
    vec![speed, Finding::judge(MediumKind::Logged, what, Goal::quantity(1.05, 1.01, "B"), measured, written)]
}
