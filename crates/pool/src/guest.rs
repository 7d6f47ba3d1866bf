//! Opening a pool as a guest: beside a process that does the background work, as the mount's server does.
//!
//! A guest comes often, for a moment (each process of a build), and lives in somebody else's program. So it opens three files in shared
//! memory and the one with the locks, and nothing else: no disk, no backing. The processes that have the pool open have looked whether
//! its parts belong together. Its descriptors have high numbers ([`pram::descriptor`]), and its children do not inherit the pool
//! ([`pram::mem::fork`]).

use std::path::Path;

use backing::log::Identity;
use backing::save::is_at;
use backing::Backing;
use exraid::owner;
use pram::medium::LOGGED;
use pram::session::{self, Exclusive};
use pram::Memory;
use rustix::fs::OFlags;

use crate::config::Config;
use crate::medium::MediumKind;
use crate::memory::file::{self, Opened};
use crate::memory::{marks, shared};
use crate::paths::{self, IMAGE, RUNTIME_DIR};
use conquest_fs::error::{Error, Result};

/// Opens the memory of the pool at `dir` so. `None` if another pool takes the place of this one.
pub fn open_memory(dir: &Path, config: &Config) -> Result<Option<Opened>> {
    let (uuid, is_logged) = (config.uuid_bytes()?, config.medium == MediumKind::Logged);
    let opened = match is_logged {
        true => open_logged(dir, &uuid)?,
        false => {
            let path = config.nvram_path(dir);
            owner::refuse_foreign_file(&path)?;
            file::open_memory(&path, dir, config.medium)?
        }
    };
    let Some(mut opened) = opened else { return Ok(None) };
    if !config.is_of(&opened.memory) {
        return Err(Error::Pool(format!("the memory of the pool at {} belongs to another pool", dir.display())));
    }
    file::refuse_other_version(&opened.memory)?;
    // Whether there have to be any those know who are attached.
    if let Some((file, path)) = beside(&opened.exclusive, dir, &uuid, "marks")? {
        let marks = marks::map(&file, &path)?;
        if let Some(backing) = Backing::beside(&marks, Identity { uuid })? {
            opened.memory.track(marks);
            opened.backing = Some(backing.awaited(is_logged || config.mirror));
        }
    }
    Ok(Some(opened))
}

/// What lies in shared memory of the pool whose processes lock `lock`, and where.
fn beside(
    lock: &Exclusive,
    dir: &Path,
    uuid: &[u8; 16],
    what: &str,
) -> Result<Option<(std::fs::File, std::path::PathBuf)>> {
    let stat = rustix::fs::fstat(lock).map_err(|errno| Error::host(dir, &errno.into()))?;
    let path = Path::new(RUNTIME_DIR).join(format!("{}-{what}", session::shared_name(uuid, &stat)));
    Ok(shared::open_of(stat.st_uid, &path)?.map(|file| (file, path)))
}

fn open_logged(dir: &Path, uuid: &[u8; 16]) -> Result<Option<Opened>> {
    // The directory was looked at when its `pool.toml` was read.
    let lock = paths::open_own(dir, IMAGE, OFlags::RDWR)?.ok_or(Error::Unattended)?;
    let exclusive = Exclusive::over(lock.into())?;
    if paths::is_swap_due(dir) || !is_at(&exclusive, &dir.join(IMAGE))? {
        return Ok(None);
    }
    // It goes only while nobody is attached.
    let Some((file, path)) = beside(&exclusive, dir, uuid, "region")? else { return Err(Error::Unattended) };
    let size = shared::memory_size(&file, &path)?;
    let memory = Memory::open(shared::map_memory(&file, &path, size)?, Box::new(LOGGED))?;
    Ok(Some(Opened { memory, exclusive, backing: None, duplex: None }))
}
