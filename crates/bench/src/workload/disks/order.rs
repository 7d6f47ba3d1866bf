//! Writing in order: Figures 3 to 6, and whole stripes of a RAID-5 region.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use exraid::Layout;

use super::peer::{Bare, Contender, Made, BTRFS_RAID0, STRIPING};
use super::trace::{watched, Trace};
use super::{Bench, COUNT, MB, WHOS};
use crate::command;
use crate::prelude::*;
use crate::rig::Rig;

const WRITE: &str = "write";
const SUM: &str = "sum of the disks";

/// Pools, striping if it has a chunk, and btrfs.
fn contenders(chunk: Option<u32>) -> Vec<Contender> {
    let pools = WHOS.into_iter().map(Contender::Pool);
    pools.chain(chunk.map(Contender::Striping)).chain([Contender::Raid0]).collect()
}

/// A row of the goals: how many times as fast as `base` the peer `who` is.
fn faster(section: &Section, what: &str, (required, aim): (f64, f64), measure: &str, who: Who, base: &str) -> Finding {
    let what = format!("{}: {what}", who.how());
    section.row(who.medium(), what, Goal::factor(required, aim)).ratio(measure, who.name, base)
}

/// Bytes to write: half as many if it is no pool, since only a pool starts slowly.
fn bytes_of(made: &Made, bytes: u64) -> u64 {
    if matches!(made, Made::Pool(_)) {
        bytes
    } else {
        bytes / 2
    }
}

/// The name of a measure of [`unequal`], by the number of fast disks.
fn measure_of(fast: usize) -> String {
    format!("{} slow ({fast}:{})", COUNT - fast, COUNT - fast)
}

/// Fast and slow disks, f of one kind and s of the other (Figure 5): against the speed of all disks together, and
/// against striping, which has the speed of the slowest disk.
pub fn unequal(bench: &Bench<'_>) -> Outcome {
    const ROUNDS: usize = 3;
    let (fast, slow, bytes) = (bench.args.fast, bench.args.slow, bench.size());
    let title =
        format!("Four disks of {fast} or {slow} MB/s: {} MiB written in order and synced (Figure 5)", bytes / MIB);
    let section = Section::rates("disks-unequal", title, "MB/s").against(SUM).drawn(Plot::lines("slow disks of four"));
    let sections = bench.part("unequal", vec![section], |sections| {
        let rig = bench.rig(&bench.rates(COUNT))?;
        let paths = rig.paths();
        let chunk = Bare::best_chunk(&paths, bytes / 8)?;
        sections[0].notes.push(format!("striping: chunks of {} KiB, the best of three sizes", chunk >> 10));
        let mut contenders = contenders(Some(chunk));
        for round in 0..bench.context.count(ROUNDS) {
            for fast in (0..=COUNT).rev() {
                let (rates, measure) = (bench.rates(fast), measure_of(fast));
                rig.set_rates(&rates)?;
                bench.context.say_round("disks: unequal", round, ROUNDS, SUM);
                sections[0].add(SUM, &measure, rig.verify(&rates)? / MB);
                let at = (format!("unequal, {measure}"), round, ROUNDS);
                bench.contend((&at.0, at.1, at.2), &mut contenders, &paths, sections, |who, made, sections| {
                    let speed = made.write(&rig, bytes_of(made, bytes))?;
                    sections[0].add(who, &measure, speed / MB);
                    Ok(())
                });
            }
        }
        Ok(())
    });
    let section = &sections[0];
    let rows = |who: Who| {
        let ratios: Vec<Result<f64, String>> =
            (0..=COUNT).map(|fast| section.ratio(&measure_of(fast), who.name, SUM)).collect();
        let shown = ratios.iter().map(|ratio| ratio.as_ref().map_or("-".into(), |ratio| format!("{ratio:.2}")));
        let shown = shown.collect::<Vec<String>>().join(", ");
        let least = ratios.into_iter().collect::<Result<Vec<f64>, String>>();
        let least = least.map(|ratios| ratios.into_iter().fold(f64::INFINITY, f64::min));
        let what = format!("{}: unequal disks, 4:0 to 0:4, written in order against their sum, the least", who.how());
        let sum = Finding::judge(who.medium(), what, Goal::factor(0.9, 0.97), shown, least);
        let what = "disks 2:2, written in order against striping at the slowest disk's speed";
        [sum, faster(section, what, (1.7, 1.95), &measure_of(2), who, STRIPING)]
    };
    Outcome { findings: WHOS.into_iter().flat_map(rows).collect(), sections }
}

/// Two of four disks are halves of one: a pool, and striping, over both halves of a disk and two whole ones (section
/// 6.3).
pub fn misconfigured(bench: &Bench<'_>) -> Outcome {
    const ROUNDS: usize = 3;
    let (fast, bytes) = (bench.args.fast, bench.size());
    let title = format!(
        "Three disks of {fast} MB/s, one of which is there as two halves: {} MiB written in order and synced",
        bytes / MIB
    );
    let section = Section::rates("disks-misconfigured", title, "MB/s").against(STRIPING).drawn(Plot::bars());
    let sections = bench.part("misconfigured", vec![section], |sections| {
        let rates = [bench.fast(); 3];
        let mut rig = bench.rig_of(&rates, bytes * 3)?;
        let sum = rig.verify(&rates)?;
        let mut paths = rig.paths();
        paths.splice(..1, rig.disks[0].halves()?);
        let mut contenders = contenders(Some(Bare::best_chunk(&paths, bytes / 8)?));
        for round in 0..bench.context.count(ROUNDS) {
            sections[0].add(SUM, WRITE, sum / MB);
            let at = ("misconfigured", round, ROUNDS);
            bench.contend(at, &mut contenders, &paths, sections, |who, made, sections| {
                sections[0].add(who, WRITE, made.write(&rig, bytes_of(made, bytes))? / MB);
                Ok(())
            });
        }
        Ok(())
    });
    let what = "two of four disks are halves of one, written in order against striping";
    let row = |who| faster(&sections[0], what, (1.35, 1.5), WRITE, who, STRIPING);
    Outcome { findings: WHOS.map(row).into(), sections }
}

/// Whole stripes of a RAID-5 region over four disks, against three quarters of the disks' speed.
pub fn raid5(bench: &Bench<'_>) -> Outcome {
    const ROUNDS: usize = 3;
    const RAID5: &str = "RAID-5 region";
    const PART: &str = "three quarters of the disks";
    const CHUNK: u32 = 256 << 10;
    let (fast, mib, kib) = (bench.args.fast, bench.size() / MIB, CHUNK >> 10);
    let title =
        format!("Four disks of {fast} MB/s: {mib} MiB in whole stripes of a RAID-5 region with chunks of {kib} KiB");
    let section = Section::rates("disks-raid5", title, "MB/s").against(PART);
    let sections = bench.part("raid5", vec![section], |sections| {
        let rates = [bench.fast(); COUNT];
        let rig = bench.rig(&rates)?;
        for round in 0..bench.context.count(ROUNDS) {
            bench.context.say_round("disks: raid5", round, ROUNDS, RAID5);
            sections[0].add(PART, WRITE, rig.verify(&rates)? * (COUNT - 1) as f64 / COUNT as f64 / MB);
            let done = bench.context.attempt("disks", RAID5, sections, |sections| {
                let region = Bare::make(Layout::Raid5 { chunk: CHUNK }, &rig.paths())?;
                sections[0].add(RAID5, WRITE, region.write(bench.size())? / MB);
                Ok(())
            });
            if !done {
                break;
            }
        }
        Ok(())
    });
    let what = "RAID-5 region: whole stripes written, against (n-1)/n of the disks";
    let row = sections[0].row(MediumKind::Battery, what, Goal::factor(0.85, 0.95));
    Outcome { findings: vec![row.ratio(WRITE, RAID5, PART)], sections }
}

const REQUEST: usize = 8192;

/// In order and at random, written and read, in requests of 8 KiB, on four slow and on four fast disks (Figure 3).
pub fn baseline(bench: &Bench<'_>) -> Outcome {
    const ROUNDS: usize = 2;
    // The paper has 200 MB.
    let bytes = bench.size() / 3;
    let kinds = [("slow", bench.slow(), "disks-baseline-slow"), ("fast", bench.fast(), "disks-baseline-fast")];
    let sections = kinds.into_iter().flat_map(|(kind, rate, id)| {
        let (speed, mib, kib) = (rate / 1_000_000, bytes / MIB, REQUEST >> 10);
        let title = format!("Four {kind} disks of {speed} MB/s: {mib} MiB in requests of {kib} KiB (Figure 3)");
        let note = "at random, one request after the other; what was read had left the caches before";
        let section = Section::rates(id, title, "MB/s").against(BTRFS_RAID0).drawn(Plot::bars()).noting(note);
        bench.part("baseline", vec![section], |sections| {
            let rig = bench.rig(&[rate; COUNT])?;
            let mut contenders = contenders(None);
            for round in 0..bench.context.count(ROUNDS) {
                let at = ("baseline", round, ROUNDS);
                bench.contend(at, &mut contenders, &rig.paths(), sections, |who, made, sections| {
                    let speeds = match made {
                        Made::Pool(peer) => on_place!(&peer.place, place => phases(place, &rig, bytes, bench.cache()))?,
                        Made::Btrfs(btrfs) => phases(&btrfs.place()?, &rig, bytes, 0)?,
                        Made::Region(_) => return Ok(()),
                    };
                    speeds.into_iter().for_each(|(phase, speed)| sections[0].add(who, phase, speed / MB));
                    Ok(())
                });
            }
            Ok(())
        })
    });
    Outcome { sections: sections.collect(), findings: Vec::new() }
}

/// Bytes in a second of each phase. `cache`: bytes that go through the cache in between, so that reads miss it.
fn phases(place: &impl Place, rig: &Rig, bytes: u64, cache: u64) -> Result<[(&'static str, f64); 4], Error> {
    let (path, other) = (name("large".into()), name("other".into()));
    let (data, mut buf) = (Rng::new(3).bytes(REQUEST), vec![0; REQUEST]);
    let requests = bytes / REQUEST as u64;
    // As many bytes as the file has, if it is small.
    let at_random = requests.min(8_000);
    let mut random = Rng::new(4);
    let mut read = |file: &_, n: u64| match place.read(file, n * REQUEST as u64, &mut buf)? {
        REQUEST => Ok(()),
        n => Err(Error::Wrong(format!("{n} bytes of {REQUEST}"))),
    };
    let write = |file: &_, n: u64| place.write(file, n * REQUEST as u64, &data);
    // Only bytes that have reached the disks count as written.
    let speed = |count: u64, (before, start): (u64, u64), is_write: bool| {
        let (bytes, seconds) = (count * REQUEST as u64, seconds_since(start));
        let reached = if is_write { (rig.written()? - before).min(bytes) } else { bytes };
        Ok::<f64, Error>(reached as f64 / seconds)
    };
    let begin = || Ok::<_, Error>((rig.written()?, now()));
    let cool = || {
        let file = place.create(&other)?;
        (0..cache).step_by(MIB as usize).try_for_each(|at| place.write(&file, at, &vec![7; MIB as usize]))?;
        place.settle()?;
        place.forget(&place.open_read(&path)?)
    };
    let begun = begin()?;
    let file = place.create(&path)?;
    (0..requests).try_for_each(|n| write(&file, n))?;
    place.fsync(&file)?;
    let written = speed(requests, begun, true)?;
    drop(file);
    cool()?;
    let begun = begin()?;
    let file = place.open_read(&path)?;
    (0..requests).try_for_each(|n| read(&file, n))?;
    let was_read = speed(requests, begun, false)?;
    drop(file);
    let begun = begin()?;
    let file = place.open_update(&path)?;
    (0..at_random).try_for_each(|_| write(&file, random.below(requests)))?;
    place.fsync(&file)?;
    // Content in the memory of a pool on `battery` is durable, but not written yet.
    place.settle()?;
    let written_at_random = speed(at_random, begun, true)?;
    drop(file);
    cool()?;
    let begun = begin()?;
    let file = place.open_read(&path)?;
    (0..at_random).try_for_each(|_| read(&file, random.below(requests)))?;
    let read_at_random = speed(at_random, begun, false)?;
    Ok([
        ("write in order", written),
        ("read in order", was_read),
        ("write at random", written_at_random),
        ("read at random", read_at_random),
    ])
}

/// One of four fast disks delivers 27 % while the middle third is written (Figure 6): 5.8 of 21.6 MB/s.
pub fn degraded(bench: &Bench<'_>) -> Outcome {
    const ROUNDS: usize = 3;
    const LEFT: f64 = 0.27;
    const THIRDS: [&str; 3] = ["first third", "middle third", "last third"];
    /// Seconds of a point of the plot.
    const STEP: f64 = 0.25;
    // Twice as much as in other parts, so that a third of it takes some seconds.
    let bytes = bench.size() * 2;
    let (fast, percent, mib) = (bench.args.fast, LEFT * 100.0, bytes / MIB);
    let title = format!(
        "Four disks of {fast} MB/s, one of which delivers {percent:.0} % while the middle third of {mib} MiB is written (Figure 6)"
    );
    let over_time = format!("{title}, over time");
    let sections = vec![
        Section::rates("disks-degraded", title, "MB/s").against(STRIPING).drawn(Plot::bars()),
        Section::rates("disks-degraded-time", over_time.clone(), "MB/s").drawn(Plot::lines("seconds")),
        Section::rates("disks-degraded-each", over_time + ", each disk", "MB/s").drawn(Plot::lines("seconds")),
    ];
    let sections = bench.part("degraded", sections, |sections| {
        let rates = bench.rates(COUNT);
        let rig = bench.rig_of(&rates, bytes + 256 * MIB)?;
        let paths = rig.paths();
        let mut contenders = contenders(Some(Bare::best_chunk(&paths, bench.size() / 8)?));
        for round in 0..bench.context.count(ROUNDS) {
            let at = ("degraded", round, ROUNDS);
            bench.contend(at, &mut contenders, &paths, sections, |who, made, sections| {
                let (disk, rate, mut next) = (&rig.disks[COUNT - 1], rates[COUNT - 1], 1);
                // The last disk is slowed down from the beginning to the end of the middle third.
                let see = |_: f64, written: u64| {
                    while next < 3 && written >= bytes * next / 3 {
                        disk.set_rate(if next == 1 { (rate as f64 * LEFT) as u64 } else { rate })?;
                        next += 1;
                    }
                    Ok(())
                };
                let done = watched(&rig, see, || made.write(&rig, bytes));
                rig.set_rates(&rates)?;
                let (_, trace) = done?;
                let mut from = 0.0;
                for (n, third) in THIRDS.iter().enumerate() {
                    // The last of it may still be in a pool's memory.
                    let to = trace.when((bytes * (n as u64 + 1) / 3) as f64).unwrap_or(trace.end());
                    sections[0].add(who, third, trace.rate(from, to) / MB);
                    from = to;
                }
                trace.add_rates(&mut sections[1], who, STEP);
                if matches!(made, Made::Pool(_)) {
                    trace.add_rates_of_each(&mut sections[2], who, STEP);
                }
                Ok(())
            });
        }
        Ok(())
    });
    let what = "one of four disks slowed to 27 % for the middle third: that third, against striping";
    let row = |who| faster(&sections[0], what, (2.0, 2.8), THIRDS[1], who, STRIPING);
    Outcome { findings: WHOS.map(row).into(), sections }
}

/// Seconds after the command in which the share of a new disk is measured.
const WINDOW: f64 = 2.0;
/// The part of a fair share, in the worst of the windows.
const SHARE: &str = "share of its fair share, the least";

/// A pool is written in order, and gets another disk after each sixth (Figure 4): its speed, and the new disk's share
/// of the bytes written in the two seconds after the command. Half of all is written after the last disk came.
pub fn growth(bench: &Bench<'_>) -> Outcome {
    const ROUNDS: usize = 2;
    let (rate, bytes) = (bench.args.fast / 2, bench.size());
    let title = format!(
        "{} MiB written in order; a disk of {rate} MB/s more after each sixth, three times (Figure 4)",
        bytes / MIB
    );
    let share = format!("{title}: the new disk in {WINDOW:.0} s after it came");
    let sections = vec![
        Section::rates("disks-growth", format!("{title}, over what was written"), "MB/s")
            .drawn(Plot::lines("MiB written")),
        Section::rates("disks-growth-share", share, "x").noting("1 is as much as each of the others"),
        Section::rates("disks-growth-each", format!("{title}, over time, each disk"), "MB/s")
            .drawn(Plot::lines("seconds")),
    ];
    let sections = bench.part("growth", sections, |sections| {
        let rig = bench.rig(&[bench.fast() / 2; COUNT])?;
        let paths = rig.paths();
        let mut contenders = contenders(None);
        for round in 0..bench.context.count(ROUNDS) {
            let at = ("growth", round, ROUNDS);
            bench.contend(at, &mut contenders, &paths[..1], sections, |who, made, sections| {
                let program = &bench.context.program;
                let pool = match made {
                    Made::Pool(peer) => peer.pool_dir().map(Path::to_owned),
                    _ => None,
                };
                let dir = if pool.is_some() { PathBuf::new() } else { made.dir()?.to_owned() };
                let grow = |disk: &Path| match &pool {
                    Some(pool) => {
                        let mut add = Command::new(program);
                        command::run(add.args(["region", "add"]).arg(pool).arg(disk).arg("--force"))
                    }
                    None => command::run(Command::new("btrfs").args(["device", "add", "-f", "-K"]).arg(disk).arg(&dir)),
                };
                let grown = grown(&rig, &paths, bytes, grow, || made.write(&rig, bytes));
                if let Made::Btrfs(btrfs) = made {
                    btrfs.disks.clone_from(&paths);
                }
                let (trace, added) = grown?;
                if matches!(made, Made::Pool(_)) {
                    trace.add_rates_of_each(&mut sections[2], who, 0.5);
                }
                add_growth(sections, who, bytes, &trace, &added);
                Ok(())
            });
        }
        Ok(())
    });
    let row = |who: Who| {
        let what = format!("{}: a new disk: its share of what is written in {WINDOW:.0} s, of a fair one", who.how());
        sections[1].row(who.medium(), what, Goal::factor(0.9, 0.97)).median(who.name, SHARE)
    };
    Outcome { findings: WHOS.map(row).into(), sections }
}

/// Writes with `work`, and has `grow` add another disk after each sixth, until there are four; returns when each was
/// added.
fn grown(
    rig: &Rig,
    paths: &[PathBuf],
    bytes: u64,
    grow: impl Fn(&Path) -> Result<(), Error> + Sync,
    work: impl FnOnce() -> Result<f64, Error>,
) -> Result<(Trace, Vec<f64>), Error> {
    let (due, wanted) = std::sync::mpsc::channel::<usize>();
    let start = Instant::now();
    std::thread::scope(|scope| {
        // In a thread of its own, so that the measurement continues meanwhile.
        let adding = scope.spawn(|| {
            let add = |n: usize| grow(&paths[n]).map(|()| start.elapsed().as_secs_f64());
            wanted.into_iter().map(add).collect::<Result<Vec<f64>, Error>>()
        });
        let mut next = 1;
        let see = move |_: f64, written: u64| {
            while next < COUNT && written >= bytes * next as u64 / 6 {
                // If adding has failed, it is reported below.
                let _ = due.send(next);
                next += 1;
            }
            Ok(())
        };
        let done = watched(rig, see, work);
        let added = joined(adding)?;
        Ok((done?.1, added))
    })
}

fn add_growth(sections: &mut [Section], who: &str, bytes: u64, trace: &Trace, added: &[f64]) {
    /// Points of the plot.
    const POINTS: u64 = 24;
    /// A shorter window, because the next disk came or the writing ended, says nothing.
    const SHORTEST: f64 = 0.8;
    let mut from = 0.0;
    for n in 1..=POINTS {
        let Some(to) = trace.when((bytes * n / POINTS) as f64) else { break };
        sections[0].add(who, &format!("{} MiB", bytes * n / POINTS / MIB), trace.rate(from, to) / MB);
        from = to;
    }
    let (share, mut least) = (&mut sections[1], f64::INFINITY);
    for (n, at) in added.iter().enumerate() {
        let end = (at + WINDOW).min(added.get(n + 1).copied().unwrap_or(trace.end()));
        if end - at < SHORTEST {
            share.notes.push(format!("{who}: disk {} had less than {SHORTEST} s", n + 2));
            continue;
        }
        let new = trace.written(end)[n + 1] - trace.written(*at)[n + 1];
        let of_fair = new / (trace.all_written(end) - trace.all_written(*at)).max(1.0) * (n + 2) as f64;
        share.add(who, &format!("disk {}", n + 2), of_fair);
        least = least.min(of_fair);
    }
    if least.is_finite() {
        share.add(who, SHARE, least);
    }
}
