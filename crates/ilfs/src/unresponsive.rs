//! Regions that do not answer: a request that can do without one uses another, other requests wait, and no content is
//! given up.
//!
//! | request | action |
//! | --- | --- |
//! | a write, while another region takes content and answers | goes to that region; the late one takes nothing ([`Cause::Late`]) until it answers |
//! | another write | waits; the server log says so once |
//! | a read of content with another replica | reads that replica |
//! | another read | waits; background work leaves it for later |
//!
//! After a writer has stopped waiting for a request, its slot is not used again before the request has ended. The slot
//! is marked as failed, and loses the mark with the answer. (If the process is killed meanwhile, the mark stays:
//! the slot is [bad](super::bad_slots).)
//!
//! [`Cause::Late`]: super::table::Cause::Late

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use exraid::Region;
use pram::Session;

use super::error::{Error, Result};
use super::table::{Segment, SlotState};
use super::Log;

/// How often a waiting thread looks whether a region answers again.
pub(super) const GLANCE: Duration = Duration::from_millis(20);

/// A slot to which an abandoned request may yet write.
pub(super) struct LateSlot {
    pub slot: u32,
    at: u64,
    region: Arc<dyn Region>,
}

impl Log {
    /// Does another region take content and answer?
    pub(super) fn can_go_round(&self, number: u32) -> bool {
        self.areas().taking().any(|(area, region)| area.number != number && !region.is_late())
    }

    /// Does the region answer? Logs each change.
    pub(super) fn answers(&self, region: &dyn Region) -> bool {
        let (is_late, number) = (region.is_late(), region.number());
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if is_late && waits.insert(number) {
            tracing::warn!(
                "{}: region {number} does not answer: what only it has or can take waits for it",
                region.name()
            );
        }
        if !is_late && waits.remove(&number) {
            tracing::warn!("{}: region {number} answers again", region.name());
        }
        !is_late
    }

    /// Waits until the region of one of these slots answers.
    ///
    /// # Errors
    /// [`Error::Missing`] if none of them is there any more.
    pub(super) fn wait_for_one_of(&self, session: &Session, slots: &[u32]) -> Result<()> {
        loop {
            let (mut missing, mut is_one_there) = (None, false);
            for slot in slots {
                let area = self.known_area_of(session, *slot)?;
                match &area.region {
                    Some(region) if self.answers(&**region) => return Ok(()),
                    Some(_) => is_one_there = true,
                    None => missing = Some(area.number),
                }
            }
            match missing.filter(|_| !is_one_there) {
                Some(number) => return Err(Error::Missing(number)),
                None => std::thread::sleep(GLANCE),
            }
        }
    }

    /// Notes that the writer has stopped waiting for a request to that slot.
    pub(super) fn add_late(&self, slot: u32, at: u64, region: &Arc<dyn Region>) {
        let late = LateSlot { slot, at, region: region.clone() };
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(late);
    }

    /// Lets slots be used again whose abandoned requests have ended.
    pub fn end_late(&self, session: &Session) -> Result<()> {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *late).into_iter().partition(|late| self.is_written_to(&*late.region, late.at));
        *late = left;
        drop(late);
        ended.iter().try_for_each(|late| {
            self.change(session, |change| {
                let segment = change.table().get(late.slot)?;
                let is_marked = segment.failed && (segment.state.is_used() || segment.state == SlotState::Freed);
                match is_marked || segment.failed && segment.state == SlotState::Replica {
                    true => change.put(late.slot, &Segment { failed: false, ..segment }),
                    false => Ok(()),
                }
            })
        })
    }

    /// Is a write under way to the slot that begins at `at`?
    pub(super) fn is_written_to(&self, region: &dyn Region, at: u64) -> bool {
        let is_there = |pending: &exraid::Pending| {
            pending.kind == exraid::Kind::Write && pending.range.start < at + self.segment() && at < pending.range.end
        };
        region.pending().iter().any(is_there)
    }
}
