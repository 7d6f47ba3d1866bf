//! Pools of the run, and mounts of them through the `conquest` program.

use std::path::{Path, PathBuf};
use std::process::Command;

use fs::{FormatOptions, OpenOptions, Pool};

use crate::args::Kind;
use crate::error::Error;
use crate::hosts;

/// Formats a battery pool of `bytes` at `dir`.
pub fn format(dir: &Path, bytes: u64) -> Result<(), Error> {
    let how = FormatOptions { force: true, ..FormatOptions::sized(bytes) };
    Pool::format(dir, &how).map_err(|e| Error::from(e).at("format"))
}

/// A mounted pool; dropping it unmounts it and removes the pool.
pub struct Mount {
    pub dir: PathBuf,
    pool: PathBuf,
    program: PathBuf,
}

impl Mount {
    /// Formats a pool below `base` and mounts it over the transport that `kind` names. A mount that came
    /// up over another transport is refused: its figures would stand in the wrong row.
    pub fn make(kind: Kind, base: &Path, bytes: u64, program: &Path) -> Result<Mount, Error> {
        let (transport, shown) = if kind == Kind::Uring { ("uring", "io_uring") } else { ("dev", "/dev/fuse") };
        let pool = base.join(format!("{}.pool", kind.name()));
        let dir = base.join(kind.name());
        std::fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        format(&pool, bytes)?;
        let mount = Mount { dir, pool, program: program.to_owned() };
        let option = format!("transport={transport}");
        hosts::run(Command::new(program).arg("mount").arg(&mount.pool).arg(&mount.dir).args(["-o", &option]))?;
        let used = mount.transport()?;
        if used != shown {
            return Err(Error::Wrong(format!("asked for the transport {shown}, got {used}")));
        }
        Ok(mount)
    }

    fn transport(&self) -> Result<String, Error> {
        let pool = Pool::open(&self.pool, &OpenOptions::default())?;
        let sessions = pool.status()?.sessions;
        Ok(sessions.into_iter().find_map(|s| s.transport).unwrap_or_else(|| "none".into()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if hosts::run(Command::new(&self.program).arg("umount").arg(&self.dir)).is_err() {
            hosts::unmount(&self.dir);
        }
        // Lies on the tmpfs of the run, which goes away with it at the latest.
        let _ = std::fs::remove_dir_all(&self.pool);
    }
}
