//! Room where there is hardly any: a change in a pool that is nearly full compresses files first.
//!
//! It begins before all memory is used, since the compressed form needs room until the plain one is given up. One
//! caller at a time does it; others wait only if they would fail otherwise, and try again. Quiet files come first, then files that
//! are not just being written; if all of them are, it waits for that. A round over all inodes that found too little is not
//! repeated for a while: on a pool full of incompressible files every call would else look at every file.

use std::sync::atomic::Ordering;
use std::time::Duration;

use pram::CHUNK;

use super::{Compressor, Plan, QUIET};
use crate::error::Result;
use crate::node::shortage::{State, AHEAD, PLANS as COUNT};
use crate::node::Fs;

/// Memory that a caller makes free before it goes on.
const ENOUGH: u64 = 16 * CHUNK;
/// Waiting for files that are being written is worth it for so much memory, and was if it freed so much. When none is left it is too late:
/// compression needs room.
const PROGRESS: u64 = CHUNK;
/// With more it is not for want of memory that a change has failed, of which one takes a megabyte and its index.
const LACKING: u64 = 2 * AHEAD;
/// Files that were written so long ago are not being written any more.
const WRITTEN: Duration = Duration::from_millis(100);
/// By so much files may seem younger than they are, at most: the kernel's coarse clock gives their times.
const TICK: Duration = Duration::from_millis(10);
/// The pause of a plan after a round that freed too little: so many times as long as the round took, and at least until the files that were
/// being written then are not.
const REST: u32 = 20;

/// Quiet files, well; young ones, quickly, and well too where that is not enough.
const PLANS: [Plan; COUNT] = [
    Plan { warm: QUIET, cold: QUIET, again: false },
    Plan { warm: WRITTEN, cold: QUIET, again: false },
    Plan { warm: WRITTEN, cold: WRITTEN, again: false },
];

/// Makes memory free before a change, unless nothing can be compressed. If another caller does it, and there is hardly any, waits for
/// that: a write that runs out of memory in its midst has been done in part. Not inside an operation.
///
/// # Errors
/// EAGAIN if this thread may not wait for it: nothing has changed yet, and another thread calls again.
#[cold]
#[inline(never)]
pub(crate) fn free_memory_ahead(fs: &Fs) -> Result<()> {
    let shortage = &fs.shortage;
    if fs.union().is_some() || shortage.forbidden.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut state = match shortage.state.try_lock() {
        Ok(state) => state,
        Err(_) if !fs.is_down_to(AHEAD / 2) => return Ok(()),
        Err(_) => {
            fs.before_waiting()?;
            shortage.lock()
        }
    };
    let worth = if fs.is_down_to(AHEAD / 2) { PROGRESS } else { u64::MAX };
    let now = fs.session().clock().instant();
    let all_paused = (0..COUNT).all(|n| state.is_paused(n, now)) && state.young < worth;
    if !fs.is_nearly_full() || all_paused {
        return Ok(());
    }
    fs.before_waiting()?;
    if let Err(e) = free_by(fs, &mut state, worth) {
        tracing::debug!("compressing in a pool that is nearly full: {e}");
    }
    Ok(())
}

/// Makes memory free after a failure, by compressing; false if there is nothing to compress. `freed` is the value of
/// [`Shortage::freed`](crate::node::shortage::Shortage::freed) before the attempt that failed. Not inside an operation.
#[cold]
#[inline(never)]
pub(crate) fn free_memory(fs: &Fs, freed: u64) -> Result<bool> {
    let shortage = &fs.shortage;
    if shortage.forbidden.load(Ordering::Relaxed) || (shortage.freed() == freed && !fs.is_down_to(LACKING)) {
        return Ok(false);
    }
    fs.before_waiting()?;
    let mut state = shortage.lock();
    // Or another caller did since. Even a few young bytes count: they may be the memory that the caller lacks.
    Ok(shortage.freed() > freed || free_by(fs, &mut state, 1)?)
}

/// If only files that are just being written could be compressed, and so many bytes of them, waits until they are not.
fn free_by(fs: &Fs, state: &mut State, worth: u64) -> Result<bool> {
    let mut saved = free_by_plans(fs, state)?;
    // A change that has got a little tries with that first.
    let worth = if saved == 0 { worth } else { worth.max(ENOUGH) };
    if saved < ENOUGH && state.young >= worth {
        fs.session().clock().sleep(WRITTEN + TICK);
        state.paused_until = Default::default();
        saved += free_by_plans(fs, state)?;
        if saved < PROGRESS {
            let until = fs.session().clock().instant() + WRITTEN * REST;
            *state = State { paused_until: [Some(until); COUNT], young: 0, ..*state };
        }
    }
    if saved >= PROGRESS {
        // It may fill with young files before the plans' pauses end.
        state.young += saved;
    }
    fs.shortage.freed.fetch_add(saved, Ordering::Relaxed);
    Ok(saved > 0)
}

fn free_by_plans(fs: &Fs, state: &mut State) -> Result<u64> {
    let mut saved = 0;
    for (n, plan) in PLANS.iter().enumerate() {
        let begun = fs.session().clock().instant();
        if state.is_paused(n, begun) {
            continue;
        }
        saved += free_round(fs, *plan, state, ENOUGH - saved)?;
        if saved >= ENOUGH {
            break;
        }
        let ended = fs.session().clock().instant();
        state.paused_until[n] = Some(ended + ((ended - begun) * REST).max(WRITTEN));
    }
    Ok(saved)
}

/// Bytes that were made free in one round over all inodes, until there are `enough`.
fn free_round(fs: &Fs, plan: Plan, state: &mut State, enough: u64) -> Result<u64> {
    let mut compressor = Compressor::new(fs, plan)?;
    let (begun, mut wrapped) = (state.next, false);
    loop {
        match fs.table().next_used(state.next)? {
            Some(ino) if !wrapped || ino < begun => {
                state.next = ino + 1;
                match compressor.see(ino) {
                    Ok(_) => {}
                    // There is no room even for a smaller form: others may fit.
                    Err(e) if e.is_full() => {}
                    Err(e) => return Err(e),
                }
            }
            None if !wrapped => (state.next, wrapped) = (0, true),
            _ => {
                if plan.warm == WRITTEN {
                    state.young = compressor.young;
                }
                return Ok(compressor.done.saved());
            }
        }
        if compressor.done.saved() >= enough {
            return Ok(compressor.done.saved());
        }
    }
}
