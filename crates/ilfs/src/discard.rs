//! Freed segments: their slots are given back to their disk (discard, or trim), and become free.
//!
//! A slot is in no list while its disk discards its content: so that nobody writes there meanwhile. The table says which
//! process does it. Where that has died the slot is an *orphan*, and whoever finds it begins anew: the first who gives back anything after
//! the pool was opened or a process has died, who removes its region, and a repair. A check tells how many there are: they are what a crash
//! leaves, and no damage.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use exraid::{Op as Transfer, LATE};
use pram::session::assert_may_wait;
use pram::Session;

use super::error::{Error, Result};
use super::table::{State, KEY};
use super::Log;

/// Of which pool, and their numbers.
type Slots = HashSet<([u8; 16], u32)>;

/// Slots that this process is giving back, by pool.
static GIVING_BACK: Mutex<Option<Slots>> = Mutex::new(None);

fn giving_back() -> MutexGuard<'static, Option<Slots>> {
    GIVING_BACK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread is giving back, until it is dropped.
pub(super) struct Discarding {
    pool: [u8; 16],
    slots: Vec<u32>,
}

impl Discarding {
    pub fn of(session: &Session) -> Discarding {
        Discarding { pool: session.memory().info.uuid, slots: Vec::new() }
    }

    /// By whom, as the table has it.
    pub fn by(&self) -> u64 {
        u64::from(std::process::id())
    }

    /// Before the table says so: else another thread takes it for an orphan.
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
    /// Makes segments free that were freed in epochs before `durable`: whose commits are durable ([`pram::session`]), and
    /// that no copy of persistent RAM names any more that may yet be put back. At most so many. The disk gets their room
    /// back. How many.
    pub fn reclaim(&self, session: &Session, durable: u64, most: u64) -> Result<u64> {
        assert_may_wait();
        self.check_failed()?;
        self.end_late(session)?;
        if !self.are_orphans_known.swap(true, Ordering::Relaxed) {
            self.adopt_orphans(session)?;
        }
        for done in 0..most {
            // A write that this process has not done with may come to the disk yet: the slot waits once more.
            if let Some(slot) = self.first_is_written_to(session)? {
                match self.requeue(session, slot, durable)? {
                    true => continue,
                    false => return Ok(done),
                }
            }
            // Nobody else has the slot between the two. Writes that were given up by time are in segments that failed.
            let mut discarding = Discarding::of(session);
            let taken = self.change(session, |change| {
                let taken = change.take_freed(durable, discarding.by())?;
                taken.iter().for_each(|(slot, _)| discarding.begin(*slot));
                Ok(taken)
            })?;
            let Some((slot, state)) = taken else { return Ok(done) };
            if state == State::Discarding {
                let is_kept = self.is_wanted(session, slot)?;
                if !is_kept {
                    self.discard(session, slot);
                }
                self.change(session, |change| change.discarded(slot, is_kept, discarding.by()))?;
            }
        }
        Ok(most)
    }

    /// The first of the freed slots, if a request of this process that writes there has not ended.
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

    /// Puts that slot at the end of the freed ones, if it is the first and may be used; was it?
    fn requeue(&self, session: &Session, slot: u32, durable: u64) -> Result<bool> {
        self.change(session, |change| {
            let epoch = session.epoch()?;
            change.requeue_freed(slot, durable, epoch)
        })
    }

    /// Is a segment that becomes free needed for what is dirty or promised, or about to be written, so that its host keeps its room?
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

    /// What is not given back costs room, and nothing else.
    pub(super) fn discard(&self, session: &Session, slot: u32) {
        // While one that does not answer is asked for that, nobody can open it.
        let Some(lies) = self.lies(session, slot).ok().filter(|lies| !lies.region.is_late()) else { return };
        let range = lies.at..lies.at + self.segment();
        if let Err(e) = lies.region.ask(Transfer::Discard(range).into(), LATE).result {
            tracing::warn!("giving back a segment: {e}");
        }
    }

    /// Slots that are being discarded by nobody, with who did.
    pub fn orphans(&self, session: &Session) -> Result<Vec<(u32, u64)>> {
        let (table, pool) = (self.at.table(session.memory()), session.memory().info.uuid);
        let mut orphans = Vec::new();
        for slot in session.read(KEY, || table.used_slots())? {
            let segment = session.read(KEY, || table.get(slot))?;
            if segment.state == State::Discarding {
                orphans.push((slot, segment.stamp));
            }
        }
        if orphans.is_empty() {
            return Ok(orphans);
        }
        // Asked for afterwards: who had it then and has ended since has put it in its list.
        let alive: HashSet<u64> = session.runtime().sessions().iter().map(|one| u64::from(one.pid)).collect();
        let own = u64::from(std::process::id());
        let mine = giving_back();
        let is_mine = |slot: u32| mine.as_ref().is_some_and(|all| all.contains(&(pool, slot)));
        orphans.retain(|(slot, by)| if *by == own { !is_mine(*slot) } else { !alive.contains(by) });
        Ok(orphans)
    }

    /// Somebody died: the next who gives anything back looks for what he left.
    pub fn look_for_orphans(&self) {
        self.are_orphans_known.store(false, Ordering::Relaxed);
    }

    /// Makes orphans free; how many.
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
