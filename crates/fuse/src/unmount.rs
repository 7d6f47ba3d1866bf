//! Detaches from a directory, for a user who asks for it and for the server that ends.

use std::ffi::{CStr, CString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{open, syncfs, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{unmount, UnmountFlags};

use crate::error::{Context, Error, Result};
use crate::mounts::{Mounted, TABLE};
use crate::sys::{in_child, in_child_within};
use crate::{helper, mounts};

/// Unmounts a Conquest file system. Its server ends by itself.
pub fn umount(dir: &Path) -> Result<()> {
    let flags = match probe(dir) {
        Err(e) if is_dead(&e) => UnmountFlags::DETACH,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(Error::System { what: format!("{}", dir.display()), source: e })
        }
        // Root may unmount a mount that its owner shows to no other user, and any user may unmount a damaged one.
        _ => UnmountFlags::empty(),
    };
    // The path of a dead mount cannot be resolved, but the path to it can.
    let real = real_path(dir);
    let source = find(&real, dir)?.source;
    release(&real, flags)?;
    // Before Linux 6.5 a mount that replaced a dead one lies on top of it.
    let is_left = |mount: Mounted| mount.is_conquest() && mount.source == source && !mount.is_alive();
    while mounts::at(&real).context(TABLE)?.is_some_and(is_left) {
        if let Err(e) = release(&real, UnmountFlags::DETACH) {
            tracing::debug!("a dead mount stays: {e}");
            break;
        }
    }
    Ok(())
}

/// The Conquest file system that is mounted at `real`; errors name it `dir`, as the user does.
pub(crate) fn find(real: &Path, dir: &Path) -> Result<Mounted> {
    let dir = dir.display();
    match mounts::at(real).context(TABLE)? {
        Some(mount) if mount.is_conquest() => Ok(mount),
        Some(mount) => Err(Error::Target(format!("{dir}: mounted there is {}, not Conquest", mount.fs_type))),
        None => Err(Error::Target(format!("{dir}: nothing is mounted there"))),
    }
}

pub(crate) fn real_path(dir: &Path) -> PathBuf {
    dir.canonicalize().unwrap_or_else(|_| {
        let name = dir.file_name().unwrap_or_default();
        let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        parent.canonicalize().map_or_else(|_| dir.into(), |p| p.join(name))
    })
}

/// Ends our own mount, the file system with this number, at all its mount points, also while it is in use. The stores
/// of programs through mappings are written first, and then programs see the end of the connection.
pub(crate) fn detach(number: &str) -> Result<()> {
    let places = || Ok::<_, Error>(mounts::of(number).context(TABLE)?.into_iter().rev().map(|place| place.dir));
    let mut is_anywhere = false;
    for dir in places()? {
        is_anywhere = true;
        if let Err(e) = release_own(&dir, UnmountFlags::empty()) {
            tracing::warn!("{e}; taking it away all the same");
        }
    }
    if !is_anywhere {
        return Err(Error::Target("it is in no table of mounts that we see".into()));
    }
    if let Some(dir) = places()?.next() {
        if let Err(e) = write_back(&dir, None) {
            tracing::warn!("cannot write back changed mappings: {e}");
        }
    }
    // FORCE ends the connection, so that no caller waits for an answer that will not come.
    places()?.try_for_each(|dir| release_own(&dir, UnmountFlags::FORCE | UnmountFlags::DETACH))
}

/// Detaches a mount that does not answer any more: nothing is written, and nothing is waited for.
pub(crate) fn abandon(number: &str) -> Result<()> {
    let places = mounts::of(number).context(TABLE)?.into_iter().rev();
    places.map(|place| release_own(&place.dir, UnmountFlags::FORCE | UnmountFlags::DETACH)).fold(Ok(()), Result::and)
}

/// Has the kernel write back the stores of programs through mappings, for all files of the file system mounted at
/// `dir`. Waits for that, at most for `limit`.
pub fn write_back(dir: &Path, limit: Option<Duration>) -> std::io::Result<()> {
    let sync =
        |dir: &CStr| open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).and_then(syncfs);
    let dir = c_path(dir)?;
    Ok(match limit {
        Some(limit) => in_child_within(limit, || sync(&dir)),
        None => in_child(|| sync(&dir)),
    }?)
}

/// As `release`, for a mount that this process serves.
///
/// The kernel asks the server before it detaches a mount as a block device, and waits for the answer even if the caller
/// is killed. So the caller must not be this process: it would wait for itself for ever, and every `sync` of the
/// machine for it.
fn release_own(dir: &Path, flags: UnmountFlags) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return release(dir, flags);
    }
    let flags = flags | UnmountFlags::NOFOLLOW;
    c_path(dir).and_then(|path| in_child(|| unmount(path.as_c_str(), flags))).map_err(|e| cannot_release(dir, e))
}

pub(crate) fn c_path(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)
}

pub(crate) fn release(dir: &Path, flags: UnmountFlags) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return helper::unmount(dir, flags.contains(UnmountFlags::DETACH));
    }
    unmount(dir, flags | UnmountFlags::NOFOLLOW).map_err(|e| cannot_release(dir, e))
}

fn cannot_release(dir: &Path, e: Errno) -> Error {
    match e {
        Errno::BUSY => {
            let dir = dir.display();
            Error::Target(format!("{dir}: in use; `fuser -vm {dir}` shows by whom, `umount -l {dir}` lets go of it"))
        }
        Errno::INVAL => Error::Target(format!("{}: nothing is mounted there", dir.display())),
        _ => Error::System { what: format!("unmount {}", dir.display()), source: e.into() },
    }
}

/// Metadata from the server if it is a mount: metadata in the kernel's cache proves nothing.
pub(crate) fn probe(dir: &Path) -> std::io::Result<std::fs::Metadata> {
    rustix::fs::statfs(dir)?;
    std::fs::metadata(dir)
}

pub(crate) fn is_dead(error: &std::io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::NOTCONN, Errno::CONNABORTED].iter().any(|e| code == Some(e.raw_os_error()))
}
