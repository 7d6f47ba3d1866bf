//! Create and write 1 KB in this process without fsync, while the copy on disk follows in the background: on
//! `logged`, and on `battery` with a running copy, as often as by default and as often as on `logged`, against `battery`
//! without. Long enough that the log is written and checkpointed into the image again and again.

use std::path::PathBuf;

use conquest::CommitInterval;
use conquest::MediumKind;

use super::{both, Setup, BATTERY, LOGGED};
use crate::clock::now;
use crate::disk::Disk;
use crate::error::Error;
use crate::place::{InProcess, Name, Place};
use crate::program::{self, Logged};
use crate::workload::tree::Tree;
use report::goals::{Finding, Goal};
use report::{Outcome, Section};
use rng::Rng;

const ROUNDS: usize = 3;
/// With a copy as often as by default, and as often as on `logged`.
const COPIED: &str = "conquest battery+copy";
const OFTEN: &str = "conquest battery+copy, often";
const CREATE: &str = "create+write";
const UNLINK: &str = "unlink";
const SIZE: usize = 1024;
/// Seconds from commit to commit of a running copy, as a pool on `battery` has them by default.
const DEFAULT: f64 = 30.0;
/// Seconds from commit to commit when quick.
const SHORT: f64 = 0.2;

pub fn run(setup: &Setup) -> Outcome {
    let (name, [often, seldom]) = (setup.name(), intervals(setup));
    let title =
        format!("Create + write 1 KB without fsync, in process; copies on {name}, every {often} s, and {seldom} s");
    let mut section = Section::times("durable-behind", title, "us/op");
    section.baseline = Some(BATTERY.into());
    setup.attempt(&mut section, |disk, section| measure(setup, disk, section));
    let row = |medium, what: &str, goal, subject| {
        let measured = both(&section, [subject, BATTERY], CREATE);
        Finding::judge(medium, what, goal, measured, section.ratio(CREATE, subject, BATTERY))
    };
    let findings = vec![
        row(
            MediumKind::Logged,
            "in process: create + write without fsync, time of battery",
            Goal::at_most(1.25, 1.1),
            LOGGED,
        ),
        row(
            MediumKind::Battery,
            &format!("in process, with a running copy every {seldom} s: create + write, time of without"),
            Goal::at_most(1.10, 1.03),
            COPIED,
        ),
        row(
            MediumKind::Battery,
            &format!("in process, with a running copy every {often} s: create + write, time of without"),
            Goal::at_most(1.10, 1.03),
            OFTEN,
        ),
    ];
    Outcome { sections: vec![section], findings }
}

/// Seconds from commit to commit: where copies are frequent, and of the other running copy.
fn intervals(setup: &Setup) -> [f64; 2] {
    if setup.context.quick {
        [SHORT, 2.0 * SHORT]
    } else {
        [setup.args.interval, DEFAULT]
    }
}

/// A pool, and for how long it is worked on in a round.
struct Subject {
    name: &'static str,
    pool: PathBuf,
    nanos: u64,
}

impl Subject {
    /// For long enough that there is a commit, whenever the last one was.
    fn new(name: &'static str, pool: PathBuf, interval: f64) -> Subject {
        Subject { name, pool, nanos: (interval * 1.1e9) as u64 }
    }
}

fn measure(setup: &Setup, disk: &Disk, section: &mut Section) -> Result<(), Error> {
    let (context, bytes) = (setup.context, setup.bytes());
    context.progress.say("making pools on logged and battery".into());
    let [often, seldom] = intervals(setup);
    let every = |seconds| CommitInterval::try_from(seconds).map_err(Error::Usage);
    let logged = Logged::make_committing(disk.dir.join("behind.pool"), bytes, Some(every(often)?))?;
    let [battery, copied, copied_often] =
        ["behind.pool", "copied.pool", "often.pool"].map(|name| context.base.join(name));
    program::format(&battery, bytes)?;
    program::format_copied(&copied, bytes, &disk.dir.join("copied.copy"), every(seldom)?)?;
    program::format_copied(&copied_often, bytes, &disk.dir.join("often.copy"), every(often)?)?;
    let subjects = [
        Subject::new(LOGGED, logged.dir.clone(), often),
        Subject::new(OFTEN, copied_often, often),
        Subject::new(BATTERY, battery, often),
        Subject::new(COPIED, copied, seldom),
    ];
    let measured = rounds(setup, section, &subjects);
    subjects.iter().filter(|subject| subject.name != LOGGED).for_each(|subject| program::remove(&subject.pool));
    measured
}

fn rounds(setup: &Setup, section: &mut Section, subjects: &[Subject]) -> Result<(), Error> {
    let context = setup.context;
    let plan = Plan::new(context.size(100_000, 5_000));
    for subject in subjects {
        plan.tree.make_dirs(&InProcess::open(&subject.pool)?)?;
    }
    for round in 0..context.rounds(ROUNDS) {
        for subject in subjects {
            context.say_round("without fsync", round, ROUNDS, subject.name);
            // Closed in between: what is still to be copied is not copied while others are measured.
            let place = InProcess::open(&subject.pool)?;
            // The first files meet memory that this process has not touched.
            plan.round(&place, 0)?;
            let before = copied(&place)?;
            let [create, unlink] = plan.round(&place, subject.nanos)?;
            section.add(subject.name, CREATE, create);
            section.add(subject.name, UNLINK, unlink);
            if let (Some(before), Some(after)) = (before, copied(&place)?) {
                let (commits, mib) = (after.0 - before.0, (after.1 - before.1) >> 20);
                let name = subject.name;
                section.notes.push(format!("{name}, round {}: {commits} commits, {mib} MiB to the log", round + 1));
            }
        }
    }
    Ok(())
}

/// Commits so far and their bytes in the log, of a pool that has one.
fn copied(place: &InProcess) -> Result<Option<(u64, u64)>, Error> {
    Ok(place.pool.status()?.backing.map(|copy| (copy.commits, copy.logged)))
}

struct Plan {
    tree: Tree,
    data: Vec<u8>,
}

impl Plan {
    fn new(files: usize) -> Plan {
        Plan { tree: Tree::new("d", 100, files), data: Rng::new(4).bytes(SIZE) }
    }

    /// Makes all files and removes them again until `nanos` have passed; microseconds per file of either.
    fn round(&self, place: &InProcess, nanos: u64) -> Result<[f64; 2], Error> {
        let (start, mut spent, mut files) = (now(), [0, 0], 0);
        loop {
            let begin = now();
            self.tree.files.iter().try_for_each(|file| self.create(place, file))?;
            let made = now();
            self.tree.files.iter().try_for_each(|file| place.unlink(file))?;
            let end = now();
            spent = [spent[0] + made - begin, spent[1] + end - made];
            files += self.tree.files.len();
            if end - start >= nanos {
                return Ok(spent.map(|ns| ns as f64 / 1000.0 / files as f64));
            }
        }
    }

    #[inline]
    fn create(&self, place: &InProcess, file: &Name) -> Result<(), Error> {
        let handle = place.create(file)?;
        place.write(&handle, 0, &self.data)
    }
}
