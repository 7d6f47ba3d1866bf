//! One process at a time rebuilds members of regions of a pool: if two copied to one member, each would take all of it for its own
//! copy. All other processes use the pool meanwhile.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use backing::save::is_at;
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;

use crate::paths;
use conquest_fs::error::{Error, Result};

/// Held by the process that rebuilds: a lock on [a file](paths::REBUILD) in the pool directory.
pub struct Rebuilding {
    path: PathBuf,
    _lock: File,
}

impl Rebuilding {
    /// # Errors
    /// [`Error::Pool`] if another process rebuilds.
    pub fn begin(dir: &Path) -> Result<Rebuilding> {
        let path = dir.join(paths::REBUILD);
        loop {
            let lock = paths::open_or_make(dir, paths::REBUILD)?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                // Otherwise the file belonged to a process that has ended, and has no name any more.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Root made the file that a link led to.
    #[test]
    fn no_link_is_followed() {
        let (home, out) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        let theirs = out.path().join("file");
        std::os::unix::fs::symlink(&theirs, home.path().join(paths::REBUILD)).expect("a link");
        let refusal = Rebuilding::begin(home.path()).err().expect("refused").to_string();
        assert!(refusal.contains("symbolic link") && !theirs.exists(), "{refusal}");
        fs::remove_file(home.path().join(paths::REBUILD)).expect("removed");
        let alone = Rebuilding::begin(home.path()).expect("nobody does");
        assert!(Rebuilding::begin(home.path()).is_err());
        drop(alone);
        assert_eq!(fs::read_dir(home.path()).expect("a directory").count(), 0);
    }
}
