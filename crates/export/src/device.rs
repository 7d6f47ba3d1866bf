//! A linear block device, for any front end.

use std::ops::Range;

use exraid::{Buffers, Result};

/// A disk for a front end: for FUSE now, NBD or ublk later. All calls wait for disks, and any number of threads may
/// call at a time; V1 to V4 of the [crate] hold.
pub trait BlockDevice: Send + Sync {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Requests of whole blocks of this many bytes go to the disks as they are; other writes need a read first.
    fn block(&self) -> u32;

    /// The best size of a request, in bytes.
    fn preferred(&self) -> u32;

    /// Reads at `at`. Use the returned memory for the content: it may be other memory than `into`, if a region had to
    /// ask a second copy while the first still has its memory.
    fn read(&self, at: u64, into: Buffers) -> Result<Buffers>;

    fn write(&self, at: u64, from: Buffers) -> Result<()>;

    /// See V4.
    fn flush(&self) -> Result<()>;

    /// Does [`discard`](Self::discard) give storage back?
    fn discards(&self) -> bool;

    /// The content is needed no more, and reads as zeros (V3).
    fn discard(&self, range: Range<u64>) -> Result<()>;

    /// Writes zeros, with storage of their own.
    fn zero(&self, range: Range<u64>) -> Result<()>;

    /// Allocates storage, so that a later write does not fail for lack of it.
    fn reserve(&self, range: Range<u64>) -> Result<()>;
}
