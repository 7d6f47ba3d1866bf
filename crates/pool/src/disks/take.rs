//! Giving the disks of a pool to another directory.

use std::path::{Path, PathBuf};

use exraid::Options;

use super::gather::{Gathered, With};
use super::lease::{self, is_same, Lease};
use crate::config::Config;
use crate::memory::locks::refuse_attached;
use conquest_fs::error::{Error, Result};

/// Gives the disks of the pool at `dir` to that directory. The pool at the directory that used them last is refused from then on. No
/// process may use either.
pub fn take(dir: &Path) -> Result<Vec<PathBuf>> {
    let config = Config::read(dir)?.ok_or_else(|| Error::Pool(format!("there is no pool at {}", dir.display())))?;
    refuse_attached(&config.lock_path(dir))?;
    let found = Gathered::of(dir, &config, config.uuid_bytes()?, &Options::default());
    if found.lacks_any() {
        return Err(Error::Pool(format!(
            "not all disks of the pool at {} can be used: `conquest region list {}` tells which; attach them first",
            dir.display(),
            dir.display()
        )));
    }
    for other in found.leases().filter_map(Lease::from_bytes).filter(|other| !is_same(&other.dir, dir)) {
        if let Some(config) = Config::read(&other.dir).ok().flatten() {
            refuse_attached(&config.lock_path(&other.dir))?;
        }
    }
    let lease = lease::of(dir)?.ok_or_else(|| Error::Pool(format!("the path of {} is too long", dir.display())))?;
    let regions = found.assemble(dir, false, With::Nobody).regions;
    for region in &regions {
        region.set_lease(&lease).map_err(|e| Error::Pool(format!("writing the label of {}: {e}", region.name())))?;
    }
    let names = regions.iter().flat_map(|region| region.members()).filter_map(|member| member.name);
    Ok(names.map(|name| PathBuf::from(&*name)).collect())
}
