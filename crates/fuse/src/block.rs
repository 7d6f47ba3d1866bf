//! Mounting as the file system of a block device, so that `sync`, `syncfs` and `umount` wait for us.
//!
//! Linux tells of these calls only to those FUSE servers that it trusts: since 6.18 those of block devices (type
//! `fuseblk`), which only root can mount. So there is one, of a page of memory that nobody reads or writes: it comes and
//! goes with the mount. The mount table is to show the pool all the same; the kernel shows the path that it was given
//! for the device. So a thread with a root of its own, an empty file system in memory, puts the device's node there
//! at the path that the pool has elsewhere, and mounts that.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags};
use rustix::process::{chroot, fchdir};

use crate::sys::{unshare_root, LoopControl};
use crate::{detached, kernel};

/// The first Linux that tells the servers of block devices.
const SINCE: kernel::Version = (6, 18, 0);

/// Would it help here?
pub fn is_told_of_sync() -> bool {
    kernel::version().is_some_and(|version| version >= SINCE)
}

/// A mount that is nowhere yet, as if `source` were a block device. `words`: the options of FUSE.
pub fn fresh(source: &Path, flags: MountFlags, words: &[(&str, String)]) -> io::Result<OwnedFd> {
    let made = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || in_own_root(source, flags, words))?;
        Ok::<_, io::Error>(thread.join())
    })?;
    made.unwrap_or_else(|_| Err(io::Error::other("the thread that mounts has ended")))
}

fn in_own_root(source: &Path, flags: MountFlags, words: &[(&str, String)]) -> io::Result<OwnedFd> {
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
    let _device = devices.make(source)?;
    detached::fresh("fuseblk", source, words, flags)
}
