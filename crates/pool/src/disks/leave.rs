//! Taking regions, each of one disk or several, from a pool that is in use.
//!
//! | step | action | otherwise, after a crash |
//! | --- | --- | --- |
//! | 1 | the regions take no more content, if the other regions have room for theirs | they never get empty |
//! | 2 | their content and the backing on them move, and the commits of that become durable | content is lost with them |
//! | 3 | the table of segments drops the regions; durable | a backing leads there |
//! | 4 | `pool.toml` drops their disks; durable | the pool waits for disks that have another owner by now |
//! | 5 | their own files are removed; given disks lose their labels | |
//! | 6 | all processes close the given disks, once they find that the table has changed | another program finds its disk in use |
//!
//! A removal that is interrupted before step 3 is continued later, by the same command or by maintenance, or cancelled: the regions then
//! take content again. The next opening of the pool completes steps 4 and 5: the table remembers the numbers of removed regions.
//!
//! Force leaves out step 2: content without a replica elsewhere is lost, and reported before.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use exraid::{Disk, Label, OpenError, Options, Uuid};
use pram::Session;

use super::place;
use crate::config::{Config, DiskEntry};
use crate::options::OpenOptions;
use crate::rescue::absent::read_config;
use crate::Pool;
use conquest_fs::error::{Error, Result};
use conquest_fs::fsck::Lost;
use conquest_fs::ubj::Union;
use ilfs::leave::{Course, Leaving};
use ilfs::{table, Log};

/// Times that a removal waits for commits, which other processes may have to end, before it gives up.
const COMMITS: u32 = 100;
const GLANCE: Duration = Duration::from_millis(50);

/// How long a removal waits until other processes close a disk: they look every second.
const CLOSED: Duration = Duration::from_secs(4);

/// What to do with regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Only report how much would have to move.
    Look,
    /// `fewer`: also where files then have fewer replicas than their redundancy says.
    Leave { fewer: bool },
    /// They begin to leave; maintenance moves their content.
    Begin { fewer: bool },
    /// They stay after all.
    Cancel,
    /// Only report what would be lost by force.
    LookForced,
    /// Give them up, with the content that only they have.
    Force,
}

/// A region: by its number, or by one of its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    Number(u32),
    Disk(PathBuf),
}

/// The outcome of [`remove_regions`](crate::Pool::remove_regions).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    Looked(Leaving),
    /// These, all disks of the regions, have left the pool; none: the regions had left before.
    Gone(Vec<PathBuf>),
    /// They take content again.
    Stays,
    /// So much is left to move; a further call or maintenance continues.
    Interrupted(Leaving),
    /// The content that is lost by force, or would be; and the disks that have left the pool.
    Forced(Vec<Lost>, Vec<PathBuf>),
}

/// A region to remove, and its disks.
struct Chosen {
    number: u32,
    entries: Vec<DiskEntry>,
}

/// Takes regions from the pool at `dir`. `go_on` gets the bytes that are left, after each segment, and stops the move with false.
pub fn remove(dir: &Path, which: &[Which], how: How, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Left> {
    let is_forced = matches!(how, How::LookForced | How::Force);
    let pool = Pool::open(dir, &OpenOptions { without_disks: is_forced, ..OpenOptions::default() })?;
    let session = pool.session();
    let config = read_config(dir)?;
    let union = pool.union().ok_or_else(|| Error::Pool("the pool has no log of segments".into()))?;
    let gone = union.log().gone(session)?;
    // A removal that was killed at its end, and is asked for again.
    let is_done = |one: &&Which| matches!(one, Which::Number(number) if gone.contains(number));
    let chosen = which.iter().filter(|one| !is_done(one)).map(|one| find(dir, &config, union.log(), one, &gone));
    let chosen: Vec<Chosen> = chosen.collect::<Result<_>>()?;
    if chosen.is_empty() {
        complete(dir, &config, session)?;
        return Ok(Left::Gone(Vec::new()));
    }
    let numbers: Vec<u32> = chosen.iter().map(|one| one.number).collect();
    let leaving = union.log().leaving(session, &numbers)?;
    match how {
        How::Look => return Ok(Left::Looked(leaving)),
        How::Cancel => {
            union.log().set_leaving(session, &numbers, Course::Stay)?;
            return Ok(Left::Stays);
        }
        How::LookForced | How::Force => return force(&pool, dir, &chosen, how),
        How::Leave { .. } | How::Begin { .. } => {}
    }
    let missing = union.log().out_of_use(session)?;
    if let Some(one) = missing.iter().find(|one| !one.is_there && numbers.contains(&one.number)) {
        return Err(Error::Pool(format!(
            "region {} is not there, and what only it has cannot be moved: attach it, or give up what it has with `--force`, which with \
             `--dry-run` tells what that is",
            one.number
        )));
    }
    // 1.
    let course = match how {
        How::Leave { fewer: true } | How::Begin { fewer: true } => Course::LeaveFewer,
        _ => Course::Leave,
    };
    union.log().set_leaving(session, &numbers, course).map_err(|e| cannot(&names(dir, &chosen), leaving, &e))?;
    if matches!(how, How::Begin { .. }) {
        return Ok(Left::Interrupted(leaving));
    }
    // 2.
    let left = |union: &Union| union.log().leaving(session, &numbers);
    let segment = union.log().segment();
    let is_empty = union.move_leaving(&pool, &mut |moved| {
        let all = leaving.segments.max(1);
        go_on(leaving.live.min((all - moved.min(all)) * segment))
    })?;
    if !is_empty {
        return Ok(Left::Interrupted(left(union)?));
    }
    pool.move_backing_away(&numbers)?;
    // 3.
    for number in &numbers {
        let mut tries = 0;
        while !union.log().remove_region(session, *number)? {
            // Freed segments there wait for commits.
            if tries == COMMITS || left(union)?.segments > 0 {
                return Ok(Left::Interrupted(left(union)?));
            }
            union.end_epoch_and_reclaim(session)?;
            tries += 1;
            std::thread::sleep(GLANCE);
        }
    }
    end(dir, session, &chosen)
}

/// The commit of step 3; then 4, 5 and 6.
fn end(dir: &Path, session: &Session, chosen: &[Chosen]) -> Result<Left> {
    backing::of(session).map_or(Ok(()), |backing| backing.wait(session))?;
    let _alone = session.long_lock(table::GROWING)?;
    let entries: Vec<DiskEntry> = chosen.iter().flat_map(|one| one.entries.clone()).collect();
    forget(dir, &entries)?;
    // 6.
    let given: Vec<PathBuf> = entries.iter().filter(|entry| entry.given).map(|entry| entry.at(dir)).collect();
    wait_until_closed(&given);
    Ok(Left::Gone(entries.iter().map(|entry| entry.at(dir)).collect()))
}

/// Step 6. The wait is short for processes that do not close a disk since they are stopped or have the pool open read-only. A disk that
/// does not answer is not waited for: no process can close it.
fn wait_until_closed(disks: &[PathBuf]) {
    let (began, alone) = (Instant::now(), Options { read_only: true, alone: true, ..Options::default() });
    let is_held = |path: &&PathBuf| matches!(Disk::open(path, &alone), Err(OpenError::Busy { .. }));
    let looking = Options { read_only: true, ..Options::default() };
    let is_late = |path: &PathBuf| matches!(Disk::open(path, &looking), Err(OpenError::Transfer(e)) if e.class == exraid::Class::Timeout);
    let mut held: Vec<&PathBuf> = disks.iter().filter(|path| !is_late(path)).filter(is_held).collect();
    while !held.is_empty() && began.elapsed() < CLOSED {
        std::thread::sleep(GLANCE);
        held.retain(is_held);
    }
    for path in held {
        tracing::warn!("{} is open yet in another process: until that ends it cannot be used again", path.display());
    }
}

/// Step 3 without 2, and the steps after it.
fn force(pool: &Pool, dir: &Path, chosen: &[Chosen], how: How) -> Result<Left> {
    let (session, Some(union)) = (pool.session(), pool.union()) else { return Ok(Left::Stays) };
    for one in chosen {
        union.log().ignore(session, one.number)?;
    }
    if how == How::Force {
        // Content in memory is not lost.
        union.redirty_doubtful(pool)?;
    }
    let lost = pool.lost()?;
    if how == How::LookForced {
        return Ok(Left::Forced(lost, Vec::new()));
    }
    if let Some(duplex) = &pool.duplex {
        // Nothing more is written there; the whole copy lies elsewhere.
        for one in chosen.iter().filter(|one| duplex.members().iter().any(|member| member.region == one.number)) {
            let away = duplex.put_away(one.number);
            away.map_err(|e| {
                Error::Pool(format!("region {} has the only whole copy of the pool's backing: {e}", one.number))
            })?;
        }
        pool.move_backing_away(&chosen.iter().map(|one| one.number).collect::<Vec<_>>())?;
    }
    // Where the memory was made anew, read from the other disks what it lacks, before anything is written there.
    union.log().put_in_order(session)?;
    for one in chosen {
        let mut tries = 0;
        let give_up = || {
            // Until the slots of lost content are given up, no cleaner fills one.
            let _alone = session.long_lock(table::CLEANING)?;
            let given_up = union.log().give_up_region(session, one.number);
            given_up.map_err(|e| cannot(&names(dir, chosen), Leaving::default(), &e))
        };
        while !give_up()? {
            // Freed segments there wait for commits.
            union.end_epoch_and_reclaim(session)?;
            tries += 1;
            if tries > COMMITS {
                let why = "what was freed there waits for a commit that does not end; try again";
                return Err(Error::Pool(format!("region {} cannot be given up yet: {why}", one.number)));
            }
            std::thread::sleep(GLANCE);
        }
    }
    // Blocks that came into memory meanwhile, before their segment was given up.
    union.redirty_cached(pool, &mut |place| Ok(union.log().is_in_doubt(session, place, &[])?))?;
    match end(dir, session, chosen)? {
        Left::Gone(paths) => Ok(Left::Forced(lost, paths)),
        left => Ok(left),
    }
}

/// Steps 3 to 5 for regions that leave and are empty by now, for maintenance.
pub fn complete_empty(dir: &Path, union: &Union, session: &Session) -> Result<()> {
    for number in union.log().leavers(session)? {
        if union.log().remove_region(session, number)? {
            backing::of(session).map_or(Ok(()), |backing| backing.wait(session))?;
            complete(dir, &read_config(dir)?, session)?;
        }
    }
    Ok(())
}

/// Steps 4 and 5.
fn forget(dir: &Path, entries: &[DiskEntry]) -> Result<()> {
    let mut config = read_config(dir)?;
    let uuid = config.uuid_bytes()?;
    config.disks.retain(|other| entries.iter().all(|entry| other.path != entry.path));
    // 4.
    config.write(dir)?;
    // 5. A lost disk has no file or label to remove.
    for entry in entries {
        if let Err(e) = place::remove(dir, entry, uuid) {
            match label(dir, entry).is_some() {
                true => return Err(e),
                false => tracing::warn!("{}: {e}", entry.at(dir).display()),
            }
        }
    }
    Ok(())
}

/// Completes steps 4 and 5 of a removal that was cut short.
pub fn complete(dir: &Path, config: &Config, session: &Session) -> Result<()> {
    let Some(log) = Log::open(session, &[], ilfs::Options::default())? else { return Ok(()) };
    let gone = log.gone(session)?;
    if gone.is_empty() {
        return Ok(());
    }
    let uuid = Uuid(config.uuid_bytes()?);
    // A disk whose file was deleted has no label any more.
    let number = |entry: &DiskEntry| match label(dir, entry) {
        Some(label) => (label.pool == uuid).then_some(label.region),
        None => entry.region.filter(|_| !entry.at(dir).exists()),
    };
    let is_gone = |entry: &&DiskEntry| number(entry).is_some_and(|number| gone.contains(&number));
    let left: Vec<DiskEntry> = config.disks.iter().filter(is_gone).cloned().collect();
    if left.is_empty() {
        return Ok(());
    }
    let _alone = session.long_lock(table::GROWING)?;
    forget(dir, &left)
}

fn label(dir: &Path, entry: &DiskEntry) -> Option<Label> {
    let options = Options { read_only: true, ..Options::default() };
    Disk::open(&entry.at(dir), &options).and_then(|disk| Label::read(&disk)).ok()
}

/// Writes into `pool.toml` the region of each disk for which an older version has left that out, while its label can be read: without
/// either, several unreadable disks cannot be told apart.
pub fn note_regions(dir: &Path, config: &Config, session: &Session) -> Result<()> {
    let uuid = Uuid(config.uuid_bytes()?);
    let number = |entry: &DiskEntry| label(dir, entry).filter(|label| label.pool == uuid).map(|label| label.region);
    if !config.disks.iter().any(|entry| entry.region.is_none() && number(entry).is_some()) {
        return Ok(());
    }
    let _alone = session.long_lock(table::GROWING)?;
    let mut config = read_config(dir)?;
    for entry in config.disks.iter_mut().filter(|entry| entry.region.is_none()) {
        entry.region = number(entry);
    }
    config.write(dir)
}

/// The number of the region of a disk: from its label, else from `pool.toml`; else the only region of which no disk can be read.
pub(super) fn number_of(dir: &Path, config: &Config, log: &Log, entry: &DiskEntry) -> Option<u32> {
    if let Some(number) = label(dir, entry).map(|label| label.region).or(entry.region) {
        return Some(number);
    }
    let known: Vec<u32> = config.disks.iter().filter_map(|other| label(dir, other)).map(|label| label.region).collect();
    let there: Vec<u32> = log.regions().iter().map(|region| region.number()).collect();
    let missing: Vec<u32> = log.numbers().into_iter().filter(|number| !there.contains(number)).collect();
    match missing.iter().filter(|number| !known.contains(number)).collect::<Vec<_>>()[..] {
        [number] => Some(*number),
        _ => None,
    }
}

/// A region, and its disks.
fn find(dir: &Path, config: &Config, log: &Log, which: &Which, gone: &[u32]) -> Result<Chosen> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.into());
    let number = match which {
        Which::Number(number) => Some(*number).filter(|number| log.numbers().contains(number)),
        Which::Disk(path) => {
            let found = config.disks.iter().find(|entry| real(&entry.at(dir)) == real(path));
            found.and_then(|entry| number_of(dir, config, log, entry))
        }
    };
    let Some(number) = number else {
        let shown = match which {
            Which::Number(number) => format!("region {number} is none of the pool"),
            Which::Disk(path) if !gone.is_empty() => format!(
                "{} is no disk of the pool: if it was one and its removal was interrupted, that is done by now",
                path.display()
            ),
            Which::Disk(path) => format!("{} is no disk of the pool that is known", path.display()),
        };
        return Err(Error::Pool(format!(
            "{shown}: `conquest region list {}` shows its regions and disks, each with a number",
            dir.display()
        )));
    };
    // A missing disk of a degraded region leaves the pool with its region.
    let is_of = |entry: &&DiskEntry| number_of(dir, config, log, entry) == Some(number);
    Ok(Chosen { number, entries: config.disks.iter().filter(is_of).cloned().collect() })
}

fn names(dir: &Path, chosen: &[Chosen]) -> String {
    let name = |one: &Chosen| match &one.entries[..] {
        [] => format!("region {}", one.number),
        [entry, ..] => entry.at(dir).display().to_string(),
    };
    chosen.iter().map(name).collect::<Vec<_>>().join(" and ")
}

fn cannot(names: &str, leaving: Leaving, e: &ilfs::Error) -> Error {
    match e {
        ilfs::Error::NoSpace => Error::Pool(format!(
            "{names}: {} MiB are to be moved, and the other disks have room for {} MiB: remove files, or give the pool another disk first \
             (`conquest region add`)",
            leaving.live >> 20,
            leaving.room >> 20
        )),
        ilfs::Error::TooFewDomains { bytes, domains } => Error::Pool(format!(
            "{names}: {} MiB of content would have fewer replicas than it is to have, {domains} at most: give the pool another disk first \
             (`conquest region add`), or allow that with `--reduce-replicas`",
            bytes.div_ceil(1 << 20)
        )),
        e => Error::Pool(format!("{names} cannot be taken from the pool: {e}")),
    }
}
