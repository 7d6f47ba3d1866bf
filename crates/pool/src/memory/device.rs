//! A DAX device as a memory: it stays in place, and is overwritten there.

use std::fs;
use std::path::Path;

use backing::save::{Content, Progress};
use pram::dax;
use pram::memory::HEADERS;
use pram::session::Exclusive;
use pram::Memory;

use super::locks;
use super::map::{device, holds_a_pool, map_file, medium_of, open_both, Made};
use crate::medium::MediumKind;
use conquest_fs::error::{Error, Result};

/// Whether there is a DAX device at `path`.
pub fn is_device(path: &Path, medium: MediumKind) -> Result<bool> {
    if medium != MediumKind::Dax || !path.exists() {
        return Ok(false);
    }
    Ok(device(&open_both(path)?, path, medium)?.is_some())
}

/// Takes the device at `path`, zeroed: its content is lost.
pub fn take(path: &Path, size: u64, force: bool) -> Result<Made> {
    let file = open_both(path)?;
    match device(&file, path, MediumKind::Dax)? {
        Some(device) => take_device(file, path, device, size, force),
        None => Err(Error::Pool(format!("{} is no device any more; try again", path.display()))),
    }
}

/// Takes a device with its own size, and zeroes it by stores.
fn take_device(file: fs::File, path: &Path, device: dax::Device, size: u64, force: bool) -> Result<Made> {
    if size > device.size {
        return Err(Error::Pool(format!(
            "{} has {} bytes, fewer than the {size} wanted; leave out --size",
            path.display(),
            device.size
        )));
    }
    let size = if size == 0 { device.size } else { size / device.align * device.align };
    pram::memory::Geometry::of(size)?;
    let map = map_file(&file, path, MediumKind::Dax, size)?;
    if !force && !map.is_zero(0, HEADERS as u64)? {
        let mut header = [0; HEADERS];
        map.copy_out(0, &mut header)?;
        return Err(match Memory::is_one(&header) {
            true => holds_a_pool(path),
            false => Error::Pool(format!("{} holds data; to lose that, use --force", path.display())),
        });
    }
    let medium = medium_of(&file, path, MediumKind::Dax)?;
    // The old header goes first, durably: an interruption leaves no pool that could be opened.
    for len in [HEADERS as u64, size] {
        map.zero(0, len)?;
        medium.flush(&map, 0, len);
        medium.fence(&map);
    }
    Ok(Made { map, medium, file })
}

/// Removes the memory from the device at `path`.
pub fn clear(path: &Path) -> Result<()> {
    let file = open_both(path)?;
    let Some(device) = device(&file, path, MediumKind::Dax)? else { return Ok(()) };
    let map = map_file(&file, path, MediumKind::Dax, device.size)?;
    let medium = medium_of(&file, path, MediumKind::Dax)?;
    map.zero(0, HEADERS as u64)?;
    medium.flush(&map, 0, HEADERS as u64);
    medium.fence(&map);
    Ok(())
}

/// Overwrites the device at `path`, the memory of the pool `old`, from an image. No process attaches to it until the returned lock is
/// dropped too.
pub fn restore_device(
    image: &Path,
    path: &Path,
    old: Option<[u8; 16]>,
    progress: Progress,
) -> Result<(Content, Option<Exclusive>)> {
    let file = open_both(path)?;
    let Some(device) = device(&file, path, MediumKind::Dax)? else {
        return Err(Error::Pool(format!("{} is no device any more; try again", path.display())));
    };
    let map = map_file(&file, path, MediumKind::Dax, device.size)?;
    let mut check = |_: &fs::File| Ok(());
    let (mut way, mut held) = (locks::clear_for(path, old, &mut check), None);
    let mut hold = |file: Option<&fs::File>, uuid: &[u8; 16]| {
        held = way(file, uuid)?;
        Ok(None)
    };
    let medium = medium_of(&file, path, MediumKind::Dax)?;
    let content = backing::save::restore_into(image, &map, &*medium, &mut hold, progress)?;
    Ok((content, held))
}
