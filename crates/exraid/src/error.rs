//! Errors of transfers, and of opening disks.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The meaning of a failure for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The host was short of a resource for a moment: the same request may succeed now.
    Transient,
    /// The medium: some bytes could not be read or written. Others may be well.
    Media,
    /// The device is gone, or will do nothing any more.
    Gone,
    /// No storage left: on the host of a file, or on a device that promises more than it has.
    NoSpace,
    /// No answer in time. The transfer may still be under way and end at any time.
    Timeout,
    /// The device takes no writes.
    ReadOnly,
    /// The request itself: beyond the end, not aligned, not supported. Nothing was sent to the device.
    Invalid,
}

impl Class {
    pub const ALL: [Class; 7] =
        [Class::Transient, Class::Media, Class::Gone, Class::NoSpace, Class::Timeout, Class::ReadOnly, Class::Invalid];

    /// The class of an error number of a read, a write or a flush.
    pub fn of(errno: Errno) -> Class {
        match errno {
            Errno::INTR | Errno::AGAIN | Errno::NOMEM | Errno::BUSY | Errno::NOBUFS | Errno::CANCELED => {
                Class::Transient
            }
            Errno::NODEV | Errno::NXIO | Errno::SHUTDOWN | Errno::STALE | Errno::NOTCONN | Errno::NOMEDIUM => {
                Class::Gone
            }
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Class::NoSpace,
            Errno::TIMEDOUT | Errno::TIME => Class::Timeout,
            Errno::ROFS | Errno::PERM | Errno::ACCESS | Errno::BADF => Class::ReadOnly,
            Errno::INVAL | Errno::OPNOTSUPP | Errno::FAULT | Errno::NOTTY => Class::Invalid,
            _ => Class::Media,
        }
    }

    /// Are further requests to the device useless?
    pub fn is_final(self) -> bool {
        self == Class::Gone
    }
}

/// A transfer that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{device}: {what}")]
pub struct Error {
    pub class: Class,
    /// The device's name, as it was opened.
    pub device: Arc<str>,
    /// The request, and its failure.
    pub what: String,
}

impl Error {
    pub fn new(class: Class, device: &Arc<str>, what: impl Into<String>) -> Error {
        Error { class, device: device.clone(), what: what.into() }
    }

    /// The host answered `what` with `errno`.
    pub fn host(device: &Arc<str>, what: impl std::fmt::Display, errno: Errno) -> Error {
        Error::new(Class::of(errno), device, format!("{what}: {errno}"))
    }
}

/// Why a disk was not opened. Each names the disk and tells what to do, if anything helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("{0} is not there")]
    Missing(PathBuf),
    #[error("{0} may not be read and written by this user")]
    Permission(PathBuf),
    #[error("{0} is read-only")]
    ReadOnly(PathBuf),
    /// Neither a file nor a block device.
    #[error("{path} is {what}; a disk is a file or a block device")]
    Unsuitable { path: PathBuf, what: &'static str },
    /// It is in use: mounted, part of an array, or held by another program.
    #[error("{path} is in use{}; end that first", .holder.as_deref().map(|h| format!(": {h}")).unwrap_or_default())]
    Busy { path: PathBuf, holder: Option<String> },
    /// It has content.
    #[error("{path} holds {what}; use force to give that up")]
    Foreign { path: PathBuf, what: String },
    /// It has no label: it was never made a disk of a pool, or both copies are damaged.
    #[error("{path} has no label of a pool{}", .found.as_deref().map(|f| format!(": it holds {f}")).unwrap_or_default())]
    Unlabelled { path: PathBuf, found: Option<String> },
    /// Its label names another pool or another place.
    #[error("{path} is {found}, not {expected}")]
    Mismatch { path: PathBuf, expected: String, found: String },
    #[error("{path} has {found} bytes; at least {needed} are needed")]
    TooSmall { path: PathBuf, found: u64, needed: u64 },
    /// This program cannot use the label, or its content.
    #[error("{path}: {what}")]
    Unusable { path: PathBuf, what: String },
    #[error(transparent)]
    Transfer(#[from] Error),
    #[error("{path}: {what}: {errno}")]
    Host { path: PathBuf, what: &'static str, errno: Errno },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_have_the_class_that_decides_what_is_done() {
        let classes = [
            (Errno::AGAIN, Class::Transient),
            (Errno::IO, Class::Media),
            (Errno::NODATA, Class::Media),
            (Errno::ILSEQ, Class::Media),
            (Errno::NODEV, Class::Gone),
            (Errno::NOSPC, Class::NoSpace),
            (Errno::TIMEDOUT, Class::Timeout),
            (Errno::ROFS, Class::ReadOnly),
            (Errno::INVAL, Class::Invalid),
        ];
        for (errno, class) in classes {
            assert_eq!(Class::of(errno), class, "{errno}");
        }
    }
}
