//! Taking part in a backing that others write: a guest ([`pram::session::Kind`]) opens nothing of it, and asks its attendant for commits.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use super::{Backing, Ticket, PATIENCE};
use crate::disk::Disk;
use crate::log::Identity;
use crate::state::State;
use crate::{Disks, SharedDisk};
use pram::error::Result;
use pram::marks::Marks;
use pram::runtime;
use pram::session::Session;

/// In the place of a disk.
struct Unopened;

impl Unopened {
    fn refuse<T>() -> io::Result<T> {
        Err(io::Error::other("this process leaves the pool's backing to another one"))
    }
}

impl Disk for Unopened {
    fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        Unopened::refuse()
    }
    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Unopened::refuse()
    }
    fn flush(&self) -> io::Result<()> {
        Unopened::refuse()
    }
}

impl Backing {
    /// Takes part in a backing that others write: nothing of it is opened, and commits are theirs. `None` if the marks do not say where it
    /// is.
    pub fn beside(marks: &Marks, id: Identity) -> Result<Option<Backing>> {
        let unopened = || -> SharedDisk { Arc::new(Unopened) };
        let disks = Disks { image: unopened(), logs: [unopened(), unopened()] };
        let state = State::read(marks, id)?;
        Ok(state.map(|state| Backing { is_beside: true, ..Backing::over(disks, id, state) }))
    }

    /// Has those who commit do it for this process, and waits for news of them.
    pub(super) fn ask(&self, session: &Session, need: u64, seen: u32) -> Result<()> {
        session.expect_attendant()?;
        let words = session.runtime().backing();
        if words.asked.fetch_max(need, Ordering::SeqCst) < need {
            words.asked_wakeup.fetch_add(1, Ordering::SeqCst);
            runtime::wake(words.asked_wakeup);
        }
        session.memory().wait_by(|| _ = runtime::wait(words.wakeup, seen, PATIENCE));
        Ok(())
    }

    /// Does what others [ask](Self::ask) for; true if any had.
    pub fn commit_if_asked(&self, session: &Session) -> Result<bool> {
        let words = session.runtime().backing();
        let asked = words.asked.load(Ordering::SeqCst);
        match asked > words.done.load(Ordering::SeqCst) && words.is_usable() {
            true => self.wait_for(session, Ticket(asked)).map(|()| true),
            false => Ok(false),
        }
    }

    /// Waits until somebody may have asked, at most so long; `seen` is what was seen last.
    pub fn wait_until_asked(&self, session: &Session, seen: &AtomicU32, most: Duration) {
        let word = session.runtime().backing().asked_wakeup;
        let nanos = i64::try_from(most.as_nanos()).unwrap_or(i64::MAX);
        runtime::wait(word, seen.load(Ordering::Relaxed), nanos);
        seen.store(word.load(Ordering::SeqCst), Ordering::Relaxed);
    }

    /// Wakes those who wait so.
    pub fn ring(&self, session: &Session) {
        let word = session.runtime().backing().asked_wakeup;
        word.fetch_add(1, Ordering::SeqCst);
        runtime::wake(word);
    }
}
