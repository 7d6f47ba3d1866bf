//! Files that are mirrored some seconds after they were written (Figure 9): a burst of them against one of files that are not mirrored;
//! and how fast they are written, and disks are, over a time in which the first ones are copied.

use std::time::{Duration, Instant};

use super::files::{self, Redundancy};
use super::peer::{named, PoolOn};
use super::trace::watched;
use super::unequal::skip;
use super::{Bench, COUNT, MB, MIB};
use crate::error::Error;
use crate::side::{Who, LOGGED_MOUNTED};
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const WHO: Who = LOGGED_MOUNTED;
const LAZY: &str = "lazily mirrored";
const NONE: &str = "not mirrored";
/// Seconds after which they are mirrored; the paper has 20.
const DELAY: u64 = 6;
const FILES: usize = 8;
/// Bursts one after the other, with copying among them.
const BURSTS: usize = 4;
const STEP: f64 = 0.5;
/// For so long nothing has been written when all is copied, and so long that is waited for.
const QUIET: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title = format!(
        "Four disks of {} MB/s: {FILES} files of {} MiB in all, mirrored {DELAY} s later (Figure 9)",
        bench.args.fast,
        bench.size() / MIB
    );
    let mut burst = Section::rates("disks-lazy", title.clone(), "MB/s");
    burst.plot = Plot::bars();
    let mut time = Section::rates(
        "disks-lazy-time",
        format!("{BURSTS} times that, over time: bytes written to the disks; {title}"),
        "MB/s",
    );
    time.plot = Plot::lines("seconds");
    let mut sections = [burst, time];
    if let Err(e) = measure(bench, &mut sections) {
        bench.failed("lazy", &mut sections, &e);
    }
    let measured = format!("{} / {} MB/s", sections[0].text(WHO.name(), LAZY), sections[0].text(WHO.name(), NONE));
    let value = sections[0].ratio_of((WHO.name(), LAZY), (WHO.name(), NONE));
    let what = "mounted: a burst of lazily mirrored files, against files that are not mirrored";
    let finding = Finding::judge(WHO.medium(), what, Goal::factor(0.97, 1.0), measured, value);
    Outcome { sections: sections.into(), findings: vec![finding] }
}

fn measure(bench: &Bench<'_>, sections: &mut [Section; 2]) -> Result<(), Error> {
    let rig = bench.rig_of(&bench.rates(COUNT), bench.size() * 3 * BURSTS as u64 / COUNT as u64 + 512 * MIB)?;
    let (paths, each) = (rig.paths(), bench.size() / FILES as u64);
    if !bench.context.wants(WHO.kind()) {
        return Err(Error::Usage("not asked for with --on".into()));
    }
    for round in 0..bench.context.rounds(ROUNDS) {
        for (measure, redundancy) in [(NONE, Redundancy::None), (LAZY, Redundancy::Lazy(DELAY))] {
            bench.say("lazy", round, ROUNDS, measure);
            let pool = PoolOn::make(bench, WHO, &named(&paths));
            let done = pool.and_then(|pool| {
                files::require_redundancy(pool.dir()?)?;
                files::write(pool.dir()?, "file", FILES, each, |_| redundancy)
            });
            match done {
                Ok(speed) => sections[0].add(WHO.name(), measure, speed / MB),
                Err(e) => {
                    sections.iter_mut().for_each(|section| skip(bench, section, WHO.name(), &e));
                    return Ok(());
                }
            }
        }
    }
    let pool = PoolOn::make(bench, WHO, &named(&paths))?;
    let dir = pool.dir()?;
    let (mut speeds, begun) = (Vec::new(), Instant::now());
    let (_, trace) = watched(
        &rig,
        |_, _| Ok(()),
        || {
            for burst in 0..BURSTS {
                speeds.push(files::write(dir, &format!("burst-{burst}-"), FILES, each, |_| Redundancy::Lazy(DELAY))?);
            }
            // Once more what was written are the copies.
            let (mut last, mut since) = (rig.written()?, Instant::now());
            while (since.elapsed() < QUIET || begun.elapsed() < Duration::from_secs(DELAY) + QUIET)
                && begun.elapsed() < PATIENCE
            {
                std::thread::sleep(Duration::from_millis(100));
                let written = rig.written()?;
                if written > last {
                    (last, since) = (written, Instant::now());
                }
            }
            Ok(())
        },
    )?;
    trace.add_rates(&mut sections[1], WHO.name(), STEP);
    let content = (each * FILES as u64 * BURSTS as u64) as f64;
    sections[1].notes.push(format!(
        "bursts at {} MB/s; bytes written in all for each byte of content: {:.2}",
        speeds.iter().map(|speed| format!("{:.0}", speed / MB)).collect::<Vec<_>>().join(", "),
        trace.all_written(trace.end()) / content
    ));
    Ok(())
}
