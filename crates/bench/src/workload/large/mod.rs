//! Large files, in the settings of [`crate::setting`]: pools against ext4 with a journal, and against the raw disk.
//!
//! | part | what it measures |
//! | --- | --- |
//! | [`sequential`] | a file written in order until it is durable, and read cold, against the raw disk |
//! | [`synced`] | random overwrites of 4 KiB, each synced, against ext4 data=journal and data=ordered |
//! | [`volume`] | bytes written to disk for random overwrites, synced every hundred |
//! | [`stream`] | 1 MiB writes with one sync at the end, and bytes written to disk, against the ext4 beneath |
//! | [`cached`] | random reads of 4 KiB from the cache, against ext4's page cache |
//! | [`cold`] | the same from the disk, 32 at a time, against the raw disk |
//! | [`aged`] | reading in order what was overwritten at random, against the raw disk |
//! | [`mapped`] | random stores to a mapped file, against ext4 |
//! | [`content`] | what they have in common: files of blocks, and how these are checked |
//!
//! Each part makes what it works on, and removes it.

mod aged;
mod cached;
mod cold;
mod content;
mod mapped;
mod sequential;
mod stream;
mod synced;
mod volume;

use clap::ValueEnum;

use crate::args::{self, Large, LargePart};
use crate::context::Context;
use crate::error::Error;
use crate::program::has_disks;
use crate::raw::RAW;
use crate::setting::{self, Setting};
use crate::side::{Side, Sizes, Who};
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

const MIB: u64 = 1 << 20;
/// Bytes that are written or read at a time where the order is that of the file.
const PIECE: usize = 1 << 20;

pub fn run(context: &Context, args: &Large) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    for setting in Setting::all(context, &args.grounds) {
        let setting = match setting {
            Ok(setting) => setting,
            Err((which, reason)) => {
                let mut section = Section::rates("large", "Large files", "");
                section.id = setting::id("large", which).into();
                section.skip(RAW, reason);
                outcome.sections.push(section);
                continue;
            }
        };
        let wanted = |part: &&LargePart| args.only.is_empty() || args.only.contains(part);
        let bench = Bench { args, setting };
        for part in LargePart::value_variants().iter().filter(wanted) {
            let mut one = match part {
                LargePart::Sequential => sequential::run(&bench),
                LargePart::Synced => synced::run(&bench),
                LargePart::Volume => volume::run(&bench),
                LargePart::Stream => stream::run(&bench),
                LargePart::Cached => cached::run(&bench),
                LargePart::Cold => cold::run(&bench),
                LargePart::Aged => aged::run(&bench),
                LargePart::Mapped => mapped::run(&bench),
            };
            bench.setting.tell(&mut one.findings);
            outcome.extend(one);
        }
    }
    if !has_disks(&context.program) {
        let says_nothing = |finding: Finding| finding.skipped("this program's pools have no disks: all is in RAM");
        outcome.findings = outcome.findings.into_iter().map(says_nothing).collect();
    }
    Ok(outcome)
}

/// What the parts need to know.
struct Bench<'a> {
    args: &'a Large,
    setting: Setting<'a>,
}

impl Bench<'_> {
    /// Bytes of the largest file.
    fn size(&self) -> u64 {
        self.setting.context.size(self.args.size, 64) as u64 * MIB
    }

    /// Bytes of the file that is read cold at random: half of what is written in order, since each pool writes one first.
    fn cold_size(&self) -> u64 {
        (self.size() / 2).max(self.file().min(self.size()))
    }

    /// Bytes of the file of most parts.
    fn file(&self) -> u64 {
        self.setting.context.size(self.args.file, 32) as u64 * MIB
    }

    /// Bytes of persistent RAM.
    fn cache(&self) -> u64 {
        self.setting.context.size(self.args.cache, 64) as u64 * MIB
    }

    /// The least persistent RAM that manages a file of so many bytes, and caches hardly any of it.
    fn little(&self, bytes: u64) -> u64 {
        (bytes / 32 + 128 * MIB).min(self.cache())
    }

    /// Room for files of so many bytes: a tenth is the reserve of an ext4 or a cleaner, and its journal.
    fn room(bytes: u64) -> u64 {
        bytes + bytes / 4 + 256 * MIB
    }

    /// Sides with room for files of `bytes`; who cannot be had is skipped in each of the sections.
    fn sides(&self, whos: &[Who], bytes: u64, sections: &mut [Section]) -> Vec<Side> {
        let sizes = Sizes { disk: Bench::room(bytes), ram: self.cache() };
        self.made(whos, sections, |who| Side::make(&self.setting, who, sizes))
    }

    fn made(&self, whos: &[Who], sections: &mut [Section], make: impl Fn(Who) -> Result<Side, Error>) -> Vec<Side> {
        let (sides, skipped) = crate::side::make(&self.setting, whos, make);
        sections.iter_mut().for_each(|section| section.skipped.extend(skipped.iter().cloned()));
        sides
    }

    /// A section of times, or of other figures of which little is good.
    fn times(&self, id: &'static str, title: impl std::fmt::Display, unit: &'static str) -> Section {
        let title = format!("{title}; {}", self.setting.name);
        Section { id: self.setting.id(id).into(), ..Section::times(id, title, unit) }
    }

    fn rates(&self, id: &'static str, title: impl std::fmt::Display, unit: &'static str) -> Section {
        Section { more_is_better: true, ..self.times(id, title, unit) }
    }
}

/// What must have been read of the disk, of what was read, for a read to count as cold.
const COLD: f64 = 0.7;

/// The finding of a cold read, if it was one: what comes from memory says nothing about a disk. The series of `measure` in
/// `shares` tells which part came from the disk. On tmpfs nobody counts that.
fn cold(setting: &Setting<'_>, shares: &Section, measure: &str, own: Who, finding: Finding) -> Finding {
    match shares.median(own.name(), measure) {
        Ok(share) if share < COLD && finding.value.is_some() && setting.which == args::Setting::OwnDisk => {
            finding.skipped(format!("{}: {share:.2} of it came from the disk: it was not cold", own.name()))
        }
        _ => finding,
    }
}

/// A row of the numbers to reach: how many times as good as `base` a pool is.
fn faster(section: &Section, what: &str, goal: Goal, measure: &str, own: Who, base: &str) -> Finding {
    let measured = [own.name(), base].map(|s| section.text(s, measure)).join(" / ") + " " + &section.unit;
    let what = format!("{}: {what}, against {base}", own.how());
    Finding::judge(own.medium(), what, goal, measured, section.factor(measure, own.name(), base))
}
