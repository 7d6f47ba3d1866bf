//! References: what each process holds open, by key.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Runtime;
use crate::error::Result;

impl Runtime {
    pub fn keys(&self) -> u64 {
        self.keys
    }

    fn refs_base(&self, session: u32) -> u64 {
        self.at.refs + u64::from(session) * (self.keys * 4).next_multiple_of(4096)
    }

    /// The number of references that `session` holds to `key`.
    #[inline(always)]
    pub fn refs(&self, session: u32, key: u64) -> &AtomicU32 {
        self.half(self.refs_base(session) + key.min(self.keys - 1) * 4)
    }

    /// Does any session hold a reference to anything?
    pub fn any_reference(&self) -> Result<bool> {
        for n in self.live() {
            let (base, end) = (self.refs_base(n), self.refs_base(n + 1));
            let mut at = base;
            while let Some((from, to)) = self.touched(at).filter(|(from, _)| *from < end) {
                at = to.min(end);
                if !self.map.is_zero(from.max(base), at - from.max(base))? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The keys that `session` holds references to.
    pub fn referenced(&self, session: u32) -> Vec<u64> {
        let (base, end) = (self.refs_base(session), self.refs_base(session) + self.keys * 4);
        let mut found = Vec::new();
        let mut at = base;
        while let Some((from, to)) = self.touched(at).filter(|(from, _)| *from < end) {
            at = to.min(end);
            let keys = (from.max(base) - base) / 4..(at - base) / 4;
            found.extend(keys.filter(|key| self.refs(session, *key).load(Ordering::SeqCst) > 0));
        }
        found
    }

    /// The next stretch of the segment, at or after `from`, that has ever been touched.
    fn touched(&self, from: u64) -> Option<(u64, u64)> {
        use rustix::fs::{seek, SeekFrom};
        let Some(file) = &self.file else { return (from < self.at.end).then_some((from, self.at.end)) };
        let start = seek(file, SeekFrom::Data(from)).ok()?;
        let end = seek(file, SeekFrom::Hole(start)).ok()?;
        (end > from).then_some((start, end))
    }

    /// Drops all references of a session.
    pub(crate) fn clear_refs(&self, session: u32) {
        self.clear(self.refs_base(session), (self.keys * 4).next_multiple_of(4096));
    }
}
