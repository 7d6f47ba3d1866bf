//! PostMark (Figures 5.3 and 5.4 of the Conquest paper): the file sets of a mail and news server, 5,000 to
//! 30,000 files of 512 B to 16 KB in √n directories, read, appended to, created and deleted at random.
//!
//! By default half of the sizes and a twentieth of the paper's transactions, so that it takes minutes and not an hour;
//! the rates are per second either way.

use super::plan::{Op, Plan, Shape};
use super::program;
use super::smallfile::in_ram;
use crate::prelude::*;

const ROUNDS: usize = 5;

options! { Options {
    files: counts "N,..." = [5_000, 15_000, 30_000], "Sizes of the file set";
    transactions: count "N" = 10_000, "Transactions per run";
    {
        /// As in the paper: the sizes 5000, 10000 and so on to 30000, and 200,000 transactions; takes about an hour
        #[arg(long, conflicts_with_all = ["files", "transactions"])]
        pub paper: bool
    }
    block: count "BYTES" = 512, "Bytes per read or write call";
    {
        /// Also run the `postmark` program on each mounted file system
        #[arg(long)]
        pub postmark_binary: bool
    }
} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let (sizes, transactions) = match self.paper {
            true => ((1..=6).map(|n| n * 5_000).collect(), 200_000),
            false => (self.files.clone(), self.transactions),
        };
        let transactions = context.size(transactions, 500);
        let sizes: Vec<usize> = sizes.into_iter().map(|n| context.size(n, n / 50).max(1)).collect();
        let mut figures = figures(transactions, self.block);
        let mut peers = context.make(&whos(context), &mut figures, |who| in_ram(context, who));
        let runs: Vec<_> =
            sizes.iter().map(|&n| (n, Run::new(&Shape::of_paper(n, transactions), self.block))).collect();
        for round in 0..context.count(ROUNDS) {
            for (files, run) in &runs {
                let label = format!("PostMark, {files} files");
                context.once_each((&label, round, ROUNDS), &mut peers, &mut figures, |peer, figures| {
                    let rates = on_place!(&peer.place, place => run.round(place))?;
                    let pairs = figures.iter_mut().zip(rates);
                    pairs.for_each(|(figure, rate)| figure.add(peer.who.name, &files.to_string(), rate));
                    Ok(())
                });
            }
        }
        let findings = sizes.iter().max().map_or(Vec::new(), |most| findings(&figures[0], &most.to_string()));
        let mut sections = Vec::from(figures);
        if self.postmark_binary {
            sections.extend(program::run(context, &peers, &sizes, transactions, self.block)?);
        }
        Ok(Outcome { sections, findings })
    }
}

/// /dev/fuse only by name: with a message for each 512 bytes it takes longer than all others together.
fn whos(context: &Context) -> Vec<Who> {
    ALL.into_iter().filter(|&who| who != BATTERY_DEV || context.names(who.kind)).collect()
}

/// The results of the paper with the most files: as fast as a file system in RAM, and 1.24 to 4.5 times as fast as one
/// for disks with everything in its cache.
fn findings(rates: &Section, files: &str) -> Vec<Finding> {
    let row = |own: Who, base: Who, required, aim| {
        let what = format!("{}: PostMark, {files} files, faster than {}", own.how(), base.name);
        rates.row(own.medium(), what, Goal::factor(required, aim)).factor(files, own.name, base.name)
    };
    let pools = [(LOGGED, LOGGED_MOUNTED), (BATTERY, BATTERY_MOUNTED)];
    pools.iter().flat_map(|(own, mounted)| [row(*own, TMPFS, 1.0, 1.0), row(*mounted, EXT4, 1.24, 4.5)]).collect()
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
        Section::rates(id, title, "1/s").against(TMPFS.name).drawn(Plot::lines("files"))
    })
}

/// One plan and its data.
pub struct Run {
    plan: Plan,
    block: usize,
    data: Vec<u8>,
}

impl Run {
    pub fn new(shape: &Shape, block: usize) -> Run {
        Run { plan: Plan::new(shape), block, data: Rng::new(42).bytes(shape.longest() as usize) }
    }

    /// The bytes that the transactions read and write, each on average.
    pub fn bytes(&self) -> [f64; 2] {
        let each = self.plan.transactions.iter().map(Op::bytes);
        let [read, written] = each.fold([0, 0], |[read, written], [r, w]| [read + r, written + w]);
        [read, written].map(|bytes| bytes as f64 / self.plan.transaction_count.max(1) as f64)
    }

    /// Transactions per second, creations per second alone, and mixed with transactions.
    pub fn round(&self, place: &impl Place) -> Result<[f64; 3], Error> {
        self.round_seeing(place, || Ok(()))
    }

    /// As `round`; calls `see` after the transactions, while the files exist.
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
        Ok(seconds_since(start).max(1e-9))
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

    #[test]
    fn a_round_gives_three_rates_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let rates = Run::new(&Shape::of_paper(50, 100), 512).round(&place).expect("a round");
        assert!(rates.iter().all(|&r| r > 0.0), "{rates:?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    #[test]
    fn a_file_that_is_too_short_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let run = Run::new(&Shape::of_paper(1, 1), 512);
        place.mkdir(&run.plan.dirs[0]).expect("mkdir");
        drop(place.create(&run.plan.files[0]).expect("create"));
        assert!(matches!(run.read(&place, 0, 600, &mut [0; 512]), Err(Error::Wrong(_))));
    }
}
