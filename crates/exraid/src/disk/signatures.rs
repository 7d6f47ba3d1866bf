//! The content of a disk before it becomes one of ours.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::io::Errno;

use crate::error::OpenError;
use crate::label::{self, RawLabel};

/// Bytes at either end in which other systems have their signatures.
const LOOK: usize = 1 << 20;

/// A signature's offset from the start, its bytes, and its meaning.
const AT_START: &[(usize, &[u8], &str)] = &[
    (0x438, b"\x53\xef", "an ext file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "a bcachefs file system"),
    (4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "a bcachefs file system"),
    (4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x82", "a bcache device"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (0, b"hsqs", "a squashfs file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (512 + 24, b"LVM2 001", "an LVM physical volume"),
    (24, b"LVM2 001", "an LVM physical volume"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of an MD array"),
    (0, b"\xfc\x4e\x2b\xa9", "a member of an MD array"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (0, b"QFI\xfb", "a disk image (qcow2)"),
];

/// The same, counted from the end.
const AT_END: &[(usize, &[u8], &str)] = &[
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (65536, b"\xfc\x4e\x2b\xa9", "a member of an MD array"),
    (8192, b"\xfc\x4e\x2b\xa9", "a member of an MD array"),
];

/// Uberblocks of ZFS lie from here on, 1 KiB or more apart.
const ZFS: std::ops::Range<usize> = 128 << 10..256 << 10;

/// Describes its content; nothing if it may be used without a question. Unknown content counts in a file, since a file
/// was made on purpose.
pub fn what_is_on(path: &Path, file: &File) -> Result<Option<String>, OpenError> {
    let fail = |e: std::io::Error| OpenError::Host {
        path: path.into(),
        what: "looking what is on it",
        errno: Errno::from_io_error(&e).unwrap_or(Errno::IO),
    };
    // Through the page cache: it allows any alignment, and has the latest writes of others.
    let cached = File::open(path).map_err(fail)?;
    let size = rustix::fs::seek(&cached, rustix::fs::SeekFrom::End(0)).map_err(std::io::Error::from).map_err(fail)?;
    let len = size.min(LOOK as u64) as usize;
    let (mut start, mut end) = (vec![0; len], vec![0; len]);
    cached.read_exact_at(&mut start, 0).map_err(fail)?;
    cached.read_exact_at(&mut end, size - len as u64).map_err(fail)?;
    if let Some(found) = known(&start, &end) {
        return Ok(Some(found));
    }
    let is_file = !file.metadata().map_err(fail)?.file_type().is_block_device();
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let has_content = is_file && !(is_zero(&start) && is_zero(&end));
    Ok(has_content.then(|| format!("a file of {size} bytes with content")))
}

/// The meaning of the first and last bytes.
fn known(start: &[u8], end: &[u8]) -> Option<String> {
    let label = [start, end.get(end.len().saturating_sub(label::END as usize)..)?]
        .into_iter()
        .find_map(|bytes| RawLabel::read(bytes.get(..size_of::<RawLabel>())?).ok());
    if let Some(label) = label {
        let role = label.role + 1;
        return Some(format!("disk {role} of region {} of the pool {}", label.region, label::Uuid(label.pool)));
    }
    let is_at = |bytes: &[u8], at: Option<usize>, what: &[u8]| {
        at.and_then(|at| bytes.get(at..)).is_some_and(|bytes| bytes.starts_with(what))
    };
    let first = AT_START.iter().find(|(at, what, _)| is_at(start, Some(*at), what));
    let last = AT_END.iter().find(|(from, what, _)| is_at(end, end.len().checked_sub(*from), what));
    if let Some((_, _, what)) = first.or(last) {
        return Some((*what).into());
    }
    let has_uberblock = |at: usize| {
        is_at(start, Some(at), b"\x0c\xb1\xba\0\0\0\0\0") || is_at(start, Some(at), b"\0\0\0\0\0\xba\xb1\x0c")
    };
    if ZFS.step_by(1024).any(has_uberblock) {
        return Some("a member of a ZFS pool".into());
    }
    let has_partition = |entry: usize| start.get(446 + entry * 16 + 4).is_some_and(|kind| *kind != 0);
    (is_at(start, Some(510), b"\x55\xaa") && (0..4).any(has_partition)).then(|| "a partition table (MBR)".into())
}
