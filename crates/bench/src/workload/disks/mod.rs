//! The figures of "Bridging the Information Gap in Storage Protocol Stacks" (E×RAID and I·LFS), on disks that the kernel's block
//! throttle holds to a speed.
//!
//! | part | figure | what it measures |
//! | --- | --- | --- |
//! | [`baseline`] | 3 | in order and at random, written and read, on four slow and on four fast disks |
//! | [`growth`] | 4 | a disk more each time so much is written: speed, and the new disk's share |
//! | [`unequal`] | 5 | fast and slow disks, written in order, against their sum |
//! | [`misconfigured`] | section 6.3 | two of four disks are one |
//! | [`degraded`] | 6 | one of four disks is slow for the middle third |
//! | [`failure`] | 7 | random reads of mirrored files while a disk is lost, and what is copied then |
//! | [`mirrored`] | 8 | twenty files, more and more of them mirrored |
//! | [`lazy`] | 9 | files that are mirrored later |
//! | [`raid5`] | - | whole stripes of a RAID-5 region |
//! | [`foreground`] | - | what others wait for while a disk is removed, rebuilt, balanced, scrubbed |
//! | [`reorganised`] | - | a file that was overwritten at random read in order, before and after it was rewritten |
//! | [`hanging`] | - | a mirrored file, the disk of whose faster copy does not answer |
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`files`] | files in a mounted directory, with redundancy of their own |
//! | [`peer`] | who is compared: pools, btrfs, plain striping of our own |
//! | [`trace`] | what the disks have transferred over time |
//!
//! What counts as written is what the disks have counted when it ends, at most the bytes of the file: what a pool still has in its memory
//! by then has not been written.

mod baseline;
mod degraded;
mod failure;
mod files;
mod foreground;
mod growth;
mod hanging;
mod lazy;
mod mirrored;
mod misconfigured;
mod peer;
mod raid5;
mod reorganised;
mod trace;
mod unequal;

use clap::ValueEnum;

use crate::args::{Disks, DisksPart};
use crate::clock::now;
use crate::context::Context;
use crate::error::Error;
use crate::place::{name, Place};
use crate::rig::Rig;
use crate::side::Who;
use report::goals::{Finding, Goal};
use report::{Outcome, Section};
use rng::Rng;

const MIB: u64 = 1 << 20;
const MB: f64 = 1e6;
/// Bytes of a call where a file is written in order.
const PIECE: usize = 1 << 20;
/// How many disks there are, as in the paper.
const COUNT: usize = 4;

pub fn run(context: &Context, args: &Disks) -> Result<Outcome, Error> {
    if args.fast <= args.slow {
        return Err(Error::Usage(format!("--fast {}: must be more than --slow, which is {}", args.fast, args.slow)));
    }
    let bench = Bench { context, args };
    let mut outcome = Outcome::default();
    let wanted = |part: &&DisksPart| args.only.is_empty() || args.only.contains(part);
    for part in DisksPart::value_variants().iter().filter(wanted) {
        outcome.extend(match part {
            DisksPart::Baseline => baseline::run(&bench),
            DisksPart::Growth => growth::run(&bench),
            DisksPart::Unequal => unequal::run(&bench),
            DisksPart::Misconfigured => misconfigured::run(&bench),
            DisksPart::Degraded => degraded::run(&bench),
            DisksPart::Failure => failure::run(&bench),
            DisksPart::Mirrored => mirrored::run(&bench),
            DisksPart::Lazy => lazy::run(&bench),
            DisksPart::Raid5 => raid5::run(&bench),
            DisksPart::Foreground => foreground::run(&bench),
            DisksPart::Reorganised => reorganised::run(&bench),
            DisksPart::Hanging => hanging::run(&bench),
        });
    }
    Ok(outcome)
}

/// What the parts need to know.
struct Bench<'a> {
    context: &'a Context,
    args: &'a Disks,
}

impl Bench<'_> {
    /// Bytes that are written in order.
    fn size(&self) -> u64 {
        self.context.size(self.args.size, 96) as u64 * MIB
    }

    /// Bytes of persistent RAM.
    fn cache(&self) -> u64 {
        self.context.size(self.args.cache, 64) as u64 * MIB
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

    /// Disks with room for all that a part writes, on any few of them: their files are sparse.
    fn rig(&self, rates: &[u64]) -> Result<Rig, Error> {
        self.rig_of(rates, self.size() * 2 + 256 * MIB)
    }

    fn rig_of(&self, rates: &[u64], bytes: u64) -> Result<Rig, Error> {
        let rig = Rig::make(&self.context.base, bytes, rates)?;
        rig.verify(rates)?;
        Ok(rig)
    }

    /// Says that a part as a whole cannot be had, or failed.
    fn failed(&self, part: &str, sections: &mut [Section], e: &Error) {
        let is_lacking = matches!(e, Error::Usage(_));
        if !is_lacking {
            self.context.failed(&format!("disks: {part}"), e);
        }
        for section in sections {
            // A reason for all, which is found where nothing was measured.
            section.series.clear();
            let reason = if is_lacking { e.to_string() } else { format!("FAILED: {e}") };
            section.skipped.insert(0, report::Skipped { subject: "all".into(), reason });
        }
    }

    fn say(&self, part: &str, round: usize, usual: usize, at: &str) {
        self.context.say_round(&format!("disks: {part}"), round, usual, at);
    }
}

/// Writes a new file in order and syncs it; bytes per second that had reached the disks by then.
fn write_in_order(place: &impl Place, rig: &Rig, path: &str, bytes: u64) -> Result<f64, Error> {
    let data = Rng::new(9).bytes(PIECE);
    let before = rig.written()?;
    let start = now();
    let file = place.create(&name(path.into()))?;
    (0..bytes).step_by(PIECE).try_for_each(|at| place.write(&file, at, &data))?;
    place.fsync(&file)?;
    let seconds = (now() - start) as f64 / 1e9;
    Ok((rig.written()? - before).min(bytes) as f64 / seconds)
}

/// A row of the table of numbers to reach, of how many times the speed of `base` that of `who` is.
fn faster(section: &Section, what: String, goal: Goal, measure: &str, who: Who, base: &str) -> Finding {
    let measured = format!("{} / {} {}", section.text(who.name(), measure), section.text(base, measure), section.unit);
    let value = section.ratio(measure, who.name(), base);
    Finding::judge(who.medium(), format!("{}: {what}", who.how()), goal, measured, value)
}
