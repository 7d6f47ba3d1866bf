//! Attributes in the forms of the system calls.

use conquest_fs::attr::IO_SIZE;
use conquest_fs::{Attr, Time};
use rustix::fs::{major, minor};
use zerocopy::{Immutable, IntoBytes};

/// `struct stat` of x86-64.
#[repr(C)]
#[derive(Default, IntoBytes, Immutable)]
pub struct Stat {
    dev: u64,
    ino: u64,
    nlink: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    padding: u32,
    rdev: u64,
    size: u64,
    blksize: u64,
    blocks: u64,
    times: [[i64; 2]; 3],
    unused: [u64; 3],
}

const _: () = assert!(size_of::<Stat>() == size_of::<libc::stat>());

impl Stat {
    #[inline(always)]
    pub fn new(attr: &Attr, dev: u64) -> Stat {
        Stat {
            dev,
            ino: attr.ino,
            nlink: attr.nlink.into(),
            mode: attr.mode(),
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            blksize: IO_SIZE.into(),
            blocks: attr.blocks,
            times: [attr.atime, attr.mtime, attr.ctime].map(|time| {
                let (seconds, nanos) = time.split();
                [seconds, nanos.into()]
            }),
            ..Stat::default()
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default, IntoBytes, Immutable)]
struct StatxTime {
    seconds: i64,
    nanos: u32,
    reserved: i32,
}

impl From<Time> for StatxTime {
    fn from(time: Time) -> StatxTime {
        let (seconds, nanos) = time.split();
        StatxTime { seconds, nanos, reserved: 0 }
    }
}

/// `struct statx`.
#[repr(C)]
#[derive(Default, IntoBytes, Immutable)]
pub struct Statx {
    mask: u32,
    blksize: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    padding: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    atime: StatxTime,
    btime: StatxTime,
    ctime: StatxTime,
    mtime: StatxTime,
    rdev: [u32; 2],
    dev: [u32; 2],
    mnt_id: u64,
    unused: [u64; 13],
}

const _: () = assert!(size_of::<Statx>() == 256);

/// What `statx` says of a whole mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfMount {
    pub dev: u64,
    pub mnt_id: u64,
    pub attributes_mask: u64,
    pub root: u64,
}

const BASIC: u32 = 0x7ff;
const BTIME: u32 = 0x800;
const MNT_ID: u32 = 0x1000;
/// `STATX_ATTR_MOUNT_ROOT`
const MOUNT_ROOT: u64 = 0x2000;
/// Facts that are known here; others that may be asked for are the kernel's.
pub const KNOWN: u32 = BASIC | BTIME | MNT_ID;

impl Statx {
    pub fn new(attr: &Attr, mount: &OfMount, asked: u32) -> Statx {
        let btime = if asked & BTIME != 0 { attr.btime.into() } else { StatxTime::default() };
        Statx {
            mask: BASIC | asked & BTIME | MNT_ID,
            blksize: IO_SIZE,
            attributes: if attr.ino == mount.root { MOUNT_ROOT & mount.attributes_mask } else { 0 },
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode() as u16,
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            attributes_mask: mount.attributes_mask,
            atime: attr.atime.into(),
            btime,
            ctime: attr.ctime.into(),
            mtime: attr.mtime.into(),
            rdev: [major(attr.rdev), minor(attr.rdev)],
            dev: [major(mount.dev), minor(mount.dev)],
            mnt_id: mount.mnt_id,
            ..Statx::default()
        }
    }
}
