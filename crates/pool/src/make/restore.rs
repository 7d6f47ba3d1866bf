//! Making a pool from a saved image, in the same order as [an empty one](super::format::format).

use std::path::Path;

use backing::save::Progress;
use pram::medium::Ram;
use pram::memory::BLOCK;
use pram::{Mapping, Memory, Session};

use super::format::{refuse_foreign_backing, refuse_other_files};
use super::reconcile::{self, Ask};
use super::refill::{OfImage, Refill};
use super::staging::Staged;
use super::{refuse_used_backings, relocate, Builder, OnStep};
use crate::backing::{files, logged};
use crate::config::{Config, DiskEntry};
use crate::disks::{self, place};
use crate::medium::MediumKind;
use crate::memory::map::map_private;
use crate::memory::{device, file, locks, shared};
use crate::options::NewRegion;
use crate::paths::{self, IMAGE};
use crate::rescue::salvage;
use crate::uuid;
use conquest_fs::error::{Error, Result};
use conquest_fs::max_inodes;
use ilfs::content_stream::{Carried, Stream};
use ilfs::Log;

/// The medium and disks of a restored pool, and whether it may replace another.
#[derive(Clone, Copy)]
pub struct Over<'a> {
    /// An existing pool keeps its medium.
    pub medium: Option<MediumKind>,
    pub force: bool,
    /// Disks for its regions, in this order, if the image has their content.
    pub disks: &'a [NewRegion],
}

/// The result of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Bytes of content: written to disks; unreadable when the image was made; and, about, not in the image, where the pool has no
    /// disks.
    pub content: u64,
    pub unread: u64,
    pub left_out: u64,
}

/// Makes the pool at `dir` from an image, in the same order. Calls `ask` about content that its disks lack, before it takes its place.
pub fn restore(dir: &Path, image: &Path, over: Over, progress: Progress, ask: Ask, step: OnStep) -> Result<Restored> {
    backing::save::info(image)?;
    let alone = Builder::begin(dir)?;
    let old = match Config::read(dir) {
        Err(e) if !over.force => return Err(e),
        read => read.ok().flatten(),
    };
    let config = like(old.as_ref(), over.medium)?;
    refuse_there(dir, old.as_ref(), &config, over.force)?;
    if old.is_none() && !over.force {
        let disks = disks::adopted(dir, backing::save::info(image)?.uuid);
        refuse_other_files(dir, &Config { disks, ..config.clone() })?;
    }
    refuse_used_backings(dir, [Some(&config)])?;
    let orphan = orphan(dir, old.as_ref(), over.force)?;
    if old.is_none() {
        salvage::set_aside(dir)?;
    }
    let in_regions = old.as_ref().is_some_and(|old| old.backing_in_regions);
    if device::is_device(&config.nvram_path(dir), config.medium)? {
        let restored = restore_device(dir, image, &config, over, progress)?;
        drop(alone);
        return backing_again(dir, in_regions).map(|()| restored);
    }
    let staged = Staged::begin(dir, &config)?;
    let content = match config.medium {
        MediumKind::Logged => logged::restore(staged.dir(), dir, image, progress)?,
        medium => file::restore_memory(image, &config.nvram_path(dir), medium, progress)?,
    };
    let info = *content.info();
    // From here on processes that come find the new pool; if one has the old pool open, this fails.
    let held = locks::hold_unused(&config.lock_path(dir))?;
    refuse_used_backings(dir, [Some(&config)])?;
    let disks = disks(dir, old.as_ref(), info.uuid, over.force)?;
    let mut config = Config { uuid: uuid::text(&info.uuid), disks, ..config };
    let memory_path = match config.medium {
        MediumKind::Logged => shared::memory_path(staged.dir(), &info.uuid),
        _ => paths::staged_beside(&config.nvram_path(dir)),
    };
    let memory = || map_private(&open_memory(&memory_path)?, &memory_path);
    // Where the pool's own disks lack content that the image has, new ones take their place.
    let renew = info.with_content && config.disks.iter().all(|entry| !entry.given);
    let mut lacks = false;
    let mut note = |_: &reconcile::Incomplete| {
        lacks = true;
        Ok(())
    };
    reconcile::ask_of(memory, dir, &config, if renew { &mut note } else { ask })?;
    if lacks {
        config.disks.clear();
    }
    let (given, staged_in) = (over.disks, Some(&staged));
    let new = Refill { dir, old: old.as_ref(), config: &config, force: over.force, given, staged: staged_in };
    let (disks, restored) = content_of(&new, OfImage { content, progress }, &memory)?;
    staged.place(&Config { disks, ..config }, step)?;
    orphan.iter().for_each(|memory| salvage::remove(memory));
    drop((held, alone));
    backing_again(dir, in_regions).map(|()| restored)
}

/// The disks of a pool in the making, and their content: its own disks, if it has any, else new ones with the content of the image.
fn content_of(
    new: &Refill,
    mut image: OfImage,
    memory: &dyn Fn() -> Result<Mapping>,
) -> Result<(Vec<DiskEntry>, Restored)> {
    let (has_disks, is_whole) = (!new.config.disks.is_empty(), image.content.info().with_content);
    if !new.given.is_empty() && (has_disks || !is_whole) {
        let why =
            if has_disks { "the pool that is there keeps its disks" } else { "the image has no content for them" };
        return Err(Error::Pool(format!("{why}: restore it without --disk")));
    }
    if is_whole && !has_disks {
        if let Some((mut stream, carries)) = Stream::open(&mut image)? {
            let made = new.run(memory()?, &mut stream, &carries)?;
            stream.end()?;
            let Carried { blocks, unread } = made.carried;
            return Ok((made.disks, Restored { content: blocks * BLOCK, unread: unread * BLOCK, left_out: 0 }));
        }
    } else {
        image.content.skip(image.progress)?;
    }
    let left_out = if is_whole || has_disks { 0 } else { led_to(memory()?, new.config)? };
    Ok((new.config.disks.clone(), Restored { left_out, ..Restored::default() }))
}

/// Bytes of content on disks that the memory leads to, about.
fn led_to(memory: Mapping, config: &Config) -> Result<u64> {
    let mapped = Memory::open(memory, Box::new(Ram::like(config.medium.into())))?;
    let keys = max_inodes(mapped.size());
    let session = Session::private(mapped, keys)?;
    let log = Log::open(&session, &[], ilfs::Options::default())?;
    Ok(log.map_or(Ok(0), |log| log.carries_about(&session))?)
}

/// The regions hold the backing of the old memory: a backing of the new one takes its place.
fn backing_again(dir: &Path, in_regions: bool) -> Result<()> {
    match in_regions {
        true => relocate::into_regions(dir),
        false => Ok(()),
    }
}

fn open_memory(path: &Path) -> Result<std::fs::File> {
    std::fs::File::open(path).map_err(|e| Error::host(path, &e))
}

/// The configuration of the future pool, but for its UUID.
fn like(old: Option<&Config>, medium: Option<MediumKind>) -> Result<Config> {
    match (old, medium) {
        (Some(old), Some(medium)) if medium != old.medium => {
            Err(Error::Pool(format!("the pool that is there is on `{}`, not on `{medium}`", old.medium)))
        }
        // Its backing moves into the regions later.
        (Some(old), _) => Ok(Config { backing_in_regions: false, ..old.clone() }),
        (None, medium) => Ok(Config::new(medium.unwrap_or(MediumKind::Logged), String::new())),
    }
}

/// The disks of the pool with this UUID that replaces `old`: it keeps the disks of that UUID.
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
    let memory_path = Some(config.nvram_path(dir)).filter(|path| config.medium != MediumKind::Logged && path.exists());
    // A pool whose memory is lost gets a new memory and a new backing.
    let is_lost = old.is_some() && config.medium != MediumKind::Logged;
    let there =
        memory_path.or_else(|| config.backing_dir(dir).filter(|backing| !is_lost && paths::has_backing_files(backing)));
    match there {
        Some(path) if !force => {
            let path = path.display();
            Err(Error::Pool(format!("{path} exists; overwrite it with `conquest restore --force`")))
        }
        // Files that are no part of a pool stay.
        Some(_) if old.is_none() && config.medium == MediumKind::Logged => refuse_foreign_backing(dir),
        Some(path) if old.is_none() => file::refuse_target(&path, 0, force, false),
        Some(_) => locks::refuse_attached(&config.lock_path(dir)),
        None => Ok(()),
    }
}

/// Memory that only its name leads to, as the backing has no files.
fn orphan(dir: &Path, old: Option<&Config>, force: bool) -> Result<Option<std::path::PathBuf>> {
    let orphan = old.filter(|_| !dir.join(IMAGE).exists()).map(|old| salvage::find(dir, old));
    let Some(memory) = orphan.transpose()?.flatten() else { return Ok(None) };
    shared::refuse_mapped(&memory)?;
    match force {
        true => Ok(Some(memory)),
        false => Err(Error::Pool(format!(
            "{} is the memory of this pool, whose backing is gone: all that is left of it. Save it first with `conquest save`, \
             or give it up with `conquest restore --force`",
            memory.display()
        ))),
    }
}

/// Overwrites the memory, a device; no process attaches until all is done.
fn restore_device(dir: &Path, image: &Path, config: &Config, over: Over, progress: Progress) -> Result<Restored> {
    let path = config.nvram_path(dir);
    let (content, _held) = device::restore_device(image, &path, config.uuid_bytes().ok(), progress)?;
    let info = *content.info();
    // The backing of the old memory.
    config.backing_dir(dir).iter().for_each(|backing| files::remove(backing));
    let disks = disks(dir, Some(config), info.uuid, true)?;
    let new = Config { uuid: uuid::text(&info.uuid), disks, ..config.clone() };
    let refill = Refill { dir, old: Some(config), config: &new, force: over.force, given: over.disks, staged: None };
    let memory = || map_private(&open_memory(&path)?, &path);
    let (disks, restored) = content_of(&refill, OfImage { content, progress }, &memory)?;
    let new = Config { disks, ..new };
    let uuid = config.uuid_bytes().unwrap_or(info.uuid);
    place::left_behind(dir, Some(config), &new).try_for_each(|entry| place::remove(dir, entry, uuid))?;
    new.write(dir)?;
    Ok(restored)
}
