//! The host's files that belong to a pool: nothing else may replace one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use backing::save::written_at;
use pram::session::shared_prefix;
use rustix::fs::{statx, AtFlags, StatxFlags, CWD};

use crate::config::Config;
use crate::medium::MediumKind;
use crate::paths::{self, LOG, RUNTIME_DIR};
use conquest_fs::error::{Error, Result};

/// Fails if writing `file` would replace a file of the pool at `dir`, by any path.
pub fn refuse(dir: &Path, config: &Config, file: &Path) -> Result<()> {
    // The target of a link is replaced, not the link.
    let real = file.canonicalize().or_else(|_| std::path::absolute(file)).map_err(|e| Error::host(file, &e))?;
    let parts = pool_files(dir, config);
    let is_part = |path: &Path| parts.iter().any(|part| is_same(path, part)) || is_memory(config, path);
    match is_part(&real) || written_at(&real).is_some_and(|new| is_part(&new)) {
        true => Err(Error::Pool(format!("{} is a part of the pool itself; choose another file", file.display()))),
        false => Ok(()),
    }
}

/// The files of the pool, whether or not they exist. On `logged`, the memory is recognized by its name.
fn pool_files(dir: &Path, config: &Config) -> Vec<PathBuf> {
    let mut parts = vec![dir.join(paths::CONFIG), dir.join(LOG)];
    if config.medium != MediumKind::Logged {
        parts.push(config.nvram_path(dir));
    }
    parts.extend(config.disks.iter().map(|entry| entry.at(dir)));
    parts.extend(config.backing_dir(dir).iter().flat_map(|backing| paths::backing_files(backing)));
    parts
}

/// Whether it is, or would be, one of the pool's files in shared memory.
fn is_memory(config: &Config, path: &Path) -> bool {
    let Ok(uuid) = config.uuid_bytes() else { return false };
    let (dir, name) = (path.parent(), path.file_name().unwrap_or_default());
    name.as_bytes().starts_with(shared_prefix(&uuid).as_bytes())
        && dir.is_some_and(|dir| are_equal(identity(dir), identity(RUNTIME_DIR.as_ref())))
}

/// Whether both are one file, or one place for a missing file.
fn is_same(one: &Path, other: &Path) -> bool {
    are_equal(identity(one), identity(other)) || are_equal(entry_of(one), entry_of(other))
}

fn are_equal<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    one.is_some() && one == other
}

/// The numbers of a file system and of a file in it. The file system's server, which may be stopped, is not asked.
fn identity(path: &Path) -> Option<(u32, u32, u64)> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
}

fn entry_of(path: &Path) -> Option<((u32, u32, u64), &OsStr)> {
    Some((identity(path.parent()?)?, path.file_name()?))
}
