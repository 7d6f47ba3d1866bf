//! Where memory or room lacks: how much there is, and ways to make more.
//!
//! That lies above, since it compresses and moves files by operations of their own. It is called outside of operations, and only where
//! there is too little, or will be soon.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Fs;
use crate::attr::Ino;
use crate::error::{Lack, Result};

/// With fewer chunks free a change first makes some free.
pub(crate) const AHEAD: u64 = 16;
/// In a pool of fewer chunks both are as many times smaller.
const SMALL: u64 = 256;
/// Plans by which files are compressed for a call that needs memory.
pub(crate) const PLANS: usize = 3;

/// Ways to make room.
pub(crate) trait MakesRoom: Sync {
    /// Makes room in memory or on disks for a call that found too little.
    fn make_room(&self, fs: &Fs, lack: Lack) -> Result<()>;

    /// Compresses files for a call that found too little memory; false if there is nothing to compress. `freed` is the value of
    /// [`Shortage::freed`] before its attempt.
    fn free_memory(&self, fs: &Fs, freed: u64) -> Result<bool>;

    /// Compresses files before a change in a pool that is nearly full.
    ///
    /// # Errors
    /// EAGAIN if this thread may not wait for it: nothing has changed yet, and another thread calls again.
    fn free_memory_ahead(&self, fs: &Fs) -> Result<()>;

    /// Has a writer to a large file wait while a disk is far behind.
    fn wait_behind(&self, fs: &Fs) -> Result<()>;

    /// Has no page of a large file in a block.
    fn move_to_disk(&self, fs: &Fs, ino: Ino) -> Result<()>;
}

/// Where the next caller goes on.
#[derive(Default)]
pub(crate) struct Shortage {
    pub state: Mutex<State>,
    /// Bytes that were made free, in all.
    pub freed: AtomicU64,
    /// Nothing is compressed but by command.
    pub forbidden: AtomicBool,
}

#[derive(Default)]
pub(crate) struct State {
    pub next: Ino,
    /// By plan: until then nothing is tried.
    pub paused_until: [Option<Instant>; PLANS],
    /// Bytes of content that the last round left alone since it was just being written, and that it made room for.
    pub young: u64,
}

impl State {
    pub fn is_paused(&self, plan: usize, now: Instant) -> bool {
        self.paused_until[plan].is_some_and(|until| now < until)
    }
}

impl Shortage {
    pub fn forbid(&self) {
        self.forbidden.store(true, Ordering::Relaxed);
    }

    /// Bytes that were made free until now.
    pub fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fs {
    /// From now on no operation compresses files when it needs memory.
    pub fn forbid_on_demand(&self) {
        self.shortage.forbid();
    }

    /// Is there so little memory left that a change is to make some free?
    #[inline(always)]
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.session().runtime().spare() < AHEAD && self.is_down_to(AHEAD)
    }

    /// Are fewer chunks free than this (in a small pool: than its share of this), and can the host give none?
    pub(crate) fn is_down_to(&self, chunks: u64) -> bool {
        let memory = self.session().memory();
        let all = memory.geo.heap_chunks(memory.size());
        self.obtainable() == 0 && self.session().runtime().spare() < chunks.min(all * chunks / SMALL)
    }

    /// Chunks that the host can be asked for.
    pub fn obtainable(&self) -> u64 {
        match self.session().is_host_full() {
            true => 0,
            false => self.session().runtime().absent(),
        }
    }
}
