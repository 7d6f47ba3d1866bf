//! The check of everything that the region holds, offline or live, and mark-and-sweep.

use serde::Serialize;

use crate::error::Result;
use crate::node::Fs;

/// What a check found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub inodes: u64,
    pub directories: u64,
    pub entries: u64,
    /// Bytes in live objects.
    pub bytes: u64,
    /// Objects and bytes that nothing refers to: what a crash leaves, harmless, swept by `repair`.
    pub leaked_objects: u64,
    pub leaked_bytes: u64,
    /// Inodes without a name or reference: what a crash leaves of open unlinked files.
    pub orphans: u64,
    /// Damage: each a sentence with the inode or offset. Empty: the pool is clean.
    pub problems: Vec<String>,
    /// What `repair` did about them.
    pub repaired: Vec<String>,
}

#[allow(unused_variables)]
impl Fs {
    /// Checks everything; with `repair`, mends what it finds and sweeps leaks. Others may be working on
    /// the pool meanwhile. `progress(done, total)` in inodes.
    pub fn fsck(&self, repair: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
        todo!()
    }
}
