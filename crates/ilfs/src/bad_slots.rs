//! Bad slots: a write to them failed, and their content lies elsewhere since.
//!
//! Many failures pass: of a cable, of a controller, of a disk that somebody puts back. A region would lose a slot by each. So
//! a bad slot is tested after a while, and is free again if its disk takes a write of all of it.
//!
//! Ordered steps:
//! 1. No process has a request under way to the slot. (Else: it hits what is written there later.)
//! 2. Zeros are written to all of it. The slot stays bad, so that a death in between leaves nothing.
//! 3. It is free.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use exraid::{Aligned, Buffers, Request, LATE};
use pram::session::assert_may_wait;
use pram::Session;

use super::areas::Lies;
use super::discard::Discarding;
use super::error::Result;
use super::place::BLOCK;
use super::table::{SlotState, KEY};
use super::Log;

/// Seconds after a failure before the slot is tested.
pub const REST: u64 = 60;
/// How often to look for slots to test.
const SELDOM: Duration = Duration::from_secs(60);
/// Slots that are tested at a time.
const SOME: usize = 16;
/// Bytes of a request.
const PIECE: u64 = 1 << 20;

impl Log {
    /// Tests some bad slots; returns how many are free now. To be called with the long lock
    /// [`CLEANING`](super::table::CLEANING): one process does this at a time.
    pub fn test_bad(&self, session: &Session) -> Result<u64> {
        assert_may_wait();
        let is_due = self.tested().is_none_or(|tested| self.clock.since(tested) >= SELDOM);
        if !is_due || self.head(session)?.bad == 0 {
            return Ok(0);
        }
        let bad = self.rested(session)?;
        if bad.len() <= SOME {
            *self.tested() = Some(self.clock.instant());
        }
        // 1.
        if bad.is_empty() || session.may_others_transfer()? {
            return Ok(0);
        }
        let (mut freed, mut failed_in) = (0, Vec::new());
        for (slot, since) in bad.into_iter().take(SOME) {
            let Ok(lies) = self.lies(session, slot) else { continue };
            let number = lies.region.number();
            // 1. A region that fails is left alone.
            if failed_in.contains(&number) || lies.region.is_late() || self.may_write_to(slot, &lies) {
                continue;
            }
            match self.test(&lies) {
                Ok(()) => freed += u64::from(self.end_test(session, slot, since)?),
                Err(e) => {
                    tracing::debug!("a bad slot of region {number} stays bad: {e}");
                    self.change(session, |change| change.set_still_bad(slot, self.seconds().into()))?;
                    failed_in.push(number);
                }
            }
        }
        Ok(freed)
    }

    fn tested(&self) -> std::sync::MutexGuard<'_, Option<std::time::Instant>> {
        self.tested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slots of regions in use that have been bad for a while, and since when.
    fn rested(&self, session: &Session) -> Result<Vec<(u32, u64)>> {
        let (areas, table, now) = (self.areas(), self.at.table(session.memory()), u64::from(self.seconds()));
        let mut rested = Vec::new();
        for slot in areas.taking().flat_map(|(area, _)| area.slots.clone()) {
            let segment = session.read(KEY, || table.get(slot))?;
            // After the clock was set back it is unknown for how long.
            let has_rested = segment.stamp > now || segment.stamp + REST <= now;
            if segment.state == SlotState::Bad && has_rested {
                rested.push((slot, segment.stamp));
            }
        }
        Ok(rested)
    }

    /// May a request of this process yet write to the slot?
    fn may_write_to(&self, slot: u32, lies: &Lies) -> bool {
        let is_late = self.late.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|late| late.slot == slot);
        is_late || self.is_written_to(&*lies.region, lies.at)
    }

    /// 2.
    fn test(&self, lies: &Lies) -> exraid::Result<()> {
        let zeros: Arc<Aligned> = Aligned::zeroed(PIECE.min(self.segment()) as usize);
        let len = zeros.len() as u64;
        debug_assert!(self.segment() % len == 0 && len % BLOCK == 0);
        (0..self.segment())
            .step_by(len as usize)
            .try_for_each(|at| lies.region.ask(Request::write(lies.at + at, Buffers::whole(&zeros)), LATE).result)
    }

    /// 3. False if it has another use meanwhile.
    fn end_test(&self, session: &Session, slot: u32, since: u64) -> Result<bool> {
        let mut discarding = Discarding::of(session);
        discarding.begin(slot);
        if !self.change(session, |change| change.end_bad(slot, since, discarding.by()))? {
            return Ok(false);
        }
        self.discard(session, slot);
        self.change(session, |change| change.discarded(slot, false, discarding.by()))?;
        Ok(true)
    }
}
