//! The figures of the thesis on mramfs (5.3 to 5.5), against tmpfs and file systems on a device in RAM.
//!
//! | part | figure | subject |
//! | --- | --- | --- |
//! | `single`, `hundred` | 5.3, 5.4 | [`postmark`]: 50,000 files of 1 to 4095 bytes, in one directory and in a hundred |
//! | `build` | 5.5 | [`build`]: `make` in a tree of C files |
//!
//! Conquest takes part without compression, in process too, and mounted with maintenance at work on a backlog. That
//! compresses files unused for a second, and packs their inodes, within maintenance's share of a processor, and has
//! begun when the clock starts ([`peer`]).

mod build;
mod peer;
mod postmark;

use crate::prelude::*;
use peer::{make, WHOS};

/// The last measure of a section: bytes in use beyond those of the empty file system.
const USED: &str = "memory in use";

type Measure = fn(&Context, &Options) -> Outcome;

const PARTS: [Part<Measure>; 3] = [
    ("single", "PostMark in one directory (Figures 5.3 and 5.4)", |context, args| postmark::run(context, args, 1)),
    ("hundred", "PostMark in a hundred directories (section 5.2.1)", |context, args| postmark::run(context, args, 100)),
    ("build", "`make` in a tree of C files (Figure 5.5)", build::run),
];

options! { Options {
    only: "PART,..." of &PARTS, "What to measure [default: all]";
    files: count "N" = 50_000, "Files of PostMark, of 1 to 4095 bytes";
    transactions: count "N" = 100_000, "Transactions of PostMark";
    source: dir, "A configured tree that `make` builds [default: one of C files that is made for it]";
    units: count "N" = 1_000, "C files of the tree that is made";
    backlog: count "MIB" = 512, "MiB of text that nobody uses, which are compressed meanwhile";
} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        wanted(&PARTS, &self.only).for_each(|(.., measure)| outcome.extend(measure(context, self)));
        Ok(outcome)
    }
}

/// Does `work` on each of the peers, round by round, each made anew.
fn rounds(
    context: &Context,
    (label, usual): (&str, usize),
    sections: &mut [Section],
    mut work: impl FnMut(&Peer, &mut [Section]) -> Result<(), Error>,
) {
    context.rounds(label, usual, &mut WHOS.to_vec(), sections, |who, _, sections| {
        // A peer that this machine lacks is no failure.
        let made = context.require(who.kind).and_then(|()| make(*who, context));
        work(&made.map_err(|e| Error::Usage(e.to_string()))?, sections)
    });
}

/// The section for memory in use.
fn memory(id: &'static str, title: &str) -> Section {
    let note = "beyond the empty file system: what its statfs, or the pool's status, counts as used";
    Section::times(id, format!("{title}: memory in use"), "MB").noting(note)
}

/// Notes the state of the backlog in the last round.
fn note(section: &mut Section, backlog: Option<[u64; 2]>) {
    let Some([all, compressed]) = backlog.map(|bytes| bytes.map(|bytes| bytes / 1_000_000)) else { return };
    section.notes.retain(|note| !note.starts_with("a backlog"));
    let note = format!("a backlog of {all} MB, of which {compressed} MB were compressed when the last round ended");
    section.notes.push(note);
}
