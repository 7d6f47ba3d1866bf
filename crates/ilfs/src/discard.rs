//! Freed segments: their slots are discarded on the disk (trim), and become free.
//!
//! A slot is in no list while its disk discards its content, so that no process writes there meanwhile. The table has
//! the process that does it. If that process dies, the slot is an *orphan*. The next process starts over: the first one
//! that gives back any slot after the pool was opened or a process died, one that removes the region, or a repair. A
//! check reports the number of orphans: a crash leaves them, and they are no damage.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use exraid::{Op as Transfer, LATE};
use pram::session::assert_may_wait;
use pram::Session;

use super::error::{Error, Result};
use super::table::{SlotState, KEY};
use super::Log;

/// The pool, and the number of a slot.
type Slots = HashSet<([u8; 16], u32)>;

/// Slots that this process is giving back, by pool.
static GIVING_BACK: Mutex<Option<Slots>> = Mutex::new(None);

fn giving_back() -> MutexGuard<'static, Option<Slots>> {
    GIVING_BACK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The slots that a thread is giving back, until it is dropped.
pub(super) struct Discarding {
    pool: [u8; 16],
    slots: Vec<u32>,
}

impl Discarding {
    pub fn of(session: &Session) -> Discarding {
        Discarding { pool: session.memory().info.uuid, slots: Vec::new() }
    }

    /// The process as the table has it.
    pub fn by(&self) -> u64 {
        u64::from(std::process::id())
    }

    /// To be called before the table has it: otherwise another thread takes the slot for an orphan.
    pub fn begin(&mut self, slot: u32) {
        giving_back().get_or_insert_default().insert((self.pool, slot));
        self.slots.push(slot);
    }
}

impl Drop for Discarding {
    fn drop(&mut self) {
        let mut all = giving_back();
        self.slots.iter().for_each(|slot| _ = all.as_mut().map(|all| all.remove(&(self.pool, *slot))));
    }
}

impl Log {
    /// Frees at most `most` segments that were freed in epochs before `durable`. The commits of these must be durable
    /// ([`pram::session`]), and no replica of persistent RAM that may yet be put back may lead there. Their disks get the
    /// room back. Returns how many.
    pub fn reclaim(&self, session: &Session, durable: u64, most: u64) -> Result<u64> {
        assert_may_wait();
        self.check_failed()?;
        self.end_late(session)?;
        if !self.are_orphans_known.swap(true, Ordering::Relaxed) {
            self.adopt_orphans(session)?;
        }
        for done in 0..most {
            // A write of this process to the slot may yet reach the disk: the slot waits once more.
            if let Some(slot) = self.first_is_written_to(session)? {
                match self.requeue(session, slot, durable)? {
                    true => continue,
                    false => return Ok(done),
                }
            }
            // No other process has the slot between the two. Writes that timed out are in segments that are marked as
            // failed.
            let mut discarding = Discarding::of(session);
            let taken = self.change(session, |change| {
                let taken = change.take_freed(durable, discarding.by(), self.seconds().into())?;
                taken.iter().for_each(|(slot, _)| discarding.begin(*slot));
                Ok(taken)
            })?;
            let Some((slot, state)) = taken else { return Ok(done) };
            if state == SlotState::Discarding {
                let is_kept = self.is_wanted(session, slot)?;
                if !is_kept {
                    self.discard(session, slot);
                }
                self.change(session, |change| change.discarded(slot, is_kept, discarding.by()))?;
            }
        }
        Ok(most)
    }

    /// The first of the freed slots, if a write of this process to it has not ended.
    fn first_is_written_to(&self, session: &Session) -> Result<Option<u32>> {
        let table = self.at.table(session.memory());
        let Some(slot) = session.read(KEY, || Ok::<_, Error>(super::table::slot_in(table.head()?.freed)))? else {
            return Ok(None);
        };
        let Ok(area) = self.known_area_of(session, slot) else { return Ok(None) };
        let Some(region) = &area.region else { return Ok(None) };
        let at = u64::from(slot.saturating_sub(area.slots.start)) * self.segment();
        Ok(self.is_written_to(&**region, at).then_some(slot))
    }

    /// Puts that slot at the end of the freed ones, if it is the first and may be used; returns whether it did.
    fn requeue(&self, session: &Session, slot: u32, durable: u64) -> Result<bool> {
        self.change(session, |change| {
            let epoch = session.epoch()?;
            change.requeue_freed(slot, durable, epoch)
        })
    }

    /// Is a segment that becomes free needed for dirty or promised blocks, or for coming writes, so that its host keeps
    /// its room?
    fn is_wanted(&self, session: &Session, slot: u32) -> Result<bool> {
        let area = self.area_of(session, slot)?;
        if !area.grows || !area.is_taking {
            return Ok(false);
        }
        let table = self.at.table(session.memory());
        let all = self.head(session)?;
        let (needed, ahead) = (self.physical(&all) + all.promised + session.heap().unplaced(), self.ahead());
        let without = self.content_of(self.backed_of(&table, &all)?.saturating_sub(1));
        Ok(without < needed + ahead || self.held(session)? < ahead)
    }

    /// Discards a slot on its disk. A failure only costs room.
    pub(super) fn discard(&self, session: &Session, slot: u32) {
        // Not on a late region: a request under way there would keep it from being opened.
        let Some(lies) = self.lies(session, slot).ok().filter(|lies| !lies.region.is_late()) else { return };
        let range = lies.at..lies.at + self.segment();
        if let Err(e) = lies.region.ask(Transfer::Discard(range).into(), LATE).result {
            tracing::warn!("giving back a segment: {e}");
        }
    }

    /// Slots that no living process is discarding, each with the process that was.
    pub fn orphans(&self, session: &Session) -> Result<Vec<(u32, u64)>> {
        let (table, pool) = (self.at.table(session.memory()), session.memory().info.uuid);
        let mut orphans = Vec::new();
        for slot in session.read(KEY, || table.used_slots())? {
            let segment = session.read(KEY, || table.get(slot))?;
            if segment.state == SlotState::Discarding {
                orphans.push((slot, segment.stamp));
            }
        }
        if orphans.is_empty() {
            return Ok(orphans);
        }
        // Asked for afterwards: a process that has ended since has put its slots into their list.
        let alive: HashSet<u64> = session.runtime().sessions().iter().map(|one| u64::from(one.pid)).collect();
        let own = u64::from(std::process::id());
        let mine = giving_back();
        let is_mine = |slot: u32| mine.as_ref().is_some_and(|all| all.contains(&(pool, slot)));
        orphans.retain(|(slot, by)| if *by == own { !is_mine(*slot) } else { !alive.contains(by) });
        Ok(orphans)
    }

    /// To be called after the death of a process: the next reclaim looks for its slots.
    pub fn look_for_orphans(&self) {
        self.are_orphans_known.store(false, Ordering::Relaxed);
    }

    /// Frees orphans; returns how many.
    pub fn adopt_orphans(&self, session: &Session) -> Result<u64> {
        assert_may_wait();
        let mut adopted = 0;
        for (slot, from) in self.orphans(session)? {
            let mut discarding = Discarding::of(session);
            let is_it = self.change(session, |change| {
                discarding.begin(slot);
                change.take_orphan(slot, from, discarding.by())
            })?;
            if is_it {
                self.discard(session, slot);
                self.change(session, |change| change.discarded(slot, false, discarding.by()))?;
                adopted += 1;
            }
        }
        Ok(adopted)
    }
}
