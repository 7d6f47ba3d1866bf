//! The locks on a memory's file, or the image's: who is attached, and nobody attaches while something takes its place.

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

/// Keeps all from attaching to the memory whose locks are at `path`, if there is one; fails if anybody has. Who comes
/// meanwhile waits.
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

/// Held while nobody makes a pool in a directory; without a file where the directory is not there.
pub struct Unmade(#[expect(dead_code, reason = "held")] Option<fs::File>);

/// Keeps all from making a pool in `dir`: who begins to waits. `None` if somebody makes one. Where a file system has no such locks that goes
/// without.
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

/// Waits for those who attach to a memory or replace it, whose locks are in `file`, unless `check` says that it is no use.
pub fn hold(file: fs::File, path: &Path, check: impl FnOnce() -> Result<()>) -> Result<Exclusive> {
    let again = file.try_clone().map_err(|e| Error::host(path, &e))?;
    if let Some(held) = Exclusive::try_over(file.into())? {
        return Ok(held);
    }
    check()?;
    tracing::info!("{}: waiting for another process that opens the pool or replaces it", path.display());
    Ok(Exclusive::over(again.into())?)
}

/// May the memory in a file, all of which is right, take the place of what is there?
pub type Check<'a> = &'a mut dyn FnMut(&fs::File) -> Result<()>;

/// What is done before the memory at `path`, of the pool `old`, is lost, in order:
/// 1. Nobody attaches any more: what they change in a memory that is gone would vanish. Who comes later finds the new one.
/// 2. The new one is looked at, if it is a file.
/// 3. The marks go, those of the old memory and any that were left of one whose file had the new one's number: they would
///    say of the new one that its backing holds it.
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

/// Fails if nobody works any more on the pool at `dir`, whose locks are held.
pub fn refuse_unless_used(held: &Exclusive, dir: &Path) -> Result<()> {
    match pram::session::in_use(held)? {
        true => Ok(()),
        false => Err(Error::Pool(format!("nobody works on the pool at {} any more", dir.display()))),
    }
}

/// Does any process work on it?
pub fn are_attached(path: &Path) -> Result<bool> {
    match fs::File::open(path) {
        Ok(file) => Ok(pram::session::in_use(file)?),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(open_failed(path, &e)),
    }
}

/// Does any process work on it, or the kernel still on what one had asked for that has ended?
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
