//! Background work on disks ([`conquest_fs::maintenance::disks`]), by the process with the role of maintenance: lacking replicas, regions that
//! leave, balance, scrubbing; regions that are missing, and those that come back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exraid::duplex::Duplex;
use exraid::Layout;
use pram::budget::Budget;

use super::report::Job;
use super::task::{Next, Plan, Run, Task};
use super::ELSEWHERE;
use crate::backing::placement::{self, Placement};
use crate::disks::{damage, leave, replace};
use conquest_fs::error::{Error, Result};
use conquest_fs::maintenance::disks::Piece;
use conquest_fs::node::Fs;
use conquest_fs::ubj::Union;
use conquest_fs::wakeup::Wakeup;

/// How often it looks whether there is work.
const TICK: Duration = Duration::from_millis(250);
/// How often it looks after regions that are missing, or back.
const LOOK: Duration = Duration::from_secs(1);
/// How long it rests after a failure.
const REST: Duration = Duration::from_secs(2);

/// None where the pool has no disks.
pub fn start(fs: &Arc<Fs>, dir: &Path, duplex: Option<&Arc<Duplex>>) -> Result<Option<Task>> {
    let Some(union) = fs.union().cloned() else { return Ok(None) };
    let mut work = DiskWork {
        fs: fs.clone(),
        union,
        dir: dir.to_path_buf(),
        duplex: duplex.cloned(),
        placement: Placement::default(),
        is_clear: false,
        is_compared: false,
        looked: None,
        counted: fs.session().clock().instant(),
    };
    let plan = Plan { job: Job::Rebuild, first: TICK, nice: 0 };
    Task::start(fs, plan, Arc::<Wakeup>::default(), move |run| work.run(run)).map(Some)
}

struct DiskWork {
    fs: Arc<Fs>,
    union: Arc<Union>,
    dir: PathBuf,
    duplex: Option<Arc<Duplex>>,
    placement: Placement,
    /// Whether the remains of a backing that was given up are removed from disks.
    is_clear: bool,
    /// Whether disks were compared with the pool, to find old ones.
    is_compared: bool,
    /// The time when regions were last looked after, and when regions out of reach were counted.
    looked: Option<Instant>,
    counted: Instant,
}

impl DiskWork {
    fn run(&mut self, run: &Run) -> Next {
        let (fs, union) = (&*self.fs, &*self.union);
        let clock = fs.session().clock();
        if clock.since(self.counted) > LOOK {
            self.counted = clock.instant();
            let looked = union.log().look_again(fs.session());
            if let Err(e) = looked.and_then(|()| union.log().count_out_of_reach(fs.session())) {
                run.failed("work on disks", &e);
            }
        }
        if !self.is_compared && fs.session().try_maintenance() {
            self.is_compared = true;
            if let Err(e) = look_for_old(fs, union) {
                run.failed("looking for disks that are older than the pool", &e);
            }
        }
        if fs.session().try_maintenance() && !run.is_stopped() {
            if let Err(e) = self.maintain_backing(run) {
                tracing::error!("{e}");
                run.note_failure("the backing on disks", &e);
            }
        }
        match self.fs.session().try_maintenance() {
            true => self.one_round(run),
            false => Next::waiting(TICK, ELSEWHERE),
        }
    }

    fn maintain_backing(&mut self, run: &Run) -> Result<()> {
        let (fs, union, dir) = (&*self.fs, &*self.union, &*self.dir);
        match self.duplex.as_deref() {
            Some(duplex) => {
                self.placement.maintain(&placement::Pool { fs, union, duplex, dir }, &|| !run.is_stopped()).map(drop)
            }
            None if !self.is_clear => placement::clear(fs, union).map(|()| self.is_clear = true),
            None => Ok(()),
        }
    }

    /// Some work, and how long to rest after it.
    fn one_round(&mut self, run: &Run) -> Next {
        match self.work(run) {
            Ok(Piece::Done) => Next::NOW,
            Ok(Piece::Nothing) => Next::after(TICK, "there is nothing to do"),
            Err(e) => {
                run.failed("work on disks", &e);
                Next::after(REST, "the last run failed")
            }
        }
    }

    fn work(&mut self, run: &Run) -> Result<Piece> {
        let (fs, union, dir) = (&*self.fs, &*self.union, &*self.dir);
        let mut budget = Budget::pieces(fs.session().clock(), Box::new(|rest| run.pause(rest, "others use the disks")));
        let clock = fs.session().clock();
        if self.looked.is_none_or(|looked| clock.since(looked) > LOOK) {
            self.looked = Some(clock.instant());
            union.look_after_regions(fs)?;
        }
        let mut wrong = |wrong: &[_]| damage::note(fs, union, dir, wrong);
        match union.maintain(fs, &mut budget)? {
            Piece::Done => Ok(Piece::Done),
            Piece::Nothing if replace::catch_up(dir, union.log(), fs.session(), &|| run.is_stopped())? => {
                Ok(Piece::Done)
            }
            Piece::Nothing => {
                leave::complete_empty(dir, union, fs.session())?;
                union.work_as_asked(fs, &mut budget, &mut wrong)
            }
        }
    }
}

/// Reports a disk that is older than the pool's memory. If other disks have what it lacks it is out; else all content is scrubbed.
fn look_for_old(fs: &Fs, union: &Union) -> Result<()> {
    for old in union.log().take_old() {
        let Some(region) = union.regions().into_iter().find(|region| region.number() == old.number) else { continue };
        let why = "it is older than the pool's memory: it was put back from an earlier time, or has lost writes";
        if old.copies.len() < old.of && region.layout() == Layout::Mirror {
            for disk in old.copies {
                region.put_out(disk, why).map_err(|e| Error::Pool(e.to_string()))?;
                tracing::error!(
                    "disk {} of {} is out: {why}; `conquest region replace` puts it back",
                    disk + 1,
                    region.name()
                );
            }
            continue;
        }
        tracing::error!(
            "{}: {why}. What it lacks is lost, where no other region has it: a scrub begins, which names it",
            region.name()
        );
        union.log().set_scrubbed(fs.session(), 0, fs.session().clock().seconds())?;
        union.log().set_tasks(fs.session(), &|tasks| (tasks.scrub, tasks.paused) = (true, false))?;
    }
    Ok(())
}
