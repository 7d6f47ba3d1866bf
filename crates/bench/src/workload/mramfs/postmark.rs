//! PostMark as the thesis has it: files of 1 to 4095 bytes, as many of which are read as appended to.

use std::ops::RangeInclusive;

use super::peer::{Peer, EXT2};
use super::{memory, rounds, USED};
use crate::args::Mramfs;
use crate::context::Context;
use crate::error::Error;
use crate::place::on_place;
use crate::workload::postmark::Run;
use report::plot::Plot;
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const SIZES: RangeInclusive<u64> = 1..=4095;
/// Bytes of a call, as PostMark has it by itself.
const BLOCK: usize = 512;

const TRANSACTIONS: &str = "transactions";
const CREATION: &str = "creation alone";

pub fn run(context: &Context, args: &Mramfs, dirs: usize) -> Outcome {
    let (files, transactions) = (context.size(args.files, 300), context.size(args.transactions, 300));
    let where_ = if dirs == 1 { "one directory".into() } else { format!("{dirs} directories") };
    let title = format!("PostMark in {where_}, {files} files of 1 to 4095 bytes, {transactions} transactions");
    let ids = match dirs {
        1 => ["mramfs-5.3", "mramfs-5.4", "mramfs-5.3-memory"],
        _ => ["mramfs-5.3-dirs", "mramfs-5.4-dirs", "mramfs-5.3-dirs-memory"],
    };
    let mut rate = Section::rates(ids[0], format!("Figure 5.3, {title}"), "1/s");
    let mut time = Section::times(ids[1], format!("Figure 5.4, {title}"), "s");
    (rate.baseline, time.baseline) = (Some(EXT2.into()), Some(EXT2.into()));
    (rate.plot, time.plot) = (Plot::bars(), Plot::bars());
    let mut sections = [rate, time, memory(ids[2], &title)];
    let run = Run::in_dirs(files, transactions, BLOCK, SIZES, dirs);
    let backlog = (context.size(args.backlog, 1) as u64) << 20;
    rounds(context, (&format!("PostMark, {where_}"), ROUNDS), &mut sections, |peer, sections| {
        round(&run, peer, backlog, (files, transactions), sections)
    });
    Outcome { sections: sections.into(), findings: Vec::new() }
}

fn round(
    run: &Run,
    peer: &Peer,
    backlog: u64,
    (files, transactions): (usize, usize),
    sections: &mut [Section],
) -> Result<(), Error> {
    let (empty, used) = (peer.used()?, std::cell::Cell::new(0));
    let (rates, compressed) = peer.beside_backlog(backlog, |end| {
        let see = || {
            end()?;
            used.set(peer.used()?.saturating_sub(empty));
            Ok(())
        };
        on_place!(&peer.place, place => run.round_seeing(place, see))
    })?;
    let name = peer.who.name;
    let [transaction, creation, _] = rates;
    sections[0].add(name, TRANSACTIONS, transaction);
    sections[0].add(name, CREATION, creation);
    sections[1].add(name, TRANSACTIONS, transactions as f64 / transaction);
    sections[1].add(name, CREATION, files as f64 / creation);
    sections[2].add(name, USED, used.get() as f64 / 1e6);
    super::note(&mut sections[0], compressed);
    Ok(())
}
