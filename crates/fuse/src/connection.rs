//! Ending a connection from outside, where its server was killed.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{open, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{unmount, UnmountFlags};

use crate::error::{Context, Error, Result};
use crate::mount::TABLE;
use crate::mounts;

/// Where the kernel shows connections, if it is mounted: to root, and to the user who mounted.
const CONTROL: &str = "/sys/fs/fuse/connections";
/// Bits of a minor number, where the kernel keeps it together with the major one.
const MINOR_BITS: u32 = 20;

/// The connection of a mount.
pub struct Connection {
    /// By its real path.
    dir: PathBuf,
    number: String,
}

impl Connection {
    /// That of what is mounted at `dir`, a real path; nobody is asked but the mount table.
    pub fn at(dir: &Path) -> Result<Connection> {
        let shown = dir.display();
        match mounts::at(dir).context(TABLE)? {
            Some(mount) if mount.is_conquest() => Ok(Connection { dir: dir.into(), number: mount.number }),
            _ => Err(Error::Target(format!("{shown}: no pool is mounted there"))),
        }
    }

    /// Ends it: what the kernel has asked fails, and so does what it is asked from now on.
    pub fn abort(&self) -> Result<()> {
        // Of the directory alone: the server is not asked.
        let in_use = open(&self.dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        // What comes after it may have its number.
        if mounts::at(&self.dir).context(TABLE)?.is_none_or(|mount| mount.number != self.number) {
            return Err(Error::Target(format!("{}: it is mounted no more", self.dir.display())));
        }
        let control = Path::new(CONTROL).join(control_name(&self.number)).join("abort");
        match OpenOptions::new().write(true).open(control).and_then(|mut file| file.write_all(b"1")) {
            Ok(()) => Ok(()),
            Err(_) => self.abort_by_force(in_use),
        }
    }

    /// By unmounting it by force, while it is in use, or it would be unmounted indeed.
    fn abort_by_force(&self, in_use: Result<OwnedFd, Errno>) -> Result<()> {
        let what = || format!("end the connection of {}", self.dir.display());
        let _in_use = in_use.context(what())?;
        match unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::BUSY) => Ok(()),
            Err(e) => Err(Error::System { what: what(), source: e.into() }),
        }
    }
}

/// What the kernel calls the connection of file system `major:minor`: both in one number, as it keeps them.
fn control_name(number: &str) -> String {
    let parse = |text: &str| text.parse::<u64>().ok();
    let both = number.split_once(':').and_then(|(major, minor)| Some((parse(major)?, parse(minor)?)));
    both.map_or(String::new(), |(major, minor)| (major << MINOR_BITS | minor).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_called_by_both_numbers() {
        assert_eq!(control_name("0:45"), "45");
        assert_eq!(control_name("7:1"), "7340033", "a mount as of a block device");
        assert_eq!(control_name("nonsense"), "");
    }
}
