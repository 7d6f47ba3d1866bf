//! Making a pool from its disks alone: its directory and its memory are lost, and its backing lies in regions.
//!
//! | step | action | otherwise, after a crash |
//! | --- | --- | --- |
//! | 1 | labels identify the pool, and notes beside them the backing; all of it is read | a pool that cannot be opened is half made |
//! | 2 | the file `image`, whose locks tell which processes use the pool; durable | two processes could make memory of it |
//! | 3 | `pool.toml`; durable: there is a pool | |
//!
//! The notes also have the text of `pool.toml`, so that settings stay, and missing disks are named.

use std::fs;
use std::path::{Path, PathBuf};

use exraid::duplex;
use exraid::duplex::presence::Presence;
use exraid::{Device, Disk, Label, Options, Uuid};

use super::reconcile::{Ask, Incomplete};
use super::{import, relocate, Builder};
use crate::backing::regions;
use crate::config::{Config, DiskEntry};
use crate::disks::gather::{Gathered, With};
use crate::disks::lease;
use crate::medium::MediumKind;
use crate::paths::{self, IMAGE};
use crate::uuid;
use conquest_fs::error::{Error, Result};

/// A pool that was made from its disks.
#[derive(Clone, Debug)]
pub struct FromDisks {
    /// The instant of its state, in nanoseconds since the epoch.
    pub as_of: i64,
    /// Missing regions that have a copy of the backing too: if they were written later, their copy is newer.
    pub missing: Vec<u32>,
    /// Disks in `pool.toml` that the caller did not name.
    pub absent: Vec<PathBuf>,
}

/// Makes the pool at `dir` from these disks.
pub fn make(dir: &Path, disks: &[PathBuf], ask: Ask) -> Result<FromDisks> {
    let _alone = Builder::begin(dir)?;
    refuse_there(dir)?;
    // 1.
    let found: Vec<Found> = disks.iter().map(|path| look_at(path)).collect::<Result<_>>()?;
    let pool = one_pool(&found)?;
    if let Some(used) = found.iter().find(|disk| Presence::is_taken(&disk.path).unwrap_or(false)) {
        return Err(Error::Pool(format!(
            "{} is a disk of a pool that is in use, whose backing lies there: unmount that first (`conquest list` shows it)",
            used.path.display()
        )));
    }
    for disk in &found {
        lease::is_to_be_taken(dir, pool.0, &disk.path, &disk.label.lease)?;
    }
    let config = configure(dir, &found, pool)?;
    let members = regions::look(dir, &config)?.duplex.members();
    // 2.
    relocate::write_stub(dir)?;
    let is_named = |entry: &&DiskEntry| !found.iter().any(|disk| disk.path == entry.at(dir));
    let absent: Vec<PathBuf> = config.disks.iter().filter(is_named).map(|entry| entry.at(dir)).collect();
    // Content on a missing disk is not lost: the pool is read-only until the disk is there.
    let mut wait = |lost: &Incomplete| if absent.is_empty() { ask(lost) } else { Ok(()) };
    let made = import::import(dir, &config, &mut |_, _| {}, &mut wait).and_then(|as_of| {
        // 3.
        config.write(dir).map(|()| as_of)
    });
    if made.is_err() {
        let _ = fs::remove_file(dir.join(IMAGE));
    }
    Ok(FromDisks {
        as_of: made?,
        missing: members.iter().filter(|member| !member.is_there).map(|member| member.region).collect(),
        absent,
    })
}

fn refuse_there(dir: &Path) -> Result<()> {
    let shown = dir.display();
    if dir.join(paths::CONFIG).exists() {
        return Err(Error::Pool(format!(
            "there is a pool at {shown} already, and its {} names its disks: `conquest import {shown}` makes its memory anew; or choose \
             another directory",
            paths::CONFIG
        )));
    }
    match paths::has_backing_files(dir) && !relocate::is_elsewhere(dir) {
        true => Err(Error::Pool(format!(
            "{shown} has files of a backing in it: `conquest import {shown}` makes a pool of them; or choose another directory"
        ))),
        false => Ok(()),
    }
}

struct Found {
    path: PathBuf,
    label: Label,
    is_file: bool,
}

fn look_at(path: &Path) -> Result<Found> {
    let options = Options { read_only: true, threads: true, ..Options::default() };
    let real = path.canonicalize().unwrap_or_else(|_| path.into());
    let refused = |e: exraid::OpenError| Error::Pool(format!("{e}: name disks of one pool, whole"));
    let disk = Disk::open(&real, &options).map_err(refused)?;
    let label = Label::read(&disk).map_err(refused)?;
    Ok(Found { is_file: disk.properties().sparse, path: real, label })
}

fn one_pool(found: &[Found]) -> Result<Uuid> {
    let Some(first) = found.first() else { return Err(Error::Pool("no disk is named".into())) };
    match found.iter().find(|disk| disk.label.pool != first.label.pool) {
        Some(other) => Err(Error::Pool(format!(
            "{} is a disk of the pool {}, and {} of {}: name the disks of one pool",
            first.path.display(),
            first.label.pool,
            other.path.display(),
            other.label.pool
        ))),
        None => Ok(first.label.pool),
    }
}

/// The `pool.toml` of the pool: from the notes, with the present paths of the named disks. Disks that are not named keep their paths.
fn configure(dir: &Path, found: &[Found], pool: Uuid) -> Result<Config> {
    let entry = |disk: &Found| DiskEntry {
        path: disk.path.clone(),
        size: disk.is_file.then_some(disk.label.size),
        given: true,
        region: Some(disk.label.region),
    };
    let mut config = Config::new(MediumKind::Logged, uuid::text(&pool.0));
    config.disks = found.iter().map(entry).collect();
    let options = Options { read_only: true, threads: true, ..Options::default() };
    let disks = Gathered::of(dir, &config, pool.0, &options).assemble(dir, true, With::Nobody);
    let found_duplex = duplex::look(&disks.regions).map_err(|e| no_backing(found, &disks, dir, &e))?;
    let noted = std::str::from_utf8(&found_duplex.said.extra).ok().and_then(Config::from_text);
    let Some(noted) = noted.filter(|noted| noted.uuid_bytes().is_ok_and(|uuid| uuid == pool.0)) else {
        config.backing_in_regions = true;
        return Ok(config);
    };
    let mut rest = found.iter().map(|disk| disk.label.region).collect::<Vec<_>>();
    // A named disk is a noted disk of its region: that of its path, if there is one.
    let mut absent: Vec<DiskEntry> = noted.disks.iter().filter(|old| !is_found(old, found)).cloned().collect();
    for old in noted.disks.iter().filter(|old| is_found(old, found)) {
        if let Some(at) = rest.iter().position(|region| Some(*region) == old.region) {
            rest.remove(at);
        }
    }
    absent.retain(|old| match rest.iter().position(|region| Some(*region) == old.region) {
        Some(at) => {
            rest.remove(at);
            false
        }
        None => old.region.is_some(),
    });
    // The pool's own disks in the lost directory are lost with it.
    absent.iter_mut().for_each(|old| old.given = true);
    let disks = config.disks.into_iter().chain(absent).collect();
    Ok(Config {
        medium: MediumKind::Logged,
        nvram: None,
        backing: None,
        mirror: false,
        backing_in_regions: true,
        disks,
        ..noted
    })
}

fn is_found(old: &DiskEntry, found: &[Found]) -> bool {
    let real = old.path.canonicalize().unwrap_or_else(|_| old.path.clone());
    found.iter().any(|disk| disk.path == real && Some(disk.label.region) == old.region)
}

fn no_backing(found: &[Found], disks: &crate::disks::Disks, dir: &Path, e: &duplex::Refusal) -> Error {
    let names: Vec<String> = found.iter().map(|disk| disk.path.display().to_string()).collect();
    match e {
        duplex::Refusal::None => Error::Pool(format!(
            "{}: no backing of the pool lies there: it was kept in the pool's directory, or in a region whose disk is not named. \
             `conquest salvage` finds content of large files",
            names.join(" and ")
        )),
        e => regions::refused(dir, disks, e),
    }
}
