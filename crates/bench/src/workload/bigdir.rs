//! A directory of a million entries against directories of a thousand, in process.
//!
//! Both sides hold the same number of files and are worked on in the same shuffled order, so that caches and
//! TLBs see as much memory on either side: what differs is the size of the directories alone.

use conquest::MediumKind;

use crate::args::Bigdir;
use crate::clock::{now, us_per_op};
use crate::context::Context;
use crate::error::Error;
use crate::place::{name, InProcess, Name, Place};
use crate::program;
use report::goals::{Finding, Goal};
use report::{Outcome, Section};
use rng::Rng;

const ROUNDS: usize = 5;
const BIG: &str = "one big directory";
const SMALL: &str = "many small ones";
const MEASURES: [&str; 4] = ["create", "stat", "list", "unlink"];

pub fn run(context: &Context, args: &Bigdir) -> Result<Outcome, Error> {
    let entries = context.size(args.entries, 20_000);
    let small = args.small.min(entries);
    let title = format!("One directory of {entries} entries against {} of {small}", entries.div_ceil(small));
    let mut section = Section::times("bigdir", title, "us/entry");
    section.baseline = Some(SMALL.into());
    let sides = [Side::new(context, BIG, entries, entries)?, Side::new(context, SMALL, entries, small)?];
    for round in 0..context.rounds(ROUNDS) {
        for side in &sides {
            context.say_round("big directory", round, ROUNDS, side.name);
            for (measure, figure) in MEASURES.iter().zip(side.round()?) {
                section.add(side.name, measure, figure);
            }
        }
    }
    let findings = MEASURES.map(|measure| {
        let measured = [BIG, SMALL].map(|s| section.text(s, measure)).join(" / ") + " us";
        let what = format!("directory of {entries}: {measure}, time of one of {small}");
        Finding::judge(MediumKind::Battery, what, Goal::at_most(2.0, 1.2), measured, section.ratio(measure, BIG, SMALL))
    });
    Ok(Outcome { sections: vec![section], findings: findings.into() })
}

/// One side of the comparison, with a pool of its own.
struct Side {
    name: &'static str,
    place: InProcess,
    dirs: Vec<Name>,
    /// In the order of work.
    files: Vec<Name>,
}

impl Side {
    fn new(context: &Context, side: &'static str, entries: usize, per_dir: usize) -> Result<Side, Error> {
        let pool = context.base.join(format!("bigdir-{per_dir}.pool"));
        program::format(&pool, context.bytes())?;
        let place = InProcess::open(&pool)?;
        let dirs = entries.div_ceil(per_dir);
        // Both sides shuffle with the same seed: entry i is created, found and deleted at the same turn.
        let mut order: Vec<usize> = (0..entries).collect();
        Rng::new(10).shuffle(&mut order);
        Ok(Side {
            name: side,
            place,
            dirs: (0..dirs).map(|d| name(format!("d{d:06}"))).collect(),
            files: order.iter().map(|i| name(format!("d{:06}/f{i:08}", i / per_dir))).collect(),
        })
    }

    /// Create, stat, list and unlink: microseconds per entry.
    fn round(&self) -> Result<[f64; 4], Error> {
        let place = &self.place;
        self.dirs.iter().try_for_each(|d| place.mkdir(d))?;
        let create = self.each(|f| place.create(f).map(drop))?;
        let stat = self.each(|f| place.stat(f).map(drop))?;
        let list = self.list()?;
        let unlink = self.each(|f| place.unlink(f))?;
        self.dirs.iter().try_for_each(|d| place.rmdir(d))?;
        Ok([create, stat, list, unlink])
    }

    fn each(&self, work: impl Fn(&Name) -> Result<(), Error>) -> Result<f64, Error> {
        let start = now();
        for file in &self.files {
            work(file).map_err(|e| e.at(format!("{}: {file:?}", self.name)))?;
        }
        Ok(us_per_op(start, self.files.len()))
    }

    fn list(&self) -> Result<f64, Error> {
        let start = now();
        let mut found = 0;
        for dir in &self.dirs {
            found += self.place.list(dir)?;
        }
        let figure = us_per_op(start, self.files.len());
        if found == self.files.len() {
            Ok(figure)
        } else {
            Err(Error::Wrong(format!("{} of {} entries were listed", found, self.files.len())))
        }
    }
}
