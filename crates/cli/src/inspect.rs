//! Opens a pool to save or to mend it. To save it, the memory alone is enough where the backing is not available.
//! Memory that was made for this is removed afterwards.

use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use conquest::{OpenOptions, Pool};

use crate::failure::{Failure, Result};

pub struct Inspected {
    pool: Pool,
    // Declared last, so that it is dropped after the pool is closed.
    _loaded: Loaded,
}

/// A pool whose memory was made from its backing, if any. Dropping it releases that memory.
struct Loaded(Option<PathBuf>);

/// Opens the pool for reading; its memory alone is enough.
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

/// Opens the pool for changes.
pub fn open_whole(path: &Path) -> conquest_fs::Result<Inspected> {
    let loaded = Loaded::before_opening(path);
    Ok(Inspected { pool: Pool::open(path, &OpenOptions::default())?, _loaded: loaded })
}

impl Loaded {
    /// Records whether opening the pool at `path` makes its memory.
    fn before_opening(path: &Path) -> Loaded {
        let is_gone = |file: &PathBuf| file.to_string_lossy().ends_with("-region") && !file.exists();
        Loaded(Pool::memory(path).is_ok_and(|files| files.iter().any(is_gone)).then(|| path.into()))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        // Another process may use it by now.
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
