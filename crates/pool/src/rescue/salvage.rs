//! The memory of a pool on `logged` alone, for inspecting and saving it if its backing cannot be used.
//!
//! It is mapped privately: open transactions of a crash are undone in the mapping, not in the memory.

use std::fs;
use std::path::{Path, PathBuf};

use pram::medium::LOGGED;
use pram::session::shared_name;
use pram::{Memory, Session};

use super::orphans;
use crate::config::Config;
use crate::medium::MediumKind;
use crate::memory::file::refuse_other_version;
use crate::memory::map::map_private;
use crate::memory::marks;
use crate::memory::shared::{made_by, open_plain, refuse_mapped};
use crate::paths::{DEFAULT_NVRAM, IMAGE, RUNTIME_DIR};
use crate::uuid;
use conquest_fs::error::{Error, Result};
use conquest_fs::max_inodes;

/// Opens the memory, while no process has the pool open.
pub fn open(dir: &Path, config: &Config) -> Result<Session> {
    let missing = || Error::Pool(format!("there is no memory of the pool at {}", dir.display()));
    let path = find(dir, config)?.ok_or_else(missing)?;
    refuse_mapped(&path)?;
    let memory = open_file(&path, dir)?;
    let map = map_private(&memory, &path)?;
    let size = map.len();
    let mapped = Memory::open(map, Box::new(LOGGED))?;
    if !config.is_of(&mapped) {
        return Err(Error::Pool(format!("{} belongs to another pool", path.display())));
    }
    refuse_other_version(&mapped)?;
    Ok(Session::private(mapped, max_inodes(size))?)
}

/// The pool whose memory says that its backing lay in `dir`; or whose memory is the file `dir`.
pub fn lost(dir: &Path) -> Result<Option<Config>> {
    let of = |uuid| Ok(Some(Config::new(MediumKind::Logged, uuid::text(uuid))));
    if let Some(uuid) = orphans::memory_at(dir) {
        return of(&uuid);
    }
    match &lost_at(dir)?[..] {
        [] => Ok(None),
        [(uuid, _)] => of(uuid),
        [(_, one), .., (_, other)] => Err(which(one, other, dir)),
    }
}

/// Memory of pools whose backing lay in `dir`. None where the memory of a pool on another medium lies.
fn lost_at(dir: &Path) -> Result<Vec<([u8; 16], PathBuf)>> {
    if dir.join(DEFAULT_NVRAM).exists() {
        return Ok(Vec::new());
    }
    noted_at(dir)
}

/// Memory that notes that its backing lay in `dir`, and the UUIDs in the names of its files.
fn noted_at(dir: &Path) -> Result<Vec<([u8; 16], PathBuf)>> {
    let is_ours = |(uuid, region): &([u8; 16], PathBuf)| {
        orphans::origin_of(*uuid, region, dir).is_some_and(|origin| origin.is(dir))
    };
    Ok(orphans::memories()?.into_iter().filter(is_ours).collect())
}

/// Before a pool is made at `dir`: renames memory that is all that is left of a former pool there, so that nothing replaces it.
pub fn set_aside(dir: &Path) -> Result<()> {
    // Memory in use keeps its name: its `image` is held open, so that no other file gets the number.
    for (uuid, memory_path) in lost_at(dir)?.into_iter().filter(|(_, memory_path)| refuse_mapped(memory_path).is_ok()) {
        if let Some(kept) = orphans::rename_unless_backed(uuid, &memory_path)? {
            let (dir, kept) = (dir.display(), kept.display());
            tracing::warn!(
                "a pool that was at {dir} has left memory, with what its backing may have lacked: `conquest save {kept} FILE` writes \
                 an image of it; remove it if it is not needed"
            );
        }
    }
    Ok(())
}

fn which(one: &Path, other: &Path, dir: &Path) -> Error {
    Error::Pool(format!(
        "{} and {} may both be the memory of the pool at {}: move the one away that is not, with the marks beside it (`ls -l \
         --full-time` tells when they were changed last), and try again; or save them by these names",
        one.display(),
        other.display(),
        dir.display()
    ))
}

/// The path of the memory. It is named after the file `image`; without that file, its [notes](super::identity) tell whose it is.
pub fn find(dir: &Path, config: &Config) -> Result<Option<PathBuf>> {
    if config.medium != MediumKind::Logged {
        return Ok(None);
    }
    let uuid = config.uuid_bytes()?;
    if orphans::memory_at(dir) == Some(uuid) {
        return Ok(Some(dir.into()));
    }
    if let Ok(stat) = rustix::fs::stat(dir.join(IMAGE)) {
        let path = Path::new(RUNTIME_DIR).join(format!("{}-region", shared_name(&uuid, &stat)));
        return Ok(Some(path).filter(|path| path.exists() && !orphans::is_anothers(uuid, path, dir)));
    }
    let mut found = noted_at(dir)?;
    found.retain(|(of, _)| *of == uuid);
    match &found[..] {
        [] => Ok(None),
        [(_, one)] => Ok(Some(one.clone())),
        [(_, one), .., (_, other)] => Err(which(one, other, dir)),
    }
}

/// Any user can make files there: only files of the pool's owner count.
pub fn open_file(path: &Path, dir: &Path) -> Result<fs::File> {
    made_by(orphans::owner_of(dir), open_plain(path, false), path)
}

/// Advice on saving the content of the memory of the pool at `dir`.
pub fn save_it(dir: &Path) -> String {
    format!(
        "keep what the pool's memory holds: once it is unmounted, `conquest save {} FILE` writes an image, and \
         `conquest restore NEW FILE` makes a pool of that",
        dir.display()
    )
}

/// Gives the memory back, with its marks.
pub fn remove(memory_path: &Path) {
    let marks = marks::beside(memory_path);
    [Some(memory_path.to_path_buf()), marks].into_iter().flatten().for_each(|path| _ = fs::remove_file(path));
}
