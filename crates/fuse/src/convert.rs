//! Converts attributes and errors between `fs` and the protocol.

use std::cell::Cell;

use conquest_fs::attr::IO_SIZE;
use conquest_fs::{Attr, Kind, SetAttr, SetTime, Time};
use rustix::fs::{major, makedev, minor};
use rustix::io::Errno;

use crate::abi::{fattr, AttrOut, EntryOut, InHeader, Opcode, SetattrIn, StatxOut, SxTime, WireAttr, WireStatx};

/// The time for which the kernel may cache a reply: until a notification says otherwise.
pub const FOREVER: u64 = u32::MAX as u64;

const NANOS: i64 = 1_000_000_000;

/// An entry whose attributes the kernel may cache for `valid` seconds.
pub fn entry_out(attr: &Attr, valid: u64) -> EntryOut {
    EntryOut {
        nodeid: attr.ino,
        generation: attr.generation.into(),
        entry_valid: FOREVER,
        attr_valid: valid,
        attr: wire_attr(attr),
        ..Default::default()
    }
}

pub fn attr_out(attr: &Attr, valid: u64) -> AttrOut {
    AttrOut { attr_valid: valid, attr: wire_attr(attr), ..Default::default() }
}

pub fn statx_out(attr: &Attr, valid: u64) -> StatxOut {
    let stat = WireStatx {
        mask: (rustix::fs::StatxFlags::BASIC_STATS | rustix::fs::StatxFlags::BTIME).bits(),
        blksize: IO_SIZE,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode() as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: sx_time(attr.atime),
        btime: sx_time(attr.btime),
        ctime: sx_time(attr.ctime),
        mtime: sx_time(attr.mtime),
        rdev_major: major(attr.rdev),
        rdev_minor: minor(attr.rdev),
        ..Default::default()
    };
    StatxOut { attr_valid: valid, stat, ..Default::default() }
}

fn wire_attr(attr: &Attr) -> WireAttr {
    let (atime, atimensec) = split(attr.atime);
    let (mtime, mtimensec) = split(attr.mtime);
    let (ctime, ctimensec) = split(attr.ctime);
    WireAttr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: atime as u64,
        mtime: mtime as u64,
        ctime: ctime as u64,
        atimensec,
        mtimensec,
        ctimensec,
        mode: attr.mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_dev(attr.rdev),
        blksize: IO_SIZE,
        flags: 0,
    }
}

/// Seconds, rounded down, and the nanoseconds beyond.
fn split(time: Time) -> (i64, u32) {
    (time.0.div_euclid(NANOS), time.0.rem_euclid(NANOS) as u32)
}

fn join(sec: u64, nsec: u32) -> Time {
    Time((sec as i64).saturating_mul(NANOS).saturating_add(nsec.into()))
}

fn sx_time(time: Time) -> SxTime {
    let (sec, nsec) = split(time);
    SxTime { sec, nsec, reserved: 0 }
}

/// The kernel's 32-bit form of a device number.
fn encode_dev(dev: u64) -> u32 {
    let (major, minor) = (major(dev), minor(dev));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

pub fn decode_dev(dev: u32) -> u64 {
    makedev(dev >> 8 & 0xfff, dev & 0xff | dev >> 12 & 0xfff00)
}

/// Kind and permission bits of a mode in a MKNOD; no type bits mean a regular file.
pub fn kind_and_perm(mode: u32) -> Option<(Kind, u32)> {
    let kind = if mode & 0o170000 == 0 { Kind::Regular } else { Kind::from_mode(mode)? };
    Some((kind, mode & 0o7777))
}

/// Does the message name no change? Then it asks to clear the set-id bits: for a change of owner to the same owner, or
/// for a change of content without WRITE (fallocate, copy_file_range). The kernel has not checked the permission of the
/// first.
pub fn is_bare(args: &SetattrIn) -> bool {
    args.valid & fattr::CHANGES == 0
}

pub fn set_attr(args: &SetattrIn) -> SetAttr {
    let has = |bit| args.valid & bit != 0;
    let time = |bit, now, sec, nsec| match (has(bit), has(now)) {
        (_, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(join(sec, nsec))),
        (false, false) => None,
    };
    // With HANDLE_KILLPRIV_V2 the server clears the set-id bits at a change of owner.
    let chown = has(fattr::UID | fattr::GID) && !has(fattr::MODE);
    SetAttr {
        mode: has(fattr::MODE).then_some(args.mode & 0o7777),
        uid: has(fattr::UID).then_some(args.uid),
        gid: has(fattr::GID).then_some(args.gid),
        size: has(fattr::SIZE).then_some(args.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, args.atime, args.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, args.mtime, args.mtimensec),
        ctime: has(fattr::CTIME).then_some(join(args.ctime, args.ctimensec)),
        kill_suidgid: has(fattr::KILL_SUIDGID) || chown || is_bare(args),
        retains_privileges: false,
        by_handle: has(fattr::FH),
    }
}

/// The errno of a failure. Damage and a failing host are also logged, with the request, since an errno does not tell
/// the caller enough.
pub fn errno(error: conquest_fs::Error) -> Errno {
    if !matches!(error, conquest_fs::Error::Posix(_)) && !error.is_full() {
        let (call, inode) = SERVED.get();
        let call = Opcode::from_code(call).map_or("request".into(), |call| format!("{call:?}").to_lowercase());
        tracing::error!("{call} of inode {inode}: {error}");
    }
    error.errno()
}

thread_local! {
    /// Opcode and inode of the request that this thread serves.
    static SERVED: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// Records the request that this thread serves, which the message of a failure names.
pub fn serving(head: &InHeader) {
    SERVED.set((head.opcode, head.nodeid));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_both_ways() {
        for (major, minor) in [(0, 0), (1, 3), (8, 0x12345), (0xfff, 0xfffff), (259, 256)] {
            let dev = makedev(major, minor);
            assert_eq!(decode_dev(encode_dev(dev)), dev, "{major}:{minor}");
        }
    }

    #[test]
    fn times_before_the_epoch_keep_positive_nanoseconds() {
        let (sec, nsec) = split(Time(-1));
        assert_eq!((sec, nsec), (-1, 999_999_999));
        assert_eq!(join(sec as u64, nsec), Time(-1));
        assert_eq!(join(u64::MAX / 2, 0), Time(i64::MAX));
    }
}
