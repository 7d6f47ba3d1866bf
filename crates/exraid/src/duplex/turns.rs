//! Who may do what with the streams of a duplex, among threads and processes: those who write and flush, all at a time, or the one
//! who copies a piece to a member that is being filled, or lets one begin to take part.
//!
//! A lock among processes is one of an open file description, which all threads of a process have in common: the first of them
//! takes it, and the last gives it back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::error::Result;
use crate::region::between::{failed, Between};

/// All streams have one turn.
const ALL: std::ops::Range<u64> = 0..1;
const PAUSE: Duration = Duration::from_micros(200);

#[derive(Default)]
pub struct Turns {
    threads: RwLock<()>,
    /// How many of them have the lock among processes in common.
    sharing: Mutex<usize>,
}

/// One of those who write.
pub struct Shared<'t> {
    turns: &'t Turns,
    between: Option<&'t Arc<Between>>,
    _threads: RwLockReadGuard<'t, ()>,
}

/// The only one.
pub struct Alone<'t> {
    between: Option<&'t Arc<Between>>,
    _threads: RwLockWriteGuard<'t, ()>,
}

impl Turns {
    fn sharing(&self) -> MutexGuard<'_, usize> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn share<'t>(&'t self, between: Option<&'t Arc<Between>>, name: &Arc<str>) -> Result<Shared<'t>> {
        let threads = self.threads.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(between) = between {
            let mut sharing = self.sharing();
            while *sharing == 0 && !between.try_turn(&ALL, true).map_err(|e| failed(name, &e))? {
                std::thread::sleep(PAUSE);
            }
            *sharing += 1;
        }
        Ok(Shared { turns: self, between, _threads: threads })
    }

    pub fn alone<'t>(&'t self, between: Option<&'t Arc<Between>>, name: &Arc<str>) -> Result<Alone<'t>> {
        let threads = self.threads.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(between) = between {
            // At first nobody else begins any more.
            while !between.try_everything(&ALL).map_err(|e| failed(name, &e))? {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(Alone { between, _threads: threads })
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        let Some(between) = self.between else { return };
        let mut sharing = self.turns.sharing();
        *sharing -= 1;
        if *sharing == 0 {
            between.end_turn(&ALL);
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if let Some(between) = self.between {
            between.end_turn(&ALL);
            between.end_gate();
        }
    }
}
