//! Errors of persistent RAM.

use rustix::io::Errno;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An offset outside the memory, or misaligned: damage, since offsets come from the memory itself.
    #[error("bad reference {off:#x} (+{len})")]
    BadAddress { off: u64, len: u64 },
    /// The object at an offset is not of the type that its referrer expects.
    #[error("reference {off:#x} should be a {expected}, is {found}")]
    WrongType { off: u64, expected: u8, found: u8 },
    /// An object was freed twice, or freed while free.
    #[error("object {off:#x} is not allocated")]
    NotAllocated { off: u64 },
    /// The memory is full.
    #[error("persistent RAM is full")]
    NoSpace,
    /// The heap is full but may grow, once memory has been taken for it after the operation: see
    /// [`Session::supply_needed`](crate::Session::supply_needed).
    #[error("memory has to be taken first")]
    MustGrow,
    /// One transaction changed more than a slot's undo log holds.
    #[error("the transaction is larger than the undo log")]
    LogFull,
    /// A commit is larger than the room in its redo log.
    #[error("the redo log is full")]
    RedoFull,
    /// The disk of the backing is full; the caller may try again.
    #[error("{0}: the disk of the pool's backing is full")]
    DiskFull(String),
    /// The memory cannot be used as it is; the text says why and what to do.
    #[error("{0}")]
    Unusable(String),
    /// The process that did the background work for this one, a guest, is gone, or there is none.
    #[error("no process has the pool open that does its background work; use the pool's mount")]
    Unattended,
    /// This process is a child of the one that attached, by `fork`.
    #[error("the parent of this process has the pool open, and this one has not: it opens the pool anew")]
    Forked,
    /// The memory is older than its backing.
    #[error("{0}")]
    Outdated(String),
    #[error("{what}: {errno}")]
    Host { what: String, errno: Errno },
}

impl Error {
    /// The error of `what`, an operation on the host.
    pub fn of_io(what: &str, e: &std::io::Error) -> Error {
        match Errno::from_io_error(e) {
            Some(errno) => Error::Host { what: what.into(), errno },
            None => Error::Host { what: format!("{what}: {e}"), errno: Errno::IO },
        }
    }

    /// The number that a system call would report.
    pub fn errno(&self) -> Errno {
        match self {
            Error::NoSpace | Error::LogFull | Error::DiskFull(_) | Error::MustGrow => Errno::NOSPC,
            Error::Unusable(_) | Error::Outdated(_) => Errno::INVAL,
            Error::Host { errno, .. } => *errno,
            Error::Unattended => Errno::NOTCONN,
            Error::Forked => Errno::STALE,
            Error::BadAddress { .. } | Error::WrongType { .. } | Error::NotAllocated { .. } | Error::RedoFull => {
                Errno::UCLEAN
            }
        }
    }

    pub fn host(what: impl Into<String>) -> impl FnOnce(Errno) -> Error {
        let what = what.into();
        move |errno| Error::Host { what, errno }
    }
}
