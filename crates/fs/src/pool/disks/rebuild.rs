//! While a member of a region is rebuilt, nobody else uses the pool: a write by another process of what is being copied would be undone,
//! and how members stand would change beneath it.
//!
//! Who rebuilds is attached, locks [a file](paths::REBUILD) in the pool directory, and then looks whether others are attached. Whoever opens a
//! pool attaches, and then looks at the lock. So one of both sees the other.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use pram::save::is_at;
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::pool::config::Config;
use crate::pool::paths::{self, RUNTIME_DIR};

/// Held by who rebuilds.
pub struct Alone {
    path: PathBuf,
    _lock: File,
}

impl Alone {
    /// For who is attached to the pool at `dir`.
    ///
    /// # Errors
    /// [`Error::Pool`] where others are, too.
    pub fn begin(dir: &Path, config: &Config) -> Result<Alone> {
        let alone = Alone::lock(dir)?;
        if let [pid, ..] = others(dir, config)?[..] {
            return Err(Error::Pool(format!(
                "{} is in use by pid {pid}; a disk is rebuilt while nobody else uses the pool: unmount it first",
                dir.display()
            )));
        }
        Ok(alone)
    }

    fn lock(dir: &Path) -> Result<Alone> {
        let path = dir.join(paths::REBUILD);
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(&path);
            let lock = file.map_err(|e| Error::host(&path, &e))?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                // Else it is the file of somebody who has ended meanwhile, which nobody finds any more.
                Ok(()) if is_at(&lock, &path)? => return Ok(Alone { path, _lock: lock }),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(refused(dir)),
                Err(errno) => return Err(Error::host(&path, &errno.into())),
            }
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Does somebody rebuild a region of the pool at `dir`?
pub fn is_under_way(dir: &Path) -> bool {
    let Ok(file) = File::open(dir.join(paths::REBUILD)) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// The other processes that are attached to the pool at `dir`.
pub fn others(dir: &Path, config: &Config) -> Result<Vec<u32>> {
    let path = config.lock_path(dir);
    let lock = File::options().read(true).write(true).open(&path).map_err(|e| Error::host(&path, &e))?;
    let attached = pram::attached::processes(&lock, &config.uuid_bytes()?, RUNTIME_DIR.as_ref())?;
    Ok(attached.into_iter().map(|session| session.pid).filter(|pid| *pid != std::process::id()).collect())
}

pub fn refused(dir: &Path) -> Error {
    Error::Pool(format!(
        "{}: a disk of the pool is being rebuilt by another process (`conquest region list {0}` tells how far it is): wait for it, or \
         end it; it can be resumed",
        dir.display()
    ))
}
