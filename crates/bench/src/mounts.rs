//! The mount table.

use std::path::{Path, PathBuf};

/// A mount in the kernel's table.
#[derive(Debug)]
pub struct Mounted {
    pub point: PathBuf,
    pub fs_type: String,
    pub source: String,
    /// Of the file system, not of the mount.
    pub options: String,
    /// Major and minor number of the device.
    pub number: String,
}

/// All mounts of this namespace, in the order of mounting.
pub fn all() -> Vec<Mounted> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    parse(&String::from_utf8_lossy(&table))
}

pub fn parse(table: &str) -> Vec<Mounted> {
    let of_line = |line: &str| {
        let (place, what) = line.split_once(" - ")?;
        let (mut place, mut what) = (place.split(' ').skip(2), what.split(' '));
        let (number, point) = (place.next()?.to_owned(), place.nth(1)?);
        let mut field = || what.next().map(str::to_owned);
        let point = unescaped(point).into();
        Some(Mounted { point, number, fs_type: field()?, source: field()?, options: field()? })
    };
    table.lines().filter_map(of_line).collect()
}

/// The last mount at the nearest directory above `dir`.
pub fn above<'m>(mounts: &'m [Mounted], dir: &Path) -> Option<&'m Mounted> {
    let above = mounts.iter().filter(|mounted| dir.starts_with(&mounted.point));
    above.max_by_key(|mounted| mounted.point.as_os_str().len())
}

fn unescaped(path: &str) -> String {
    let of = |text: String, (code, char): (&str, &str)| text.replace(code, char);
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")].into_iter().fold(path.into(), of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_counts_and_the_last_one_there() {
        let table = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                     30 22 0:23 / /tmp rw shared:2 - tmpfs tmpfs rw,size=1k\n\
                     31 22 8:1 / /srv/my\\040a rw - xfs /dev/sda1 rw\n\
                     32 30 8:2 / /tmp rw - btrfs /dev/sdb rw\n";
        let mounts = parse(table);
        let at = |dir: &str| above(&mounts, Path::new(dir)).map(|m| (m.fs_type.as_str(), m.number.as_str()));
        assert_eq!(at("/srv/my"), Some(("ext4", "254:0")));
        assert_eq!(at("/srv/my a/b"), Some(("xfs", "8:1")));
        assert_eq!(at("/tmp/x"), Some(("btrfs", "8:2")));
        assert!(above(&parse("nonsense\n"), Path::new("/")).is_none());
        assert_eq!(mounts[1].options, "rw,size=1k");
    }
}
