//! Overwrites of single blocks of a file that nearly fills a pool's disk, in process, on `battery`: blocks written to the disk
//! for each, in the long run. It is what the cleaner costs.
//!
//! Full is what the disk takes before it says that it is full: the reserve of the cleaner is no part of it. First there is
//! hardly any cache, then one in which a given part of the content may be dirty, which is a quarter of the persistent RAM.
//! Written is what the process has had written past the page cache, summaries and commits included.

use std::time::{Duration, Instant};

use conquest::MediumKind;
use rustix::io::Errno;

use crate::args::{self, Sustained};
use crate::context::Context;
use crate::error::Error;
use crate::place::{name, on_place, Name, Place};
use crate::program::has_disks;
use crate::setting::Setting;
use crate::side::{Side, Sizes, BATTERY};
use report::goals::{Finding, Goal};
use report::{Outcome, Section};
use rng::Rng;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Of the persistent RAM one part in so many may be dirty.
const DIRTY: u64 = 4;
/// The exponent of the distribution of which few blocks are hot.
const EXPONENT: f64 = 0.99;

/// How long room is waited for that is on its way back.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

const UNIFORM: &str = "uniform";
const ZIPF: &str = "zipf 0.99";
const ALONE: &str = "hardly any cache";
const BEHIND: &str = "behind a cache";

pub fn run(context: &Context, args: &Sustained) -> Result<Outcome, Error> {
    let mut section = Section::times("sustained", "Overwrites of a disk that is nearly full", "blocks");
    let grounds = args::Grounds { setting: vec![args::Setting::OwnDisk], dir: args.dir.clone() };
    let setting = Setting::all(context, &grounds).pop();
    match setting {
        Some(Ok(_)) if !has_disks(&context.program) => {
            section.skip(BATTERY.name(), "this program's pools have no disks");
        }
        Some(Ok(setting)) => {
            section.title = format!(
                "4 KiB overwrites in process, a disk of {} MiB {} % full: blocks written for each; {}",
                context.size(args.size, 128),
                args.full,
                setting.name
            );
            if let Err(e) = measure(&setting, args, &mut section) {
                context.failed("sustained", &e);
                section.fail(BATTERY.name(), e.to_string());
            }
        }
        Some(Err((_, reason))) => section.skip(BATTERY.name(), reason),
        None => section.skip(BATTERY.name(), "no setting"),
    }
    let findings = findings(args, &section);
    Ok(Outcome { sections: vec![section], findings })
}

fn findings(args: &Sustained, section: &Section) -> Vec<Finding> {
    let row = |subject, measure: &str, what: String, goal| {
        let measured = section.text(subject, measure);
        let value = match section.skipped.first() {
            Some(skipped) => Err(format!("{}: {}", skipped.subject, skipped.reason)),
            None => section.median(subject, measure),
        };
        Finding::judge(MediumKind::Battery, what, goal, measured, value)
    };
    let goals = [
        (ALONE, UNIFORM, Goal::quantity(5.4, 5.2, "blocks")),
        (ALONE, ZIPF, Goal::quantity(3.6, 3.0, "blocks")),
        (BEHIND, UNIFORM, Goal::quantity(3.8, 3.5, "blocks")),
        (BEHIND, ZIPF, Goal::quantity(1.3, 1.1, "blocks")),
    ];
    let rows = goals.into_iter().map(|(subject, measure, goal)| {
        let dirty = if subject == BEHIND { format!(" of {} % of the content", args.dirty) } else { String::new() };
        let what = format!("4 KiB overwrites, {measure}, {} % full, {subject}{dirty}: blocks written", args.full);
        row(subject, measure, what, goal)
    });
    rows.collect()
}

fn measure(setting: &Setting<'_>, args: &Sustained, section: &mut Section) -> Result<(), Error> {
    let context = setting.context;
    let disk = context.size(args.size, 128) as u64 * MIB;
    let content = disk * u64::from(args.full) / 100;
    let behind = content * u64::from(args.dirty) / 100 * DIRTY;
    let before = if context.quick { 1 } else { args.before as u64 };
    for (subject, ram) in [(ALONE, args.cache as u64 * MIB), (BEHIND, behind.max(args.cache as u64 * MIB))] {
        for measure in [UNIFORM, ZIPF] {
            context.progress.say(format!("sustained: {measure}, {subject}"));
            let side = Side::make(setting, BATTERY, Sizes { disk, ram })?;
            let path = name("large".into());
            let blocks = on_place!(&side.place, place => filled(place, &path, args.full))?;
            let dirty = 100.0 * (ram / DIRTY) as f64 / (blocks * BLOCK) as f64;
            section.notes.push(format!(
                "{subject}, {measure}: {blocks} blocks; of the persistent RAM of {} MiB a quarter is {dirty:.1} % of these",
                ram / MIB
            ));
            let mut draw = Draw::new(measure, blocks);
            on_place!(&side.place, place => overwrite(place, &path, &mut draw, before * blocks))?;
            let begun = side.transferred()?;
            on_place!(&side.place, place => overwrite(place, &path, &mut draw, blocks))?;
            let ended = side.transferred()?;
            let (begun, ended) = begun.zip(ended).ok_or_else(|| Error::Wrong("nobody counts".into()))?;
            section.add(subject, measure, ended.since(begun).written as f64 / (blocks * BLOCK) as f64);
        }
    }
    Ok(())
}

/// Makes a file of so many percent of what can be written at all; its blocks.
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
                // What the file before has taken comes back in the background.
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

/// Which block is next.
struct Draw {
    random: Rng,
    blocks: u64,
    /// Where few are hot: how likely a block of the ranks up to each is, and which block has which rank.
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
        // Of a thousand the hottest has 1 / 7.7 of all.
        assert!((12_000..14_500).contains(&zipf[999]), "{}", zipf[999]);
    }
}
