//! The agreement of the processes that use a pool's regions: a file in shared memory, which the last of them removes.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backing::save::is_at;
use exraid::region::{Common, Sharing};
use exraid::{Device, Disk, Label, Options, Uuid};
use pram::Session;
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;

use crate::config::Config;
use crate::memory::shared;
use crate::rescue::absent::read_config;
use conquest_fs::error::{Error, Result};

/// Its name beside the memory of the pool.
const NAME: &str = "disks";

/// The share of a process in the agreement: a shared lock of the whole file (`flock`), as long as the process may use a disk.
pub struct Agreement {
    path: PathBuf,
    file: File,
    common: Common,
    held: Vec<Arc<OwnedFd>>,
}

impl Agreement {
    /// For a process that is attached to the pool at `dir`.
    pub fn open(dir: &Path, config: &Config, session: &Session) -> Result<Arc<Agreement>> {
        Agreement::join(dir, config, NAME, session.transfer_lock()?)
    }

    /// For a process that is about to attach, or writes to the disks independently of that: by ordinary calls, which end with it.
    pub fn beside(dir: &Path, config: &Config, name: &str) -> Result<Arc<Agreement>> {
        Agreement::join(dir, config, name, None)
    }

    /// The content of the file.
    pub fn common(&self) -> &Common {
        &self.common
    }

    fn join(dir: &Path, config: &Config, name: &str, transfers: Option<Arc<OwnedFd>>) -> Result<Arc<Agreement>> {
        let lock = config.lock_path(dir);
        let lock = File::options().read(true).write(true).open(&lock).map_err(|e| Error::host(&lock, &e))?;
        let path = shared::path(&lock, &config.uuid_bytes()?, name)?;
        let file = loop {
            let file = open_or_make(&path, &lock)?;
            while flock(&file, FlockOperation::LockShared) == Err(Errno::INTR) {}
            // Otherwise the last process has just removed it.
            if is_at(&file, &path)? {
                break file;
            }
        };
        let fail = |e: std::io::Error| Error::host(&path, &e);
        let common = Common::of(file.try_clone().map_err(fail)?);
        let held = transfers.into_iter().chain([common.held().map_err(fail)?]).collect();
        Ok(Arc::new(Agreement { file, common, held, path }))
    }

    /// The measurements of the disks by the processes that use the pool at `dir`, for inspection; none if no process uses it.
    pub fn look(dir: &Path, config: &Config) -> Option<Common> {
        let lock = config.lock_path(dir);
        let lock = File::options().read(true).write(true).open(&lock).ok()?;
        if !pram::session::in_use(&lock).ok()? {
            return None;
        }
        let path = shared::path(&lock, &config.uuid_bytes().ok()?, NAME).ok()?;
        shared::open_shared(&path, &lock).ok().flatten().map(Common::of)
    }

    /// The options for opening the disks of this process.
    pub fn options(&self) -> Options {
        Options { held: self.held.clone(), ..Options::default() }
    }

    /// For the regions of the pool at `dir`. By then `pool.toml` names a disk that another process has put in a member's place.
    pub fn sharing(self: &Arc<Agreement>, dir: &Path) -> Sharing {
        let (dir, options) = (dir.to_path_buf(), self.options());
        let find = move |uuid| find(&dir, uuid, &options);
        Sharing { common: self.common.clone(), find: Some(Arc::new(find)) }
    }
}

impl Drop for Agreement {
    fn drop(&mut self) {
        // No other process has a share: none has the file open, or else it finds out that it has to open it anew.
        if flock(self.file.as_fd(), FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn open_or_make(path: &Path, lock: &File) -> Result<File> {
    loop {
        if let Some(file) = shared::open_shared(path, lock)? {
            return Ok(file);
        }
        let owner = lock.metadata().map_err(|e| Error::host(path, &e))?;
        let made = fs::OpenOptions::new().read(true).write(true).create_new(true).mode(owner.mode() & 0o666).open(path);
        match made {
            Ok(file) => {
                let _ = std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()));
                let _ = rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(owner.mode() & 0o666));
                return Ok(file);
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::host(path, &e)),
        }
    }
}

/// The disk with this UUID.
fn find(dir: &Path, uuid: Uuid, options: &Options) -> Option<Arc<dyn Device>> {
    let looking = Options { read_only: true, ..Options::default() };
    let is_it = |path: &PathBuf| {
        let label = Disk::open(path, &looking).and_then(|disk| Label::read(&disk));
        label.is_ok_and(|label| label.device == uuid)
    };
    let config = read_config(dir).ok()?;
    let path = config.disks.iter().map(|entry| entry.at(dir)).find(is_it)?;
    match Disk::open(&path, options) {
        Ok(disk) => Some(Arc::new(disk)),
        Err(e) => {
            tracing::warn!(
                "{}, which another process has made a disk of the pool, cannot be opened: {e}",
                path.display()
            );
            None
        }
    }
}
