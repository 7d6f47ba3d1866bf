//! The side of its threshold for each file, and the files that may be on the other: [`follow`](crate::tier::follow) moves them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use pram::Session;

use super::Union;
use crate::attr::{Ino, Kind};
use crate::error::Result;
use crate::file::{self, Content, PAGE};
use crate::inode::content_of;
use crate::layout::{root, RawInode};

/// Files that are noted at most: others are when they are used again.
const NOTED: usize = 4096;
/// In `FOLLOWED`: a walk is due, or under way.
const DUE: u64 = 0;
pub(crate) const UNDER_WAY: u64 = 1;

/// The right place of a file's content, of which some is elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It is in its right place, as far as its inode tells.
    Right,
    Memory,
    Disk,
}

/// A process's knowledge of files that may have to move.
#[derive(Debug, Default)]
pub(crate) struct Follow {
    pub noted: Mutex<BTreeSet<Ino>>,
    /// The inode from which on the walk of this process goes on, if it walks, and the values that it follows.
    pub walk: Mutex<Option<(Ino, Followed)>>,
}

/// The values that files follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Followed {
    pub threshold: u64,
    pub size: u64,
}

impl Union {
    /// The right place of a file with this content.
    pub(crate) fn side_of(&self, raw: &RawInode, c: &Content) -> Side {
        let threshold = raw.threshold_or(self.threshold());
        // Promised room beyond the end takes memory too.
        let is_small = c.size <= threshold && c.pages.saturating_mul(PAGE) <= threshold.saturating_add(PAGE - 1);
        match c.is_large() {
            true if is_small => Side::Memory,
            // A compressed file is small, and stays until it changes.
            false if c.size > threshold && !file::is_compressed(c) => Side::Disk,
            _ => Side::Right,
        }
    }

    /// A file was used, or cut, and is like this: where it is a large one that need not be, it is seen to.
    #[inline]
    pub(crate) fn note_use(&self, ino: Ino, raw: &RawInode) {
        let c = content_of(ino, raw);
        if raw.kind == Kind::Regular as u8 && c.is_large() && self.side_of(raw, &c) == Side::Memory {
            self.note(ino);
        }
    }

    /// Has a file seen to.
    pub(crate) fn note(&self, ino: Ino) {
        let mut noted = self.follow.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < NOTED && noted.insert(ino) {
            drop(noted);
            self.wake();
        }
    }

    /// The threshold of a file was set, or is about to be: also after a crash it has to follow.
    pub(crate) fn note_setting(&self, session: &Session, ino: Ino) -> Result<()> {
        set_followed(session, |_| Some(Followed { threshold: DUE, size: 0 }))?;
        self.note(ino);
        Ok(())
    }

    /// The redundancy of a file was set, or is about to be: also after a crash its content has to follow.
    pub(crate) fn follow_redundancy(&self, session: &Session, ino: Ino) -> Result<()> {
        self.note_setting(session, ino)
    }

    /// The values that files are to follow now.
    pub(crate) fn followed_now(&self, session: &Session) -> Followed {
        Followed { threshold: self.threshold(), size: session.memory().size() }
    }

    pub(crate) fn is_walk_due(&self, session: &Session) -> Result<bool> {
        Ok(followed(session)? != self.followed_now(session))
    }
}

/// The values in the root words.
fn followed(session: &Session) -> Result<Followed> {
    let memory = session.memory();
    let threshold = memory.load(memory.root(root::FOLLOWED))?;
    Ok(Followed { threshold, size: memory.load(memory.root(root::FOLLOWED_SIZE))? })
}

/// Changes the words to the values of `new`.
pub(crate) fn set_followed(session: &Session, new: impl Fn(Followed) -> Option<Followed>) -> Result<()> {
    let mut op = session.begin()?;
    op.lock(&[ilfs::KEY])?;
    let is = followed(session)?;
    let Some(new) = new(is).filter(|new| *new != is) else { return Ok(()) };
    let (mut tx, region) = (op.tx()?, session.memory());
    tx.set(region.root(root::FOLLOWED), &new.threshold)?;
    tx.set(region.root(root::FOLLOWED_SIZE), &new.size)?;
    Ok(tx.commit()?)
}
