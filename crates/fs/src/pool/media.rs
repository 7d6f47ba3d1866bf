//! Making and finding the region's file or device.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pram::copy::log::{now, Identity};
use pram::copy::{import, Copy, Disks};
use pram::dax::{self, Dax};
use pram::medium::{BATTERY, LOGGED};
use pram::random;
use pram::region::HEADERS;
use pram::save::{is_at, Progress, SaveInfo};
use pram::session::Exclusive;
use pram::{Mapping, Medium, Region};
use rustix::io::Errno;

use super::config::{host, uuid_text};
use super::MediumKind;
use super::{files, replaced, staged};
use crate::error::{Error, Result};

pub fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Error::Pool(format!("{}: not permitted to make the pool directory", dir.display()))
        }
        _ => host(dir, &e),
    })
}

/// One process at a time makes a pool in a directory, however it does; others wait. Goes with its process: the next one
/// finishes what it has left. Directories that were made for it and stay empty go too.
pub struct Making {
    _lock: Option<fs::File>,
    /// The innermost first.
    made: Vec<PathBuf>,
}

impl Making {
    pub fn begin(dir: &Path) -> Result<Making> {
        let making = loop {
            let made = dir.ancestors().take_while(|dir| !dir.exists()).map(Path::to_path_buf).collect();
            make_dir(dir)?;
            let file = fs::File::open(dir).map_err(|e| host(dir, &e))?;
            // Where a file system has no such locks it goes without.
            let locked = rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).is_ok();
            let found = file.metadata().map_err(|e| host(dir, &e))?;
            // Whoever failed before us may have taken it away.
            if fs::metadata(dir).is_ok_and(|there| (there.dev(), there.ino()) == (found.dev(), found.ino())) {
                break Making { _lock: locked.then_some(file), made };
            }
        };
        if replaced::is_due(dir) {
            tracing::warn!("{}: finishing what was interrupted", dir.display());
            replaced::finish(dir, &mut || Ok(()))?;
        }
        staged::clear(dir);
        Ok(making)
    }

    /// Finishes what was interrupted, if anything.
    pub fn settle(dir: &Path) -> Result<()> {
        match replaced::is_due(dir) {
            true => Making::begin(dir).map(drop),
            false => Ok(()),
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // What is not empty stays, and what it lies in.
        let _ = self.made.iter().try_for_each(fs::remove_dir);
    }
}

/// A version 4 UUID.
pub fn random_uuid() -> Result<String> {
    let mut bytes = random::bytes::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(uuid_text(&bytes))
}

pub fn random_key() -> Result<u64> {
    Ok(u64::from_le_bytes(random::bytes()?))
}

/// A file or device that is to become a region: open, zeroed, of its size.
pub struct Made {
    map: Mapping,
    medium: Box<dyn Medium>,
    pub file: fs::File,
}

/// Fails if nothing can be made at `path`, whatever is there, or what is there may not be lost.
pub fn refuse_target(path: &Path, size: u64, force: bool) -> Result<()> {
    if size > 0 {
        pram::region::Geometry::of(size / 4096 * 4096)?;
    }
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    if found.is_dir() {
        return Err(Error::Pool(format!("{} is a directory; give a file or a device", path.display())));
    }
    if found.len() > 0 && !force {
        return Err(holds_data(path));
    }
    Ok(())
}

/// Is there a DAX device at `path`, which stays what it is?
pub fn is_device(path: &Path, medium: MediumKind) -> Result<bool> {
    if medium != MediumKind::Dax || !path.exists() {
        return Ok(false);
    }
    Ok(device(&open_both(path)?, path, medium)?.is_some())
}

fn open_both(path: &Path) -> Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).open(path).map_err(|e| open_failed(path, &e))
}

/// Makes the file that is to be the region at `path`, beside what is there.
pub fn make(path: &Path, medium: MediumKind, size: u64) -> Result<Made> {
    let found = fs::metadata(path).ok();
    if found.as_ref().is_some_and(|found| found.file_type().is_char_device()) {
        return Err(Error::Pool(format!("{} is a device; a DAX device needs `--medium dax`", path.display())));
    }
    if found.as_ref().is_some_and(|found| !found.is_file()) {
        return Err(Error::Pool(format!("{} is no regular file; give a file or a DAX device", path.display())));
    }
    let size = if size == 0 { found.map_or(0, |found| found.len()) } else { size } / 4096 * 4096;
    pram::region::Geometry::of(size)?;
    let file = staged::make_beside(path)?;
    pram::reserve::reserve(&file, size, medium.into()).map_err(|e| no_room(path, size, &e))?;
    if medium == MediumKind::Dax {
        // Its size too must be there after a power cut; its content is from here on ours to flush.
        file.sync_all().map_err(|e| host(path, &e))?;
    }
    Ok(Made { map: map_file(&file, path, medium, size)?, medium: medium_of(&file, path, medium)?, file })
}

fn no_room(path: &Path, size: u64, e: &std::io::Error) -> Error {
    let beside = match path.exists() {
        true => " beside what is there, which stays until all of the new one is: remove it first, or",
        false => ";",
    };
    Error::Pool(format!(
        "{}: no room for {} MiB of persistent RAM ({e}){beside} give a smaller --nvram SIZE",
        path.display(),
        size >> 20
    ))
}

/// Takes the device at `path`: zeroed, what was there is lost.
pub fn take(path: &Path, size: u64, force: bool) -> Result<Made> {
    let file = open_both(path)?;
    match device(&file, path, MediumKind::Dax)? {
        Some(device) => take_device(file, path, device, size, force),
        None => Err(Error::Pool(format!("{} is no device any more; try again", path.display()))),
    }
}

pub fn holds_data(path: &Path) -> Error {
    Error::Pool(format!("{} holds data; destroy it with `conquest format --force`", path.display()))
}

/// An error of the layer below, with the region's path.
fn named(path: &Path) -> impl Fn(pram::Error) -> Error + '_ {
    move |e| Error::Pool(format!("{}: {e}", path.display()))
}

/// The DAX device that `file` is, if the medium is for such and it is no ordinary file.
fn device(file: &fs::File, path: &Path, medium: MediumKind) -> Result<Option<dax::Device>> {
    match medium {
        MediumKind::Dax => dax::device(file).map_err(named(path)),
        MediumKind::Battery | MediumKind::Logged => Ok(None),
    }
}

/// A device has its size, and is zeroed by stores.
fn take_device(file: fs::File, path: &Path, device: dax::Device, size: u64, force: bool) -> Result<Made> {
    if size > device.size {
        return Err(Error::Pool(format!(
            "{} has {} bytes, fewer than the {size} wanted; leave out --size",
            path.display(),
            device.size
        )));
    }
    let size = if size == 0 { device.size } else { size / device.align * device.align };
    pram::region::Geometry::of(size)?;
    let map = map_file(&file, path, MediumKind::Dax, size)?;
    if !force && !map.is_zero(0, HEADERS as u64)? {
        return Err(holds_data(path));
    }
    let medium = medium_of(&file, path, MediumKind::Dax)?;
    // The old header goes first, durably: whatever interrupts this leaves no pool that would be opened.
    for len in [HEADERS as u64, size] {
        map.zero(0, len)?;
        medium.flush(&map, 0, len);
        medium.fence(&map);
    }
    Ok(Made { map, medium, file })
}

fn map_file(file: &fs::File, path: &Path, medium: MediumKind, len: u64) -> Result<Mapping> {
    match medium {
        MediumKind::Battery | MediumKind::Logged => Mapping::file(file, len).map_err(mapping_failed),
        MediumKind::Dax => dax::map(file, len).map_err(named(path)),
    }
}

fn medium_of(file: &fs::File, path: &Path, medium: MediumKind) -> Result<Box<dyn Medium>> {
    Ok(match medium {
        MediumKind::Battery => Box::new(BATTERY),
        MediumKind::Logged => Box::new(LOGGED),
        MediumKind::Dax => Box::new(Dax::of(file).map_err(named(path))?),
    })
}

/// The region, and its file.
pub fn format_region(made: Made, uuid: [u8; 16], version: u32) -> Result<(Region, fs::File)> {
    let region = Region::format(made.map, made.medium, uuid, version, now())?;
    pram::copy::note_new(&region)?;
    Ok((region, made.file))
}

/// Keeps all from attaching to the region whose locks are at `path`, if there is one; fails if anybody has. Who comes
/// meanwhile waits.
pub fn hold_unused(path: &Path) -> Result<Option<Exclusive>> {
    loop {
        let file = match fs::OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(open_failed(path, &e)),
        };
        let held = Exclusive::over(file.into())?;
        if !is_at(&held, path)? {
            continue;
        }
        return match pram::session::in_use(&held)? {
            true => Err(in_use(path)),
            false => Ok(Some(held)),
        };
    }
}

/// What is done before the region at `path`, of the pool `old`, is lost, in order:
/// 1. Nobody attaches any more: what they change in a region that is gone would vanish. Who comes later finds the new one.
/// 2. The marks go, those of the old region and any that were left of one whose file had the new one's number: they would
///    say of the new one that its copy holds it.
fn make_way<'a>(
    path: &'a Path,
    old: Option<[u8; 16]>,
) -> impl FnMut(Option<&fs::File>, &[u8; 16]) -> pram::Result<Option<Exclusive>> + 'a {
    move |file, uuid| {
        let held = hold_unused(path).map_err(|e| pram::Error::Unusable(e.to_string()))?;
        let locks = [held.as_ref().map(AsFd::as_fd), file.map(AsFd::as_fd)];
        for lock in locks.into_iter().flatten() {
            old.iter().chain([uuid]).for_each(|uuid| files::forget_marks(lock, uuid));
        }
        Ok(held)
    }
}

/// Makes the file that is to be the region at `path` from an image, beside what is there.
pub fn restore_region(image: &Path, path: &Path, medium: MediumKind, progress: Progress) -> Result<SaveInfo> {
    let beside = replaced::beside(path);
    let info = pram::save::restore_beside(image, path, &beside, medium.into(), progress)?;
    // What could not be opened afterwards is not made.
    if medium == MediumKind::Dax {
        let mapped = open_both(&beside).and_then(|file| map_file(&file, path, medium, info.size).map(drop));
        mapped.inspect_err(|_| _ = fs::remove_file(&beside))?;
    }
    Ok(info)
}

/// Overwrites the device at `path`, the region of the pool `old`, from an image. Until what is returned too is dropped nobody
/// attaches to it.
pub fn restore_device(
    image: &Path,
    path: &Path,
    old: Option<[u8; 16]>,
    progress: Progress,
) -> Result<(SaveInfo, Option<Exclusive>)> {
    let file = open_both(path)?;
    let Some(device) = device(&file, path, MediumKind::Dax)? else {
        return Err(Error::Pool(format!("{} is no device any more; try again", path.display())));
    };
    let map = map_file(&file, path, MediumKind::Dax, device.size)?;
    let (mut way, mut held) = (make_way(path, old), None);
    let mut hold = |file: Option<&fs::File>, uuid: &[u8; 16]| {
        held = way(file, uuid)?;
        Ok(None)
    };
    let medium = medium_of(&file, path, MediumKind::Dax)?;
    let info = pram::save::restore_into(image, &map, &*medium, &mut hold, progress)?;
    Ok((info, held))
}

/// Makes the region at `path` from a copy; the instant that it is of, nanoseconds since the epoch.
pub fn import(disks: &Disks, id: Identity, path: &Path, medium: MediumKind, progress: Progress) -> Result<i64> {
    let way = &mut make_way(path, None);
    if medium == MediumKind::Dax && path.exists() {
        let file = open_both(path)?;
        if let Some(device) = device(&file, path, medium)? {
            let map = map_file(&file, path, medium, device.size)?;
            return Ok(import::device(disks, id, &map, &*medium_of(&file, path, medium)?, way, progress)?.time);
        }
    }
    Ok(import::file(disks, id, path, medium.into(), way, progress)?.time)
}

/// Is there no region at `path`: no file, or a DAX device, which is always there, without a header?
pub fn is_lost(path: &Path, medium: MediumKind) -> Result<bool> {
    if !path.exists() {
        return Ok(true);
    }
    let file = open_both(path)?;
    match device(&file, path, medium)? {
        Some(device) => Ok(map_file(&file, path, medium, device.size)?.is_zero(0, HEADERS as u64)?),
        None => Ok(false),
    }
}

fn mapping_failed(errno: Errno) -> Error {
    Error::Host { what: "mapping the region".into(), errno }
}

fn open_failed(path: &Path, e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::PermissionDenied => Error::Pool(format!(
            "{}: permission denied; who may not open the region uses the pool through its mount",
            path.display()
        )),
        _ => host(path, e),
    }
}

/// A region that is to be attached to, while nobody else attaches.
pub struct Opened {
    pub region: Region,
    pub exclusive: Exclusive,
    pub copy: Option<Copy>,
}

/// Opens and maps the region at `path`, of the pool at `dir`; again if it was replaced before it could be locked. `None` if
/// another pool takes the place of this one.
pub fn open_region(path: &Path, dir: &Path, medium: MediumKind) -> Result<Option<Opened>> {
    loop {
        let file = open_file(path, dir)?;
        let lock = file.try_clone().map_err(|e| host(path, &e))?;
        // Refused at once if it is none: it may be in the making, for minutes.
        let exclusive = hold(lock, path, || map_region(&file, path, dir, medium).map(drop))?;
        if replaced::is_due(dir) {
            return Ok(None);
        }
        if is_at(&exclusive, path)? {
            let region = map_region(&file, path, dir, medium)?;
            return Ok(Some(Opened { region, exclusive, copy: None }));
        }
    }
}

/// Waits for those who attach to a region or replace it, whose locks are in `file`, unless `check` says that it is no use.
pub fn hold(file: fs::File, path: &Path, check: impl FnOnce() -> Result<()>) -> Result<Exclusive> {
    let again = file.try_clone().map_err(|e| host(path, &e))?;
    if let Some(held) = Exclusive::try_over(file.into())? {
        return Ok(held);
    }
    check()?;
    tracing::info!("{}: waiting for another process that opens the pool or replaces it", path.display());
    Ok(Exclusive::over(again.into())?)
}

fn open_file(path: &Path, dir: &Path) -> Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::Pool(format!(
            "the pool's persistent RAM {} is missing; put it back, make it from the pool's copy on disk with \
             `conquest import {1}`, or from an image with `conquest restore {1} FILE`",
            path.display(),
            dir.display()
        )),
        _ => open_failed(path, &e),
    })
}

fn map_region(file: &fs::File, path: &Path, dir: &Path, medium: MediumKind) -> Result<Region> {
    let size = match device(file, path, medium)? {
        Some(device) => device.size,
        None => probe(file, path, dir, medium)?,
    };
    let map = map_file(file, path, medium, size)?;
    map.advise_huge();
    Region::open(map, medium_of(file, path, medium)?).map_err(named(path))
}

/// The size of the region in `file`, by its header.
fn probe(file: &fs::File, path: &Path, dir: &Path, medium: MediumKind) -> Result<u64> {
    let found = file.metadata().map_err(|e| host(path, &e))?.len();
    let mut header = vec![0; HEADERS.min(found as usize)];
    file.read_exact_at(&mut header, 0).map_err(|e| host(path, &e))?;
    let (size, kind) = Region::probe(&header).map_err(named(path))?;
    kind.expect(medium.into()).map_err(named(path))?;
    if found < size {
        return Err(Error::Pool(format!(
            "{} is truncated: {found} of {size} bytes are there; restore it with `conquest restore {} FILE`",
            path.display(),
            dir.display()
        )));
    }
    Ok(size)
}

/// Fails if any process works on the region at `path`.
pub fn refuse_in_use(path: &Path) -> Result<()> {
    let file = match fs::OpenOptions::new().read(true).write(true).open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(open_failed(path, &e)),
    };
    match pram::session::in_use(file)? {
        true => Err(in_use(path)),
        false => Ok(()),
    }
}

fn in_use(path: &Path) -> Error {
    Error::Pool(format!("{} is in use; unmount the pool first", path.display()))
}
