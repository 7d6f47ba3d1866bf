//! Opening a pool to look at it: its memory alone, where the copy on disk is not to be had.

use std::io::Write;
use std::path::Path;

use fs::{OpenOptions, Pool};

use crate::failure::{Failure, Result};

pub fn open(pool: &Path) -> Result<Pool> {
    let why = match Pool::open(pool, &OpenOptions::default()) {
        Ok(opened) => return Ok(opened),
        Err(e) => e,
    };
    let memory = match Pool::memory_alone(pool) {
        Ok(Some(memory)) => memory,
        Ok(None) => return Err(Failure::new(why.to_string())),
        Err(e) => return Err(Failure::new(format!("{why}. Its memory alone: {e}"))),
    };
    let alone = Pool::of_memory(pool).map_err(|e| Failure::new(format!("{why}. Its memory alone: {e}")))?;
    let memory = memory.display();
    let _ = writeln!(std::io::stderr(), "conquest: {why}. What follows is of the memory alone, {memory}");
    Ok(alone)
}
