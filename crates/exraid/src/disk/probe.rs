//! Does a disk answer? Each open asks first, so that nothing else waits for a disk that hangs.
//!
//! A process asks a disk once: if that is still unanswered, another open waits only for the rest of its patience.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Disk;
use crate::device::{Device, Request, Ticket};
use crate::error::{Class, Error, OpenError};
use crate::sys::memory::{Aligned, Buffers};

struct Asked {
    /// Stays open for the request.
    disk: Disk,
    ticket: Ticket,
    since: Instant,
}

/// Unanswered requests, by the identity of the disk.
static ASKED: Mutex<BTreeMap<(u64, u64), Asked>> = Mutex::new(BTreeMap::new());

fn asked() -> MutexGuard<'static, BTreeMap<(u64, u64), Asked>> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the disk if it answers within `patience`.
pub fn answers(disk: Disk, patience: Duration) -> Result<Disk, OpenError> {
    let name = disk.name().clone();
    let before = asked().remove(&disk.identity());
    if let Some(Asked { disk: first, ticket, since }) = before {
        if let Err(ticket) = ticket.wait_for(patience.saturating_sub(since.elapsed())) {
            return Err(late(Asked { disk: first, ticket, since }, &name));
        }
    }
    let since = Instant::now();
    let memory = Aligned::zeroed(disk.properties().block.max(4096) as usize);
    match disk.start(Request::read(0, Buffers::whole(&memory))).wait_for(patience) {
        // An error is for the reader of the disk to find.
        Ok(_) => Ok(disk),
        Err(ticket) => Err(late(Asked { disk, ticket, since }, &name)),
    }
}

fn late(asking: Asked, name: &Arc<str>) -> OpenError {
    asked().insert(asking.disk.identity(), asking);
    OpenError::Transfer(Error::new(Class::Timeout, name, "it does not answer"))
}
