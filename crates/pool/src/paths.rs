//! Names and paths of a pool's files, on disk and in shared memory.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use exraid::owner::{self, Foreign};
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Serialize, Serializer};

use conquest_fs::error::{Error, Result};

/// The settings and media of a pool, in its directory.
pub const CONFIG: &str = "pool.toml";
pub const DEFAULT_NVRAM: &str = "nvram";
/// The default disk of a pool.
pub const DISK: &str = "disk";
/// The log of a mount's server, in the pool directory.
pub const LOG: &str = "server.log";
pub const IMAGE: &str = "image";
pub const LOGS: [&str; 2] = ["redo-0", "redo-1"];
/// The files of a backing in the order in which they move into place: without the image, the last, there is no backing.
pub const BACKING: [&str; 3] = [LOGS[0], LOGS[1], IMAGE];
/// The directory of runtime files: memory that all processes share and a reboot loses.
pub const RUNTIME_DIR: &str = "/dev/shm";

/// The directory in which a pool is made, in the pool directory; and its name once it is decided that the new pool takes its place.
pub const STAGING: &str = ".restored";
pub const DECIDED: &str = ".restored-whole";

/// The findings of scrubbing that are not acknowledged.
pub const DAMAGE: &str = "damage.json";
/// Locked to change the findings.
pub const DAMAGE_LOCK: &str = ".damage";

/// Locked to rebuild members of regions.
pub const REBUILD: &str = ".rebuild";

/// The name of `pool.toml` once it is decided that its pool is destroyed.
pub const DESTROYED: &str = "pool.toml.destroyed";

/// A path may be any bytes, which JSON cannot hold.
pub fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

pub fn as_text_if_any<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.display().to_string()).serialize(to)
}

/// The files of a backing in `dir`, whether or not they are there.
pub fn backing_files(dir: &Path) -> [PathBuf; 3] {
    [IMAGE, LOGS[0], LOGS[1]].map(|name| dir.join(name))
}

/// The path without symbolic links, also of a file that is not there.
pub fn real(path: &Path) -> PathBuf {
    let beside = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.into())
}

/// Whether any file of a backing lies in `dir`.
pub fn has_backing_files(dir: &Path) -> bool {
    backing_files(dir).iter().any(|path| path.exists())
}

/// Whether a pool that was decided on has not taken its place yet.
pub fn is_swap_due(dir: &Path) -> bool {
    dir.join(DECIDED).exists()
}

/// The path of the new file that is to replace the memory at `path`.
pub fn staged_beside(path: &Path) -> PathBuf {
    // The target of a link is replaced, not the link.
    let real = path.canonicalize().unwrap_or_else(|_| path.into());
    let mut hidden = OsString::from(".");
    hidden.push(real.file_name().unwrap_or_default());
    hidden.push(STAGING);
    real.with_file_name(hidden)
}

/// Opens a file of the pool directory `dir`, or makes it, by these flags: a file that is [ours](owner). `None` if there is none.
pub fn open_own(dir: &Path, name: &str, flags: OFlags) -> Result<Option<fs::File>> {
    let path = dir.join(name);
    let file = match owner::open_within(dir, name.as_ref(), flags) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::LOOP) => return Err(Foreign::Link(path).into()),
        Err(e) => return Err(Error::host(&path, &e)),
    };
    owner::refuse_foreign_open(&file, &path)?;
    match file.metadata().map_err(|e| Error::host(&path, &e))?.is_file() {
        true => Ok(Some(file)),
        false => Err(Error::Pool(format!("{} is no file; remove it", path.display()))),
    }
}

/// The same for writing: it is made where there is none.
pub fn open_or_make(dir: &Path, name: &str) -> Result<fs::File> {
    let opened = open_own(dir, name, OFlags::WRONLY | OFlags::CREATE)?;
    opened.ok_or_else(|| Error::host(dir, &ErrorKind::NotFound.into()))
}

/// Makes a directory in which no other user may write.
pub fn make_dir(dir: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Error::Pool(format!("{}: not permitted to make the pool directory", dir.display()))
        }
        _ => Error::host(dir, &e),
    })
}
