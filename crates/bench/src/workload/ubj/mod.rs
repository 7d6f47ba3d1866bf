//! The figures of "Unioning of the Buffer Cache and Journaling Layers with Non-volatile Memory" (UBJ).
//!
//! | part | figures | what it measures |
//! | --- | --- | --- |
//! | [`traffic`] | 2 | bytes written to disk, against those of ext4 without a journal |
//! | [`replay`] | 6 to 9 | one trace through a cache with no journal, with one beside it, and through the union |
//! | [`speed`] | 10 | Filebench: operations per second, and what so many take |
//! | [`iozone`] | 11 | one file written in order and at random |
//! | [`postmark`] | 12 | PostMark: bytes read and written per second |
//! | [`period`] | 13 | varmail: what an operation takes, by the period of commits |
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`trace`] | references to blocks: recorded, kept, read |
//! | [`cache`] | the three caches, each a pool |
//!
//! The paper's BF-ext4 is ext4 with data=journal. Its UBJ is a pool on `battery`, which commits each write; content beyond 64 KiB is
//! in the union here, so that the files of these workloads are there that are large enough.

mod cache;
mod iozone;
mod period;
mod postmark;
mod replay;
mod speed;
mod trace;
mod traffic;

use clap::ValueEnum;

use crate::args::{self, Ubj, UbjPart};
use crate::context::Context;
use crate::error::Error;
use crate::setting::{self, Setting};
use crate::side::{self, Side, Sizes, Who, JOURNAL};
use crate::workload::filebench::personality::Stock;
use report::{Outcome, Section};
use trace::Trace;

const MIB: u64 = 1 << 20;
/// Beyond so many bytes content is in the union: as few as a pool takes.
const THRESHOLD: u64 = 64 << 10;

pub fn run(context: &Context, args: &Ubj) -> Result<Outcome, Error> {
    if let Some(size) = args.sizes.iter().find(|size| !(0.05..=10.0).contains(*size)) {
        return Err(Error::Usage(format!("--sizes {size}: must be 0.05 to 10")));
    }
    let bench = Bench { context, args };
    let mut outcome = Outcome::default();
    let wanted = |part: &&UbjPart| args.only.is_empty() || args.only.contains(part);
    for part in UbjPart::value_variants().iter().filter(wanted) {
        let measure = match part {
            UbjPart::Replay => {
                outcome.extend(replay::run(&bench));
                continue;
            }
            UbjPart::Traffic => traffic::run,
            UbjPart::Filebench => speed::run,
            UbjPart::Iozone => iozone::run,
            UbjPart::Postmark => postmark::run,
            UbjPart::Period => period::run,
        };
        outcome.extend(bench.in_settings(part, measure));
    }
    Ok(outcome)
}

/// What the parts need to know.
struct Bench<'a> {
    context: &'a Context,
    args: &'a Ubj,
}

impl Bench<'_> {
    fn in_settings(&self, part: &UbjPart, measure: fn(&Bench<'_>, &Setting<'_>) -> Outcome) -> Outcome {
        let mut outcome = Outcome::default();
        for setting in Setting::all(self.context, &self.args.grounds) {
            match setting {
                Ok(setting) => {
                    let setting = setting.with_threshold(THRESHOLD);
                    let mut one = measure(self, &setting);
                    setting.tell(&mut one.findings);
                    outcome.extend(one);
                }
                Err((which, reason)) => {
                    let name = part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
                    let mut section = Section::rates("ubj", format!("UBJ, {name}"), "");
                    section.id = setting::id(&format!("ubj-{name}"), which).into();
                    section.skip(JOURNAL.name(), reason);
                    outcome.sections.push(section);
                }
            }
        }
        outcome
    }

    /// Sides of so many bytes; who cannot be had is skipped in each of the sections.
    fn sides(&self, setting: &Setting<'_>, whos: &[Who], disk: u64, sections: &mut [Section]) -> Vec<Side> {
        let sizes = self.sizes_of(disk);
        let (sides, skipped) = side::make(setting, whos, |who| Side::make(setting, who, sizes));
        sections.iter_mut().for_each(|section| section.skipped.extend(skipped.iter().cloned()));
        sides
    }

    fn sizes_of(&self, disk: u64) -> Sizes {
        Sizes { disk, ram: self.context.size(self.args.cache, 128) as u64 * MIB }
    }

    /// Seconds of a round: as asked for, or few when quick.
    fn seconds(&self, asked: f64) -> f64 {
        if self.context.quick {
            asked.min(0.3)
        } else {
            asked
        }
    }

    /// Some of a list: all, or the first when quick.
    fn few<'b, T>(&self, all: &'b [T]) -> &'b [T] {
        &all[..if self.context.quick { all.len().min(1) } else { all.len() }]
    }

    /// Sizes of caches.
    fn sizes(&self) -> Vec<f64> {
        let few = [0.7, 2.0];
        let is_wanted = |size: &f64| !self.context.quick || few.contains(size);
        self.args.sizes.iter().copied().filter(is_wanted).collect()
    }

    /// The trace of a workload: the one that is kept, or one that is recorded now, and kept if that is wanted.
    fn trace(&self, stock: &Stock) -> Result<Trace, Error> {
        let path = self.args.traces.as_ref().map(|dir| dir.join(stock.name).with_extension("trace"));
        if let Some(path) = path.as_ref().filter(|path| path.exists()) {
            let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
            return Trace::parse(&text).map_err(|e| e.at(path.display().to_string()));
        }
        let footprint = self.context.size(self.args.footprint, 32) as u64 * MIB;
        let references = self.context.size(self.args.references, 8_000) as u64;
        let trace = Trace::record(&stock.clone().sized(footprint), references)?;
        if let Some(path) = &path {
            std::fs::write(path, trace.to_text()).map_err(Error::file(path))?;
        }
        Ok(trace)
    }
}

/// A section of a figure in a setting.
fn section(setting: &Setting<'_>, id: &str, title: String, unit: &'static str, more_is_better: bool) -> Section {
    let mut section = Section::times("ubj", format!("{title}; {}", setting.name), unit);
    (section.id, section.more_is_better) = (setting.id(id).into(), more_is_better);
    section
}

/// Which of the stock workloads, as small as they are to be.
fn stocks(context: &Context) -> impl Iterator<Item = Stock> + '_ {
    let all = args::Personality::value_variants().iter();
    all.map(|which| Stock::of_ubj(*which).times(1, context.quick))
}
