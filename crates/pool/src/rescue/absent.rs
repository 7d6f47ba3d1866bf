//! The configuration of a pool that should exist, or advice if it does not.

use std::path::Path;

use super::salvage;
use crate::config::Config;
use crate::paths;
use conquest_fs::error::{Error, Result};

/// The configuration of a pool that should exist.
pub fn read_config(dir: &Path) -> Result<Config> {
    let shown = dir.display();
    let memory = || match salvage::lost(dir) {
        Ok(lost) => lost.map(|_| salvage::save_it(dir)),
        Err(several) => Some(several.to_string()),
    };
    let how = || match (paths::has_backing_files(dir), memory()) {
        (true, memory) => {
            let or = memory.map(|save_it| format!("; or {save_it}")).unwrap_or_default();
            format!("what lies there is a pool's backing; make the pool of it with `conquest import {shown}`{or}")
        }
        (false, Some(save_it)) => format!("but there is memory of one that was: {save_it}"),
        (false, None) => "`conquest list` shows those of this host".into(),
    };
    let missing = || match paths::is_swap_due(dir) {
        true => Error::Pool(format!("{shown}: making the pool was interrupted; mounting it finishes that")),
        false => Error::Pool(format!("there is no pool at {shown}; {}", how())),
    };
    Config::read(dir)?.ok_or_else(missing)
}

/// The same; without a readable one, the configuration from memory that says that its backing lay there.
pub fn load_or_lost(dir: &Path) -> Result<Config> {
    match read_config(dir) {
        Err(e @ Error::Foreign(_)) => Err(e),
        read => read.or_else(|unread| salvage::lost(dir)?.ok_or(unread)),
    }
}
