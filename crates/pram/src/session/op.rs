//! An operation: the time from taking a transaction slot to giving it back.

use smallvec::SmallVec;

use super::waiting::Inside;
use super::Session;
use crate::error::{Error, Result};
use crate::heap::Cursor;
use crate::memory::Descriptor;
use crate::runtime::{self, Runtime, Sequence};
use crate::tx::{Outcome, Tx};

/// An operation under way: a transaction slot, and the locks it takes.
pub struct Op<'s> {
    session: &'s Session,
    slot: u32,
    held: SmallVec<[u32; 8]>,
    outcome: Outcome,
    /// `None` between its end and its new beginning: it has no slot then.
    inside: Option<Inside>,
}

impl<'s> Op<'s> {
    /// Begins an operation in a slot that was taken for it.
    #[inline(always)]
    pub(super) fn in_slot(session: &'s Session, slot: u32) -> Op<'s> {
        Op { session, slot, held: SmallVec::new(), outcome: Outcome::default(), inside: Some(Inside::enter()) }
    }

    /// Ends the operation and begins another in its place, whose outcome adds to this one's. A long piece of work gives
    /// slot and locks back that way, so that nobody waits for either for long.
    pub fn renew(&mut self) -> Result<()> {
        self.outside(|| ())
    }

    /// The same, and calls `f` in between, which may wait for anything.
    pub fn outside<R>(&mut self, f: impl FnOnce() -> R) -> Result<R> {
        self.end();
        let result = f();
        if self.session.rt.is_demanded() {
            self.session.supply_ahead();
        }
        self.begin_anew()?;
        Ok(result)
    }

    /// The same, after [`Error::MustGrow`]: memory is taken in between.
    pub fn renew_with_memory(&mut self) -> Result<()> {
        self.end();
        self.session.supply_needed()?;
        self.begin_anew()
    }

    #[inline(always)]
    pub(super) fn end(&mut self) {
        self.unlock();
        if self.inside.take().is_some() && self.session.rt.free_slot(self.slot) {
            self.session.heed_slot(self.slot);
        }
    }

    pub(super) fn begin_anew(&mut self) -> Result<()> {
        self.slot = self.session.take_slot()?;
        self.inside = Some(Inside::enter());
        Ok(())
    }

    /// Takes the locks of all `keys`, in an order that cannot deadlock. An operation takes all its locks in
    /// one call; to take others it [`unlock`](Op::unlock)s first.
    #[inline(always)]
    pub fn lock(&mut self, keys: &[u64]) -> Result<()> {
        debug_assert!(self.held.is_empty(), "all locks are taken at once");
        match *keys {
            [key] => self.take(Runtime::lock_number(key)),
            [a, b] => {
                let (a, b) = (Runtime::lock_number(a), Runtime::lock_number(b));
                self.take(a.min(b))?;
                if a == b {
                    return Ok(());
                }
                self.take(a.max(b))
            }
            _ => self.lock_many(keys),
        }
    }

    fn lock_many(&mut self, keys: &[u64]) -> Result<()> {
        let mut numbers: SmallVec<[u32; 8]> = keys.iter().map(|k| Runtime::lock_number(*k)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().try_for_each(|number| self.take(number))
    }

    /// Takes a lock with a number above all that are held.
    #[inline(always)]
    fn take(&mut self, number: u32) -> Result<()> {
        let lock = self.session.rt.lock(number);
        if !lock.try_lock(self.slot) {
            self.wait(lock)?;
        }
        self.held.push(number);
        Ok(())
    }

    /// Waits for a lock until it is ours.
    #[cold]
    #[inline(never)]
    fn wait(&self, lock: runtime::KeyLock) -> Result<()> {
        while !lock.try_lock(self.slot) {
            if let Some(slot) = lock.look().owner() {
                self.session.wait_for(lock, slot, 20)?;
            }
        }
        Ok(())
    }

    /// [`Session::read`], for an operation that holds no locks: if it must lock, it does so in its own slot.
    /// (A second operation could wait for ever: for a slot while all are taken, for a thaw that waits for us.)
    #[inline(always)]
    pub fn read<R, E: From<Error>>(&mut self, key: u64, mut f: impl FnMut() -> Result<R, E>) -> Result<R, E> {
        if let Some(result) = self.session.try_read(key, &mut f) {
            return result;
        }
        self.lock(&[key])?;
        let result = f();
        self.unlock();
        result
    }

    /// Calls `f` until it has seen one state of the data of `key`. Returns that state, if it differs from later ones:
    /// see [`is_as_seen`](Self::is_as_seen).
    #[inline(always)]
    pub fn look(&mut self, key: u64, mut f: impl FnMut()) -> Result<Option<Sequence>> {
        let seen = self.session.look(key, &mut f)?;
        if seen.is_none() {
            self.lock(&[key])?;
            f();
            self.unlock();
        }
        Ok(seen)
    }

    /// Has nobody had the lock of `key`, which the operation holds, since it was seen?
    #[inline(always)]
    pub fn is_as_seen(&self, key: u64, seen: Option<Sequence>) -> bool {
        seen.is_some_and(|seen| self.session.rt.lock(Runtime::lock_number(key)).follows(seen))
    }

    /// Gives up all locks.
    #[inline(always)]
    pub fn unlock(&mut self) {
        while let Some(number) = self.held.pop() {
            self.session.rt.lock(number).unlock();
        }
    }

    /// Begins a transaction. One at a time: it borrows the operation.
    #[inline(always)]
    pub fn tx(&mut self) -> Result<Tx<'_>> {
        Tx::begin(&self.session.memory, &self.session.rt, self.slot, &self.outcome)
    }

    /// Has the operation changed anything?
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.outcome.changed.get()
    }

    /// Calls `f`, whose changes do not count as changes: only the places of objects differ afterwards.
    pub fn unseen<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.outcome.changed.get();
        let result = f(self);
        self.outcome.changed.set(before);
        result
    }

    /// Has the operation made a change that [is to be durable](Tx::urge) when it ends?
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.outcome.urgent.get()
    }

    /// Frees a leaked object, without references and unknown to all operations under way. In an operation: a commit
    /// must not look at the memory between the mark for this and the store.
    pub fn sweep_object(&self, off: u64) -> Result<()> {
        self.session.heap().free(self.slot, off)
    }

    /// [`Heap::walk_blocks`](crate::heap::Heap::walk_blocks) for blocks without a place, for write-back: later walks
    /// pass over chunks without any. In an operation, so that no freeze ([`Session::freeze`](crate::Session::freeze))
    /// comes between its steps and misses a chunk.
    pub fn walk_unplaced(&self, cursor: &mut Cursor, most: usize, f: &mut dyn FnMut(u64, Descriptor)) -> Result<bool> {
        self.session.heap().walk_unplaced(cursor, most, f)
    }

    pub fn slot(&self) -> u32 {
        self.slot
    }

    pub fn session(&self) -> &'s Session {
        self.session
    }
}

impl Drop for Op<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.end();
    }
}
