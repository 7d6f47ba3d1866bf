//! The waits of other programs while a disk is emptied or replaced, or content is balanced or scrubbed; and the effect
//! of balancing on a file that was overwritten at random.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use conquest::{NewDisk, NewRegion};
use exraid::Layout;
use report::stats::percentile;
use rustix::fs::Advice;

use super::files::{self, Redundancy};
use super::{single, wait, Bench, COUNT, MB, PIECE, WHO};
use crate::command::{self, Running};
use crate::prelude::*;
use crate::rig::Rig;

const BLOCK: usize = 4096;
/// The number of files of the ballast, which is mirrored so that it can be rebuilt.
const FILES: usize = 4;
const BALANCE: &str = "balance";
const IDLE: &str = "idle";
/// Seconds of a measurement without a command; and the limit for a command that takes longer.
const SECONDS: f64 = 4.0;
const PATIENCE: f64 = 30.0;
/// Fewer samples say nothing about the slowest of a hundred.
const LEAST: usize = 200;
const KINDS: [(&str, &str); 2] = [("overwrite", "4 KiB fsync'd overwrite"), ("read", "cold read of 4 KiB")];
/// The name of each work and its command. These words are replaced: `POOL`, `DISK` (a disk of the mirrored region),
/// `LAST` (a disk that is a region) and `SPARE` (an additional disk).
const WORKS: [(&str, &[&str]); 4] = [
    ("scrub", &["scrub", "POOL"]),
    ("rebuild", &["region", "replace", "POOL", "DISK", "SPARE"]),
    ("removal", &["region", "remove", "POOL", "LAST"]),
    (BALANCE, &["region", "balance", "POOL"]),
];

/// Overwrites of 4 KiB, each synced, and cold reads of 4 KiB: the slowest of a hundred, against the same without other
/// work.
pub fn run(bench: &Bench<'_>) -> Outcome {
    let (fast, ballast) = (bench.args.fast, bench.size() / 3);
    let title = format!(
        "Four disks of {fast} MB/s, {} MiB of mirrored files: the slowest of a hundred while something else goes on",
        ballast / MIB
    );
    let section = Section::times("disks-foreground", title, "ms");
    let sections = bench.mirrored_part("foreground", 2, vec![section], |_, sections| {
        // One more disk, as a spare.
        let rig = bench.rig(&[bench.fast(); COUNT + 1])?;
        let paths = rig.paths();
        // A region that can be rebuilt, and two that can be emptied.
        let disks = paths[..2].iter().map(|path| NewDisk { path: path.clone(), size: None }).collect();
        let mut regions = vec![NewRegion { layout: Layout::Mirror, disks }];
        regions.extend(single(&paths[2..COUNT]));
        let pool = bench.pool(WHO, regions)?;
        let dir = pool.dir()?;
        files::write(dir, "ballast", FILES, ballast / FILES as u64, |_| Redundancy::Mirror)?;
        files::write(dir, "target", 1, 16 * MIB, |_| Redundancy::None)?;
        let section = &mut sections[0];
        look(dir, section, IDLE, None)?;
        for (what, command) in WORKS {
            bench.context.progress.say(format!("disks: foreground: {what}"));
            // After a failure the other works are still measured.
            if let Err(e) = during(bench, &pool, &paths, section, what, command) {
                bench.context.failed(&format!("disks: foreground: {what}"), &e);
                section.notes.push(format!("{what}: FAILED: {e}"));
            }
        }
        Ok(())
    });
    let row = |work: &str, (kind, what): (&str, &str)| {
        let what = format!("mounted: {what}, p99 during {work} against idle");
        let row = sections[0].row(WHO.medium(), what, Goal::at_most(2.0, 1.3));
        row.between((WHO.name, &format!("{kind}, {work}")), (WHO.name, &format!("{kind}, {IDLE}")))
    };
    let findings = WORKS.iter().flat_map(|(work, _)| KINDS.map(|kind| row(work, kind))).collect();
    Outcome { sections, findings }
}

/// Measures while one of the works runs.
fn during(
    bench: &Bench<'_>,
    pool: &Peer,
    paths: &[PathBuf],
    section: &mut Section,
    what: &str,
    command: &[&str],
) -> Result<(), Error> {
    /// The longest time that a removed disk stays open.
    const LETS_GO: Duration = Duration::from_secs(2);
    let program = &bench.context.program;
    let of = |word: &&str| match *word {
        "POOL" => pool.pool_dir().map(Path::to_owned).unwrap_or_default(),
        "DISK" => paths[0].clone(),
        "LAST" => paths[COUNT - 1].clone(),
        "SPARE" => paths[COUNT].clone(),
        word => word.into(),
    };
    if what == BALANCE {
        // Adds an empty disk, so that there is something to do.
        let mut add = Command::new(program);
        add.args(["region", "add", "POOL", "LAST", "--force"].iter().map(of));
        // A process that has the pool mounted closes a removed disk within a second.
        let added = command::run(&mut add).or_else(|_| {
            std::thread::sleep(LETS_GO);
            command::run(&mut add)
        });
        if let Err(e) = added {
            section.notes.push(format!("{what}: the disk that was removed cannot be added: {e}"));
            return Ok(());
        }
    }
    let running = Running::start(Command::new(program).args(command.iter().map(of)))?;
    look(pool.dir()?, section, what, Some(running))
}

/// Adds the slowest of a hundred of each kind.
fn look(dir: &Path, section: &mut Section, what: &str, running: Option<Running>) -> Result<(), Error> {
    for ((kind, _), mut took) in KINDS.into_iter().zip(watched(dir, running)?) {
        took.sort_by(f64::total_cmp);
        match took.len() < LEAST {
            true => section.notes.push(format!("{kind}, {what}: it was over after {}", took.len())),
            false => section.add(WHO.name, &format!("{kind}, {what}"), percentile(&took, 0.99) * 1e3),
        }
    }
    Ok(())
}

/// Overwrites and reads, as long as the command runs, or for some seconds; returns the time of each in seconds.
fn watched(dir: &Path, mut running: Option<Running>) -> Result<[Vec<f64>; 2], Error> {
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
        let mut go_on = || match &mut running {
            Some(running) => running.goes_on() && start.elapsed().as_secs_f64() < PATIENCE,
            None => start.elapsed().as_secs_f64() < SECONDS,
        };
        let mut overwrite = || {
            while go_on() && !reader.is_finished() {
                let begun = now();
                target.write_all_at(&data, random.below(blocks) * BLOCK as u64).map_err(Error::file(&path))?;
                target.sync_all().map_err(Error::file(&path))?;
                overwrites.push(seconds_since(begun));
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok::<(), Error>(())
        };
        let overwritten = overwrite();
        ended.store(true, Ordering::Relaxed);
        (overwritten, joined(reader))
    });
    if let Some(mut running) = running {
        // A command that runs for too long is no failure.
        match running.goes_on() && start.elapsed().as_secs_f64() >= PATIENCE {
            true => running.kill(),
            false => running.end()?,
        }
    }
    overwritten.and(read)?;
    Ok([overwrites, reads.into_inner().unwrap_or_else(PoisonError::into_inner)])
}

const RAW: &str = "the disks";
const IN_ORDER: &str = "written in order";
const BEFORE: &str = "overwritten at random";
const AFTER: &str = "reorganised";
/// Bytes of an overwrite.
const REQUEST: usize = 16 << 10;

/// A large file that was overwritten at random, read in order: as it lies then, and after `region balance POOL PATH`
/// has rewritten it. It is compared with a file written in order, and with the speed of the disks. Before each read the
/// caches were emptied, and the pool had finished its own writes.
pub fn reorganised(bench: &Bench<'_>) -> Outcome {
    let (fast, kib, bytes) = (bench.args.fast, REQUEST >> 10, bench.size() / 3 / MIB * MIB);
    let title = format!(
        "Four disks of {fast} MB/s: {} MiB read in order, as often overwritten at random in pieces of {kib} KiB",
        bytes / MIB
    );
    let note = "what was read had left the caches before, and the disks were at rest";
    let section = Section::rates("disks-reorganised", title, "MB/s").against(RAW).noting(note);
    let mut rig = None;
    let sections = bench.mirrored_part("reorganised", 3, vec![section], |round, sections| {
        let rates = [bench.fast(); COUNT];
        let rig = match &mut rig {
            Some(rig) => rig,
            none => none.insert(bench.rig(&rates)?),
        };
        let raw = rig.verify(&rates)? / MB;
        [IN_ORDER, BEFORE, AFTER].into_iter().for_each(|what| sections[0].add(RAW, what, raw));
        let pool = bench.pool(WHO, single(&rig.paths()))?;
        for (what, speed) in speeds(bench, &pool, rig, bytes, round)? {
            sections[0].add(WHO.name, what, speed / MB);
        }
        Ok(())
    });
    let what = "mounted: a file overwritten at random read in order after it was reorganised, against raw";
    let row = sections[0].row(WHO.medium(), what, Goal::factor(0.6, 0.9));
    Outcome { findings: vec![row.ratio(AFTER, WHO.name, RAW)], sections }
}

fn speeds(
    bench: &Bench<'_>,
    pool: &Peer,
    rig: &Rig,
    bytes: u64,
    round: usize,
) -> Result<[(&'static str, f64); 3], Error> {
    /// Disks without writes for this long are at rest; and the longest wait for that.
    const REST: Duration = Duration::from_millis(500);
    const PATIENCE: Duration = Duration::from_secs(60);
    let dir = pool.dir()?;
    let paths = ["ordered0", "random0"].map(|name| dir.join(name));
    let cool = || {
        files::write(dir, "other", 1, bench.cache(), |_| Redundancy::Usual)?;
        let begun = Instant::now();
        wait(rig, 0, |still| still >= REST || begun.elapsed() >= PATIENCE)
    };
    for name in ["ordered", "random"] {
        files::write(dir, name, 1, bytes, |_| Redundancy::Usual)?;
    }
    let model = overwrite(&paths[1], bytes, round)?;
    cool()?;
    let ordered = read(&paths[0], None)?;
    cool()?;
    let before = read(&paths[1], Some(&model))?;
    let mut balance = Command::new(&bench.context.program);
    command::run(balance.args(["region", "balance"]).args(pool.pool_dir()).arg(&paths[1]))?;
    cool()?;
    let after = read(&paths[1], Some(&model))?;
    Ok([(IN_ORDER, ordered), (BEFORE, before), (AFTER, after)])
}

/// Overwrites random requests, with as many bytes in all as the file has; returns the last number written to each, 0: none.
fn overwrite(path: &Path, bytes: u64, round: usize) -> Result<Vec<u8>, Error> {
    /// The file is synced after this many bytes: each time, written content gets another place.
    const SYNCED: u64 = 8 * MIB;
    let file = File::options().write(true).open(path).map_err(Error::file(path))?;
    let (mut random, requests) = (Rng::new(round as u64), bytes / REQUEST as u64);
    let mut model = vec![0; requests as usize];
    for n in 0..requests {
        let at = random.below(requests);
        let with = (n % 255) as u8 + 1;
        model[at as usize] = with;
        file.write_all_at(&[with; REQUEST], at * REQUEST as u64).map_err(Error::file(path))?;
        if (n + 1) * REQUEST as u64 % SYNCED == 0 {
            file.sync_data().map_err(Error::file(path))?;
        }
    }
    file.sync_all().map_err(Error::file(path))?;
    Ok(model)
}

/// Reads all of it in order; returns bytes in a second. With a `model`, checks the content.
fn read(path: &Path, model: Option<&[u8]>) -> Result<f64, Error> {
    let file = File::open(path).map_err(Error::file(path))?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    let (mut buf, bytes) = (vec![0; PIECE], file.metadata().map_err(Error::file(path))?.len());
    let start = now();
    for at in (0..bytes).step_by(PIECE) {
        file.read_exact_at(&mut buf, at).map_err(Error::file(path))?;
        let known = model.iter().flat_map(|model| &model[at as usize / REQUEST..]);
        for (request, with) in buf.chunks(REQUEST).zip(known).filter(|(_, with)| **with != 0) {
            if request[0] != *with || request[REQUEST - 1] != *with {
                return Err(Error::Wrong(format!("{} holds something else near {at}", path.display())));
            }
        }
    }
    Ok(per_second(bytes, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overwritten_is_looked_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        std::fs::write(&path, vec![0; 4 << 20]).expect("written");
        let mut model = overwrite(&path, 4 << 20, 1).expect("overwritten");
        assert!(read(&path, Some(&model)).expect("read") > 0.0);
        model[77] = model[77].wrapping_add(1).max(1);
        assert!(read(&path, Some(&model)).is_err());
    }
}
