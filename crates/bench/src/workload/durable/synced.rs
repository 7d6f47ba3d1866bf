//! Create, write 1 KB and fsync, through the mount and on the disk itself: by one thread, and by eight that can share
//! commits.

use super::limits::{self, Written};
use super::{Beside, Setup, DISK, LOGGED};
use crate::clock::spin_until;
use crate::disk::Disk;
use crate::prelude::*;
use crate::workload::tree::{Content, Tree};

const ROUNDS: usize = 7;
const ONE: &str = "1 thread";
const EIGHT: &str = "8 threads";
const SIZE: usize = 1024;
/// Messages from the kernel for one file, one after another: the attributes of its directory, which the file before has
/// changed, and lookup, create, write and fsync.
const MESSAGES: f64 = 5.0;
/// The time from the order to the start.
const LEAD_NS: u64 = 10_000_000;

pub fn run(setup: &Setup<'_>) -> Outcome {
    let title = format!("Create + write 1 KB + fsync, mounted, and {} itself", setup.name());
    let section = Section::times("durable-fsync", title, "us/op").against(DISK);
    let title = format!("The same: flushes of the device of {} per operation", setup.name());
    let mut sections = [section, Section::times("durable-fsync-flushes", title, "flushes/op")];
    setup.attempt(&mut sections, |disk, sections| measure(setup, disk, sections));
    // Not every disk counts flushes.
    sections[1].skipped.clear();
    let row = |measure, required, aim| {
        let what = format!("mounted: create + write + fsync, {measure}, faster than {}", setup.name());
        sections[0].row(MediumKind::Logged, what, Goal::factor(required, aim)).factor(measure, LOGGED, DISK)
    };
    let findings = vec![row(ONE, 1.5, 2.5), row(EIGHT, 1.5, 4.0)];
    let sections = sections.into_iter().filter(|s| !s.series.is_empty() || !s.skipped.is_empty());
    Outcome { sections: sections.collect(), findings }
}

fn measure(setup: &Setup<'_>, disk: &Disk, sections: &mut [Section]) -> Result<(), Error> {
    let pool = setup.logged(disk, "fsync", setup.bytes(), None)?;
    let mount = setup.mount(&pool, "fsync")?;
    sections[0].notes.push(format!("mounted over {}", mount.transport()?));
    let beside = Beside::make(disk, "fsync.dir")?;
    let places = [(LOGGED, Mounted::new(&mount.dir)?), (DISK, Mounted::new(beside.path())?)];
    let plan = Plan::new(setup.context.size(setup.args.synced, 20));
    let mut alone = Written::make(beside.path())?;
    for (_, place) in &places {
        plan.trees.iter().try_for_each(|tree| tree.make_dirs(place))?;
    }
    for round in 0..setup.context.count(ROUNDS) {
        for (subject, place) in &places {
            for (measure, threads) in [(ONE, 1), (EIGHT, plan.trees.len())] {
                setup.context.say_round("fsync", round, ROUNDS, format_args!("{subject}, {measure}"));
                let (figure, per_op) = disk.flushes(plan.count(threads), || plan.round(place, threads));
                sections[0].add(subject, measure, figure?);
                per_op.into_iter().for_each(|figure| sections[1].add(subject, measure, figure));
                plan.tidy(place, threads)?;
            }
        }
        sections[0].add(limits::FLUSH, ONE, alone.round(plan.count(1))?);
        sections[0].add(limits::MESSAGE, ONE, limits::messages(&mount.dir, plan.count(8))?);
    }
    let note = limit(&sections[0]);
    sections[0].notes.extend(note);
    Ok(())
}

/// The distance of one thread from its unavoidable parts.
fn limit(section: &Section) -> Option<String> {
    let median = |subject| section.get(subject, ONE).map(|series| series.median);
    let least = median(limits::FLUSH)? + MESSAGES * median(limits::MESSAGE)?;
    let (ours, disk) = (median(LOGGED)? / least, median(DISK)? / least);
    Some(format!(
        "{ONE}: a write with its flush and {MESSAGES} messages take {least:.2} us; {LOGGED} takes {ours:.2} times that, \
         {DISK} {disk:.2} times"
    ))
}

/// Every thread's files, in a directory of its own.
struct Plan {
    trees: Vec<Tree>,
    content: Content,
}

impl Plan {
    fn new(files: usize) -> Plan {
        let trees = (0..8).map(|t| Tree::new(&format!("t{t}-"), 1, files)).collect();
        Plan { trees, content: Content::drawn(3, SIZE) }
    }

    fn count(&self, threads: usize) -> usize {
        self.trees[..threads].iter().map(|tree| tree.files.len()).sum()
    }

    /// Microseconds per file, from the common start to the last end.
    fn round(&self, place: &Mounted, threads: usize) -> Result<f64, Error> {
        let start = now() + LEAD_NS;
        std::thread::scope(|scope| {
            let start = |tree| scope.spawn(move || self.work(place, tree, start));
            let threads: Vec<_> = self.trees[..threads].iter().map(start).collect();
            threads.into_iter().try_for_each(joined)
        })?;
        Ok((now() - start) as f64 / 1000.0 / self.count(threads) as f64)
    }

    fn work(&self, place: &Mounted, tree: &Tree, start: u64) -> Result<(), Error> {
        // There are more threads than processors: spinning for the whole time would keep the others out.
        std::thread::sleep(std::time::Duration::from_nanos(start.saturating_sub(now() + LEAD_NS / 10)));
        spin_until(start);
        tree.files
            .iter()
            .try_for_each(|file| self.content.create_synced(place, file).map_err(|e| e.at(format!("{file:?}"))))
    }

    /// Removes all files, with nothing left to be written while others are measured.
    fn tidy(&self, place: &Mounted, threads: usize) -> Result<(), Error> {
        self.trees[..threads].iter().flat_map(|tree| &tree.files).try_for_each(|file| place.unlink(file))?;
        place.settle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_makes_every_file_and_tidying_leaves_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let plan = Plan::new(3);
        plan.trees.iter().try_for_each(|tree| tree.make_dirs(&place)).expect("directories");
        let files = || plan.trees.iter().map(|t| place.list(&t.dirs[0]).expect("list")).sum::<usize>();
        assert!(plan.round(&place, 8).expect("a round") > 0.0);
        assert_eq!((files(), plan.count(8)), (24, 24));
        plan.tidy(&place, 8).expect("tidy");
        assert_eq!(files(), 0);
    }
}
