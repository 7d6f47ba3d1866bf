//! Segments that are left alone for a while: a write to them may be under way, or they could not be read.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use pram::clock::Clock;
use pram::Session;

use super::error::{Error, Result};
use super::table::{slot_in, KEY};
use super::Log;

/// How long a segment is left alone: if a part may be on its way to a disk; if it could not be read.
pub(super) const SOON: Duration = Duration::from_secs(2);
pub(super) const LATER: Duration = Duration::from_secs(60);
/// After so long no request is under way any more that was when the segment was set aside.
pub(super) const FINISHED_AFTER: Duration = Duration::from_secs(300);
/// Segments that are set aside at most.
pub(super) const ASIDE: usize = 10_000;

/// Which segments took no more parts at one time.
pub struct Closed {
    at: Instant,
    /// All with lower numbers, except those that were open.
    below: u64,
    open: HashSet<u64>,
}

/// Segments that are left alone: since when, and until when.
pub struct Aside(HashMap<u64, (Instant, Instant)>, Clock);

impl Aside {
    pub fn new(clock: &Clock) -> Aside {
        Aside(HashMap::new(), clock.clone())
    }

    pub fn add(&mut self, sequence: u64, rest: Duration) {
        let now = self.1.instant();
        if self.0.len() >= ASIDE {
            self.0.retain(|_, (_, until)| *until > now);
        }
        let (_, until) = self.0.entry(sequence).or_insert((now, now));
        *until = (*until).max(now + rest);
    }

    pub fn remove(&mut self, sequence: u64) {
        self.0.remove(&sequence);
    }

    pub fn has(&self, sequence: u64) -> bool {
        self.0.get(&sequence).is_some_and(|(_, until)| *until > self.1.instant())
    }
}

impl Log {
    pub(super) fn aside(&self) -> std::sync::MutexGuard<'_, Aside> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a segment alone for a while, unless it is already.
    pub(super) fn set_aside(&self, sequence: u64, rest: Duration) {
        self.aside().add(sequence, rest);
    }

    pub(super) fn is_aside(&self, sequence: u64) -> bool {
        self.aside().has(sequence)
    }

    /// Can no request be under way to the slots of a segment, by any process? This process has none that it gave up and
    /// the disk has not answered. Others have none at all, as their [locks](Session::may_others_transfer) show; if
    /// others are at work, the segment must have been closed for long. Requests to it have ended by then, or were given
    /// up, and then their targets take nothing more.
    pub(super) fn is_quiet(&self, session: &Session, sequence: u64) -> Result<bool> {
        if self.has_pending(session, sequence)? {
            return Ok(false);
        }
        if self.is_alone(session)? {
            return Ok(true);
        }
        if session.may_the_gone_transfer()? {
            return Ok(false);
        }
        let table = self.at.table(session.memory());
        let seen = session.read(KEY, || {
            let all = table.head()?;
            let mut open = HashSet::new();
            let wholes = table.regions()?.into_iter().map(|(_, region)| region.whole);
            for slot in all.heads.into_iter().chain(wholes).filter_map(slot_in) {
                open.insert(table.get(slot)?.sequence);
            }
            Ok::<_, Error>(Closed { at: self.clock.instant(), below: all.sequence, open })
        })?;
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        // Keeps the last snapshot that is old enough, and the younger ones.
        while closed.get(1).is_some_and(|next| self.clock.since(next.at) >= LATER) {
            closed.pop_front();
        }
        if closed.back().is_none_or(|last| self.clock.since(last.at) >= LATER / 8) {
            closed.push_back(seen);
        }
        let oldest = closed.front().filter(|oldest| self.clock.since(oldest.at) >= LATER);
        Ok(oldest.is_some_and(|oldest| sequence < oldest.below && !oldest.open.contains(&sequence)))
    }

    /// Has this process no writer, and no other process a request under way?
    fn is_alone(&self, session: &Session) -> Result<bool> {
        Ok(self.writers.load(Ordering::SeqCst) == 0 && !session.may_others_transfer()?)
    }

    /// Has this process a request other than a read under way to a slot of the segment?
    fn has_pending(&self, session: &Session, sequence: u64) -> Result<bool> {
        let table = self.at.table(session.memory());
        let slots: Vec<u32> = session.read(KEY, || match table.find(sequence)? {
            Some((slot, segment)) => Ok(table.replicas(slot, &segment)?.into_iter().map(|(slot, _)| slot).collect()),
            None => Ok::<_, Error>(Vec::new()),
        })?;
        Ok(slots.into_iter().filter_map(|slot| self.lies(session, slot).ok()).any(|lies| {
            let end = lies.at + self.segment();
            let writes = |one: &exraid::Pending| one.kind != exraid::Kind::Read;
            let is_there = |one: &exraid::Pending| one.range.start < end && lies.at < one.range.end;
            lies.region.pending().iter().any(|one| writes(one) && is_there(one))
        }))
    }

    /// Can nothing be under way to a segment that takes no more parts?
    pub(super) fn is_finished_by_now(&self, session: &Session, sequence: u64) -> bool {
        self.is_alone(session).unwrap_or(false)
            || self.aside().0.get(&sequence).is_some_and(|(since, _)| self.clock.since(*since) > FINISHED_AFTER)
    }

    pub(super) fn under_way(&self) -> std::sync::MutexGuard<'_, Aside> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
