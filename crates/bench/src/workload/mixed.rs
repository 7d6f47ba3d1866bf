//! PostMark with large files among the small ones (Figure 5.6 of the Conquest paper): some percent of the files have 2
//! to 5 MB, the others 512 B to 16 KB.
//!
//! By default a fifth of the paper's files, so that it takes minutes.

use super::plan::{Shape, LARGE, SIZES};
use super::postmark::Run;
use crate::prelude::*;

const ROUNDS: usize = 5;
const WHOS: [Who; 8] = [EXT2, ORDERED, XFS, BTRFS, BATTERY, LOGGED, BATTERY_MOUNTED, LOGGED_MOUNTED];

options! { Options {
    grounds;
    files: count "N" = 2_000, "Files; the paper has 10000";
    transactions: count "N" = 2_000, "Transactions per run";
    percent: reals "N,..." = [0.0, 1.0, 2.0, 5.0, 10.0], "Percent of the files that have 2 to 5 MB";
    block: count "BYTES" = 4096, "Bytes per read or write call";
    cache: count "MIB" = 512, "MiB of persistent RAM of pools that have a disk";
} }

impl InSettings for Options {
    const ID: &str = "postmark-5.6";

    fn grounds(&self) -> &Grounds {
        &self.grounds
    }

    fn begin(&self, _: &Context) -> Result<(), Error> {
        if let Some(percent) = self.percent.iter().find(|percent| !(0.0..=100.0).contains(*percent)) {
            return Err(Error::Usage(format!("--percent {percent}: must be 0 to 100")));
        }
        Ok(())
    }

    fn measure(&self, setting: &Setting<'_>) -> Outcome {
        let context = setting.context;
        let (files, transactions) = (context.size(self.files, 200), context.size(self.transactions, 200));
        let title = format!(
            "Figure 5.6, PostMark transaction rate by percent of large files ({files} files, {transactions} \
             transactions, calls of {} B)",
            self.block
        );
        let section = setting.rates(Self::ID, title, "1/s").against(ORDERED.name);
        let mut sections = [section.drawn(Plot::lines("percent of the files are large"))];
        let most = self.percent.iter().copied().fold(0.0, f64::max);
        let sizes = Sizes { disk: bytes(files + transactions, most) + 512 * MIB, ram: context.mib(self.cache, 128) };
        let mut peers = setting.peers(&WHOS, sizes, &mut sections);
        for &percent in &self.percent {
            let run = Run::new(&Shape { percent, ..Shape::of_paper(files, transactions) }, self.block);
            let label = format!("PostMark, {percent} % large files");
            context.rounds(&label, ROUNDS, &mut peers, &mut sections, |peer, _, sections| {
                let [rate, ..] = on_place!(&peer.place, place => run.round(place))?;
                sections[0].add(peer.who.name, &format!("{percent} %"), rate);
                Ok(())
            });
        }
        let measure = format!("{most} %");
        // The result of the paper: 1.29 to 4.1 times as fast as ext2, and 1.75 times with the most large files.
        let findings = [BATTERY_MOUNTED, LOGGED_MOUNTED, BATTERY, LOGGED].map(|own| {
            let what = format!("{}: Figure 5.6, {measure} large files, against {}", own.how(), ORDERED.name);
            let row = sections[0].row(own.medium(), what, Goal::factor(1.29, 1.75));
            row.factor(&measure, own.name, ORDERED.name)
        });
        Outcome { findings: findings.into(), sections: sections.into() }
    }
}

/// The most bytes of that many files: one transaction in two makes a file, and one in five makes one longer.
fn bytes(files: usize, percent: f64) -> u64 {
    let large = files as f64 * percent / 100.0;
    // A few more than the average may be drawn.
    (large * 1.2 + 10.0) as u64 * LARGE.end() + files as u64 * SIZES.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_large_files_gives_rates_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let run = Run::new(&Shape { percent: 50.0, ..Shape::of_paper(20, 40) }, 65_536);
        let rates = run.round(&place).expect("a round");
        assert!(rates.iter().all(|&rate| rate > 0.0), "{rates:?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }
}
