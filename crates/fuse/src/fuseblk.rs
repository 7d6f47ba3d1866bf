//! Mounts as the file system of a block device, so that `sync`, `syncfs` and `umount` wait for us, and `stat` reports
//! the same device at each mount.
//!
//! Linux passes these calls on only to FUSE servers that it trusts: since 6.18 to those of block devices (type
//! `fuseblk`), which only root can mount. So the mount gets a block device, a page of memory that is never read or
//! written, which comes and goes with it. The mount table is still to show the pool, but the kernel shows the path that
//! it was given for the device. So a thread takes an empty file system in memory as its own root, puts the device's
//! node there at the path that the pool has elsewhere, and mounts that.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use conquest_fs::poll::poll_until;
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags};
use rustix::process::{chroot, fchdir};

use crate::sys::{unshare_root, LoopControl};
use crate::{detached_mount, kernel};

/// The first Linux that passes these calls on to the servers of block devices.
const SINCE: kernel::Version = (6, 18, 0);

/// How long the kernel may take to let go of the device.
const PATIENCE: Duration = Duration::from_millis(100);

/// Does this kernel pass `sync` on to the server of a block device?
pub fn receives_sync() -> bool {
    kernel::version().is_some_and(|version| version >= SINCE)
}

/// Removes the device of the ended mount with this number, and those of earlier mounts of the pool, whose servers were
/// killed.
pub fn forget(number: &str, name: u128) {
    let minor = number.strip_prefix("7:").and_then(|minor| minor.parse().ok());
    if let (Some(minor), Ok(devices)) = (minor, LoopControl::open()) {
        // The kernel lets go of the device a moment after it has announced the end.
        poll_until(PATIENCE, || devices.remove(minor).is_ok());
        devices.remove_all(name);
    }
}

/// A mount attached to no directory yet, as if `source` were a block device. `name` belongs to the pool: with it the
/// device, which `stat` reports, has the same number at each mount. `words`: the options of FUSE.
pub fn fresh(source: &Path, name: u128, flags: MountFlags, words: &[(&str, String)]) -> io::Result<OwnedFd> {
    let made = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || in_own_root(source, name, flags, words))?;
        Ok::<_, io::Error>(thread.join())
    })?;
    made.unwrap_or_else(|_| Err(io::Error::other("the thread that mounts has ended")))
}

fn in_own_root(source: &Path, name: u128, flags: MountFlags, words: &[(&str, String)]) -> io::Result<OwnedFd> {
    let devices = LoopControl::open()?;
    let empty = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&empty)?;
    let root = fsmount(&empty, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    unshare_root()?;
    fchdir(&root)?;
    chroot(".")?;
    if let Some(parent) = source.parent() {
        std::fs::create_dir_all(parent)?;
    }
    // Open until the mount has opened it too.
    let _device = devices.make(source, name)?;
    detached_mount::fresh("fuseblk", source, words, flags)
}
