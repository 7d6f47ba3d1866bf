//! Room where there is none: who would fail for want of memory compresses what can be first.
//!
//! One caller at a time does it; the others wait for him, and try again. A round over all inodes that found too little is not repeated
//! for a while: on a pool that is full of what cannot be compressed every call would else look at every file.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pram::SEGMENT;

use super::{Compressor, Plan, QUIET};
use crate::attr::Ino;
use crate::error::Result;
use crate::node::Fs;

/// Memory that a caller makes free before he tries again.
const ENOUGH: u64 = 4 * SEGMENT;
/// With so many segments free it is not memory that is lacking.
const PLENTY: u64 = 8;
/// How long nothing is tried after a round in vain.
const REST: Duration = Duration::from_secs(5);

/// Where the next caller goes on.
#[derive(Default)]
pub(crate) struct Relief(Mutex<State>);

#[derive(Default)]
struct State {
    next: Ino,
    /// Until then nothing is tried.
    vain: Option<Instant>,
    /// Bytes that were made free, in all.
    freed: u64,
}

impl Fs {
    /// Makes memory free by compressing; false if there is nothing that could be. Not inside an operation.
    #[cold]
    #[inline(never)]
    pub(crate) fn relieve(&self) -> Result<bool> {
        self.relieve_by(Plan { warm: QUIET, cold: QUIET, again: false })
    }

    pub(super) fn relieve_by(&self, plan: Plan) -> Result<bool> {
        let rt = self.session().runtime();
        if rt.free_segments() + rt.absent() >= PLENTY {
            return Ok(false);
        }
        let before = self.relief.0.try_lock().map(|state| state.freed).ok();
        let mut state = self.relief.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody did while this caller waited.
        if before.is_none() {
            return Ok(state.freed > 0 && state.vain.is_none());
        }
        if state.vain.is_some_and(|until| Instant::now() < until) {
            return Ok(false);
        }
        self.before_waiting()?;
        state.vain = None;
        let mut compressor = Compressor::new(self, plan)?;
        let (begun, mut wrapped) = (state.next, false);
        let saved = loop {
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
                _ => break compressor.done.saved(),
            }
            if compressor.done.saved() >= ENOUGH {
                break compressor.done.saved();
            }
        };
        state.freed += saved;
        if saved < ENOUGH {
            state.vain = Some(Instant::now() + REST);
        }
        Ok(saved > 0)
    }
}
