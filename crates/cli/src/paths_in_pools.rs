//! Paths in mounted pools: finds them, their attributes, and the files below them.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::failure::{Context, Failure, Result};
use crate::mounts::{self, Mounted};
use crate::{locate, stopped_processes};

/// A path in a mounted pool.
pub struct Inside {
    /// Without symbolic links.
    pub path: PathBuf,
    pub mounted: Mounted,
}

impl Inside {
    /// Fails if nothing is there, and if the path is in no mounted pool.
    pub fn find(path: &Path) -> Result<Inside> {
        let path = locate::absolute(path)?;
        let mounted = mount_of(&path)?;
        match mounted.filter(Mounted::is_conquest) {
            Some(mounted) => {
                stopped_processes::refuse(&mounted)?;
                path.symlink_metadata().context(|| format!("cannot look at {}", path.display()))?;
                Ok(Inside { path, mounted })
            }
            None => Err(elsewhere(&path)),
        }
    }
}

fn mount_of(path: &Path) -> Result<Option<Mounted>> {
    for dir in path.ancestors() {
        if let Some(mounted) = mounts::at(dir)? {
            return Ok(Some(mounted));
        }
    }
    Ok(None)
}

fn elsewhere(path: &Path) -> Failure {
    let shown = path.display();
    if path.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Failure::new(format!("there is no {shown}"));
    }
    match conquest::Pool::exists(path) {
        true => Failure::new(format!(
            "{shown} is the directory of a pool, not where it is mounted: name what is in it as `conquest mount {shown} DIR` shows it"
        )),
        false => Failure::new(format!("{shown} is in no mounted pool; `conquest list` tells where pools are mounted")),
    }
}

/// Refuses files without content of their own, and so without settings for it: all but files and directories. `named`:
/// the path as the user gave it; the file is at `path`.
pub fn refuse_without_content(named: &Path, path: &Path) -> Result<()> {
    let found = path.symlink_metadata().context(|| format!("cannot look at {}", path.display()))?.file_type();
    let what = match () {
        () if found.is_file() || found.is_dir() => return Ok(()),
        () if found.is_symlink() => "a symbolic link: name what it leads to",
        () if found.is_fifo() => "a FIFO",
        () if found.is_socket() => "a socket",
        () => "a device",
    };
    Err(Failure::new(format!("{} is {what}; only files and directories have content on disks", named.display())))
}

/// The longest value of an attribute of ours.
const LONGEST: usize = 1024;

/// The value of an attribute `user.conquest.NAME`; none if there is none.
pub fn attribute(path: &Path, name: &str) -> Result<Option<String>> {
    let mut value = [0; LONGEST];
    match rustix::fs::lgetxattr(path, full(name), &mut value) {
        Ok(len) => Ok(Some(String::from_utf8_lossy(&value[..len]).into_owned())),
        Err(Errno::NODATA | Errno::PERM) => Ok(None),
        Err(e) => Err(Failure::new(format!("cannot read the attribute {} of {}: {e}", full(name), path.display()))),
    }
}

/// Sets an attribute, or removes it if there is no value.
pub fn set_attribute(path: &Path, name: &str, value: Option<&str>) -> Result<()> {
    let done = match value {
        Some(value) => rustix::fs::lsetxattr(path, full(name), value.as_bytes(), XattrFlags::empty()),
        None => match rustix::fs::lremovexattr(path, full(name)) {
            Err(Errno::NODATA) => Ok(()),
            done => done,
        },
    };
    done.map_err(|e| {
        let why = match e {
            Errno::ACCESS | Errno::PERM => "you may not write it".into(),
            Errno::ROFS => "it is mounted read-only".into(),
            Errno::INVAL => format!("its pool is served by a program that does not know `{}`", value.unwrap_or(name)),
            e => e.to_string(),
        };
        Failure::new(format!("cannot change the {name} of {}: {why}", path.display()))
    })
}

fn full(name: &str) -> String {
    format!("user.conquest.{name}")
}

/// A file or directory that a walk reaches.
pub struct Entry {
    pub path: PathBuf,
    pub metadata: std::fs::Metadata,
}

/// Calls `see` with everything below a directory on the same file system, directories before their entries, and with
/// the number of entries known to be left. Calls `fail` for each path that cannot be looked at.
pub fn below(top: &Path, see: &mut dyn FnMut(&Entry, u64) -> Result<()>, fail: &mut dyn FnMut(Failure)) -> Result<()> {
    let device = top.symlink_metadata().context(|| format!("cannot look at {}", top.display()))?.dev();
    let mut left = children(top, device, fail);
    while let Some(entry) = left.pop() {
        see(&entry, left.len() as u64)?;
        if entry.metadata.is_dir() {
            left.extend(children(&entry.path, device, fail));
        }
    }
    Ok(())
}

/// The entries of a directory, the first by name last. An entry that has vanished is no failure.
pub fn children(dir: &Path, device: u64, fail: &mut dyn FnMut(Failure)) -> Vec<Entry> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return found,
        Err(e) => {
            fail(Failure::new(format!("cannot read the directory {}: {e}", dir.display())));
            return found;
        }
    };
    for entry in entries {
        let looked = entry.and_then(|entry| {
            let path = entry.path();
            let metadata = path.symlink_metadata()?;
            Ok(Entry { path, metadata })
        });
        match looked {
            Ok(entry) if entry.metadata.dev() == device => found.push(entry),
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => fail(Failure::new(format!("cannot look at what is in {}: {e}", dir.display()))),
        }
    }
    found.sort_by(|a, b| b.path.cmp(&a.path));
    found
}

/// Failures after which a command continues. Each is reported; a single one is reported at the end, as the command's
/// own.
#[derive(Default)]
pub struct Failures {
    first: Option<Failure>,
    count: u64,
}

impl Failures {
    pub fn tell(&mut self, failure: Failure) {
        self.count += 1;
        match self.count {
            1 => self.first = Some(failure),
            _ => {
                self.first.take().iter().for_each(write);
                write(&failure);
            }
        }
    }

    /// Fails if there were any, with the number of paths that could not be `done`.
    pub fn end(self, done: &str) -> Result<()> {
        match (self.first, self.count) {
            (Some(only), _) => Err(only),
            (None, 0) => Ok(()),
            (None, count) => Err(Failure::new(format!("{count} paths could not be {done}"))),
        }
    }
}

fn write(failure: &Failure) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "conquest: {failure}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_is_that_of_the_command() {
        let mut failures = Failures::default();
        failures.tell(Failure::new("first"));
        assert_eq!(failures.end("set").unwrap_err().to_string(), "first");
        let mut failures = Failures::default();
        (0..3).for_each(|n| failures.tell(Failure::new(n.to_string())));
        assert_eq!(failures.end("set").unwrap_err().to_string(), "3 paths could not be set");
        assert!(Failures::default().end("set").is_ok());
    }

    #[test]
    fn what_is_in_no_pool_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let refusal = |path: &Path| Inside::find(path).err().expect("no pool is mounted there").to_string();
        assert!(refusal(dir.path()).contains("in no mounted pool"), "{}", refusal(dir.path()));
        assert!(refusal(&dir.path().join("x")).starts_with("there is no "));
    }
}
