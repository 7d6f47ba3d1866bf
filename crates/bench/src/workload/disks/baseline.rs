//! In order and at random, written and read, in requests of 8 KiB, on four slow and on four fast disks (Figure 3).

use super::peer::{named, Btrfs, PoolOn, BTRFS_RAID0};
use super::unequal::{skip, WHOS};
use super::{Bench, COUNT, MB, MIB};
use crate::clock::now;
use crate::error::Error;
use crate::place::{name, on_place, Place};
use crate::rig::Rig;
use report::plot::Plot;
use report::{Outcome, Section};
use rng::Rng;

const ROUNDS: usize = 2;
const REQUEST: usize = 8192;
/// Requests of a round at random, at most; as many bytes as the file has where it is small.
const AT_RANDOM: u64 = 8_000;
const PHASES: [&str; 4] = ["write in order", "read in order", "write at random", "read at random"];

pub fn run(bench: &Bench<'_>) -> Outcome {
    let sections = [("slow", bench.slow()), ("fast", bench.fast())].map(|(kind, rate)| {
        let id = if kind == "slow" { "disks-baseline-slow" } else { "disks-baseline-fast" };
        let title = format!(
            "Four {kind} disks of {} MB/s: {} MiB in requests of {} KiB (Figure 3)",
            rate / 1_000_000,
            size(bench) / MIB,
            REQUEST >> 10
        );
        let mut section = Section::rates(id, title, "MB/s");
        (section.baseline, section.plot) = (Some(BTRFS_RAID0.into()), Plot::bars());
        section.notes.push("at random, one request after the other; what was read had left the caches before".into());
        if let Err(e) = measure(bench, rate, &mut section) {
            bench.failed("baseline", std::slice::from_mut(&mut section), &e);
        }
        section
    });
    Outcome { sections: sections.into(), findings: Vec::new() }
}

/// Bytes of the file: the paper has 200 MB.
fn size(bench: &Bench<'_>) -> u64 {
    bench.size() / 3
}

fn measure(bench: &Bench<'_>, rate: u64, section: &mut Section) -> Result<(), Error> {
    let rig = bench.rig(&[rate; COUNT])?;
    let paths = rig.paths();
    for round in 0..bench.context.rounds(ROUNDS) {
        for who in WHOS.into_iter().filter(|who| bench.context.wants(who.kind())) {
            bench.say("baseline", round, ROUNDS, who.name());
            let pool = PoolOn::make(bench, who, &named(&paths));
            let done = pool.and_then(|pool| on_place!(&pool.place, place => phases(bench, place, &rig, bench.cache())));
            add(bench, section, who.name(), done);
        }
        bench.say("baseline", round, ROUNDS, BTRFS_RAID0);
        let btrfs = Btrfs::make(bench, "raid0", &paths);
        add(bench, section, BTRFS_RAID0, btrfs.and_then(|btrfs| phases(bench, &btrfs.place()?, &rig, 0)));
    }
    Ok(())
}

fn add(bench: &Bench<'_>, section: &mut Section, who: &'static str, done: Result<[f64; 4], Error>) {
    match done {
        Ok(speeds) => PHASES.iter().zip(speeds).for_each(|(phase, speed)| section.add(who, phase, speed / MB)),
        Err(e) => skip(bench, section, who, &e),
    }
}

/// Bytes in a second of each phase. `cache`: bytes that go through the cache between, so that what is read is not in it.
fn phases(bench: &Bench<'_>, place: &impl Place, rig: &Rig, cache: u64) -> Result<[f64; 4], Error> {
    let (path, other, bytes) = (name("large".into()), name("other".into()), size(bench));
    let (data, mut buf) = (Rng::new(3).bytes(REQUEST), vec![0; REQUEST]);
    let requests = bytes / REQUEST as u64;
    let at_random = AT_RANDOM.min(requests);
    let mut random = Rng::new(4);
    let read =
        |done: usize| if done == REQUEST { Ok(()) } else { Err(Error::Wrong(format!("{done} bytes of {REQUEST}"))) };
    let timed = |work: &mut dyn FnMut() -> Result<u64, Error>, is_write: bool| {
        let (before, start) = (rig.written()?, now());
        let bytes = work()?;
        let seconds = (now() - start) as f64 / 1e9;
        let reached = if is_write { (rig.written()? - before).min(bytes) } else { bytes };
        Ok::<f64, Error>(reached as f64 / seconds)
    };
    let written = timed(
        &mut || {
            let file = place.create(&path)?;
            (0..requests).try_for_each(|n| place.write(&file, n * REQUEST as u64, &data))?;
            place.fsync(&file).map(|()| bytes)
        },
        true,
    )?;
    let cool = || {
        let file = place.create(&other)?;
        (0..cache).step_by(MIB as usize).try_for_each(|at| place.write(&file, at, &vec![7; MIB as usize]))?;
        place.settle()?;
        place.forget(&place.open_read(&path)?)
    };
    cool()?;
    let was_read = timed(
        &mut || {
            let file = place.open_read(&path)?;
            (0..requests).try_for_each(|n| read(place.read(&file, n * REQUEST as u64, &mut buf)?))?;
            Ok(bytes)
        },
        false,
    )?;
    let written_at_random = timed(
        &mut || {
            let file = place.open_update(&path)?;
            (0..at_random).try_for_each(|_| place.write(&file, random.below(requests) * REQUEST as u64, &data))?;
            place.fsync(&file)?;
            // What is in the memory of a pool on `battery` is durable, but has not been written.
            place.settle()?;
            Ok(at_random * REQUEST as u64)
        },
        true,
    )?;
    cool()?;
    let read_at_random = timed(
        &mut || {
            let file = place.open_read(&path)?;
            (0..at_random)
                .try_for_each(|_| read(place.read(&file, random.below(requests) * REQUEST as u64, &mut buf)?))?;
            Ok(at_random * REQUEST as u64)
        },
        false,
    )?;
    Ok([written, was_read, written_at_random, read_at_random])
}
