//! The disks of a pool: files or block devices that hold content beside the persistent RAM.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | opening them; what is wrong with one, and what to do |
//! | [`plan`] | what is to become a disk: whether it can, how large it will be |
//! | [`place`] | making them beside what is there; taking their places; removing them |
//! | [`add`] | the first disk of a pool that has none |
//! | [`grow`] | a further one, for a pool in use |
//! | [`leave`] | taking one away, from a pool in use |
//! | [`remains`] | content from the disks alone, where the memory is lost |
//! | [`look`] | what `status` and `region list` tell of them |
//!
//! `pool.toml` names them, and each carries in its label the pool's UUID, by which it is known. A disk is either the
//! pool's own, a file that was made with it and goes with it, or *given*: a device, or a file that was there before. That
//! one outlives the pool, which writes nothing to it but between and into its labels.
//!
//! ```text
//! pool.toml --path--> disk --label--> region --> ilfs::Log
//! ```
//!
//! For now each disk is a region of its own; what is here takes regions of any layout.

pub mod add;
pub mod grow;
#[cfg(test)]
mod growing;
pub mod leave;
pub mod look;
pub mod place;
pub mod plan;
pub mod remains;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exraid::disk::what_is_on;
use exraid::{Device, Disk, Label, OpenError, Options, Region, Uuid};
use pram::Session;

use super::config::{Config, DiskEntry};
use super::paths::{CONFIG, DISK};
use super::uuid;
use crate::error::{Error, Result};
use crate::ilfs::{self, Log};

/// Segments that a log has if it can: with fewer of them the cleaner has little to choose from.
const MANY_SEGMENTS: u64 = 64;

/// The disks that a process has open.
#[derive(Default)]
pub struct Disks {
    pub regions: Vec<Arc<dyn Region>>,
    /// Those that could not be opened, and why, where the pool goes on without them.
    pub missing: Vec<(PathBuf, String)>,
}

impl Disks {
    /// Opens those of the pool at `dir`; without any that cannot be opened if `tolerant`.
    ///
    /// # Errors
    /// [`Error::Pool`] for a disk that cannot be used; the text says what to do.
    pub fn open(dir: &Path, config: &Config, session: &Session, tolerant: bool) -> Result<Disks> {
        if config.disks.is_empty() {
            return Ok(Disks::default());
        }
        let (uuid, held) = (config.uuid_bytes()?, session.transfer_lock()?);
        match tolerant {
            true => Ok(Disks::open_some(dir, config, uuid, &Options { held, ..Options::default() })),
            false => Ok(Disks { regions: open(dir, config, uuid, held)?, missing: Vec::new() }),
        }
    }

    /// Opens those that can be opened, to look at them.
    pub fn open_to_look(dir: &Path, config: &Config) -> Result<Disks> {
        let options = Options { read_only: true, ..Options::default() };
        Ok(Disks::open_some(dir, config, config.uuid_bytes()?, &options))
    }

    fn open_some(dir: &Path, config: &Config, uuid: [u8; 16], options: &Options) -> Disks {
        let mut missing = Vec::new();
        let mut found = Vec::new();
        for (entry, opened) in open_each(dir, config, uuid, options) {
            match opened {
                Ok(disk) => found.push(disk),
                Err(e) => missing.push((entry.at(dir), e.to_string())),
            }
        }
        let mut regions = Vec::new();
        for (path, region) in assemble(dir, found) {
            match region {
                Ok(region) => regions.push(region),
                Err(e) => missing.push((path, e.to_string())),
            }
        }
        Disks { regions, missing }
    }
}

/// Opens the disks of the pool at `dir`, which has this UUID, and the regions that they are, by number. `held` is the
/// file that whoever transfers blocks keeps open ([`Session::transfer_lock`]).
///
/// # Errors
/// [`Error::Pool`] for a disk that is missing, another's, in use, cut short or not permitted; the text says what to do.
pub(crate) fn open(
    dir: &Path,
    config: &Config,
    uuid: [u8; 16],
    held: Option<Arc<OwnedFd>>,
) -> Result<Vec<Arc<dyn Region>>> {
    let found: Vec<Opened> = open_each(dir, config, uuid, &Options { held, ..Options::default() })
        .into_iter()
        .map(|(_, opened)| opened)
        .collect::<Result<_>>()?;
    assemble(dir, found).into_iter().map(|(_, region)| region).collect()
}

/// A disk, where it lies, and the number of its region.
type Opened = (PathBuf, u32, Arc<dyn Device>);

fn open_each<'c>(
    dir: &Path,
    config: &'c Config,
    uuid: [u8; 16],
    options: &Options,
) -> Vec<(&'c DiskEntry, Result<Opened>)> {
    let open = |entry| (entry, open_one(dir, entry, uuid, options));
    config.disks.iter().map(open).collect()
}

fn open_one(dir: &Path, entry: &DiskEntry, uuid: [u8; 16], options: &Options) -> Result<Opened> {
    let path = entry.at(dir);
    let opened = Disk::open(&path, options).and_then(|disk| Label::read(&disk).map(|label| (disk, label)));
    let (disk, label) = opened.map_err(|e| cannot_use(dir, &e))?;
    if label.pool != Uuid(uuid) {
        return Err(Error::Pool(format!(
            "{} is a disk of the pool {}, not of this one ({}): put the right one there, or correct the path in {}",
            path.display(),
            label.pool,
            uuid::text(&uuid),
            dir.join(CONFIG).display()
        )));
    }
    Ok((path, label.region, Arc::new(disk)))
}

/// The regions that disks are, with the path of one disk of each.
fn assemble(dir: &Path, disks: Vec<Opened>) -> Vec<(PathBuf, Result<Arc<dyn Region>>)> {
    let mut regions = BTreeMap::<u32, (PathBuf, Vec<Arc<dyn Device>>)>::new();
    for (path, number, device) in disks {
        regions.entry(number).or_insert_with(|| (path, Vec::new())).1.push(device);
    }
    let open = |(path, devices)| (path, exraid::region::open(devices).map_err(|e| cannot_use(dir, &e)));
    regions.into_values().map(open).collect()
}

/// Why a disk of the pool at `dir` cannot be used, and what to do.
fn cannot_use(dir: &Path, e: &OpenError) -> Error {
    let toml = dir.join(CONFIG);
    let give_up = format!(
        "if it is lost for good, take its [[disk]] out of {}: the pool opens then, without what only the disk held",
        toml.display()
    );
    let what_to_do = match e {
        OpenError::Missing(_) => format!("attach it, or correct its path there; {give_up}"),
        OpenError::Permission(_) => "open the pool as the owner of its disks".into(),
        OpenError::ReadOnly(_) => "make it writable".into(),
        OpenError::Unlabelled { path, .. } => {
            let found = File::open(path).ok().and_then(|file| what_is_on(path, &file).ok()?);
            let found = found.map(|found| format!(" (it holds {found})")).unwrap_or_default();
            format!("it is not the pool's disk, or was overwritten{found}; put the right one there; {give_up}")
        }
        OpenError::TooSmall { .. } => format!("it was cut short; put a whole copy of it there; {give_up}"),
        OpenError::Unusable { .. } | OpenError::Mismatch { .. } | OpenError::Unsuitable { .. } => {
            format!("put the pool's disk there, whole; {give_up}")
        }
        // It says itself what to do, or nothing is known.
        _ => return Error::Pool(format!("the pool's disk cannot be used: {e}")),
    };
    Error::Pool(format!("the pool's disk cannot be used: {e}: {what_to_do}"))
}

/// Gives a pool its log on these regions, its first disks; with segments of so many bytes, if not the usual.
pub fn make_log(session: &Session, regions: &[Arc<dyn Region>], segment: Option<u64>) -> Result<()> {
    match regions.is_empty() {
        true => Ok(()),
        false => Ok(Log::format(session, regions, segment.unwrap_or_else(|| segment_for(regions)))?),
    }
}

/// Gives a pool its log where making it was interrupted before that.
pub fn make_log_if_none(session: &Session, regions: &[Arc<dyn Region>], segment: Option<u64>) -> Result<()> {
    if regions.is_empty() || has_log(session)? {
        return Ok(());
    }
    match make_log(session, regions, segment) {
        // Another one was faster.
        Err(_) if has_log(session)? => {}
        made => made?,
    }
    session.copy().map_or(Ok(()), |copy| Ok(copy.wait(session)?))
}

/// Has the pool content on disks, or had it once?
pub fn has_log(session: &Session) -> Result<bool> {
    Ok(Log::open(session, &[], ilfs::Options::default())?.is_some())
}

/// Bytes of a segment: the usual, or fewer where the log would have few.
fn segment_for(regions: &[Arc<dyn Region>]) -> u64 {
    let all: u64 = regions.iter().map(|region| region.properties().size).sum();
    let mut segment = ilfs::SEGMENT;
    while all / segment < MANY_SEGMENTS && segment > *ilfs::SEGMENTS.start() {
        segment /= 2;
    }
    segment
}

/// The disk that lies in the directory of a pool whose `pool.toml` is gone, if it is that pool's.
pub fn adopted(dir: &Path, uuid: [u8; 16]) -> Vec<DiskEntry> {
    let options = Options { read_only: true, ..Options::default() };
    let label = Disk::open(&dir.join(DISK), &options).and_then(|disk| Label::read(&disk));
    let is_its = label.as_ref().is_ok_and(|label| label.pool == Uuid(uuid));
    let entry = |label: Label| DiskEntry { path: DISK.into(), size: Some(label.size), given: false };
    label.ok().filter(|_| is_its).map(entry).into_iter().collect()
}
