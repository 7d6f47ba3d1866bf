//! Making a pool: beside the existing files, whole, and then in place in one step.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | one process at a time makes a pool in a directory |
//! | [`format`] | an empty pool |
//! | [`restore`] | a pool from a saved image |
//! | [`refill`] | its disks, from an image with their content |
//! | [`import`] | a pool from its backing alone |
//! | [`from_disks`] | a pool from its disks alone |
//! | [`first_disk`] | the first disk of a pool that has none |
//! | [`relocate`] | moving the backing into the regions |
//! | [`reconcile`] | content of large files that a pool in the making lacks |
//! | [`destroy`] | removing all of a pool |
//! | [`staging`] | the directory in which a pool is made, beside the existing files |
//! | [`swap`] | the atomic swap: the new pool takes the place of the old, entirely or not at all |

pub mod destroy;
pub mod first_disk;
pub mod format;
pub mod from_disks;
pub mod import;
pub mod reconcile;
mod refill;
pub mod relocate;
pub mod restore;
mod staging;
mod swap;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use exraid::owner;

use crate::backing::{files, regions};
use crate::config::Config;
use crate::paths;
use conquest_fs::error::{Error, Result};

/// Called before each change; an error ends it there, as a power cut would.
pub type OnStep<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Does `work`, with a power cut before step `n` if it has so many.
#[cfg(test)]
fn cut_before(n: usize, work: impl FnOnce(OnStep) -> Result<()>) -> Result<()> {
    let mut steps = 0;
    work(&mut || {
        steps += 1;
        match steps == n {
            true => Err(Error::Pool("power cut".into())),
            false => Ok(()),
        }
    })
}

/// Lets one process at a time make a pool in a directory, in any way; others wait. Ends with its process: the next one
/// finishes an interrupted swap. Directories that were made for the pool and stay empty are removed.
pub struct Builder {
    _lock: Option<fs::File>,
    /// The innermost first.
    made: Vec<PathBuf>,
}

impl Builder {
    pub fn begin(dir: &Path) -> Result<Builder> {
        let builder = loop {
            owner::refuse_foreign_dir(dir)?;
            let made = dir.ancestors().take_while(|dir| !dir.exists()).map(Path::to_path_buf).collect();
            paths::make_dir(dir)?;
            let file = fs::File::open(dir).map_err(|e| Error::host(dir, &e))?;
            // A file system without such locks gives no protection.
            let locked = rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).is_ok();
            let found = file.metadata().map_err(|e| Error::host(dir, &e))?;
            // A process that failed before us may have removed it.
            if fs::metadata(dir).is_ok_and(|there| (there.dev(), there.ino()) == (found.dev(), found.ino())) {
                break Builder { _lock: locked.then_some(file), made };
            }
        };
        // Also an interrupted swap that is to be finished.
        let unfinished = [paths::STAGING, paths::DECIDED].map(|name| dir.join(name));
        unfinished.iter().try_for_each(|dir| owner::refuse_foreign_dir(dir))?;
        if paths::is_swap_due(dir) {
            tracing::warn!("{}: finishing what was interrupted", dir.display());
            swap::finish(dir, &mut || Ok(()))?;
        }
        if destroy::is_due(dir) {
            tracing::warn!("{}: a pool was not destroyed to the end; finishing that", dir.display());
            destroy::finish(dir, &mut || Ok(()))?;
            paths::make_dir(dir)?;
        }
        staging::clear(dir);
        Ok(builder)
    }

    /// Finishes an interrupted swap, if there is one.
    pub fn finish_interrupted(dir: &Path) -> Result<()> {
        match paths::is_swap_due(dir) {
            true => Builder::begin(dir).map(drop),
            false => Ok(()),
        }
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        // A directory that is not empty stays, and its parents.
        let _ = self.made.iter().try_for_each(fs::remove_dir);
    }
}

/// Removes the unfinished pool in `dir`, for the process that makes it.
pub fn give_up(dir: &Path) {
    staging::clear(dir);
}

/// Fails if a process writes to the backing of any of these pools, and would lose it: a process of another pool, or of a memory
/// that is gone.
pub fn refuse_used_backings<'a>(dir: &Path, pools: impl IntoIterator<Item = Option<&'a Config>>) -> Result<()> {
    let pools: Vec<&Config> = pools.into_iter().flatten().collect();
    if pools.iter().any(|config| config.backing_in_regions && regions::are_in_use(dir, config)) {
        return Err(Error::Pool(format!(
            "the disks of the pool at {} hold the backing of a pool that is in use; unmount that first",
            dir.display()
        )));
    }
    let mut backings = pools.into_iter().filter_map(|config| config.backing_dir(dir));
    match backings.find(|backing| files::are_in_use(backing).unwrap_or(false)) {
        Some(backing) => Err(Error::Pool(format!(
            "{} holds the backing of a pool that is in use; unmount that first, or choose another directory",
            backing.display()
        ))),
        None => Ok(()),
    }
}
