//! Random overwrites of 4 KiB, each synced before the next, mounted, against ext4 with its journal of metadata and with one
//! of everything.

use conquest::MediumKind;

use super::{content, faster, Bench, MIB};
use crate::clock::{now, us_per_op};
use crate::place::{name, on_place, Place};
use crate::side::{rounds, Who, BATTERY_MOUNTED, JOURNAL, LOGGED_MOUNTED, ORDERED};
use report::goals::Goal;
use report::Outcome;

const ROUNDS: usize = 3;
const SYNCED: &str = "overwrite + fsync";
const WHOS: [Who; 4] = [ORDERED, JOURNAL, BATTERY_MOUNTED, LOGGED_MOUNTED];

pub fn run(bench: &Bench<'_>) -> Outcome {
    let (bytes, count) = (bench.file(), bench.setting.context.size(bench.args.synced, 50));
    let title = format!("Random 4 KiB overwrites of a file of {} MiB, fsync each", bytes / MIB);
    let mut section = bench.times("large-synced", title, "us/op");
    section.baseline = Some(ORDERED.name().into());
    let mut sections = [section];
    let path = name("large".into());
    let mut sides = bench.sides(&WHOS, bytes, &mut sections);
    rounds(&bench.setting, "large: synced", ROUNDS, &mut sides, &mut sections, |side, round, sections| {
        let figure = on_place!(&side.place, place => {
            if round == 0 {
                content::write(place, &path, bytes)?;
            }
            place.settle()?;
            let file = place.open_update(&path)?;
            let mut writes = content::Overwrites::new(round as u64, bytes);
            let start = now();
            for _ in 0..count {
                writes.one(place, &file)?;
                place.fsync(&file)?;
            }
            us_per_op(start, count)
        });
        sections[0].add(side.name(), SYNCED, figure);
        Ok(())
    });
    let row = |own: Who, base: Who| {
        let goal = match (own.medium(), base) {
            (MediumKind::Logged, JOURNAL) => Goal::factor(1.0, 2.0),
            (MediumKind::Logged, _) => Goal::factor(1.0, 1.5),
            (_, JOURNAL) => Goal::factor(8.0, 30.0),
            (_, _) => Goal::factor(8.0, 20.0),
        };
        faster(&sections[0], "random 4 KiB overwrite + fsync", goal, SYNCED, own, base.name())
    };
    let findings = [BATTERY_MOUNTED, LOGGED_MOUNTED].into_iter().flat_map(|own| [row(own, JOURNAL), row(own, ORDERED)]);
    Outcome { findings: findings.collect(), sections: sections.into() }
}
