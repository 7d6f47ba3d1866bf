//! All operations stand still: for a commit, a save, a repair.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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

/// How long all others wait for an operation that stands still, before they go on. Each further time in a row they wait twice as long,
/// so that a freeze comes about in the end on a host that hardly gets on.
const PATIENCE: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(1);
/// When an operation that stands still is reported.
const REPORTED: Duration = Duration::from_secs(2);

impl Session {
    /// Waits until no operation is under way, and makes new ones wait. Where the process of an operation stands still, the others go on
    /// until that has ended.
    pub fn freeze(&self) -> Result<Frozen<'_>> {
        let mut patience = PATIENCE;
        loop {
            while !self.rt.try_freeze() {
                self.wait_thaw()?;
            }
            let frozen = Frozen { session: self, since: Instant::now() };
            std::sync::atomic::fence(Ordering::SeqCst);
            self.memory.step();
            let Some(slot) = self.drain_for(Some(patience))? else { return Ok(frozen) };
            drop(frozen);
            self.drain_slot(slot)?;
            patience = (patience * 2).min(MOST);
        }
    }

    /// Waits until every operation that is under way now has ended.
    pub fn drain(&self) -> Result<()> {
        self.drain_for(None).map(drop)
    }

    /// The same. When so much time has passed it returns a slot whose operation stands still, if there is one.
    fn drain_for(&self, patience: Option<Duration>) -> Result<Option<u32>> {
        let before: Vec<_> = (0..self.rt.slots()).map(|slot| self.rt.slot_state(slot)).collect();
        let start = Instant::now();
        let under_way = before.iter().zip(0..).filter(|((_, session), _)| session.is_some());
        for ((used, _), slot) in under_way.clone() {
            while self.wait_for_slot(slot, *used)? {
                if self.shared.is_none() || patience.is_none_or(|patience| start.elapsed() < patience) {
                    continue;
                }
                let mut stuck = under_way.clone().filter(|((used, _), slot)| self.rt.slot_state(*slot).0 == *used);
                if let Some((_, slot)) = stuck.find(|(_, slot)| !self.may_go_on(*slot)) {
                    return Ok(Some(slot));
                }
            }
        }
        Ok(None)
    }

    /// Waits some milliseconds for a use of a slot to end; true if it has not.
    fn wait_for_slot(&self, slot: u32, used: u64) -> Result<bool> {
        for round in 0..100 {
            if self.rt.slot_state(slot).0 != used {
                return Ok(false);
            }
            self.memory.wait_by(|| runtime::pause(round));
        }
        match self.rt.slot_state(slot).1.is_none_or(|session| self.is_alive(session)) {
            // What it waits for may be another operation's.
            true => self.urge_all(),
            false => _ = self.reap()?,
        }
        Ok(true)
    }

    /// Waits for an operation that stands still.
    fn drain_slot(&self, slot: u32) -> Result<()> {
        let ((used, session), start) = (self.rt.slot_state(slot), Instant::now());
        let mut is_reported = session.is_none();
        while self.wait_for_slot(slot, used)? {
            if !is_reported && start.elapsed() > REPORTED {
                let pid = self.rt.sessions().into_iter().find(|s| Some(s.index) == session).map_or(0, |s| s.pid);
                tracing::warn!(
                    "process {pid} stands still in the midst of an operation (stopped, frozen, or held by a debugger): nothing becomes \
                     durable, and what it has locked stays locked, until it goes on (`kill -CONT {pid}`) or ends"
                );
                is_reported = true;
            }
        }
        Ok(())
    }
}
