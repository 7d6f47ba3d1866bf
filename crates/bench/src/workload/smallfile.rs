//! Sprite LFS small files (Figure 5.1 of the Conquest paper): create, stat, read and unlink many files of
//! 1 KB, in separate phases; read them a second time; and in two more phases create empty ones, and sync each.

use conquest::MediumKind;

use crate::args::{Kind, Smallfile};
use crate::clock::{now, us_per_op};
use crate::context::Context;
use crate::error::Error;
use crate::place::{Name, Place};
use crate::subject::{self, AnyPlace};
use crate::workload::tree::Tree;
use report::goals::{Finding, Goal, Sense};
use report::{Outcome, Section};
use rng::Rng;

const ROUNDS: usize = 7;

/// The phases of a round, in order, as the report calls them.
pub const CREATE: &str = "create+write";
/// With nothing in it.
const EMPTY: &str = "create";
pub const STAT: &str = "stat";
pub const READ: &str = "open+read";
/// Once more: by now a kernel that caches content has it.
pub const CACHED: &str = "open+read cached";
pub const UNLINK: &str = "unlink";
pub const SYNC: &str = "create+write+fsync";

pub fn run(context: &Context, args: &Smallfile) -> Result<Outcome, Error> {
    let plan = Plan::new(context, args);
    let mut section = Section::times("smallfile", plan.title(), "us/op");
    section.baseline = Some(Kind::Tmpfs.name().into());
    let (mut subjects, skipped) = subject::make(&Kind::ALL, context);
    section.skipped = skipped;
    for round in 0..context.rounds(ROUNDS) {
        subjects.retain(|subject| {
            context.say_round("small files", round, ROUNDS, subject.name());
            let result = match &subject.place {
                AnyPlace::Mounted(place) => plan.round(place),
                AnyPlace::InProcess(place) => plan.round(&**place),
            };
            match result {
                Ok(figures) => figures.into_iter().for_each(|(m, figure)| section.add(subject.name(), m, figure)),
                Err(e) => {
                    context.failed(subject.name(), &e);
                    section.fail(subject.name(), e.to_string());
                    return false;
                }
            }
            true
        });
    }
    let findings = findings(&section);
    Ok(Outcome { sections: vec![section], findings })
}

/// The work of a round, prepared once.
struct Plan {
    tree: Tree,
    synced: usize,
    data: Vec<u8>,
}

impl Plan {
    fn new(context: &Context, args: &Smallfile) -> Plan {
        let files = context.size(args.files, 1_000);
        Plan {
            tree: Tree::new("d", args.dirs, files),
            synced: context.size(args.synced, 100).min(files),
            data: Rng::new(51).bytes(args.size),
        }
    }

    fn title(&self) -> String {
        let (files, dirs) = (self.tree.files.len(), self.tree.dirs.len());
        format!("Figure 5.1, Sprite LFS small files: {files} files of {} B in {dirs} directories", self.data.len())
    }

    fn round(&self, place: &impl Place) -> Result<[(&'static str, f64); 7], Error> {
        let files = &self.tree.files;
        self.tree.make_dirs(place)?;
        let create = timed(files, CREATE, |f| self.create(place, f))?;
        let stat = timed(files, STAT, |f| self.stat(place, f))?;
        let mut buf = vec![0; self.data.len() + 1];
        let read = timed(files, READ, |f| self.read(place, f, &mut buf))?;
        let cached = timed(files, CACHED, |f| self.read(place, f, &mut buf))?;
        let unlink = timed(files, UNLINK, |f| place.unlink(f))?;
        place.settle()?;
        // Spread over the directories, as the other phases are.
        let synced: Vec<Name> = files.iter().step_by(files.len() / self.synced).take(self.synced).cloned().collect();
        let sync = timed(&synced, SYNC, |f| self.create_synced(place, f))?;
        timed(&synced, UNLINK, |f| place.unlink(f))?;
        place.settle()?;
        let empty = timed(files, EMPTY, |f| place.create(f).map(drop))?;
        timed(files, UNLINK, |f| place.unlink(f))?;
        self.tree.remove_dirs(place)?;
        place.settle()?;
        Ok([
            (CREATE, create),
            (STAT, stat),
            (READ, read),
            (CACHED, cached),
            (UNLINK, unlink),
            (SYNC, sync),
            (EMPTY, empty),
        ])
    }

    #[inline]
    fn create(&self, place: &impl Place, file: &Name) -> Result<(), Error> {
        let handle = place.create(file)?;
        place.write(&handle, 0, &self.data)
    }

    #[inline]
    fn create_synced(&self, place: &impl Place, file: &Name) -> Result<(), Error> {
        let handle = place.create(file)?;
        place.write(&handle, 0, &self.data)?;
        place.fsync(&handle)
    }

    #[inline]
    fn stat(&self, place: &impl Place, file: &Name) -> Result<(), Error> {
        self.check_size(place.stat(file)?)
    }

    #[inline]
    fn read(&self, place: &impl Place, file: &Name, buf: &mut [u8]) -> Result<(), Error> {
        let handle = place.open_read(file)?;
        let n = place.read(&handle, 0, buf)?;
        self.check_size(n as u64)
    }

    #[inline]
    fn check_size(&self, size: u64) -> Result<(), Error> {
        if size == self.data.len() as u64 {
            Ok(())
        } else {
            Err(Error::Wrong(format!("a file of {} bytes has {size}", self.data.len())))
        }
    }
}

/// Does `work` on each file; microseconds per file.
fn timed(files: &[Name], phase: &str, mut work: impl FnMut(&Name) -> Result<(), Error>) -> Result<f64, Error> {
    let start = now();
    for file in files {
        work(file).map_err(|e| e.at(format!("{phase} of {file:?}")))?;
    }
    Ok(us_per_op(start, files.len()))
}

/// The rows of the table of numbers to reach that this workload measures.
fn findings(section: &Section) -> Vec<Finding> {
    let (tmpfs, ext4, xfs, dev) = (Kind::Tmpfs.name(), Kind::Ext4.name(), Kind::Xfs.name(), Kind::BatteryDev.name());
    // `slow` over `fast`.
    let row = |medium, what: &str, goal: Goal, measure: &str, slow: &str, fast: &str| {
        let shown = match goal.sense {
            Sense::AtLeast => [fast, slow],
            Sense::AtMost => [slow, fast],
        };
        let measured = shown.map(|s| section.text(s, measure)).join(" / ") + " us";
        Finding::judge(medium, what, goal, measured, section.ratio(measure, slow, fast))
    };
    let of = |medium, own, uring| {
        // On `logged` the sync goes through the log; on `battery` there is nothing to do.
        let [sync_ext4, sync_xfs] = match medium {
            MediumKind::Logged => [Goal::factor(1.5, 2.5), Goal::factor(1.5, 2.5)],
            _ => [Goal::factor(4.0, 6.0), Goal::factor(3.0, 5.0)],
        };
        let row = |what, goal, measure, slow, fast| row(medium, what, goal, measure, slow, fast);
        [
            row(
                "in process: create + write 1 KB + close, faster than tmpfs",
                Goal::factor(8.0, 15.0),
                CREATE,
                tmpfs,
                own,
            ),
            row("in process: stat, faster than tmpfs", Goal::factor(5.0, 8.0), STAT, tmpfs, own),
            row("in process: open + read + close, faster than tmpfs", Goal::factor(6.0, 10.0), READ, tmpfs, own),
            row("in process: unlink, faster than tmpfs", Goal::factor(8.0, 12.0), UNLINK, tmpfs, own),
            row("mounted: create + write + fsync, faster than ext4", sync_ext4, SYNC, ext4, uring),
            row("mounted: create + write + fsync, faster than XFS", sync_xfs, SYNC, xfs, uring),
            row("mounted: open + read + close, cached, time of ext4", Goal::at_most(1.5, 1.05), CACHED, uring, ext4),
            row("mounted: create + write, time of ext4", Goal::at_most(3.0, 2.0), CREATE, uring, ext4),
        ]
    };
    let (logged, battery) = (MediumKind::Logged, MediumKind::Battery);
    let mut findings = Vec::from(of(logged, Kind::LoggedInproc.name(), Kind::LoggedUring.name()));
    let uring = Kind::BatteryUring.name();
    findings.extend(of(battery, Kind::BatteryInproc.name(), uring));
    for (what, measure) in [("create", EMPTY), ("create + write", CREATE)] {
        let what = format!("mounted: {what}, io_uring faster than /dev/fuse");
        findings.push(row(battery, &what, Goal::factor(2.5, 4.0), measure, dev, uring));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Mounted;
    use report::goals::Verdict;

    fn plan() -> Plan {
        Plan { tree: Tree::new("d", 4, 32), synced: 8, data: vec![7; 100] }
    }

    #[test]
    fn a_round_measures_every_phase_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let figures = plan().round(&place).expect("a round");
        assert!(figures.iter().all(|(_, figure)| *figure > 0.0), "{figures:?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    #[test]
    fn a_wrong_size_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("f"), [0; 99]).expect("write");
        let place = Mounted::new(dir.path()).expect("open");
        let file = crate::place::name("f".into());
        assert!(matches!(plan().stat(&place, &file), Err(Error::Wrong(_))));
        assert!(matches!(plan().read(&place, &file, &mut [0; 101]), Err(Error::Wrong(_))));
    }

    #[test]
    fn ratios_stand_the_right_way_round() {
        let mut section = Section::times("s", "s", "us/op");
        for (subject, figure) in
            [("tmpfs", 8.0), ("ext4", 16.0), ("conquest logged", 0.5), ("conquest logged+uring", 32.0)]
        {
            section.add(subject, CREATE, figure);
        }
        let rows = findings(&section);
        assert_eq!((rows[0].value, rows[0].verdict), (Some(16.0), Verdict::Aim));
        assert_eq!((rows[7].value, rows[7].verdict), (Some(2.0), Verdict::Aim));
        assert_eq!(rows[8].verdict, Verdict::Skipped);
    }
}
