//! Ends a connection from outside, after its server was killed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{openat, Mode, OFlags};
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::error::{Context, Error, Result};
use crate::mounts::{self, TABLE};

/// The kernel's directory of connections, if it is mounted. Root can use it, and the user who mounted.
const SHOWN: &str = "/sys/fs/fuse/connections";
/// The number of bits of a minor number, where the kernel stores it together with the major one.
const MINOR_BITS: u32 = 20;

/// The connection of a mount.
pub struct Connection {
    /// Writing to this file ends this connection and no other, also after the mount is gone and its numbers belong to
    /// another.
    abort: File,
}

impl Connection {
    /// The connection of the file system with this number, which this process holds open.
    pub fn numbered(number: &str) -> Result<Connection> {
        Ok(Connection { abort: open_control(number).context("find the connection of a mount")? })
    }

    /// The connection of the file system that is mounted at `dir`, a real path. Only the mount table is read: no server
    /// is asked.
    pub fn at(dir: &Path) -> Result<Connection> {
        let shown = dir.display();
        let number = || match mounts::at(dir).context(TABLE)? {
            Some(mount) if mount.is_conquest() => Ok(mount.number),
            _ => Err(Error::Target(format!("{shown}: no pool is mounted there"))),
        };
        let before = number()?;
        let abort = open_control(&before).context(format!("find the connection of {shown}"))?;
        match number()? == before {
            true => Ok(Connection { abort }),
            false => Err(Error::Target(format!("{shown}: it is mounted no more"))),
        }
    }

    /// Ends the connection: pending and later requests of the kernel fail. A connection that has ended already is no
    /// error.
    pub fn abort(&self) -> Result<()> {
        (&self.abort).write_all(b"1").context("end a connection")
    }
}

fn open_control(number: &str) -> io::Result<File> {
    let name = format!("{}/abort", control_name(number));
    let shown = OpenOptions::new().write(true).open(Path::new(SHOWN).join(&name));
    shown.or_else(|e| open_hidden(&name).map_err(|_| e))
}

/// As `open_control` where the directory of connections is not mounted; root only.
fn open_hidden(name: &str) -> io::Result<File> {
    let connections = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&connections)?;
    let root = fsmount(&connections, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(openat(root, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// The kernel's name of the connection of file system `major:minor`: both numbers in one, as it stores them.
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
