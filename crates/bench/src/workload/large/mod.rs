//! Large files, in the settings of [`crate::setting`]: pools against ext4 with a journal, and against the raw disk.
//!
//! | module | subject |
//! | --- | --- |
//! | [`hosts`] | against ext4: overwrites, streams, mapped files, reads from the cache; and bytes written to disk |
//! | [`raw`] | against the raw disk: files written in order, and read cold in order and at random |
//! | [`content`] | their common part: files of blocks, and the check of their content |
//!
//! Each part makes its files, and removes them.

mod content;
mod hosts;
mod raw;

use crate::prelude::*;
use crate::raw::RAW;

type Measure = fn(&Bench<'_>) -> Outcome;

const PARTS: [Part<Measure>; 8] = [
    ("sequential", "A file written in order until it is durable, and read cold, against the raw disk", raw::sequential),
    ("synced", "Random overwrites of 4 KiB, each synced", hosts::synced),
    ("volume", "Bytes written to disk for random overwrites of 4 KiB, synced every hundred", hosts::volume),
    ("stream", "1 MiB writes and one sync; bytes written to disk", hosts::stream),
    ("cached", "Random reads of 4 KiB from the cache", hosts::cached),
    ("cold", "Random reads of 4 KiB from the disk, 32 at a time, against the raw disk", raw::cold),
    ("aged", "Reading in order what was overwritten at random, against the raw disk", raw::aged),
    ("mapped", "Random stores to a mapped file", hosts::mapped),
];

options! { Options {
    grounds;
    only: "PART,..." of &PARTS, "What to measure [default: all]";
    size: count "MIB" = 4096, "MiB of the file that is written in order and read cold";
    file: count "MIB" = 1024, "MiB of the file of the other parts";
    cache: count "MIB" = 1024, "MiB of persistent RAM of pools that have a disk";
    synced: count "N" = 2_000, "Overwrites per round that are synced one by one";
    counted: count "MIB" = 300, "MiB of the file of which the bytes written to disk are counted, once over and over again";
    reads: count "N" = 100_000, "Random reads per round";
} }

impl InSettings for Options {
    const ID: &str = "large";
    const SUBJECT: &str = RAW;

    fn grounds(&self) -> &Grounds {
        &self.grounds
    }

    fn measure(&self, setting: &Setting<'_>) -> Outcome {
        let (bench, mut outcome) = (Bench { args: self, setting }, Outcome::default());
        wanted(&PARTS, &self.only).for_each(|(.., measure)| outcome.extend(measure(&bench)));
        outcome
    }
}

/// The state that the parts share.
struct Bench<'a> {
    args: &'a Options,
    setting: &'a Setting<'a>,
}

impl Bench<'_> {
    /// Bytes of the largest file.
    fn size(&self) -> u64 {
        self.setting.context.mib(self.args.size, 64)
    }

    /// Bytes of the file of most parts.
    fn file(&self) -> u64 {
        self.setting.context.mib(self.args.file, 32)
    }

    /// Bytes of persistent RAM.
    fn cache(&self) -> u64 {
        self.setting.context.mib(self.args.cache, 64)
    }

    /// Peers with space for files of `bytes`; a peer that this machine lacks is skipped in each of the sections.
    fn peers(&self, whos: &[Who], bytes: u64, sections: &mut [Section]) -> Vec<Peer> {
        self.setting.peers(whos, Sizes { disk: room(bytes), ram: self.cache() }, sections)
    }
}

/// The disk for files of `bytes`: a tenth is the reserve of an ext4 or a cleaner, and its journal.
fn room(bytes: u64) -> u64 {
    bytes + bytes / 4 + 256 * MIB
}

/// A row of the goals: how many times as good as `base` a pool is.
fn faster(section: &Section, what: &str, goal: Goal, measure: &str, own: Who, base: &str) -> Finding {
    let what = format!("{}: {what}, against {base}", own.how());
    section.row(own.medium(), what, goal).factor(measure, own.name, base)
}
