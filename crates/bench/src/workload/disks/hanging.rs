//! A mirrored file with its copies on a fast and on a slow disk is read when the fast one does not answer any more: the longest wait.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::Advice;

use super::files::{self, Redundancy};
use super::peer::{named, PoolOn};
use super::unequal::skip;
use super::{Bench, MIB};
use crate::clock::now;
use crate::error::Error;
use crate::side::{Who, LOGGED_MOUNTED};
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const WHO: Who = LOGGED_MOUNTED;
const LONGEST: &str = "longest of them";
const READS: u64 = 32;
const LEN: usize = 64 << 10;
/// A request takes for ever at so many bytes in a second.
const STANDSTILL: u64 = 1;

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title = format!(
        "{READS} reads of a mirrored file of {} MiB, the disk of whose faster copy does not answer",
        size(bench) / MIB
    );
    let mut section = Section::times("disks-hanging", title, "s");
    if let Err(e) = measure(bench, &mut section) {
        bench.failed("hanging", std::slice::from_mut(&mut section), &e);
    }
    let what = "mounted: read of a mirrored file whose faster copy's disk hangs";
    let (measured, value) = (section.text(WHO.name(), LONGEST), section.median(WHO.name(), LONGEST));
    let finding = Finding::judge(WHO.medium(), what, Goal::quantity(1.0, 0.1, "s"), measured, value);
    Outcome { sections: vec![section], findings: vec![finding] }
}

fn size(bench: &Bench<'_>) -> u64 {
    bench.size() / 6
}

fn measure(bench: &Bench<'_>, section: &mut Section) -> Result<(), Error> {
    if !bench.context.wants(WHO.kind()) {
        return Err(Error::Usage("not asked for with --on".into()));
    }
    let rates = [bench.fast(), bench.slow()];
    for round in 0..bench.context.rounds(ROUNDS) {
        bench.say("hanging", round, ROUNDS, WHO.name());
        let rig = bench.rig(&rates)?;
        let pool = PoolOn::make(bench, WHO, &named(&rig.paths()));
        let done = pool.and_then(|pool| {
            let dir = pool.dir()?;
            files::require_redundancy(dir)?;
            files::write(dir, "file", 1, size(bench), |_| Redundancy::Mirror)?;
            files::write(dir, "other", 1, bench.cache(), |_| Redundancy::None)?;
            // It has learned by then which is the faster one.
            longest(&dir.join("file0"), size(bench), 0)?;
            rig.disks[0].set_rate(STANDSTILL)?;
            std::thread::sleep(Duration::from_millis(300));
            let longest = longest(&dir.join("file0"), size(bench), 1);
            // Before it is unmounted, which would wait.
            rig.set_rates(&rates)?;
            longest
        });
        match done {
            Ok(seconds) => section.add(WHO.name(), LONGEST, seconds),
            Err(e) => {
                skip(bench, section, WHO.name(), &e);
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The longest of some reads, each of another place, in seconds. `turn`: other places than those of another turn.
fn longest(path: &std::path::Path, bytes: u64, turn: u64) -> Result<f64, Error> {
    let file = File::open(path).map_err(Error::file(path))?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    let (mut buf, mut longest) = (vec![0; LEN], 0.0f64);
    let step = bytes / READS / LEN as u64 * LEN as u64;
    for n in 0..READS {
        let start = now();
        file.read_exact_at(&mut buf, n * step + turn * LEN as u64).map_err(Error::file(path))?;
        longest = longest.max((now() - start) as f64 / 1e9);
    }
    Ok(longest)
}
