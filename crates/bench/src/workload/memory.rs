//! Persistent RAM per empty file and per directory entry.
//!
//! The cost is measured at several sizes of the directory, evenly spread over a doubling: a hash table that has just
//! split is emptier than one that is about to, and a single size would meet one or the other.

use conquest::FormatOptions;

use crate::prelude::*;
use crate::program::Own;

/// Sizes between half of the files and all of them.
const STEPS: usize = 16;
/// Length of the names, which is subtracted.
const NAME: usize = 8;

const SUBJECT: &str = "conquest";
const FILE: &str = "empty file with entry";
const ENTRY: &str = "entry";

options! { Options { files: count "N" = 1_000_000, "Files, and entries, to divide by"; } }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let files = context.size(self.files, 10_000).min(9_999_999);
        let title =
            format!("Persistent RAM of {files} empty files and of {files} entries (hard links), names taken off");
        let mut section = Section::times("memory", title, "B each");
        let how = FormatOptions::on(MediumKind::Battery, context.bytes());
        let pool = Own::make(context.base.join("memory.pool"), how)?;
        let place = InProcess::open(&pool.dir)?;
        context.progress.say("memory: files".into());
        grow(&place, "files", files, &mut section, FILE, |path| place.create(&name(path)).map(drop))?;
        context.progress.say("memory: entries".into());
        drop(place.create(&name("linked".into()))?);
        grow(&place, "links", files, &mut section, ENTRY, |path| {
            Ok(place.view().link(b"linked", path.as_bytes()).map(drop)?)
        })?;
        let row = |what, measure, goal| section.row(MediumKind::Battery, what, goal).median(SUBJECT, measure);
        let findings = vec![
            row("persistent RAM per empty file, entry included, name not", FILE, Goal::quantity(160.0, 110.0, "B")),
            row("persistent RAM per directory entry beyond its name", ENTRY, Goal::quantity(40.0, 24.0, "B")),
        ];
        Ok(Outcome { findings, sections: vec![section] })
    }
}

/// Adds `count` entries to a new directory with `add` and records at each step the cost of one so far.
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
    for made in 1..=count {
        // 'n' and seven digits: NAME bytes.
        add(format!("{dir}/n{:07}", made - 1))?;
        if made >= count / 2 && (count - made) % step == 0 {
            let used = place.pool.status()?.used.saturating_sub(before);
            section.add(SUBJECT, measure, used as f64 / made as f64 - NAME as f64);
        }
    }
    Ok(())
}
