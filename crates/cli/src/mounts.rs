//! What `/proc/self/mountinfo` says of Conquest mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::failure::{Context, Failure, Result};

/// The type that the kernel reports for our mounts.
pub const FS_TYPE: &str = "fuse.conquest";

/// One mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    pub dir: PathBuf,
    /// For Conquest: the pool directory.
    pub source: PathBuf,
    pub fs_type: String,
    /// Options of the mount: `rw,nosuid,noatime`.
    pub options: String,
}

impl Mounted {
    /// False: its server is gone, every access answers ENOTCONN.
    pub fn is_alive(&self) -> bool {
        !is_disconnected(&self.dir)
    }
}

/// Every access to `dir` answers that the server of a mount is gone.
pub fn is_disconnected(dir: &Path) -> bool {
    use rustix::io::Errno;
    matches!(rustix::fs::statvfs(dir), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// All mounts that this process sees, the later over the earlier.
pub fn all() -> Result<Vec<Mounted>> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read(path).context(|| format!("cannot read {path}"))?;
    Ok(text.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The Conquest mounts among them.
pub fn conquest() -> Result<Vec<Mounted>> {
    Ok(all()?.into_iter().filter(|m| m.fs_type == FS_TYPE).collect())
}

/// Fails if the pool is mounted.
pub fn refuse_mounted(pool: &Path) -> Result<()> {
    let Some(mounted) = conquest()?.into_iter().find(|m| m.source == pool) else { return Ok(()) };
    let (pool, dir) = (pool.display(), mounted.dir.display());
    Err(Failure::new(format!("{pool} is mounted at {dir}; unmount it first with `conquest umount {dir}`")))
}

/// The mount on top at `dir`, of whatever type.
pub fn at(dir: &Path) -> Result<Option<Mounted>> {
    Ok(all()?.into_iter().rev().find(|m| m.dir == dir))
}

/// The Conquest mount on top at `dir`.
pub fn conquest_at(dir: &Path) -> Result<Option<Mounted>> {
    Ok(at(dir)?.filter(|m| m.fs_type == FS_TYPE))
}

/// One line: `36 35 98:0 /root /dir options [optional fields] - type source super-options`.
fn parse(line: &[u8]) -> Option<Mounted> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    Some(Mounted {
        dir: unescape(fields.get(4)?).into(),
        options: String::from_utf8_lossy(fields.get(5)?).into_owned(),
        fs_type: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: unescape(fields.get(dash + 2)?).into(),
    })
}

/// Blanks and backslashes stand as `\040`.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match octal {
            Some(d) => {
                out.push((d[0] - b'0') << 6 | (d[1] - b'0') << 3 | (d[2] - b'0'));
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line = br"98 29 0:54 / /mnt/my\040data rw,nosuid shared:5 - fuse.conquest /srv/a\134b rw,user_id=0";
        let mounted = parse(line).unwrap();
        assert_eq!(mounted.dir, Path::new("/mnt/my data"));
        assert_eq!(mounted.source, Path::new(r"/srv/a\b"));
        assert_eq!(mounted.fs_type, FS_TYPE);
        assert_eq!(mounted.options, "rw,nosuid");
        assert_eq!(parse(b"98 29 0:54 /"), None);
    }

    #[test]
    fn the_root_is_mounted_and_alive() {
        assert!(at(Path::new("/")).unwrap().is_some_and(|m| m.is_alive()));
    }
}
