//! Taking regions, each of one disk or several, from a pool that is in use.
//!
//! | step | what | else, after a crash |
//! | --- | --- | --- |
//! | 1 | the regions take no more content, if what they have fits elsewhere | they never get empty |
//! | 2 | what they have is moved, and the backing that lies there; the commits of that are durable | content is lost with them |
//! | 3 | the table of segments has no such regions any more; durable | a backing leads there |
//! | 4 | `pool.toml` names their disks no more; durable | the pool waits for disks that are another's by now |
//! | 5 | their files are removed; of disks that were given the labels | |
//! | 6 | all who have the pool open have let go of the disks that were given, as they find that the table has changed | who uses one for something else finds it in use |
//!
//! Who is interrupted before step 3 goes on later, or has the regions take content again; so does whoever sees to background work. What is
//! left of steps 4 and 5 whoever opens the pool does: the table remembers the numbers of regions that are gone.
//!
//! By force step 2 is left out: what has no copy elsewhere is lost, and reported before.

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

/// How long a commit is waited for that others have to end, by whoever gives a region up.
const COMMITS: u32 = 100;
const GLANCE: Duration = Duration::from_millis(50);

/// How long it is waited for that others let go of a disk: they look every second.
const CLOSED: Duration = Duration::from_secs(4);

/// What is to become of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Only report what that takes.
    Look,
    /// `fewer`: also where content has fewer copies then than it is to have.
    Leave { fewer: bool },
    /// They begin to leave; whoever sees to background work moves what they have.
    Begin { fewer: bool },
    /// They stay after all.
    Cancel,
    /// Only report what would be lost by force.
    LookForced,
    /// They are given up with what they alone have.
    Force,
}

/// A region: by its number, or as that of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    Number(u32),
    Disk(PathBuf),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    Looked(Leaving),
    /// These, all of their regions, are no disks of the pool any more; none: the regions had gone before.
    Gone(Vec<PathBuf>),
    /// They take content again.
    Stays,
    /// So much is left; it goes on when it is asked for again, and in the background.
    Interrupted(Leaving),
    /// What is lost by force, or would be; and the disks that are none of the pool any more.
    Forced(Vec<Lost>, Vec<PathBuf>),
}

/// A region that is taken away, and the disks that it is.
struct Chosen {
    number: u32,
    entries: Vec<DiskEntry>,
}

/// Takes regions from the pool at `dir`. `go_on` gets the bytes that are left, after each segment.
pub fn remove(dir: &Path, which: &[Which], how: How, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Left> {
    let is_forced = matches!(how, How::LookForced | How::Force);
    let pool = Pool::open(dir, &OpenOptions { without_disks: is_forced, ..OpenOptions::default() })?;
    let session = pool.session();
    let config = read_config(dir)?;
    let union = pool.union().ok_or_else(|| Error::Pool("the pool has no log of segments".into()))?;
    let gone = union.log().gone(session)?;
    // Who was killed at the end of it, and asks again.
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
            // What was freed there waits for commits.
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

/// The commit of step 3, 4 and 5.
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

/// Step 6. Who does not let go, since he has the pool open for reading alone or is stopped, is not waited for long; nor is a disk that does
/// not answer, which nobody can let go.
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

/// Step 3, without 2, and what follows it.
fn force(pool: &Pool, dir: &Path, chosen: &[Chosen], how: How) -> Result<Left> {
    let (session, Some(union)) = (pool.session(), pool.union()) else { return Ok(Left::Stays) };
    for one in chosen {
        union.log().ignore(session, one.number)?;
    }
    if how == How::Force {
        // What memory holds is not lost.
        union.redirty_doubtful(pool)?;
    }
    let lost = pool.lost()?;
    if how == How::LookForced {
        return Ok(Left::Forced(lost, Vec::new()));
    }
    if let Some(duplex) = &pool.duplex {
        // Nothing more is written there; what has all is elsewhere.
        for one in chosen.iter().filter(|one| duplex.members().iter().any(|member| member.region == one.number)) {
            let away = duplex.put_away(one.number);
            away.map_err(|e| {
                Error::Pool(format!("region {} has the only whole copy of the pool's backing: {e}", one.number))
            })?;
        }
        pool.move_backing_away(&chosen.iter().map(|one| one.number).collect::<Vec<_>>())?;
    }
    // Where the memory was made anew: what the other disks have of it is looked for before anything is written there.
    union.log().put_in_order(session)?;
    for one in chosen {
        let mut tries = 0;
        let give_up = || {
            // Nobody fills a slot meanwhile that is given up with what is lost.
            let _alone = session.long_lock(table::CLEANING)?;
            let given_up = union.log().give_up_region(session, one.number);
            given_up.map_err(|e| cannot(&names(dir, chosen), Leaving::default(), &e))
        };
        while !give_up()? {
            // What was freed there waits for commits.
            union.end_epoch_and_reclaim(session)?;
            tries += 1;
            if tries > COMMITS {
                let why = "what was freed there waits for a commit that does not end; try again";
                return Err(Error::Pool(format!("region {} cannot be given up yet: {why}", one.number)));
            }
            std::thread::sleep(GLANCE);
        }
    }
    // What came into memory meanwhile, before its segment was given up.
    union.redirty_cached(pool, &mut |place| Ok(union.log().is_in_doubt(session, place, &[])?))?;
    match end(dir, session, chosen)? {
        Left::Gone(paths) => Ok(Left::Forced(lost, paths)),
        left => Ok(left),
    }
}

/// Steps 2 to 5 for regions that leave and are empty by now: by whoever sees to background work.
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
    // 5. One that is lost has nothing to be removed.
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

/// Steps 4 and 5 of a removal that was cut short.
pub fn complete(dir: &Path, config: &Config, session: &Session) -> Result<()> {
    let Some(log) = Log::open(session, &[], ilfs::Options::default())? else { return Ok(()) };
    let gone = log.gone(session)?;
    if gone.is_empty() {
        return Ok(());
    }
    let uuid = Uuid(config.uuid_bytes()?);
    // Of one whose file was deleted there is no label any more.
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

/// Has `pool.toml` tell of each disk which region it is of, where an older version has left that out and the label can be read: once
/// it cannot, nothing else tells several of them apart.
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

/// The number of the region that a disk is of: as its label tells, or, where that cannot be read, `pool.toml`; or it is the only one of
/// which no disk can be read.
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
    // A disk that is missing, of a region that does without it, is no disk of the pool either when the region is gone.
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
            "{names}: {} MiB of content would have fewer copies than it is to have, {domains} at most: give the pool another disk first \
             (`conquest region add`), or allow that with `--reduce-copies`",
            bytes.div_ceil(1 << 20)
        )),
        e => Error::Pool(format!("{names} cannot be taken from the pool: {e}")),
    }
}
