//! The figures of the thesis on mramfs (5.3 to 5.5), against tmpfs and file systems on a device in RAM.
//!
//! | part | figure | what it measures |
//! | --- | --- | --- |
//! | `single`, `hundred` | 5.3, 5.4 | [`postmark`]: 50,000 files of 1 to 4095 bytes, in one directory and in a hundred |
//! | `build` | 5.5 | [`build`]: `make` in a tree of C files |
//!
//! Conquest is there without compression, in process too, and mounted with maintenance at work on a backlog: what was not used for a second
//! is compressed, and its inodes are packed, within maintenance's share of a processor, and that has begun when the clock starts
//! ([`peer`]).

mod build;
mod peer;
mod postmark;

use clap::ValueEnum;

use crate::args::{Mramfs, MramfsPart};
use crate::context::Context;
use crate::error::Error;
use peer::{Peer, PEERS};
use report::{Outcome, Section};

/// What a section has when all has been done: bytes in use beyond those of the empty file system.
const USED: &str = "memory in use";

pub fn run(context: &Context, args: &Mramfs) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    let wanted = |part: &&MramfsPart| args.only.is_empty() || args.only.contains(part);
    for part in MramfsPart::value_variants().iter().filter(wanted) {
        outcome.extend(match part {
            MramfsPart::Single => postmark::run(context, args, 1),
            MramfsPart::Hundred => postmark::run(context, args, 100),
            MramfsPart::Build => build::run(context, args),
        });
    }
    Ok(outcome)
}

/// Does `work` on each of the peers, round by round, each made anew. Who fails is told of at the end; the others go on.
fn rounds(
    context: &Context,
    (label, usual): (&str, usize),
    sections: &mut [Section],
    mut work: impl FnMut(&Peer, &mut [Section]) -> Result<(), Error>,
) {
    let mut left: Vec<_> = PEERS.to_vec();
    for round in 0..context.rounds(usual) {
        left.retain(|who| {
            if !context.wants(who.kind) {
                sections.iter_mut().for_each(|section| section.skip(who.name, "not asked for with --on"));
                return false;
            }
            context.say_round(label, round, usual, who.name);
            let peer = match Peer::make(*who, context) {
                Ok(peer) => peer,
                Err(e) => {
                    sections.iter_mut().for_each(|section| section.skip(who.name, e.to_string()));
                    return false;
                }
            };
            let done = work(&peer, sections);
            if let Err(e) = &done {
                context.failed(&format!("{label}: {}", who.name), e);
                sections.iter_mut().for_each(|section| section.fail(who.name, e.to_string()));
            }
            done.is_ok()
        });
    }
}

/// The section for memory in use.
fn memory(id: &'static str, title: &str) -> Section {
    let mut section = Section::times(id, format!("{title}: memory in use"), "MB");
    section.notes.push("beyond the empty file system: what its statfs, or the pool's status, counts as used".into());
    section
}

/// Says what became of the backlog, of the last round.
fn note(section: &mut Section, backlog: Option<[u64; 2]>) {
    let Some([all, compressed]) = backlog else { return };
    section.notes.retain(|note| !note.starts_with("a backlog"));
    section.notes.push(format!(
        "a backlog of {} MB, of which {} MB were compressed when the last round ended",
        all / 1_000_000,
        compressed / 1_000_000
    ));
}
