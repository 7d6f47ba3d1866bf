//! Opening a pool with a million files against opening an empty one of the same size; and `fsck` of it on one processor.

use std::path::Path;

use conquest::{FormatOptions, OpenOptions, Pool};

use super::tree::Tree;
use crate::cpu;
use crate::prelude::*;
use crate::program::Own;

/// Files per directory of the pools.
const PER_DIR: usize = 1_000;

options! { Open { files: count "N" = 1_000_000, "Files in the pool"; } }
options! { Fsck { files: count "N" = 1_000_000, "Files in the pool"; } }

impl Workload for Open {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        const ROUNDS: usize = 51;
        const FULL: &str = "full";
        const EMPTY: &str = "empty";
        let files = context.size(self.files, 20_000);
        let title = format!("Opening a pool with {files} files and an empty one of the same size");
        let mut section = Section::times("open", title, "us").against(EMPTY);
        section.notes.push("open ends when the root directory has been looked at".into());
        let pools = [(FULL, filled(context, "open-full", files)?), (EMPTY, filled(context, "open-empty", 0)?)];
        for round in 0..context.count(ROUNDS) {
            context.say_round("opening", round, ROUNDS, "");
            for (subject, pool) in &pools {
                let (open, close) = open_and_close(&pool.dir)?;
                section.add(subject, "open", open);
                section.add(subject, "close", close);
            }
        }
        let what = format!("opening a pool with {files} files, time of an empty one");
        // "Equal" is within the noise of the machine.
        let finding = section.row(MediumKind::Battery, what, Goal::at_most(2.0, 1.05)).ratio("open", FULL, EMPTY);
        Ok(Outcome { sections: vec![section], findings: vec![finding] })
    }
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

impl Workload for Fsck {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        const ROUNDS: usize = 3;
        const SUBJECT: &str = "conquest";
        const WHOLE: &str = "whole pool";
        let files = context.size(self.files, 20_000);
        let mut section = Section::times("fsck", format!("fsck of {files} files on one processor"), "s");
        let own = filled(context, "fsck", files)?;
        let pool = own.open()?;
        let cpu = cpu::allowed()?.first().copied().unwrap_or(0);
        for round in 0..context.count(ROUNDS) {
            context.say_round("fsck", round, ROUNDS, "");
            let seconds = cpu::pinned(cpu, || check(&pool, files as u64))?;
            section.add(SUBJECT, WHOLE, seconds);
            section.add(SUBJECT, "per million files", seconds * 1e6 / files as f64);
        }
        let what = format!("fsck of {files} files, one processor");
        let finding = section.row(MediumKind::Battery, what, Goal::quantity(3.0, 1.0, "s")).median(SUBJECT, WHOLE);
        Ok(Outcome { sections: vec![section], findings: vec![finding] })
    }
}

/// One check, in seconds. It must have seen every file and found no problem: a check that skips files would be the
/// fastest.
fn check(pool: &Pool, files: u64) -> Result<f64, Error> {
    let start = now();
    let report = pool.fsck(false, &mut |_, _| {})?;
    let seconds = seconds_since(start);
    match report.problems.first() {
        Some(problem) => Err(Error::Wrong(format!("fsck: {problem}"))),
        None if report.inodes < files => Err(Error::Wrong(format!("fsck saw {} of {files} files", report.inodes))),
        None => Ok(seconds),
    }
}

/// A pool with `files` empty files in directories of a thousand, closed.
fn filled(context: &Context, label: &str, files: usize) -> Result<Own, Error> {
    context.progress.say(format!("making a pool with {files} files"));
    let how = FormatOptions::on(MediumKind::Battery, context.bytes());
    let pool = Own::make(context.base.join(format!("{label}.pool")), how)?;
    if files > 0 {
        let (place, tree) = (InProcess::open(&pool.dir)?, Tree::new("d", files.div_ceil(PER_DIR), files));
        tree.make_dirs(&place)?;
        tree.make_files(&place)?;
    }
    Ok(pool)
}
