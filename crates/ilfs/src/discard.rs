//! Slots that are being given back to their disk, and by whom.
//!
//! A slot is in no list while its disk discards its content: so that nobody writes there meanwhile. The table says which
//! process does it. Where that has died the slot is an *orphan*, and whoever finds it begins anew: the first who gives back anything after
//! the pool was opened or a process has died, who removes its region, and a repair. A check tells how many there are: they are what a crash
//! leaves, and no damage.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pram::session::assert_may_wait;
use pram::Session;

use super::error::Result;
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
