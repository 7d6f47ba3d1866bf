//! Create and write 1 KB in this process without fsync, while the backing follows. Subjects: `logged`, and `battery`
//! with a backing that commits as often as by default and as often as on `logged`, against `battery` without. A round
//! lasts long enough that redo logs are filled and applied to the checkpoint repeatedly.

use std::path::PathBuf;

use conquest::{CommitInterval, FormatOptions};

use super::{Setup, BATTERY, LOGGED};
use crate::disk::Disk;
use crate::prelude::*;
use crate::program::Own;
use crate::workload::tree::{Content, Tree};

const ROUNDS: usize = 3;
/// With a backing that commits as often as by default, and as often as on `logged`.
const BACKED: &str = "conquest battery+backing";
const OFTEN: &str = "conquest battery+backing, often";
const CREATE: &str = "create+write";
const UNLINK: &str = "unlink";
const SIZE: usize = 1024;
/// Seconds from commit to commit of a backing, as a pool on `battery` has them by default.
const DEFAULT: f64 = 30.0;
/// Seconds from commit to commit when quick.
const SHORT: f64 = 0.2;

pub fn run(setup: &Setup<'_>) -> Outcome {
    let (name, [often, seldom]) = (setup.name(), intervals(setup));
    let title =
        format!("Create + write 1 KB without fsync, in process; backing on {name}, every {often} s, and {seldom} s");
    let mut sections = [Section::times("durable-behind", title, "us/op").against(BATTERY)];
    setup.attempt(&mut sections, |disk, sections| measure(setup, disk, &mut sections[0]));
    let row = |medium, what: String, required, aim, subject| {
        sections[0].row(medium, what, Goal::at_most(required, aim)).ratio(CREATE, subject, BATTERY)
    };
    let backed = |every| format!("in process, with a backing every {every} s: create + write, time of without");
    let alone = "in process: create + write without fsync, time of battery".into();
    let findings = vec![
        row(MediumKind::Logged, alone, 1.25, 1.1, LOGGED),
        row(MediumKind::Battery, backed(seldom), 1.10, 1.03, BACKED),
        row(MediumKind::Battery, backed(often), 1.10, 1.03, OFTEN),
    ];
    Outcome { sections: sections.into(), findings }
}

/// Seconds between commits: of a backing with frequent commits, and of the other.
fn intervals(setup: &Setup<'_>) -> [f64; 2] {
    if setup.context.quick {
        [SHORT, 2.0 * SHORT]
    } else {
        [setup.args.interval, DEFAULT]
    }
}

/// A pool, and the time of work on it in a round.
struct Subject {
    name: &'static str,
    pool: Own,
    nanos: u64,
}

fn measure(setup: &Setup<'_>, disk: &Disk, section: &mut Section) -> Result<(), Error> {
    let (context, [often, seldom]) = (setup.context, intervals(setup));
    // Long enough for a commit, whenever the last one was.
    let subject = |name, pool, interval: f64| Subject { name, pool, nanos: (interval * 1.1e9) as u64 };
    let every = |seconds| CommitInterval::try_from(seconds).map(Some).map_err(Error::Usage);
    let battery = |label: &str, backing: Option<PathBuf>, commit_interval| {
        let how = FormatOptions::on(MediumKind::Battery, setup.bytes());
        Own::make(context.base.join(format!("{label}.pool")), FormatOptions { backing, commit_interval, ..how })
    };
    let backed = |label: &str, seconds| battery(label, Some(disk.dir.join(format!("{label}.copy"))), every(seconds)?);
    let subjects = [
        subject(LOGGED, setup.logged(disk, "behind", setup.bytes(), every(often)?)?, often),
        subject(OFTEN, backed("often", often)?, often),
        subject(BATTERY, battery("behind", None, None)?, often),
        subject(BACKED, backed("backed", seldom)?, seldom),
    ];
    let plan = Plan::new(context.size(100_000, 5_000));
    for subject in &subjects {
        plan.tree.make_dirs(&InProcess::open(&subject.pool.dir)?)?;
    }
    for round in 0..context.count(ROUNDS) {
        for Subject { name, pool, nanos } in &subjects {
            context.say_round("without fsync", round, ROUNDS, name);
            // Closed in between, so that its backing is not written while others are measured.
            let place = InProcess::open(&pool.dir)?;
            // The first files meet memory that this process has not touched.
            plan.round(&place, 0)?;
            let before = commits(&place)?;
            let [create, unlink] = plan.round(&place, *nanos)?;
            section.add(name, CREATE, create);
            section.add(name, UNLINK, unlink);
            if let Some((before, after)) = before.zip(commits(&place)?) {
                let (commits, mib) = (after.0 - before.0, (after.1 - before.1) >> 20);
                section.notes.push(format!("{name}, round {}: {commits} commits, {mib} MiB to the log", round + 1));
            }
        }
    }
    Ok(())
}

/// The number of commits so far and their bytes in the redo log, of a pool that has one.
fn commits(place: &InProcess) -> Result<Option<(u64, u64)>, Error> {
    Ok(place.pool.status()?.backing.map(|backing| (backing.commits, backing.logged)))
}

struct Plan {
    tree: Tree,
    content: Content,
}

impl Plan {
    fn new(files: usize) -> Plan {
        Plan { tree: Tree::new("d", 100, files), content: Content::drawn(4, SIZE) }
    }

    /// Makes all files and removes them again until `nanos` have passed; microseconds per file of either.
    fn round(&self, place: &InProcess, nanos: u64) -> Result<[f64; 2], Error> {
        let (start, mut spent, mut files) = (now(), [0, 0], 0);
        loop {
            let begin = now();
            self.tree.files.iter().try_for_each(|file| self.content.create(place, file))?;
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
}
