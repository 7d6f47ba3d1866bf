//! Places on disk, where pages lie that are not in memory.
//!
//! No pool has any yet: outside of tests the type has no values, so that nothing is made of what deals with them. In the
//! tests of this crate a map stands in for disks.

use rustix::io::Errno;

/// What has been fetched from a place, or why it could not be.
pub(super) type Bytes = Result<Box<[u8]>, Errno>;

#[cfg(test)]
pub(super) use super::tests::disk::fetch;
#[cfg(test)]
pub(crate) use super::tests::disk::Place;

/// A place on a disk that holds a page. What lies there does not change while an entry leads there.
#[cfg(not(test))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {}

#[cfg(not(test))]
impl Place {
    /// What an entry of this kind with these bits stands for, if that is a place.
    pub fn of(_kind: u64, _bits: u64) -> Option<Place> {
        None
    }

    /// Kind and bits of an entry that stands for it.
    pub fn bits(self) -> (u64, u64) {
        match self {}
    }
}

/// Fetches the page that lies at `place`.
#[cfg(not(test))]
pub(super) fn fetch(place: Place) -> Bytes {
    match place {}
}
