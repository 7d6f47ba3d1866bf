//! Opening a pool to save or to mend it: to save it its memory alone, where the backing is not to be had. Memory that was made
//! for that goes with it.

use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use conquest::{OpenOptions, Pool};

use crate::failure::{Failure, Result};

/// A pool that is looked at.
pub struct Inspected {
    pool: Pool,
    // Declared last: then the pool is closed.
    _loaded: Loaded,
}

/// A pool whose memory was made from its backing, if any; dropped, it gives that back.
struct Loaded(Option<PathBuf>);

/// Opens it.
pub fn open(path: &Path) -> Result<Inspected> {
    let loaded = Loaded::before_opening(path);
    let why = match Pool::open(path, &OpenOptions::default()) {
        Ok(pool) => return Ok(Inspected { pool, _loaded: loaded }),
        Err(e @ conquest_fs::Error::Foreign(_)) => return Err(Failure::new(e.to_string())),
        Err(e) => e,
    };
    let memory = match Pool::memory_alone(path) {
        Ok(Some(memory)) => memory,
        Ok(None) => return Err(Failure::new(why.to_string())),
        Err(e) => return Err(Failure::new(format!("{why}. Its memory alone: {e}"))),
    };
    let alone = Pool::of_memory(path).map_err(|e| Failure::new(format!("{why}. Its memory alone: {e}")))?;
    let memory = memory.display();
    let _ = writeln!(std::io::stderr(), "conquest: {why}. What follows is of the memory alone, {memory}");
    Ok(Inspected { pool: alone, _loaded: Loaded(None) })
}

/// Opens it to change it.
pub fn open_whole(path: &Path) -> conquest_fs::Result<Inspected> {
    let loaded = Loaded::before_opening(path);
    Ok(Inspected { pool: Pool::open(path, &OpenOptions::default())?, _loaded: loaded })
}

impl Loaded {
    /// Will opening the pool there make its memory?
    fn before_opening(path: &Path) -> Loaded {
        let is_gone = |file: &PathBuf| file.to_string_lossy().ends_with("-region") && !file.exists();
        Loaded(Pool::memory(path).is_ok_and(|files| files.iter().any(is_gone)).then(|| path.into()))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        // Somebody else may use it by now.
        if let Err(e) = Pool::release(path) {
            tracing::debug!("the memory of {} stays: {e}", path.display());
        }
    }
}

impl Deref for Inspected {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}
