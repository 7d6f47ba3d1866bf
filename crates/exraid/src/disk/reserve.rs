//! The space that a disk file leaves free on its host: for the host itself, and for other files of a pool there.

use std::fs::File;
use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Percent of the host's file system.
const PERCENT: u64 = 5;
/// At most so many bytes.
const MOST: u64 = 4 << 30;

/// The reserve of a host's file system of `total` bytes, where no other is set.
pub fn usual(total: u64) -> u64 {
    (total / 100 * PERCENT).min(MOST)
}

/// Does the host have `len` more bytes for this file, with `reserve` left over? If not, [`Errno::NOSPC`], even if some
/// of them have storage already.
pub fn check(file: &File, len: u64, reserve: Option<u64>) -> Result<(), Errno> {
    let host = rustix::fs::fstatvfs(file)?;
    let bytes = |blocks: u64| blocks.saturating_mul(host.f_frsize);
    let kept = reserve.unwrap_or_else(|| usual(bytes(host.f_blocks)));
    match bytes(host.f_bavail) >= kept.saturating_add(len) {
        true => Ok(()),
        false => Err(Errno::NOSPC),
    }
}

/// The same, counting holes only. This may wait for the host's own disk.
pub fn check_holes(file: &File, at: u64, len: u64, reserve: Option<u64>) -> Result<(), Errno> {
    match holes(file, at, len)? {
        0 => Ok(()),
        holes => check(file, holes, reserve),
    }
}

/// The first written stretch from `at` on, as far as the host tells: a merely reserved one is not written.
pub fn written(file: &File, at: u64) -> Range<u64> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        // There is none from there on.
        Err(Errno::NXIO) => return u64::MAX..u64::MAX,
        Err(_) => return at..u64::MAX,
    };
    start..rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(u64::MAX)
}

/// Bytes of a range that were never written. Reserved but unwritten ones count too: the host does not tell them apart.
fn holes(file: &File, at: u64, len: u64) -> Result<u64, Errno> {
    let (mut next, end, mut holes) = (at, at + len, 0);
    while next < end {
        let data = match rustix::fs::seek(file, SeekFrom::Data(next)) {
            Ok(data) => data.min(end),
            // There is none from there on.
            Err(Errno::NXIO) => end,
            Err(errno) => return Err(errno),
        };
        holes += data - next;
        if data == end {
            break;
        }
        next = rustix::fs::seek(file, SeekFrom::Hole(data))?.min(end);
    }
    Ok(holes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_stays_free_is_a_part_of_a_small_host_and_little_of_a_large_one() {
        assert_eq!(usual(100 << 20), 5 << 20);
        assert_eq!(usual(10 << 40), 4 << 30);
    }

    #[test]
    fn only_holes_need_room() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = dir.path().join("disk");
        let file = File::options().read(true).write(true).create_new(true).open(path).expect("a file");
        file.set_len(4 << 20).expect("long");
        file.write_all_at(&[1; 1 << 20], 1 << 20).expect("written");
        assert_eq!(holes(&file, 0, 4 << 20), Ok(3 << 20));
        assert_eq!(holes(&file, 1 << 20, 1 << 20), Ok(0));
        assert_eq!(holes(&file, 3 << 20, 1 << 20), Ok(1 << 20));
        assert_eq!([written(&file, 0), written(&file, 5 << 18)], [1 << 20..2 << 20, 5 << 18..2 << 20]);
        assert_eq!(written(&file, 2 << 20), u64::MAX..u64::MAX);
        let all = Some(u64::MAX);
        assert_eq!(check_holes(&file, 1 << 20, 1 << 20, all), Ok(()), "it is there already");
        assert_eq!(check_holes(&file, 0, 2 << 20, all), Err(Errno::NOSPC));
        assert_eq!(check_holes(&file, 0, 2 << 20, Some(0)), Ok(()));
    }
}
