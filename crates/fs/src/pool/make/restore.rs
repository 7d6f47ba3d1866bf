//! Making a pool from a saved image, in the same order as [an empty one](super::format::format).

use std::path::Path;

use pram::save::Progress;

use super::lost::{self, Ask};
use super::staging::Staged;
use super::{refuse_used_copies, relocate, Builder, OnStep};
use crate::error::{Error, Result};
use crate::pool::config::{Config, DiskEntry};
use crate::pool::copy::{files, logged};
use crate::pool::disks::{self, place};
use crate::pool::medium::MediumKind;
use crate::pool::paths::{self, IMAGE};
use crate::pool::region::map::map_private;
use crate::pool::region::{device, file, locks, shared};
use crate::pool::rescue::salvage;
use crate::pool::uuid;

/// What a restore may do to what is there.
#[derive(Clone, Copy)]
pub struct Over {
    /// That of a pool that is there stays.
    pub medium: Option<MediumKind>,
    pub force: bool,
}

/// Makes the pool at `dir` from an image, in the same order. What its disks lack is asked about before it takes its place.
pub fn restore(dir: &Path, image: &Path, over: Over, progress: Progress, ask: Ask, step: OnStep) -> Result<()> {
    std::fs::metadata(image).map_err(|e| Error::host(image, &e))?;
    let alone = Builder::begin(dir)?;
    let old = match Config::read(dir) {
        Err(e) if !over.force => return Err(e),
        read => read.ok().flatten(),
    };
    let config = like(old.as_ref(), over.medium)?;
    refuse_there(dir, old.as_ref(), &config, over.force)?;
    refuse_used_copies(dir, [Some(&config)])?;
    let orphan = orphan(dir, old.as_ref(), over.force)?;
    if old.is_none() {
        salvage::set_aside(dir)?;
    }
    let in_regions = old.as_ref().is_some_and(|old| old.copy_in_regions);
    if device::is_device(&config.nvram_path(dir), config.medium)? {
        restore_device(dir, image, &config, progress)?;
        drop(alone);
        return copy_again(dir, in_regions);
    }
    let staged = Staged::begin(dir, &config)?;
    let info = match config.medium {
        MediumKind::Logged => logged::restore(staged.dir(), dir, image, progress)?,
        medium => file::restore_region(image, &config.nvram_path(dir), medium, progress)?,
    };
    // Who comes meanwhile finds the new pool; whoever is there keeps the old one.
    let held = locks::hold_unused(&config.lock_path(dir))?;
    refuse_used_copies(dir, [Some(&config)])?;
    let disks = disks(dir, old.as_ref(), info.uuid, over.force)?;
    let config = Config { uuid: uuid::text(&info.uuid), disks, ..config };
    let region = match config.medium {
        MediumKind::Logged => shared::region_path(staged.dir(), &info.uuid),
        _ => paths::beside_region(&config.nvram_path(dir)),
    };
    lost::ask_of(|| map_private(&open_region(&region)?, &region), dir, &config, ask)?;
    staged.place(&config, step)?;
    orphan.iter().for_each(|region| salvage::remove(region));
    drop((held, alone));
    copy_again(dir, in_regions)
}

/// What lies in the regions is the copy of what was there: one of the new memory takes its place.
fn copy_again(dir: &Path, in_regions: bool) -> Result<()> {
    match in_regions {
        true => relocate::into_regions(dir),
        false => Ok(()),
    }
}

fn open_region(path: &Path) -> Result<std::fs::File> {
    std::fs::File::open(path).map_err(|e| Error::host(path, &e))
}

/// The pool that is to be made, but for its UUID.
fn like(old: Option<&Config>, medium: Option<MediumKind>) -> Result<Config> {
    match (old, medium) {
        (Some(old), Some(medium)) if medium != old.medium => {
            Err(Error::Pool(format!("the pool that is there is on `{}`, not on `{medium}`", old.medium)))
        }
        // Its copy moves there when it is made.
        (Some(old), _) => Ok(Config { copy_in_regions: false, ..old.clone() }),
        (None, medium) => Ok(Config::new(medium.unwrap_or(MediumKind::Logged), String::new())),
    }
}

/// The disks of the pool with this UUID that is made in the place of `old`: it keeps those that carry it.
fn disks(dir: &Path, old: Option<&Config>, uuid: [u8; 16], force: bool) -> Result<Vec<DiskEntry>> {
    let Some(old) = old else { return Ok(disks::adopted(dir, uuid)) };
    match old.disks.first() {
        _ if old.uuid_bytes().is_ok_and(|old| old == uuid) => Ok(old.disks.clone()),
        Some(disk) if !force => Err(Error::Pool(format!(
            "the image is of another pool ({}) than {} is, whose disks would be given up ({}): restore it to another \
             directory, or use --force",
            uuid::text(&uuid),
            dir.display(),
            disk.at(dir).display()
        ))),
        _ => Ok(Vec::new()),
    }
}

fn refuse_there(dir: &Path, old: Option<&Config>, config: &Config, force: bool) -> Result<()> {
    let region = Some(config.nvram_path(dir)).filter(|path| config.medium != MediumKind::Logged && path.exists());
    // A pool whose region is lost gets another, and another copy.
    let is_lost = old.is_some() && config.medium != MediumKind::Logged;
    let there = region.or_else(|| config.copy_dir(dir).filter(|copy| !is_lost && paths::has_copy_files(copy)));
    match there {
        Some(path) if !force => {
            let path = path.display();
            Err(Error::Pool(format!("{path} exists; overwrite it with `conquest restore --force`")))
        }
        Some(_) => locks::refuse_attached(&config.lock_path(dir)),
        None => Ok(()),
    }
}

/// Without the copy's files nothing but its name leads to the memory.
fn orphan(dir: &Path, old: Option<&Config>, force: bool) -> Result<Option<std::path::PathBuf>> {
    let orphan = old.filter(|_| !dir.join(IMAGE).exists()).map(|old| salvage::find(dir, old));
    let Some(region) = orphan.transpose()?.flatten() else { return Ok(None) };
    shared::refuse_mapped(&region)?;
    match force {
        true => Ok(Some(region)),
        false => Err(Error::Pool(format!(
            "{} is the memory of this pool, whose copy is gone: all that is left of it. Save it first with `conquest save`, \
             or give it up with `conquest restore --force`",
            region.display()
        ))),
    }
}

/// Overwrites the region, a device; nobody attaches until all is done.
fn restore_device(dir: &Path, image: &Path, config: &Config, progress: Progress) -> Result<()> {
    let (info, _held) = device::restore_device(image, &config.nvram_path(dir), config.uuid_bytes().ok(), progress)?;
    // A running copy of what was there.
    config.copy_dir(dir).iter().for_each(|copy| files::remove(copy));
    let disks = disks(dir, Some(config), info.uuid, true)?;
    let new = Config { uuid: uuid::text(&info.uuid), disks, ..config.clone() };
    let uuid = config.uuid_bytes().unwrap_or(info.uuid);
    place::left_behind(dir, Some(config), &new).try_for_each(|entry| place::remove(dir, entry, uuid))?;
    new.write(dir)
}
