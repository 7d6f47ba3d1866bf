//! The first disk, or region of several, of a pool that has none.
//!
//! 1. Its disks are made, with their labels. Nothing leads to them yet; an attempt that ended here is repeated over them.
//! 2. `pool.toml` names them, durably.
//! 3. The pool gets its log: opening the pool makes it, and this process opens it at once.
//!
//! No process uses the pool meanwhile: one that has it open would not have the disk.

use std::path::Path;

use super::{refuse_used_backings, Builder};
use crate::config::{Config, DiskEntry};
use crate::disks::plan::{Plan, Planned, Wanted};
use crate::disks::{has_log, place};
use crate::memory::locks;
use crate::options::{NewRegion, OpenOptions};
use crate::rescue::absent::read_config;
use crate::Pool;
use conquest_fs::error::{Error, Result};

/// Gives the pool at `dir` its first region. Disks with content are only taken with `force`.
pub fn add(dir: &Path, new: &NewRegion, force: bool) -> Result<()> {
    let pool = Pool::open(dir, &OpenOptions::default())?;
    refuse_if_any(dir, &pool.config)?;
    if has_log(pool.session())? {
        return Err(Error::Pool(format!(
            "{} had a disk already, which pool.toml does not name any more: put its [[disk]] back; with another one \
             in its place the files that it holds would be lost for good",
            dir.display()
        )));
    }
    drop(pool);
    {
        let _alone = Builder::begin(dir)?;
        let mut config = read_config(dir)?;
        refuse_if_any(dir, &config)?;
        let _held = locks::hold_unused(&config.lock_path(dir))?;
        refuse_used_backings(dir, [Some(&config)])?;
        let mut plan = Plan::default();
        plan.add(&Wanted { dir, config: &config, old: None, force, taken: Vec::new(), beyond_hosts: false }, new)?;
        let disks: Vec<_> = plan.0.into_iter().flat_map(|region| region.disks).map(Planned::release).collect();
        let at: Vec<_> = disks.iter().map(|(path, size, _)| (path.clone(), *size)).collect();
        // 1.
        drop(place::make_region(&at, new.layout, config.uuid_bytes()?, 0)?);
        for (path, _) in &at {
            place::sync_parent(path).map_err(|e| Error::host(path, &e))?;
        }
        // 2.
        config.disks = disks.into_iter().map(|(_, _, entry)| DiskEntry { region: Some(0), ..entry }).collect();
        config.write(dir)?;
    }
    // 3.
    Pool::open(dir, &OpenOptions::default()).map(drop)
}

fn refuse_if_any(dir: &Path, config: &Config) -> Result<()> {
    match config.disks.first() {
        Some(disk) => Err(Error::Pool(format!(
            "{} has a disk already, {}; more than one is given when the pool is made: `conquest format --disk ... --disk ...`",
            dir.display(),
            disk.at(dir).display()
        ))),
        None => Ok(()),
    }
}
