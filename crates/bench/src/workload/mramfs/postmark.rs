//! PostMark with the thesis's parameters: files of 1 to 4095 bytes, with as many reads as appends.

use std::cell::Cell;
use std::ops::RangeInclusive;

use super::peer::beside_backlog;
use super::{memory, note, rounds, Options, USED};
use crate::prelude::*;
use crate::workload::plan::Shape;
use crate::workload::postmark::Run;

const ROUNDS: usize = 5;
const SIZES: RangeInclusive<u64> = 1..=4095;
/// Bytes of a call, the default of PostMark.
const BLOCK: usize = 512;

const TRANSACTIONS: &str = "transactions";
const CREATION: &str = "creation alone";

pub fn run(context: &Context, args: &Options, dirs: usize) -> Outcome {
    let (files, transactions) = (context.size(args.files, 300), context.size(args.transactions, 300));
    let where_ = if dirs == 1 { "one directory".into() } else { format!("{dirs} directories") };
    let title = format!("PostMark in {where_}, {files} files of 1 to 4095 bytes, {transactions} transactions");
    let ids = match dirs {
        1 => ["mramfs-5.3", "mramfs-5.4", "mramfs-5.3-memory"],
        _ => ["mramfs-5.3-dirs", "mramfs-5.4-dirs", "mramfs-5.3-dirs-memory"],
    };
    let rate = Section::rates(ids[0], format!("Figure 5.3, {title}"), "1/s");
    let time = Section::times(ids[1], format!("Figure 5.4, {title}"), "s");
    let [rate, time] = [rate, time].map(|section| section.against(EXT2.name).drawn(Plot::bars()));
    let mut sections = [rate, time, memory(ids[2], &title)];
    let run = Run::new(&Shape { dirs, ..Shape::of_paper(files, transactions).sized(SIZES) }, BLOCK);
    let backlog = context.mib(args.backlog, 1);
    rounds(context, (&format!("PostMark, {where_}"), ROUNDS), &mut sections, |peer, sections| {
        let (empty, used) = (peer.used()?, Cell::new(0));
        let (rates, compressed) = beside_backlog(peer, backlog, |end| {
            let see = || {
                end()?;
                used.set(peer.used()?.saturating_sub(empty));
                Ok(())
            };
            on_place!(&peer.place, place => run.round_seeing(place, see))
        })?;
        let (name, [transaction, creation, _]) = (peer.who.name, rates);
        sections[0].add(name, TRANSACTIONS, transaction);
        sections[0].add(name, CREATION, creation);
        sections[1].add(name, TRANSACTIONS, transactions as f64 / transaction);
        sections[1].add(name, CREATION, files as f64 / creation);
        sections[2].add(name, USED, used.get() as f64 / 1e6);
        note(&mut sections[0], compressed);
        Ok(())
    });
    Outcome { sections: sections.into(), findings: Vec::new() }
}
