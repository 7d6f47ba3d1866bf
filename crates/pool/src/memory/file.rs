//! The memory's file or device: making it, finding it, opening it.

use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use backing::log::Identity;
use backing::save::{is_at, Content, Progress};
use backing::{import, Backing, Disks};
use exraid::duplex::Duplex;
use pram::memory::HEADERS;
use pram::session::Exclusive;
use pram::Memory;

use super::locks::{self, hold, Check};
use super::map::{device, map_file, medium_of, named, open_both, open_failed, refuse_data, Made};
use super::shared;
use crate::medium::MediumKind;
use crate::paths::{self, staged_beside};
use conquest_fs::error::{Error, Result};
use conquest_fs::layout;

/// Fails if no memory can be made at `path`, or if existing content would be lost: memory of a pool is only lost with `force`, other
/// content never, except that of the replaced pool's file.
pub fn refuse_target(path: &Path, size: u64, force: bool, is_own: bool) -> Result<()> {
    if size > 0 {
        pram::memory::Geometry::of(size)?;
    }
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    if found.is_dir() {
        return Err(Error::Pool(format!("{} is a directory; give a file or a device", path.display())));
    }
    match found.is_file() && !(force && is_own) {
        true => refuse_data(path, force),
        // A device is checked as such.
        false => Ok(()),
    }
}

/// Makes the file of the future memory at `path`, beside the existing one.
pub fn make(path: &Path, medium: MediumKind, size: u64) -> Result<Made> {
    let found = fs::metadata(path).ok();
    if found.as_ref().is_some_and(|found| found.file_type().is_char_device()) {
        return Err(Error::Pool(format!("{} is a device; a DAX device needs `--medium dax`", path.display())));
    }
    if found.as_ref().is_some_and(|found| !found.is_file()) {
        return Err(Error::Pool(format!("{} is no regular file; give a file or a DAX device", path.display())));
    }
    let size = if size == 0 { found.map_or(0, |found| found.len()) } else { size } / pram::CHUNK * pram::CHUNK;
    pram::memory::Geometry::of(size)?;
    let file = make_beside(path)?;
    file.set_len(size).map_err(|e| no_room(path, size, &e))?;
    refuse_too_much(&file, path, size)?;
    if medium == MediumKind::Dax {
        // Its size too must survive a power cut; flushing its content is ours from here on.
        file.sync_all().map_err(|e| Error::host(path, &e))?;
    }
    Ok(Made { map: map_file(&file, path, medium, size)?, medium: medium_of(&file, path, medium)?, file })
}

/// Makes the file of the future memory at `path`, empty, which no other process makes.
pub fn make_beside(path: &Path) -> Result<fs::File> {
    let beside = staged_beside(path);
    let _ = fs::remove_file(&beside);
    let made = fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&beside);
    made.map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Error::Pool(format!("{}: not permitted to make a file in this directory", path.display()))
        }
        _ => Error::host(path, &e),
    })
}

/// Fails if the file system could never have so much, even if it were empty.
fn refuse_too_much(file: &fs::File, path: &Path, size: u64) -> Result<()> {
    match shared::total(file) {
        Some(total) if size > total => {
            let _ = fs::remove_file(staged_beside(path));
            Err(Error::Pool(format!(
                "{}: the file system has {} MiB in all; give --nvram SIZE no more than that",
                path.display(),
                total >> 20
            )))
        }
        _ => Ok(()),
    }
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

/// The memory, and its file.
pub fn format_memory(made: Made, path: &Path, uuid: [u8; 16], version: u32) -> Result<(Memory, fs::File)> {
    let memory = Memory::format(made.map, made.medium, uuid, version, pram::clock::precise()).map_err(|e| match e {
        pram::Error::Host { errno, .. } => no_room(path, 0, &errno.into()),
        e => e.into(),
    })?;
    backing::note_new(&memory)?;
    Ok((memory, made.file))
}

/// Makes the file of the future memory at `path` from an image, beside the existing one.
pub fn restore_memory(image: &Path, path: &Path, medium: MediumKind, progress: Progress) -> Result<Content> {
    let beside = staged_beside(path);
    let content = backing::save::restore_beside(image, path, &beside, medium.into(), progress)?;
    // Do not make a memory that could not be opened afterwards.
    if medium == MediumKind::Dax {
        let mapped = open_both(&beside).and_then(|file| map_file(&file, path, medium, content.info().size).map(drop));
        mapped.inspect_err(|_| _ = fs::remove_file(&beside))?;
    }
    Ok(content)
}

/// Makes the memory at `path` from a backing; returns the instant of its state, in nanoseconds since the epoch. If `check` refuses the
/// new file, the existing memory stays.
pub fn import(
    disks: &Disks,
    id: Identity,
    path: &Path,
    medium: MediumKind,
    check: Check,
    progress: Progress,
) -> Result<i64> {
    let way = &mut locks::clear_for(path, None, check);
    if medium == MediumKind::Dax && path.exists() {
        let file = open_both(path)?;
        if let Some(device) = device(&file, path, medium)? {
            let map = map_file(&file, path, medium, device.size)?;
            return Ok(import::device(disks, id, &map, &*medium_of(&file, path, medium)?, way, progress)?.time);
        }
    }
    Ok(import::file(disks, id, path, medium.into(), way, progress)?.time)
}

/// Whether there is no memory at `path`: no file, or a DAX device, which always exists, without a header.
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

/// The pool of the memory at `path`.
pub fn uuid_at(path: &Path, medium: MediumKind) -> Result<[u8; 16]> {
    let file = open_both(path)?;
    Ok(map_memory(&file, path, path, medium)?.info.uuid)
}

/// A memory to attach to, while no other process attaches.
pub struct Opened {
    pub memory: Memory,
    pub exclusive: Exclusive,
    pub backing: Option<Backing>,
    /// Where the backing lies, if in regions.
    pub duplex: Option<Arc<Duplex>>,
}

/// Opens and maps the memory at `path`, of the pool at `dir`; again if it was replaced before it could be locked. `None` if
/// another pool takes the place of this one.
pub fn open_memory(path: &Path, dir: &Path, medium: MediumKind) -> Result<Option<Opened>> {
    loop {
        let file = open_file(path, dir)?;
        let lock = file.try_clone().map_err(|e| Error::host(path, &e))?;
        // Refused at once if it is no memory: it may be in the making, for minutes.
        let exclusive = hold(lock, path, || map_memory(&file, path, dir, medium).map(drop))?;
        if paths::is_swap_due(dir) {
            return Ok(None);
        }
        if is_at(&exclusive, path)? {
            let memory = map_memory(&file, path, dir, medium)?;
            return Ok(Some(Opened { memory, exclusive, backing: None, duplex: None }));
        }
    }
}

fn open_file(path: &Path, dir: &Path) -> Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => missing(path, dir),
        _ => open_failed(path, &e),
    })
}

/// What to do if the memory of the pool at `dir` is missing.
pub fn missing(path: &Path, dir: &Path) -> Error {
    Error::Pool(format!(
        "the pool's persistent RAM {} is missing; put it back, make it from the pool's backing with `conquest import {1}`, or from an \
         image with `conquest restore {1} FILE`",
        path.display(),
        dir.display()
    ))
}

fn map_memory(file: &fs::File, path: &Path, dir: &Path, medium: MediumKind) -> Result<Memory> {
    let size = match device(file, path, medium)? {
        Some(device) => device.size,
        None => probe(file, path, dir, medium)?,
    };
    let map = map_file(file, path, medium, size)?;
    map.advise_huge();
    Memory::open(map, medium_of(file, path, medium)?).map_err(named(path))
}

/// The size of the memory in `file`, by its header.
fn probe(file: &fs::File, path: &Path, dir: &Path, medium: MediumKind) -> Result<u64> {
    let found = file.metadata().map_err(|e| Error::host(path, &e))?.len();
    let mut header = vec![0; HEADERS.min(found as usize)];
    file.read_exact_at(&mut header, 0).map_err(|e| Error::host(path, &e))?;
    let (size, kind) = Memory::probe(&header).map_err(named(path))?;
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

pub fn refuse_other_version(memory: &pram::Memory) -> Result<()> {
    if memory.info.app_version == layout::VERSION {
        return Ok(());
    }
    Err(Error::Pool(format!(
        "the pool has file system version {}, this program reads version {}",
        memory.info.app_version,
        layout::VERSION
    )))
}
