//! Default paths, absolute paths, and the pool that a path belongs to.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use conquest::Pool;

use crate::failure::{Context, Failure, Result};
use crate::{mounts, stopped_processes};

/// Most symbolic links that are followed in a path, as in Linux. Further ones stay as they are.
const LINKS_MAX: u32 = 40;

/// `CONQUEST_POOL`, or a directory that the caller may write.
pub fn default_pool() -> Result<PathBuf> {
    if let Some(pool) = std::env::var_os("CONQUEST_POOL").filter(|v| !v.is_empty()) {
        return Ok(pool.into());
    }
    if is_root() {
        return Ok("/var/lib/conquest/default".into());
    }
    match std::env::var_os("XDG_DATA_HOME").filter(|v| !v.is_empty()) {
        Some(data) => Ok(PathBuf::from(data).join("conquest/default")),
        None => Ok(home()?.join(".local/share/conquest/default")),
    }
}

/// The directory at which `conquest up` mounts.
pub fn default_dir() -> Result<PathBuf> {
    if is_root() {
        Ok("/mnt/conquest".into())
    } else {
        Ok(home()?.join("conquest"))
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn home() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").filter(|v| !v.is_empty());
    home.map(PathBuf::from).ok_or_else(|| Failure::new("HOME is not set; name the directories on the command line"))
}

/// The absolute path without symbolic links, also of a file that does not exist yet. Fails if the path leads to a mount
/// whose server is stopped: a call there would wait.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let found = real(path)?;
    mounts::conquest_at(&found)?.map_or(Ok(()), |mounted| stopped_processes::refuse(&mounted))?;
    Ok(found)
}

/// The pool that `path` names: by its directory, or by a directory where it is mounted.
pub fn pool(path: &Path) -> Result<PathBuf> {
    let path = real(path)?;
    if let Some(mounted) = mounts::conquest_at(&path)? {
        return Ok(mounted.source);
    }
    if Pool::exists(&path) {
        return Ok(path);
    }
    Err(no_pool(&path))
}

/// As [`pool`], for commands that only read and for which the memory of a pool is enough when nothing else is left.
pub fn pool_or_memory(path: &Path) -> Result<PathBuf> {
    pool(path).or_else(|e| {
        let path = real(path)?;
        if has_memory(&path) {
            Ok(path)
        } else {
            Err(e)
        }
    })
}

/// The path without symbolic links, resolved from the root on, name by name. A directory that is a mount of ours is not
/// looked at: its server may be gone, or stopped. Nothing beyond a mount whose server is stopped can be found.
fn real(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).context(|| format!("{} is no usable path", path.display()))?;
    let table = mounts::all()?;
    let mounted = |dir: &Path| table.iter().rev().find(|m| m.dir == dir).filter(|m| m.is_conquest());
    let mut found = PathBuf::from("/");
    let mut ahead = parts_of(&path);
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        if part == ".." {
            found.pop();
            continue;
        }
        mounted(&found).map_or(Ok(()), stopped_processes::refuse)?;
        let next = found.join(part);
        let link = if mounted(&next).is_some() || links == LINKS_MAX { None } else { next.read_link().ok() };
        match link {
            Some(target) => {
                links += 1;
                if target.has_root() {
                    found = "/".into();
                }
                ahead.extend(parts_of(&target));
            }
            None => found = next,
        }
    }
    Ok(found)
}

/// The names in a path, the last one first.
fn parts_of(path: &Path) -> Vec<OsString> {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    names.map(|part| part.as_os_str().to_owned()).rev().collect()
}

/// Does `path` name the memory of a pool, or several candidates for it?
fn has_memory(path: &Path) -> bool {
    !matches!(Pool::memory_alone(path), Ok(None))
}

pub fn no_pool(path: &Path) -> Failure {
    let shown = path.display();
    match std::fs::metadata(path.join("pool.toml")) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            Failure::new(format!("{shown}: permission denied; ask its owner, or run the command as root"))
        }
        _ if has_memory(path) => Failure::new(format!(
            "there is no pool at {shown}, but memory of one that was: `conquest save {shown} FILE` writes an image of it, and \
             `conquest restore NEW FILE` makes a pool of that"
        )),
        _ => Failure::new(format!("there is no pool at {shown}; `conquest list` shows those of this host")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_are_followed_as_far_as_they_lead() {
        let dir = tempfile::tempdir_in(".").expect("a directory");
        let top = dir.path().canonicalize().expect("it is there");
        std::fs::create_dir_all(top.join("a/b")).expect("mkdir");
        std::fs::write(top.join("file"), "").expect("write");
        symlink("a/b", top.join("relative")).expect("symlink");
        symlink(top.join("relative/.."), top.join("a/absolute")).expect("symlink");
        symlink("round", top.join("round")).expect("symlink");
        for (path, real) in [
            ("a/b", "a/b"),
            ("./a//b/", "a/b"),
            ("relative", "a/b"),
            ("relative/", "a/b"),
            ("relative/..", "a"),
            ("a/absolute/b/../../file", "file"),
            ("relative/new/er", "a/b/new/er"),
            ("new/../relative/new", "a/b/new"),
            ("file/x", "file/x"),
            ("round/x", "round/x"),
        ] {
            assert_eq!(absolute(&dir.path().join(path)).expect(path), top.join(real), "{path}");
            if let Ok(found) = top.join(path).canonicalize() {
                assert_eq!(found, top.join(real), "{path}: as the kernel finds it");
            }
        }
        assert_eq!(absolute(Path::new("/../..//")).expect("the root"), Path::new("/"));
    }
}
