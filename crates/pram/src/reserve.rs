//! Room for a region's file: all of it at once, since a store must never meet a full disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::medium::MediumKind;

/// Bytes written at a time.
const PIECE: u64 = 1 << 20;

/// Gives an empty file its size and its blocks; all of it reads as zeros.
pub fn reserve(file: &File, size: u64, medium: MediumKind) -> io::Result<()> {
    file.set_len(size)?;
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Ok(()) | Err(Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(errno.into()),
    }
    if medium == MediumKind::Dax {
        write_zeros(file, size)?;
    }
    Ok(())
}

/// A reserved block that has never been written stands as such in the file system's records: under MAP_SYNC
/// the first store to it waits for a commit of the journal. So they are written here, once.
fn write_zeros(file: &File, size: u64) -> io::Result<()> {
    let zeros = vec![0; PIECE as usize];
    let mut at = 0;
    while at < size {
        let len = PIECE.min(size - at);
        file.write_all_at(&zeros[..len as usize], at)?;
        at += len;
    }
    Ok(())
}
