//! Further regions, each of one disk or several, for a pool that is in use. Several are one plan: all are added, or none.
//!
//! | step | action | otherwise, after a crash |
//! | --- | --- | --- |
//! | 1 | the disks are made, with their labels | the pool names disks without labels |
//! | 2 | `pool.toml` names them; durable | content goes to disks that no process finds again |
//! | 3 | their labels have the log's mark of sequence numbers | a number is issued again after the memory was lost |
//! | 4 | the table of segments has the region: it takes content from now on | |
//!
//! The next opening of a pool takes steps 3 and 4 for a disk in `pool.toml` that the table does not have. Processes that have the pool
//! open find the new region in the table, and open it then ([`opener`]).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use exraid::{Disk, Label, Options, Region, Uuid};
use pram::Session;

use super::gather::{Gathered, With};
use super::place;
use super::plan::{Plan, Planned, Wanted};
use super::shared::Agreement;
use crate::config::{Config, DiskEntry};
use crate::options::{NewRegion, OpenOptions};
use crate::rescue::absent::read_config;
use crate::Pool;
use conquest_fs::error::{Error, Result};
use ilfs::areas::Opener;
use ilfs::Log;

/// How long to wait before trying again to open a region.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A new region, and its disks.
type Made = (Arc<dyn Region>, Vec<DiskEntry>);

/// Gives the pool at `dir`, which has disks and may be in use, other regions: all of them, or none if one is refused or cannot be made.
/// Disks with content are only taken with `force`.
pub fn add(dir: &Path, new: &[NewRegion], force: bool) -> Result<()> {
    let pool = Pool::open(dir, &OpenOptions::default()).or_else(|e| {
        // A process may have the pool's deleted disks still open, and need another one.
        let tolerant = Pool::open(dir, &OpenOptions { without_disks: true, ..OpenOptions::default() });
        tolerant.ok().filter(|pool| pool.session().runtime().full().count() > 1).ok_or(e)
    })?;
    let session = pool.session();
    let _alone = session.long_lock(ilfs::table::GROWING)?;
    let mut config = read_config(dir)?;
    let union = pool.union().ok_or_else(|| Error::Pool("the pool has no log of segments".into()))?;
    let first = union.log().free_number(session)?;
    // 1.
    let plan = planned(dir, &config, new, force)?;
    let made = make_all(dir, &config, plan, first)?;
    // 2.
    let entries = |of: &[Made]| of.iter().flat_map(|(_, disks)| disks.clone()).collect::<Vec<_>>();
    config.disks.extend(entries(&made));
    if let Err(e) = config.write(dir) {
        undo(dir, &config, &entries(&made));
        return Err(e);
    }
    // 3 and 4.
    let mut left = made.len();
    for (region, _) in &made {
        union.log().add_region(session, region).map_err(|e| {
            Error::Pool(format!(
                "{} of {} were added; the others ({} and what follows it) the pool has too when it is opened next: {e}",
                made.len() - left,
                made.len(),
                region.name()
            ))
        })?;
        left -= 1;
    }
    // Existing content is spread over them, in the background.
    union.log().set_tasks(session, &|tasks| tasks.balance = true)?;
    Ok(backing::of(session).map_or(Ok(()), |backing| backing.wait(session))?)
}

/// The disks of all of them, claimed; makes nothing, and claims none if one is refused.
pub fn planned(dir: &Path, config: &Config, new: &[NewRegion], force: bool) -> Result<Plan> {
    new.iter().flat_map(|new| &new.disks).try_for_each(|disk| refuse_known(dir, config, &disk.path))?;
    let mut plan = Plan::default();
    let wanted = Wanted { dir, config, old: None, force, taken: Vec::new(), beyond_hosts: false };
    new.iter().try_for_each(|new| plan.add(&wanted, new))?;
    Ok(plan)
}

/// Step 1. If one cannot be made, the others are undone.
fn make_all(dir: &Path, config: &Config, plan: Plan, first: u32) -> Result<Vec<Made>> {
    let (mut made, uuid) = (Vec::new(), config.uuid_bytes()?);
    for (number, region) in (first..).zip(plan.0) {
        let layout = region.layout;
        let disks: Vec<_> = region.disks.into_iter().map(Planned::release).collect();
        let at: Vec<_> = disks.iter().map(|(path, size, _)| (path.clone(), *size)).collect();
        let entry = |(_, _, entry)| DiskEntry { region: Some(number), ..entry };
        let entries: Vec<DiskEntry> = disks.into_iter().map(entry).collect();
        let synced = |region| {
            let synced =
                at.iter().try_for_each(|(path, _)| place::sync_parent(path).map_err(|e| Error::host(path, &e)));
            synced.map(|()| region)
        };
        match place::make_region(&at, layout, uuid, number).and_then(synced) {
            Ok(region) => made.push((region, entries)),
            Err(e) => {
                let mut others: Vec<DiskEntry> = Vec::new();
                for (region, entries) in made {
                    drop(region);
                    others.extend(entries);
                }
                others.extend(entries);
                undo(dir, config, &others);
                return Err(Error::Pool(format!("{e}; none was added")));
            }
        }
    }
    Ok(made)
}

/// Removes new disks to which nothing leads, or their labels.
fn undo(dir: &Path, config: &Config, entries: &[DiskEntry]) {
    let Ok(uuid) = config.uuid_bytes() else { return };
    for entry in entries {
        if let Err(e) = place::remove(dir, entry, uuid) {
            tracing::debug!("{}: {e}", entry.at(dir).display());
        }
    }
}

/// Refuses a disk that the pool has, under any path.
fn refuse_known(dir: &Path, config: &Config, path: &Path) -> Result<()> {
    let path = dir.join(path);
    let real = path.canonicalize().unwrap_or(path);
    let is_it = |entry: &&DiskEntry| {
        let other = entry.at(dir);
        other.canonicalize().is_ok_and(|other| other == real) || exraid::disk::are_same(&other, &real)
    };
    match config.disks.iter().find(is_it) {
        Some(entry) => Err(Error::Pool(format!(
            "{} is a disk of the pool already, as {}: `conquest region list {}` shows its disks",
            real.display(),
            entry.path.display(),
            dir.display()
        ))),
        None => Ok(()),
    }
}

/// Steps 3 and 4 of an addition that was cut short, for regions that the table does not have.
pub fn complete(session: &Session, regions: &[Arc<dyn Region>]) -> Result<()> {
    let Some(log) = Log::open(session, regions, ilfs::Options::default())? else { return Ok(()) };
    let gone = log.gone(session)?;
    let is_known = |number| gone.contains(&number) || log.regions().iter().any(|known| known.number() == number);
    let missing = |region: &&Arc<dyn Region>| !is_known(region.number());
    if regions.iter().any(|region| missing(&region)) {
        let _alone = session.long_lock(ilfs::table::GROWING)?;
        regions.iter().filter(missing).try_for_each(|region| log.add_region(session, region))?;
    }
    Ok(())
}

/// Opens regions that are added later, by `pool.toml` at that time.
pub fn opener(dir: PathBuf, uuid: [u8; 16], agreement: Arc<Agreement>) -> Opener {
    let failure = Mutex::new((None::<Instant>, HashSet::new()));
    Box::new(move |number| {
        let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
        let (failure, reported) = &mut *failure;
        if failure.is_some_and(|since| since.elapsed() < RETRY_AFTER) {
            return None;
        }
        let opened = open_region(&dir, uuid, &agreement, &agreement.options(), number);
        match &opened {
            Ok(Some(_)) => _ = reported.remove(&number),
            // Report it once: opening is tried again and again.
            Err(e) if reported.insert(number) => tracing::warn!("region {number} cannot be opened: {e}"),
            _ => {}
        }
        let region = opened.ok().flatten();
        *failure = region.is_none().then(Instant::now);
        region
    })
}

/// Opens a region, by `pool.toml` and labels; none if no disk has it.
pub fn open_region(
    dir: &Path,
    uuid: [u8; 16],
    agreement: &Arc<Agreement>,
    options: &Options,
    number: u32,
) -> Result<Option<Arc<dyn Region>>> {
    let mut config = read_config(dir)?;
    let looking = Options { read_only: true, ..Options::default() };
    let is_of = |entry: &DiskEntry| {
        let label = Disk::open(&entry.at(dir), &looking).and_then(|disk| Label::read(&disk));
        if let Err(e) = &label {
            tracing::debug!("looking for region {number}: {e}");
        }
        label.is_ok_and(|label| label.pool == Uuid(uuid) && label.region == number)
    };
    config.disks.retain(is_of);
    let sharing = agreement.sharing(dir);
    let mut disks = Gathered::of(dir, &config, uuid, options).assemble(dir, false, With::Sharing(&sharing));
    if let Some(missing) = disks.missing.into_iter().find(|missing| !missing.is_lost) {
        return Err(missing.error);
    }
    match disks.broken.pop() {
        Some(broken) => Err(broken.error),
        None => Ok(disks.regions.pop()),
    }
}
