//! The owners of files. The content of some files makes a process open, write or remove other files. Such a file must
//! belong to the user or to root, and no other user may be able to change it.
//!
//! Another user who can write a directory could misuse this: a file there may name any other file as a disk, and if
//! root, say, works on the pool there, it writes to that. So before a process trusts such a file it checks
//! 1. the directory and all above it, in whose place another user could put one of his own. Above, a directory with the
//!    sticky bit (`/tmp`) is accepted, since others cannot rename there;
//! 2. the file, and each that it names, with the directories in which these lie.
//!
//! A group with the owner's number is the owner's own, as in login; the group of a device is the administrator's
//! choice.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{open, openat2, Mode, OFlags, ResolveFlags};
use thiserror::Error;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// Only the owner reads and writes.
const PRIVATE: u32 = 0o600;
const GROUP_READS: u32 = 0o040;
const OTHERS_READ: u32 = 0o004;
/// The group `disk`, whose members may read every disk.
const DISK_GROUP: u32 = 6;

/// The reason for distrust.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Foreign {
    #[error(
        "{} belongs to user {owner}: nothing is done on its word as user {me}; run this as that user (`setpriv --reuid={owner} --init-groups \
         conquest ...`)",
        path.display()
    )]
    Owner { path: PathBuf, owner: u32, me: u32 },
    #[error(
        "other users may write {}, and could have anything done by who works with what lies there: `chmod go-w {0}` ends that",
        path.display()
    )]
    Writable { path: PathBuf },
    #[error("{} is a symbolic link; put there what it leads to", .0.display())]
    Link(PathBuf),
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Refuses a file that another user than `me` and root owns or may change.
fn refuse(path: &Path, found: &Metadata, me: u32, allowed: u32) -> Result<(), Foreign> {
    let owner = found.uid();
    if owner != me && owner != 0 {
        return Err(Foreign::Owner { path: path.into(), owner, me });
    }
    let is_own_group = found.gid() == owner;
    let writes = found.mode() & (GROUP_WRITES | OTHERS_WRITE) & !allowed;
    match writes & OTHERS_WRITE != 0 || writes & GROUP_WRITES != 0 && !is_own_group {
        true => Err(Foreign::Writable { path: path.into() }),
        false => Ok(()),
    }
}

/// The path of a file or directory without links, even if it does not exist yet.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let there = path.ancestors().find_map(|dir| Some((dir.canonicalize().ok()?, dir.to_path_buf())));
    match there {
        Some((real, named)) => real.join(path.strip_prefix(named).unwrap_or(Path::new(""))),
        None => path,
    }
}

/// Fails unless the directories above `path` are safe, by the given names and without links.
fn refuse_above(path: &Path, me: u32) -> Result<(), Foreign> {
    let named = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let real = Some(real(path)).filter(|real| *real != named);
    for path in [Some(named), real].into_iter().flatten() {
        for dir in path.ancestors().skip(1) {
            let Ok(found) = fs::metadata(dir) else { continue };
            let allowed = if found.mode() & STICKY != 0 { GROUP_WRITES | OTHERS_WRITE } else { 0 };
            refuse(dir, &found, me, allowed)?;
        }
    }
    Ok(())
}

/// Fails unless the directory `dir`, if it exists, and those above it belong to this user or root, and no other user
/// may write there.
pub fn refuse_foreign_dir(dir: &Path) -> Result<(), Foreign> {
    let me = me();
    refuse_above(dir, me)?;
    fs::metadata(dir).map_or(Ok(()), |found| refuse(dir, &found, me, 0))
}

/// The same of a file or device, and of its place.
pub fn refuse_foreign_file(path: &Path) -> Result<(), Foreign> {
    let me = me();
    refuse_above(path, me)?;
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    let kind = found.file_type();
    let allowed = if kind.is_block_device() || kind.is_char_device() { GROUP_WRITES } else { 0 };
    refuse(path, &found, me, allowed)
}

/// The same of a future disk, but for the write permissions of a file, which are set later.
pub fn refuse_foreign_owner(path: &Path) -> Result<(), Foreign> {
    let me = me();
    refuse_above(path, me)?;
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    match found.file_type().is_block_device() {
        true => refuse(path, &found, me, GROUP_WRITES),
        false => refuse(path, &found, me, GROUP_WRITES | OTHERS_WRITE),
    }
}

/// Lets only the owner of a file read and write it. Devices are the administrator's business.
pub fn make_private(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() && found.mode() & 0o7777 != PRIVATE => {
            fs::set_permissions(path, fs::Permissions::from_mode(PRIVATE))
        }
        _ => Ok(()),
    }
}

/// The same of an open file in a directory that was checked.
pub fn refuse_foreign_open(file: &File, path: &Path) -> Result<(), Foreign> {
    file.metadata().map_or(Ok(()), |found| refuse(path, &found, me(), 0))
}

/// Opens the file `name` in `dir`, or makes it for its owner alone, by these flags. No link is followed, and none leads
/// out of `dir`.
pub fn open_within(dir: &Path, name: &Path, flags: OFlags) -> io::Result<File> {
    open_within_as(dir, name, flags, PRIVATE)
}

/// Replaces the file `name` in `dir` by one with this text, atomically and durably. Others may read it. The new file
/// has a hidden name at first; an older file of that name is removed, not written to.
pub fn replace_within(dir: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    let hidden = format!(".{name}.new");
    let new = dir.join(&hidden);
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = open_within_as(dir, hidden.as_ref(), flags, PRIVATE | GROUP_READS | OTHERS_READ)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&new, dir.join(name))?;
    File::open(dir)?.sync_all()
}

fn open_within_as(dir: &Path, name: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    let home = open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // Opening a pipe would block.
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(mode) } else { Mode::empty() };
    Ok(File::from(openat2(home, name, flags, mode, within)?))
}

/// May others than its owner and root read this file or device?
pub fn is_readable_by_others(found: &Metadata) -> bool {
    let groups = [0, DISK_GROUP, found.uid()];
    found.mode() & OTHERS_READ != 0 || found.mode() & GROUP_READS != 0 && !groups.contains(&found.gid())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn what_others_may_write_is_refused_wherever_on_the_way() {
        let top = tempfile::tempdir().expect("a directory");
        let (above, dir) = (top.path().join("above"), top.path().join("above/pool"));
        fs::create_dir_all(&dir).expect("made");
        let file = dir.join("disk");
        fs::write(&file, "").expect("made");
        [(&above, 0o755), (&dir, 0o700), (&file, 0o600)].iter().for_each(|(path, mode)| chmod(path, *mode));
        let all = || refuse_foreign_dir(&dir).and_then(|()| refuse_foreign_file(&file));
        assert_eq!(all(), Ok(()));
        for (path, mode, usual) in [(&file, 0o602, 0o600), (&dir, 0o702, 0o700), (&above, 0o757, 0o755)] {
            chmod(path, mode);
            assert_eq!(all(), Err(Foreign::Writable { path: path.clone() }));
            chmod(path, usual);
        }
        // Others cannot rename an existing entry there, but can create a missing one.
        chmod(&above, 0o1777);
        assert_eq!(all(), Ok(()));
        chmod(&dir, 0o1777);
        assert!(all().is_err());
    }

    #[test]
    fn what_another_user_made_is_refused() {
        let found = fs::metadata("/").expect("it is there");
        let theirs = refuse(Path::new("/"), &found, found.uid() + 1, 0);
        assert_eq!(theirs.is_err(), found.uid() != 0);
        let dir = tempfile::tempdir().expect("a directory");
        let mine = fs::metadata(dir.path()).expect("it is there");
        if mine.uid() == 0 && std::os::unix::fs::chown(dir.path(), Some(1234), Some(1234)).is_ok() {
            let refusal = refuse_foreign_dir(dir.path()).expect_err("another's").to_string();
            assert!(refusal.contains("user 1234"), "{refusal}");
            chmod(dir.path(), 0o770);
            assert!(refuse_foreign_file(&dir.path().join("sub")).is_err());
            // The group is the owner's own, so it counts for the owner.
            let mine = fs::metadata(dir.path()).expect("it is there");
            assert_eq!(refuse(dir.path(), &mine, 1234, 0), Ok(()));
        }
    }

    #[test]
    fn no_link_is_followed() {
        let (dir, out) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        fs::write(out.path().join("file"), "theirs").expect("made");
        symlink(out.path(), dir.path().join("sub")).expect("a link");
        symlink(out.path().join("file"), dir.path().join("link")).expect("a link");
        fs::write(dir.path().join("file"), "mine").expect("made");
        let open = |name: &str| open_within(dir.path(), Path::new(name), OFlags::RDONLY);
        assert!(open("file").is_ok());
        for name in ["link", "sub/file", "../file", "/etc/passwd"] {
            assert!(open(name).is_err(), "{name}");
        }
        symlink(out.path().join("file"), dir.path().join(".link.new")).expect("a link");
        for _ in 0..2 {
            replace_within(dir.path(), "link", b"mine too").expect("replaced");
            assert_eq!(fs::read(dir.path().join("link")).expect("a file"), b"mine too");
        }
        assert_eq!(fs::read(out.path().join("file")).expect("a file"), b"theirs");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 3, "nothing else is left");
    }
}
