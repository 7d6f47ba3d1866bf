//! Access times: when reading updates them (`relatime` and the like).

use super::{now, Fs};
use crate::attr::Ino;
use crate::error::Result;
use crate::layout::RawInode;

/// Access times older than this are updated by any read.
const DAY: i64 = 24 * 3600 * 1_000_000_000;

/// When reading updates access times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Atime {
    /// If the old one is not younger than the last change, or a day old.
    #[default]
    Relative,
    Never,
    Always,
}

impl Fs {
    /// Updates the access time after a read, if the policy says so.
    #[inline(always)]
    pub(super) fn note_access(&self, ino: Ino, raw: &RawInode) -> Result<()> {
        let policy = self.policy.get();
        let due = match policy.atime {
            Atime::Never => false,
            Atime::Always => true,
            Atime::Relative => {
                raw.atime <= raw.mtime || raw.atime <= raw.ctime || now().0.saturating_sub(raw.atime) >= DAY
            }
        };
        let is_exempt = policy.read_only || policy.nodiratime && raw.is_dir();
        if due && !is_exempt {
            let time = self.tick();
            if time.0 != raw.atime {
                self.store_atime(ino, time)?;
            }
        }
        Ok(())
    }
}
