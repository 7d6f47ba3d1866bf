//! The pool directory that uses a disk, in the disk's label.
//!
//! A copy of a directory names the same disks as its original, if they lie elsewhere. Two memories would
//! overwrite each other's content there. So the label of a disk outside of the directory has a *lease*, the directory that used it
//! last. Another directory gets the disk only if that is gone, or does not name it any more.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::Config;
use conquest_fs::error::{Error, Result};

/// A directory whose path is longer has no lease.
const MOST: usize = exraid::label::LEASE - size_of::<u64>();

/// A directory in the label: the number of its inode, and its path.
pub(super) struct Lease {
    number: u64,
    pub(super) dir: PathBuf,
}

impl Lease {
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Lease> {
        let (number, dir) = bytes.split_first_chunk()?;
        let dir = Path::new(std::ffi::OsStr::from_bytes(dir)).to_path_buf();
        Some(Lease { number: u64::from_le_bytes(*number), dir })
    }

    fn to_bytes(&self) -> Vec<u8> {
        [&self.number.to_le_bytes()[..], self.dir.as_os_str().as_bytes()].concat()
    }
}

/// The lease of the pool directory `dir`; none if its path is too long.
pub fn of(dir: &Path) -> Result<Option<Vec<u8>>> {
    let fail = |e: std::io::Error| Error::host(dir, &e);
    let (real, number) = (dir.canonicalize().map_err(fail)?, fs::metadata(dir).map_err(fail)?.ino());
    let is_short = real.as_os_str().len() <= MOST;
    Ok(is_short.then(|| Lease { number, dir: real }.to_bytes()))
}

/// Whether the pool at `dir` must take the lease of this disk. A disk in the directory, which is copied with it, needs none.
///
/// # Errors
/// [`Error::Pool`] if the lease belongs to another directory that still exists and names the disk.
pub fn is_to_be_taken(dir: &Path, uuid: [u8; 16], disk: &Path, lease: &[u8]) -> Result<bool> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.into());
    if real(disk).starts_with(real(dir)) {
        return Ok(false);
    }
    let Some(other) = Lease::from_bytes(lease) else { return Ok(true) };
    if other.dir == real(dir) || is_same(&other.dir, dir) {
        return Ok(other.dir != real(dir) || fs::metadata(dir).is_ok_and(|dir| dir.ino() != other.number));
    }
    let config = Config::read(&other.dir).ok().flatten();
    let config = config.filter(|config| config.uuid_bytes().is_ok_and(|other| other == uuid));
    let names = |config: Config| config.disks.iter().any(|entry| is_same(&entry.at(&other.dir), disk));
    match config.is_some_and(names) {
        true => Err(Error::Pool(format!(
            "{} is the disk of the pool directory {}, and {} is a copy of that, or what it was copied from: each would overwrite what the \
             other has there. Use {}; or have this one get the disk instead, for good: `conquest region take {}`",
            disk.display(),
            other.dir.display(),
            dir.display(),
            other.dir.display(),
            dir.display()
        ))),
        false => Ok(true),
    }
}

/// Whether both lead to the same file, directory or device.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| {
        let found = fs::metadata(path).ok()?;
        let is_device = std::os::unix::fs::FileTypeExt::is_block_device(&found.file_type());
        Some(if is_device { (true, found.rdev(), 0) } else { (false, found.dev(), found.ino()) })
    };
    of(one).is_some_and(|one| of(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DiskEntry;
    use crate::medium::MediumKind;
    use crate::uuid;

    const UUID: [u8; 16] = [7; 16];

    /// A pool directory with a `pool.toml` that names this disk.
    fn pool(dir: &Path, disk: &Path) {
        fs::create_dir(dir).expect("made");
        let mut config = Config::new(MediumKind::Logged, uuid::text(&UUID));
        config.disks.push(DiskEntry { path: disk.into(), size: None, given: true, region: None });
        config.write(dir).expect("written");
    }

    #[test]
    fn a_copied_directory_does_not_get_the_disk_of_the_one_that_is_still_there() {
        let home = tempfile::tempdir().expect("a directory");
        let at = |name: &str| home.path().join(name);
        let (disk, first, copy) = (at("disk"), at("first"), at("copy"));
        fs::write(&disk, "").expect("a file");
        pool(&first, &disk);
        assert!(is_to_be_taken(&first, UUID, &disk, &[]).expect("nobody has it"));
        let lease = of(&first).expect("a lease").expect("short");
        let is_taken = |dir: &Path| is_to_be_taken(dir, UUID, &disk, &lease);
        assert!(!is_taken(&first).expect("it has it"));
        pool(&copy, &disk);
        let refused = is_taken(&copy).expect_err("the first is still there").to_string();
        assert!(
            refused.contains("is a copy of that") && refused.contains("region take") && refused.contains("first"),
            "{refused}"
        );
        // Under another path, or moved, it is the same directory.
        std::os::unix::fs::symlink(&first, at("link")).expect("a link");
        assert!(!is_taken(&at("link")).expect("the same directory"));
        fs::rename(&first, at("moved")).expect("moved");
        assert!(is_taken(&at("moved")).expect("where it was is nothing"));
        assert!(is_taken(&copy).expect("nobody has it any more"));
        // The first directory has another disk by now.
        let other = at("other");
        fs::write(&other, "").expect("a file");
        pool(&first, &other);
        assert!(is_taken(&copy).expect("the first does not name it"));
        // A disk in the directory is copied with it.
        fs::write(copy.join("disk"), "").expect("a file");
        assert!(!is_to_be_taken(&copy, UUID, &copy.join("disk"), &lease).expect("its own"));
    }
}
