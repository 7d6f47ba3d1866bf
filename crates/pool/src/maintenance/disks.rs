//! Background work on disks ([`conquest_fs::maintenance::tend`]), by the process with the role of maintenance: copies that are lacking, regions that
//! leave, balance, scrubbing; regions that are gone, and those that come back.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exraid::duplex::Duplex;
use exraid::Layout;

use crate::backing::tend::{self, Tending};
use crate::disks::{damage, leave, replace};
use conquest_fs::error::{Error, Result};
use conquest_fs::maintenance::tend::{Pace, Piece};
use conquest_fs::node::Fs;
use conquest_fs::ubj::Union;

/// How often it looks whether there is work.
const TICK: Duration = Duration::from_millis(250);
/// How often it looks after regions that are gone, or are there again.
const LOOK: Duration = Duration::from_secs(1);
/// How long it rests after a failure.
const REST: Duration = Duration::from_secs(2);

/// The thread; dropping it ends it.
pub struct DiskWork {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DiskWork {
    /// None where the pool has no disks.
    pub fn start(fs: &Arc<Fs>, dir: &Path, duplex: Option<&Arc<Duplex>>) -> Result<Option<DiskWork>> {
        let Some(union) = fs.union().cloned() else { return Ok(None) };
        let stop = Arc::new(AtomicBool::new(false));
        let (fs, stopped, dir) = (fs.clone(), stop.clone(), dir.to_path_buf());
        let duplex = duplex.cloned();
        let work = move || run(&fs, &union, &dir, duplex.as_deref(), &stopped);
        let thread = std::thread::Builder::new().name("disk-work".into()).spawn(work);
        let thread = thread.map_err(|e| Error::Pool(format!("starting the thread of work on disks: {e}")))?;
        Ok(Some(DiskWork { stop, thread: Some(thread) }))
    }
}

impl Drop for DiskWork {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn run(fs: &Fs, union: &Union, dir: &Path, duplex: Option<&Duplex>, stop: &AtomicBool) {
    let stopped = || stop.load(Ordering::SeqCst);
    let mut tending = Tending::default();
    let (mut is_clear, mut is_compared) = (false, false);
    let (mut pace, mut looked, mut counted) = (Pace::default(), None::<Instant>, Instant::now());
    std::thread::park_timeout(TICK);
    while !stopped() {
        if counted.elapsed() > LOOK {
            counted = Instant::now();
            let looked = union.log().look_again(fs.session());
            if let Err(e) = looked.and_then(|()| union.log().count_out_of_reach(fs.session())) {
                tracing::error!("work on disks: {e}");
            }
        }
        if !is_compared && fs.session().try_maintenance() {
            is_compared = true;
            if let Err(e) = look_for_old(fs, union) {
                tracing::error!("looking for disks that are older than the pool: {e}");
            }
        }
        if fs.session().try_maintenance() && !stopped() {
            let tended = match duplex {
                Some(duplex) => tending.tend(&tend::Pool { fs, union, duplex, dir }, &|| !stopped()).map(drop),
                None if !is_clear => tend::clear(fs, union).map(|()| is_clear = true),
                None => Ok(()),
            };
            if let Err(e) = tended {
                tracing::error!("{e}");
            }
        }
        let rest = match fs.session().try_maintenance() {
            true => one_round(fs, union, dir, &stopped, &mut pace, &mut looked),
            false => Some(TICK),
        };
        if let Some(rest) = rest {
            std::thread::park_timeout(rest);
        }
    }
}

/// A disk that is older than the pool's memory is told. Where others have what it lacks it is out; else all content is scrubbed.
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
        union.log().set_scrubbed(fs.session(), 0, pram::clock::seconds())?;
        union.log().set_tasks(fs.session(), &|tasks| (tasks.scrub, tasks.paused) = (true, false))?;
    }
    Ok(())
}

/// Some work; how long to rest after it.
fn one_round(
    fs: &Fs,
    union: &Union,
    dir: &Path,
    stopped: &dyn Fn() -> bool,
    pace: &mut Pace,
    looked: &mut Option<Instant>,
) -> Option<Duration> {
    let mut work = || -> Result<Piece> {
        if looked.is_none_or(|looked| looked.elapsed() > LOOK) {
            *looked = Some(Instant::now());
            union.look_after_regions(fs)?;
        }
        let mut wrong = |wrong: &[_]| damage::note(fs, union, dir, wrong);
        match union.tend(fs, pace, stopped)? {
            Piece::Done => Ok(Piece::Done),
            Piece::Nothing if replace::catch_up(dir, union.log(), fs.session(), stopped)? => Ok(Piece::Done),
            Piece::Nothing => {
                leave::complete_empty(dir, union, fs.session())?;
                union.tend_asked(fs, pace, stopped, &mut wrong)
            }
        }
    };
    match work() {
        Ok(Piece::Done) => None,
        Ok(Piece::Nothing) => Some(TICK),
        Err(e) => {
            tracing::error!("work on disks: {e}");
            Some(REST)
        }
    }
}
