//! Which pools are mounted where.

use std::path::Path;
use std::time::Duration;

pub use fuse::mounts::{is_disconnected, Mounted, BLOCK_TYPE, TYPE};

use crate::failure::{Context, Failure, Result};

/// How long a mount may take to write back what is stored through mappings, where nobody has to have it.
const PATIENCE: Duration = Duration::from_secs(5);

/// All mounts, the later over the earlier.
pub fn all() -> Result<Vec<Mounted>> {
    fuse::mounts::all().context(unread)
}

/// All mounts that a process sees, as far as we may know.
pub fn seen_by(pid: u32) -> Vec<Mounted> {
    fuse::mounts::seen_by(pid).unwrap_or_default()
}

/// The mount on top at `dir`, of whatever type.
pub fn at(dir: &Path) -> Result<Option<Mounted>> {
    fuse::mounts::at(dir).context(unread)
}

/// The Conquest mount on top at `dir`.
pub fn conquest_at(dir: &Path) -> Result<Option<Mounted>> {
    Ok(at(dir)?.filter(Mounted::is_conquest))
}

/// All Conquest mounts, the later over the earlier.
pub fn conquest() -> Result<Vec<Mounted>> {
    Ok(all()?.into_iter().filter(Mounted::is_conquest).collect())
}

/// Has the kernel write back what programs have stored through mappings of the pool's files, where we see it mounted. Waits for
/// that, not for ever.
pub fn write_back(pool: &Path) -> Result<()> {
    let mounted = conquest()?.into_iter().find(|m| m.source == pool && m.is_alive());
    let Some(dir) = mounted.map(|mount| mount.dir) else { return Ok(()) };
    let what =
        || format!("what programs have stored through mappings of files at {} cannot be written back", dir.display());
    fuse::write_back(&dir, Some(PATIENCE)).context(what)
}

/// Fails if the pool is mounted.
pub fn refuse_mounted(pool: &Path) -> Result<()> {
    let Some(mounted) = conquest()?.into_iter().find(|m| m.source == pool) else { return Ok(()) };
    let (pool, dir) = (pool.display(), mounted.dir.display());
    Err(Failure::new(format!("{pool} is mounted at {dir}; unmount it first with `conquest umount {dir}`")))
}

fn unread() -> String {
    "cannot read the mount table".into()
}
