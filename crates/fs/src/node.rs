//! The API by inode number, which every front end uses.
//!
//! Every call is safe from many threads and several processes, is atomic under a crash, and on the
//! `battery` medium is durable when it returns. Reads take no lock.
//!
//! References: an inode whose last name is gone lives on while any attached process holds a reference
//! ([`Fs::retain`]); a process that dies loses its references.

use crate::attr::{Attr, Caller, Ino, Kind, SetAttr};
use crate::error::Result;

/// An attached pool: one per process and pool; share it by reference or `Arc`.
pub struct Fs {
    _private: (),
}

/// One entry of a directory, as [`Fs::readdir`] hands it out.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    pub ino: Ino,
    pub kind: Kind,
    pub name: &'a [u8],
    /// Where to go on after this entry; stays valid while the table grows, shrinks or splits.
    pub cookie: u64,
}

/// How [`Fs::rename`] treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// Replace it, atomically.
    Replace,
    /// Fail with EEXIST.
    NoReplace,
    /// Exchange the two names.
    Exchange,
}

/// Where [`Fs::write`] writes and what else it does.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteFlags {
    /// At the end of the file, whatever the offset says (O_APPEND), atomically.
    pub append: bool,
    /// Clear set-id bits (the caller lacks CAP_FSETID).
    pub kill_suidgid: bool,
}

/// The modes of `fallocate(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    Allocate { keep_size: bool },
    PunchHole,
    ZeroRange { keep_size: bool },
    CollapseRange,
    InsertRange,
}

/// `SEEK_DATA` or `SEEK_HOLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// How [`Fs::setxattr`] treats what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    Any,
    /// XATTR_CREATE: EEXIST if it exists.
    Create,
    /// XATTR_REPLACE: ENODATA if it does not.
    Replace,
}

/// Sizes of the pool, in the units of `statfs`.
#[derive(Clone, Copy, Debug)]
pub struct StatFs {
    /// Bytes per block of the counts below (4096).
    pub block_size: u32,
    pub blocks: u64,
    pub free_blocks: u64,
    pub inodes: u64,
    pub free_inodes: u64,
    /// Longest name, bytes.
    pub name_max: u32,
}

/// Something another process changed that a front end may have cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Attributes, and content unless `attr_only`.
    Inode { ino: Ino, attr_only: bool },
    /// The binding of a name in a directory, negative ones included.
    Entry { parent: Ino, name: Vec<u8> },
    /// Everything (events were lost).
    All,
}

#[allow(unused_variables)]
impl Fs {
    /// The entry `name` of directory `parent`. `.` and `..` work.
    pub fn lookup(&self, parent: Ino, name: &[u8], caller: &Caller) -> Result<Attr> {
        todo!()
    }

    /// Attributes. Works for unlinked inodes that are still referenced.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        todo!()
    }

    pub fn setattr(&self, ino: Ino, set: &SetAttr, caller: &Caller) -> Result<Attr> {
        todo!()
    }

    /// Creates a file of any kind but symlink. `mode` is `& 0o7777`, before umask or default ACL.
    pub fn create(&self, parent: Ino, name: &[u8], kind: Kind, mode: u32, rdev: u64, caller: &Caller) -> Result<Attr> {
        todo!()
    }

    pub fn symlink(&self, parent: Ino, name: &[u8], target: &[u8], caller: &Caller) -> Result<Attr> {
        todo!()
    }

    /// A regular file with no name (O_TMPFILE), referenced once by the caller.
    pub fn tmpfile(&self, parent: Ino, mode: u32, caller: &Caller) -> Result<Attr> {
        todo!()
    }

    /// A further name for `ino`; also gives a `tmpfile` its first.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8], caller: &Caller) -> Result<Attr> {
        todo!()
    }

    pub fn unlink(&self, parent: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        todo!()
    }

    pub fn rmdir(&self, parent: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        todo!()
    }

    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: Rename, caller: &Caller) -> Result<()> {
        todo!()
    }

    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        todo!()
    }

    /// Reads up to `buf.len()` bytes at `offset`; short only at the end of the file. Touches atime as the
    /// pool's policy (relatime by default) says.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        todo!()
    }

    /// Writes all of `data`, atomically up to 1 MiB, in pieces of 1 MiB beyond. Returns the offset it went
    /// to and the new attributes.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<(u64, Attr)> {
        todo!()
    }

    pub fn fallocate(&self, ino: Ino, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        todo!()
    }

    /// The next data or hole at or after `offset`; ENXIO beyond the end.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        todo!()
    }

    /// Copies within the pool; returns the bytes copied, short at the end of the source.
    pub fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        todo!()
    }

    /// Hands out entries after `cookie` (0: from the start, `.` and `..` first) until `f` returns false.
    /// An entry that is there throughout is handed out exactly once however the table changes meanwhile.
    pub fn readdir(&self, ino: Ino, cookie: u64, f: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        todo!()
    }

    /// The value of an extended attribute, ENODATA if there is none. POSIX ACLs are
    /// `system.posix_acl_access` and `system.posix_acl_default` in the kernel's xattr encoding.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        todo!()
    }

    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, caller: &Caller) -> Result<()> {
        todo!()
    }

    /// Names, each followed by a zero byte, as `listxattr(2)` returns them.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        todo!()
    }

    pub fn removexattr(&self, ino: Ino, name: &[u8], caller: &Caller) -> Result<()> {
        todo!()
    }

    /// Takes `n` references: the inode outlives its last name while this process holds any.
    pub fn retain(&self, ino: Ino, n: u32) {
        todo!()
    }

    /// Gives back `n` references; frees an inode that has neither name nor reference left, and gives back
    /// the unused tail of a file at the last one.
    pub fn release(&self, ino: Ino, n: u32) {
        todo!()
    }

    pub fn statfs(&self) -> StatFs {
        todo!()
    }

    /// Waits until everything that returned before is durable (at once on `battery`).
    pub fn sync(&self) -> Result<()> {
        todo!()
    }

    /// Waits until `ino` is durable.
    pub fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        todo!()
    }

    /// Declares that this process caches what it looked up, and receives what others change: `f` is called
    /// for each change of an inode this process holds references to (or of an entry of such a directory),
    /// before the call that made the change returns to its caller. Returns when [`Fs::stop_watching`] is
    /// called; meant for a thread of its own.
    pub fn watch(&self, f: &mut dyn FnMut(Change)) -> Result<()> {
        todo!()
    }

    /// Ends [`Fs::watch`].
    pub fn stop_watching(&self) {
        todo!()
    }
}
