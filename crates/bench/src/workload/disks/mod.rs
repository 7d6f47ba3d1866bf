//! The figures of "Bridging the Information Gap in Storage Protocol Stacks" (E×RAID and I·LFS), on disks whose speed
//! the kernel's block throttle limits.
//!
//! | module | parts |
//! | --- | --- |
//! | [`order`] | writing in order: `baseline`, `growth`, `unequal`, `misconfigured`, `degraded` (Figures 3 to 6), and `raid5` |
//! | [`mirrors`] | mirrored files: `failure`, `mirrored`, `lazy` (Figures 7 to 9), and `hanging` |
//! | [`foreground`] | the waits of other programs while a disk is removed, rebuilt, balanced, scrubbed; and a file that is `reorganised` |
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`files`] | files in a mounted directory, with redundancy of their own |
//! | [`peer`] | the peers: pools, btrfs, plain striping of our own |
//! | [`trace`] | the transfers of the disks over time |
//!
//! Bytes count as written when the disks have counted them at the end, at most the bytes of the file: content still in
//! a pool's memory has not been written.

mod files;
mod foreground;
mod mirrors;
mod order;
mod peer;
mod trace;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use conquest::{FormatOptions, InRegions, NewDisk, NewRegion};

use crate::prelude::*;
use crate::program::Own;
use crate::rig::Rig;
use peer::{Contender, Made};

const MB: f64 = 1e6;
/// Bytes of a call when a file is written in order.
const PIECE: usize = 1 << 20;
/// The number of disks, as in the paper.
const COUNT: usize = 4;
/// The pools that are compared.
const WHOS: [Who; 2] = [BATTERY, LOGGED_MOUNTED];
/// The pool for mirrored files.
const WHO: Who = LOGGED_MOUNTED;

type Measure = fn(&Bench<'_>) -> Outcome;

const PARTS: [Part<Measure>; 12] = [
    (
        "baseline",
        "In order and at random, written and read, on four slow and four fast disks (Figure 3)",
        order::baseline,
    ),
    ("growth", "A disk more each time so much is written (Figure 4)", order::growth),
    ("unequal", "Fast and slow disks, written in order (Figure 5)", order::unequal),
    ("misconfigured", "Two of four disks are one (section 6.3)", order::misconfigured),
    ("degraded", "One of four disks is slow for the middle third (Figure 6)", order::degraded),
    (
        "failure",
        "Random reads of mirrored files, while a disk is lost (Figure 7); what is copied then",
        mirrors::failure,
    ),
    ("mirrored", "Twenty files, more and more of them mirrored (Figure 8)", mirrors::mirrored),
    ("lazy", "Files that are mirrored later (Figure 9)", mirrors::lazy),
    ("raid5", "Whole stripes of a RAID-5 region", order::raid5),
    ("foreground", "What others wait for while a disk is rebuilt, removed, balanced, scrubbed", foreground::run),
    (
        "reorganised",
        "A file that was overwritten at random, read in order before and after it was reorganised",
        foreground::reorganised,
    ),
    ("hanging", "A mirrored file, the disk of whose faster copy does not answer", mirrors::hanging),
];

options! { Options {
    only: "PART,..." of &PARTS, "What to measure [default: all]";
    fast: count "MB" = 60, "MB in a second of a fast disk";
    slow: count "MB" = 20, "MB in a second of a slow disk";
    size: count "MIB" = 768, "MiB of what is written in order";
    cache: count "MIB" = 128, "MiB of persistent RAM of the pools";
} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        if self.fast <= self.slow {
            return Err(Error::Usage(format!(
                "--fast {}: must be more than --slow, which is {}",
                self.fast, self.slow
            )));
        }
        let (bench, mut outcome) = (Bench { context, args: self }, Outcome::default());
        wanted(&PARTS, &self.only).for_each(|(.., measure)| outcome.extend(measure(&bench)));
        Ok(outcome)
    }
}

/// The state that the parts share.
struct Bench<'a> {
    context: &'a Context,
    args: &'a Options,
}

impl Bench<'_> {
    /// Bytes written in order.
    fn size(&self) -> u64 {
        self.context.mib(self.args.size, 96)
    }

    /// Bytes of persistent RAM.
    fn cache(&self) -> u64 {
        self.context.mib(self.args.cache, 64)
    }

    fn fast(&self) -> u64 {
        self.args.fast as u64 * 1_000_000
    }

    fn slow(&self) -> u64 {
        self.args.slow as u64 * 1_000_000
    }

    /// `fast` fast disks and as many slow ones as make four.
    fn rates(&self, fast: usize) -> Vec<u64> {
        (0..COUNT).map(|n| if n < fast { self.fast() } else { self.slow() }).collect()
    }

    /// Disks with space for all writes of a part on any few of them: their files are sparse.
    fn rig(&self, rates: &[u64]) -> Result<Rig, Error> {
        self.rig_of(rates, self.size() * 2 + 256 * MIB)
    }

    fn rig_of(&self, rates: &[u64], bytes: u64) -> Result<Rig, Error> {
        let rig = Rig::make(&self.context.base, bytes, rates)?;
        rig.verify(rates)?;
        Ok(rig)
    }

    /// A pool on regions, open or mounted.
    fn pool(&self, who: Who, regions: Vec<NewRegion>) -> Result<Peer, Error> {
        self.context.require(who.kind)?;
        let how = FormatOptions::on(who.medium(), self.cache());
        let how = FormatOptions { regions, backing_in_regions: InRegions::IfGiven, ..how };
        let pool = Own::make(self.context.base.join(format!("{}.pool", who.file_name())), how)?;
        Peer::pool(who, pool, &self.context.base, &self.context.program)
    }

    /// Fills the sections of a part. If the whole part failed, or the machine lacks something, each section says so.
    fn part(
        &self,
        part: &str,
        mut sections: Vec<Section>,
        work: impl FnOnce(&mut [Section]) -> Result<(), Error>,
    ) -> Vec<Section> {
        let Err(e) = work(&mut sections) else { return sections };
        if !e.is_lacking() {
            self.context.failed(&format!("disks: {part}"), &e);
        }
        for section in &mut sections {
            // A reason for all subjects, in a section without measurements.
            section.series.clear();
            let reason = if e.is_lacking() { e.to_string() } else { format!("FAILED: {e}") };
            section.skipped.insert(0, report::Skipped { subject: "all".into(), reason });
        }
        sections
    }

    /// A part whose `work` uses a mounted pool with mirrored files, round by round.
    fn mirrored_part(
        &self,
        part: &str,
        rounds: usize,
        sections: Vec<Section>,
        mut work: impl FnMut(usize, &mut [Section]) -> Result<(), Error>,
    ) -> Vec<Section> {
        self.part(part, sections, |sections| {
            self.context.require(WHO.kind)?;
            let label = format!("disks: {part}");
            self.context.rounds(&label, rounds, &mut vec![WHO], sections, |_, round, sections| work(round, sections));
            Ok(())
        })
    }

    /// Does `work` with each of the contenders, made anew on the disks.
    fn contend(
        &self,
        (part, round, usual): (&str, usize, usize),
        contenders: &mut Vec<Contender>,
        disks: &[PathBuf],
        sections: &mut [Section],
        mut work: impl FnMut(&'static str, &mut Made, &mut [Section]) -> Result<(), Error>,
    ) {
        let label = format!("disks: {part}");
        self.context.once_each((&label, round, usual), contenders, sections, |contender, sections| {
            work(contender.name(), &mut contender.make(self, disks)?, sections)
        });
    }
}

/// Each disk as a region of its own.
fn single(paths: &[PathBuf]) -> Vec<NewRegion> {
    paths.iter().map(|path| NewDisk { path: path.clone(), size: None }.into()).collect()
}

/// Writes a new file in order and syncs it; returns bytes per second that had reached the disks by then.
fn write_in_order(place: &impl Place, rig: &Rig, path: &str, bytes: u64) -> Result<f64, Error> {
    let data = Rng::new(9).bytes(PIECE);
    let before = rig.written()?;
    let start = now();
    let file = place.create(&name(path.into()))?;
    (0..bytes).step_by(PIECE).try_for_each(|at| place.write(&file, at, &data))?;
    place.fsync(&file)?;
    let seconds = seconds_since(start);
    Ok((rig.written()? - before).min(bytes) as f64 / seconds)
}

/// Waits until `done` accepts the time during which at most `noise` bytes have been written to the disks.
fn wait(rig: &Rig, noise: u64, done: impl Fn(Duration) -> bool) -> Result<(), Error> {
    let (mut last, mut since) = (rig.written()?, Instant::now());
    while !done(since.elapsed()) {
        std::thread::sleep(Duration::from_millis(100));
        let written = rig.written()?;
        if written > last + noise {
            (last, since) = (written, Instant::now());
        }
    }
    Ok(())
}
