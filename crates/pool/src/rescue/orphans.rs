//! Shared memory of pools, which outlives their processes, and may outlive its pool: identified by its
//! [notes](super::identity), not by its name.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use backing::log::Identity;
use backing::save::is_at;
use backing::Backing;
use pram::memory::HEADERS;
use pram::session;
use rustix::fs::{flock, FlockOperation};

use super::identity::MemoryIdentity;
use crate::memory::marks::{self, name_of};
use crate::memory::shared::{made_by, open_plain, own_uid, uuid_of};
use crate::paths::{self, RUNTIME_DIR};
use crate::uuid;
use conquest_fs::error::{Error, Result};

/// Gives back memory of [pools that are gone](MemoryIdentity::is_gone), if their backing held everything. Memory outlives its processes,
/// and nothing else would ever find it.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(RUNTIME_DIR) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if let Ok(Some(_locked)) = unfinished(&path) {
            tracing::info!("giving back {}: whoever made it was killed", path.display());
            let _ = fs::remove_file(&path);
            continue;
        }
        let Some(name) = name_of(&path) else { continue };
        let memory_path = path.with_file_name(format!("{name}-region"));
        // The runtime file exists while a process works on the pool.
        if path.with_file_name(name).exists() {
            continue;
        }
        if let Some(_held) = backed_origin(name, &path, &memory_path).ok().flatten().and_then(|of| of.hold_gone(name)) {
            tracing::info!("giving back {}: its pool is gone", memory_path.display());
            let _ = fs::remove_file(&memory_path);
            let _ = fs::remove_file(&path);
        }
    }
}

/// Memory that no process will finish, locked against one that would make it anew: it has the name of memory that is being made, or
/// no header, which is written last; and its maker does not lock it.
fn unfinished(path: &Path) -> Result<Option<fs::File>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_new = name.ends_with("-region.new");
    let is_ours = name.strip_prefix('.').unwrap_or(name).starts_with("conquest-");
    if !is_ours || !is_new && !name.ends_with("-region") {
        return Ok(None);
    }
    let file = made_by(own_uid(), open_plain(path, false), path)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() || !is_at(&file, path)? {
        return Ok(None);
    }
    let mut header = [0; HEADERS];
    let len = file.read_at(&mut header, 0).map_err(|e| Error::host(path, &e))?;
    Ok((is_new || header[..len].iter().all(|b| *b == 0)).then_some(file))
}

/// The identity of the memory called `name`, if its backing holds all of it.
fn backed_origin(name: &str, marks: &Path, memory_path: &Path) -> Result<Option<MemoryIdentity>> {
    fs::metadata(memory_path).map_err(|e| Error::host(memory_path, &e))?;
    let Some(uuid) = uuid_of(name) else { return Ok(None) };
    let (found, all_backed) = marks::open(marks, own_uid())?;
    let is_backed = all_backed && Backing::is_known(&found, Identity { uuid })?;
    is_backed.then(|| MemoryIdentity::read(&found, uuid)).transpose()
}

/// The UUID of the pool whose memory this file is, if it is one.
pub fn memory_at(memory_path: &Path) -> Option<[u8; 16]> {
    let name = memory_path.file_name()?.to_str()?.strip_suffix("-region")?;
    let is_there =
        memory_path.parent() == Some(RUNTIME_DIR.as_ref()) && fs::symlink_metadata(memory_path).ok()?.is_file();
    uuid_of(name).filter(|_| is_there)
}

/// The owner of the pool at `dir`, or of its remains; else the user of this process.
pub fn owner_of(dir: &Path) -> u32 {
    let found = fs::metadata(dir.join(paths::CONFIG)).or_else(|_| fs::metadata(dir));
    found.ok().filter(|_| memory_at(dir).is_none()).map_or_else(own_uid, |found| found.uid())
}

/// The memories in shared memory, and the UUIDs in their names.
pub fn memories() -> Result<Vec<([u8; 16], PathBuf)>> {
    let entries = fs::read_dir(RUNTIME_DIR).map_err(|e| Error::host(RUNTIME_DIR.as_ref(), &e))?;
    let named = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.ends_with("-region"))?;
        Some((uuid_of(&name)?, entry.path()))
    });
    Ok(named.collect())
}

/// The identity of the memory of the pool `uuid` at `memory_path`, from its marks, if the owner of the pool at `dir` made them;
/// `None` if there are none.
pub fn origin_of(uuid: [u8; 16], memory_path: &Path, dir: &Path) -> Option<MemoryIdentity> {
    fs::metadata(memory_path).ok()?;
    let (marks, _) = marks::open(&marks::beside(memory_path)?, owner_of(dir)).ok()?;
    MemoryIdentity::read(&marks, uuid).ok()
}

/// Whether the memory of the pool `uuid` at `memory_path` belongs to another pool than that at `dir`, whose file number it had.
pub fn is_anothers(uuid: [u8; 16], memory_path: &Path, dir: &Path) -> bool {
    origin_of(uuid, memory_path, dir).is_some_and(|origin| origin.is_anothers(dir))
}

/// Gives memory a name that nothing refers to: its own pool finds it, and nothing takes its place. 1. The marks. 2. The memory.
/// (One without the other does not belong to the backing, and is refused.)
pub fn rename_away(uuid: [u8; 16], memory_path: &Path) -> Result<PathBuf> {
    let away = format!("{}away-{:x}", session::shared_prefix(&uuid), uuid::random_key()?);
    let to = memory_path.with_file_name(format!("{away}-region"));
    let marks = marks::beside(memory_path).zip(marks::beside(&to));
    for (from, to) in marks.into_iter().chain([(memory_path.to_path_buf(), to.clone())]) {
        fs::rename(&from, to).map_err(|e| Error::host(&from, &e))?;
    }
    Ok(to)
}

/// Renames memory of a pool of which nothing else is left, if it has changes that its backing lacked; returns the new name.
pub fn rename_unless_backed(uuid: [u8; 16], memory_path: &Path) -> Result<Option<PathBuf>> {
    let name = memory_path.file_name().and_then(|name| name.to_str()?.strip_suffix("-region")).unwrap_or_default();
    match backed_origin(name, &memory_path.with_file_name(format!("{name}-marks")), memory_path) {
        // The process that makes a pool in its place removes it.
        Ok(Some(origin)) if origin.is_gone(name) => Ok(None),
        _ => {
            // The runtime file of killed processes.
            let _ = fs::remove_file(memory_path.with_file_name(name));
            rename_away(uuid, memory_path).map(Some)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::shared::make_region;

    fn region(what: &str) -> PathBuf {
        Path::new(RUNTIME_DIR).join(format!("conquest-test{}{what}-0-0-region", std::process::id()))
    }

    /// Any user can make such a file: it hung processes that made a pool, or opened one after a reboot.
    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let path = region("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o666.into(), 0).expect("a pipe");
        assert!(unfinished(&path).is_err());
        sweep();
        assert!(path.exists());
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/dev/null", &path).expect("a link");
        assert!(unfinished(&path).is_err());
        fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn what_is_being_made_is_not_taken_for_what_was_left() {
        let (path, lock) = (region("new"), tempfile::tempfile().expect("a file"));
        let made = make_region(&path, &lock, 1 << 20, |_| {
            sweep();
            assert!(path.exists());
            Ok(())
        });
        let made = made.expect("there is room");
        sweep();
        assert!(path.exists());
        drop(made);
        sweep();
        assert!(!path.exists());
    }
}
