//! Mounts that are made, or copied from an existing one, with all their flags before one step attaches them to a
//! directory. So a read-only mount point is never writable for a moment, and no access reaches the directory below a
//! dead mount while another mount replaces it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{open, statx, AtFlags, Mode, OFlags, StatxFlags, CWD};
use rustix::io::Errno;
use rustix::mount::{
    fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick, move_mount,
    open_tree, unmount, FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags as Attr, MountFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

use crate::mounts;
use crate::sys::mount_setattr;

/// The flags of a mount. All others belong to the file system, and so to all its mount points.
const OF_PLACE: [(MountFlags, Attr); 8] = [
    (MountFlags::RDONLY, Attr::MOUNT_ATTR_RDONLY),
    (MountFlags::NOSUID, Attr::MOUNT_ATTR_NOSUID),
    (MountFlags::NODEV, Attr::MOUNT_ATTR_NODEV),
    (MountFlags::NOEXEC, Attr::MOUNT_ATTR_NOEXEC),
    (MountFlags::NOSYMFOLLOW, Attr::MOUNT_ATTR_NOSYMFOLLOW),
    (MountFlags::NODIRATIME, Attr::MOUNT_ATTR_NODIRATIME),
    (MountFlags::NOATIME, Attr::MOUNT_ATTR_NOATIME),
    (MountFlags::STRICTATIME, Attr::MOUNT_ATTR_STRICTATIME),
];
const ATIMES: Attr = Attr::MOUNT_ATTR__ATIME.union(Attr::MOUNT_ATTR_NODIRATIME);
const OF_ALL: [(MountFlags, &str); 2] = [(MountFlags::SYNCHRONOUS, "sync"), (MountFlags::DIRSYNC, "dirsync")];

/// A mount of a new file system, attached to no directory yet. `words`: its options, as the file system takes them.
pub fn fresh(kind: &str, source: &Path, words: &[(&str, String)], flags: MountFlags) -> io::Result<OwnedFd> {
    let made = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&made, "source", source)?;
    for (word, value) in words {
        match value.is_empty() {
            true => fsconfig_set_flag(&made, *word)?,
            false => fsconfig_set_string(&made, *word, value.as_str())?,
        }
    }
    for (_, word) in OF_ALL.iter().filter(|(flag, _)| flags.contains(*flag)) {
        fsconfig_set_flag(&made, *word)?;
    }
    fsconfig_create(&made)?;
    Ok(fsmount(&made, FsMountFlags::FSMOUNT_CLOEXEC, of_place(flags))?)
}

/// Another mount of the file system at `place`, attached to no directory yet.
pub fn copy_of(place: &Path, flags: MountFlags) -> io::Result<OwnedFd> {
    let copy = open_tree(CWD, place, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    set_flags(&copy, c"", flags, false)?;
    Ok(copy)
}

/// The number of its file system in the mount table. Asks no server.
pub fn number_of(mount: &OwnedFd) -> io::Result<String> {
    let found = statx(mount, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    Ok(format!("{}:{}", found.stx_dev_major, found.stx_dev_minor))
}

/// Attaches a mount of `source` at `dir`, a real path. It replaces a dead mount there: each access finds one of the
/// two.
pub fn put(mount: &OwnedFd, source: &Path, dir: &Path) -> io::Result<()> {
    loop {
        let top = opened(dir)?;
        if !mounts::is_disconnected(dir) {
            return Ok(put_on(mount, &top, MoveMountFlags::empty())?);
        }
        if is_dead_beneath(source, dir, &number_of(mount)?)? {
            take_away(&top)?;
            continue;
        }
        // Linux before 6.5 cannot mount beneath another mount; no Linux can beneath one that came from another user's
        // namespace.
        return match put_on(mount, &top, MoveMountFlags::MOVE_MOUNT_BENEATH) {
            Ok(()) => Ok(take_away(&top)?),
            Err(Errno::INVAL) => Ok(put_on(mount, &top, MoveMountFlags::empty())?),
            Err(e) => Err(e.into()),
        };
    }
}

/// Attaches it on top of the mount at `dir`.
pub fn put_over(mount: &OwnedFd, dir: &Path) -> io::Result<()> {
    Ok(put_on(mount, &opened(dir)?, MoveMountFlags::empty())?)
}

fn opened(dir: &Path) -> Result<OwnedFd, Errno> {
    open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn put_on(mount: &OwnedFd, dir: &OwnedFd, how: MoveMountFlags) -> Result<(), Errno> {
    let both_open = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", dir, "", both_open | how)
}

/// Is the mount just below the dead one at `dir` dead too? A pool has one server: its other mounts are dead with it.
fn is_dead_beneath(source: &Path, dir: &Path, number: &str) -> io::Result<bool> {
    let stack = mounts::stack_at(dir)?;
    let below = stack.len().checked_sub(2).and_then(|at| stack.get(at));
    Ok(below.is_some_and(|below| {
        (below.is_conquest() || below.is_volume()) && below.source == source && below.number != number
    }))
}

/// Detaches that mount and no other, wherever its path leads by now.
fn take_away(top: &OwnedFd) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", top.as_raw_fd());
    match unmount(path, UnmountFlags::DETACH) {
        // Another process was faster.
        Err(Errno::INVAL) => Ok(()),
        taken => taken,
    }
}

/// Changes the flags of an existing mount. Access times stay as they are unless a flag names them.
pub fn change(place: &std::ffi::CStr, flags: MountFlags) -> Result<(), Errno> {
    let atimes = MountFlags::NOATIME | MountFlags::NODIRATIME | MountFlags::RELATIME | MountFlags::STRICTATIME;
    set_flags(CWD, place, flags, !flags.intersects(atimes))
}

/// Changes the flags of the file system mounted there. It only ever becomes writable, since each mount point may be
/// read-only.
pub fn change_all(place: &Path, flags: MountFlags) -> Result<(), Errno> {
    let picked = fspick(CWD, place, FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_NO_AUTOMOUNT)?;
    if !flags.contains(MountFlags::RDONLY) {
        fsconfig_set_flag(&picked, "rw")?;
    }
    // Linux cannot change `dirsync` of an existing file system (MS_RMT_MASK): the server does what it means.
    fsconfig_set_flag(&picked, if flags.contains(MountFlags::SYNCHRONOUS) { "sync" } else { "async" })?;
    fsconfig_reconfigure(&picked)
}

fn set_flags(at: impl AsFd, path: &std::ffi::CStr, flags: MountFlags, keep_atimes: bool) -> Result<(), Errno> {
    let all = OF_PLACE.iter().fold(Attr::empty(), |all, (_, attr)| all | *attr);
    let (set, clear) = match keep_atimes {
        true => (of_place(flags).difference(ATIMES), all.difference(ATIMES)),
        false => (of_place(flags), all | ATIMES),
    };
    mount_setattr(at, path, set.bits(), clear.bits())
}

/// Access times follow `relatime` unless a flag says otherwise.
fn of_place(flags: MountFlags) -> Attr {
    OF_PLACE.iter().filter(|(flag, _)| flags.contains(*flag)).fold(Attr::empty(), |all, (_, attr)| all | *attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_the_mounts_or_the_file_systems() {
        let all = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::SYNCHRONOUS | MountFlags::RELATIME;
        assert_eq!(of_place(all), Attr::MOUNT_ATTR_RDONLY | Attr::MOUNT_ATTR_NOSUID);
        assert!(ATIMES.contains(Attr::MOUNT_ATTR_NOATIME | Attr::MOUNT_ATTR_STRICTATIME));
    }
}
