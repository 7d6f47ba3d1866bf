//! `fsck` of a pool with a million files, on one processor.

use conquest::MediumKind;

use crate::args::Files;
use crate::clock::now;
use crate::context::Context;
use crate::cpu;
use crate::error::Error;
use crate::place::InProcess;
use crate::workload::open::filled;
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const SUBJECT: &str = "conquest";
const WHOLE: &str = "whole pool";
const PER_FILE: &str = "per million files";

pub fn run(context: &Context, args: &Files) -> Result<Outcome, Error> {
    let files = context.size(args.files, 20_000);
    let title = format!("fsck of {files} files on one processor");
    let mut section = Section::times("fsck", title, "s");
    let dir = filled(context, "fsck", files)?;
    let place = InProcess::open(&dir)?;
    let cpu = cpu::allowed()?.first().copied().unwrap_or(0);
    for round in 0..context.rounds(ROUNDS) {
        context.say_round("fsck", round, ROUNDS, "");
        let seconds = cpu::pinned(cpu, || check(&place, files as u64))?;
        section.add(SUBJECT, WHOLE, seconds);
        section.add(SUBJECT, PER_FILE, seconds * 1e6 / files as f64);
    }
    drop(place);
    std::fs::remove_dir_all(&dir).map_err(Error::file(&dir))?;
    let value = section.median(SUBJECT, WHOLE);
    let what = format!("fsck of {files} files, one processor");
    let finding = Finding::judge(
        MediumKind::Battery,
        what,
        Goal::quantity(3.0, 1.0, "s"),
        section.text(SUBJECT, WHOLE) + " s",
        value,
    );
    Ok(Outcome { sections: vec![section], findings: vec![finding] })
}

/// One check, in seconds. It must have seen every file and found nothing wrong: a check that looks away
/// would be the fastest.
fn check(place: &InProcess, files: u64) -> Result<f64, Error> {
    let start = now();
    let report = place.pool.fsck(false, &mut |_, _| {})?;
    let seconds = (now() - start) as f64 / 1e9;
    if let Some(problem) = report.problems.first() {
        return Err(Error::Wrong(format!("fsck: {problem}")));
    }
    if report.inodes < files {
        return Err(Error::Wrong(format!("fsck saw {} of {files} files", report.inodes)));
    }
    Ok(seconds)
}
