//! The machine's own disk: the file system and device of a directory, and the count of its flushes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;

use crate::error::Error;
use crate::mounts::{self, Mounted};

/// Bytes of a read when a file is read in order.
const PIECE: usize = 4 << 20;
/// Bytes of a sector in the kernel's statistics, for every device.
const SECTOR: u64 = 512;

/// The directory on the disk: `named`, or the one for temporary files.
pub fn dir_on_disk(named: Option<&PathBuf>) -> PathBuf {
    let temporary = || std::env::var_os("TMPDIR").filter(|d| !d.is_empty()).map(PathBuf::from);
    named.cloned().or_else(temporary).unwrap_or_else(|| "/var/tmp".into())
}

/// A directory on a disk.
#[derive(Clone, Debug)]
pub struct Disk {
    pub dir: PathBuf,
    /// Type of the file system, and its device.
    pub kind: String,
    pub device: String,
    /// An ext4 without a journal: it flushes less, and is not whole after a power cut.
    bare: bool,
    /// The statistics file of that device, if it has one.
    stat: Option<PathBuf>,
}

/// The kernel's counts of a device: `read` and `written` are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub flushes: u64,
    pub read: u64,
    pub written: u64,
}

/// Bytes that a process has transferred from and to disks. A write through a page cache counts when the page becomes
/// dirty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transferred {
    pub read: u64,
    pub written: u64,
}

impl Transferred {
    /// The transfers of process `pid`, or of this one, so far.
    pub fn by(pid: Option<u32>) -> Result<Transferred, Error> {
        let who = pid.map_or("self".into(), |pid| pid.to_string());
        let path = PathBuf::from(format!("/proc/{who}/io"));
        let text = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
        let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        let found = of("read_bytes:").zip(of("write_bytes:")).map(|(read, written)| Transferred { read, written });
        found.ok_or_else(|| Error::Wrong(format!("{}: no counts of bytes", path.display())))
    }

    /// The transfers since `before`.
    pub fn since(self, before: Transferred) -> Transferred {
        Transferred { read: self.read - before.read, written: self.written - before.written }
    }
}

/// Space left free on a host besides the requested space, for other programs.
const SPARE: u64 = 512 << 20;

/// Fails with advice if `dir` has no space for `bytes`.
pub fn require_room(dir: &Path, bytes: u64) -> Result<(), Error> {
    let stat = rustix::fs::statvfs(dir)?;
    let free = stat.f_bavail * stat.f_frsize;
    if free >= bytes + SPARE {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (needed, dir) = (mib(bytes + SPARE), dir.display());
    Err(Error::Usage(format!("{dir} has {} MiB free, {needed} are needed: give smaller sizes", mib(free))))
}

impl Disk {
    /// The disk of `dir`; fails with advice if that is memory.
    pub fn at(dir: &Path) -> Result<Disk, Error> {
        // The run's own /dev/shm hides a directory below the machine's.
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let mounts = mounts::all();
        let Some(Mounted { fs_type, source, number, .. }) = mounts::above(&mounts, &dir) else {
            return Err(Error::Usage(format!("{}: nothing is mounted there", dir.display())));
        };
        if ["tmpfs", "ramfs"].contains(&fs_type.as_str()) {
            let dir = dir.parent().unwrap_or(&dir).display();
            return Err(Error::Usage(format!("{dir} is memory ({fs_type}): name a directory on a disk with --dir")));
        }
        let (kind, device) = (fs_type.clone(), source.clone());
        Ok(Disk { dir, kind, device, bare: has_no_journal(number), stat: statistics(number) })
    }

    /// The name in titles.
    pub fn name(&self) -> String {
        let bare = if self.bare { " without a journal" } else { "" };
        format!("{}{bare} on {}", self.kind, self.device)
    }

    /// Does `work`, and returns the flushes of the device meanwhile for each of `operations`, if they are counted.
    pub fn flushes<T>(&self, operations: usize, work: impl FnOnce() -> T) -> (T, Option<f64>) {
        let before = self.counted();
        let done = work();
        let per_op = |(before, after): (Counted, Counted)| (after.flushes - before.flushes) as f64 / operations as f64;
        (done, before.zip(self.counted()).map(per_op))
    }

    /// The counts so far; `None` if there are none.
    pub fn counted(&self) -> Option<Counted> {
        parse(&std::fs::read_to_string(self.stat.as_ref()?).ok()?)
    }
}

/// The statistics file of device `number`. Flushes are counted for whole disks only.
fn statistics(number: &str) -> Option<PathBuf> {
    let device = Path::new("/sys/dev/block").join(number).canonicalize().ok()?;
    let disk = if device.join("partition").exists() { device.parent()? } else { &device };
    Some(disk.join("stat")).filter(|stat| stat.exists())
}

/// Is there an ext4 on device `number` whose options, as the kernel shows them, name no mode of a journal?
fn has_no_journal(number: &str) -> bool {
    let device = Path::new("/sys/dev/block").join(number).canonicalize().ok();
    let name = device.as_deref().and_then(Path::file_name).map(|name| Path::new("/proc/fs/ext4").join(name));
    let options = name.and_then(|dir| std::fs::read_to_string(dir.join("options")).ok());
    options.is_some_and(|options| !options.lines().any(|option| option.starts_with("data=")))
}

/// Parses /sys/block/DEVICE/stat; kernels before 5.5 do not count flushes.
pub fn parse(stat: &str) -> Option<Counted> {
    let fields: Vec<u64> = stat.split_whitespace().map_while(|f| f.parse().ok()).collect();
    Some(Counted { flushes: *fields.get(15)?, read: fields.get(2)? * SECTOR, written: fields.get(6)? * SECTOR })
}

/// Evicts the files of a directory from the page cache, so that the next reads go to the disk.
pub fn drop_cached(dir: &Path) -> Result<(), Error> {
    for entry in std::fs::read_dir(dir).map_err(Error::file(dir))?.flatten() {
        let file = File::open(entry.path()).map_err(Error::file(entry.path()))?;
        // Pages that are not written yet would stay.
        file.sync_data().map_err(Error::file(entry.path()))?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// Reads a file from its beginning on, `most` bytes or a little more, without its holes, which are not read from a
/// disk; returns the bytes read.
pub fn read_in_order(path: &Path, most: u64) -> Result<u64, Error> {
    let file = File::open(path).map_err(Error::file(path))?;
    let (mut buf, mut at, mut bytes) = (vec![0; PIECE], 0, 0);
    while bytes < most {
        at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            // Not every file system reports holes.
            Err(_) => at,
        };
        match file.read_at(&mut buf, at).map_err(Error::file(path))? {
            0 => break,
            n => (at, bytes) = (at + n as u64, bytes + n as u64),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_are_read() {
        let stat = "  10 1 80 5 20 2 160 7 0 9 12 0 0 0 0 33 4\n";
        assert_eq!(parse(stat), Some(Counted { flushes: 33, read: 80 * 512, written: 160 * 512 }));
        assert_eq!(parse("1 2 3\n"), None);
    }

    #[test]
    fn room_is_required_and_its_lack_reported_with_what_to_do() {
        let dir = tempfile::tempdir().expect("a directory");
        require_room(dir.path(), 0).expect("half a gigabyte");
        let refused = require_room(dir.path(), 1 << 60).expect_err("an exabyte");
        assert!(refused.to_string().contains("smaller sizes"), "{refused}");
    }

    #[test]
    fn a_process_tells_what_it_has_transferred() {
        let before = Transferred::by(None).expect("of this process");
        let after = Transferred::by(Some(std::process::id())).expect("of the same");
        assert!(after.since(before).read < 1 << 40);
        assert!(Transferred::by(Some(0)).is_err());
    }

    #[test]
    fn memory_is_refused_with_what_to_do() {
        let refused = Disk::at(Path::new("/dev/shm"));
        if Path::new("/dev/shm").is_dir() {
            assert!(refused.expect_err("memory").to_string().contains("--dir"));
        }
    }

    #[test]
    fn a_file_is_read_to_its_end_or_as_far_as_is_asked() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("f");
        std::fs::write(&file, vec![1; PIECE + 3]).expect("write");
        drop_cached(dir.path()).expect("out of the cache");
        assert_eq!(read_in_order(&file, u64::MAX).expect("read"), PIECE as u64 + 3);
        assert_eq!(read_in_order(&file, 10).expect("read"), PIECE as u64);
        let longer = File::options().write(true).open(&file).expect("it is there");
        longer.set_len(100 * PIECE as u64).expect("a hole");
        let read = read_in_order(&file, u64::MAX).expect("read");
        assert!((PIECE as u64 + 3..3 * PIECE as u64).contains(&read), "{read} bytes of a file with a hole");
    }
}
