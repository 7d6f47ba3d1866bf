//! Opening a pool to inspect it. Nothing of it changes, neither on disks nor in memory nor in the health of its regions, and no
//! interrupted work is finished.
//!
//! | state of the pool | what this opens |
//! | --- | --- |
//! | a process works on it | its memory, as one more of the processes, which writes nothing |
//! | no process does | its memory, mapped for this process alone: open transactions of a crash are undone there |
//! | its memory is not there | the facts from directory and disks; with [`Pool::look_whole`] all of the backing, in memory without a name |
//!
//! If no process works on it, none can attach until the inspection is over. A DAX device cannot be mapped for one process alone: a pool
//! there is opened read-only, which rolls back open transactions of a crash.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backing::log::Identity;
use backing::Backing;
use exraid::owner;
use pram::medium::Ram;
use pram::session::Exclusive;
use pram::{Mapping, Memory, Session};
use serde::Serialize;

use super::backing::regions;
use super::config::Config;
use super::disks::disks_status::{self, DiskStatus, RegionStatus};
use super::disks::Disks;
use super::maintenance::Threads;
use super::make::reconcile;
use super::memory::file::{self, refuse_other_version};
use super::memory::map::{map_private, named, open_failed};
use super::memory::{device, locks, marks, shared};
use super::open::warn_of_unnamed_disks;
use super::paths::{as_text, as_text_if_any};
use super::rescue::absent::{load_or_lost, read_config};
use super::rescue::salvage;
use super::{paths, uuid, MediumKind, OpenOptions, Pool};
use conquest_fs::error::{Error, Result};
use conquest_fs::max_inodes;
use conquest_fs::node::{Atime, Fs, Policy};
use conquest_fs::ubj::Union;

/// The parts of a pool that can be inspected.
pub enum Looked {
    Pool(Box<Pool>),
    Released(Box<Released>),
}

/// A pool without memory: it was given back, or lost with the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Released {
    #[serde(serialize_with = "as_text")]
    pub pool: PathBuf,
    pub uuid: String,
    pub medium: MediumKind,
    /// The directory of the backing, if it lies in one.
    #[serde(serialize_with = "as_text_if_any")]
    pub backing_dir: Option<PathBuf>,
    /// Why the pool cannot be opened from the backing.
    pub failure: Option<String>,
    pub regions: Vec<RegionStatus>,
    pub disks: Vec<DiskStatus>,
}

/// The state of the backing of a memory that is inspected.
pub(super) struct BackingFound {
    pub as_of: i64,
    /// Bytes; `None`: not noted, and opening the pool compares memory and backing.
    pub pending: Option<u64>,
    pub failure: Option<String>,
}

impl Pool {
    /// Why this process does not use some disks of the pool.
    pub fn missing_disks(&self) -> impl Iterator<Item = String> + '_ {
        self.disks.missing.iter().map(|missing| missing.error.to_string())
    }

    /// Opens the pool at `dir` to inspect it.
    pub fn look(dir: impl AsRef<Path>) -> Result<Looked> {
        let dir = dir.as_ref();
        let config = load_or_lost(dir)?;
        // The last process that works on it may detach at the moment.
        loop {
            let lock = config.lock_path(dir);
            if !locks::are_attached(&lock)? {
                return look_alone(dir, &config);
            }
            let beside =
                OpenOptions { read_only: true, without_disks: true, only_beside: true, ..OpenOptions::default() };
            match Pool::open(dir, &beside) {
                Err(_) if !locks::are_attached(&lock)? => {}
                opened => return opened.map(|pool| Looked::Pool(pool.into())),
            }
        }
    }

    /// The same, but reads all of the backing into memory of this process if the pool has no memory.
    pub fn look_whole(dir: impl AsRef<Path>) -> Result<Pool> {
        let dir = dir.as_ref();
        match Pool::look(dir)? {
            Looked::Pool(pool) => Ok(*pool),
            Looked::Released(_) => {
                let config = read_config(dir)?;
                let held = hold(dir, &config)?;
                let disks = regions::open_to_look(dir, &config)?;
                let memory = reconcile::memory_of(&disks, Identity { uuid: config.uuid_bytes()? }, dir)?;
                let whole = BackingFound { as_of: 0, pending: Some(0), failure: None };
                over(dir, config, memory, Some(whole), held)
            }
        }
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| open_failed(path, &e))
}

/// Keeps other processes from attaching to the pool, if its locks are there.
fn hold(dir: &Path, config: &Config) -> Result<Option<Exclusive>> {
    let path = config.lock_path(dir);
    match path.exists() {
        true => locks::hold(open(&path)?, &path, || Ok(())).map(Some),
        false => Ok(None),
    }
}

fn look_alone(dir: &Path, config: &Config) -> Result<Looked> {
    let held = hold(dir, config)?;
    if config.medium != MediumKind::Logged && device::is_device(&config.nvram_path(dir), config.medium)? {
        drop(held);
        let how = OpenOptions { read_only: true, without_disks: true, ..OpenOptions::default() };
        return Ok(Looked::Pool(Pool::open(dir, &how)?.into()));
    }
    let memory = match config.medium {
        MediumKind::Logged => salvage::find(dir, config)?,
        _ => Some(config.nvram_path(dir)).filter(|path| path.exists()),
    };
    let path = match memory {
        Some(path) => path,
        None if config.medium == MediumKind::Logged || config.mirror => {
            return Ok(Looked::Released(released(dir, config)?.into()))
        }
        None => return Err(file::missing(&config.nvram_path(dir), dir)),
    };
    if held.is_none() {
        // Without locks this alone can tell.
        shared::refuse_mapped(&path)?;
    }
    let map = map_memory(dir, config, &path)?;
    let backing = backing_of(dir, config, &path);
    Ok(Looked::Pool(over(dir, config.clone(), map, backing, held)?.into()))
}

fn map_memory(dir: &Path, config: &Config, path: &Path) -> Result<Mapping> {
    let file = match config.medium {
        MediumKind::Logged => salvage::open_file(path, dir)?,
        _ => {
            owner::refuse_foreign_file(path)?;
            open(path)?
        }
    };
    map_private(&file, path).map_err(|e| Error::Pool(format!("{}: {e}", path.display())))
}

/// The pool, over memory of this process alone.
fn over(
    dir: &Path,
    config: Config,
    map: Mapping,
    backing: Option<BackingFound>,
    held: Option<Exclusive>,
) -> Result<Pool> {
    let (size, path) = (map.len(), config.nvram_path(dir));
    let memory = Memory::open(map, Box::new(Ram::like(config.medium.into()))).map_err(named(&path))?;
    if !config.is_of(&memory) {
        return Err(Error::Pool(format!("{} is of another pool ({})", path.display(), uuid::text(&memory.info.uuid))));
    }
    refuse_other_version(&memory)?;
    let noted = match backing::was_closed(&memory)? {
        true => 0,
        false => size,
    };
    let found = backing.map(|backing| BackingFound { pending: Some(backing.pending.unwrap_or(noted)), ..backing });
    let session = Session::private(memory, max_inodes(size))?;
    warn_of_unnamed_disks(dir, &config, &session)?;
    let mut disks = Disks::open_to_look(dir, &config)?;
    let union = Union::open(&session, &disks.regions, config.cache.options(config.threshold()))?;
    if let Some(union) = &union {
        disks.give_to(union.log(), &session)?;
    }
    let policy = Policy { read_only: true, atime: Atime::Never, ..Policy::default() };
    let in_regions = config.backing_in_regions.then(|| regions::look(dir, &config).ok()).flatten();
    Ok(Pool {
        threads: Threads::default(),
        fs: Arc::new(Fs::over(session, policy)?.with_union(union)),
        disks,
        duplex: in_regions.map(|found| found.duplex.clone()),
        mirrored: false,
        dir: dir.into(),
        config,
        found,
        _held: held,
    })
}

/// The bytes of the memory in the file `memory_path` that the backing lacks; `None` if there is no backing.
fn backing_of(dir: &Path, config: &Config, memory_path: &Path) -> Option<BackingFound> {
    if config.medium != MediumKind::Logged
        && !config.backing_in_regions
        && !paths::has_backing_files(&config.backing_dir(dir)?)
    {
        // Opening the pool makes it.
        return Some(BackingFound { as_of: 0, pending: None, failure: None });
    }
    let found = (|| {
        let disks = regions::open_to_look(dir, config)?;
        let lock = open(&config.lock_path(dir))?;
        let id = Identity { uuid: config.uuid_bytes()? };
        let path = match config.medium {
            MediumKind::Logged => marks::beside(memory_path).unwrap_or_default(),
            _ => shared::path(&lock, &id.uuid, "marks")?,
        };
        if !path.exists() {
            return Ok(None);
        }
        let owner = lock.metadata().map_err(|e| Error::host(&path, &e))?;
        let marks = marks::read_out(&path, owner.uid())?;
        let backing = Backing::resume(disks, &marks, id)?;
        backing.map(|backing| Ok::<_, Error>((backing.time(), Backing::marked(&marks)?))).transpose()
    })();
    match found {
        Ok(Some((as_of, pending))) => Some(BackingFound { as_of, pending: Some(pending), failure: None }),
        Ok(None) => Some(BackingFound { as_of: 0, pending: None, failure: None }),
        Err(e) => Some(BackingFound { as_of: 0, pending: None, failure: Some(e.to_string()) }),
    }
}

fn released(dir: &Path, config: &Config) -> Result<Released> {
    let disks = disks_status::of_closed(dir, config)?;
    let backing = regions::open_to_look(dir, config).and_then(|disks| {
        let found = backing::identify(&disks)?;
        match config.uuid_bytes()? == found.uuid {
            true => Ok(()),
            false => Err(Error::Pool(format!("its backing is of the pool {}", uuid::text(&found.uuid)))),
        }
    });
    Ok(Released {
        pool: dir.into(),
        uuid: config.uuid.clone(),
        medium: config.medium,
        backing_dir: config.backing_dir(dir).filter(|_| !config.backing_in_regions),
        failure: backing.err().map(|e: Error| e.to_string()),
        regions: disks.regions,
        disks: disks.disks,
    })
}
