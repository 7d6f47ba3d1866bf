//! Against the raw disk, which is measured in the same rounds.

use std::time::{Duration, Instant};

use super::content::{self, Overwrites, BLOCK, PIECE};
use super::{faster, room, Bench};
use crate::prelude::*;
use crate::raw::{beside, Raw, RAW};
use crate::setting::Ground;

const READ: &str = "read";
const WHOS: [Who; 4] = [BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED];
/// The part of a read that must come from the disk for the read to count as cold.
const COLD: f64 = 0.7;

/// The finding of a cold read, if it was cold: a read from memory says nothing about a disk. The series of `measure` in
/// `shares` tells the part from the disk. On tmpfs that is not counted.
fn if_cold(bench: &Bench<'_>, shares: &Section, measure: &str, own: Who, finding: Finding) -> Finding {
    match shares.median(own.name, measure) {
        Ok(share) if share < COLD && finding.value.is_some() && bench.setting.ground == Ground::OwnDisk => {
            finding.skipped(format!("{}: {share:.2} of it came from the disk: it was not cold", own.name))
        }
        _ => finding,
    }
}

/// The least persistent RAM that manages a file of `bytes`, and caches hardly any of it.
fn little(bench: &Bench<'_>, bytes: u64) -> u64 {
    (bytes / 32 + 128 * MIB).min(bench.cache())
}

/// Does `work` and adds, for each of `units` bytes, the bytes that the process has read from the disk, if that is
/// counted.
fn counting<T>(
    peer: &Peer,
    section: &mut Section,
    measure: &str,
    units: f64,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let before = peer.transferred()?;
    let done = work()?;
    if let Some((before, after)) = before.zip(peer.transferred()?) {
        section.add(peer.who.name, measure, after.since(before).read as f64 / units);
    }
    Ok(done)
}

/// The raw disk's file, written.
fn raw_of(bench: &Bench<'_>, bytes: u64) -> Result<Raw, Error> {
    bench.setting.require(bytes)?;
    let raw = Raw::at(bench.setting.file("raw"), bytes)?;
    raw.write()?;
    Ok(raw)
}

/// A file written in order until it is durable, and read cold, in process and mounted.
///
/// A pool is made anew for each round. Content that is still in its cache when the write ends has not been written,
/// unlike that of the raw disk: only the bytes on the disk by then count, if they are counted. Before the file is read,
/// another one as large as the cache goes through it.
pub fn sequential(bench: &Bench<'_>) -> Outcome {
    let (setting, mib) = (bench.setting, bench.size() / MIB);
    let title = format!("A file of {mib} MiB written in order and synced, and read cold");
    let speed = setting.rates("large-sequential", title, "MiB/s").against(RAW);
    let title = "The same: bytes that the process had transferred by the end of each, per byte of the file";
    let mut sections = [speed, setting.times("large-sequential-transferred", title, "B/B")];
    setting.context.attempt("large: sequential", RAW, &mut sections, |sections| in_order(bench, sections));
    let row = |own: Who, measure| {
        let goal = if own.is_in_process() { Goal::factor(0.85, 0.97) } else { Goal::factor(0.65, 0.85) };
        faster(&sections[0], &format!("{measure} of {mib} MiB in order"), goal, measure, own, RAW)
    };
    let write = if setting.ground == Ground::OwnDisk { REACHED } else { WRITE };
    let rows = |own| [row(own, write), if_cold(bench, &sections[1], READ, own, row(own, COLD_READ))];
    Outcome { findings: WHOS.into_iter().flat_map(rows).collect(), sections: sections.into() }
}

const WRITE: &str = "write";
/// The measure of the bytes that had reached the disk at the end.
const REACHED: &str = "write, to the disk";
const COLD_READ: &str = "cold read";

fn in_order(bench: &Bench<'_>, sections: &mut [Section]) -> Result<(), Error> {
    const LABEL: &str = "large: sequential";
    let (setting, context) = (bench.setting, bench.setting.context);
    let (bytes, cache) = (bench.size(), bench.cache());
    let sizes = Sizes { disk: room(bytes + cache), ram: cache };
    setting.require(bytes + sizes.disk)?;
    let raw = Raw::at(setting.file("raw"), bytes)?;
    let mut whos = WHOS.to_vec();
    for round in 0..context.count(2) {
        context.say_round(LABEL, round, 2, RAW);
        let written = raw.write()? / MIB as f64;
        sections[0].add(RAW, WRITE, written);
        sections[0].add(RAW, REACHED, written);
        sections[0].add(RAW, COLD_READ, raw.read()? / MIB as f64);
        // One after another: together they would take several times the memory.
        context.once_each((LABEL, round, 2), &mut whos, sections, |who, sections| {
            context.require(who.kind)?;
            let peer = setting.peer(*who, sizes).map_err(|e| Error::Usage(e.to_string()))?;
            once(&peer, bytes, cache, sections)
        });
    }
    Ok(())
}

fn once(peer: &Peer, bytes: u64, cache: u64, sections: &mut [Section]) -> Result<(), Error> {
    let (path, other) = (name("large".into()), name("other".into()));
    let before = peer.transferred()?;
    let written = on_place!(&peer.place, place => content::write(place, &path, bytes))? / MIB as f64;
    sections[0].add(peer.who.name, WRITE, written);
    if let Some((before, after)) = before.zip(peer.transferred()?) {
        let reached = after.since(before).written as f64 / bytes as f64;
        sections[1].add(peer.who.name, "written", reached);
        // Bytes beyond those of the file are summaries and logs.
        sections[0].add(peer.who.name, REACHED, written * reached.min(1.0));
    }
    on_place!(&peer.place, place => {
        content::write(place, &other, cache.next_multiple_of(PIECE as u64))?;
        place.settle()?;
        place.forget(&place.open_read(&path)?)
    })?;
    let read = counting(
        peer,
        &mut sections[1],
        READ,
        bytes as f64,
        || on_place!(&peer.place, place => content::read(place, &path, bytes)),
    )?;
    sections[0].add(peer.who.name, COLD_READ, read / MIB as f64);
    Ok(())
}

/// Random reads of 4 KiB of a file that is not in the cache, 32 at a time, in process and mounted; and the bytes read
/// from the disk for each.
///
/// In process, 32 threads read, since a read call returns only when it is done.
pub fn cold(bench: &Bench<'_>) -> Outcome {
    let (setting, bytes) = (bench.setting, cold_size(bench));
    let title = format!("Random 4 KiB reads of a cold file of {} MiB, {DEPTH} at a time", bytes / MIB);
    let speed = setting.rates("large-cold", title, "1/s");
    let title = "The same: blocks of 4 KiB read from the disk for each";
    let mut sections = [speed, setting.times("large-cold-blocks", title, BLOCKS)];
    setting.context.attempt("large: cold", RAW, &mut sections, |sections| at_random(bench, bytes, sections));
    let speed = |own: Who| {
        let (what, goal) = (format!("cold random 4 KiB reads, {DEPTH} at a time"), Goal::factor(0.8, 0.95));
        let found = faster(&sections[0], &what, goal, READ, own, &beside(own.name));
        if_cold(bench, &sections[1], BLOCKS, own, found)
    };
    let blocks = |own: Who| {
        let what = "in process: blocks read from the disk for a cold random read";
        let row = sections[1].row(own.medium(), what, Goal::quantity(1.1, 1.0, "blocks"));
        if_cold(bench, &sections[1], BLOCKS, own, row.median(own.name, BLOCKS))
    };
    let findings = vec![speed(BATTERY), speed(LOGGED), blocks(BATTERY), blocks(LOGGED)];
    Outcome { findings, sections: sections.into() }
}

const DEPTH: usize = 32;
const BLOCKS: &str = "blocks";

/// Half of the size for writing in order, since each pool writes a file first.
fn cold_size(bench: &Bench<'_>) -> u64 {
    (bench.size() / 2).max(bench.file().min(bench.size()))
}

fn at_random(bench: &Bench<'_>, bytes: u64, sections: &mut [Section]) -> Result<(), Error> {
    let (setting, count) = (bench.setting, bench.setting.context.size(bench.args.reads, 1_000));
    let raw = raw_of(bench, bytes)?;
    let sizes = Sizes { disk: room(bytes), ram: little(bench, bytes) };
    let path = name("large".into());
    for who in WHOS {
        // One after another, each with rounds of the raw disk between its own: together they would take several times
        // the memory.
        let mut peers = setting.peers(&[who], sizes, sections);
        setting.context.rounds("large: cold", 3, &mut peers, sections, |peer, round, sections| {
            if round == 0 {
                on_place!(&peer.place, place => content::write(place, &path, bytes).and_then(|_| place.settle()))?;
            }
            on_place!(&peer.place, place => place.forget(&place.open_read(&path)?))?;
            let speed = counting(
                peer,
                &mut sections[1],
                BLOCKS,
                (BLOCK * count) as f64,
                || on_place!(&peer.place, place => read(place, &path, bytes, count, round as u64)),
            )?;
            sections[0].add(who.name, READ, speed);
            sections[0].add(&beside(who.name), READ, raw.read_at_random(count, DEPTH)?);
            Ok(())
        });
    }
    Ok(())
}

/// Reads with as many threads as there are reads at a time; returns reads per second.
fn read(place: &(impl Place + Sync), path: &Name, bytes: u64, count: usize, round: u64) -> Result<f64, Error> {
    let each = count / DEPTH;
    let work = |thread: u64| {
        let file = place.open_read(path)?;
        let (mut random, mut buf) = (Rng::new(round * DEPTH as u64 + thread), [0; BLOCK]);
        let blocks = bytes / BLOCK as u64;
        (0..each).try_for_each(|_| content::read_block(place, &file, random.below(blocks) * BLOCK as u64, &mut buf))
    };
    let start = now();
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..DEPTH as u64).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(joined)
    })?;
    Ok(per_second((each * DEPTH) as u64, start))
}

/// Cold reading in order of a file whose blocks were all overwritten once, in random order. The cleaner and all other
/// background work have come to rest before.
pub fn aged(bench: &Bench<'_>) -> Outcome {
    let setting = bench.setting;
    let title =
        format!("Cold read in order of a file of {} MiB after all was overwritten at random", bench.file() / MIB);
    let speed = setting.rates("large-aged", title, "MiB/s");
    let title = "The same: bytes that the process had read of the disk, per byte of the file";
    let mut sections = [speed, setting.times("large-aged-transferred", title, "B/B")];
    setting.context.attempt("large: aged", RAW, &mut sections, |sections| overwritten(bench, sections));
    let row = |own: Who| {
        let (what, goal) = ("cold read in order after random overwrites", Goal::factor(0.3, 0.6));
        let found = faster(&sections[0], what, goal, READ, own, &beside(own.name));
        if_cold(bench, &sections[1], READ, own, found)
    };
    Outcome { findings: vec![row(BATTERY), row(LOGGED)], sections: sections.into() }
}

fn overwritten(bench: &Bench<'_>, sections: &mut [Section]) -> Result<(), Error> {
    let (setting, bytes) = (bench.setting, bench.file());
    let raw = raw_of(bench, bytes)?;
    let path = name("large".into());
    let sizes = Sizes { disk: room(2 * bytes), ram: little(bench, bytes) };
    let mut peers = setting.peers(&[BATTERY, LOGGED], sizes, sections);
    setting.context.rounds("large: aged", 2, &mut peers, sections, |peer, round, sections| {
        let who = peer.who.name;
        on_place!(&peer.place, place => {
            if round == 0 {
                content::write(place, &path, bytes)?;
            }
            let file = place.open_update(&path)?;
            Overwrites::new(round as u64, bytes).all(place, &file)?;
            place.fsync(&file)?;
            place.settle()
        })?;
        if !comes_to_rest(peer)? {
            let seconds = PATIENCE.as_secs();
            sections[0].notes.push(format!("{who}, round {}: still writing after {seconds} s", round + 1));
        }
        let speed = counting(
            peer,
            &mut sections[1],
            READ,
            bytes as f64,
            || on_place!(&peer.place, place => content::read(place, &path, bytes)),
        )?;
        sections[0].add(who, READ, speed / MIB as f64);
        sections[0].add(&beside(who), READ, raw.read()? / MIB as f64);
        Ok(())
    });
    Ok(())
}

/// The time without writes after which a peer is at rest, and the longest wait for it.
const QUIET: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until a peer is at rest. Did that happen?
fn comes_to_rest(peer: &Peer) -> Result<bool, Error> {
    let begun = Instant::now();
    let mut last = peer.transferred()?;
    while begun.elapsed() < PATIENCE {
        std::thread::sleep(QUIET);
        let now = peer.transferred()?;
        if now == last {
            return Ok(true);
        }
        last = now;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_read_all_that_is_asked_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let path = name("large".into());
        content::write(&place, &path, 1 << 20).expect("written");
        assert!(read(&place, &path, 1 << 20, 320, 0).expect("read") > 0.0);
        assert!(matches!(read(&place, &path, 8 << 20, 320, 0), Err(Error::Wrong(_))));
    }
}
