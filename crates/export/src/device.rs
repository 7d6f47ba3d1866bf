//! A linear block device, whatever shows it.

use std::ops::Range;

use exraid::{Buffers, Result};

/// What a front end shows as a disk: FUSE does, NBD or ublk could. All calls wait for disks, and may be made by any number
/// of threads at a time; V1 to V4 of the [crate] hold.
pub trait BlockDevice: Send + Sync {
    /// Bytes.
    fn size(&self) -> u64;

    /// Requests of whole blocks of so many bytes are taken as they are; others cost a read before the write.
    fn block(&self) -> u32;

    /// Bytes of a request that it does best with.
    fn preferred(&self) -> u32;

    /// Fills memory with what lies at `at`. What was read is in what this returns, which may be other memory than was
    /// given: a region that had to ask a second copy leaves the first one's to the first.
    fn read(&self, at: u64, into: Buffers) -> Result<Buffers>;

    fn write(&self, at: u64, from: Buffers) -> Result<()>;

    /// See V4.
    fn flush(&self) -> Result<()>;

    /// Does [`discard`](Self::discard) give anything back?
    fn discards(&self) -> bool;

    /// The content is needed no more, and reads as zeros (V3).
    fn discard(&self, range: Range<u64>) -> Result<()>;

    /// Zeros, with room of their own.
    fn zero(&self, range: Range<u64>) -> Result<()>;

    /// Room for what lies there, so that a write finds some.
    fn reserve(&self, range: Range<u64>) -> Result<()>;
}
