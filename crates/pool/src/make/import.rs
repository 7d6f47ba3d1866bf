//! Making a pool from its backing alone.

use backing::log::Identity;
use std::fs;
use std::path::{Path, PathBuf};

use super::reconcile::{self, Ask};
use super::Builder;
use crate::backing::{files, logged, regions};
use crate::config::Config;
use crate::disks;
use crate::medium::MediumKind;
use crate::memory::map::map_private;
use crate::memory::{file, locks, marks, shared};
use crate::paths::{self, IMAGE};
use crate::uuid;
use conquest_fs::error::{Error, Result};

/// Makes a lost memory from the mirrored backing: one process at a time, and only if none works on a memory that has merely lost its name.
pub fn from_mirror(dir: &Path, config: &Config, path: &Path) -> Result<()> {
    let _alone = Builder::begin(dir)?;
    if !file::is_lost(path, config.medium)? {
        return Ok(());
    }
    refuse_used_backing(dir, config)?;
    tracing::warn!("{} is lost; making it from its mirror", path.display());
    let warn: Ask = &mut |found| {
        tracing::warn!("{}: {found}; `conquest fsck` lists it", dir.display());
        Ok(())
    };
    import(dir, config, &mut |_, _| {}, warn).map(drop)
}

/// Fails if any process writes to the backing of the pool at `dir`: its memory may have been deleted or replaced meanwhile.
pub fn refuse_used_backing(dir: &Path, config: &Config) -> Result<()> {
    let backing = config.backing_dir(dir).filter(|backing| paths::has_backing_files(backing));
    match backing.filter(|backing| files::are_in_use(backing).unwrap_or(false)) {
        Some(backing) => Err(Error::Pool(format!(
            "a process works on the pool at {}, and keeps its backing in {}, though its memory is not there any more; end it \
             first (unmount the pool): what it has done is in the backing then",
            dir.display(),
            backing.display()
        ))),
        None => Ok(()),
    }
}

/// Why the memory of the pool at `dir`, which no process uses, is not made from its backing unasked.
pub fn refusal_of_memory(dir: &Path, config: &Config) -> Error {
    let path = config.nvram_path(dir);
    let stands = match compare(dir, config, &path) {
        Ok(true) => "its backing holds all of it".into(),
        Ok(false) => "it may hold more than its backing".into(),
        Err(Error::Outdated(why)) => format!("it is an old one: {why}"),
        Err(e) => format!("nothing tells which is newer: {e}"),
    };
    Error::Pool(format!(
        "the pool's persistent RAM {} is there, and {stands}; to make it from the backing all the same, use `conquest import \
         --force`",
        path.display()
    ))
}

/// Whether the backing holds all of the memory at `path`. An error if it has continued without that memory, or if nothing tells.
fn compare(dir: &Path, config: &Config, path: &Path) -> Result<bool> {
    let disks = regions::open_to_look(dir, config)?;
    let id = backing::identify(&disks)?;
    if config.medium == MediumKind::Logged {
        let lock = files::open_file(dir, IMAGE)?;
        return marks::is_backed(&shared::path(&lock, &id.uuid, "marks")?, &lock, id);
    }
    match file::open_memory(path, dir, config.medium)? {
        Some(opened) => Ok(backing::clean(&disks, id, &opened.memory)?.is_some()),
        // Another pool has just taken its place.
        None => Ok(false),
    }
}

/// Makes the memory of the pool at `dir` from its backing; returns the instant of its state, in nanoseconds since the epoch. Calls `ask`
/// about content that its disks lack, before anything is given up.
pub fn import(dir: &Path, config: &Config, progress: &mut dyn FnMut(u64, u64), ask: Ask) -> Result<i64> {
    let backing_dir = config.backing_dir(dir).unwrap_or_else(|| dir.into());
    let disks = regions::open_to_look(dir, config)?;
    let id = backing::identify(&disks).map_err(|e| broken(&backing_dir, &e.into()))?;
    if id.uuid != config.uuid_bytes()? {
        return Err(broken(&backing_dir, &Error::Pool(format!("it is of the pool {}", uuid::text(&id.uuid)))));
    }
    if config.medium == MediumKind::Logged {
        // Opening the pool makes the memory from the backing; the old one is given up once all of the backing can be read.
        let loaded = backing::load(&disks, id, &mut |_, _| Ok(())).map_err(|e| broken(&backing_dir, &e.into()))?;
        let _held = locks::hold_unused(&config.lock_path(dir))?;
        reconcile::ask_of(|| reconcile::memory_of(&disks, id, dir), dir, config, ask)?;
        logged::forget(dir, &id.uuid);
        return Ok(loaded.as_of.time);
    }
    let path = config.nvram_path(dir);
    let mut refused = None;
    let mut check = |file: &fs::File| {
        let asked = reconcile::ask_of(|| map_private(file, &path), dir, config, ask);
        asked.map_err(|e| Error::Pool(refused.insert(e).to_string()))
    };
    let made = file::import(&disks, id, &path, config.medium, &mut check, progress);
    // A refusal is no fault of the backing.
    made.map_err(|e| refused.unwrap_or_else(|| broken(&backing_dir, &e)))
}

/// Makes a pool on `logged` from a backing that is all there is in `dir`, `pool.toml` last; returns the instant of its state.
/// Memory that holds more than the backing is only lost with `force`.
pub fn found(dir: &Path, force: bool, ask: Ask) -> Result<i64> {
    if files::are_in_use(dir)? {
        return Err(Error::Pool(format!(
            "a pool is open whose backing lies in {}; unmount it first, or import another copy of these files",
            dir.display()
        )));
    }
    let id = backing::identify(&files::open(dir)?).map_err(|e| broken(dir, &e.into()))?;
    let mut config = Config::new(MediumKind::Logged, uuid::text(&id.uuid));
    config.disks = disks::adopted(dir, id.uuid);
    if let Some(memory) = newer_memory(dir, &id)?.filter(|_| !force) {
        return Err(Error::Pool(format!(
            "the pool's memory {} is there, and newer than its backing: to keep it, put {1} back and mount {2}; to lose it, \
             use `conquest import --force {2}`",
            memory.display(),
            paths::CONFIG,
            dir.display()
        )));
    }
    let as_of = import(dir, &config, &mut |_, _| {}, ask)?;
    config.write(dir)?;
    Ok(as_of)
}

/// The memory of the pool on `logged` whose backing lies in `dir`, unless the backing holds all of it.
fn newer_memory(dir: &Path, id: &Identity) -> Result<Option<PathBuf>> {
    let lock = files::open_file(dir, IMAGE)?;
    let [memory_path, marks] = [shared::path(&lock, &id.uuid, "region")?, shared::path(&lock, &id.uuid, "marks")?];
    let is_newer = memory_path.exists() && !marks::is_backed(&marks, &lock, *id).unwrap_or(false);
    Ok(is_newer.then_some(memory_path))
}

fn broken(dir: &Path, e: &Error) -> Error {
    Error::Pool(format!("the pool's backing in {} cannot be used: {e}", dir.display()))
}
