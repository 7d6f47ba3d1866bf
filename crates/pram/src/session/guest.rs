//! Guests: attached processes that do no background work, and those who do it for them.
//!
//! What a guest changes is committed, written to disks and put in order by the attendant ([`Attendant`]). So nothing may be changed by a
//! guest while there is none: nobody would commit it in time. A guest looks at the word that names the attendant before each operation,
//! and now and then whether that process is alive.
//!
//! | the attendant | a guest |
//! | --- | --- |
//! | leaves, and another process does background work | goes on, with that one |
//! | leaves as the last | what it begins from then on fails; what it has begun ends, and the attendant commits it |
//! | dies | notices within [`GLANCE`], or while it waits for a commit; waits [`PATIENCE`] for another one; then as above |

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::references::Held;
use super::Session;
use crate::error::{Error, Result};
use crate::runtime::Attendant;

/// How often a guest looks whether the attendant is alive.
const GLANCE: u64 = 100_000_000;
/// How long it waits for another one.
const PATIENCE: u64 = 5_000_000_000;

/// What a guest knows of its attendant.
#[derive(Debug, Default)]
pub(super) struct Guest {
    /// Nanoseconds of the session's clock: when it looked last; since when there is none, or 0.
    looked: AtomicU64,
    missed: AtomicU64,
    pub(super) held: Held,
}

impl Session {
    /// Does this process leave background work to others?
    #[inline(always)]
    pub fn is_guest(&self) -> bool {
        self.guest.is_some()
    }

    /// This process does background work for others from now on: when it is able to.
    pub fn attend(&self) -> Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let _in_process = self.memory.lock_by(&shared.in_process);
        self.lock_shared(shared)?;
        self.rt.attend();
        shared.unlock();
        Ok(())
    }

    /// It does so no more. When this returns, and nobody else does, what guests have changed is there to be committed for the last time:
    /// 1. What they begin from now on fails. 2. What they have begun has ended. True if there are any, and nobody else attends.
    pub fn stop_attending(&self) -> Result<bool> {
        let Some(shared) = &self.shared else { return Ok(false) };
        {
            let _in_process = self.memory.lock_by(&shared.in_process);
            self.lock_shared(shared)?;
            // 1.
            self.rt.stop_attending(self.rt.me(), false);
            shared.unlock();
        }
        let is_last = self.rt.attendant() == Attendant::Left && self.rt.any_other();
        if is_last {
            // 2.
            self.drain()?;
        }
        Ok(is_last)
    }

    /// Asks the attendant for room, on disks or in memory; for [`is_room_made`](Self::is_room_made).
    pub fn ask_for_room(&self) -> u64 {
        let asked = self.rt.ask_for_room();
        self.ring_supply();
        asked
    }

    /// Has the attendant done all that it can since it was asked?
    pub fn is_room_made(&self, asked: u64) -> bool {
        self.rt.is_room_made(asked)
    }

    /// For a guest: fails where nobody does the background work.
    #[inline(always)]
    pub fn expect_attendant(&self) -> Result<()> {
        let Some(guest) = &self.guest else { return Ok(()) };
        match self.rt.attendant() {
            Attendant::Session(_) if self.clock.coarse() < guest.looked.load(Ordering::Relaxed) + GLANCE => Ok(()),
            _ => self.look_for_attendant(guest),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_for_attendant(&self, guest: &Guest) -> Result<()> {
        self.expect_own()?;
        loop {
            match self.rt.attendant() {
                Attendant::Session(n) if self.is_alive(n) => {
                    guest.looked.store(self.clock.coarse(), Ordering::Relaxed);
                    guest.missed.store(0, Ordering::Relaxed);
                    return Ok(());
                }
                Attendant::Session(_) => _ = self.reap()?,
                Attendant::Left => return Err(Error::Unattended),
                Attendant::Nobody => {}
            }
            let now = self.clock.coarse();
            let _ = guest.missed.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
            if now >= guest.missed.load(Ordering::Relaxed) + PATIENCE {
                return Err(Error::Unattended);
            }
            self.memory.wait_by(|| self.rt.wait_for_attendant(Duration::from_nanos(GLANCE)));
        }
    }
}
