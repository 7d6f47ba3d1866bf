//! Finds where pools are mounted.

use std::path::Path;

pub use fuse::mounts::{is_disconnected, Mounted, BLOCK_TYPE, TYPE};

use crate::failure::{Context, Failure, Result};

/// All mounts, later ones after earlier ones.
pub fn all() -> Result<Vec<Mounted>> {
    fuse::mounts::all().context(unread)
}

/// All mounts that a process sees; none if we may not look.
pub fn seen_by(pid: u32) -> Vec<Mounted> {
    fuse::mounts::seen_by(pid).unwrap_or_default()
}

/// The mount on top at `dir`, of any type.
pub fn at(dir: &Path) -> Result<Option<Mounted>> {
    fuse::mounts::at(dir).context(unread)
}

/// The Conquest mount on top at `dir`.
pub fn conquest_at(dir: &Path) -> Result<Option<Mounted>> {
    Ok(at(dir)?.filter(Mounted::is_conquest))
}

/// All Conquest mounts, later ones after earlier ones.
pub fn conquest() -> Result<Vec<Mounted>> {
    Ok(all()?.into_iter().filter(Mounted::is_conquest).collect())
}

/// The mounts of the pool that we see, the oldest first. Those without a living server are among them, except mounts
/// that another server has replaced.
pub fn of(pool: &Path) -> Result<Vec<Mounted>> {
    let all: Vec<Mounted> = conquest()?.into_iter().filter(|m| m.source == pool).collect();
    let replaces = |over: &Mounted, m: &Mounted| over.parent == m.id && over.dir == m.dir && over.number != m.number;
    Ok(all.iter().filter(|m| !all.iter().any(|over| replaces(over, m))).cloned().collect())
}

/// The mounts that answer.
pub fn alive(pool: &Path) -> Result<Vec<Mounted>> {
    Ok(of(pool)?.into_iter().filter(Mounted::is_alive).collect())
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
