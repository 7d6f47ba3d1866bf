//! Opening a pool with a million files against opening an empty one of the same size.

use std::path::{Path, PathBuf};

use conquest::{MediumKind, OpenOptions, Pool};

use crate::args::Files;
use crate::clock::{now, us_per_op};
use crate::context::Context;
use crate::error::Error;
use crate::place::InProcess;
use crate::program;
use crate::workload::tree::Tree;
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

const ROUNDS: usize = 51;
const FULL: &str = "full";
const EMPTY: &str = "empty";
const OPEN: &str = "open";
const CLOSE: &str = "close";

/// Files per directory of the pools that are filled for a measurement.
const PER_DIR: usize = 1_000;

pub fn run(context: &Context, args: &Files) -> Result<Outcome, Error> {
    let files = context.size(args.files, 20_000);
    let title = format!("Opening a pool with {files} files and an empty one of the same size");
    let mut section = Section::times("open", title, "us");
    section.baseline = Some(EMPTY.into());
    section.notes.push("open ends when the root directory has been looked at".into());
    let pools = [(FULL, filled(context, "open-full", files)?), (EMPTY, filled(context, "open-empty", 0)?)];
    for round in 0..context.rounds(ROUNDS) {
        context.say_round("opening", round, ROUNDS, "");
        for (subject, pool) in &pools {
            let (open, close) = open_and_close(pool)?;
            section.add(subject, OPEN, open);
            section.add(subject, CLOSE, close);
        }
    }
    for (_, pool) in &pools {
        std::fs::remove_dir_all(pool).map_err(Error::file(pool))?;
    }
    let measured = [FULL, EMPTY].map(|s| section.text(s, OPEN)).join(" / ") + " us";
    let what = format!("opening a pool with {files} files, time of an empty one");
    // "Equal" is within the noise of the machine.
    let finding =
        Finding::judge(MediumKind::Battery, what, Goal::at_most(2.0, 1.05), measured, section.ratio(OPEN, FULL, EMPTY));
    Ok(Outcome { sections: vec![section], findings: vec![finding] })
}

fn open_and_close(dir: &Path) -> Result<(f64, f64), Error> {
    let start = now();
    let pool = Pool::open(dir, &OpenOptions::default())?;
    pool.getattr(conquest_fs::ROOT)?;
    let open = us_per_op(start, 1);
    let start = now();
    drop(pool);
    Ok((open, us_per_op(start, 1)))
}

/// A pool with `files` empty files in directories of a thousand, closed.
pub fn filled(context: &Context, label: &str, files: usize) -> Result<PathBuf, Error> {
    context.progress.say(format!("making a pool with {files} files"));
    let dir = context.base.join(format!("{label}.pool"));
    program::format(&dir, context.bytes())?;
    let place = InProcess::open(&dir)?;
    if files > 0 {
        let tree = Tree::new("d", files.div_ceil(PER_DIR), files);
        tree.make_dirs(&place)?;
        tree.make_files(&place)?;
    }
    Ok(dir)
}
