//! Opening and mapping a file or DAX device as its medium demands.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use exraid::disk::what_is_on;
use pram::dax::{self, Dax};
use pram::medium::{BATTERY, LOGGED};
use pram::mem::Sync;
use pram::memory::HEADERS;
use pram::{Mapping, Medium, Memory};
use rustix::io::Errno;

use super::shared::memory_size;
use crate::medium::MediumKind;
use conquest_fs::error::{Error, Result};

/// A file or device that is to become a memory: open, of its size; a file without memory yet.
pub struct Made {
    pub map: Mapping,
    pub medium: Box<dyn Medium>,
    pub file: fs::File,
}

pub fn open_both(path: &Path) -> Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).open(path).map_err(|e| open_failed(path, &e))
}

/// The DAX device behind `file`, if the medium is for such and it is no ordinary file.
pub fn device(file: &fs::File, path: &Path, medium: MediumKind) -> Result<Option<dax::Device>> {
    match medium {
        MediumKind::Dax => dax::device(file).map_err(named(path)),
        MediumKind::Battery | MediumKind::Logged => Ok(None),
    }
}

pub fn map_file(file: &fs::File, path: &Path, medium: MediumKind, len: u64) -> Result<Mapping> {
    match medium {
        MediumKind::Battery | MediumKind::Logged => {
            Mapping::growing(file, len, Sync::No, Memory::recorded_len).map_err(mapping_failed)
        }
        MediumKind::Dax => dax::map(file, len).map_err(named(path)),
    }
}

/// Maps the memory in an existing file for this process alone: its stores are not shared.
pub fn map_private(file: &fs::File, path: &Path) -> Result<Mapping> {
    let size = memory_size(file, path)?;
    Mapping::file_private(file, size).map_err(|e| Error::host(path, &e.into()))
}

pub fn medium_of(file: &fs::File, path: &Path, medium: MediumKind) -> Result<Box<dyn Medium>> {
    Ok(match medium {
        MediumKind::Battery => Box::new(BATTERY),
        MediumKind::Logged => Box::new(LOGGED),
        MediumKind::Dax => Box::new(Dax::of(file).map_err(named(path))?),
    })
}

/// An error of the layer below, with the memory's path.
pub fn named(path: &Path) -> impl Fn(pram::Error) -> Error + '_ {
    move |e| Error::Pool(format!("{}: {e}", path.display()))
}

fn mapping_failed(errno: Errno) -> Error {
    Error::Host { what: "mapping the memory".into(), errno }
}

pub fn open_failed(path: &Path, e: &std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::PermissionDenied => Error::Pool(format!(
            "{}: permission denied; a user who may not open the memory uses the pool through its mount",
            path.display()
        )),
        _ => Error::host(path, e),
    }
}

/// Fails if the file at `path` has content that may not be lost: a pool's memory only with `force`, other never.
pub fn refuse_data(path: &Path, force: bool) -> Result<()> {
    let file = fs::File::open(path).map_err(|e| open_failed(path, &e))?;
    let mut header = [0; HEADERS];
    let read = file.read_at(&mut header, 0).map_err(|e| Error::host(path, &e))?;
    if Memory::is_one(&header[..read]) {
        return if force { Ok(()) } else { Err(holds_a_pool(path)) };
    }
    match what_is_on(path, &file).map_err(|e| Error::Pool(e.to_string()))? {
        Some(_) => Err(holds_no_pool(path)),
        None => Ok(()),
    }
}

pub fn holds_a_pool(path: &Path) -> Error {
    Error::Pool(format!("{} holds data of a pool; `conquest format --force` destroys it", path.display()))
}

pub fn holds_no_pool(path: &Path) -> Error {
    let shown = path.display();
    Error::Pool(format!("{shown} holds data that is no pool's memory: name another place, or remove it yourself"))
}
