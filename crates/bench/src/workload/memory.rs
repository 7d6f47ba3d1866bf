//! Persistent RAM per empty file and per directory entry.
//!
//! The cost is taken at several sizes of the directory, evenly spread over a doubling: a hash table that has
//! just split is emptier than one that is about to, and a single size would hit one or the other.

use conquest::MediumKind;

use crate::args::Memory;
use crate::context::Context;
use crate::error::Error;
use crate::place::{name, InProcess, Place};
use crate::program;
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

/// Sizes between half of the files and all of them.
const STEPS: usize = 16;
/// Length of the names, which is taken off.
const NAME: usize = 8;

const SUBJECT: &str = "conquest";
const FILE: &str = "empty file with entry";
const ENTRY: &str = "entry";

pub fn run(context: &Context, args: &Memory) -> Result<Outcome, Error> {
    let files = context.size(args.files, 10_000).min(9_999_999);
    let title = format!("Persistent RAM of {files} empty files and of {files} entries (hard links), names taken off");
    let mut section = Section::times("memory", title, "B each");
    let dir = context.base.join("memory.pool");
    program::format(&dir, context.bytes())?;
    let place = InProcess::open(&dir)?;
    context.progress.say("memory: files".into());
    grow(&place, "files", files, &mut section, FILE, |path| place.create(&name(path)).map(drop))?;
    context.progress.say("memory: entries".into());
    drop(place.create(&name("linked".into()))?);
    grow(&place, "links", files, &mut section, ENTRY, |path| {
        place.view().link(b"linked", path.as_bytes())?;
        Ok(())
    })?;
    drop(place);
    std::fs::remove_dir_all(&dir).map_err(Error::file(&dir))?;
    Ok(Outcome { findings: findings(&section), sections: vec![section] })
}

/// Adds `count` entries to a new directory with `add` and notes at each step what one has cost so far.
fn grow(
    place: &InProcess,
    dir: &str,
    count: usize,
    section: &mut Section,
    measure: &str,
    add: impl Fn(String) -> Result<(), Error>,
) -> Result<(), Error> {
    place.mkdir(&name(dir.into()))?;
    let before = place.pool.status()?.used;
    let step = (count / 2 / STEPS).max(1);
    for i in 0..count {
        // 'n' and seven digits: NAME bytes.
        add(format!("{dir}/n{i:07}"))?;
        let made = i + 1;
        if made >= count / 2 && (count - made) % step == 0 {
            let used = place.pool.status()?.used.saturating_sub(before);
            section.add(SUBJECT, measure, used as f64 / made as f64 - NAME as f64);
        }
    }
    Ok(())
}

fn findings(section: &Section) -> Vec<Finding> {
    let row = |what: &str, measure: &str, goal: Goal| {
        let value = section.median(SUBJECT, measure);
        Finding::judge(MediumKind::Battery, what, goal, section.text(SUBJECT, measure) + " B", value)
    };
    vec![
        row("persistent RAM per empty file, entry included, name not", FILE, Goal::quantity(160.0, 110.0, "B")),
        row("persistent RAM per directory entry beyond its name", ENTRY, Goal::quantity(40.0, 24.0, "B")),
    ]
}
