//! Locks that outlive operations: for changes of more than one operation, which no other process may interrupt.
//!
//! A key's long lock is an entry of a small table in the runtime file. To take one, or to ask whether it is taken, an
//! operation holds the key's lock; to give it up needs no lock. An operation does not wait for a long lock: it ends
//! first, and begins anew. A dead process's entries go with its session.

use super::{Op, Session};
use crate::error::Result;
use crate::runtime;

/// A long lock, given up when dropped.
#[must_use = "it is given up when dropped"]
pub struct LongLock<'s> {
    session: &'s Session,
    entry: u32,
}

impl Drop for LongLock<'_> {
    fn drop(&mut self) {
        self.session.runtime().give_up_long_lock(self.entry);
        self.session.heed();
    }
}

impl Session {
    /// Takes the long lock of `key`, of 48 bits at most; waits until it is free. For a thread that is in no operation
    /// and has no other long lock.
    pub fn long_lock(&self, key: u64) -> Result<LongLock<'_>> {
        let mut op = self.begin()?;
        loop {
            op.lock_apart(key)?;
            match self.runtime().take_long_lock(key) {
                Some(entry) => return Ok(LongLock { session: self, entry }),
                // All are taken, by others for other keys.
                None => op.sit_out(None)?,
            }
        }
    }
}

impl Session {
    /// Is the long lock of `key` taken, so that a change of the key's object may have to wait?
    #[inline(always)]
    pub fn has_long_lock(&self, key: u64) -> bool {
        self.runtime().any_long_lock() && self.runtime().is_long_locked(key)
    }
}

impl Op<'_> {
    /// Takes the lock of `key` when its long lock is free. Waits for that outside of the operation, which then begins
    /// anew.
    #[inline(always)]
    pub fn lock_apart(&mut self, key: u64) -> Result<()> {
        self.lock(&[key])?;
        match self.session().runtime().any_long_lock() {
            true => self.wait_apart(key),
            false => Ok(()),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_apart(&mut self, key: u64) -> Result<()> {
        let session = self.session();
        while session.runtime().is_long_locked(key) {
            self.sit_out(Some(key))?;
            self.lock(&[key])?;
        }
        Ok(())
    }

    /// Is the long lock of `key` taken? The operation holds the key's lock.
    pub fn is_long_locked(&self, key: u64) -> bool {
        self.session().runtime().is_long_locked(key)
    }

    /// Ends the operation, and begins it anew when `key` is not long locked any more, or after some milliseconds.
    fn sit_out(&mut self, key: Option<u64>) -> Result<()> {
        const ROUNDS: u32 = 100;
        self.end();
        let session = self.session();
        let holder = || key.map(|key| session.runtime().holder_of_long_lock(key));
        let still = || holder() != Some(None);
        for round in 0..ROUNDS {
            if !still() {
                break;
            }
            session.memory().wait_by(|| runtime::pause(round));
        }
        if still() {
            session.reap()?;
            if let Some(Some(n)) = holder() {
                session.urge_session(n, || holder() == Some(Some(n)));
            }
        }
        self.begin_anew()
    }
}
