//! Making and finding the region's file.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use pram::medium::Battery;
use pram::{Mapping, Region};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::config::{host, uuid_text};
use crate::error::{Error, Result};

/// The two copies of a region's header.
const HEADER_BYTES: usize = 8192;

pub fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Error::Pool(format!("{}: not permitted to make the pool directory", dir.display()))
        }
        _ => host(dir, &e),
    })
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; N];
    fs::File::open(path).and_then(|mut f| f.read_exact(&mut bytes)).map_err(|e| host(path, &e))?;
    Ok(bytes)
}

/// A version 4 UUID.
pub fn random_uuid() -> Result<String> {
    let mut bytes = random::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(uuid_text(&bytes))
}

pub fn random_key() -> Result<u64> {
    Ok(u64::from_le_bytes(random()?))
}

/// A file that is to become a region: open, zeroed, of its size.
pub struct Made {
    file: fs::File,
    pub size: u64,
}

/// Makes the region's file, or takes the one that is there.
pub fn make(path: &Path, size: u64, force: bool) -> Result<Made> {
    if size > 0 {
        pram::region::Geometry::of(size / 4096 * 4096)?;
    }
    let exists = path.exists();
    if exists {
        refuse_in_use(path)?;
        let found = fs::metadata(path).map_err(|e| host(path, &e))?;
        if found.is_dir() {
            return Err(Error::Pool(format!("{} is a directory; give a file or a device", path.display())));
        }
        if found.len() > 0 && !force {
            return Err(Error::Pool(format!(
                "{} holds data; destroy it with `conquest format --force`",
                path.display()
            )));
        }
    }
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|e| open_failed(path, &e))?;
    let size = if size == 0 { file.metadata().map_err(|e| host(path, &e))?.len() } else { size };
    let size = size / 4096 * 4096;
    pram::region::Geometry::of(size)?;
    let sized = file.set_len(0).and_then(|()| file.set_len(size));
    sized.map_err(|e| host(path, &e))?;
    // All of it now: a store must never meet a full disk.
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(Made { file, size }),
        Err(errno) => {
            let _ = file.set_len(0);
            if !exists {
                let _ = fs::remove_file(path);
            }
            Err(Error::Pool(format!(
                "{}: no room for {} MiB of persistent RAM ({errno}); give a smaller --nvram SIZE",
                path.display(),
                size >> 20
            )))
        }
    }
}

pub fn format_region(made: &Made, uuid: [u8; 16], version: u32) -> Result<Region> {
    let map = Mapping::file(&made.file, made.size).map_err(mapping_failed)?;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64);
    Ok(Region::format(map, Box::new(Battery), uuid, version, created)?)
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

/// Opens and maps the region at `path`, of the pool at `dir`.
pub fn open_region(path: &Path, dir: &Path) -> Result<(Region, OwnedFd)> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::Pool(format!(
            "the pool's persistent RAM {} is missing; put it back, or make it from an image with `conquest restore {} FILE`",
            path.display(),
            dir.display()
        )),
        _ => open_failed(path, &e),
    })?;
    let found = file.metadata().map_err(|e| host(path, &e))?;
    let mut header = vec![0; HEADER_BYTES.min(found.len() as usize)];
    file.read_exact_at(&mut header, 0).map_err(|e| host(path, &e))?;
    let name = |e: pram::Error| Error::Pool(format!("{}: {e}", path.display()));
    let size = Region::probe(&header).map_err(name)?;
    if found.len() < size {
        return Err(Error::Pool(format!(
            "{} is truncated: {} of {size} bytes are there; restore it with `conquest restore {} FILE`",
            path.display(),
            found.len(),
            dir.display()
        )));
    }
    let map = Mapping::file(&file, size).map_err(mapping_failed)?;
    map.advise_huge();
    let region = Region::open(map, Box::new(Battery)).map_err(name)?;
    Ok((region, file.into()))
}

/// Fails if any process works on the region at `path`.
pub fn refuse_in_use(path: &Path) -> Result<()> {
    let file = match fs::OpenOptions::new().read(true).write(true).open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(open_failed(path, &e)),
    };
    if pram::session::in_use(&file.into())? {
        return Err(Error::Pool(format!("{} is in use; unmount the pool first", path.display())));
    }
    Ok(())
}
