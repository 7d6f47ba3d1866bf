//! PostMark (Figures 5.3 and 5.4 of the Conquest paper): the file sets of a mail and news server, 5,000 to
//! 30,000 files of 512 B to 16 KB in √n directories, read, appended to, created and deleted at random.
//!
//! By default it is half of the sizes and a twentieth of the paper's transactions, so that it takes minutes and not an
//! hour; the rates are per second either way.

use std::ops::RangeInclusive;

use conquest::MediumKind;

use crate::args::{Kind, Postmark};
use crate::clock::now;
use crate::context::Context;
use crate::error::Error;
use crate::place::Place;
use crate::subject::{self, AnyPlace, Subject};
use crate::workload::plan::{Op, Plan, LARGE, SIZES};
use crate::workload::program;
use report::goals::{Finding, Goal};
use report::{Outcome, Section};
use rng::Rng;

const ROUNDS: usize = 3;
const SEED: u64 = 42;

pub fn run(context: &Context, args: &Postmark) -> Result<Outcome, Error> {
    let (sizes, transactions) = args.plan();
    let transactions = context.size(transactions, 500);
    let sizes: Vec<usize> = sizes.into_iter().map(|n| context.size(n, n / 50).max(1)).collect();
    let (mut subjects, skipped) = subject::make(&kinds(context), context);
    let mut figures = figures(transactions, args.block);
    for figure in &mut figures {
        figure.skipped.clone_from(&skipped);
    }
    for round in 0..context.rounds(ROUNDS) {
        for &files in &sizes {
            let run = Run::new(files, transactions, args.block);
            subjects.retain(|subject| {
                let name = subject.name();
                context.say_round("PostMark", round, ROUNDS, format_args!("{files} files, {name}"));
                match run.on(subject) {
                    Ok(rates) => {
                        let pairs = figures.iter_mut().zip(rates);
                        pairs.for_each(|(figure, rate)| figure.add(name, &files.to_string(), rate));
                        true
                    }
                    Err(e) => {
                        context.failed(name, &e);
                        figures.iter_mut().for_each(|figure| figure.fail(name, e.to_string()));
                        false
                    }
                }
            });
        }
    }
    let findings = sizes.iter().max().map_or(Vec::new(), |most| findings(&figures[0], *most));
    let mut sections = Vec::from(figures);
    if args.postmark_binary {
        sections.extend(program::run(context, &subjects, &sizes, transactions, args.block)?);
    }
    Ok(Outcome { sections, findings })
}

/// /dev/fuse only by name: at one round trip for each 512 bytes it takes longer than all others together.
fn kinds(context: &Context) -> Vec<Kind> {
    Kind::ALL.into_iter().filter(|&k| k != Kind::BatteryDev || context.names(k)).collect()
}

/// What the paper found with the most files: as fast as a file system in RAM, and 1.24 to 4.5 times as fast as one for
/// disks that has all in its cache.
fn findings(rates: &Section, files: usize) -> Vec<Finding> {
    let files = files.to_string();
    let row = |medium, how: &str, goal, own: Kind, base: Kind| {
        let what = format!("{how}: PostMark, {files} files, faster than {}", base.name());
        let measured = [own, base].map(|kind| rates.text(kind.name(), &files)).join(" / ") + " /s";
        Finding::judge(medium, what, goal, measured, rates.factor(&files, own.name(), base.name()))
    };
    let pools = [
        (MediumKind::Logged, Kind::LoggedInproc, Kind::LoggedUring),
        (MediumKind::Battery, Kind::BatteryInproc, Kind::BatteryUring),
    ];
    let of = |(medium, inproc, uring)| {
        [
            row(medium, "in process", Goal::factor(1.0, 1.0), inproc, Kind::Tmpfs),
            row(medium, "mounted", Goal::factor(1.24, 4.5), uring, Kind::Ext4),
        ]
    };
    pools.into_iter().flat_map(of).collect()
}

/// The sections for Figures 5.3, 5.4a and 5.4b, in the order of the rates of [`Run::round`].
fn figures(transactions: usize, block: usize) -> [Section; 3] {
    let titles = [
        ("postmark-5.3", "Figure 5.3, PostMark transaction rate by number of files"),
        ("postmark-5.4a", "Figure 5.4a, PostMark file creation rate, creation alone"),
        ("postmark-5.4b", "Figure 5.4b, PostMark file creation rate, mixed with other transactions"),
    ];
    titles.map(|(id, title)| {
        let title = format!("{title} ({transactions} transactions, calls of {block} B)");
        let mut section = Section::rates(id, title, "1/s");
        section.baseline = Some(Kind::Tmpfs.name().into());
        section
    })
}

/// One plan and its data.
pub struct Run {
    plan: Plan,
    block: usize,
    data: Vec<u8>,
}

impl Run {
    fn new(files: usize, transactions: usize, block: usize) -> Run {
        Run { plan: Plan::new(files, transactions, SEED), block, data: Rng::new(SEED).bytes(*SIZES.end() as usize) }
    }

    /// One with so many percent of large files.
    pub fn with_large(files: usize, transactions: usize, block: usize, percent: f64) -> Run {
        let plan = Plan::with_large(files, transactions, SEED, percent);
        Run { plan, block, data: Rng::new(SEED).bytes(*LARGE.end() as usize) }
    }

    /// One with files of other sizes, as many of which are read as appended to.
    pub fn with_sizes(files: usize, transactions: usize, block: usize, sizes: RangeInclusive<u64>) -> Run {
        let data = Rng::new(SEED).bytes(*sizes.end() as usize);
        Run { plan: Plan::with_sizes(files, transactions, SEED, sizes), block, data }
    }

    /// The same in so many directories.
    pub fn in_dirs(files: usize, transactions: usize, block: usize, sizes: RangeInclusive<u64>, dirs: usize) -> Run {
        let data = Rng::new(SEED).bytes(*sizes.end() as usize);
        Run { plan: Plan::in_dirs(files, transactions, SEED, sizes, dirs), block, data }
    }

    /// Bytes that the transactions read and write, each on average.
    pub fn bytes(&self) -> [f64; 2] {
        let each = self.plan.transactions.iter().map(Op::bytes);
        let [read, written] = each.fold([0, 0], |[read, written], [r, w]| [read + r, written + w]);
        [read, written].map(|bytes| bytes as f64 / self.plan.transaction_count.max(1) as f64)
    }

    fn on(&self, subject: &Subject) -> Result<[f64; 3], Error> {
        match &subject.place {
            AnyPlace::Mounted(place) => self.round(place),
            AnyPlace::InProcess(place) => self.round(&**place),
        }
    }

    /// Transactions per second, creations per second alone, and mixed with transactions.
    pub fn round(&self, place: &impl Place) -> Result<[f64; 3], Error> {
        self.round_seeing(place, || Ok(()))
    }

    /// The same; `see` is called while the files are there, after the transactions.
    pub fn round_seeing(&self, place: &impl Place, see: impl FnOnce() -> Result<(), Error>) -> Result<[f64; 3], Error> {
        let plan = &self.plan;
        plan.dirs.iter().try_for_each(|d| place.mkdir(d))?;
        let creation = self.seconds(place, &plan.create)?;
        let transactions = self.seconds(place, &plan.transactions)?;
        see()?;
        self.seconds(place, &plan.delete)?;
        plan.dirs.iter().try_for_each(|d| place.rmdir(d))?;
        place.settle()?;
        Ok([
            plan.transaction_count as f64 / transactions,
            plan.create.len() as f64 / creation,
            plan.mixed_creations() as f64 / transactions,
        ])
    }

    fn seconds(&self, place: &impl Place, ops: &[Op]) -> Result<f64, Error> {
        let mut buf = vec![0; self.block];
        let start = now();
        for op in ops {
            self.apply(place, op, &mut buf).map_err(|e| e.at(format!("{op:?}")))?;
        }
        Ok((now() - start).max(1) as f64 / 1e9)
    }

    #[inline]
    fn apply(&self, place: &impl Place, op: &Op, buf: &mut [u8]) -> Result<(), Error> {
        match *op {
            Op::Create { file, size } => {
                let handle = place.create(&self.plan.files[file])?;
                let mut offset = 0;
                for block in self.data[..size].chunks(self.block) {
                    place.write(&handle, offset, block)?;
                    offset += block.len() as u64;
                }
            }
            Op::Append { file, len } => {
                let handle = place.open_append(&self.plan.files[file])?;
                for block in self.data[..len].chunks(self.block) {
                    place.append(&handle, block)?;
                }
            }
            Op::Read { file, size } => self.read(place, file, size, buf)?,
            Op::Delete { file } => place.unlink(&self.plan.files[file])?,
        }
        Ok(())
    }

    #[inline]
    fn read(&self, place: &impl Place, file: usize, size: usize, buf: &mut [u8]) -> Result<(), Error> {
        let handle = place.open_read(&self.plan.files[file])?;
        let mut offset = 0;
        while offset < size {
            match place.read(&handle, offset as u64, buf)? {
                0 => return Err(Error::Wrong(format!("a file of {size} bytes ends at {offset}"))),
                n => offset += n,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Mounted;

    #[test]
    fn a_round_gives_three_rates_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let rates = Run::new(50, 100, 512).round(&place).expect("a round");
        assert!(rates.iter().all(|&r| r > 0.0), "{rates:?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    #[test]
    fn a_file_that_is_too_short_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let run = Run::new(1, 1, 512);
        place.mkdir(&run.plan.dirs[0]).expect("mkdir");
        drop(place.create(&run.plan.files[0]).expect("create"));
        assert!(matches!(run.read(&place, 0, 600, &mut [0; 512]), Err(Error::Wrong(_))));
    }
}
