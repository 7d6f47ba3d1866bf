//! A file that replaces another when it is complete.
//!
//! It has no name until then, so that any interruption of its writer leaves nothing of it. If the file system has no
//! files without a name, it is hidden beside its place, and one process at a time writes it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, CWD};
use rustix::io::Errno;

use super::host;
use pram::error::{Error, Result};
use pram::mem::Mapping;
use pram::memory::{Memory, HEADERS};

/// A failure while writing: the memory's or the file's.
pub(crate) enum Fail {
    Io(std::io::Error),
    Pram(Error),
}
impl From<std::io::Error> for Fail {
    fn from(e: std::io::Error) -> Self {
        Fail::Io(e)
    }
}
impl From<Error> for Fail {
    fn from(e: Error) -> Self {
        Fail::Pram(e)
    }
}

/// Where a file that is to be at `path` may lie for a moment, or until it is complete if its file system has no files
/// without a name. `None` if `path` names no file.
pub fn written_at(path: &Path) -> Option<PathBuf> {
    path.file_name().map(|name| beside(path, name))
}

fn beside(path: &Path, name: &std::ffi::OsStr) -> PathBuf {
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    path.with_file_name(hidden)
}

fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file without a name in the directory of `path`.
pub(crate) fn nameless(path: &Path) -> Result<File> {
    match open_nameless(dir_of(path)) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => {
            let at = path.with_extension(format!("{:x}.tmp", u64::from_le_bytes(pram::random::bytes()?)));
            let file = File::options().read(true).write(true).create_new(true).open(&at);
            let file = file.map_err(|e| host(&at, "making", e))?;
            std::fs::remove_file(&at).map_err(|e| host(&at, "removing", e))?;
            Ok(file)
        }
        Err(e) => Err(e),
    }
}

/// None where the file system has no such files.
fn open_nameless(dir: &Path) -> Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(errno) => Err(Error::host(format!("making a file in {}", dir.display()))(errno)),
    }
}

/// A file that replaces `path` when it is complete.
pub(crate) struct Target {
    path: PathBuf,
    temporary: PathBuf,
    pub file: File,
    what: &'static str,
    /// It is at `temporary`, and has not taken its place.
    is_named: bool,
}

impl Target {
    pub fn begin(path: &Path, what: &'static str) -> Result<Target> {
        // The target of a link is replaced, not the link.
        let path = &path.canonicalize().unwrap_or_else(|_| path.into());
        let name = path.file_name().ok_or_else(|| Error::Unusable(format!("{} names no file", path.display())))?;
        if path.is_dir() {
            return Err(Error::Unusable(format!("{} is a directory: name a file in it", path.display())));
        }
        if path.exists() && !path.is_file() {
            return Err(Error::Unusable(format!("{} is no regular file, and stays: name another", path.display())));
        }
        let temporary = beside(path, name);
        // A file that a killed process had to name, and left there, is used again.
        let is_left = temporary.symlink_metadata().is_ok();
        match if is_left { None } else { open_nameless(dir_of(path))? } {
            Some(file) => {
                // The lock shows that it is no leftover while it has that name: see `finish_at`.
                let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
                Ok(Target { path: path.into(), temporary, file, what, is_named: false })
            }
            None => Target::begin_named(path, temporary, what),
        }
    }

    /// Begins a file with a name, where the file system has none without.
    fn begin_named(path: &Path, temporary: PathBuf, what: &'static str) -> Result<Target> {
        let file = loop {
            let opened = open_new(&temporary)?;
            if lock_new(&opened, &temporary, path)? {
                break opened;
            }
        };
        let target = Target { path: path.into(), temporary, file, what, is_named: true };
        target.file.set_len(0).map_err(|e| target.failed(Fail::Io(e)))?;
        Ok(target)
    }

    pub fn failed(&self, e: Fail) -> Error {
        match e {
            Fail::Io(e) => host(&self.path, self.what, e),
            Fail::Pram(e) => e,
        }
    }

    /// Writes a part of a memory; where nothing is written there is no memory.
    pub fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM) => self.no_room(&e),
            _ => self.failed(Fail::Io(e)),
        })
    }

    /// The memory that has been written, as long as its header says.
    pub fn complete(&self) -> Result<Mapping> {
        let mut head = vec![0; HEADERS];
        let read = self.file.read_at(&mut head, 0).map_err(|e| self.failed(Fail::Io(e)))?;
        let size = Memory::probe(&head[..read])?.0;
        self.file.set_len(size).map_err(|e| self.failed(Fail::Io(e)))?;
        Mapping::growing(&self.file, size, pram::mem::Sync::No, Memory::recorded_len)
            .map_err(Error::host("mapping the memory"))
    }

    fn no_room(&self, e: &std::io::Error) -> Error {
        Error::Unusable(format!(
            "{}: no room ({e}); what is there stays until all of the new one is: make room beside it, or remove it first",
            self.path.display()
        ))
    }

    /// 1. The content is durable before the name points to it. 2. The name. 3. The directory.
    pub fn finish(self) -> Result<()> {
        let path = self.path.clone();
        self.finish_at(&path)
    }

    /// The same under another name in the same directory.
    pub fn finish_at(mut self, path: &Path) -> Result<()> {
        self.file.sync_all().map_err(|e| self.failed(Fail::Io(e)))?;
        self.name().map_err(|errno| self.failed(Fail::Io(errno.into())))?;
        std::fs::rename(&self.temporary, path).map_err(|e| self.failed(Fail::Io(e)))?;
        self.is_named = false;
        let synced = File::open(dir_of(&self.path)).and_then(|d| d.sync_all());
        synced.map_err(|e| self.failed(Fail::Io(e)))
    }

    /// Gives the file a name beside its place, so that one step can then move it there.
    fn name(&mut self) -> rustix::io::Result<()> {
        let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        while !self.is_named {
            match rustix::fs::linkat(CWD, &from, CWD, &self.temporary, AtFlags::SYMLINK_FOLLOW) {
                // Of a process that was interrupted right here, or is about to go on: it is replaced either way.
                Err(Errno::EXIST) => rustix::fs::unlink(&self.temporary).or_else(|errno| match errno {
                    Errno::NOENT => Ok(()),
                    errno => Err(errno),
                })?,
                linked => {
                    linked?;
                    self.is_named = true;
                }
            }
        }
        Ok(())
    }
}

fn open_new(temporary: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(temporary, flags, Mode::RUSR | Mode::WUSR);
    Ok(opened.map_err(Error::host(format!("making {}", temporary.display())))?.into())
}

/// Locks `file`, so that one process at a time writes the file that replaces `path`. The lock goes with its process, so
/// a leftover of a killed one does no harm. False if `file` is not at `temporary` any more: the holder of the lock has
/// finished it, and it is now the one at `path`.
fn lock_new(file: &File, temporary: &Path, path: &Path) -> Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            Err(Error::Unusable(format!("{} is being written by another process", path.display())))
        }
        Err(errno) => Err(Error::host(format!("locking {}", temporary.display()))(errno)),
        Ok(()) => is_at(file, temporary),
    }
}

/// Does `path` lead to `file`?
pub fn is_at(file: impl AsFd, path: &Path) -> Result<bool> {
    let host = |errno| Error::Host { what: path.display().to_string(), errno };
    let own = rustix::fs::fstat(file).map_err(host)?;
    match rustix::fs::stat(path) {
        Ok(found) => Ok((found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(host(errno)),
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.is_named {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn begin_named(path: &Path, temporary: &Path) -> Result<Target> {
        Target::begin_named(path, temporary.into(), "saving")
    }

    /// Between opening and locking the file, another process may have finished with it.
    #[test]
    fn a_file_that_was_finished_meanwhile_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("saved");
        let temporary = dir.path().join(".saved.new");
        let other = begin_named(&path, &temporary).expect("the first");
        let late = open_new(&temporary).expect("another process");
        assert!(lock_new(&late, &temporary, &path).is_err(), "one at a time");
        (&other.file).write_all(b"whole").expect("written");
        other.finish().expect("finished");
        assert!(!lock_new(&late, &temporary, &path).expect("free by now"), "it is what counts");
        drop(begin_named(&path, &temporary).expect("another"));
        assert_eq!(std::fs::read(&path).expect("it is there"), b"whole");
    }

    /// A killed save had left 162 MiB behind, and a killed restore 439.
    #[test]
    fn nothing_has_a_name_before_it_is_complete() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("saved");
        let names = || std::fs::read_dir(dir.path()).expect("a directory").count();
        let target = Target::begin(&path, "saving").expect("begun");
        (&target.file).write_all(b"new").expect("written");
        assert_eq!(names(), 0, "who is killed here leaves nothing");
        // A leftover of a process that was killed between the two names is no obstacle, and does not stay.
        std::fs::write(dir.path().join(".saved.new"), b"left").expect("written");
        target.finish().expect("finished");
        assert_eq!((names(), std::fs::read(&path).expect("it is there")), (1, b"new".to_vec()));
        drop(Target::begin(&path, "saving").expect("another"));
        assert_eq!((names(), std::fs::read(&path).expect("it is there")), (1, b"new".to_vec()));
    }
}
