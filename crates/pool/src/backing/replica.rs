//! The backing of a pool on `battery` or `dax`: its memory survives a power cut, but not its own loss
//! or failure. The backing lies on a disk, in the state of a recent instant; `conquest import` opens the pool from it.
//!
//! The memory counts: a missing backing is made anew, and one that cannot be written leaves the pool
//! at work, with a warning. With `mirror` an operation returns when its change is in the backing.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use backing::log::Identity;
use backing::Backing;
use pram::session::{self, Exclusive};
use pram::Memory;

use super::attach::Tracked;
use super::logged::failed;
use super::{files, regions};
use crate::config::Config;
use crate::memory::file::{open_memory, Opened};
use crate::memory::{locks, shared};
use crate::paths::{self, IMAGE};
use crate::uuid;
use conquest_fs::error::{Error, Result};

/// Opens the memory of the pool at `dir`, with its backing if it has one.
/// `None` if another pool takes the place of this one.
pub fn open(dir: &Path, config: &Config, only_beside: bool) -> Result<Option<Opened>> {
    let path = config.nvram_path(dir);
    let opened = open_memory(&path, dir, config.medium).map_err(|e| or_import(e, dir, config))?;
    let Some(mut opened) = opened else { return Ok(None) };
    if only_beside {
        locks::refuse_unless_used(&opened.exclusive, dir)?;
    }
    let backing = if config.backing_in_regions { Some(dir.to_path_buf()) } else { config.backing_dir(dir) };
    if let Some(backing) = backing.filter(|_| config.is_of(&opened.memory)) {
        let attached = match config.backing_in_regions {
            true => attach_in_regions(&mut opened, dir, config),
            false => attach(&mut opened.memory, &opened.exclusive, &backing),
        };
        opened.backing = match attached {
            Ok(backing) => Some(backing.awaited(config.mirror)),
            Err(e) if config.mirror => return Err(e),
            Err(e) => {
                tracing::error!("{e}; the pool works without its backing until it is opened again");
                None
            }
        };
    }
    Ok(Some(opened))
}

/// Does not give up a file that can be read but is no memory, unless asked.
fn or_import(e: Error, dir: &Path, config: &Config) -> Error {
    let is_open = || fs::OpenOptions::new().read(true).write(true).open(config.nvram_path(dir)).is_ok();
    match (e, config.backing_dir(dir).filter(|backing| paths::has_backing_files(backing))) {
        (Error::Pool(why), Some(backing)) if is_open() => {
            let (dir, backing) = (dir.display(), backing.display());
            Error::Pool(format!("{why}; or make it from its backing in {backing} with `conquest import --force {dir}`"))
        }
        (e, _) => e,
    }
}

/// Begins or continues the backing of `memory` in `dir`; the locks of the memory's file tell which processes are attached.
fn attach(memory: &mut Memory, exclusive: &Exclusive, dir: &Path) -> Result<Backing> {
    let id = Identity { uuid: memory.info.uuid };
    let lock = fs::File::from(exclusive.as_fd().try_clone_to_owned().map_err(|e| Error::host(dir, &e))?);
    let attached = session::in_use(exclusive)?;
    // The image is made last: without it there is no backing.
    let there = dir.join(IMAGE).exists();
    if !there && attached {
        return Err(Error::Pool(format!("the pool's backing in {} was deleted", dir.display())));
    }
    if !there {
        make(dir, id, backing::log_bytes(memory.size()), &lock)?;
    }
    let disks = files::take(dir, !attached)?;
    take_up(memory, dir, &disks, &lock, attached)
}

/// The same for a backing in regions.
fn attach_in_regions(opened: &mut Opened, dir: &Path, config: &Config) -> Result<Backing> {
    let lock = opened.exclusive.as_fd().try_clone_to_owned().map_err(|e| Error::host(dir, &e))?;
    let attached = session::in_use(&opened.exclusive)?;
    let in_regions = regions::take(dir, config, !attached)?;
    let backing = take_up(&mut opened.memory, dir, &in_regions.disks(), &fs::File::from(lock), attached)?;
    opened.duplex = Some(in_regions.duplex.clone());
    Ok(backing)
}

/// Continues the backing on these disks.
fn take_up(
    memory: &mut Memory,
    dir: &Path,
    disks: &backing::Disks,
    lock: &fs::File,
    attached: bool,
) -> Result<Backing> {
    let id = Identity { uuid: memory.info.uuid };
    let found = backing::identify(disks).map_err(|e| unusable(dir, &e.into()))?;
    if found != id {
        return Err(unusable(dir, &Error::Pool(format!("it is of the pool {}", uuid::text(&found.uuid)))));
    }
    let tracked = Tracked { id, dir, disks, lock };
    let refused = |e| match e {
        // A new backing is not wanted then, either.
        Error::Outdated(why) => Error::Outdated(format!(
            "{why}: the memory is an old one; put the newer one back, or make it from the backing (`conquest import \
             --force`)"
        )),
        e => unusable(dir, &e),
    };
    let (marks, backing) = match tracked.resume(memory, attached).map_err(refused)? {
        Some(found) => found,
        None if attached => return Err(Error::Pool(format!("{} was deleted", tracked.path()?.display()))),
        None => tracked.compare_unless_clean(memory).map_err(refused)?,
    };
    if !attached {
        backing.note_in(memory)?;
    }
    memory.track(marks);
    // Marks without a mark need not be kept: closing the memory records that in it.
    Ok(backing.with_marks_in(tracked.path()?))
}

/// Makes an empty backing in `dir` that is not taken for the old one, wherever this is interrupted. In order: the backing is
/// made beside its place; the marks for the old one are removed; the files move into place, the image last.
fn make(dir: &Path, id: Identity, bytes: u64, lock: &fs::File) -> Result<()> {
    let beside = dir.join(".made");
    let _ = fs::remove_dir_all(&beside);
    let made = files::make(&beside, bytes).and_then(|disks| {
        backing::create(&disks, id, bytes)?;
        let _ = fs::remove_file(shared::path(lock, &id.uuid, "marks")?);
        files::replace(&beside, dir)
    });
    let _ = fs::remove_dir_all(&beside);
    made
}

fn unusable(dir: &Path, e: &Error) -> Error {
    match e {
        // It may be whole, and the only one that is left tomorrow.
        Error::Host { .. } => failed(&format!("the pool's backing in {}", dir.display()), e),
        e => Error::Pool(format!(
            "the pool's backing in {} cannot be used: {e}. Move image, redo-0 and redo-1 away to have a new one made",
            dir.display()
        )),
    }
}
