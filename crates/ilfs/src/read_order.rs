//! Which replica of a segment is read, and how long the reader waits for it.
//!
//! It chooses the replica that should answer first, by the recent read times of its region and the bytes queued there. If
//! that takes several times as long, the next one is asked too. One read in so many goes to the second best replica, so
//! that its recovery is noticed; none goes to a region that does not answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use exraid::Layout;
use pram::Session;

use super::error::{Error, Result};
use super::table::{Health, Segment, KEY};
use super::Log;

/// How long a reader waits for the best replica: so many times as long as it should take, within bounds.
const HEDGE: u32 = 4;
pub(super) const HEDGE_LEAST: Duration = Duration::from_millis(50);
const HEDGE_MOST: Duration = exraid::LATE;
/// One of so many reads goes to the second best replica, so that its recovery is noticed.
const TRIED: u64 = 64;

/// A replica that may be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub slot: u32,
    /// How long a reader waits for it, if there are others.
    pub patience: Option<Duration>,
}

/// How long a reader waits for a replica that should take so many seconds. For a region that stood still, with hardly any
/// speed left, these may be more than a `Duration` can hold.
fn hedge(takes: f64) -> Duration {
    Duration::try_from_secs_f64(takes * f64::from(HEDGE)).unwrap_or(HEDGE_MOST).clamp(HEDGE_LEAST, HEDGE_MOST)
}

impl Log {
    /// The replicas of a segment that can be read, in the order in which they should answer a read of `bytes`.
    pub(super) fn order(&self, session: &Session, slot: u32, segment: &Segment, bytes: u64) -> Result<Vec<Candidate>> {
        if segment.replica.is_none() {
            let is_there = self.area_of(session, slot)?.region.is_some();
            return Ok(is_there.then_some(Candidate { slot, patience: None }).into_iter().collect());
        }
        if !self.knows(self.changes(session)?) {
            self.refresh(session)?;
        }
        let table = self.at.table(session.memory());
        let homes = session.read(KEY, || match table.find(segment.sequence)? {
            // It may lie elsewhere by now.
            Some((slot, now)) => table.homes(slot, &now),
            None => table.homes(slot, segment),
        })?;
        let mut timed = Vec::with_capacity(homes.len());
        for home in homes.iter().filter(|home| !home.partial) {
            let area = self.known_area_of(session, home.slot)?;
            let Some(region) = &area.region else { continue };
            let performance = region.performance();
            let speed = if performance.read.speed > 0.0 {
                performance.read.speed
            } else {
                performance.read.usual_speed.max(1e6)
            };
            let takes = performance.read.median.as_secs_f64() + (performance.read.queued_bytes + bytes) as f64 / speed;
            // A region that does not answer comes behind those that do.
            let stuck = if performance.is_stuck() { performance.oldest.as_secs_f64() } else { 0.0 };
            // A region that stutters comes behind others, even if it is idle now. A mirror avoids its stuttering member
            // itself.
            let stutters = performance.stutter.is_some() && region.layout() != Layout::Mirror;
            timed.push(((home.health == Health::Failed, stutters), takes + stuck, home.slot, performance.is_stuck()));
        }
        timed.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let may_try = timed.get(1).is_some_and(|(key, _, _, is_stuck)| !key.0 && !is_stuck);
        if may_try && self.readings.fetch_add(1, Ordering::Relaxed) % TRIED == 0 {
            timed.swap(0, 1);
        }
        let alone = timed.len() == 1;
        let candidate = |(_, takes, slot, _): ((bool, bool), f64, u32, bool)| Candidate {
            slot,
            patience: (!alone).then(|| hedge(takes)),
        };
        Ok(timed.into_iter().map(candidate).collect())
    }

    /// Does the region of a slot not answer?
    pub(super) fn is_stuck(&self, session: &Session, slot: u32) -> bool {
        let region = self.known_area_of(session, slot).ok().and_then(|area| area.region.clone());
        region.is_some_and(|region| region.performance().is_stuck())
    }

    /// The error when no replica of the segment in that slot is there.
    pub(super) fn missing(&self, session: &Session, slot: u32) -> Error {
        match self.area_of(session, slot) {
            Ok(area) => Error::Missing(area.number),
            Err(e) => e,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: one of two replicas lay on a disk that had hung for half a minute; the server panicked, and reading the
    /// other failed.
    #[test]
    fn one_that_stands_still_is_waited_for_as_long_as_any() {
        for (takes, hedged) in
            [(0.0, 50), (0.05, 200), (1e3, 1000), (1e300, 1000), (f64::INFINITY, 1000), (f64::NAN, 1000)]
        {
            assert_eq!(hedge(takes), Duration::from_millis(hedged), "{takes}");
        }
    }
}
