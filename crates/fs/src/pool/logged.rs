//! The memory of a pool on ordinary RAM (`logged`): shared memory that outlives every process, what of it has
//! changed since the last commit, and its copy on disk.
//!
//! ```text
//! pool directory   image, redo-0, redo-1     the copy; the image's locks say who is attached
//! /dev/shm         conquest-…-region         the region
//!                  conquest-…-marks          what has changed, how far the logs have come
//!                  conquest-…                the runtime segment, while somebody is attached
//! ```
//! After a reboot nothing is in `/dev/shm`, and the region is made from the copy; after all processes were killed
//! everything is, and work goes on at once. If only the marks are gone, region and copy are compared.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pram::copy::{self, Copy, Disks};
use pram::dirty::Dirty;
use pram::log::Identity;
use pram::medium::LOGGED;
use pram::region::HEADERS;
use pram::session::{self, Exclusive};
use pram::{Mapping, Region};
use rustix::fs::{FallocateFlags, OFlags};

use super::config::{host, uuid_text};
use super::media::Opened;
use super::RUNTIME_DIR;
use crate::error::{Error, Result};

const IMAGE: &str = "image";
const LOGS: [&str; 2] = ["redo-0", "redo-1"];
/// Bytes of each log; one is folded into the image when it is half full.
fn log_bytes(size: u64) -> u64 {
    (size / 16).clamp(8 << 20, 128 << 20) >> 20 << 20
}

/// The files of a copy, open.
struct Files {
    lock: fs::File,
    disks: Disks,
}

impl Files {
    /// Opens the copy in `dir`.
    fn open(dir: &Path) -> Result<Files> {
        let open = |name: &str| {
            let path = dir.join(name);
            fs::OpenOptions::new().read(true).write(true).open(&path).map_err(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Error::Pool(format!(
                    "{} is missing: a part of the pool's copy on disk; put it back",
                    path.display()
                )),
                std::io::ErrorKind::PermissionDenied => Error::Pool(format!(
                    "{}: permission denied; who may not open the pool uses it through its mount",
                    path.display()
                )),
                _ => host(&path, &e),
            })
        };
        let logs = [Arc::new(open(LOGS[0])?) as copy::SharedDisk, Arc::new(open(LOGS[1])?)];
        // Two open files: the locks of one must not be those of the other's reads and writes.
        Ok(Files { lock: open(IMAGE)?, disks: Disks { image: Arc::new(open(IMAGE)?), logs } })
    }

    /// Makes the files of a copy in `dir`, empty but for the logs, of which every block is written: a flush then
    /// has nothing to tell the host's file system.
    fn make(dir: &Path, bytes: u64) -> Result<Files> {
        for name in [IMAGE, LOGS[0], LOGS[1]] {
            let path = dir.join(name);
            let made = (|| {
                let mut how = fs::OpenOptions::new();
                let file = how.read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
                if name != IMAGE {
                    let zeros = vec![0; 1 << 20];
                    for at in (0..bytes).step_by(zeros.len()) {
                        file.write_all_at(&zeros, at)?;
                    }
                }
                file.sync_all()
            })();
            if let Err(e) = made {
                remove_copy(dir);
                return Err(host(&path, &e));
            }
        }
        Files::open(dir)
    }

    /// The paths in shared memory of the pool's region and marks.
    fn shared(&self, uuid: &[u8; 16]) -> Result<[PathBuf; 2]> {
        let stat = rustix::fs::fstat(&self.lock).map_err(|errno| Error::Host { what: IMAGE.into(), errno })?;
        let name = session::shared_name(uuid, &stat);
        Ok(["region", "marks"].map(|what| Path::new(RUNTIME_DIR).join(format!("{name}-{what}"))))
    }
}

/// Where the region of the pool in `dir` is.
pub fn region_path(dir: &Path, uuid: &[u8; 16]) -> PathBuf {
    Files::open(dir).and_then(|files| files.shared(uuid)).map_or_else(|_| RUNTIME_DIR.into(), |[region, _]| region)
}

/// Makes an empty region of `size` bytes, and an empty copy in `dir`, for a pool that is being formatted.
pub fn make(dir: &Path, uuid: [u8; 16], size: u64, version: u32, created: i64) -> Result<(Region, Copy)> {
    let id = Identity { uuid, size: size / 4096 * 4096 };
    pram::region::Geometry::of(id.size)?;
    let files = Files::make(dir, log_bytes(id.size))?;
    let made = (|| {
        let [region, marks] = files.shared(&uuid)?;
        let loaded = copy::create(&files.disks, id, log_bytes(id.size))?;
        let map = make_shared(&region, &files.lock, id.size)?;
        let marks = Dirty::over(make_shared(&marks, &files.lock, Dirty::bytes(id.size))?, id.size)?;
        let copy = Copy::begin(files.disks.clone(), &marks, id, &loaded)?;
        let mut region = Region::format(map, Box::new(LOGGED), uuid, version, created)?;
        marks.mark(0, HEADERS as u64)?;
        region.track(marks);
        Ok((region, copy))
    })();
    if made.is_err() {
        remove(dir, &uuid);
    }
    made
}

/// Fails if any process works on the pool in `dir`.
pub fn refuse_in_use(dir: &Path) -> Result<()> {
    match dir.join(IMAGE).exists() {
        true => super::media::refuse_in_use(&dir.join(IMAGE)),
        false => Ok(()),
    }
}

/// Destroys the copy in `dir`, and what is in shared memory of it.
pub fn remove(dir: &Path, uuid: &[u8; 16]) {
    if let Ok(shared) = Files::open(dir).and_then(|files| files.shared(uuid)) {
        shared.iter().for_each(|path| _ = fs::remove_file(path));
    }
    remove_copy(dir);
}

fn remove_copy(dir: &Path) {
    [IMAGE, LOGS[0], LOGS[1]].iter().for_each(|name| _ = fs::remove_file(dir.join(name)));
}

/// Opens the region of the pool in `dir`; makes it from the copy where it is not in memory any more.
pub fn open(dir: &Path, uuid: [u8; 16]) -> Result<Opened> {
    let files = Files::open(dir)?;
    let id = copy::identify(&files.disks).map_err(|e| Error::Pool(format!("{}: {e}", dir.join(IMAGE).display())))?;
    if id.uuid != uuid {
        return Err(Error::Pool(format!(
            "{} belongs to another pool ({}); put the right one back",
            dir.join(IMAGE).display(),
            uuid_text(&id.uuid)
        )));
    }
    let [region, marks] = files.shared(&uuid)?;
    let lock = files.lock.try_clone().map_err(|e| host(dir, &e))?;
    let exclusive = Exclusive::over(lock.into())?;
    let attached = session::in_use(&exclusive)?;
    let memory = Memory { dir, id, files: &files, region: &region, marks: &marks };
    let (region, copy) = match (open_shared(&region, &files.lock)?, open_shared(&marks, &files.lock)?) {
        (Some(region), Some(marks)) => memory.join(region, marks, attached)?,
        _ if attached => {
            return Err(Error::Pool(format!(
                "processes work on the pool, but its memory {} is not there: it was deleted, or belongs to another \
                 container; end them (what they do still reaches the copy on disk), then open the pool again",
                region.display()
            )));
        }
        (Some(region), None) => memory.compare(region)?,
        (None, _) => memory.load()?,
    };
    Ok(Opened { region, exclusive, copy: Some(copy) })
}

/// A pool's memory and copy, with nobody attaching meanwhile.
struct Memory<'a> {
    dir: &'a Path,
    id: Identity,
    files: &'a Files,
    region: &'a Path,
    marks: &'a Path,
}

impl Memory<'_> {
    /// Everything is there.
    fn join(&self, region: fs::File, marks: fs::File, attached: bool) -> Result<(Region, Copy)> {
        let tracked = match has_len(&marks, Dirty::bytes(self.id.size))? {
            true => Dirty::over(map(&marks, self.marks, Dirty::bytes(self.id.size))?, self.id.size)?,
            false => return self.compare(region),
        };
        match Copy::resume(self.files.disks.clone(), &tracked, self.id).map_err(|e| self.not_its_copy(&e))? {
            Some(copy) => Ok((self.open(&region, tracked)?, copy)),
            None if attached => Err(Error::Pool(format!("{} is damaged", self.marks.display()))),
            None => self.compare(region),
        }
    }

    fn not_its_copy(&self, e: &pram::Error) -> Error {
        Error::Pool(format!(
            "the pool's memory {} and its copy in {} do not belong together: {e}. Put back the copy that was there, or \
             remove the memory to open the pool as the copy has it",
            self.region.display(),
            self.dir.display()
        ))
    }

    /// Nobody knows what of the region has changed.
    fn compare(&self, region: fs::File) -> Result<(Region, Copy)> {
        tracing::warn!("{} was lost; comparing the pool's memory with its copy", self.marks.display());
        let marks = Dirty::over(make_shared(self.marks, &self.files.lock, Dirty::bytes(self.id.size))?, self.id.size)?;
        // Not tracked yet: what is found to differ is marked first.
        let there =
            Region::open(map(&region, self.region, self.id.size)?, Box::new(LOGGED)).map_err(|e| self.lost(&e))?;
        let loaded = copy::compare(&self.files.disks, self.id, &there, &marks)?;
        let copy = Copy::begin(self.files.disks.clone(), &marks, self.id, &loaded)?;
        Ok((self.open(&region, marks)?, copy))
    }

    /// The memory is gone: after a reboot.
    fn load(&self) -> Result<(Region, Copy)> {
        let _ = fs::remove_file(self.marks);
        let new = self.region.with_extension("new");
        let memory = make_shared(&new, &self.files.lock, self.id.size)?;
        let made = (|| {
            let loaded = copy::load(&self.files.disks, self.id, &mut |off, bytes| memory.write(off, bytes))?;
            let marks =
                Dirty::over(make_shared(self.marks, &self.files.lock, Dirty::bytes(self.id.size))?, self.id.size)?;
            let copy = Copy::begin(self.files.disks.clone(), &marks, self.id, &loaded)?;
            // Complete from here on: a process that dies before leaves no memory.
            fs::rename(&new, self.region).map_err(|e| host(self.region, &e))?;
            tracing::info!("the pool's memory was made from its copy, as of {} ns after the epoch", loaded.as_of.time);
            let mut region = Region::open(memory, Box::new(LOGGED))?;
            region.track(marks);
            Ok((region, copy))
        })();
        if made.is_err() {
            let _ = fs::remove_file(&new);
        }
        made
    }

    fn open(&self, file: &fs::File, marks: Dirty) -> Result<Region> {
        let map = map(file, self.region, self.id.size)?;
        map.advise_huge();
        let mut region = Region::open(map, Box::new(LOGGED)).map_err(|e| self.lost(&e))?;
        if region.info.uuid != self.id.uuid {
            return Err(self.lost(&pram::Error::Unusable("it belongs to another pool".into())));
        }
        region.track(marks);
        Ok(region)
    }

    fn lost(&self, e: &pram::Error) -> Error {
        Error::Pool(format!(
            "the pool's memory {} is damaged: {e}. Remove it to open the pool as its copy in {} has it",
            self.region.display(),
            self.dir.display()
        ))
    }
}

fn has_len(file: &fs::File, len: u64) -> Result<bool> {
    Ok(file.metadata().map_err(|e| host(RUNTIME_DIR.as_ref(), &e))?.len() == len)
}

fn map(file: &fs::File, path: &Path, len: u64) -> Result<Mapping> {
    if !has_len(file, len)? {
        let found = file.metadata().map_err(|e| host(path, &e))?.len();
        return Err(Error::Pool(format!(
            "the pool's memory {} has {found} bytes, should have {len}: remove it to open the pool as its copy has it",
            path.display()
        )));
    }
    Mapping::file(file, len).map_err(|errno| Error::Host { what: format!("mapping {}", path.display()), errno })
}

/// A file in shared memory, if it is there. Anybody may make files there: only those of the pool's owner count.
fn open_shared(path: &Path, lock: &fs::File) -> Result<Option<fs::File>> {
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let file = match fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(host(path, &e)),
    };
    let (found, owner) = (file.metadata().map_err(|e| host(path, &e))?, lock.metadata().map_err(|e| host(path, &e))?);
    if found.uid() != owner.uid() && found.uid() != 0 {
        return Err(Error::Pool(format!("{} does not belong to the pool's owner; remove it", path.display())));
    }
    Ok(Some(file))
}

/// Makes a file in shared memory, zeroed, for whoever may open the pool; all of it at once, since a store must
/// never meet a full disk.
fn make_shared(path: &Path, lock: &fs::File, len: u64) -> Result<Mapping> {
    let _ = fs::remove_file(path);
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|e| host(path, &e))?;
    let owner = lock.metadata().map_err(|e| host(path, &e))?;
    let made = (|| {
        let _ = std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()));
        let _ = rustix::fs::fchmod(file.as_fd(), rustix::fs::Mode::from_raw_mode(owner.mode() & 0o666));
        rustix::fs::ftruncate(&file, len)?;
        // Marks are sparse.
        if !path.to_string_lossy().ends_with("marks") {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len)?;
        }
        Mapping::file(&file, len)
    })();
    made.map_err(|errno| {
        let _ = fs::remove_file(path);
        Error::Pool(format!(
            "{}: no room for {} MiB ({errno}); give the pool less with --nvram SIZE",
            path.display(),
            len >> 20
        ))
    })
}
