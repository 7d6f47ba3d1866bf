//! chmod, chown, times.

use conquest_fs::{Ino, Kind, SetAttr, SetTime, Time};
use rustix::io::Errno;

use super::content::loses_setid;
use super::place::{number, At};
use super::{Outcome, Stop};
use crate::raw;
use crate::state::State;

const NOFOLLOW: u32 = libc::AT_SYMLINK_NOFOLLOW as u32;
const EMPTY_PATH: u32 = libc::AT_EMPTY_PATH as u32;

/// What the owner may do: all with a directory, and all but running a file.
const USER: u32 = 0o700;
const FILE_USER: u32 = 0o600;

/// Neither a user nor a group.
const NOBODY: (u32, u32) = (u32::MAX, u32::MAX);

/// Times to set, or not.
type Times = [Option<SetTime>; 2];
const NOW: Times = [Some(SetTime::Now); 2];

impl State {
    pub fn chmod(&self, at: At, mode: u32, flags: u32) -> Outcome {
        if flags & !(NOFOLLOW | EMPTY_PATH) != 0 {
            return Err(Errno::INVAL.into());
        }
        if flags & NOFOLLOW != 0 {
            return Err(Stop::Kernel);
        }
        if mode & USER != USER && self.needs_paths() {
            self.before_less(self.hold(at, flags)?.ino(), mode)?;
        }
        self.set(at, flags, &of_mode(mode))
    }

    /// A process that opens files by their paths makes descriptors real before a mode refuses it what they may: those of a file, or all where
    /// paths may lead through a directory.
    fn before_less(&self, ino: Ino, mode: u32) -> Outcome<()> {
        match self.fs().getattr(ino)?.kind {
            Kind::Directory => _ = self.make_all_real(false),
            _ if mode & FILE_USER != FILE_USER => self.make_inode_real(ino),
            _ => {}
        }
        Ok(())
    }

    pub fn fchmod(&self, fd: usize, mode: u32) -> Outcome {
        let file = self.file(fd)?;
        if mode & USER != USER && self.needs_paths() {
            self.before_less(file.ino, mode)?;
        }
        self.set_inode(file.ino, &of_mode(mode))
    }

    pub fn chown(&self, at: At, owner: (u32, u32), flags: u32) -> Outcome {
        if flags & !(NOFOLLOW | EMPTY_PATH) != 0 {
            return Err(Errno::INVAL.into());
        }
        if owner == NOBODY {
            self.may_clear_setid(self.hold(at, flags)?.ino())?;
        }
        self.set(at, flags, &of_owner(owner))
    }

    /// A change of owner that names none clears set-id bits, if there are any; only the owner may.
    fn may_clear_setid(&self, ino: Ino) -> Outcome<()> {
        let caller = self.identities.caller(self.identity()?);
        if caller.uid == 0 || !self.fs().has_setid(ino)? {
            return Ok(());
        }
        let attr = self.fs().getattr(ino)?;
        match attr.uid != caller.uid && loses_setid(&attr, &caller) {
            true => Err(Errno::PERM.into()),
            false => Ok(()),
        }
    }

    pub fn fchown(&self, fd: usize, owner: (u32, u32)) -> Outcome {
        let file = self.file(fd)?;
        if owner == NOBODY {
            self.may_clear_setid(file.ino)?;
        }
        self.set_inode(file.ino, &of_owner(owner))
    }

    fn set(&self, at: At, flags: u32, set: &SetAttr) -> Outcome {
        if self.is_of_descriptor(at, flags)? {
            return self.set_inode(self.hold(at, flags)?.ino(), set);
        }
        let place = match self.place(at) {
            Err(Stop::Kernel) => return self.set_inode(self.hold(at, flags)?.ino(), set),
            place => place?,
        };
        match flags & NOFOLLOW {
            0 => place.view().setattr(place.path, set)?,
            _ => place.view().lsetattr(place.path, set)?,
        };
        Ok(0)
    }

    fn set_inode(&self, ino: Ino, set: &SetAttr) -> Outcome {
        self.fs().setattr(ino, set, &self.identities.caller(self.identity()?))?;
        Ok(0)
    }

    pub fn utimensat(&self, at: At, times: usize, flags: u32) -> Outcome {
        // Which file it is counts first.
        let times = match times {
            0 => Ok(NOW),
            times => {
                let [a, b, c, d]: [i64; 4] = raw::get(times)?;
                let times = [(a, b), (c, d)];
                if times.iter().all(|(_, nanos)| *nanos == libc::UTIME_OMIT) {
                    return Ok(0);
                }
                exact(times)
            }
        };
        if at.1 == 0 && number(at.0) != libc::AT_FDCWD {
            return match flags {
                0 => self.set_times(self.file(at.0)?.ino, times?),
                _ => Err(Errno::INVAL.into()),
            };
        }
        if flags & !(NOFOLLOW | EMPTY_PATH) != 0 {
            return Err(Errno::INVAL.into());
        }
        let held = self.hold(at, flags)?;
        self.set_times(held.ino(), times?)
    }

    /// `utimes` and `futimesat`: microseconds.
    pub fn utimes(&self, at: At, times: usize) -> Outcome {
        let times = match times {
            0 => NOW,
            times => {
                let [a, b, c, d]: [i64; 4] = raw::get(times)?;
                if [b, d].iter().any(|micros| !(0..1_000_000).contains(micros)) {
                    return Err(Errno::INVAL.into());
                }
                exact([(a, b * 1000), (c, d * 1000)])?
            }
        };
        match at.1 == 0 && number(at.0) != libc::AT_FDCWD {
            true => self.set_times(self.file(at.0)?.ino, times),
            false => self.set_times(self.hold(at, 0)?.ino(), times),
        }
    }

    /// Seconds.
    pub fn utime(&self, path: usize, times: usize) -> Outcome {
        let times = match times {
            0 => NOW,
            times => {
                let [a, b]: [i64; 2] = raw::get(times)?;
                exact([(a, 0), (b, 0)])?
            }
        };
        self.set_times(self.hold((super::CWD, path), 0)?.ino(), times)
    }

    fn set_times(&self, ino: Ino, [atime, mtime]: Times) -> Outcome {
        let caller = self.identities.caller(self.identity()?);
        // Only both times, and only to the present, set others than the owner.
        if caller.uid != 0 && [atime, mtime] != NOW && self.fs().getattr(ino)?.uid != caller.uid {
            return Err(Errno::PERM.into());
        }
        self.fs().setattr(ino, &SetAttr { atime, mtime, ..SetAttr::default() }, &caller)?;
        Ok(0)
    }
}

fn of_mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() }
}

fn of_owner((uid, gid): (u32, u32)) -> SetAttr {
    let id = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { uid: id(uid), gid: id(gid), kill_suidgid: true, ..SetAttr::default() }
}

/// Times as seconds and nanoseconds, of which two have a meaning of their own.
fn exact(times: [(i64, i64); 2]) -> Outcome<Times> {
    let mut set = [None; 2];
    for (set, (seconds, nanos)) in set.iter_mut().zip(times) {
        *set = match nanos {
            libc::UTIME_OMIT => None,
            libc::UTIME_NOW => Some(SetTime::Now),
            0..1_000_000_000 => Some(SetTime::At(Time::new(seconds, nanos as u32))),
            _ => return Err(Errno::INVAL.into()),
        };
    }
    Ok(set)
}
