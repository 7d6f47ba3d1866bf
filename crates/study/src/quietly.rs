//! Reading without a change of access times, where this user may ask for that.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{open, Dir, Mode, OFlags};
use rustix::io::Errno;

/// Opens a file for reading. It does not wait for a writer if the path leads to a pipe by now.
pub fn open_file(path: &Path) -> io::Result<OwnedFd> {
    opened(path, OFlags::NOFOLLOW | OFlags::NONBLOCK)
}

/// The names in a directory, sorted.
pub fn names(dir: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::new(opened(dir, OFlags::DIRECTORY)?)? {
        let name = entry?.file_name().to_bytes().to_owned();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn opened(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
    match open(path, flags | OFlags::NOATIME, Mode::empty()) {
        // Only owners may ask for it.
        Err(Errno::PERM) => Ok(open(path, flags, Mode::empty())?),
        done => Ok(done?),
    }
}
