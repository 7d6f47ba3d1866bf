//! Mounting as the file system of a block device, so that `sync`, `syncfs` and `umount` wait for us, and `stat` tells the same
//! device at each mount.
//!
//! Linux tells of these calls only to those FUSE servers that it trusts: since 6.18 those of block devices (type
//! `fuseblk`), which only root can mount. So there is one, of a page of memory that nobody reads or writes: it comes and
//! goes with the mount. The mount table is to show the pool all the same; the kernel shows the path that it was given
//! for the device. So a thread with a root of its own, an empty file system in memory, puts the device's node there
//! at the path that the pool has elsewhere, and mounts that.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use conquest_fs::poll::poll_until;
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags};
use rustix::process::{chroot, fchdir};

use crate::sys::{unshare_root, LoopControl};
use crate::{detached_mount, kernel};

/// The first Linux that tells the servers of block devices.
const SINCE: kernel::Version = (6, 18, 0);

/// How long the kernel has for that.
const PATIENCE: Duration = Duration::from_millis(100);

/// Would it help here?
pub fn receives_sync() -> bool {
    kernel::version().is_some_and(|version| version >= SINCE)
}

/// A mount that is nowhere yet, as if `source` were a block device. `words`: the options of FUSE.
/// The device of the mount that had this number goes, and those of earlier mounts of the pool, whose servers were killed.
pub fn forget(number: &str, name: u128) {
    let minor = number.strip_prefix("7:").and_then(|minor| minor.parse().ok());
    if let (Some(minor), Ok(devices)) = (minor, LoopControl::open()) {
        // The kernel lets go of it a moment after it has announced the end.
        poll_until(PATIENCE, || devices.remove(minor).is_ok());
        devices.remove_all(name);
    }
}

/// `name` is the pool's: the device, and so what `stat` calls the file system, has the same number at each mount.
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
    // Ours until the mount has it too.
    let _device = devices.make(source, name)?;
    detached_mount::fresh("fuseblk", source, words, flags)
}
