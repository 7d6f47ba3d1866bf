//! Default places, absolute paths, and which pool a path belongs to.

use std::path::{Path, PathBuf};

use fs::Pool;

use crate::failure::{Context, Failure, Result};
use crate::mounts;

/// `CONQUEST_POOL`, or a place that the caller may write.
pub fn default_pool() -> Result<PathBuf> {
    if let Some(pool) = std::env::var_os("CONQUEST_POOL").filter(|v| !v.is_empty()) {
        return Ok(pool.into());
    }
    if is_root() {
        return Ok("/var/lib/conquest/default".into());
    }
    match std::env::var_os("XDG_DATA_HOME").filter(|v| !v.is_empty()) {
        Some(data) => Ok(PathBuf::from(data).join("conquest/default")),
        None => Ok(home()?.join(".local/share/conquest/default")),
    }
}

/// Where `conquest up` mounts.
pub fn default_dir() -> Result<PathBuf> {
    if is_root() {
        Ok("/mnt/conquest".into())
    } else {
        Ok(home()?.join("conquest"))
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn home() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").filter(|v| !v.is_empty());
    home.map(PathBuf::from).ok_or_else(|| Failure::new("HOME is not set; name the directories on the command line"))
}

/// The absolute path without symbolic links, also of what does not exist yet and of a mount whose server
/// is gone (where only the parent can be asked).
pub fn absolute(path: &Path) -> Result<PathBuf> {
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    let lexical = std::path::absolute(path).context(|| format!("{} is no usable path", path.display()))?;
    Ok(match (lexical.parent(), lexical.file_name()) {
        (Some(parent), Some(name)) => absolute(parent)?.join(name),
        _ => lexical,
    })
}

/// The pool that `path` means: a pool directory, or the pool that is mounted there.
pub fn pool(path: &Path) -> Result<PathBuf> {
    let path = absolute(path)?;
    if let Some(mounted) = mounts::conquest_at(&path)? {
        return Ok(mounted.source);
    }
    if Pool::exists(&path) {
        return Ok(path);
    }
    Err(no_pool(&path))
}

pub fn no_pool(path: &Path) -> Failure {
    let shown = path.display();
    match std::fs::metadata(path.join("pool.toml")) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            Failure::new(format!("{shown}: permission denied; ask its owner, or run the command as root"))
        }
        _ => Failure::new(format!("there is no pool at {shown}; make one with `conquest format {shown}`")),
    }
}
