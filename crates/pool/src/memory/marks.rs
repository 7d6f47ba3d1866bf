//! The marks of a memory in shared memory: they tell which lines have changed since the last commit to its backing.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use backing::log::Identity;
use backing::Backing;
use pram::marks::Marks;
use pram::Mapping;
use rustix::fs::SeekFrom;

use super::shared::{self, made_by, open_plain};
use conquest_fs::error::{Error, Result};

/// Bytes of marks that are read at a time.
const PIECE: usize = 64 << 10;

/// The path of the marks of the memory at `memory`.
pub fn beside(memory: &Path) -> Option<PathBuf> {
    let name = memory.file_name()?.to_str()?.strip_suffix("-region")?;
    Some(memory.with_file_name(format!("{name}-marks")))
}

/// The name of the pool's files in shared memory, from that of these marks.
pub fn name_of(marks: &Path) -> Option<&str> {
    marks.file_name()?.to_str()?.strip_suffix("-marks").filter(|name| name.starts_with("conquest-"))
}

/// The marks in `file`, to the end of the file.
pub fn map(file: &fs::File, path: &Path) -> Result<Marks> {
    let len = file.metadata().map_err(|e| Error::host(path, &e))?.len();
    if len < Marks::bytes(0) {
        return Err(Error::Pool(format!("{} has {len} bytes, too few for what it should hold", path.display())));
    }
    let failed = |errno| Error::Host { what: format!("mapping {}", path.display()), errno };
    let map = Mapping::file(file, len).map_err(failed)?;
    Ok(Marks::over_file(map, pram::mem::descriptor::Kept::duplicate_of(file).map_err(failed)?)?)
}

/// The marks in shared memory, which the user `owner` or root must have made, and whether the backing holds everything.
pub fn open(marks: &Path, owner: u32) -> Result<(Marks, bool)> {
    let file = made_by(owner, open_plain(marks, true), marks)?;
    let marks = map(&file, marks)?;
    let all_backed = holds_all(&marks)?;
    Ok((marks, all_backed))
}

pub fn holds_all(marks: &Marks) -> Result<bool> {
    Ok(marks.marked()? == 0)
}

/// A copy of the present marks, in memory of our own: their owner may cut them short meanwhile.
pub fn read_out(marks: &Path, owner: u32) -> Result<Marks> {
    let file = made_by(owner, open_plain(marks, false), marks)?;
    let len = file.metadata().map_err(|e| Error::host(marks, &e))?.len();
    let memory = Mapping::anonymous(len).map_err(|errno| Error::Host { what: marks.display().to_string(), errno })?;
    let failed = |e: std::io::Error| Error::host(marks, &e);
    let (mut piece, mut at) = (vec![0; PIECE], 0);
    // They are sparse.
    while let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(data)).map_err(|errno| failed(errno.into()))?.min(len);
        at = data;
        while at < end {
            let want = (end - at).min(PIECE as u64) as usize;
            match file.read_at(&mut piece[..want], at).map_err(failed)? {
                0 => return Err(Error::Pool(format!("{} was cut short", marks.display()))),
                n => {
                    memory.write(at, &piece[..n])?;
                    at += n as u64;
                }
            }
        }
        if at >= len {
            break;
        }
    }
    Ok(Marks::over(memory)?)
}

/// Whether the backing of the memory whose processes lock `lock` holds everything, by its marks.
pub fn is_backed(marks: &Path, lock: &fs::File, id: Identity) -> Result<bool> {
    let (marks, all_backed) = open(marks, lock.metadata().map_err(|e| Error::host(marks, &e))?.uid())?;
    Ok(all_backed && Backing::is_known(&marks, id)?)
}

/// Removes the marks of the memory of the pool whose processes would lock `lock`, if none is attached, and the runtime file of killed
/// ones.
pub fn forget(lock: impl AsFd, uuid: &[u8; 16]) {
    if let Ok(marks) = shared::path(lock, uuid, "marks") {
        let _ = fs::remove_file(&marks);
        let runtime = name_of(&marks).map(|name| marks.with_file_name(name));
        runtime.iter().for_each(|path| _ = fs::remove_file(path));
    }
}
