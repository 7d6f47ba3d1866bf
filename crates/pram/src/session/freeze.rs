//! All operations stand still: for a commit, a save, a repair.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Op, Session};
use crate::error::{Error, Result};
use crate::memory::BLOCK;
use crate::runtime;

/// All operations stand still while this lives.
pub struct Frozen<'a> {
    session: &'a Session,
    since: Instant,
}

impl<'a> Frozen<'a> {
    /// The session that froze the pool.
    pub fn session(&self) -> &'a Session {
        self.session
    }

    /// Begins an operation in spite of the freeze: for the process that froze the pool.
    pub fn begin(&self) -> Result<Op<'a>> {
        let session = self.session;
        (0..session.rt.slots())
            .find(|slot| session.rt.try_slot(*slot))
            .map(|slot| session.operation(slot))
            .ok_or_else(|| Error::Unusable("all transaction slots are taken while the pool is frozen".into()))
    }
}

impl Frozen<'_> {
    /// Marks the content of blocks that have no place and that no commit holds. So it goes with the commit of this
    /// instant, and lies in the backing as an object does. Does nothing without a backing.
    ///
    /// Ordered steps for each chunk that may have such blocks: 1. They are marked. 2. The chunk is taken off the list.
    /// (Else the leader of the next commit, after a death in between, would leave them out.)
    pub fn mark_fresh(&self) -> Result<()> {
        let Session { memory, rt, .. } = self.session;
        let (Some(marks), durable) = (memory.marks(), rt.durable()) else { return Ok(()) };
        let mut from = 0;
        while let Some(chunk) = rt.next_fresh(from) {
            // A failure is damage: fsck reports it.
            let blocks = memory.blocks_of(chunk).unwrap_or_default();
            // 1.
            for (block, _) in blocks.iter().filter(|(_, descriptor)| descriptor.is_fresh(durable)) {
                marks.mark(*block, BLOCK)?;
            }
            // 2.
            rt.drop_fresh(chunk);
            from = chunk + 1;
        }
        Ok(())
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.session.rt.thaw();
        self.session.rt.note_standstill(self.since.elapsed());
    }
}

impl Session {
    /// Waits until no operation is under way, and makes new ones wait.
    pub fn freeze(&self) -> Result<Frozen<'_>> {
        while !self.rt.try_freeze() {
            self.wait_thaw()?;
        }
        let frozen = Frozen { session: self, since: Instant::now() };
        std::sync::atomic::fence(Ordering::SeqCst);
        self.memory.step();
        self.drain()?;
        Ok(frozen)
    }

    /// Waits until every operation that is under way now has ended.
    pub fn drain(&self) -> Result<()> {
        for slot in 0..self.rt.slots() {
            let (before, Some(_)) = self.rt.slot_state(slot) else { continue };
            let mut rounds = 0u32;
            while let (now, Some(session)) = self.rt.slot_state(slot) {
                if now != before {
                    break;
                }
                self.memory.wait_by(|| runtime::pause(rounds));
                rounds += 1;
                if rounds % 100 == 0 && !self.is_alive(session) {
                    self.reap()?;
                }
            }
        }
        Ok(())
    }
}
