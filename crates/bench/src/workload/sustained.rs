//! Overwrites of single blocks of a file that nearly fills a pool's disk, in process, on `battery`: blocks written to
//! the disk for each overwrite, in the long run. This is the cost of the cleaner.
//!
//! The disk is full when it refuses more: the reserve of the cleaner does not count. First there is hardly any cache;
//! then there is a cache in which a given part of the content may be dirty, a quarter of the persistent RAM. The
//! process's writes past the page cache count, summaries and commits included.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::disk::dir_on_disk;
use crate::prelude::*;
use crate::setting::Ground;

const BLOCK: u64 = 4096;
/// One part in this many of the persistent RAM may be dirty.
const DIRTY: u64 = 4;
/// The exponent of the distribution with few hot blocks.
const EXPONENT: f64 = 0.99;

/// The longest wait for space that is about to be freed.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

const UNIFORM: &str = "uniform";
const ZIPF: &str = "zipf 0.99";
const ALONE: &str = "hardly any cache";
const BEHIND: &str = "behind a cache";

options! { Options {
    dir: dir, "A directory on the disk to measure [default: $TMPDIR, else /var/tmp]";
    size: count "MIB" = 1024, "MiB of the pool's disk";
    {
        /// Percent of the disk's capacity that are filled
        #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..100))]
        pub full: u32
    }
    before: count "N" = 3, "How often as many blocks are overwritten as there are, before what is measured";
    {
        /// Percent of the content that may be dirty in the cache, in the second part
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..50))]
        pub dirty: u32
    }
    cache: count "MIB" = 64, "MiB of persistent RAM in the first part, as little as possible";
} }

impl Workload for Options {
    fn disk(&self) -> Option<PathBuf> {
        Some(dir_on_disk(self.dir.as_ref()))
    }

    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let mut sections = [Section::times("sustained", "Overwrites of a disk that is nearly full", "blocks")];
        context.attempt("sustained", BATTERY.name, &mut sections, |sections| {
            let setting = Setting::make(context, Ground::OwnDisk)?;
            sections[0].title = format!(
                "4 KiB overwrites in process, a disk of {} MiB {} % full: blocks written for each; {}",
                context.size(self.size, 128),
                self.full,
                setting.name
            );
            self.measure(&setting, &mut sections[0])
        });
        Ok(Outcome { findings: self.findings(&sections[0]), sections: sections.into() })
    }
}

impl Options {
    fn findings(&self, section: &Section) -> Vec<Finding> {
        let goals = [
            (ALONE, UNIFORM, Goal::quantity(5.4, 5.2, "blocks")),
            (ALONE, ZIPF, Goal::quantity(3.6, 3.0, "blocks")),
            (BEHIND, UNIFORM, Goal::quantity(3.8, 3.5, "blocks")),
            (BEHIND, ZIPF, Goal::quantity(1.3, 1.1, "blocks")),
        ];
        let row = |(subject, measure, goal): (&str, &str, Goal)| {
            let dirty = if subject == BEHIND { format!(" of {} % of the content", self.dirty) } else { String::new() };
            let what = format!("4 KiB overwrites, {measure}, {} % full, {subject}{dirty}: blocks written", self.full);
            let value = match section.skipped.first() {
                Some(skipped) => Err(format!("{}: {}", skipped.subject, skipped.reason)),
                None => section.median(subject, measure),
            };
            section.row(MediumKind::Battery, what, goal).judge([(subject, measure)], value)
        };
        goals.map(row).into()
    }

    fn measure(&self, setting: &Setting<'_>, section: &mut Section) -> Result<(), Error> {
        let context = setting.context;
        let disk = context.mib(self.size, 128);
        let content = disk * u64::from(self.full) / 100;
        let (alone, behind) = (self.cache as u64 * MIB, content * u64::from(self.dirty) / 100 * DIRTY);
        let before = if context.quick { 1 } else { self.before as u64 };
        for (subject, ram) in [(ALONE, alone), (BEHIND, behind.max(alone))] {
            for measure in [UNIFORM, ZIPF] {
                context.progress.say(format!("sustained: {measure}, {subject}"));
                let peer = setting.peer(BATTERY, Sizes { disk, ram })?;
                let path = name("large".into());
                let blocks = on_place!(&peer.place, place => filled(place, &path, self.full))?;
                let dirty = 100.0 * (ram / DIRTY) as f64 / (blocks * BLOCK) as f64;
                section.notes.push(format!(
                    "{subject}, {measure}: {blocks} blocks; of the persistent RAM of {} MiB a quarter is {dirty:.1} % of \
                     these",
                    ram / MIB
                ));
                let mut draw = Draw::new(measure, blocks);
                on_place!(&peer.place, place => overwrite(place, &path, &mut draw, before * blocks))?;
                let begun = peer.transferred()?;
                on_place!(&peer.place, place => overwrite(place, &path, &mut draw, blocks))?;
                let both = begun.zip(peer.transferred()?);
                let (begun, ended) = both.ok_or_else(|| Error::Wrong("nobody counts".into()))?;
                section.add(subject, measure, ended.since(begun).written as f64 / (blocks * BLOCK) as f64);
            }
        }
        Ok(())
    }
}

/// Makes a file of `percent` of all content that can be written; returns its blocks.
fn filled(place: &impl Place, path: &Name, percent: u32) -> Result<u64, Error> {
    let data = Rng::new(13).bytes(MIB as usize);
    let file = place.create(path)?;
    let mut at = 0;
    let end = loop {
        match place.write(&file, at, &data) {
            Ok(()) => at += MIB,
            Err(e) if is_full(&e) => break at,
            Err(e) => return Err(e),
        }
    };
    drop(file);
    place.unlink(path)?;
    place.settle()?;
    let (file, blocks) = (place.create(path)?, end * u64::from(percent) / 100 / BLOCK);
    let begun = Instant::now();
    for at in (0..blocks * BLOCK).step_by(MIB as usize) {
        let len = (blocks * BLOCK - at).min(MIB) as usize;
        loop {
            match place.write(&file, at, &data[..len]) {
                // The space of the file before is freed in the background.
                Err(e) if is_full(&e) && begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
                done => break done?,
            }
        }
    }
    place.fsync(&file)?;
    Ok(blocks)
}

fn is_full(e: &Error) -> bool {
    match e {
        Error::Fs(e) => e.errno() == Errno::NOSPC,
        Error::System(errno) => *errno == Errno::NOSPC,
        _ => false,
    }
}

fn overwrite(place: &impl Place, path: &Name, draw: &mut Draw, count: u64) -> Result<(), Error> {
    let file = place.open_update(path)?;
    let data = Rng::new(14).bytes(BLOCK as usize);
    (0..count).try_for_each(|_| place.write(&file, draw.next() * BLOCK, &data))
}

/// Draws the next block.
struct Draw {
    random: Rng,
    blocks: u64,
    /// If few blocks are hot: the probability of a block of at most each rank, and the block of each rank.
    ranks: Option<(Vec<f64>, Vec<u64>)>,
}

impl Draw {
    fn new(distribution: &str, blocks: u64) -> Draw {
        let mut random = Rng::new(15);
        let ranks = (distribution == ZIPF).then(|| {
            let mut sum = 0.0;
            let mut up_to: Vec<f64> = (1..=blocks)
                .map(|rank| {
                    sum += (rank as f64).powf(-EXPONENT);
                    sum
                })
                .collect();
            up_to.iter_mut().for_each(|part| *part /= sum);
            let mut order: Vec<u64> = (0..blocks).collect();
            random.shuffle(&mut order);
            (up_to, order)
        });
        Draw { random, blocks, ranks }
    }

    fn next(&mut self) -> u64 {
        match &self.ranks {
            None => self.random.below(self.blocks),
            Some((up_to, order)) => {
                let part = (self.random.next() >> 11) as f64 / (1u64 << 53) as f64;
                order[up_to.partition_point(|&up_to| up_to < part).min(order.len() - 1)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_blocks_are_hot_where_that_is_wanted() {
        let counted = |distribution: &str| {
            let mut draw = Draw::new(distribution, 1_000);
            let mut counts = vec![0; 1_000];
            (0..100_000).for_each(|_| counts[draw.next() as usize] += 1);
            counts.sort_unstable();
            counts
        };
        let (uniform, zipf) = (counted(UNIFORM), counted(ZIPF));
        assert!(uniform[999] < 200 && uniform[0] > 30, "{} {}", uniform[0], uniform[999]);
        // The hottest of a thousand has 1 / 7.7 of all draws.
        assert!((12_000..14_500).contains(&zipf[999]), "{}", zipf[999]);
    }
}
