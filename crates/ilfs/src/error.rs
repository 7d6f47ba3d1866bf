//! The errors of the log.

use std::sync::Arc;

use rustix::io::Errno;

use super::place::Place;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The segment of the place was given up, and perhaps used again. A reader that found the place in a mapping looks
    /// there again: the mapping has changed, or its memory is older than the disk.
    #[error("{0}: the segment was used again")]
    Lost(Place),
    /// No replica has the content that was written there.
    #[error("{place} ({device}, byte {at}): {what}")]
    Damaged { place: Place, device: Arc<str>, at: u64, what: &'static str },
    /// The disk failed.
    #[error(transparent)]
    Device(#[from] exraid::Error),
    /// No disk has the region with this number.
    #[error("region {0} is not there")]
    Missing(u32),
    /// No segment is free, except those reserved for the cleaner.
    #[error("no segment is free")]
    NoSpace,
    /// So many bytes would have fewer replicas than they are to have, since only so many domains are left.
    #[error("{bytes} bytes would have fewer replicas than they are to have, {domains} at most")]
    TooFewDomains { bytes: u64, domains: u32 },
    /// A flush failed: writes since the one before may be lost. The pool must be opened anew.
    #[error("{0}; the pool must be opened anew")]
    Failed(exraid::Error),
    /// All sequence numbers have been issued.
    #[error("the log has used up its sequence numbers")]
    Exhausted,
    /// The log cannot be used as it is; the text says why.
    #[error("{0}")]
    Unusable(String),
    /// Persistent RAM failed.
    #[error(transparent)]
    Ram(#[from] pram::Error),
    /// The owner of content failed.
    #[error("{what}")]
    Owner { what: String, errno: Errno },
    /// Persistent RAM contradicts itself.
    #[error("{0}")]
    Corrupt(String),
}

impl Error {
    pub(super) fn must_grow(&self) -> bool {
        matches!(self, Error::Ram(pram::Error::MustGrow))
    }

    /// The number that a system call would report.
    pub fn errno(&self) -> Errno {
        match self {
            Error::NoSpace => Errno::NOSPC,
            Error::Device(e) | Error::Failed(e) if e.class == exraid::Class::NoSpace => Errno::NOSPC,
            Error::Ram(e) => e.errno(),
            Error::Owner { errno, .. } => *errno,
            Error::Corrupt(_) => Errno::UCLEAN,
            Error::Unusable(_) | Error::TooFewDomains { .. } => Errno::INVAL,
            _ => Errno::IO,
        }
    }
}
