//! One process at a time rebuilds members of regions of a pool: two that copied to one member would each take it for what it has copied
//! itself. All others use the pool meanwhile.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use pram::save::is_at;
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::pool::paths;

/// Held by who rebuilds: a lock on [a file](paths::REBUILD) in the pool directory.
pub struct Rebuilding {
    path: PathBuf,
    _lock: File,
}

impl Rebuilding {
    /// # Errors
    /// [`Error::Pool`] where another process does.
    pub fn begin(dir: &Path) -> Result<Rebuilding> {
        let path = dir.join(paths::REBUILD);
        loop {
            let file = File::options().create(true).truncate(false).write(true).open(&path);
            let lock = file.map_err(|e| Error::host(&path, &e))?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                // Else it is the file of somebody who has ended meanwhile, which nobody finds any more.
                Ok(()) if is_at(&lock, &path)? => return Ok(Rebuilding { path, _lock: lock }),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(refused(dir)),
                Err(errno) => return Err(Error::host(&path, &errno.into())),
            }
        }
    }
}

impl Drop for Rebuilding {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn refused(dir: &Path) -> Error {
    Error::Pool(format!(
        "{}: a disk of the pool is being rebuilt by another process (`conquest region list {0}` tells how far it is): wait for it, or \
         end it; it can be resumed",
        dir.display()
    ))
}
