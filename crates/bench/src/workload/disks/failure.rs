//! Random reads of mirrored files on four disks, of which one is lost (Figure 7); and what is copied when it is taken out of the pool,
//! against what it held of them.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use conquest::{OpenOptions, Pool};

use super::files::{self, Redundancy};
use super::peer::{named, PoolOn};
use super::unequal::skip;
use super::{Bench, COUNT, MB, MIB};
use crate::error::Error;
use crate::hosts;
use crate::rig::Rig;
use crate::side::{Who, LOGGED_MOUNTED};
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 2;
const WHO: Who = LOGGED_MOUNTED;
const FILES: usize = 8;
/// Threads that read, and bytes of a read: enough that the disks are what is waited for.
const READS: [usize; 2] = [16, 64 << 10];
/// Seconds with all disks, and with one lost.
const SECONDS: u64 = 12;
/// So many of them at the end of each are looked at, and so many just after the loss.
const LAST: usize = 4;
const BEFORE: &str = "all disks";
const JUST: &str = "just lost";
const AFTER: &str = "one lost";
/// Of the plot: what is copied.
const WRITTEN: &str = "written to the disks";
const COPIED: &str = "copied for each byte lost";
/// Of what was lost so much is copied at least, or it is not whole.
const WHOLE: f64 = 0.95;
/// For so long nothing has been written when all is copied, and so long that is waited for.
const QUIET: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(90);
/// The same before the loss.
const SETTLED: Duration = Duration::from_secs(8);

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title = format!(
        "Four disks of {} MB/s: random reads of {} KiB of mirrored files, {} at a time, {} MiB in all, while a disk is lost (Figure 7)",
        bench.args.slow,
        READS[1] >> 10,
        READS[0],
        size(bench) / MIB
    );
    let mut speed = Section::rates("disks-failure", title.clone(), "MB/s");
    speed.plot = Plot::bars();
    let mut time = Section::rates("disks-failure-time", format!("{title}, over time"), "MB/s");
    time.plot = Plot::lines("seconds");
    let copied = Section::times(
        "disks-reconstruction",
        "The same: bytes copied when the lost disk is taken out of the pool",
        "B/B",
    );
    let mut sections = [speed, time, copied];
    if let Err(e) = measure(bench, &mut sections) {
        bench.failed("failure", &mut sections, &e);
    }
    let row = |measure, when: &str| {
        let measured =
            format!("{} / {} MB/s", sections[0].text(WHO.name(), measure), sections[0].text(WHO.name(), BEFORE));
        let value = sections[0].ratio_of((WHO.name(), measure), (WHO.name(), BEFORE));
        let what = format!("mounted: random reads of mirrored files, four disks, one lost, without an error: {when}");
        Finding::judge(WHO.medium(), what, Goal::factor(0.7, 0.75), measured, value)
    };
    let rows = [row(AFTER, "some seconds after it"), row(JUST, "just after the loss")];
    let (measured, value) = (sections[2].text(WHO.name(), COPIED), sections[2].median(WHO.name(), COPIED));
    let what = "mounted: reconstruction: bytes copied against live bytes lost";
    let copies = Finding::judge(WHO.medium(), what, Goal::at_most(1.05, 1.0), measured, value);
    let findings = rows.into_iter().chain([copies]).collect();
    Outcome { sections: sections.into(), findings }
}

/// Bytes of the files.
fn size(bench: &Bench<'_>) -> u64 {
    bench.size() / 3
}

fn measure(bench: &Bench<'_>, sections: &mut [Section; 3]) -> Result<(), Error> {
    if !bench.context.wants(WHO.kind()) {
        return Err(Error::Usage("not asked for with --on".into()));
    }
    for round in 0..bench.context.rounds(ROUNDS) {
        bench.say("failure", round, ROUNDS, WHO.name());
        // Made anew: one of them is broken then.
        let rig = bench.rig(&[bench.fast(); COUNT])?;
        if let Err(e) = once(bench, &rig, sections) {
            sections.iter_mut().for_each(|section| skip(bench, section, WHO.name(), &e));
            break;
        }
    }
    Ok(())
}

fn once(bench: &Bench<'_>, rig: &Rig, sections: &mut [Section; 3]) -> Result<(), Error> {
    let pool = PoolOn::make(bench, WHO, &named(&rig.paths()))?;
    let dir = pool.dir()?;
    files::require_redundancy(dir)?;
    let before = rig.counted()?;
    files::write(dir, "file", FILES, size(bench) / FILES as u64, |_| Redundancy::Mirror)?;
    let held = rig.counted()?[0].written - before[0].written;
    // So that little of it is in the cache.
    files::write(dir, "other", 1, bench.cache(), |_| Redundancy::None)?;
    std::fs::remove_file(dir.join("other0")).map_err(Error::file(dir))?;
    // What it may move by itself is no reconstruction.
    let begun = rig.written()?;
    quiet(rig, SETTLED)?;
    let moved = (rig.written()? - begun) / MIB;
    rig.set_rates(&[bench.slow(); COUNT])?;
    let seconds = if bench.context.quick { 2 } else { SECONDS };
    // From the loss on nothing else is written: it may be copied without being told to.
    let (whole, before) = (rig.written()?, copied(&pool)?);
    let slots: Vec<AtomicU64> = (0..2 * seconds).map(|_| AtomicU64::new(0)).collect();
    let (ended, start) = (AtomicBool::new(false), Instant::now());
    let written = std::thread::scope(|scope| {
        let clock = scope.spawn(|| {
            let looked = (0..2 * seconds).map(|second| {
                if second == seconds {
                    rig.disks[0].break_it()?;
                }
                std::thread::sleep((start + Duration::from_secs(second + 1)).saturating_duration_since(Instant::now()));
                rig.written()
            });
            let written = looked.collect::<Result<Vec<u64>, Error>>();
            ended.store(true, Ordering::Relaxed);
            written
        });
        let see = |_| {
            if let Some(slot) = slots.get(start.elapsed().as_secs() as usize) {
                slot.fetch_add(READS[1] as u64, Ordering::Relaxed);
            }
        };
        let read = files::read_at_random(dir, "file", FILES, READS, &ended, see);
        let written = clock.join().unwrap_or_else(|_| Err(Error::Wrong("a thread panicked".into())))?;
        read.map(|()| written)
    })?;
    for (second, pair) in [whole].iter().chain(&written).zip(&written).enumerate() {
        sections[1].add(WRITTEN, &format!("{} s", second + 1), (pair.1 - pair.0) as f64 / MB);
    }
    let rates: Vec<f64> = slots.into_iter().map(|bytes| bytes.into_inner() as f64 / MB).collect();
    for (second, rate) in rates.iter().enumerate() {
        sections[1].add(WHO.name(), &format!("{} s", second + 1), *rate);
    }
    let (half, looked) = (seconds as usize, LAST.min(seconds as usize));
    for (measure, first) in [(BEFORE, half - looked), (JUST, half), (AFTER, 2 * half - looked)] {
        let some = &rates[first..first + looked];
        sections[0].add(WHO.name(), measure, some.iter().sum::<f64>() / some.len() as f64);
    }
    let by_itself = (rig.written()? - whole) / MIB;
    reconstruct(bench, rig, &pool)?;
    let (copied, written) = (copied(&pool)? - before, rig.written()? - whole);
    let of_lost = copied as f64 / held as f64;
    sections[2].notes.push(format!(
        "{moved} MiB were moved once all was written; {} MiB were held, {by_itself} were written by itself before it was taken out, {} in \
         all, balancing among them; {} were copied",
        held / MIB,
        written / MIB,
        copied / MIB
    ));
    if of_lost < WHOLE {
        return Err(Error::Wrong(format!("{:.0} % of what was lost has been copied, and no more is", of_lost * 100.0)));
    }
    sections[2].add(WHO.name(), COPIED, of_lost);
    Ok(())
}

/// Bytes that the pool has copied so that content has as many copies as it is to have. What it moves to balance its disks afterwards is no
/// reconstruction.
fn copied(pool: &PoolOn) -> Result<u64, Error> {
    let status = Pool::open(pool.pool(), &OpenOptions::default())?.status()?;
    Ok(status.cache.map_or(0, |cache| cache.copied))
}

/// Takes the broken disk out of the pool, and waits until nothing is written any more.
fn reconstruct(bench: &Bench<'_>, rig: &Rig, pool: &PoolOn) -> Result<(), Error> {
    rig.set_rates(&[bench.fast(); COUNT])?;
    let mut remove = Command::new(&bench.context.program);
    remove.args(["region", "remove", "--force"]).arg(pool.pool()).arg(rig.disks[0].path());
    hosts::run(&mut remove).map_err(|e| e.at("region remove --force"))?;
    quiet(rig, QUIET)
}

/// Waits until nothing has been written for so long.
fn quiet(rig: &Rig, time: Duration) -> Result<(), Error> {
    let (begun, mut last, mut since) = (Instant::now(), rig.written()?, Instant::now());
    while since.elapsed() < time && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(100));
        let written = rig.written()?;
        if written > last + MIB {
            (last, since) = (written, Instant::now());
        }
    }
    Ok(())
}
