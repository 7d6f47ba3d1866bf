//! Step 1 of a replica: a segment that takes no more parts, and a free slot for it in another domain.

use std::sync::PoisonError;

use pram::Session;

use super::lacking::counts;
use crate::avoided::{LATER, SOON};
use crate::error::{Error, Result};
use crate::placement::Choice;
use crate::room::RESERVE;
use crate::table::{Health, Segment, SlotState, KEY};
use crate::{Class, Log};

/// Slots that replicas leave to the cleaner, beside its reserve: one part in so many, and at least so many.
const CLEANED: u64 = 50;
const LEAST: u64 = 4;
impl Log {
    /// The segment and its slot, after it was closed; `None` if it is gone, or being cleaned.
    pub(crate) fn closed(&self, session: &Session, slot: u32, sequence: u64) -> Result<Option<(u32, Segment)>> {
        self.change(session, |change| {
            let Some((now, segment)) = change.table().find(sequence)?.filter(|(now, _)| *now == slot) else {
                return Ok(None);
            };
            if segment.state == SlotState::Open {
                self.close(change, now, segment)?;
            }
            let segment = change.table().get(now)?;
            Ok((segment.state == SlotState::Full).then_some((now, segment)))
        })
    }

    /// Step 1: a slot in a domain that has no replica yet; `within`: in one of these regions, the first that has room.
    pub(super) fn take_slot(
        &self,
        session: &Session,
        of: u32,
        segment: &Segment,
        within: Option<&[u32]>,
    ) -> Result<u32> {
        let table = self.at.table(session.memory());
        let homes = session.read(KEY, || table.homes(of, segment))?;
        let has = |choice: &Choice| homes.iter().any(|home| home.domain == choice.area.domain && counts(home));
        let mut choices = self.choices(Class::None);
        choices.retain(|choice| homes.iter().all(|home| home.n != choice.area.n) && !self.is_full(choice.area.number));
        match within {
            None => choices.retain(|choice| !has(choice)),
            Some(within) => {
                let rank = |choice: &Choice| within.iter().position(|number| *number == choice.area.number);
                choices.retain(|choice| rank(choice).is_some());
                choices.sort_by_key(rank);
                let others = |choice: &Choice| homes.iter().filter(|home| home.domain == choice.area.domain).count();
                choices.retain(|choice| others(choice) == 0);
            }
        }
        while let Some(choice) = choices.first() {
            enum Found {
                Taken(u32),
                Next(u32),
                Above(u32),
                None,
            }
            let found = self.change(session, |change| {
                // Replicas leave the slots that the cleaner and the blocks waiting in memory need.
                let waits = change.tx.unplaced() / u64::from(self.content_of_segment());
                let all = change.head()?;
                if all.spare <= RESERVE + waits + (all.slots / CLEANED).max(LEAST) {
                    return Ok(Found::None);
                }
                let is_there = change.table().find(segment.sequence)?.is_some_and(|(slot, _)| slot == of);
                let region = change.table().region(choice.area.n)?;
                let slot = match (region.next_reserved(), region.next_free()) {
                    _ if !is_there || region.health() != Health::Taking => return Ok(Found::None),
                    (Some(slot), _) if !choice.area.grows || region.held > RESERVE => slot,
                    (_, Some(slot)) if choice.area.grows => return Ok(Found::Next(slot)),
                    (_, Some(slot)) => slot,
                    _ => return Ok(Found::None),
                };
                if !self.is_below_high_water(&choice.area, slot) {
                    return Ok(Found::Above(slot));
                }
                change.begin_replica(of, slot)?;
                Ok(Found::Taken(slot))
            })?;
            match found {
                Found::Taken(slot) => {
                    choice.take();
                    return Ok(slot);
                }
                Found::Above(slot) => self.raise_high_water(session, slot)?,
                Found::Next(slot) => match self.prepare(session, slot) {
                    Err(Error::NoSpace) => {
                        self.set_full(choice.area.number);
                        choices.remove(0);
                    }
                    done => done?,
                },
                Found::None => _ = choices.remove(0),
            }
        }
        Err(Error::NoSpace)
    }

    /// The host of that region has no room for replicas: it is not asked for a while, longer each time.
    pub(crate) fn set_full(&self, number: u32) {
        let (mut full, now) = (self.full.lock().unwrap_or_else(PoisonError::into_inner), self.clock.instant());
        let (until, rest) = full.entry(number).or_insert((now, SOON / 2));
        *rest = (*rest * 2).min(LATER);
        *until = now + *rest;
    }

    pub(crate) fn is_full(&self, number: u32) -> bool {
        let full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        full.get(&number).is_some_and(|(until, _)| *until > self.clock.instant())
    }
}
