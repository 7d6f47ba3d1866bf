//! The lock on the streams of a duplex, among threads and processes. Writers and flushers share it; a copy of a piece
//! to a member that is being filled, and the start of such a member, take it exclusively.
//!
//! The lock among processes belongs to an open file description, common to all threads of a process: the first of them
//! takes it, and the last releases it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::error::Result;
use crate::region::shared_state::{failed, SharedState};

/// All streams have one lock.
const ALL: std::ops::Range<u64> = 0..1;
const PAUSE: Duration = Duration::from_micros(200);

#[derive(Default)]
pub struct StreamLock {
    threads: RwLock<()>,
    /// The number of threads that share the lock among processes.
    sharing: Mutex<usize>,
}

/// A shared lock.
pub struct Shared<'t> {
    lock: &'t StreamLock,
    shared_state: Option<&'t Arc<SharedState>>,
    _threads: RwLockReadGuard<'t, ()>,
}

/// The exclusive lock.
pub struct Exclusive<'t> {
    shared_state: Option<&'t Arc<SharedState>>,
    _threads: RwLockWriteGuard<'t, ()>,
}

impl StreamLock {
    fn sharing(&self) -> MutexGuard<'_, usize> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn shared<'t>(&'t self, shared_state: Option<&'t Arc<SharedState>>, name: &Arc<str>) -> Result<Shared<'t>> {
        let threads = self.threads.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared_state) = shared_state {
            let mut sharing = self.sharing();
            while *sharing == 0 && !shared_state.try_lock_range(&ALL, true).map_err(|e| failed(name, &e))? {
                std::thread::sleep(PAUSE);
            }
            *sharing += 1;
        }
        Ok(Shared { lock: self, shared_state, _threads: threads })
    }

    pub fn exclusive<'t>(
        &'t self,
        shared_state: Option<&'t Arc<SharedState>>,
        name: &Arc<str>,
    ) -> Result<Exclusive<'t>> {
        let threads = self.threads.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared_state) = shared_state {
            // This keeps others from beginning.
            while !shared_state.try_everything(&ALL).map_err(|e| failed(name, &e))? {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(Exclusive { shared_state, _threads: threads })
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        let Some(shared_state) = self.shared_state else { return };
        let mut sharing = self.lock.sharing();
        *sharing -= 1;
        if *sharing == 0 {
            shared_state.unlock_range(&ALL);
        }
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        if let Some(shared_state) = self.shared_state {
            shared_state.unlock_range(&ALL);
            shared_state.end_gate();
        }
    }
}
