//! The attributes of an inode, and the caller.

use std::sync::Mutex;

use serde::Serialize;

/// An inode number: 1 is the root, 0 is never used. The location of the inode, hence unique.
pub type Ino = u64;

/// The root directory.
pub const ROOT: Ino = 1;

/// Longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// `st_blksize`, which programs take as their buffer size. Each write through the mount is a message, so it is larger than a page.
pub const IO_SIZE: u32 = 64 << 10;
/// Most hard links to one inode.
pub const LINK_MAX: u32 = u32::MAX >> 1;

/// Nanoseconds since the epoch; years 1678 to 2262.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Time(pub i64);

/// The type of a file, with the value it has in `st_mode >> 12` and `d_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[repr(u8)]
pub enum Kind {
    Fifo = 1,
    CharDevice = 2,
    Directory = 4,
    BlockDevice = 6,
    Regular = 8,
    Symlink = 10,
    Socket = 12,
}

impl Kind {
    /// The kind in the type bits of a mode, if they name one.
    pub fn from_mode(mode: u32) -> Option<Kind> {
        Kind::from_type((mode >> 12 & 0o17) as u8)
    }

    /// Does a device number belong to it?
    pub fn is_device(self) -> bool {
        matches!(self, Kind::CharDevice | Kind::BlockDevice)
    }

    /// The kind with this `d_type` value.
    pub fn from_type(t: u8) -> Option<Kind> {
        Some(match t {
            1 => Kind::Fifo,
            2 => Kind::CharDevice,
            4 => Kind::Directory,
            6 => Kind::BlockDevice,
            8 => Kind::Regular,
            10 => Kind::Symlink,
            12 => Kind::Socket,
            _ => return None,
        })
    }
}

/// The attributes of an inode, as `statx` reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    /// Distinguishes successive inodes with the same number.
    pub generation: u32,
    pub kind: Kind,
    /// Permission bits with set-id and sticky: `mode & 0o7777`.
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of special files, encoded as by `makedev`.
    pub rdev: u64,
    /// Bytes; for directories the bytes of their table.
    pub size: u64,
    /// Bytes of persistent RAM that the content occupies, in units of 512.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// When the inode was created.
    pub btime: Time,
}

impl Attr {
    /// `st_mode`: type and permission bits.
    pub fn mode(&self) -> u32 {
        (self.kind as u32) << 12 | self.perm
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(Time),
}

/// The changes of `setattr`; `None` leaves a field.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits, `& 0o7777`.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Set by a kernel that keeps ctime itself; normally `None`: now.
    pub ctime: Option<Time>,
    /// Clear set-id bits as a write by an unprivileged caller does (killpriv).
    pub kill_suidgid: bool,
    /// Set-id bits and capabilities are only cleared as `kill_suidgid` says. Otherwise a change of the owner clears both, and
    /// one of the size the capability.
    pub retains_privileges: bool,
    /// The size is changed through an open writable descriptor: the mode is not checked again.
    pub by_handle: bool,
}

impl SetAttr {
    pub(crate) fn changes_owner(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    /// Does a file's capability go with it?
    pub(crate) fn kills_capability(&self) -> bool {
        (self.size.is_some() || self.changes_owner()) && !self.retains_privileges
    }

    /// Is clearing the set-id bits all that is to be done?
    pub(crate) fn only_kills(&self) -> bool {
        let ids = self.mode.is_some() || self.changes_owner();
        let times = self.atime.is_some() || self.mtime.is_some() || self.ctime.is_some();
        self.kill_suidgid && !ids && !times && self.size.is_none()
    }
}

/// The caller on whose behalf an operation runs.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
    /// Applied to new files where the parent has no default ACL.
    pub umask: u32,
    /// The kernel has already checked permissions (a mount with `default_permissions`): access checks do not apply.
    /// The kernel may still know an earlier owner, after another process has given the file away, so the rights of
    /// an owner are checked all the same.
    pub checked: bool,
    /// Owners whose place the caller may take: it has the capability to.
    pub owns: &'a [u32],
}

impl Caller<'static> {
    /// The superuser, umask 022.
    pub fn root() -> Self {
        Caller { uid: 0, gid: 0, groups: &[], umask: 0o022, checked: false, owns: &[] }
    }

    /// The calling process, as it is now: with its supplementary groups and its umask.
    pub fn current() -> Self {
        Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: own_groups(),
            umask: own_umask(),
            checked: false,
            owns: &[],
        }
    }
}

/// The supplementary groups of this process. Each set that it ever has had is kept: callers are values without owner.
fn own_groups() -> &'static [u32] {
    static KNOWN: Mutex<Vec<&'static [u32]>> = Mutex::new(Vec::new());
    let groups: Vec<u32> = rustix::process::getgroups().unwrap_or_default().iter().map(|g| g.as_raw()).collect();
    let mut known = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
    match known.iter().find(|k| ***k == *groups) {
        Some(same) => same,
        None => {
            let kept: &'static [u32] = groups.leak();
            known.push(kept);
            kept
        }
    }
}

/// The umask of this process, which the system tells without changing it only as text; 022 where it does not.
fn own_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calling_process_is_shown_as_the_system_knows_it() {
        let ids = |option: &str| {
            let out = std::process::Command::new("id").arg(option).output().expect("coreutils are there").stdout;
            let text = String::from_utf8(out).expect("numbers");
            text.split_whitespace().map(|n| n.parse().expect("a number")).collect::<std::collections::BTreeSet<u32>>()
        };
        let caller = Caller::current();
        let groups = caller.groups.iter().copied().chain([caller.gid]).collect();
        assert_eq!((ids("-u"), ids("-G")), ([caller.uid].into(), groups));
        let umask = std::process::Command::new("sh").args(["-c", "umask"]).output().expect("a shell").stdout;
        let umask = String::from_utf8(umask).expect("a number");
        assert_eq!(u32::from_str_radix(umask.trim(), 8), Ok(caller.umask));
        assert!(std::ptr::eq(caller.groups, Caller::current().groups), "one set is kept once");
    }
}
