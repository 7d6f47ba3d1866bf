//! Taking a disk, or a region of several, from a pool that is in use.
//!
//! | step | what | else, after a crash |
//! | --- | --- | --- |
//! | 1 | its region takes no more content, if what it has fits elsewhere | it never gets empty |
//! | 2 | what it has is moved; the commits of that are durable | content is lost with it |
//! | 3 | the table of segments has no such region any more; durable | a copy of the memory leads there |
//! | 4 | `pool.toml` names its disks no more; durable | the pool waits for disks that are another's by now |
//! | 5 | its files are removed; of disks that were given the labels | |
//!
//! Who is interrupted before step 3 goes on later, or has the region take content again. What is left of steps 4 and 5 whoever opens the
//! pool does: the table remembers the number of a region that is gone.

use std::path::{Path, PathBuf};

use exraid::{Disk, Label, Options, Uuid};
use pram::Session;

use super::place;
use crate::error::{Error, Result};
use crate::ilfs::leave::Leaving;
use crate::ilfs::{self, table, Log};
use crate::pool::config::{Config, DiskEntry};
use crate::pool::options::OpenOptions;
use crate::pool::{read_config, Pool};
use crate::ubj::Union;

/// What is to become of a disk that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is only told what that takes.
    Look,
    Leave,
    /// It stays after all.
    Cancel,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    Looked(Leaving),
    /// These, all of its region, are no disks of the pool any more.
    Gone(Vec<PathBuf>),
    /// It takes content again.
    Stays,
    /// So much is left; it goes on when it is asked for again.
    Interrupted(Leaving),
}

/// Takes the region of the disk at `path` from the pool at `dir`. `go_on` is told the bytes that are left, after each segment.
pub fn remove(dir: &Path, path: &Path, how: How, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Left> {
    let pool = Pool::open(dir, &OpenOptions::default())?;
    let session = pool.session();
    let config = read_config(dir)?;
    let (entries, number) = find(dir, &config, path)?;
    let union = pool.union().ok_or_else(|| Error::Pool("the pool has no log of segments".into()))?;
    let told = union.log().leaving(session, &[number])?;
    match how {
        How::Look => return Ok(Left::Looked(told)),
        How::Cancel => {
            union.log().set_leaving(session, number, false)?;
            return Ok(Left::Stays);
        }
        How::Leave => {}
    }
    // 1.
    union.log().set_leaving(session, number, true).map_err(|e| cannot(path, told, &e))?;
    // 2.
    let left = |union: &Union| union.log().leaving(session, &[number]);
    let segment = union.log().segment();
    let is_empty = union.move_leaving(&pool, &mut |moved| {
        let all = told.segments.max(1);
        go_on(told.live.min((all - moved.min(all)) * segment))
    })?;
    if !is_empty {
        return Ok(Left::Interrupted(left(union)?));
    }
    // 3.
    if !union.log().remove_region(session, number)? {
        return Ok(Left::Interrupted(left(union)?));
    }
    session.copy().map_or(Ok(()), |copy| copy.wait(session))?;
    let _alone = session.long_lock(table::GROWING)?;
    forget(dir, &entries)?;
    Ok(Left::Gone(entries.iter().map(|entry| entry.at(dir)).collect()))
}

/// Steps 4 and 5.
fn forget(dir: &Path, entries: &[DiskEntry]) -> Result<()> {
    let mut config = read_config(dir)?;
    let uuid = config.uuid_bytes()?;
    config.disks.retain(|other| entries.iter().all(|entry| other.path != entry.path));
    // 4.
    config.write(dir)?;
    // 5.
    entries.iter().try_for_each(|entry| place::remove(dir, entry, uuid))
}

/// Steps 4 and 5 of a removal that was cut short.
pub fn complete(dir: &Path, config: &Config, session: &Session) -> Result<()> {
    let Some(log) = Log::open(session, &[], ilfs::Options::default())? else { return Ok(()) };
    let gone = log.gone(session)?;
    if gone.is_empty() {
        return Ok(());
    }
    let uuid = Uuid(config.uuid_bytes()?);
    let is_gone =
        |entry: &&DiskEntry| label(dir, entry).is_some_and(|label| label.pool == uuid && gone.contains(&label.region));
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

/// The disks of the region that the disk at that path is of, and its number.
fn find(dir: &Path, config: &Config, path: &Path) -> Result<(Vec<DiskEntry>, u32)> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.into());
    let found = config.disks.iter().find(|entry| real(&entry.at(dir)) == real(path));
    let told = found.and_then(|entry| Some((entry, label(dir, entry)?.region)));
    let number = told.map(|(_, number)| number);
    let is_of = |entry: &&DiskEntry| label(dir, entry).map(|label| label.region) == number;
    // A disk that is missing, of a region that does without it, is no disk of the pool either when the region is gone.
    number.map(|number| (config.disks.iter().filter(is_of).cloned().collect(), number)).ok_or_else(|| {
        Error::Pool(format!(
            "{} is no disk of the pool that is there: `conquest region list {}` shows its disks",
            path.display(),
            dir.display()
        ))
    })
}

fn cannot(path: &Path, told: Leaving, e: &ilfs::Error) -> Error {
    match e {
        ilfs::Error::NoSpace => Error::Pool(format!(
            "{} holds {} MiB, and the other disks have room for {} MiB: remove files, or give the pool another disk first \
             (`conquest region add`)",
            path.display(),
            told.live >> 20,
            told.room >> 20
        )),
        e => Error::Pool(format!("{} cannot be taken from the pool: {e}", path.display())),
    }
}
