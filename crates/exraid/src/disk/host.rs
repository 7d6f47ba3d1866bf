//! A file or block device: kind, size, alignment, present user.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::{Making, Options, MIN_SIZE};
use crate::device::{Properties, Whereabouts};
use crate::error::OpenError;

/// The largest file that every host supports.
const LARGEST_FILE: u64 = 8 << 40;
/// The alignment of transfers where the host does not tell.
const USUAL_ALIGNMENT: u32 = 4096;

/// Milliseconds between tries for a disk in use.
const PAUSES: [u64; 5] = [1, 10, 100, 500, 0];

pub struct Kind {
    pub is_block: bool,
    pub identity: (u64, u64),
}

fn host(path: &Path, what: &'static str) -> impl Fn(Errno) -> OpenError {
    let path = path.to_path_buf();
    move |errno| OpenError::Host { path: path.clone(), what, errno }
}

fn refused(path: &Path, e: &io::Error) -> OpenError {
    let path = path.to_path_buf();
    match Errno::from_io_error(e).unwrap_or(Errno::IO) {
        Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NXIO | Errno::NOMEDIUM => OpenError::Missing(path),
        Errno::ACCESS | Errno::PERM => OpenError::Permission(path),
        Errno::ROFS => OpenError::ReadOnly(path),
        Errno::BUSY => OpenError::Busy { holder: holder(&path), path },
        Errno::ISDIR => OpenError::Unsuitable { path, what: "a directory" },
        errno => OpenError::Host { path, what: "opening it", errno },
    }
}

/// Opens an existing file or device with further flags.
fn open_with(path: &Path, read_only: bool, flags: OFlags) -> io::Result<File> {
    OpenOptions::new().read(true).write(!read_only).custom_flags(flags.bits() as i32).open(path)
}

/// Refuses anything but a file or block device, without opening it: opening some files has effects.
fn suitable(path: &Path) -> Result<std::fs::Metadata, OpenError> {
    let found = std::fs::metadata(path).map_err(|e| refused(path, &e))?;
    let kind = found.file_type();
    let what = match () {
        () if kind.is_file() || kind.is_block_device() => return Ok(found),
        () if kind.is_dir() => "a directory",
        () if kind.is_char_device() => "a character device",
        () => "neither",
    };
    Err(OpenError::Unsuitable { path: path.into(), what })
}

/// Do both exist, and are they one file or device?
pub fn are_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|found| identity_of(&found));
    identity(one).is_some() && identity(one) == identity(other)
}

/// Does the path still lead to the file? If that cannot be checked, the answer is yes.
pub fn whereabouts(path: &Path, file: &File, identity: (u64, u64)) -> Whereabouts {
    let is_deleted = |found: &std::fs::Metadata| found.is_file() && found.nlink() == 0;
    match std::fs::metadata(path) {
        _ if file.metadata().is_ok_and(|found| is_deleted(&found)) => Whereabouts::Deleted,
        Ok(found) if identity_of(&found) != identity => Whereabouts::Away,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Whereabouts::Away,
        _ => Whereabouts::There,
    }
}

fn identity_of(found: &std::fs::Metadata) -> (u64, u64) {
    match found.file_type().is_block_device() {
        true => (u64::MAX, found.rdev()),
        false => (found.dev(), found.ino()),
    }
}

/// Opens a disk for use, past the page cache where possible.
pub fn open(path: &Path, options: &Options) -> Result<File, OpenError> {
    let found = suitable(path)?;
    let file = if found.file_type().is_block_device() && !options.read_only {
        // The first process holds the device against mounting and formatting. Other processes of the pool open it
        // without that.
        match open_past(path, options, OFlags::EXCL) {
            Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => match holder(path) {
                Some(holder) => return Err(OpenError::Busy { path: path.into(), holder: Some(holder) }),
                None => open_past(path, options, OFlags::empty()),
            },
            opened => opened,
        }
    } else {
        open_past(path, options, OFlags::empty())
    };
    file.map_err(|e| refused(path, &e))
}

fn open_past(path: &Path, options: &Options, flags: OFlags) -> io::Result<File> {
    if !options.cached {
        match open_with(path, options.read_only, flags | OFlags::DIRECT) {
            Ok(file) if takes_direct(&file) => return Ok(file),
            // It does not support direct transfers.
            Err(e) if e.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => return Err(e),
            _ => {}
        }
    }
    open_with(path, options.read_only, flags)
}

/// Some take the flag and still read through their cache.
fn takes_direct(file: &File) -> bool {
    match statx_of(file) {
        Some(layout) => layout.stx_dio_offset_align != 0,
        None => rustix::fs::fstatfs(file).is_ok_and(|host| host.f_type != 0x0102_1994),
    }
}

/// The alignment of direct transfers, if the kernel tells (Linux 6.1).
fn statx_of(file: &File) -> Option<rustix::fs::Statx> {
    let layout = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    (layout.stx_mask & StatxFlags::DIOALIGN.bits() != 0).then_some(layout)
}

/// Opens a future disk; the flag tells whether this created the file.
pub fn open_or_create(path: &Path, making: &Making) -> Result<(File, bool), OpenError> {
    let mut new = OpenOptions::new();
    new.read(true).write(true).create_new(true).mode(0o600);
    match new.open(path) {
        Ok(file) => {
            // Opened again, past the cache.
            drop(file);
            let file = open_past(path, &making.options, OFlags::empty()).map_err(|e| refused(path, &e))?;
            return Ok((file, true));
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(refused(path, &e)),
    }
    Ok((open_alone(path, &making.options)?, false))
}

/// Opens an existing file, or a block device so that it cannot be mounted.
pub fn open_alone(path: &Path, options: &Options) -> Result<File, OpenError> {
    let is_block = suitable(path)?.file_type().is_block_device();
    if !is_block {
        return open_past(path, options, OFlags::empty()).map_err(|e| refused(path, &e));
    }
    for pause in PAUSES {
        match open_past(path, options, OFlags::EXCL) {
            // No holder: the kernel still closes the descriptors of a process that has ended.
            Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) && holder(path).is_none() => {
                std::thread::sleep(Duration::from_millis(pause));
            }
            opened => return opened.map_err(|e| refused(path, &e)),
        }
    }
    Err(OpenError::Busy { path: path.into(), holder: None })
}

/// Locks it for this process, alone or together with others. Retries, since udev locks new devices for a moment, and a
/// disk that is being closed stays locked for one.
pub fn lock(path: &Path, file: &File, alone: bool) -> Result<(), OpenError> {
    let (how, holder) = match alone {
        true => (FlockOperation::NonBlockingLockExclusive, "a pool or a volume uses it"),
        false => (FlockOperation::NonBlockingLockShared, "somebody has it for himself"),
    };
    for pause in PAUSES {
        match rustix::fs::flock(file, how) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(pause)),
            Err(errno) if alone => return Err(host(path, "locking it")(errno)),
            // Where locks are not supported there is no holder.
            Err(_) => return Ok(()),
        }
    }
    Err(OpenError::Busy { path: path.into(), holder: Some(holder.into()) })
}

/// Gives a file its length. It is sparse: that allocates nothing.
pub fn size_for(path: &Path, file: &File, is_new: bool, making: &Making) -> Result<(), OpenError> {
    let found = file.metadata().map_err(|e| refused(path, &e))?;
    if found.file_type().is_block_device() {
        let size = size_of_device(path, file, found.rdev())?;
        return match making.size {
            Some(needed) if needed > size => Err(OpenError::TooSmall { path: path.into(), found: size, needed }),
            _ => Ok(()),
        };
    }
    let size = match making.size {
        Some(size) => size,
        None if is_new || found.len() == 0 => all_of_host(path, file)?,
        None => found.len(),
    };
    let size = super::whole(size).end;
    if size < MIN_SIZE {
        return Err(OpenError::TooSmall { path: path.into(), found: size, needed: MIN_SIZE });
    }
    rustix::fs::ftruncate(file, size).map_err(host(path, "making it as long as it is to be"))
}

/// The whole capacity of the host, of which less may be free.
fn all_of_host(path: &Path, file: &File) -> Result<u64, OpenError> {
    let statfs = rustix::fs::fstatvfs(file).map_err(host(path, "asking how large its host is"))?;
    Ok(statfs.f_blocks.saturating_mul(statfs.f_frsize).clamp(MIN_SIZE, LARGEST_FILE))
}

/// By the kernel, without asking the device: a seek would wait for a discard that hangs.
fn size_of_device(path: &Path, file: &File, rdev: u64) -> Result<u64, OpenError> {
    let sectors_file = format!("/sys/dev/block/{}:{}/size", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let sectors = std::fs::read_to_string(sectors_file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if let Some(sectors) = sectors {
        return Ok(sectors * 512);
    }
    rustix::fs::seek(file, SeekFrom::End(0)).map_err(host(path, "asking for its size"))
}

/// Is the device set to read-only? Some can be opened for writing all the same.
fn is_read_only(rdev: u64) -> bool {
    let path = format!("/sys/dev/block/{}:{}/ro", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
}

/// A property of a block device's queue, from the kernel; a partition has its disk's.
fn queue(rdev: u64, name: &str) -> Option<u64> {
    let device = format!("/sys/dev/block/{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let found =
        ["queue", "../queue"].iter().find_map(|dir| std::fs::read_to_string(format!("{device}/{dir}/{name}")).ok());
    found?.trim().parse().ok()
}

pub fn properties(path: &Path, file: &File, options: &Options) -> Result<(Properties, Kind), OpenError> {
    let found = file.metadata().map_err(|e| refused(path, &e))?;
    let is_block = found.file_type().is_block_device();
    if is_block && !options.read_only && is_read_only(found.rdev()) {
        return Err(OpenError::ReadOnly(path.into()));
    }
    let flags = rustix::fs::fcntl_getfl(file).map_err(host(path, "asking how it was opened"))?;
    let direct = flags.contains(OFlags::DIRECT);
    let aligned = statx_of(file).map(|layout| (layout.stx_dio_offset_align, layout.stx_dio_mem_align));
    let (block, memory) = match (direct, aligned) {
        (true, Some((block, memory))) => (block.max(512), memory.clamp(1, USUAL_ALIGNMENT)),
        (true, None) => (USUAL_ALIGNMENT, USUAL_ALIGNMENT),
        (false, _) => (512, 1),
    };
    let size = if is_block { size_of_device(path, file, found.rdev())? } else { found.len() };
    // For a file, the host's device answers if it can.
    let below = if is_block { found.rdev() } else { found.dev() };
    // The kernel splits a larger request if each of its pages lies apart in memory. Splitting takes time, and a cgroup's
    // limit of bytes per second counts a split request twice.
    let most = queue(below, "max_sectors_kb").map_or(1 << 20, |kib| kib << 10);
    let apart = queue(below, "max_segments").map_or(most, |pages| pages * USUAL_ALIGNMENT as u64);
    let whole = most.min(apart).clamp(64 << 10, 4 << 20);
    let properties = Properties {
        size: super::whole(size).end,
        block,
        memory,
        preferred: 1 << whole.ilog2(),
        depth: queue(below, "nr_requests").map_or(32, |depth| depth.clamp(1, 256) as u32),
        direct,
        read_only: options.read_only,
        discards: !options.read_only && (!is_block || queue(below, "discard_max_bytes").is_some_and(|most| most > 0)),
        sparse: !is_block,
        rotates: queue(below, "rotational") == Some(1),
    };
    Ok((properties, Kind { is_block, identity: identity_of(&found) }))
}

/// The holder of a block device, as far as the kernel tells.
fn holder(path: &Path) -> Option<String> {
    let rdev = std::fs::metadata(path).ok()?.rdev();
    let number = format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|m| m.get(2) == Some(&&*number));
    if let Some(mount) = mount {
        return Some(format!("mounted at {}", mount.get(4).unwrap_or(&"?")));
    }
    let dir = std::fs::read_dir(format!("/sys/dev/block/{number}/holders")).ok()?;
    let held = dir.flatten().next()?;
    Some(format!("part of {}", held.file_name().to_string_lossy()))
}
