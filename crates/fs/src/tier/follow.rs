//! Files follow their threshold: a file on the wrong side of it moves, in the background.
//!
//! A change after which a file may lie on the wrong side notes it, and the thread of that process moves it soon after. If
//! all files may have to move, since the threshold of the pool, the size of its memory, or the threshold of a file has
//! changed, a walk over the inodes finds them. Two root words say whether one is due:
//!
//! | `FOLLOWED` | |
//! | --- | --- |
//! | the threshold in effect, and `FOLLOWED_SIZE` the size of the memory | no |
//! | 1 | a walk is under way; or it was, and its process has died: then another is due |
//! | anything else | yes |
//!
//! 1. A walk begins with a 1, under the lock of the log's table. (A threshold that is set after that begins another.)
//! 2. It goes over all inodes.
//! 3. It ends, under the same lock: if there still is a 1, both words get the values that it has followed.
//!
//! The process with the role of maintenance walks, a few megabytes at a time, between which its thread does other due work.

use std::sync::PoisonError;

use pram::memory::BLOCK;
use rustix::io::Errno;

use super::residence::Brought;
use crate::attr::{Ino, Kind};
use crate::error::{Error, Result};
use crate::file::{self, Content, PAGE};
use crate::node::{content_of, Fs};
use crate::ubj::threshold_side::{set_followed, Followed, Side, UNDER_WAY};
use crate::ubj::Union;

/// Noted files that are handled before the thread does other due work.
const FEW: usize = 64;
/// Inodes that a walk passes before the same.
const PASSED: usize = 1024;
/// Pages that are sent at a time.
const SOME: usize = 2048;
/// Files within their threshold whose content is on disks, and those that have to move.
#[derive(Clone, Copy, Debug, Default)]
pub struct Survey {
    pub demoted_files: u64,
    pub demoted_bytes: u64,
    /// Bytes that a walk has to move yet.
    pub left: u64,
}

impl Union {
    /// Moves some of the files that have to move; true if there is more. `walks`: whether this process is the one that walks.
    pub fn follow(&self, fs: &Fs, walks: bool, stopped: &dyn Fn() -> bool) -> Result<bool> {
        let noted = self.follow_noted(fs, stopped);
        let walked = walks && self.walk(fs, stopped)?;
        Ok(noted || walked)
    }

    /// Of files that were noted.
    fn follow_noted(&self, fs: &Fs, stopped: &dyn Fn() -> bool) -> bool {
        for _ in 0..FEW {
            let next = self.follow.noted.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
            let Some(ino) = next.filter(|_| !stopped()) else { return false };
            if self.move_one(fs, ino, stopped) {
                self.note(ino);
                return true;
            }
        }
        !self.follow.noted.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Moves some of a file, if it is on the wrong side; true if there is more. A page that fails stays where it is.
    fn move_one(&self, fs: &Fs, ino: Ino, stopped: &dyn Fn() -> bool) -> bool {
        let moved = match self.side(fs, ino) {
            Ok(Side::Right) => Ok(self.sort_some(fs, ino)),
            Ok(Side::Memory) => match self.bring(fs, ino, &|| !stopped()) {
                // Pages that came into memory and cannot stay there alone go back.
                Ok(Brought::Stopped) => self.send(fs, &[ino], SOME).map(|_| false),
                brought => brought.map(|brought| brought == Brought::Part),
            },
            Ok(Side::Disk) => self.send(fs, &[ino], SOME).map(|sent| sent > 0),
            Err(e) => Err(e),
        };
        moved.unwrap_or_else(|e| {
            tracing::warn!("inode {ino}: moving its content between memory and disk: {e}");
            false
        })
    }

    /// The right place of a file; also of a large one, which may have pages in memory.
    fn side(&self, fs: &Fs, ino: Ino) -> Result<Side> {
        let look = || {
            let raw = fs.raw(ino)?;
            let c = content_of(ino, &raw);
            if raw.kind != Kind::Regular as u8 || c.is_cut() {
                return Ok(Side::Right);
            }
            let side = self.side_of(&raw, &c);
            let stays_in_memory = raw.size <= self.options.executables && file::is_program(fs.memory(), &c);
            Ok(match side {
                Side::Disk if stays_in_memory => Side::Right,
                Side::Right if c.is_large() && resident(fs, &c, 1)? > 0 => Side::Disk,
                side => side,
            })
        };
        match fs.session().read(ino, look) {
            Err::<_, Error>(e) if matches!(e.errno(), Errno::STALE | Errno::NOENT) => Ok(Side::Right),
            side => side,
        }
    }

    /// A part of a walk over all inodes, if one is due; true if there is more.
    fn walk(&self, fs: &Fs, stopped: &dyn Fn() -> bool) -> Result<bool> {
        let session = fs.session();
        let mut walk = self.follow.walk.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, follows) = match *walk {
            Some(walk) => walk,
            None if !self.is_walk_due(session)? => return Ok(false),
            None => {
                // 1.
                set_followed(session, |_| Some(Followed { threshold: UNDER_WAY, size: 0 }))?;
                (0, self.followed_now(session))
            }
        };
        // 2.
        let next = self.walk_some(fs, from, stopped)?;
        *walk = next.map(|next| (next, follows));
        if next.is_none() {
            // 3.
            set_followed(session, |is| (is.threshold == UNDER_WAY).then_some(follows))?;
        }
        Ok(next.is_some() && !stopped())
    }

    /// Moves some of the files from inode `from` on; where to go on, unless that is the end.
    fn walk_some(&self, fs: &Fs, from: Ino, stopped: &dyn Fn() -> bool) -> Result<Option<Ino>> {
        let (mut at, mut to_disk, mut pages) = (from, Vec::new(), 0);
        for _ in 0..PASSED {
            let Some(ino) = fs.table().next_used(at)? else {
                return Ok(if self.send_noted(fs, &to_disk) { Some(to_disk[0]) } else { None });
            };
            match self.side(fs, ino) {
                Ok(Side::Memory) if stopped() || self.move_one(fs, ino, stopped) => break,
                Ok(Side::Disk) => {
                    to_disk.push(ino);
                    pages += fs
                        .raw(ino)
                        .map_or(1, |raw| file::allocated(fs.memory(), &content_of(ino, &raw)).div_ceil(PAGE));
                }
                Ok(Side::Right) if self.sort_some(fs, ino) => break,
                // Damage is for fsck to tell.
                _ => {}
            }
            at = ino + 1;
            if pages >= SOME as u64 || stopped() {
                break;
            }
        }
        // Those that have gone are passed by in no time.
        let again = self.send_noted(fs, &to_disk);
        Ok(Some(if again { to_disk[0] } else { at }))
    }

    /// Sends some pages of these files; did any go?
    fn send_noted(&self, fs: &Fs, files: &[Ino]) -> bool {
        if files.is_empty() {
            return false;
        }
        self.send(fs, files, SOME).map(|sent| sent > 0).unwrap_or_else(|e| {
            tracing::warn!("moving content of files to disk: {e}");
            false
        })
    }

    /// Looks at all files.
    pub fn survey(&self, fs: &Fs) -> Result<Survey> {
        let (session, mut survey, mut at) = (fs.session(), Survey::default(), 0);
        let (is_due, has_room) = (self.is_walk_due(session)?, self.has_plenty(session, BLOCK)?);
        while let Some(ino) = fs.table().next_used(at)? {
            at = ino + 1;
            let look = || self.look(fs, ino, is_due, has_room);
            // Unreadable files are for fsck to report.
            let Ok::<Survey, Error>(one) = session.read(ino, look) else { continue };
            survey.demoted_files += one.demoted_files;
            survey.demoted_bytes += one.demoted_bytes;
            survey.left += one.left;
        }
        Ok(survey)
    }

    fn look(&self, fs: &Fs, ino: Ino, is_due: bool, has_room: bool) -> Result<Survey> {
        let raw = fs.raw(ino)?;
        let c = content_of(ino, &raw);
        if raw.kind != Kind::Regular as u8 || c.is_cut() {
            return Ok(Survey::default());
        }
        let bytes = file::allocated(fs.memory(), &c);
        Ok(match self.side_of(&raw, &c) {
            Side::Memory if is_due && has_room => Survey { left: bytes, ..Survey::default() },
            Side::Memory => Survey { demoted_files: 1, demoted_bytes: bytes, left: 0 },
            Side::Disk if is_due && !(raw.size <= self.options.executables && file::is_program(fs.memory(), &c)) => {
                Survey { left: bytes, ..Survey::default() }
            }
            Side::Right if is_due && c.is_large() => {
                Survey { left: resident(fs, &c, usize::MAX)? * PAGE, ..Survey::default() }
            }
            _ => Survey::default(),
        })
    }
}

/// Pages of a file in memory pages, `most` at most.
fn resident(fs: &Fs, c: &Content, most: usize) -> Result<u64> {
    let mut found = Vec::new();
    file::resident(fs.memory(), c, 0, most, &mut found)?;
    Ok(found.len() as u64)
}
