//! The file of `-o save=`: finds errors before it is written, when it is too late to choose another.

use std::path::Path;

use conquest::Pool;
use rustix::fs::{accessat, Access, AtFlags, CWD};

use crate::failure::{Failure, Result};

/// Fails if an image of `pool`, which is to be mounted at `dir`, could not be written to `file`.
pub fn refuse(file: &Path, pool: &Path, dir: &Path) -> Result<()> {
    refuse_lost(file, pool, dir)?;
    refuse_unwritable(file)
}

/// Fails if the image would disappear under the mount at `dir`, or replace a file of the pool or a file that is no
/// image.
pub fn refuse_lost(file: &Path, pool: &Path, dir: &Path) -> Result<()> {
    let shown = file.display();
    if file != dir && file.starts_with(dir) {
        return Err(Failure::new(format!(
            "-o save={shown}: it lies in {} and would disappear under the mount; choose a file elsewhere",
            dir.display()
        )));
    }
    let refused = Pool::refuse_own_file(pool, file).and_then(|()| Pool::refuse_foreign(file));
    refused.map_err(|e| Failure::new(format!("-o save={shown}: {e}")))
}

fn refuse_unwritable(file: &Path) -> Result<()> {
    let dir = file.parent().unwrap_or(file);
    let found = std::fs::metadata(dir).map(|found| found.is_dir());
    let why = match accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        _ if matches!(found, Ok(false)) => format!("{} is not a directory", dir.display()),
        Ok(()) if file.is_dir() => format!("{} is a directory", file.display()),
        Ok(()) if file.exists() && !file.is_file() => format!("{} is no regular file", file.display()),
        Ok(()) => return Ok(()),
        Err(e) => format!("{}: {e}", dir.display()),
    };
    Err(Failure::new(format!("-o save={}: {why}; choose a file that can be written", file.display())))
}
