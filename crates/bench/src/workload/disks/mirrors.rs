//! Mirrored files: Figures 7 to 9, and a disk that does not answer.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use conquest::{HowToLeave, Left, Pool, WhichRegion};
use rustix::fs::Advice;

use super::files::{self, Redundancy};
use super::peer::Contender;
use super::trace::watched;
use super::{single, wait, Bench, COUNT, MB, WHO};
use crate::command;
use crate::prelude::*;
use crate::rig::Rig;

/// Reading threads, and bytes of a read: enough that the disks are the bottleneck.
const READS: [usize; 2] = [16, 64 << 10];
const BEFORE: &str = "all disks";
const JUST: &str = "just lost";
const AFTER: &str = "one lost";
const COPIED: &str = "copied for each byte lost";

/// Random reads of mirrored files on four disks, of which one is lost (Figure 7); and the content copied when the disk
/// is taken out of the pool, against its share of these files.
pub fn failure(bench: &Bench<'_>) -> Outcome {
    let (slow, kib, mib) = (bench.args.slow, READS[1] >> 10, bench.size() / 3 / MIB);
    let title = format!(
        "Four disks of {slow} MB/s: random reads of {kib} KiB of mirrored files, {} at a time, {mib} MiB in all, while a disk is \
         lost (Figure 7)",
        READS[0]
    );
    let over_time = format!("{title}, over time");
    let copied = "The same: bytes copied when the lost disk is taken out of the pool";
    let sections = vec![
        Section::rates("disks-failure", title, "MB/s").drawn(Plot::bars()),
        Section::rates("disks-failure-time", over_time, "MB/s").drawn(Plot::lines("seconds")),
        Section::times("disks-reconstruction", copied, "B/B"),
    ];
    let sections = bench.mirrored_part("failure", 2, sections, |_, sections| {
        // Made anew: one of the disks is broken then.
        let rig = bench.rig(&[bench.fast(); COUNT])?;
        lost(bench, &rig, sections)
    });
    let row = |measure, when| {
        let what = format!("mounted: random reads of mirrored files, four disks, one lost, without an error: {when}");
        let row = sections[0].row(WHO.medium(), what, Goal::factor(0.7, 0.75));
        row.between((WHO.name, measure), (WHO.name, BEFORE))
    };
    let what = "mounted: reconstruction: bytes copied against live bytes lost";
    let copies = sections[2].row(WHO.medium(), what, Goal::at_most(1.05, 1.0)).median(WHO.name, COPIED);
    let findings = vec![row(AFTER, "some seconds after it"), row(JUST, "just after the loss"), copies];
    Outcome { sections, findings }
}

fn lost(bench: &Bench<'_>, rig: &Rig, sections: &mut [Section]) -> Result<(), Error> {
    const FILES: usize = 8;
    /// Less than this part of the lost content copied means that it is not whole.
    const WHOLE: f64 = 0.95;
    /// The time without writes before the loss, and after all is copied.
    const SETTLED: Duration = Duration::from_secs(8);
    const QUIET: Duration = Duration::from_secs(4);
    let pool = bench.pool(WHO, single(&rig.paths()))?;
    let dir = pool.dir()?;
    files::write(dir, "file", FILES, bench.size() / 3 / FILES as u64, |_| Redundancy::Mirror)?;
    // So that little of the files is in the cache.
    files::write(dir, "other", 1, bench.cache(), |_| Redundancy::None)?;
    std::fs::remove_file(dir.join("other0")).map_err(Error::file(dir))?;
    // Content that the pool moves by itself is no reconstruction.
    let begun = rig.written()?;
    quiet(rig, SETTLED)?;
    let moved = (rig.written()? - begun) / MIB;
    rig.set_rates(&[bench.slow(); COUNT])?;
    // From the loss on there are no other writes: the pool may copy without a request.
    let (whole, before, held) = (rig.written()?, copied(&pool)?, held(&pool)?);
    reads_over_loss(bench, rig, dir, FILES, sections)?;
    let by_itself = (rig.written()? - whole) / MIB;
    // Takes the broken disk out of the pool, and waits for the end of all writes.
    rig.set_rates(&[bench.fast(); COUNT])?;
    let mut remove = Command::new(&bench.context.program);
    remove.args(["region", "remove", "--force"]).args(pool.pool_dir()).arg(rig.disks[0].path());
    command::run(&mut remove).map_err(|e| e.at("region remove --force"))?;
    quiet(rig, QUIET)?;
    let (copied, written) = (copied(&pool)? - before, rig.written()? - whole);
    let of_lost = copied as f64 / held as f64;
    let [held, written, copied] = [held, written, copied].map(|bytes| bytes / MIB);
    sections[2].notes.push(format!(
        "{moved} MiB were moved once all was written; {held} MiB were held, {by_itself} were written by itself before it was taken \
         out, {written} in all, balancing among them; {copied} were copied"
    ));
    if of_lost < WHOLE {
        return Err(Error::Wrong(format!("{:.0} % of what was lost has been copied, and no more is", of_lost * 100.0)));
    }
    sections[2].add(WHO.name, COPIED, of_lost);
    Ok(())
}

/// Reads at random with all disks, and for as long with one lost.
fn reads_over_loss(
    bench: &Bench<'_>,
    rig: &Rig,
    dir: &Path,
    count: usize,
    sections: &mut [Section],
) -> Result<(), Error> {
    /// Seconds of each; and the seconds that count at the end of each, and just after the loss.
    const SECONDS: usize = 12;
    const LAST: usize = 4;
    let half = if bench.context.quick { 2 } else { SECONDS };
    let slots: Vec<AtomicU64> = (0..2 * half).map(|_| AtomicU64::new(0)).collect();
    let (whole, ended, start) = (rig.written()?, AtomicBool::new(false), Instant::now());
    let written = std::thread::scope(|scope| {
        let clock = scope.spawn(|| {
            let looked = (0..2 * half).map(|second| {
                if second == half {
                    rig.disks[0].break_it()?;
                }
                let next = start + Duration::from_secs(second as u64 + 1);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
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
        let read = files::read_at_random(dir, "file", count, READS, &ended, see);
        let written = joined(clock)?;
        read.map(|()| written)
    })?;
    for (second, pair) in [whole].iter().chain(&written).zip(&written).enumerate() {
        sections[1].add("written to the disks", &format!("{} s", second + 1), (pair.1 - pair.0) as f64 / MB);
    }
    let rates: Vec<f64> = slots.into_iter().map(|bytes| bytes.into_inner() as f64 / MB).collect();
    for (second, rate) in rates.iter().enumerate() {
        sections[1].add(WHO.name, &format!("{} s", second + 1), *rate);
    }
    let looked = LAST.min(half);
    for (measure, first) in [(BEFORE, half - looked), (JUST, half), (AFTER, 2 * half - looked)] {
        let some = &rates[first..first + looked];
        sections[0].add(WHO.name, measure, some.iter().sum::<f64>() / some.len() as f64);
    }
    Ok(())
}

/// Bytes that the pool has copied to restore the number of replicas. Later moves to balance its disks are no
/// reconstruction.
fn copied(pool: &Peer) -> Result<u64, Error> {
    let of = pool.see_pool(|pool| Ok(pool.status()?.cache.map_or(0, |cache| cache.copied)));
    of.unwrap_or(Ok(0))
}

/// Live bytes on the first disk.
fn held(pool: &Peer) -> Result<u64, Error> {
    let Some(dir) = pool.pool_dir() else { return Ok(0) };
    match Pool::remove_regions(dir, &[WhichRegion::Number(0)], HowToLeave::Look, &mut |_| true)? {
        Left::Looked(leaving) => Ok(leaving.live),
        left => Err(Error::Wrong(format!("asking what the first disk holds: {left:?}"))),
    }
}

/// Waits until next to nothing has been written for this long.
fn quiet(rig: &Rig, time: Duration) -> Result<(), Error> {
    const PATIENCE: Duration = Duration::from_secs(90);
    let begun = Instant::now();
    wait(rig, MIB, |still| still >= time || begun.elapsed() >= PATIENCE)
}

/// Twenty files are written at the same time, more and more of them mirrored (Figure 8).
pub fn mirrored(bench: &Bench<'_>) -> Outcome {
    const ROUNDS: usize = 2;
    const FILES: usize = 20;
    let measure_of = |percent: usize| format!("{percent} % mirrored");
    let (fast, mib, each) = (bench.args.fast, bench.size() / MIB, bench.size() / FILES as u64);
    let title = format!(
        "Four disks of {fast} MB/s: {FILES} files of {mib} MiB in all, written at a time and synced, some of them mirrored (Figure 8)"
    );
    let section = Section::rates("disks-mirrored", title, "MB/s")
        .drawn(Plot::lines("percent of the files that are mirrored"))
        .noting("btrfs mirrors all or nothing: raid0 and raid1");
    let sections = bench.part("mirrored", vec![section], |sections| {
        let rig = bench.rig(&bench.rates(COUNT))?;
        let (mut pools, mut btrfs) = (vec![Contender::Pool(WHO)], vec![Contender::Raid0, Contender::Raid1]);
        for round in 0..bench.context.count(ROUNDS) {
            for percent in [0, 25, 50, 75, 100] {
                let at = ("mirrored", round, ROUNDS);
                bench.contend(at, &mut pools, &rig.paths(), sections, |who, made, sections| {
                    let of = |n| if n * 100 < percent * FILES { Redundancy::Mirror } else { Redundancy::None };
                    let speed = files::write(made.dir()?, "file", FILES, each, of)?;
                    sections[0].add(who, &measure_of(percent), speed / MB);
                    Ok(())
                });
            }
            let at = ("mirrored", round, ROUNDS);
            bench.contend(at, &mut btrfs, &rig.paths(), sections, |who, made, sections| {
                let percent = if who == super::peer::BTRFS_RAID1 { 100 } else { 0 };
                let speed = files::write(made.dir()?, "file", FILES, each, |_| Redundancy::Usual)?;
                sections[0].add(who, &measure_of(percent), speed / MB);
                Ok(())
            });
        }
        Ok(())
    });
    let what = "mounted: all files mirrored, written against none of them mirrored";
    let row = sections[0].row(WHO.medium(), what, Goal::factor(0.48, 0.5));
    Outcome { findings: vec![row.between((WHO.name, &measure_of(100)), (WHO.name, &measure_of(0)))], sections }
}

/// Files that are mirrored some seconds after they were written (Figure 9): a burst of them against one of files that
/// are not mirrored; and the speed of writing and of the disks, over a time in which the first files are copied.
pub fn lazy(bench: &Bench<'_>) -> Outcome {
    const LAZY: &str = "lazily mirrored";
    const NONE: &str = "not mirrored";
    /// Seconds until they are mirrored; the paper has 20.
    const DELAY: u64 = 6;
    const FILES: usize = 8;
    /// Bursts one after another, with copying between them.
    const BURSTS: usize = 4;
    /// After this long without writes all is copied; and the longest wait for that.
    const QUIET: Duration = Duration::from_secs(3);
    const PATIENCE: Duration = Duration::from_secs(60);
    let (fast, mib, each) = (bench.args.fast, bench.size() / MIB, bench.size() / FILES as u64);
    let title =
        format!("Four disks of {fast} MB/s: {FILES} files of {mib} MiB in all, mirrored {DELAY} s later (Figure 9)");
    let over_time = format!("{BURSTS} times that, over time: bytes written to the disks; {title}");
    let sections = vec![
        Section::rates("disks-lazy", title, "MB/s").drawn(Plot::bars()),
        Section::rates("disks-lazy-time", over_time, "MB/s").drawn(Plot::lines("seconds")),
    ];
    let rounds = bench.context.count(3);
    let room = bench.size() * 3 * BURSTS as u64 / COUNT as u64 + 512 * MIB;
    let mut rig = None;
    let sections = bench.mirrored_part("lazy", 3, sections, |round, sections| {
        let rig = match &mut rig {
            Some(rig) => rig,
            none => none.insert(bench.rig_of(&bench.rates(COUNT), room)?),
        };
        for (measure, redundancy) in [(NONE, Redundancy::None), (LAZY, Redundancy::Lazy(DELAY))] {
            let pool = bench.pool(WHO, single(&rig.paths()))?;
            let speed = files::write(pool.dir()?, "file", FILES, each, |_| redundancy)?;
            sections[0].add(WHO.name, measure, speed / MB);
        }
        if round + 1 < rounds {
            return Ok(());
        }
        let pool = bench.pool(WHO, single(&rig.paths()))?;
        let (dir, mut speeds, begun) = (pool.dir()?, Vec::new(), Instant::now());
        let bursts = || {
            for burst in 0..BURSTS {
                let name = format!("burst-{burst}-");
                speeds.push(files::write(dir, &name, FILES, each, |_| Redundancy::Lazy(DELAY))?);
            }
            // The second half of the written bytes are the copies.
            wait(rig, 0, |still| {
                let is_due = begun.elapsed() >= Duration::from_secs(DELAY) + QUIET;
                still >= QUIET && is_due || begun.elapsed() >= PATIENCE
            })
        };
        let (_, trace) = watched(rig, |_, _| Ok(()), bursts)?;
        trace.add_rates(&mut sections[1], WHO.name, 0.5);
        sections[1].notes.push(format!(
            "bursts at {} MB/s; bytes written in all for each byte of content: {:.2}",
            speeds.iter().map(|speed| format!("{:.0}", speed / MB)).collect::<Vec<_>>().join(", "),
            trace.all_written(trace.end()) / (each * FILES as u64 * BURSTS as u64) as f64
        ));
        Ok(())
    });
    let what = "mounted: a burst of lazily mirrored files, against files that are not mirrored";
    let row = sections[0].row(WHO.medium(), what, Goal::factor(0.97, 1.0));
    Outcome { findings: vec![row.between((WHO.name, LAZY), (WHO.name, NONE))], sections }
}

const PLACES: u64 = 32;

/// The longest read of a mirrored file with replicas on a fast and on a slow disk, when the fast one stops answering.
pub fn hanging(bench: &Bench<'_>) -> Outcome {
    const LONGEST: &str = "longest of them";
    /// At this speed in bytes in a second a request never ends.
    const STANDSTILL: u64 = 1;
    let bytes = bench.size() / 6;
    let title = format!(
        "{PLACES} reads of a mirrored file of {} MiB, the disk of whose faster copy does not answer",
        bytes / MIB
    );
    let section = Section::times("disks-hanging", title, "s");
    let sections = bench.mirrored_part("hanging", 3, vec![section], |_, sections| {
        let rates = [bench.fast(), bench.slow()];
        let rig = bench.rig(&rates)?;
        let pool = bench.pool(WHO, single(&rig.paths()))?;
        let dir = pool.dir()?;
        files::write(dir, "file", 1, bytes, |_| Redundancy::Mirror)?;
        files::write(dir, "other", 1, bench.cache(), |_| Redundancy::None)?;
        // By then the pool knows the faster disk.
        longest(&dir.join("file0"), bytes, 0)?;
        rig.disks[0].set_rate(STANDSTILL)?;
        std::thread::sleep(Duration::from_millis(300));
        let longest = longest(&dir.join("file0"), bytes, 1);
        // Before unmounting, which would wait.
        rig.set_rates(&rates)?;
        sections[0].add(WHO.name, LONGEST, longest?);
        Ok(())
    });
    let what = "mounted: read of a mirrored file whose faster copy's disk hangs";
    let row = sections[0].row(WHO.medium(), what, Goal::quantity(1.0, 0.1, "s"));
    Outcome { findings: vec![row.median(WHO.name, LONGEST)], sections }
}

/// The longest of some reads at different offsets, in seconds. `offset` shifts them away from those of another call.
fn longest(path: &Path, bytes: u64, offset: u64) -> Result<f64, Error> {
    const LEN: usize = 64 << 10;
    let file = File::open(path).map_err(Error::file(path))?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    let (mut buf, mut longest) = (vec![0; LEN], 0.0f64);
    let step = bytes / PLACES / LEN as u64 * LEN as u64;
    for n in 0..PLACES {
        let start = now();
        file.read_exact_at(&mut buf, n * step + offset * LEN as u64).map_err(Error::file(path))?;
        longest = longest.max(seconds_since(start));
    }
    Ok(longest)
}
