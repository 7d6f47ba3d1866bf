//! Files in shared memory: the memory of a pool on `logged`, and the files named beside it.
//!
//! Any user can make files there, so only files of the pool's owner, or of root, count.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use backing::save::is_at;
use pram::mem::Sync;
use pram::memory::HEADERS;
use pram::{session, Mapping, Memory};
use rustix::fs::{flock, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::paths::{IMAGE, RUNTIME_DIR};
use conquest_fs::error::{Error, Result};

/// The path in shared memory of the `region` or `marks` of the pool whose processes lock `lock`.
pub fn path(lock: impl AsFd, uuid: &[u8; 16], what: &str) -> Result<PathBuf> {
    let stat = rustix::fs::fstat(lock).map_err(|errno| Error::Host { what: "the pool's locks".into(), errno })?;
    Ok(Path::new(RUNTIME_DIR).join(format!("{}-{what}", session::shared_name(uuid, &stat))))
}

/// The path of the memory of the pool in `dir`.
pub fn memory_path(dir: &Path, uuid: &[u8; 16]) -> PathBuf {
    match rustix::fs::stat(dir.join(IMAGE)) {
        Ok(stat) => Path::new(RUNTIME_DIR).join(format!("{}-region", session::shared_name(uuid, &stat))),
        Err(_) => RUNTIME_DIR.into(),
    }
}

/// The UUID in the name of a pool's file in shared memory.
pub fn uuid_of(name: &str) -> Option<[u8; 16]> {
    let digits = name.strip_prefix("conquest-")?.get(..32)?;
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

/// A file in shared memory, if it exists. Any user can make files there: only files of the pool's owner count.
pub fn open_shared(path: &Path, lock: &fs::File) -> Result<Option<fs::File>> {
    open_of(lock.metadata().map_err(|e| Error::host(path, &e))?.uid(), path)
}

/// The same, where that is this user.
pub fn open_of(owner: u32, path: &Path) -> Result<Option<fs::File>> {
    match open_plain(path, true) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        opened => made_by(owner, opened, path).map(Some),
    }
}

/// Opens a file where any user can make some: it follows no link, and opens nothing that would block.
pub fn open_plain(path: &Path, write: bool) -> std::io::Result<fs::File> {
    let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
    let file = fs::OpenOptions::new().read(true).write(write).custom_flags(flags.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("this is no file; remove it")),
    }
}

/// The file that was opened at `path`, if the user `owner` made it, or root.
pub fn made_by(owner: u32, opened: std::io::Result<fs::File>, path: &Path) -> Result<fs::File> {
    let file = opened.map_err(|e| Error::host(path, &e))?;
    match file.metadata().map_err(|e| Error::host(path, &e))?.uid() {
        uid if uid == owner || uid == 0 => Ok(file),
        _ => Err(Error::Pool(format!("{} does not belong to the owner of the pool directory: if it is this pool's memory, have both belong to one; else move it away", path.display()))),
    }
}

pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes a file in shared memory, zeroed, for all users that may open the pool. Memory is taken when it is first touched.
pub fn make_shared(path: &Path, lock: &fs::File, len: u64) -> Result<fs::File> {
    let _ = fs::remove_file(path);
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|e| Error::host(path, &e))?;
    let owner = lock.metadata().map_err(|e| Error::host(path, &e))?;
    let _ = std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()));
    let _ = rustix::fs::fchmod(file.as_fd(), rustix::fs::Mode::from_raw_mode(owner.mode() & 0o666));
    match rustix::fs::ftruncate(&file, len) {
        Ok(()) => Ok(file),
        Err(errno) => {
            let _ = fs::remove_file(path);
            Err(no_room(path, len, errno))
        }
    }
}

/// A memory that is being made. While its maker holds it, it does not count as unfinished.
pub struct NewRegion<R> {
    pub filled: R,
    pub file: fs::File,
}

/// The same for a memory, which `fill` fills by writing: a lack of room is reported, and bytes that are not written take no
/// memory.
pub fn make_region<R>(
    path: &Path,
    lock: &fs::File,
    len: u64,
    fill: impl FnOnce(&fs::File) -> Result<R>,
) -> Result<NewRegion<R>> {
    let file = make_locked(path, lock, len)?;
    let filled = match total(&file) {
        Some(total) if len > total => Err(no_room(path, len, Errno::NOSPC)),
        _ => fill(&file).map_err(|e| match e {
            Error::Host { errno: Errno::NOSPC | Errno::NOMEM, .. } => {
                no_room(path, file.metadata().map_or(len, |found| found.len()), Errno::NOSPC)
            }
            e => e,
        }),
    };
    if filled.is_err() {
        let _ = fs::remove_file(path);
    }
    filled.map(|filled| NewRegion { filled, file })
}

/// Bytes that the file system of a file has in all; `None` if it has no limit.
pub fn total(file: &fs::File) -> Option<u64> {
    let found = rustix::fs::fstatvfs(file).ok().filter(|found| found.f_blocks > 0)?;
    Some(found.f_blocks.saturating_mul(found.f_frsize))
}

/// The same of the file at `path`; `None` for a device.
pub fn total_at(path: &Path) -> Option<u64> {
    let file = fs::File::open(path).ok()?;
    file.metadata().ok().filter(|found| found.is_file())?;
    total(&file)
}

/// Maps a memory in shared memory, which may grow beyond its present `len` bytes.
pub fn map_memory(file: &fs::File, path: &Path, len: u64) -> Result<Mapping> {
    let mapped = Mapping::growing(file, len, Sync::No, Memory::recorded_len);
    mapped.map_err(|errno| Error::Host { what: format!("mapping {}", path.display()), errno })
}

/// Bytes of the memory in `file`, by its header, if all of them are there.
pub fn memory_size(file: &fs::File, path: &Path) -> Result<u64> {
    let mut header = [0; HEADERS];
    let read = file.read_at(&mut header, 0).map_err(|e| Error::host(path, &e))?;
    let (size, _) = Memory::probe(&header[..read])?;
    let found = file.metadata().map_err(|e| Error::host(path, &e))?.len();
    match found < size {
        true => Err(Error::Pool(format!("it has {found} bytes, should have {size}"))),
        false => Ok(size),
    }
}

fn make_locked(path: &Path, lock: &fs::File, len: u64) -> Result<fs::File> {
    loop {
        let file = make_shared(path, lock, len)?;
        while flock(&file, FlockOperation::LockExclusive) == Err(Errno::INTR) {}
        // Until the lock was held, a sweep may have removed it as unfinished.
        if is_at(&file, path)? {
            return Ok(file);
        }
    }
}

fn no_room(path: &Path, len: u64, errno: Errno) -> Error {
    let free = rustix::fs::statvfs(RUNTIME_DIR).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    Error::Pool(format!(
        "{}: no room for {} MiB ({errno}): {RUNTIME_DIR} has {} MiB left; make room there (`conquest umount --release` gives \
         the memory of another pool back)",
        path.display(),
        len >> 20,
        free >> 20
    ))
}

/// Fails if a process works on it, as far as this process may see: without the backing there are no locks to tell.
pub fn refuse_mapped(path: &Path) -> Result<()> {
    let name = path.to_string_lossy();
    let maps = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    match pids.find(|pid| maps(pid).contains(&*name)) {
        Some(pid) => Err(Error::Pool(format!(
            "process {pid} works on the pool's memory {name}; unmount the pool first: the memory stays"
        ))),
        None => Ok(()),
    }
}

/// Removes all files in shared memory that are named after a file, of any pool.
pub fn remove_named_after(file: &fs::Metadata) {
    let number = format!("-{:x}-{:x}", file.dev(), file.ino());
    let is_its = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = name.strip_prefix('.').unwrap_or(name);
        let rest = name.split_once(&number).map(|(_, rest)| rest);
        name.starts_with("conquest-") && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let entries = fs::read_dir(RUNTIME_DIR).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_its).for_each(|path| _ = fs::remove_file(path));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a mount said to give the pool less memory.
    #[test]
    fn who_finds_no_room_learns_how_much_there_is() {
        let path = Path::new(RUNTIME_DIR).join(format!("conquest-test{}full-0-0-region", std::process::id()));
        let lock = tempfile::tempfile().expect("a file");
        let refusal = make_region(&path, &lock, 1 << 50, |_| Ok(())).err().expect("too much").to_string();
        assert!(refusal.contains("1073741824 MiB") && refusal.contains("MiB left; make room"), "{refusal}");
        assert!(!refusal.contains("--nvram") && !path.exists());
    }
}
