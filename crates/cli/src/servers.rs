//! Finds the processes that serve a pool to a kernel.

use std::path::Path;

use conquest::{Pool, SessionStatus};

use crate::mounts::Mounted;
use crate::{guard, mounts};

/// The process that serves the pool to a kernel.
pub fn of_pool(pool: &Path) -> Option<SessionStatus> {
    Pool::users(pool).ok()?.into_iter().find(SessionStatus::is_mount)
}

/// The servers of that mount, wherever else it is mounted: from the pool, or else from their guards.
pub fn of(mounted: &Mounted) -> Vec<u32> {
    let places = mounts::of(&mounted.source).unwrap_or_default();
    let number = |dir: &Path| places.iter().rev().find(|place| place.dir == dir).map(|place| &place.number);
    let is_its = |dir: &Path| number(dir).is_none_or(|number| *number == mounted.number);
    match of_pool(&mounted.source) {
        Some(server) if server.mountpoint.as_deref().is_none_or(is_its) => vec![server.pid],
        Some(_) => Vec::new(),
        None => guard::guarded(&mounted.source),
    }
}
