//! A large file that was overwritten at random, read in order: as it lies then, and when `region balance POOL PATH` has rewritten it
//! (mission row L10); beside one that was written in order, and what the disks deliver. What is read had left the caches, and what the pool
//! had to write by itself was written.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::Advice;

use super::files::{self, Redundancy};
use super::peer::{named, PoolOn};
use super::unequal::skip;
use super::{Bench, COUNT, MB, MIB, PIECE};
use crate::clock::now;
use crate::error::Error;
use crate::hosts;
use crate::rig::Rig;
use crate::side::{Who, LOGGED_MOUNTED};
use report::goals::{Finding, Goal};
use report::{Outcome, Section};
use rng::Rng;

const ROUNDS: usize = 3;
const WHO: Who = LOGGED_MOUNTED;
const RAW: &str = "the disks";
const ORDERED: &str = "written in order";
const BEFORE: &str = "overwritten at random";
const AFTER: &str = "reorganised";
/// Bytes of an overwrite.
const REQUEST: usize = 16 << 10;
/// Between writes of these many bytes the file is synced: each time, what was written comes to lie elsewhere.
const SYNCED: u64 = 8 * MIB;
/// Disks that were written nothing for so long are at rest; it is waited so long for that.
const REST: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title = format!(
        "Four disks of {} MB/s: {} MiB read in order, as often overwritten at random in pieces of {} KiB",
        bench.args.fast,
        size(bench) / MIB,
        REQUEST >> 10
    );
    let mut section = Section::rates("disks-reorganised", title, "MB/s");
    section.baseline = Some(RAW.into());
    section.notes.push("what was read had left the caches before, and the disks were at rest".into());
    if let Err(e) = measure(bench, &mut section) {
        bench.failed("reorganised", std::slice::from_mut(&mut section), &e);
    }
    let measured = format!("{} / {} MB/s", section.text(WHO.name(), AFTER), section.text(RAW, AFTER));
    let value = section.ratio(AFTER, WHO.name(), RAW);
    let what = "mounted: a file overwritten at random read in order after it was reorganised, against raw";
    let finding = Finding::judge(WHO.medium(), what, Goal::factor(0.6, 0.9), measured, value);
    Outcome { sections: vec![section], findings: vec![finding] }
}

fn size(bench: &Bench<'_>) -> u64 {
    bench.size() / 3 / MIB * MIB
}

fn measure(bench: &Bench<'_>, section: &mut Section) -> Result<(), Error> {
    if !bench.context.wants(WHO.kind()) {
        return Err(Error::Usage("not asked for with --on".into()));
    }
    let rates = [bench.fast(); COUNT];
    let rig = bench.rig(&rates)?;
    for round in 0..bench.context.rounds(ROUNDS) {
        bench.say("reorganised", round, ROUNDS, RAW);
        let raw = rig.verify(&rates)? / MB;
        [ORDERED, BEFORE, AFTER].into_iter().for_each(|what| section.add(RAW, what, raw));
        bench.say("reorganised", round, ROUNDS, WHO.name());
        match PoolOn::make(bench, WHO, &named(&rig.paths())).and_then(|pool| speeds(bench, &pool, &rig, round)) {
            Ok(speeds) => speeds.into_iter().for_each(|(what, speed)| section.add(WHO.name(), what, speed / MB)),
            Err(e) => {
                skip(bench, section, WHO.name(), &e);
                return Ok(());
            }
        }
    }
    Ok(())
}

fn speeds(bench: &Bench<'_>, pool: &PoolOn, rig: &Rig, round: usize) -> Result<[(&'static str, f64); 3], Error> {
    let (dir, bytes) = (pool.dir()?, size(bench));
    let paths = ["ordered0", "random0"].map(|name| dir.join(name));
    let cool = || {
        files::write(dir, "other", 1, bench.cache(), |_| Redundancy::Usual)?;
        wait_for_rest(rig)
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
    hosts::run(balance.args(["region", "balance"]).arg(pool.pool()).arg(&paths[1]))?;
    cool()?;
    let after = read(&paths[1], Some(&model))?;
    Ok([(ORDERED, ordered), (BEFORE, before), (AFTER, after)])
}

/// Waits until nobody writes to the disks, or for as long as that may take.
fn wait_for_rest(rig: &Rig) -> Result<(), Error> {
    let (start, mut seen) = (Instant::now(), rig.written()?);
    while start.elapsed() < PATIENCE {
        std::thread::sleep(REST);
        match rig.written()? {
            written if written == seen => break,
            written => seen = written,
        }
    }
    Ok(())
}

/// Overwrites as many bytes as it has, at random; what it holds then, by request.
fn overwrite(path: &Path, bytes: u64, round: usize) -> Result<Vec<u8>, Error> {
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

/// Reads all of it in order; bytes in a second. Where it is known what was overwritten, that is there.
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
    Ok(bytes as f64 * 1e9 / (now() - start) as f64)
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
