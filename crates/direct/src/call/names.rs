//! Make, rename, remove, read symbolic links.

use conquest_fs::node::Rename;
use conquest_fs::Kind;
use rustix::io::Errno;

use super::place::{At, Place};
use super::{Outcome, Stop};
use crate::state::State;
use crate::{open_file, raw};

const NOREPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;

impl State {
    pub fn mkdir(&self, at: At, mode: u32) -> Outcome {
        let place = self.place(at)?;
        place.view().mkdir(place.path, mode & 0o1777)?;
        Ok(0)
    }

    #[inline(always)]
    pub fn unlink(&self, at: At, flags: u32) -> Outcome {
        const REMOVEDIR: u32 = libc::AT_REMOVEDIR as u32;
        if flags & !REMOVEDIR != 0 {
            return Err(Errno::INVAL.into());
        }
        let place = self.place(at)?;
        match flags {
            REMOVEDIR => {
                self.before_removal(&place);
                place.view().rmdir(place.path)?;
            }
            _ => {
                if self.needs_paths() {
                    self.before_removal(&place);
                }
                place.view().unlink(place.path)?;
            }
        }
        Ok(0)
    }

    #[inline(always)]
    pub fn rename(&self, from: At, to: At, flags: u32) -> Outcome {
        let how = match flags {
            0 => Rename::Replace,
            NOREPLACE => Rename::NoReplace,
            EXCHANGE => Rename::Exchange,
            // Only some processes may make devices.
            WHITEOUT => return Err(Stop::Kernel),
            flags if flags == NOREPLACE | WHITEOUT => return Err(Stop::Kernel),
            _ => return Err(Errno::INVAL.into()),
        };
        let from = self.place(from)?;
        let to = self.place(to).or_else(|stop| self.first_of(&from, directory_of(from.path), true, stop))?;
        if how == Rename::Replace {
            self.before_removal(&to);
        }
        if self.needs_paths() {
            self.before_move(&from);
            if how == Rename::Exchange {
                self.before_move(&to);
            }
        }
        from.view().rename_to(from.path, &to.view(), to.path, how)?;
        Ok(0)
    }

    /// Makes the descriptors of what is removed real before: afterwards nothing leads to a directory, nor to a file that is not opened by its
    /// handle.
    fn before_removal(&self, place: &Place) {
        if open_file::is_any_a_directory() || self.needs_paths() {
            self.make_place_real(place, |kind| kind == Kind::Directory || self.needs_paths());
        }
    }

    /// The same of a file that gets another place: it is looked for in the directory that it was found in.
    fn before_move(&self, place: &Place) {
        self.make_place_real(place, |kind| kind != Kind::Directory);
    }

    fn make_place_real(&self, place: &Place, is_to_be: impl Fn(Kind) -> bool) {
        if let Ok(held) = place.view().hold(place.path, false) {
            if is_to_be(held.kind) {
                self.make_inode_real(held.ino);
            }
            self.fs().release(held.ino, 1);
        }
    }

    pub fn link(&self, old: At, new: At, flags: u32) -> Outcome {
        const FOLLOW: u32 = libc::AT_SYMLINK_FOLLOW as u32;
        const EMPTY_PATH: u32 = libc::AT_EMPTY_PATH as u32;
        if flags & !(FOLLOW | EMPTY_PATH) != 0 {
            return Err(Errno::INVAL.into());
        }
        if flags & EMPTY_PATH != 0 {
            return Err(Stop::Kernel);
        }
        let old = self.place(old)?;
        let new = self.place(new).or_else(|stop| self.first_of(&old, old.path, flags & FOLLOW != 0, stop))?;
        let caller = old.view().caller;
        if caller.uid != 0 {
            // The kernel may reserve links to their owners.
            let found = old.view().hold(old.path, flags & FOLLOW != 0)?;
            let owner = self.fs().getattr(found.ino).map(|attr| attr.uid);
            self.fs().release(found.ino, 1);
            if owner? != caller.uid {
                return Err(Stop::Kernel);
            }
        }
        old.view().link_to((old.path, flags & FOLLOW != 0), &new.view(), new.path)?;
        Ok(0)
    }

    /// What is wrong with the first of two places comes before what is with the second.
    #[cold]
    fn first_of<T>(&self, first: &Place, path: &[u8], follow: bool, second: Stop) -> Outcome<T> {
        if matches!(second, Stop::Errno(_)) && !path.is_empty() {
            self.fs().release(first.view().hold(path, follow)?.ino, 1);
        }
        Err(second)
    }

    pub fn symlink(&self, target: usize, at: At) -> Outcome {
        let target = raw::path(target)?;
        if target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let place = self.place(at)?;
        place.view().symlink(target, place.path)?;
        Ok(0)
    }

    pub fn mknod(&self, at: At, mode: u32) -> Outcome {
        let kind = match mode & libc::S_IFMT {
            0 => Kind::Regular,
            libc::S_IFDIR => return Err(Errno::PERM.into()),
            _ => Kind::from_mode(mode).filter(|kind| *kind != Kind::Symlink).ok_or(Errno::INVAL)?,
        };
        if kind.is_device() {
            return Err(Stop::Kernel);
        }
        let place = self.place(at)?;
        place.view().mknod(place.path, kind, mode & 0o7777, 0)?;
        Ok(0)
    }

    pub fn readlink(&self, at: At, buf: usize, len: i32) -> Outcome {
        let len = usize::try_from(len).ok().filter(|len| *len > 0).ok_or(Errno::INVAL)?;
        let place = self.place(at)?;
        let target = place.view().readlink(place.path)?;
        let len = len.min(target.len());
        raw::bytes_mut(buf, len)?.copy_from_slice(&target[..len]);
        Ok(len)
    }
}

/// The part of a path that leads to the directory of what it names.
fn directory_of(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &path[..path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1)]
}
