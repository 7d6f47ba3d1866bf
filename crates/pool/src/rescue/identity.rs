//! The pool to which memory belongs.
//!
//! Memory is named after the UUID of its pool and the numbers of the file `image`. Pools that were restored from one image
//! have one UUID; a disk that is attached anew gives its files another number, and a lost file has none. So memory
//! notes, with its marks, the path of its backing, and the backing's lineage, which a restored pool does not share. Each opening of
//! the pool notes the path anew, since its directory may have been renamed.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use backing::log;
use pram::marks::Marks;

use crate::memory::locks;
use crate::memory::shared::open_plain;
use crate::paths::{self, DECIDED, IMAGE, LOGS};
use conquest_fs::error::{Error, Result};

/// Position of the backing's path in the marks' notes, and its bytes, padded with zeros.
const PATH_AT: u64 = 1024;
const PATH: usize = 1024;
/// Position of its lineage there.
const LINEAGE_AT: u64 = PATH_AT + PATH as u64;
/// A backing: the UUID of its pool, and its lineage.
type Key = ([u8; 16], u32);

/// The origin of memory, as its notes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryIdentity {
    dir: Option<PathBuf>,
    key: Key,
}

impl MemoryIdentity {
    /// The identity of the memory of the pool `uuid` whose backing, of that lineage, lies in `dir`.
    pub fn of(dir: &Path, uuid: [u8; 16], lineage: u32) -> Result<MemoryIdentity> {
        let dir = std::path::absolute(dir).map_err(|e| Error::host(dir, &e))?;
        // A path that is too long for a note is left out.
        let dir = Some(dir).filter(|dir| dir.as_os_str().len() < PATH);
        Ok(MemoryIdentity { dir, key: (uuid, lineage) })
    }

    /// Reads the marks of memory of the pool `uuid`.
    pub fn read(marks: &Marks, uuid: [u8; 16]) -> Result<MemoryIdentity> {
        let path: [u8; PATH] = marks.note(PATH_AT)?;
        let len = path.iter().position(|b| *b == 0).unwrap_or(0);
        let dir = (len > 0).then(|| Path::new(std::ffi::OsStr::from_bytes(&path[..len])).to_path_buf());
        Ok(MemoryIdentity { dir, key: (uuid, marks.note(LINEAGE_AT)?) })
    }

    /// Writes the notes.
    pub fn write(&self, marks: &Marks) -> Result<()> {
        if MemoryIdentity::read(marks, self.key.0)? == *self {
            return Ok(());
        }
        let mut path = [0u8; PATH];
        let dir = self.dir.as_ref().map_or(&[][..], |dir| dir.as_os_str().as_bytes());
        path[..dir.len()].copy_from_slice(dir);
        marks.set_note(PATH_AT, &path)?;
        Ok(marks.set_note(LINEAGE_AT, &self.key.1)?)
    }

    /// The last directory of its backing, if that is noted.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Whether it is the memory of the pool at `dir`. The lineage in a log there decides; without a log, the path does.
    pub fn is(&self, dir: &Path) -> bool {
        match key_at(dir).filter(|_| self.is_known()) {
            // The directory may have been renamed; or it may be a copy whose original still exists.
            Some(key) => key == self.key && !self.is_anothers(dir),
            None => self.is_from(dir),
        }
    }

    /// Whether it is the memory of another pool than that at `dir`, and that pool still exists.
    pub fn is_anothers(&self, dir: &Path) -> bool {
        self.is_known() && !self.is_from(dir) && self.is_in_place()
    }

    /// Whether the pool of this memory, called `name`, is gone: its directory or all files in it, or another pool has replaced it. A
    /// process that makes a pool there [holds](Self::hold_gone) the directory before that.
    pub fn is_gone(&self, name: &str) -> bool {
        let Some(dir) = &self.dir else { return false };
        // A pool in the making, before it moves to the directory itself.
        if fs::metadata(dir.join(DECIDED).join(IMAGE)).is_ok_and(|image| is_named_after(name, &image)) {
            return false;
        }
        match fs::metadata(dir.join(IMAGE)) {
            Ok(image) if is_named_after(name, &image) => false,
            Ok(_) if !self.is_known() => true,
            Ok(_) => key_at(dir).is_some_and(|key| key != self.key),
            Err(e) => {
                e.kind() == std::io::ErrorKind::NotFound
                    && !dir.join(paths::CONFIG).exists()
                    && !paths::has_backing_files(dir)
            }
        }
    }

    /// The same while no process makes a pool there, nor can until the result is dropped.
    pub fn hold_gone(&self, name: &str) -> Option<locks::Unmade> {
        let unmade = locks::hold_unmade(self.dir.as_ref()?).ok()??;
        self.is_gone(name).then_some(unmade)
    }

    /// An older version that noted no lineage left 0.
    fn is_known(&self) -> bool {
        self.key.1 != 0
    }

    fn is_from(&self, dir: &Path) -> bool {
        let number = |dir: &Path| fs::metadata(dir).ok().map(|found| (found.dev(), found.ino()));
        self.dir.as_ref().is_some_and(|noted| match (number(noted), number(dir)) {
            // The directory is lost too.
            (None, None) => std::path::absolute(dir).is_ok_and(|dir| dir == *noted),
            (noted, dir) => noted == dir,
        })
    }

    /// Whether the backing, or a part of it, is still there.
    fn is_in_place(&self) -> bool {
        self.dir.as_ref().is_some_and(|dir| key_at(dir) == Some(self.key))
    }
}

/// The backing in `dir`, as long as one of its logs can be read.
fn key_at(dir: &Path) -> Option<Key> {
    LOGS.iter().find_map(|name| log::whose(&open_plain(&dir.join(name), false).ok()?).ok())
}

/// Whether memory that is called `name` is named after this image.
fn is_named_after(name: &str, image: &fs::Metadata) -> bool {
    name.ends_with(&format!("-{:x}-{:x}", image.dev(), image.ino()))
}
