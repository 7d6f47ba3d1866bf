//! The running copy of a pool on `battery` or `dax`: its region survives a power cut, but not the loss of the memory
//! itself. The copy lies on a disk, as of an instant that is not long ago; `conquest import` opens the pool from it.
//!
//! The region is what counts: a copy that is missing is made anew, and one that cannot be written leaves the pool
//! at work, with a warning. With `mirror` an operation returns when the copy holds it.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use pram::copy::log::Identity;
use pram::copy::{self, Copy};
use pram::session::{self, Exclusive};
use pram::Region;

use super::config::{host, uuid_text, Config};
use super::files::{self, Tracked};
use super::media::{self, Opened};
use super::MediumKind;
use crate::error::{Error, Result};

/// Opens the region of the pool at `dir`, with its copy if it has one. A mirror replaces a region that is missing.
/// `None` if another pool takes the place of this one.
pub fn open(dir: &Path, config: &Config) -> Result<Option<Opened>> {
    let path = config.nvram_path(dir);
    if config.mirror && media::is_lost(&path, config.medium)? {
        make_from_mirror(dir, config, &path)?;
    }
    let opened = media::open_region(&path, dir, config.medium).map_err(|e| or_import(e, dir, config))?;
    let Some(mut opened) = opened else { return Ok(None) };
    if let Some(copy) = config.copy_dir(dir).filter(|_| config.is_of(&opened.region)) {
        opened.copy = match attach(&mut opened.region, &opened.exclusive, &copy) {
            Ok(copy) => Some(copy.awaited(config.mirror)),
            Err(e) if config.mirror => return Err(e),
            Err(e) => {
                tracing::error!("{e}; the pool works without its copy until it is opened again");
                None
            }
        };
    }
    Ok(Some(opened))
}

/// One process at a time, and only when nobody works on a region that has merely lost its name.
fn make_from_mirror(dir: &Path, config: &Config, path: &Path) -> Result<()> {
    let _alone = media::Making::begin(dir)?;
    if !media::is_lost(path, config.medium)? {
        return Ok(());
    }
    refuse_used_copy(dir, config)?;
    tracing::warn!("{} is lost; making it from its mirror", path.display());
    import(dir, config, &mut |_, _| {}).map(drop)
}

/// Fails if any process writes to the copy of the pool at `dir`: its region may have been deleted or replaced meanwhile.
pub fn refuse_used_copy(dir: &Path, config: &Config) -> Result<()> {
    let copy = config.copy_dir(dir).filter(|copy| files::exist(copy));
    match copy.filter(|copy| files::are_in_use(copy).unwrap_or(false)) {
        Some(copy) => Err(Error::Pool(format!(
            "a process works on the pool at {}, and keeps its copy in {}, though its region is not there any more; end it \
             first (unmount the pool): what it has done is in the copy then",
            dir.display(),
            copy.display()
        ))),
        None => Ok(()),
    }
}

/// A region that can be read but is none is not given up unasked.
fn or_import(e: Error, dir: &Path, config: &Config) -> Error {
    let is_open = || fs::OpenOptions::new().read(true).write(true).open(config.nvram_path(dir)).is_ok();
    match (e, config.copy_dir(dir).filter(|copy| files::exist(copy))) {
        (Error::Pool(why), Some(copy)) if is_open() => {
            let (dir, copy) = (dir.display(), copy.display());
            Error::Pool(format!("{why}; or make it from its copy in {copy} with `conquest import --force {dir}`"))
        }
        (e, _) => e,
    }
}

/// Begins or goes on with the copy of `region` in `dir`; the region's file says who is attached.
fn attach(region: &mut Region, exclusive: &Exclusive, dir: &Path) -> Result<Copy> {
    let id = Identity { uuid: region.info.uuid, size: region.geo.size };
    let lock = fs::File::from(exclusive.as_fd().try_clone_to_owned().map_err(|e| host(dir, &e))?);
    let attached = session::in_use(exclusive)?;
    // The image is the last that comes when a copy is made: without it there is none.
    let there = dir.join(files::IMAGE).exists();
    if !there && attached {
        return Err(Error::Pool(format!("the pool's copy in {} was deleted", dir.display())));
    }
    if !there {
        make(dir, id, &lock)?;
    }
    let disks = files::take(dir, !attached)?;
    let found = copy::identify(&disks).map_err(|e| unusable(dir, &e.into()))?;
    if found != id {
        return Err(unusable(dir, &Error::Pool(format!("it is of the pool {}", uuid_text(&found.uuid)))));
    }
    let tracked = Tracked { id, dir, disks: &disks, lock: &lock };
    let refused = |e| match e {
        // Nor is a new copy wanted then.
        Error::Outdated(why) => Error::Outdated(format!(
            "{why}: the region is an old one; put the newer one back, or make it from the copy (`conquest import \
             --force`)"
        )),
        e => unusable(dir, &e),
    };
    let (marks, copy) = match tracked.resume(attached).map_err(refused)? {
        Some(found) => found,
        None if attached => return Err(Error::Pool(format!("{} was deleted", tracked.path()?.display()))),
        None => tracked.compare_unless_clean(region).map_err(refused)?,
    };
    if !attached {
        copy.note_in(region)?;
    }
    region.track(marks);
    // Marks that say nothing need not be kept: the region says so itself when it is closed.
    Ok(copy.kept_while_open(tracked.path()?))
}

/// Makes an empty copy in `dir`, which nobody takes for the old one, wherever it is interrupted. In order: the copy is
/// made beside its place; marks go that say how far the old one had come; the files are put in place, the image last.
fn make(dir: &Path, id: Identity, lock: &fs::File) -> Result<()> {
    let beside = dir.join(".made");
    let _ = fs::remove_dir_all(&beside);
    let bytes = copy::log_bytes(id.size);
    let made = files::make(&beside, bytes).and_then(|disks| {
        copy::create(&disks, id, bytes)?;
        let _ = fs::remove_file(files::shared(lock, &id.uuid, "marks")?);
        files::replace(&beside, dir)
    });
    let _ = fs::remove_dir_all(&beside);
    made
}

fn unusable(dir: &Path, e: &Error) -> Error {
    Error::Pool(format!(
        "the pool's copy in {} cannot be used: {e}. Move image, redo-0 and redo-1 away to have a new one made",
        dir.display()
    ))
}

/// Why the region of the pool at `dir`, which nobody uses, is not made from its copy unasked.
pub fn kept(dir: &Path, config: &Config) -> Error {
    let path = config.nvram_path(dir);
    let stands = match compare(dir, config, &path) {
        Ok(true) => "its copy holds all of it".into(),
        Ok(false) => "it may hold more than its copy".into(),
        Err(Error::Outdated(why)) => format!("it is an old one: {why}"),
        Err(e) => format!("nothing tells which is newer: {e}"),
    };
    Error::Pool(format!(
        "the pool's persistent RAM {} is there, and {stands}; to make it from the copy all the same, use `conquest import \
         --force`",
        path.display()
    ))
}

/// Does the copy hold all of the region at `path`? An error if it has gone on without that, or if nothing tells.
fn compare(dir: &Path, config: &Config, path: &Path) -> Result<bool> {
    let disks = files::open(&config.copy_dir(dir).unwrap_or_else(|| dir.into()))?;
    let id = copy::identify(&disks)?;
    if config.medium == MediumKind::Logged {
        let lock = files::open_file(dir, files::IMAGE)?;
        return files::is_copied(&files::shared(&lock, &id.uuid, "marks")?, &lock, id);
    }
    match media::open_region(path, dir, config.medium)? {
        Some(opened) => Ok(copy::clean(&disks, id, &opened.region)?.is_some()),
        // Another one has just taken its place.
        None => Ok(false),
    }
}

/// Makes the region of the pool at `dir` from its copy; the instant that it is of, nanoseconds since the epoch.
pub fn import(dir: &Path, config: &Config, progress: &mut dyn FnMut(u64, u64)) -> Result<i64> {
    let copy_dir = config.copy_dir(dir).unwrap_or_else(|| dir.into());
    let disks = files::open(&copy_dir)?;
    let id = copy::identify(&disks).map_err(|e| broken(&copy_dir, &e.into()))?;
    if id.uuid != config.uuid_bytes()? {
        return Err(broken(&copy_dir, &Error::Pool(format!("it is of the pool {}", uuid_text(&id.uuid)))));
    }
    if config.medium == MediumKind::Logged {
        // Made from the copy when the pool is opened; given up when all of that can be read.
        let loaded = copy::load(&disks, id, &mut |_, _| Ok(())).map_err(|e| broken(&copy_dir, &e.into()))?;
        let _held = config.hold_unused(dir)?;
        super::logged::forget(dir, &id.uuid);
        return Ok(loaded.as_of.time);
    }
    let path = config.nvram_path(dir);
    media::import(&disks, id, &path, config.medium, progress).map_err(|e| broken(&copy_dir, &e))
}

/// Makes a pool on `logged` of a copy that is all there is in `dir`, `pool.toml` last; the instant that it is of.
/// Memory that holds more than the copy is only lost with `force`.
pub fn found(dir: &Path, force: bool) -> Result<i64> {
    if files::are_in_use(dir)? {
        return Err(Error::Pool(format!(
            "a pool is open whose copy lies in {}; unmount it first, or import another copy of these files",
            dir.display()
        )));
    }
    let id = copy::identify(&files::open(dir)?).map_err(|e| broken(dir, &e.into()))?;
    let config = Config::new(MediumKind::Logged, uuid_text(&id.uuid));
    if let Some(memory) = newer_memory(dir, &id)?.filter(|_| !force) {
        return Err(Error::Pool(format!(
            "the pool's memory {} is there, and newer than its copy: to keep it, put {1} back and mount {2}; to lose it, \
             use `conquest import --force {2}`",
            memory.display(),
            super::config::FILE,
            dir.display()
        )));
    }
    let as_of = import(dir, &config, &mut |_, _| {})?;
    config.write(dir)?;
    Ok(as_of)
}

/// The memory of the pool on `logged` whose copy lies in `dir`, unless that holds all of it.
fn newer_memory(dir: &Path, id: &Identity) -> Result<Option<PathBuf>> {
    let lock = files::open_file(dir, files::IMAGE)?;
    let [region, marks] = [files::shared(&lock, &id.uuid, "region")?, files::shared(&lock, &id.uuid, "marks")?];
    let is_newer = region.exists() && !files::is_copied(&marks, &lock, *id).unwrap_or(false);
    Ok(is_newer.then_some(region))
}

fn broken(dir: &Path, e: &Error) -> Error {
    Error::Pool(format!("the pool's copy in {} cannot be used: {e}", dir.display()))
}
