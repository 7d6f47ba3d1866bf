//! Room where there is hardly any: who is to change something in a pool that is nearly full compresses what can be first.
//!
//! It is done before nothing is free at all, since what is compressed needs room for itself until its plain form is given up. One
//! caller at a time does it; others wait only where they would fail otherwise, and try again. What has been quiet comes first, then what
//! nobody is just writing. A round over all inodes that found too little is not repeated for a while: on a pool that is full of what
//! cannot be compressed every call would else look at every file.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pram::SEGMENT;

use super::{Compressor, Plan, QUIET};
use crate::attr::Ino;
use crate::error::Result;
use crate::node::Fs;

/// Memory that a caller makes free before he goes on.
const ENOUGH: u64 = 16 * SEGMENT;
/// With so many segments free it is not memory that is lacking.
const PLENTY: u64 = 8;
/// Files that were written so long ago are not being written any more.
const WRITTEN: Duration = Duration::from_millis(100);
/// How long nothing is tried by a plan after a round in vain.
const REST: Duration = Duration::from_secs(1);

/// What is quiet, well; what is young, quickly; and that well too where it is not enough.
const PLANS: [Plan; 3] = [
    Plan { warm: QUIET, cold: QUIET, again: false },
    Plan { warm: WRITTEN, cold: QUIET, again: false },
    Plan { warm: WRITTEN, cold: WRITTEN, again: false },
];

/// Where the next caller goes on.
#[derive(Default)]
pub(crate) struct Relief {
    state: Mutex<State>,
    /// Bytes that were made free, in all.
    freed: AtomicU64,
    /// Nothing is compressed but by command.
    forbidden: AtomicBool,
}

#[derive(Default)]
struct State {
    next: Ino,
    /// By plan: until then nothing is tried.
    vain: [Option<Instant>; PLANS.len()],
}

impl State {
    fn is_in_vain(&self, plan: usize) -> bool {
        self.vain[plan].is_some_and(|until| Instant::now() < until)
    }
}

impl Relief {
    pub fn forbid(&self) {
        self.forbidden.store(true, Ordering::Relaxed);
    }
}

impl Fs {
    /// Is there so little memory left that a change is to make some free?
    #[inline(always)]
    pub(crate) fn is_nearly_full(&self) -> bool {
        let rt = self.session().runtime();
        rt.spare() < PLENTY && rt.absent() == 0
    }

    /// Makes memory free before a change, unless somebody else does or nothing can be compressed. Not inside an operation.
    ///
    /// # Errors
    /// EAGAIN if this thread may not wait for it: nothing has changed yet, and somebody else calls again.
    #[cold]
    #[inline(never)]
    pub(crate) fn relieve_ahead(&self) -> Result<()> {
        let relief = &self.relief;
        if self.union().is_some() || relief.forbidden.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Ok(mut state) = relief.state.try_lock() else { return Ok(()) };
        if (0..PLANS.len()).all(|n| state.is_in_vain(n)) {
            return Ok(());
        }
        self.before_waiting()?;
        if let Err(e) = self.relieve_by(&mut state) {
            tracing::debug!("compressing in a pool that is nearly full: {e}");
        }
        Ok(())
    }

    /// Makes memory free for who fails otherwise, by compressing; false if there is nothing that could be. Not inside an operation.
    #[cold]
    #[inline(never)]
    pub(crate) fn relieve(&self) -> Result<bool> {
        let rt = self.session().runtime();
        if rt.free_segments() + rt.absent() >= PLENTY || self.relief.forbidden.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.before_waiting()?;
        let before = self.relief.freed.load(Ordering::Relaxed);
        let mut state = self.relief.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Or somebody did while this caller waited.
        Ok(self.relief.freed.load(Ordering::Relaxed) > before || self.relieve_by(&mut state)?)
    }

    fn relieve_by(&self, state: &mut State) -> Result<bool> {
        let mut saved = 0;
        for (n, plan) in PLANS.iter().enumerate() {
            if state.is_in_vain(n) {
                continue;
            }
            saved += self.relieve_round(*plan, state, ENOUGH - saved)?;
            if saved >= ENOUGH {
                break;
            }
            state.vain[n] = Some(Instant::now() + REST);
        }
        self.relief.freed.fetch_add(saved, Ordering::Relaxed);
        Ok(saved > 0)
    }

    /// Bytes that were made free in one round over all inodes, until there are `enough`.
    fn relieve_round(&self, plan: Plan, state: &mut State, enough: u64) -> Result<u64> {
        let mut compressor = Compressor::new(self, plan)?;
        let (begun, mut wrapped) = (state.next, false);
        loop {
            match self.table().next_used(state.next)? {
                Some(ino) if !wrapped || ino < begun => {
                    state.next = ino + 1;
                    match compressor.see(ino) {
                        Ok(_) => {}
                        // There is not even room for what is smaller: others may fit.
                        Err(e) if e.errno() == rustix::io::Errno::NOSPC => {}
                        Err(e) => return Err(e),
                    }
                }
                None if !wrapped => (state.next, wrapped) = (0, true),
                _ => return Ok(compressor.done.saved()),
            }
            if compressor.done.saved() >= enough {
                return Ok(compressor.done.saved());
            }
        }
    }
}
