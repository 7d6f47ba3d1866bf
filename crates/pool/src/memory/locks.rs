//! The locks on a memory's file, or the image's: they tell which processes are attached, and keep others out during a replacement.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use backing::save::is_at;
use pram::session::Exclusive;
use rustix::fs::{flock, FlockOperation, OFlags};
use rustix::io::Errno;

use super::map::open_failed;
use super::marks;
use conquest_fs::error::{Error, Result};

/// Keeps all processes from attaching to the memory whose locks are at `path`, if there is one; fails if one is attached. Processes
/// that come meanwhile wait.
pub fn hold_unused(path: &Path) -> Result<Option<Exclusive>> {
    loop {
        let Some(file) = opened(path)? else { return Ok(None) };
        let held = Exclusive::over(file.into())?;
        if !is_at(&held, path)? {
            continue;
        }
        return match pram::session::in_use(&held)? {
            true => Err(in_use(path)),
            false => Ok(Some(held)),
        };
    }
}

/// Held while no process may make a pool in a directory; has no file if the directory does not exist.
pub struct Unmade(#[expect(dead_code, reason = "held")] Option<fs::File>);

/// Keeps all processes from making a pool in `dir`: they wait. `None` if one is making a pool. File systems without such locks give no
/// protection.
pub fn hold_unmade(dir: &Path) -> std::io::Result<Option<Unmade>> {
    let flags = OFlags::DIRECTORY.union(OFlags::NOCTTY).bits() as i32;
    match fs::OpenOptions::new().read(true).custom_flags(flags).open(dir) {
        Ok(file) => match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            _ => Ok(Some(Unmade(Some(file)))),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Some(Unmade(None))),
        Err(e) => Err(e),
    }
}

/// Waits for processes that attach to a memory or replace it, whose locks are in `file`, unless `check` says that waiting is no use.
pub fn hold(file: fs::File, path: &Path, check: impl FnOnce() -> Result<()>) -> Result<Exclusive> {
    let again = file.try_clone().map_err(|e| Error::host(path, &e))?;
    if let Some(held) = Exclusive::try_over(file.into())? {
        return Ok(held);
    }
    check()?;
    tracing::info!("{}: waiting for another process that opens the pool or replaces it", path.display());
    Ok(Exclusive::over(again.into())?)
}

/// Decides whether the memory in a file, which is sound, may take the place of the existing one.
pub type Check<'a> = &'a mut dyn FnMut(&fs::File) -> Result<()>;

/// Ordered steps before the memory at `path`, of the pool `old`, is lost:
/// 1. No process attaches any more: its changes to a replaced memory would vanish. Processes that come later find the new one.
/// 2. The new memory is checked, if it is a file.
/// 3. The marks of the old memory are removed, and any left by a memory whose file had the new one's number: they would say that the
///    backing of the new memory holds it.
pub fn clear_for<'a>(
    path: &'a Path,
    old: Option<[u8; 16]>,
    check: Check<'a>,
) -> impl FnMut(Option<&fs::File>, &[u8; 16]) -> pram::Result<Option<Exclusive>> + 'a {
    move |file, uuid| {
        let refused = |e: Error| pram::Error::Unusable(e.to_string());
        let held = hold_unused(path).map_err(refused)?;
        file.map_or(Ok(()), &mut *check).map_err(refused)?;
        let locks = [held.as_ref().map(AsFd::as_fd), file.map(AsFd::as_fd)];
        for lock in locks.into_iter().flatten() {
            old.iter().chain([uuid]).for_each(|uuid| marks::forget(lock, uuid));
        }
        Ok(held)
    }
}

/// Fails if any process works on the memory whose locks are at `path`.
pub fn refuse_attached(path: &Path) -> Result<()> {
    match are_attached(path)? {
        true => Err(in_use(path)),
        false => Ok(()),
    }
}

/// Fails if no process works any more on the pool at `dir`, whose locks are held.
pub fn refuse_unless_used(held: &Exclusive, dir: &Path) -> Result<()> {
    match pram::session::in_use(held)? {
        true => Ok(()),
        false => Err(Error::Pool(format!("nobody works on the pool at {} any more", dir.display()))),
    }
}

/// Whether any process works on the memory.
pub fn are_attached(path: &Path) -> Result<bool> {
    match fs::File::open(path) {
        Ok(file) => Ok(pram::session::in_use(file)?),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(open_failed(path, &e)),
    }
}

/// Whether any process works on the memory, or the kernel still does for one that has ended.
pub fn are_held(path: &Path) -> Result<bool> {
    opened(path)?.map_or(Ok(false), |file| Ok(pram::session::in_use(&file)? || pram::session::has_transfers(&file)?))
}

fn opened(path: &Path) -> Result<Option<fs::File>> {
    match fs::OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(open_failed(path, &e)),
    }
}

fn in_use(path: &Path) -> Error {
    Error::Pool(format!("{} is in use; unmount the pool first", path.display()))
}
