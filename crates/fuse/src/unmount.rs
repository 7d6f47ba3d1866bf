//! Letting go of a directory, as who asks for it and as the server that ends.

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
        // Root may unmount what its user shows to nobody else, and anybody what is damaged.
        _ => UnmountFlags::empty(),
    };
    // A dead mount's own path cannot be resolved any more, the way to it can.
    let real = real_path(dir);
    let source = find(&real, dir)?.source;
    release(&real, flags)?;
    // Before Linux 6.5 a mount that took the place of a dead one lies on it.
    let is_left = |mount: Mounted| mount.is_conquest() && mount.source == source && !mount.is_alive();
    while mounts::at(&real).context(TABLE)?.is_some_and(is_left) {
        if let Err(e) = release(&real, UnmountFlags::DETACH) {
            tracing::debug!("a dead mount stays: {e}");
            break;
        }
    }
    Ok(())
}

/// The Conquest file system that is mounted at `real`; `dir` is what the user calls it.
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

/// Ends our own mount, the file system with this number, at all its places, also while it is in use: then what programs
/// have mapped and changed is written first, and they see the end of the connection.
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
    // FORCE ends the connection, so that nobody waits for an answer that will not come.
    places()?.try_for_each(|dir| release_own(&dir, UnmountFlags::FORCE | UnmountFlags::DETACH))
}

/// The same of one that does not answer any more: nothing is written, and nobody is waited for.
pub(crate) fn abandon(number: &str) -> Result<()> {
    let places = mounts::of(number).context(TABLE)?.into_iter().rev();
    places.map(|place| release_own(&place.dir, UnmountFlags::FORCE | UnmountFlags::DETACH)).fold(Ok(()), Result::and)
}

/// Has the kernel write back what programs have stored through mappings of files of a file system that is mounted at `dir`, and
/// waits for that, at most for so long.
pub fn write_back(dir: &Path, limit: Option<Duration>) -> std::io::Result<()> {
    let sync =
        |dir: &CStr| open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).and_then(syncfs);
    let dir = c_path(dir)?;
    Ok(match limit {
        Some(limit) => in_child_within(limit, || sync(&dir)),
        None => in_child(|| sync(&dir)),
    }?)
}

/// Like `release`, of a mount that this process serves.
///
/// The kernel asks us before it lets go of a mount as a block device, and waits for the answer even if who waits is killed.
/// So that must not be us: we would wait for ourselves for ever, and every `sync` of the machine for us.
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

/// Metadata from the server if it is a mount: what the kernel still has in its cache proves nothing.
pub(crate) fn probe(dir: &Path) -> std::io::Result<std::fs::Metadata> {
    rustix::fs::statfs(dir)?;
    std::fs::metadata(dir)
}

pub(crate) fn is_dead(error: &std::io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::NOTCONN, Errno::CONNABORTED].iter().any(|e| code == Some(e.raw_os_error()))
}
