//! What others wait for while a disk is emptied, replaced, while content is balanced or scrubbed: overwrites of 4 KiB, each synced, and
//! cold reads of 4 KiB; of a hundred the slowest, against the same where nothing else goes on.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::files::{self, Redundancy};
use super::peer::{named, PoolOn};
use super::unequal::skip;
use super::{Bench, COUNT, MIB};
use crate::clock::now;
use crate::error::Error;
use crate::side::{Who, LOGGED_MOUNTED};
use report::goals::{Finding, Goal};
use report::stats::percentile;
use report::{Outcome, Section};
use rng::Rng;

const ROUNDS: usize = 2;
const WHO: Who = LOGGED_MOUNTED;
const BLOCK: usize = 4096;
/// Ballast is in so many files, mirrored so that it can be rebuilt.
const FILES: usize = 4;
const BALANCE: &str = "balance";
const IDLE: &str = "idle";
/// Seconds of looking where nothing else goes on; and where the command takes longer.
const SECONDS: f64 = 4.0;
const PATIENCE: f64 = 30.0;
/// How long a disk may be open that was removed.
const LETS_GO: Duration = Duration::from_secs(2);
/// Fewer say nothing of the slowest of a hundred.
const LEAST: usize = 200;
const KINDS: [(&str, &str); 2] = [("overwrite", "4 KiB fsync'd overwrite"), ("read", "cold read of 4 KiB")];
/// What goes on, and the command: `POOL`, `DISK` (one of the mirrored region), `LAST` (one that is a region) and `SPARE` (one more) stand
/// for theirs.
const WORKS: [(&str, &[&str]); 4] = [
    ("scrub", &["scrub", "POOL"]),
    ("rebuild", &["region", "replace", "POOL", "DISK", "SPARE"]),
    ("removal", &["region", "remove", "POOL", "LAST"]),
    (BALANCE, &["region", "balance", "POOL"]),
];

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title = format!(
        "Four disks of {} MB/s, {} MiB of mirrored files: the slowest of a hundred while something else goes on",
        bench.args.fast,
        ballast(bench) / MIB
    );
    let mut section = Section::times("disks-foreground", title, "ms");
    if let Err(e) = measure(bench, &mut section) {
        bench.failed("foreground", std::slice::from_mut(&mut section), &e);
    }
    let row = |(work, _): &(&'static str, _), (kind, what): (&str, &str)| {
        let (during, idle) = (format!("{kind}, {work}"), format!("{kind}, {IDLE}"));
        let measured = format!("{} / {} ms", section.text(WHO.name(), &during), section.text(WHO.name(), &idle));
        let value = section.ratio_of((WHO.name(), &during), (WHO.name(), &idle));
        let what = format!("mounted: {what}, p99 during {work} against idle");
        Finding::judge(WHO.medium(), what, Goal::at_most(2.0, 1.3), measured, value)
    };
    let findings = WORKS.iter().flat_map(|work| KINDS.map(|kind| row(work, kind))).collect();
    Outcome { sections: vec![section], findings }
}

fn ballast(bench: &Bench<'_>) -> u64 {
    bench.size() / 3
}

fn measure(bench: &Bench<'_>, section: &mut Section) -> Result<(), Error> {
    if !bench.context.wants(WHO.kind()) {
        return Err(Error::Usage("not asked for with --on".into()));
    }
    for round in 0..bench.context.rounds(ROUNDS) {
        // One more, as a spare.
        let rig = bench.rig(&[bench.fast(); COUNT + 1])?;
        let paths = named(&rig.paths());
        // A region that can be rebuilt, and two that can be emptied.
        let disks = [format!("mirror:{},{}", paths[0], paths[1]), paths[2].clone(), paths[COUNT - 1].clone()];
        let done = PoolOn::make(bench, WHO, &disks).and_then(|pool| {
            let dir = pool.dir()?;
            files::require_redundancy(dir)?;
            files::write(dir, "ballast", FILES, ballast(bench) / FILES as u64, |_| Redundancy::Mirror)?;
            files::write(dir, "target", 1, 16 * MIB, |_| Redundancy::None)?;
            let look = |section: &mut Section, what: &str, child: Option<Began>| {
                bench.say("foreground", round, ROUNDS, what);
                let found = watched(dir, child)?;
                for ((kind, _), mut took) in KINDS.into_iter().zip(found) {
                    took.sort_by(f64::total_cmp);
                    match took.len() < LEAST {
                        true => section.notes.push(format!("{kind}, {what}: it was over after {}", took.len())),
                        false => section.add(WHO.name(), &format!("{kind}, {what}"), percentile(&took, 0.99) * 1e3),
                    }
                }
                Ok::<(), Error>(())
            };
            look(section, IDLE, None)?;
            for (what, command) in WORKS {
                let of = |word: &&str| match *word {
                    "POOL" => pool.pool().display().to_string(),
                    "DISK" => paths[0].clone(),
                    "LAST" => paths[COUNT - 1].clone(),
                    "SPARE" => paths[COUNT].clone(),
                    word => word.to_owned(),
                };
                let words: Vec<String> = command.iter().map(of).collect();
                if what == BALANCE {
                    // Empty again, so that there is something to do.
                    let mut add = Command::new(&bench.context.program);
                    add.args(["region", "add"]).arg(pool.pool()).args([&paths[COUNT - 1], "--force"]);
                    // Who has the pool mounted lets go of a disk that is removed within a second.
                    let mut added = crate::hosts::run(&mut add);
                    if added.is_err() {
                        std::thread::sleep(LETS_GO);
                        added = crate::hosts::run(&mut add);
                    }
                    if let Err(e) = added {
                        section.notes.push(format!("{what}: the disk that was removed cannot be added: {e}"));
                        continue;
                    }
                }
                match began(bench, &words)? {
                    // One that fails does not keep the others from being looked at.
                    Some(began) => {
                        if let Err(e) = look(section, what, Some(began)) {
                            bench.context.failed(&format!("disks: foreground: {what}"), &e);
                            section.notes.push(format!("{what}: FAILED: {e}"));
                        }
                    }
                    None => section.notes.push(format!("{what}: not available in this build")),
                }
            }
            Ok(())
        });
        if let Err(e) = done {
            skip(bench, section, WHO.name(), &e);
            return Ok(());
        }
    }
    Ok(())
}

/// A command that goes on, and what it says on stderr.
struct Began {
    child: Child,
    said: File,
}

/// Starts a command of the program that is measured, if it has that.
fn began(bench: &Bench<'_>, words: &[String]) -> Result<Option<Began>, Error> {
    let program = &bench.context.program;
    let verbs = words.iter().take_while(|word| !word.starts_with('/'));
    let mut help = Command::new(program);
    help.args(verbs).arg("--help").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if !help.status().is_ok_and(|status| status.success()) {
        return Ok(None);
    }
    let said = tempfile::tempfile().map_err(Error::io("a temporary file"))?;
    let stderr = said.try_clone().map_err(Error::io("a temporary file"))?;
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let child = command.spawn().map_err(Error::io(program.display().to_string()))?;
    Ok(Some(Began { child, said }))
}

impl Began {
    /// An error where it failed by itself; one that goes on for too long is ended.
    fn end(mut self, is_late: bool) -> Result<(), Error> {
        if is_late {
            let _ = self.child.kill();
        }
        let status = self.child.wait().map_err(Error::io("the command that goes on"))?;
        if status.success() || is_late {
            return Ok(());
        }
        let mut said = String::new();
        let _ = self.said.rewind().and_then(|()| self.said.read_to_string(&mut said));
        Err(Error::Program { program: "the command that goes on".into(), said: said.trim().replace('\n', "; ") })
    }
}

/// Overwrites and reads, as long as the command goes on, or for some seconds; what each took, in seconds.
fn watched(dir: &Path, mut began: Option<Began>) -> Result<[Vec<f64>; 2], Error> {
    let (ended, reads) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let start = Instant::now();
    let path = dir.join("target0");
    let target = File::options().write(true).open(&path).map_err(Error::file(&path))?;
    let blocks = target.metadata().map_err(Error::file(&path))?.len() / BLOCK as u64;
    let (mut random, data, mut overwrites) = (Rng::new(5), Rng::new(6).bytes(BLOCK), Vec::new());
    let (overwritten, read) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let see = |took| reads.lock().unwrap_or_else(PoisonError::into_inner).push(took);
            files::read_at_random(dir, "ballast", FILES, [1, BLOCK], &ended, see)
        });
        let mut go_on = || match &mut began {
            Some(began) => matches!(began.child.try_wait(), Ok(None)) && start.elapsed().as_secs_f64() < PATIENCE,
            None => start.elapsed().as_secs_f64() < SECONDS,
        };
        let mut overwrite = || {
            while go_on() && !reader.is_finished() {
                let begun = now();
                target.write_all_at(&data, random.below(blocks) * BLOCK as u64).map_err(Error::file(&path))?;
                target.sync_all().map_err(Error::file(&path))?;
                overwrites.push((now() - begun) as f64 / 1e9);
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok::<(), Error>(())
        };
        let overwritten = overwrite();
        ended.store(true, Ordering::Relaxed);
        (overwritten, reader.join().unwrap_or_else(|_| Err(Error::Wrong("a thread panicked".into()))))
    });
    let is_late = start.elapsed().as_secs_f64() >= PATIENCE;
    began.map_or(Ok(()), |began| began.end(is_late))?;
    overwritten.and(read)?;
    Ok([overwrites, reads.into_inner().unwrap_or_else(PoisonError::into_inner)])
}
