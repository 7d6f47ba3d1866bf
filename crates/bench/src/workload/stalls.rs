//! The time to make a file, mounted, during long work elsewhere: gigabytes are reserved and freed, a commit of
//! gigabytes, saving a pool full of them.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conquest::{CommitInterval, FormatOptions};
use report::stats::percentile;
use rustix::fs::{fallocate, FallocateFlags};

use crate::command;
use crate::prelude::*;
use crate::program::{Mount, Own};

const ROUNDS: usize = 1;
const PIECE: usize = 1 << 20;

/// The work elsewhere, by its names in the report.
const QUIET: &str = "nothing";
const RESERVED: &str = "3 GiB are allocated";
const GIVEN_BACK: &str = "3 GiB are cut off";
const COMMITTED: &str = "4 GiB are committed";
const SAVED: &str = "a pool with 3 GiB is saved";

/// The measures: the part of all times that is not longer.
const PARTS: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), (LATE, 0.999), ("max", 1.0)];
const LATE: &str = "p99.9";

options! { Options {} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let title = "Making a file through the mount, while elsewhere ... goes on";
        let mut section = Section::times("stalls", title, "ms");
        section.notes.extend(context.quick.then(|| "a 32nd of the gigabytes".into()));
        for round in 0..context.count(ROUNDS) {
            context.say_round("stalls", round, ROUNDS, "");
            // Longer than the whole run: commits are requested.
            let every = CommitInterval::try_from(CommitInterval::MAX).map_err(Error::Usage)?;
            let how = FormatOptions::on(MediumKind::Logged, gib(context, 6));
            let how = FormatOptions { commit_interval: Some(every), ..how };
            let pool = Own::make(context.base.join("stalls.pool"), how)?;
            let mount = match Mount::of(&pool.dir, context.base.join("stalls"), &context.program) {
                Ok(mount) => mount,
                Err(e) => {
                    section.skip(QUIET, e.to_string());
                    break;
                }
            };
            once(context, &pool.dir, &mount.dir, &mut section)?;
        }
        let findings = [RESERVED, COMMITTED, SAVED].map(|while_| {
            let text = |measure| section.text(while_, measure);
            let measured = format!("p50 {}, p99.9 {}, longest {} ms", text("p50"), text(LATE), text("max"));
            let (what, goal) = (format!("mounted: create while {while_}, p99.9"), Goal::quantity(10.0, 1.0, "ms"));
            Finding::judge(MediumKind::Logged, what, goal, measured, section.median(while_, LATE))
        });
        Ok(Outcome { sections: vec![section], findings: findings.into() })
    }
}

/// `n` GiB, or the part of it for a quick run.
fn gib(context: &Context, n: u64) -> u64 {
    (n << 30) / if context.quick { 32 } else { 1 }
}

fn once(context: &Context, pool: &Path, dir: &Path, section: &mut Section) -> Result<(), Error> {
    let path = dir.join("large");
    let file = File::create(&path).map_err(Error::file(&path))?;
    let (three, four) = (gib(context, 3), gib(context, 4));
    let of_file = |done: std::io::Result<()>| done.map_err(Error::file(&path));
    let mut measure = |while_: &'static str, act: &(dyn Fn() -> Result<(), Error> + Sync)| {
        let times = beside(dir, act)?;
        PARTS.iter().for_each(|(measure, part)| section.add(while_, measure, percentile(&times, *part)));
        Ok::<(), Error>(())
    };
    measure(QUIET, &|| {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })?;
    measure(RESERVED, &|| of_file(fallocate(&file, FallocateFlags::empty(), 0, three).map_err(Into::into)))?;
    measure(GIVEN_BACK, &|| of_file(file.set_len(0)))?;
    let piece = vec![7; PIECE];
    let write = |bytes: u64| (0..bytes / PIECE as u64).try_for_each(|_| of_file((&file).write_all(&piece)));
    write(three)?;
    let (image, program) = (context.base.join("stalls.image"), context.program.as_path());
    measure(SAVED, &|| command::run(Command::new(program).arg("save").arg(pool).arg(&image)))?;
    std::fs::remove_file(&image).map_err(Error::file(&image))?;
    write(four - three)?;
    measure(COMMITTED, &|| of_file(file.sync_all()))
}

/// The times to make a file in milliseconds, sorted, measured while `act` runs on another thread.
fn beside(dir: &Path, act: &(dyn Fn() -> Result<(), Error> + Sync)) -> Result<Vec<f64>, Error> {
    let path = dir.join("small");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let acts = scope.spawn(|| {
            let done = act();
            ended.store(true, Ordering::Relaxed);
            done
        });
        let mut times = Vec::new();
        // At least once.
        while times.is_empty() || !ended.load(Ordering::Relaxed) {
            let start = now();
            let made = File::create(&path).map_err(Error::file(&path))?;
            times.push(seconds_since(start) * 1e3);
            drop(made);
            std::fs::remove_file(&path).map_err(Error::file(&path))?;
        }
        times.sort_by(f64::total_cmp);
        joined(acts)?;
        Ok(times)
    })
}
