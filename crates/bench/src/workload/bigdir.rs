//! A directory of a million entries against directories of a thousand, in process.
//!
//! Both sides have the same number of files and are worked on in the same shuffled order, so that caches and TLBs see
//! as much memory on either side: only the size of the directories differs.

use conquest::FormatOptions;

use crate::prelude::*;
use crate::program::Own;

const ROUNDS: usize = 5;
const BIG: &str = "one big directory";
const SMALL: &str = "many small ones";
const MEASURES: [&str; 4] = ["create", "stat", "list", "unlink"];

options! { Options {
    entries: count "N" = 1_000_000, "Entries of the big directory, and of all small ones together";
    small: count "N" = 1_000, "Entries of a small directory";
} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let entries = context.size(self.entries, 20_000);
        let small = self.small.min(entries);
        let title = format!("One directory of {entries} entries against {} of {small}", entries.div_ceil(small));
        let mut section = Section::times("bigdir", title, "us/entry").against(SMALL);
        let sides = [Side::new(context, BIG, entries, entries)?, Side::new(context, SMALL, entries, small)?];
        for round in 0..context.count(ROUNDS) {
            for side in &sides {
                context.say_round("big directory", round, ROUNDS, side.name);
                let figures = side.round()?;
                MEASURES.iter().zip(figures).for_each(|(measure, figure)| section.add(side.name, measure, figure));
            }
        }
        let findings = MEASURES.map(|measure| {
            let what = format!("directory of {entries}: {measure}, time of one of {small}");
            section.row(MediumKind::Battery, what, Goal::at_most(2.0, 1.2)).ratio(measure, BIG, SMALL)
        });
        Ok(Outcome { sections: vec![section], findings: findings.into() })
    }
}

/// One side of the comparison, with a pool of its own.
struct Side {
    name: &'static str,
    place: InProcess,
    _pool: Own,
    dirs: Vec<Name>,
    /// In the order of work.
    files: Vec<Name>,
}

impl Side {
    fn new(context: &Context, side: &'static str, entries: usize, per_dir: usize) -> Result<Side, Error> {
        let dir = context.base.join(format!("bigdir-{per_dir}.pool"));
        let pool = Own::make(dir, FormatOptions::on(MediumKind::Battery, context.bytes()))?;
        // Both sides shuffle with the same seed: entry i is created, found and deleted at the same step.
        let mut order: Vec<usize> = (0..entries).collect();
        Rng::new(10).shuffle(&mut order);
        Ok(Side {
            name: side,
            place: InProcess::open(&pool.dir)?,
            _pool: pool,
            dirs: (0..entries.div_ceil(per_dir)).map(|d| name(format!("d{d:06}"))).collect(),
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
        let found = self.dirs.iter().try_fold(0, |sum, dir| Ok::<usize, Error>(sum + self.place.list(dir)?))?;
        let figure = us_per_op(start, self.files.len());
        match found == self.files.len() {
            true => Ok(figure),
            false => Err(Error::Wrong(format!("{found} of {} entries were listed", self.files.len()))),
        }
    }
}
