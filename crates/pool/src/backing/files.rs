//! The files of a backing: made, opened, replaced.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backing::Disks;
use exraid::owner::{self, Foreign};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::direct_io::{DirectFile, Writes};
use super::verified::{self, VerifiedFiles};
use crate::memory::shared::open_plain;
use crate::paths::{self, backing_files, has_backing_files, BACKING, IMAGE, LOGS};
use conquest_fs::error::{Error, Result};

/// How long processes that detach, or were killed, may still have its backing open, and how often to look.
const GOING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

/// Whether a backing lies in `dir`, and not only the remains of making one.
pub fn holds_backing(dir: &Path) -> bool {
    has_backing_files(dir) && open(dir).is_ok_and(|disks| backing::identify(&disks).is_ok())
}

/// A file in `dir` with the name of a backing's file that is neither that nor the remains of making one: zeros.
pub fn find_foreign(dir: &Path) -> Option<PathBuf> {
    let is_foreign = |path: &PathBuf| {
        let mut head = [0; 16];
        let read = open_plain(path, false).and_then(|file| file.read_at(&mut head, 0));
        read.is_ok_and(|len| head[..len].iter().any(|b| *b != 0) && !head.starts_with(b"CQ-"))
    };
    backing_files(dir).into_iter().find(is_foreign)
}

/// Whether any process writes to the backing in `dir`.
pub fn are_in_use(dir: &Path) -> Result<bool> {
    Ok(verified::is_taken([&open_file(dir, LOGS[0])?, &open_file(dir, LOGS[1])?]))
}

/// Removes the backing in `dir`.
pub fn remove(dir: &Path) {
    backing_files(dir).iter().for_each(|path| _ = fs::remove_file(path));
}

/// Puts the backing in `from` in the place of the one in `to`, the image last.
pub fn replace(from: &Path, to: &Path) -> Result<()> {
    for name in BACKING {
        fs::rename(from.join(name), to.join(name)).map_err(|e| Error::host(&to.join(name), &e))?;
        fs::File::open(to).and_then(|dir| dir.sync_all()).map_err(|e| Error::host(to, &e))?;
    }
    Ok(())
}

/// Opens a file of the backing in `dir`.
pub fn open_file(dir: &Path, name: &str) -> Result<fs::File> {
    let path = dir.join(name);
    let file = owner::open_within(dir, name.as_ref(), OFlags::RDWR).map_err(|e| match e.kind() {
        _ if Errno::from_io_error(&e) == Some(Errno::LOOP) => Foreign::Link(path.clone()).into(),
        std::io::ErrorKind::NotFound => {
            Error::Pool(format!("{} is missing: a part of the pool's backing; put it back", path.display()))
        }
        std::io::ErrorKind::PermissionDenied => Error::Pool(format!(
            "{}: permission denied; who may not open the pool uses it through its mount",
            path.display()
        )),
        _ => Error::host(&path, &e),
    })?;
    owner::refuse_foreign_dir(dir)?;
    owner::refuse_foreign_open(&file, &path)?;
    Ok(file)
}

/// Opens the backing in `dir` to inspect it.
pub fn open(dir: &Path) -> Result<Disks> {
    open_parts(dir).map(|(_, disks)| disks)
}

/// Opens the backing in `dir` to work with it; as the `first` process of its memory only if no process works with it. A copied
/// pool directory leads to the backing of its original, and two memories would overwrite each other's
/// commits.
pub fn take(dir: &Path, first: bool) -> Result<Disks> {
    let (parts, disks) = open_parts(dir)?;
    let end = Instant::now() + GOING;
    while !parts.take(first) {
        if Instant::now() >= end {
            return Err(Error::Pool(format!(
                "the pool's backing in {} is in use by a process that has another region open (of a pool directory that was \
                 copied?); unmount that pool first, or give one of the two a backing of its own (`backing` in {})",
                dir.display(),
                paths::CONFIG
            )));
        }
        std::thread::sleep(LOOK);
    }
    Ok(disks)
}

fn open_parts(dir: &Path) -> Result<(Arc<VerifiedFiles>, Disks)> {
    let names = [IMAGE, LOGS[0], LOGS[1]];
    let open_all = || names.iter().map(|name| Ok((open_file(dir, name)?, dir.join(name)))).collect::<Result<Vec<_>>>();
    let parts = VerifiedFiles::of(open_all()?).map_err(|e| Error::host(dir, &e))?;
    let disk = |n: usize, writes| {
        Ok::<_, Error>(parts.verify(n, DirectFile::over(open_file(dir, names[n])?, &dir.join(names[n]), writes)))
    };
    let disks = Disks { image: disk(0, Writes::Cached)?, logs: [disk(1, Writes::Past)?, disk(2, Writes::Past)?] };
    Ok((parts, disks))
}

/// Makes the files of a backing in `dir`, empty but for the logs, of which every block is written: a flush of them then
/// changes nothing in the host's file system.
pub fn make(dir: &Path, log_bytes: u64) -> Result<Disks> {
    paths::make_dir(dir)?;
    for name in [IMAGE, LOGS[0], LOGS[1]] {
        if let Err(e) = make_file(dir, name, if name == IMAGE { 0 } else { log_bytes }) {
            remove(dir);
            return Err(e);
        }
    }
    let synced = fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::host(dir, &e))?;
    open(dir)
}

fn make_file(dir: &Path, name: &str, zeros: u64) -> Result<()> {
    let file = paths::open_or_make(dir, name)?;
    let fill = || {
        file.set_len(0)?;
        let piece = vec![0; 1 << 20];
        (0..zeros).step_by(piece.len()).try_for_each(|at| file.write_all_at(&piece, at))?;
        file.sync_all()
    };
    fill().map_err(|e| Error::host(&dir.join(name), &e))
}
