//! The memory of pools on this host, and its owners, for inspection: files are not mapped, as their owners could cut them short.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use backing::log::Identity;
use backing::Backing;
use serde::Serialize;

use super::identity::MemoryIdentity;
use super::orphans;
use crate::config::Config;
use crate::medium::MediumKind;
use crate::memory::{locks, marks, shared};
use crate::paths::{as_text, as_text_if_any};
use crate::uuid;
use conquest_fs::error::{Error, Result};

/// The memory of a pool on `logged`, in use or not.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Its file in shared memory.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The UUID of its pool.
    pub uuid: String,
    /// The user that made it.
    pub owner: u32,
    /// Bytes of the memory, and the bytes that it and its marks take now.
    pub size: u64,
    pub taken: u64,
    /// The path of its pool, present or former, if that can be read.
    #[serde(serialize_with = "as_text_if_any")]
    pub pool: Option<PathBuf>,
    pub belongs: Belongs,
    /// The pool's backing held all of it when the last commit was durable; `None`: unreadable.
    pub backed: Option<bool>,
}

/// The owner of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Belongs {
    /// The pool that it names.
    Pool,
    /// A pool that is gone, or that another one has replaced.
    Gone,
    /// Another user made it, and only that user can read its notes.
    Another,
    /// Nothing readable says so.
    Unknown,
}

/// All memory of pools on `logged` on this host.
pub fn all() -> Result<Vec<Memory>> {
    Ok(orphans::memories()?.into_iter().filter_map(|(uuid, memory_path)| look_at(uuid, &memory_path).ok()).collect())
}

/// The memory in the file `memory_path`, of the pool `uuid`.
pub fn look_at(uuid: [u8; 16], memory_path: &Path) -> Result<Memory> {
    let found = fs::symlink_metadata(memory_path).map_err(|e| Error::host(memory_path, &e))?;
    if !found.is_file() {
        return Err(Error::Pool(format!("{} is no file", memory_path.display())));
    }
    let is_ours = found.uid() == shared::own_uid();
    let marks_path = marks::beside(memory_path);
    let marks_taken = marks_path.as_ref().and_then(|path| fs::symlink_metadata(path).ok()).map_or(0, |m| m.blocks());
    let read = marks_path.filter(|_| is_ours).and_then(|path| marks::read_out(&path, found.uid()).ok());
    let identity = read.as_ref().and_then(|marks| MemoryIdentity::read(marks, uuid).ok());
    let id = Identity { uuid };
    let backed = |marks| Some(marks::holds_all(marks).ok()? && Backing::is_known(marks, id).ok()?);
    Ok(Memory {
        path: memory_path.into(),
        uuid: uuid::text(&uuid),
        owner: found.uid(),
        size: found.len(),
        taken: (found.blocks() + marks_taken) * 512,
        belongs: match &identity {
            Some(identity) => whose(identity, &uuid, memory_path, found.uid()),
            None if is_ours => Belongs::Unknown,
            None => Belongs::Another,
        },
        pool: identity.and_then(|identity| identity.dir().map(Path::to_path_buf)),
        backed: read.as_ref().and_then(backed),
    })
}

/// Gives back memory of a pool that is gone, if its backing held everything; for memory of an existing pool returns that pool's path.
pub fn release(uuid: [u8; 16], memory_path: &Path) -> Result<Option<PathBuf>> {
    shared::refuse_mapped(memory_path)?;
    let found = look_at(uuid, memory_path)?;
    match (found.belongs, found.backed) {
        (Belongs::Pool, _) => Ok(found.pool),
        (Belongs::Gone, Some(true)) => {
            fs::remove_file(memory_path).map_err(|e| Error::host(memory_path, &e))?;
            _ = marks::beside(memory_path).map(fs::remove_file);
            Ok(None)
        }
        _ => Err(Error::Pool(format!(
            "{0} may hold what is nowhere else: `conquest save {0} FILE` writes an image of it, `conquest destroy {0}` gives \
             it up",
            memory_path.display()
        ))),
    }
}

/// An existing pool, by its directory.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    #[serde(serialize_with = "as_text")]
    pub pool: PathBuf,
    pub uuid: String,
    pub medium: MediumKind,
    /// Bytes that its memory takes now: of shared memory on `logged`, of its file on other media.
    pub taken: u64,
    /// Whether a process has it open; `None`: the caller has no right to know.
    pub in_use: Option<bool>,
}

/// The pool at `dir`, whose configuration is `config`.
pub fn summary(dir: &Path, config: &Config) -> Summary {
    let memory_path = config.nvram_path(dir);
    let memory = config.uuid_bytes().and_then(|uuid| look_at(uuid, &memory_path)).map(|memory| memory.taken);
    let taken = match config.medium {
        MediumKind::Logged => memory.unwrap_or(0),
        _ => fs::metadata(&memory_path).map_or(0, |found| found.blocks() * 512),
    };
    let in_use = locks::are_attached(&config.lock_path(dir)).ok();
    Summary { pool: dir.into(), uuid: config.uuid.clone(), medium: config.medium, taken, in_use }
}

/// The owner by the memory's notes, which count if the pool's owner, or root, made them.
fn whose(identity: &MemoryIdentity, uuid: &[u8; 16], memory_path: &Path, owner: u32) -> Belongs {
    let name = memory_path.file_name().and_then(|name| name.to_str()?.strip_suffix("-region")).unwrap_or_default();
    let Some(dir) = identity.dir() else { return Belongs::Unknown };
    let is_its = |config: &Config| config.uuid_bytes().is_ok_and(|of| of == *uuid) && identity.is(dir);
    match Config::read(dir) {
        Ok(Some(config)) if is_its(&config) && (owner == 0 || owner == orphans::owner_of(dir)) => Belongs::Pool,
        _ if identity.hold_gone(name).is_some() => Belongs::Gone,
        _ => Belongs::Unknown,
    }
}
