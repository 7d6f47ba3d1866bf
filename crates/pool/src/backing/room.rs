//! Room for the backing in regions, reserved ahead of need: content may fill the disks, and a commit without room cannot free any
//! either, since freed room is usable only once the commit is durable.
//!
//! | stream | least | usual |
//! | --- | --- | --- |
//! | image | all pages and their tables, and for the changes of one checkpoint an eighth of them, 64 MiB at least | the same with 1 GiB at least |
//! | each log | the usual log, but 128 MiB at least, or all of the memory, for a commit that needs more | the same with 512 MiB |
//!
//! A commit is due before its time once 64 MiB have changed, or fewer: it also has the changes until it begins.
//!
//! In a region that is too small for the least, the backing gets the room that it needs now, and more when it needs that, if there is any.

use backing::log_bytes;
use exraid::duplex::{Duplex, STREAMS};

use super::regions::IMAGE;
use conquest_fs::error::{Error, Result};

const MIB: u64 = 1 << 20;

/// Bytes of each stream.
pub type Streams = [u64; STREAMS];

/// A log with room for a commit of all of the memory, or of `most` bytes.
fn log(size: u64, most: u64) -> u64 {
    (size + size / 8 + size / 64 + 8 * MIB).min(most).max(log_bytes(size))
}

/// An image, with room for a checkpoint that changes all of the memory, or `most` bytes: changes are written beside the old pages.
fn image(size: u64, most: u64) -> u64 {
    size + size / 64 + MIB + size.min(most)
}

/// The room that the backing of a memory of `size` bytes needs, if not everything changes at once.
pub fn least(size: u64) -> Streams {
    let mut streams = [log(size, 128 * MIB); STREAMS];
    streams[IMAGE] = image(size, (size / 8).max(64 * MIB));
    streams
}

/// Its usual room.
fn usual(size: u64) -> Streams {
    let mut streams = [log(size, 512 * MIB); STREAMS];
    streams[IMAGE] = image(size, (size / 8).max(1024 * MIB));
    streams
}

/// The room in a region of `bytes` that is reserved for the backing of a memory of `size` bytes: at most half of it, or three quarters for
/// the least. None if that is too little.
pub fn within(size: u64, bytes: u64) -> Option<Streams> {
    let all = |streams: &Streams| streams.iter().sum::<u64>();
    match (usual(size), least(size)) {
        (usual, _) if all(&usual) <= bytes / 2 => Some(usual),
        (_, least) if all(&least) <= bytes / 4 * 3 => Some(least),
        _ => None,
    }
}

/// Whether the backing has the least room for a memory of `size` bytes.
pub fn has_least(duplex: &Duplex, size: u64) -> bool {
    least(size).iter().enumerate().all(|(stream, bytes)| duplex.len(stream) >= *bytes)
}

/// Gives each stream so many bytes, if there is room.
pub fn grow(duplex: &Duplex, streams: Streams) -> exraid::Result<()> {
    let mut short = (0..STREAMS).zip(streams).filter(|(stream, bytes)| duplex.len(*stream) < *bytes);
    short.try_for_each(|(stream, bytes)| duplex.grow(stream, bytes))
}

/// Before the memory grows: gives the backing the least room for that, if it had the least before.
pub fn grow_with(duplex: &Duplex, from: u64, to: u64) -> Result<()> {
    if to <= from || !has_least(duplex, from) {
        return Ok(());
    }
    grow(duplex, least(to)).map_err(|e| {
        Error::Pool(format!(
            "the backing of {} MiB of memory has no room on the pool's disks: {e}; give the pool another disk (`conquest region add`), or remove \
             files",
            to / MIB
        ))
    })?;
    duplex.set_least(least(to));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_not_taken_whole() {
        let all = |streams: Streams| streams.iter().sum::<u64>();
        let usual = within(128 * MIB, 2048 * MIB).expect("there is room");
        assert_eq!(usual, super::usual(128 * MIB));
        let tight = within(128 * MIB, 640 * MIB).expect("there is room for the least");
        assert!(all(tight) < all(usual) && all(tight) <= 480 * MIB, "{tight:?}");
        assert_eq!(within(128 * MIB, 256 * MIB), None);
    }
}
