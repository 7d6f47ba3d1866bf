//! Errors, and the one table from them to errno.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::Ino;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation. After any error the operation left nothing behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A condition that POSIX names: the caller's doing, or a full pool.
    #[error("{}", .0)]
    Posix(Errno),
    /// A reference in the memory does not lead to the object that its place promises.
    #[error("the pool is damaged: {0}; run `conquest fsck POOL`")]
    Corrupt(String),
    /// The operation needs memory to be taken, and runs again after that, as after all such errors: see `retry`. No caller outside
    /// sees it.
    #[error("{}", Errno::NOSPC)]
    MustGrow,
    /// The table of permission triples is full; unused ones may be freed after the operation, which then begins anew. No caller
    /// outside sees it.
    #[error("{}", Errno::NOSPC)]
    NoTriple,
    /// Memory or room on disk has to be made first, after the operation, which then begins anew. No caller outside sees it.
    #[error("{}", Errno::NOSPC)]
    MustMakeRoom(Lack),
    /// The disks have no room for more content of large files.
    #[error("{}", Errno::NOSPC)]
    DisksFull,
    /// Content lies on disk and has to be fetched first, outside of the operation or section, which then begins anew.
    /// No caller outside sees it.
    #[error("{}", Errno::IO)]
    Elsewhere,
    /// This inode is packed, and has to be plain to be changed: it is unpacked after the operation, which then begins anew. No caller
    /// outside sees it.
    #[error("{}", Errno::AGAIN)]
    Packed(Ino),
    /// A path leads out of the part of the pool that its walk [stays in](crate::path::Within).
    #[error("{}", Errno::XDEV)]
    Outside,
    /// The pool, or a file that it names, is another user's, or others may write there.
    #[error(transparent)]
    Foreign(#[from] exraid::owner::Foreign),
    /// The pool cannot be opened, formatted, saved or restored; the text says what to do.
    #[error("{0}")]
    Pool(String),
    /// The pool's memory is older than its backing; the text says what to do.
    #[error("{0}")]
    Outdated(String),
    /// A mount was asked for, and process `pid` serves one already, of which this was the first place.
    #[error("the pool is mounted already: process {pid} serves it, first at {}", .first.display())]
    Served { pid: u32, first: PathBuf },
    /// This process left background work to another one, which is gone, or there is none: the pool is used through its mount.
    #[error("{}", pram::Error::Unattended)]
    Unattended,
    /// This process is a child, by `fork`, of the one that has the pool open.
    #[error("{}", pram::Error::Forked)]
    Forked,
    /// Content lies on a disk that this process leaves to others: the file is read through the mount. Nothing has been changed.
    #[error("the content lies on a disk, which this process has not opened: it is read through the pool's mount")]
    OnDisk,
    /// The host's file system or memory failed underneath us.
    #[error("{what}: {errno}")]
    Host { what: String, errno: Errno },
}

impl Error {
    /// That the host failed at `path`.
    pub fn host(path: &Path, e: &std::io::Error) -> Error {
        let errno = e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
        Error::Host { what: path.display().to_string(), errno }
    }

    /// Is there no room, in memory or on disks?
    pub fn is_full(&self) -> bool {
        self.errno() == Errno::NOSPC
    }

    /// The number a system call would report.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Posix(e) => *e,
            Error::Corrupt(_) => Errno::UCLEAN,
            Error::MustGrow | Error::NoTriple | Error::MustMakeRoom(_) | Error::DisksFull => Errno::NOSPC,
            Error::Elsewhere => Errno::IO,
            Error::Packed(_) => Errno::AGAIN,
            Error::Outside => Errno::XDEV,
            Error::Pool(_) | Error::Outdated(_) => Errno::INVAL,
            Error::Foreign(_) => Errno::PERM,
            Error::Served { .. } => Errno::BUSY,
            Error::Unattended => Errno::NOTCONN,
            Error::Forked => Errno::STALE,
            Error::OnDisk => Errno::IO,
            Error::Host { errno, .. } => *errno,
        }
    }
}

/// The resource that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    Memory,
    /// Room on disks for new content.
    Disk,
}

impl Error {
    /// What was lacking, if that caused the failure.
    pub fn lack(&self) -> Option<Lack> {
        match self {
            Error::DisksFull => Some(Lack::Disk),
            e if e.errno() == Errno::NOSPC => Some(Lack::Memory),
            _ => None,
        }
    }
}

impl From<Errno> for Error {
    fn from(e: Errno) -> Self {
        Error::Posix(e)
    }
}

/// With the number that a system call would report, where that is all there is to say; else with the text.
impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        match e {
            Error::Posix(errno) => errno.into(),
            e => std::io::Error::new(std::io::Error::from(e.errno()).kind(), e),
        }
    }
}

impl From<ilfs::Error> for Error {
    fn from(e: ilfs::Error) -> Error {
        match e {
            ilfs::Error::Ram(e) => e.into(),
            ilfs::Error::Corrupt(what) => Error::Corrupt(what),
            ilfs::Error::NoSpace => Error::DisksFull,
            ilfs::Error::Unusable(text) => Error::Pool(text),
            e => Error::Host { errno: e.errno(), what: e.to_string() },
        }
    }
}

impl From<Error> for ilfs::Error {
    fn from(e: Error) -> ilfs::Error {
        match e {
            Error::MustGrow => pram::Error::MustGrow.into(),
            Error::DisksFull => ilfs::Error::NoSpace,
            Error::Corrupt(what) => ilfs::Error::Corrupt(what),
            e => ilfs::Error::Owner { errno: e.errno(), what: e.to_string() },
        }
    }
}

impl From<pram::Error> for Error {
    fn from(e: pram::Error) -> Self {
        use pram::Error as P;
        match e {
            P::NoSpace | P::LogFull | P::DiskFull(_) => Error::Posix(Errno::NOSPC),
            P::MustGrow => Error::MustGrow,
            P::Unusable(text) => Error::Pool(text),
            P::Outdated(text) => Error::Outdated(text),
            P::Host { what, errno } => Error::Host { what, errno },
            P::Unattended => Error::Unattended,
            P::Forked => Error::Forked,
            damage => Error::Corrupt(damage.to_string()),
        }
    }
}
