//! Against ext4, with a journal of metadata unless said otherwise.

use std::fs::File;

use pram::Mapping;

use super::content::{self, Overwrites, BLOCK};
use super::{faster, room, Bench};
use crate::prelude::*;

const MOUNTED: [Who; 3] = [ORDERED, BATTERY_MOUNTED, LOGGED_MOUNTED];
const WRITTEN: &str = "written";

/// Random overwrites of 4 KiB, each synced before the next, mounted, against ext4 with its journal of metadata and with
/// one of everything.
pub fn synced(bench: &Bench<'_>) -> Outcome {
    const SYNCED: &str = "overwrite + fsync";
    let (setting, context) = (bench.setting, bench.setting.context);
    let (bytes, count) = (bench.file(), context.size(bench.args.synced, 50));
    let title = format!("Random 4 KiB overwrites of a file of {} MiB, fsync each", bytes / MIB);
    let mut sections = [setting.times("large-synced", title, "us/op").against(ORDERED.name)];
    let path = name("large".into());
    let mut peers = bench.peers(&[ORDERED, JOURNAL, BATTERY_MOUNTED, LOGGED_MOUNTED], bytes, &mut sections);
    context.rounds("large: synced", 3, &mut peers, &mut sections, |peer, round, sections| {
        let figure = on_place!(&peer.place, place => {
            if round == 0 {
                content::write(place, &path, bytes)?;
            }
            place.settle()?;
            let file = place.open_update(&path)?;
            let mut writes = Overwrites::new(round as u64, bytes);
            let start = now();
            for _ in 0..count {
                writes.one(place, &file)?;
                place.fsync(&file)?;
            }
            us_per_op(start, count)
        });
        sections[0].add(peer.who.name, SYNCED, figure);
        Ok(())
    });
    let row = |own: Who, base: Who, required, aim| {
        let goal = Goal::factor(required, aim);
        faster(&sections[0], "random 4 KiB overwrite + fsync", goal, SYNCED, own, base.name)
    };
    let findings = vec![
        row(BATTERY_MOUNTED, JOURNAL, 8.0, 30.0),
        row(BATTERY_MOUNTED, ORDERED, 8.0, 20.0),
        row(LOGGED_MOUNTED, JOURNAL, 1.0, 2.0),
        row(LOGGED_MOUNTED, ORDERED, 1.0, 1.5),
    ];
    Outcome { findings, sections: sections.into() }
}

/// Bytes written to disk for random overwrites of 4 KiB, synced every hundred: all writes to a loop device beneath,
/// metadata and journals included. A pool lies with its directory and disk on an ext4 of the usual kind.
///
/// The steady state counts: half as many overwrites come before. A pool has half as much RAM as the file has bytes.
pub fn volume(bench: &Bench<'_>) -> Outcome {
    const SYNCED: u64 = 100;
    let (setting, context) = (bench.setting, bench.setting.context);
    let bytes = context.mib(bench.args.counted, 8);
    let title = format!(
        "Random 4 KiB overwrites of a file of {} MiB, fsync every {SYNCED}: bytes written to disk for each",
        bytes / MIB
    );
    let mut sections = [setting.times("large-volume", title, "B/B").against(BARE.name)];
    let sizes = Sizes { disk: room(bytes), ram: (bytes / 2).max(64 * MIB) };
    let whos = [BARE, ORDERED, JOURNAL, BATTERY_MOUNTED, LOGGED_MOUNTED];
    let mut peers = setting.counted_peers(&whos, sizes, &mut sections);
    let path = name("large".into());
    // The rounds differ little: one is enough.
    context.rounds("large: volume", 1, &mut peers, &mut sections, |peer, round, sections| {
        let overwrite = |count, seed| {
            on_place!(&peer.place, place => {
                let file = place.open_update(&path)?;
                let mut writes = Overwrites::new(seed, bytes);
                for n in 1..=count {
                    writes.one(place, &file)?;
                    if n % SYNCED == 0 {
                        place.fsync(&file)?;
                    }
                }
                place.fsync(&file)
            })
        };
        if round == 0 {
            on_place!(&peer.place, place => content::write(place, &path, bytes))?;
        }
        let count = bytes / BLOCK as u64;
        overwrite(count / 2, 2 * round as u64)?;
        let before = peer.written()?;
        overwrite(count, 2 * round as u64 + 1)?;
        sections[0].add(peer.who.name, WRITTEN, (peer.written()? - before) as f64 / bytes as f64);
        Ok(())
    });
    let row = |own: Who, base: Who, required, aim| {
        let what = format!("overwrites, fsync every {SYNCED}: bytes written to disk, times those of {}", base.name);
        sections[0].row(own.medium(), what, Goal::at_most(required, aim)).ratio(WRITTEN, own.name, base.name)
    };
    let findings = vec![row(BATTERY_MOUNTED, BARE, 1.0, 0.5), row(LOGGED_MOUNTED, ORDERED, 1.3, 1.0)];
    Outcome { findings, sections: sections.into() }
}

/// A file written in pieces of 1 MiB and synced once, mounted, against the ext4 on which the pool lies; and the bytes
/// written to a loop device beneath all of it, for each byte.
pub fn stream(bench: &Bench<'_>) -> Outcome {
    const SPEED: &str = "write + fsync";
    let (setting, bytes) = (bench.setting, bench.file());
    let title = format!("A file of {} MiB written in pieces of 1 MiB, and one fsync", bytes / MIB);
    let speed = setting.rates("large-stream", title, "MiB/s").against(ORDERED.name);
    let title = "The same: bytes written to disk, per byte of the file, until nothing is under way";
    let mut sections = [speed, setting.times("large-stream-written", title, "B/B")];
    let sizes = Sizes { disk: room(bytes), ram: bench.cache() };
    let mut peers = setting.counted_peers(&MOUNTED, sizes, &mut sections);
    let path = name("large".into());
    setting.context.rounds("large: stream", 3, &mut peers, &mut sections, |peer, _, sections| {
        let before = peer.written()?;
        let speed = on_place!(&peer.place, place => {
            let speed = content::write(place, &path, bytes)?;
            place.settle()?;
            speed
        });
        let written = peer.written()? - before;
        sections[0].add(peer.who.name, SPEED, speed / MIB as f64);
        sections[1].add(peer.who.name, WRITTEN, written as f64 / bytes as f64);
        on_place!(&peer.place, place => place.unlink(&path).and_then(|()| place.settle()))
    });
    let (own, what) = (LOGGED_MOUNTED, "1 MiB writes and one fsync");
    let speed = faster(&sections[0], what, Goal::factor(0.8, 1.0), SPEED, own, ORDERED.name);
    let what = format!("mounted: {what}: bytes written to disk for each");
    let row = sections[1].row(own.medium(), what, Goal::quantity(1.05, 1.01, "B"));
    Outcome { findings: vec![speed, row.median(own.name, WRITTEN)], sections: sections.into() }
}

/// Random reads of 4 KiB of a file that is in the cache, in process and mounted, against the page cache of ext4.
pub fn cached(bench: &Bench<'_>) -> Outcome {
    const READ: &str = "read";
    let (setting, context) = (bench.setting, bench.setting.context);
    // Half of the cache: the other half may be dirty, or hold pages that were seen once.
    let bytes = bench.file().min(bench.cache() / 2);
    let count = context.size(bench.args.reads, 1_000);
    let title = format!("Random 4 KiB reads of a file of {} MiB that is in the cache", bytes / MIB);
    let mut sections = [setting.times("large-cached", title, "us/op").against(ORDERED.name)];
    let path = name("large".into());
    let whos = [ORDERED, BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED];
    let mut peers = bench.peers(&whos, bytes, &mut sections);
    context.rounds("large: cached", 3, &mut peers, &mut sections, |peer, round, sections| {
        let figure = on_place!(&peer.place, place => {
            if round == 0 {
                content::write(place, &path, bytes)?;
                place.settle()?;
                // Twice, so that a cache sees the second use.
                content::read(place, &path, bytes)?;
            }
            content::read(place, &path, bytes)?;
            let file = place.open_read(&path)?;
            let (mut random, mut buf) = (Rng::new(round as u64), [0; BLOCK]);
            let blocks = bytes / BLOCK as u64;
            let start = now();
            for _ in 0..count {
                content::read_block(place, &file, random.below(blocks) * BLOCK as u64, &mut buf)?;
            }
            us_per_op(start, count)
        });
        sections[0].add(peer.who.name, READ, figure);
        Ok(())
    });
    let row = |&own: &Who| {
        let goal = if own.is_in_process() { Goal::factor(1.0, 3.0) } else { Goal::factor(0.8, 1.0) };
        faster(&sections[0], "random 4 KiB read from the cache", goal, READ, own, ORDERED.name)
    };
    Outcome { findings: whos[1..].iter().map(row).collect(), sections: sections.into() }
}

/// Random stores of 4 KiB to a mapped file, and the sync of all of them, mounted.
pub fn mapped(bench: &Bench<'_>) -> Outcome {
    const SYNCED: &str = "with the sync at the end";
    let (setting, bytes) = (bench.setting, bench.file());
    // As often as there are pages: two thirds of them are stored to.
    let count = bytes as usize / BLOCK;
    let title = format!("{count} random 4 KiB stores to a mapped file of {} MiB", bytes / MIB);
    let mut sections = [setting.times("large-mapped", title, "us/op").against(ORDERED.name)];
    let mut peers = bench.peers(&MOUNTED, bytes, &mut sections);
    let path = name("large".into());
    setting.context.rounds("large: mapped", 2, &mut peers, &mut sections, |peer, round, sections| {
        on_place!(&peer.place, place => {
            if round == 0 {
                content::write(place, &path, bytes)?;
            }
            place.settle()
        })?;
        let path = peer.dir()?.join("large");
        let file = File::options().read(true).write(true).open(&path).map_err(Error::file(&path))?;
        let map = Mapping::file(&file, bytes)?;
        let (mut random, data) = (Rng::new(round as u64), [round as u8; BLOCK]);
        let start = now();
        for _ in 0..count {
            let at = random.below(bytes / BLOCK as u64) * BLOCK as u64;
            map.write(at, &data).map_err(|e| Error::Wrong(format!("a mapped file: {e}")))?;
        }
        let stored = us_per_op(start, count);
        // The sync of a mapped file includes its stored pages.
        file.sync_all().map_err(Error::file(&path))?;
        sections[0].add(peer.who.name, "store", stored);
        sections[0].add(peer.who.name, SYNCED, us_per_op(start, count));
        Ok(())
    });
    let what = "random 4 KiB stores to a mapped file, synced";
    let row = |own| faster(&sections[0], what, Goal::factor(0.5, 1.0), SYNCED, own, ORDERED.name);
    Outcome { findings: [BATTERY_MOUNTED, LOGGED_MOUNTED].map(row).into(), sections: sections.into() }
}
