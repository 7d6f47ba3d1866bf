//! The figures of "Unioning of the Buffer Cache and Journaling Layers with Non-volatile Memory" (UBJ).
//!
//! | module | figures | subject |
//! | --- | --- | --- |
//! | [`hosts`] | 2, 10 to 13 | bytes written to disk, Filebench, IOzone, PostMark, periods of commits, against ext4 |
//! | [`replay`] | 6 to 9 | one trace through a cache with no journal, with one beside it, and through the union |
//! | [`trace`] | | references to blocks: recorded, stored, read |
//! | [`cache`] | | the three caches, each a pool |
//!
//! The paper's BF-ext4 is ext4 with data=journal. Its UBJ is a pool on `battery`, which commits each write. Content
//! beyond 64 KiB is in the union here, so that it holds the larger files of these workloads.

mod cache;
mod hosts;
mod replay;
mod trace;

use std::path::PathBuf;

use conquest::Threshold;

use super::filebench::personality::Stock;
use crate::prelude::*;

/// The function of a part: for each setting, or in memory alone.
#[derive(Clone, Copy)]
enum Measure {
    Settings(fn(&Bench<'_>, &Setting<'_>) -> Outcome),
    Memory(fn(&Bench<'_>) -> Outcome),
}
use Measure::{Memory, Settings};

const PARTS: [Part<Measure>; 6] = [
    ("traffic", "Bytes written to disk, against no journal (Figure 2)", Settings(hosts::traffic)),
    (
        "replay",
        "Traces through caches with the journal beside them, within them, and with none (Figures 6 to 9)",
        Memory(replay::run),
    ),
    ("filebench", "Filebench (Figure 10)", Settings(hosts::filebench)),
    ("iozone", "One file written in order and at random (Figure 11)", Settings(hosts::iozone)),
    ("postmark", "PostMark (Figure 12)", Settings(hosts::postmark)),
    ("period", "Latency of varmail by the period of commits (Figure 13)", Settings(hosts::period)),
];

options! { Options {
    grounds;
    only: "PART,..." of &PARTS, "What to measure [default: all]";
    footprint: count "MIB" = 256, "MiB that a trace goes over";
    references: count "N" = 200_000, "Blocks that a trace reads and writes, one after the other";
    sizes: reals "PART,..." = [0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0], "Sizes of caches, times what a trace goes over";
    traces: dir, "A directory for the traces: those that are there are replayed, the others recorded there";
    seconds: real "SECONDS" = 4.0, "Seconds of a round of Filebench";
    long: real "SECONDS" = 10.0, "Seconds of a round where commits have a period, of which there are to be some";
    filesets: counts "MIB,..." = [100, 200, 300], "MiB of the files that are written in order and at random";
    transactions: counts "N,..." = [2_000, 6_000, 10_000], "Transactions of PostMark";
    files: count "N" = 1_000, "Files of PostMark, 500 KB on average";
    periods: counts "SECONDS,..." = [1, 3, 5], "Seconds from commit to commit";
    cache: count "MIB" = 1024, "MiB of persistent RAM of pools that are mounted";
} }

impl Workload for Options {
    fn disk(&self) -> Option<PathBuf> {
        self.grounds.disk()
    }

    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        if let Some(size) = self.sizes.iter().find(|size| !(0.05..=10.0).contains(*size)) {
            return Err(Error::Usage(format!("--sizes {size}: must be 0.05 to 10")));
        }
        let (bench, mut outcome) = (Bench { context, args: self }, Outcome::default());
        // Files beyond the smallest permitted threshold are in the union.
        let threshold = Some(Threshold::try_from(Threshold::MIN).map_err(Error::Usage)?);
        for (name, _, measure) in wanted(&PARTS, &self.only) {
            outcome.extend(match measure {
                Memory(measure) => measure(&bench),
                Settings(measure) => self.grounds.each(context, &format!("ubj-{name}"), JOURNAL.name, |setting| {
                    measure(&bench, &Setting { threshold, ..setting.clone() })
                }),
            });
        }
        Ok(outcome)
    }
}

/// The state that the parts share.
struct Bench<'a> {
    context: &'a Context,
    args: &'a Options,
}

impl Bench<'_> {
    fn sizes_of(&self, disk: u64) -> Sizes {
        Sizes { disk, ram: self.context.mib(self.args.cache, 128) }
    }

    /// Some of a list: all, or the first when quick.
    fn few<'b, T>(&self, all: &'b [T]) -> &'b [T] {
        &all[..if self.context.quick { all.len().min(1) } else { all.len() }]
    }

    /// The stock workloads, small when quick.
    fn stocks(&self) -> [Stock; 4] {
        Stock::of_ubj().map(|stock| stock.times(1, self.context.quick))
    }
}
