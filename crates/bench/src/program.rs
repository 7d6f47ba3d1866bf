//! Pools of the run, and mounts of them through the `conquest` program.

use std::path::{Path, PathBuf};
use std::process::Command;

use conquest::{CompressionConfig, FormatOptions, OpenOptions, Pool, SessionStatus};

use crate::command;
use crate::error::Error;
use crate::hosts;

/// A pool of the run's own; dropping it removes it, with the files made for its disks.
pub struct Own {
    pub dir: PathBuf,
    disks: Vec<PathBuf>,
}

impl Own {
    pub fn make(dir: PathBuf, how: FormatOptions) -> Result<Own, Error> {
        let disks = how.regions.iter().flat_map(|region| &region.disks);
        let disks = disks.filter(|disk| disk.size.is_some()).map(|disk| dir.join(&disk.path)).collect();
        let pool = Own { dir, disks };
        Pool::format(&pool.dir, &FormatOptions { force: true, ..how }).map_err(|e| Error::from(e).at("format"))?;
        Ok(pool)
    }

    /// Opens it in this process.
    pub fn open(&self) -> Result<Pool, Error> {
        Ok(Pool::open(&self.dir, &OpenOptions::default())?)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        remove(&self.dir);
        self.disks.iter().for_each(|disk| _ = std::fs::remove_file(disk));
    }
}

/// A configuration of the compression of unused small files.
pub fn compressing(settings: &[(&str, u64)]) -> CompressionConfig {
    let settings: Vec<_> = settings.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    // A test checks that these settings exist.
    CompressionConfig::of(&settings).unwrap_or_default()
}

/// The settings of a pool that compresses nothing by itself.
pub const NOTHING: &[(&str, u64)] = &[("share", 0)];
/// The settings of a pool that compresses all files unused for a second.
pub const SOON: &[(&str, u64)] = &[("warm", 1), ("cold", 1), ("packed", 1)];

/// Removes a pool and its shared memory. Reports no failure: the pool may be half made, or gone.
pub fn remove(pool: &Path) {
    forget(pool);
    let _ = std::fs::remove_dir_all(pool);
}

/// Removes the memory of a pool that no process has open, as a reboot does.
pub fn forget(pool: &Path) {
    for path in Pool::memory(pool).unwrap_or_default() {
        let _ = std::fs::remove_file(path);
    }
}

/// A mounted pool; dropping it unmounts it.
pub struct Mount {
    pub dir: PathBuf,
    pool: PathBuf,
    program: PathBuf,
}

impl Mount {
    /// Mounts a pool at `dir` with the program's defaults; the pool outlives the mount.
    pub fn of(pool: &Path, dir: PathBuf, program: &Path) -> Result<Mount, Error> {
        Mount::with(pool, dir, program, &[])
    }

    /// Mounts it over a transport, given by its option and its name in the status. A mount over another transport is
    /// refused: its figures would stand in the wrong row.
    pub fn over(pool: &Path, dir: PathBuf, program: &Path, [option, shown]: [&str; 2]) -> Result<Mount, Error> {
        let mount = Mount::with(pool, dir, program, &["-o", &format!("transport={option}")])?;
        match mount.transport()? {
            used if used == shown => Ok(mount),
            used => Err(Error::Wrong(format!("asked for the transport {shown}, got {used}"))),
        }
    }

    fn with(pool: &Path, dir: PathBuf, program: &Path, options: &[&str]) -> Result<Mount, Error> {
        let mount = Mount { dir, pool: pool.to_owned(), program: program.to_owned() };
        std::fs::create_dir_all(&mount.dir).map_err(Error::file(&mount.dir))?;
        command::run(Command::new(program).arg("mount").arg(pool).arg(&mount.dir).args(options))?;
        Ok(mount)
    }

    /// The transport in use, by its name in the status.
    pub fn transport(&self) -> Result<String, Error> {
        Ok(self.server()?.transport.unwrap_or_else(|| "none".into()))
    }

    /// The server's process.
    pub fn pid(&self) -> Result<u32, Error> {
        Ok(self.server()?.pid)
    }

    /// All servers of the pool, also for other directories.
    pub fn servers(&self) -> Result<Vec<SessionStatus>, Error> {
        let mut sessions = Pool::open(&self.pool, &OpenOptions::default())?.status()?.sessions;
        sessions.retain(|session| session.transport.is_some());
        Ok(sessions)
    }

    fn server(&self) -> Result<SessionStatus, Error> {
        let missing = || Error::Wrong(format!("{} is mounted, but its status shows no server", self.pool.display()));
        self.servers()?.pop().ok_or_else(missing)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if command::run(Command::new(&self.program).arg("umount").arg(&self.dir)).is_err() {
            hosts::unmount(&self.dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_are_such() {
        let default = CompressionConfig::default();
        assert!([NOTHING, SOON].into_iter().all(|settings| compressing(settings) != default));
    }
}
