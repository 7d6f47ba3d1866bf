//! Regions that do not answer: who can do without one goes round it, who cannot waits, and nothing is given up for it.
//!
//! | who | does |
//! | --- | --- |
//! | a writer, with another region that takes content and answers | writes what was not answered to that one; the late one takes nothing ([`Cause::Late`]) until it answers |
//! | a writer without one | waits, and says so once |
//! | a reader with another copy | reads that |
//! | a reader without one | waits, unless it is background work, which leaves it for later |
//!
//! A slot to which a request is under way that nobody waits for any more is used by nobody else before that has ended: it is marked as one
//! that failed, and loses the mark with the answer. (A process that is killed meanwhile leaves the mark.)
//!
//! [`Cause::Late`]: super::table::Cause::Late

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use exraid::Region;
use pram::Session;

use super::error::{Error, Result};
use super::table::{Segment, State};
use super::Log;

/// How often it is looked whether a region answers again.
pub(super) const GLANCE: Duration = Duration::from_millis(20);

/// A slot that may be written to yet, by a request that nobody waits for.
pub(super) struct LateSlot {
    slot: u32,
    at: u64,
    region: Arc<dyn Region>,
}

impl Log {
    /// Is there a region beside this one that takes content and answers?
    pub(super) fn can_go_round(&self, number: u32) -> bool {
        self.areas().taking().any(|(area, region)| area.number != number && !region.is_late())
    }

    /// Does it answer? Says so when that changes.
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

    /// Waits until one of these slots' regions answers.
    ///
    /// # Errors
    /// [`Error::Missing`] where none of them is there any more.
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

    /// Somebody has stopped to wait for what he wrote there.
    pub(super) fn add_late(&self, slot: u32, at: u64, region: &Arc<dyn Region>) {
        let late = LateSlot { slot, at, region: region.clone() };
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(late);
    }

    /// Slots that nothing is under way to any more may be used again.
    pub fn end_late(&self, session: &Session) -> Result<()> {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *late).into_iter().partition(|late| self.is_written_to(&*late.region, late.at));
        *late = left;
        drop(late);
        ended.iter().try_for_each(|late| {
            self.change(session, |change| {
                let segment = change.table().get(late.slot)?;
                let is_marked = segment.failed && (segment.state.is_used() || segment.state == State::Freed);
                match is_marked || segment.failed && segment.state == State::Copy {
                    true => change.put(late.slot, &Segment { failed: false, ..segment }),
                    false => Ok(()),
                }
            })
        })
    }

    /// Is a write under way to the slot that begins there?
    pub(super) fn is_written_to(&self, region: &dyn Region, at: u64) -> bool {
        let is_there = |pending: &exraid::Pending| {
            pending.kind == exraid::Kind::Write && pending.range.start < at + self.segment() && at < pending.range.end
        };
        region.pending().iter().any(is_there)
    }
}
