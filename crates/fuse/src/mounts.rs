//! The kernel's mount table, `/proc/PID/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The action that an error names when the mount table cannot be read.
pub(crate) const TABLE: &str = "read the mount table";

/// The kernel appends this to the type of our mounts.
pub const SUBTYPE: &str = "conquest";
/// The kernel appends this to the type of a mount that shows a volume.
pub const VOLUME_SUBTYPE: &str = "conquest-volume";
/// The type of a mount that shows a volume.
pub const VOLUME_TYPE: &str = "fuse.conquest-volume";
/// The type of our mounts: `mount -t` takes it, and the table shows it.
pub const TYPE: &str = "fuse.conquest";
/// The type of our mounts that the kernel takes for the file system of a block device.
pub const BLOCK_TYPE: &str = "fuseblk.conquest";

/// One mount in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The number of this mount; a file system may have several.
    pub id: u32,
    /// The mount that it lies on.
    pub parent: u32,
    /// `major:minor` of the file system; no other has the same as long as this one exists.
    pub number: String,
    /// The directory of the file system that is mounted, from its root on: `/`, or a directory of it.
    pub root: PathBuf,
    pub dir: PathBuf,
    /// For Conquest: the pool directory.
    pub source: PathBuf,
    pub fs_type: String,
    /// Options of the mount: `rw,nosuid,noatime`; and `sync` and `dirsync`, which belong to the file system.
    pub options: String,
    /// The whole file system is read-only, independent of the options of the mount.
    pub read_only: bool,
    /// For FUSE: the user who has mounted it.
    pub owner: Option<u32>,
    /// For FUSE: other users than its owner may use it.
    pub allow_other: bool,
}

impl Mounted {
    /// Is it a Conquest file system?
    pub fn is_conquest(&self) -> bool {
        [TYPE, BLOCK_TYPE].contains(&self.fs_type.as_str())
    }

    /// A volume that is shown, and no pool.
    pub fn is_volume(&self) -> bool {
        self.fs_type == VOLUME_TYPE
    }

    /// False: its server is gone, and every access fails with ENOTCONN.
    pub fn is_alive(&self) -> bool {
        !is_disconnected(&self.dir)
    }
}

/// Does every access to `dir` fail because the server of a mount is gone?
pub fn is_disconnected(dir: &Path) -> bool {
    matches!(rustix::fs::statvfs(dir), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// All mounts that this process sees, later ones after earlier ones.
pub fn all() -> std::io::Result<Vec<Mounted>> {
    table("/proc/self/mountinfo")
}

/// All mounts that another process sees, in its own mount namespace.
pub fn seen_by(pid: u32) -> std::io::Result<Vec<Mounted>> {
    table(&format!("/proc/{pid}/mountinfo"))
}

fn table(file: &str) -> std::io::Result<Vec<Mounted>> {
    Ok(std::fs::read(file)?.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The mounts of the file system with this number, the oldest first.
pub fn of(number: &str) -> std::io::Result<Vec<Mounted>> {
    Ok(all()?.into_iter().filter(|m| m.number == number).collect())
}

/// The mount on top at exactly `dir`, of any type.
pub fn at(dir: &Path) -> std::io::Result<Option<Mounted>> {
    Ok(stack(all()?, dir).pop())
}

/// The mounts at exactly `dir`, each covered by the next. The table lists them by age, and a later one may lie beneath
/// an earlier one.
pub fn stack_at(dir: &Path) -> std::io::Result<Vec<Mounted>> {
    Ok(stack(all()?, dir))
}

fn stack(all: Vec<Mounted>, dir: &Path) -> Vec<Mounted> {
    let mut left: Vec<Mounted> = all.into_iter().filter(|m| m.dir == dir).collect();
    let mut stack: Vec<Mounted> = Vec::new();
    while !left.is_empty() {
        let lowest = left.iter().position(|m| left.iter().all(|other| other.id != m.parent));
        // If no lowest mount is found, the table changed while it was read.
        stack.push(left.remove(lowest.unwrap_or(0)));
    }
    stack
}

/// Parses one line: `36 35 98:0 /root /dir options [optional fields] - type source super-options`. Any bytes may stand
/// in it.
fn parse(line: &[u8]) -> Option<Mounted> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let of_all = fields.get(dash + 3).map(|words| text(words)).unwrap_or_default();
    let says = |word: &str| of_all.split(',').any(|said| said == word);
    let sync = of_all.split(',').filter(|word| ["sync", "dirsync"].contains(word)).map(|word| format!(",{word}"));
    Some(Mounted {
        id: text(fields.first()?).parse().ok()?,
        parent: text(fields.get(1)?).parse().ok()?,
        number: text(fields.get(2)?),
        root: unescape(fields.get(3)?),
        dir: unescape(fields.get(4)?),
        options: text(fields.get(5)?) + &sync.collect::<String>(),
        fs_type: text(fields.get(dash + 1)?),
        source: unescape(fields.get(dash + 2)?),
        read_only: says("ro"),
        owner: owner(&of_all),
        allow_other: says("allow_other"),
    })
}

fn owner(words: &str) -> Option<u32> {
    words.split(',').find_map(|word| word.strip_prefix("user_id="))?.parse().ok()
}

/// Undoes `\040` and the like.
fn unescape(field: &[u8]) -> PathBuf {
    let mut parts = field.split(|b| *b == b'\\');
    let mut out = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let digits = part.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                out.extend_from_slice(&part[3..]);
            }
            None => out.extend_from_slice(part),
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line = br"98 29 0:54 / /mnt/my\040data rw,nosuid shared:5 - fuse.conquest /srv/a\134b rw,user_id=0";
        let mounted = Mounted {
            id: 98,
            parent: 29,
            number: "0:54".into(),
            root: "/".into(),
            dir: "/mnt/my data".into(),
            source: r"/srv/a\b".into(),
            fs_type: TYPE.into(),
            options: "rw,nosuid".into(),
            read_only: false,
            owner: Some(0),
            allow_other: false,
        };
        assert!(mounted.is_conquest());
        assert_eq!(parse(line), Some(mounted));
        let foreign = b"36 35 0:45 / /mnt rw - tmpfs none rw";
        assert_eq!(parse(foreign).unwrap().owner, None);
        let sync = b"36 35 0:45 / /mnt rw,noatime - fuse.conquest /srv rw,sync,dirsync,user_id=1";
        assert_eq!(parse(sync).unwrap().options, "rw,noatime,sync,dirsync");
        assert_eq!(parse(b"98 29 0:54 /"), None);
        assert_eq!(parse(b"nonsense"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn what_lies_beneath_is_not_on_top_for_being_later() {
        let table = |lines: [&str; 3]| lines.iter().filter_map(|line| parse(line.as_bytes())).collect::<Vec<_>>();
        let [first, other, later] =
            ["7 9 0:1 / /mnt rw - tmpfs a rw", "8 9 0:2 / /mnt/b rw - tmpfs b rw", "9 1 0:3 / /mnt rw - tmpfs c rw"];
        let ids = |lines, dir: &str| stack(table(lines), Path::new(dir)).iter().map(|m| m.id).collect::<Vec<_>>();
        assert_eq!(ids([first, other, later], "/mnt"), [9, 7]);
        assert_eq!(ids([later, first, other], "/mnt"), [9, 7]);
        assert_eq!(ids([first, other, later], "/mnt/b"), [8]);
        assert_eq!(ids([first, other, later], "/"), [] as [u32; 0]);
    }

    /// One mount with such a path, of any type, once kept every pool from being mounted and unmounted.
    #[test]
    fn paths_are_bytes() {
        let line = b"36 35 0:45 / /mnt/\xff\\0121 rw - tmpfs none rw";
        assert_eq!(parse(line).unwrap().dir.into_os_string().into_vec(), b"/mnt/\xff\n1");
    }

    #[test]
    fn the_root_is_mounted_and_alive() {
        assert!(at(Path::new("/")).unwrap().is_some_and(|m| m.is_alive() && !m.is_conquest()));
    }
}
