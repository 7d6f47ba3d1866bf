//! Memory from the host for a memory's file, taken before the first store there: a store must never meet a full disk.

use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::medium::MediumKind;

/// Bytes written at a time.
const PIECE: u64 = 1 << 20;

/// Makes sure that there are blocks for a range of `file`; new ones read as zeros.
pub fn take(file: impl AsFd, range: Range<u64>, medium: MediumKind) -> rustix::io::Result<()> {
    let (at, len) = (range.start, range.end.saturating_sub(range.start));
    if len == 0 {
        return Ok(());
    }
    let reserved = retry(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), at, len));
    match reserved {
        // A reserved block that has never been written stands as such in the file system's records: under MAP_SYNC
        // the first store to it waits for a commit of the journal. So they are written here, once.
        Ok(()) if medium == MediumKind::Dax => write_zeros(&file, range),
        Err(Errno::OPNOTSUPP) => write_zeros(&file, range),
        done => done,
    }
}

/// Makes sure that there are blocks for a range of `file` that is in use: it may have holes, as after
/// copying.
pub fn fill_holes(file: impl AsFd, range: Range<u64>) -> rustix::io::Result<()> {
    let (at, len) = (range.start, range.end.saturating_sub(range.start));
    if len == 0 {
        return Ok(());
    }
    match retry(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), at, len)) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        done => done,
    }
}

/// Gives the blocks of a range back; it reads as zeros, and nothing is lost if the file system cannot.
pub fn give_back(file: impl AsFd, range: Range<u64>) -> rustix::io::Result<()> {
    let (at, len) = (range.start, range.end.saturating_sub(range.start));
    if len == 0 {
        return Ok(());
    }
    match retry(|| rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        done => done,
    }
}

fn write_zeros(file: impl AsFd, range: Range<u64>) -> rustix::io::Result<()> {
    let zeros = vec![0; PIECE as usize];
    let mut at = range.start;
    while at < range.end {
        let len = PIECE.min(range.end - at) as usize;
        at += retry(|| rustix::io::pwrite(&file, &zeros[..len], at))? as u64;
    }
    Ok(())
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
