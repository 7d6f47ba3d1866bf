//! References: the objects that a process holds open, and the leaks that its death would leave.

use std::collections::hash_map::Entry;
use std::sync::Mutex;

use rustc_hash::FxHashMap;

use super::Session;
use crate::error::{Error, Result};
use crate::runtime::{Runtime, COMMON};

/// Work is under way that a sweep would have to end.
pub struct Unfinished<'a>(&'a Runtime);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.end_unfinished();
    }
}

/// Where the references of a guest are in its table.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// By key, a number that nobody chooses: the entry, and what it counts.
    by_key: FxHashMap<u64, (u32, u32)>,
    free: Vec<u32>,
    /// Entries that have been used.
    used: u32,
}

impl Entries {
    /// Counts `more` for `key`; an entry for it is kept, also of none.
    fn add(&mut self, rt: &Runtime, key: u64, more: u32) -> Result<()> {
        let (entry, count) = match self.by_key.get(&key) {
            Some(found) => *found,
            None => (self.take(rt)?, 0),
        };
        let sum = u64::from(count) + u64::from(more);
        if !Runtime::fits_entry(sum) {
            let what = format!("a guest holds inode {key} {sum} times");
            return Err(Error::Host { what, errno: rustix::io::Errno::NFILE });
        }
        rt.set_entry(entry, key, sum as u32);
        self.by_key.insert(key, (entry, sum as u32));
        Ok(())
    }

    fn take(&mut self, rt: &Runtime) -> Result<u32> {
        if let Some(entry) = self.free.pop() {
            return Ok(entry);
        }
        rt.take_entry(self.used)?;
        self.used += 1;
        Ok(self.used - 1)
    }

    /// Takes up to `n` from what is counted for `key`; how many, and how many are left.
    fn take_back(&mut self, rt: &Runtime, key: u64, n: u32) -> (u32, u32) {
        let Entry::Occupied(mut found) = self.by_key.entry(key) else { return (0, 0) };
        let (entry, count) = *found.get();
        let (taken, left) = (n.min(count), count.saturating_sub(n));
        rt.set_entry(entry, key, left);
        match left {
            0 => {
                found.remove();
                self.free.push(entry);
            }
            left => _ = found.insert((entry, left)),
        }
        (taken, left)
    }
}

impl Session {
    /// Takes `n` references to `key`.
    ///
    /// # Errors
    /// The host has no memory for them.
    #[inline]
    pub fn retain(&self, key: u64, n: u32) -> Result<()> {
        let refs = self.rt.take_reference(key)?;
        match &self.guest {
            None => refs.add(n),
            Some(guest) => {
                let mut entries = self.memory.lock_by(&guest.held.0);
                // In this order: see `runtime::guests`.
                refs.add(n);
                entries.add(&self.rt, key, n).inspect_err(|_| _ = refs.remove(n))?;
            }
        }
        Ok(())
    }

    /// Makes sure that there is memory for references to `key`: [`retain`](Self::retain) does not fail then.
    pub fn prepare_retain(&self, key: u64) -> Result<()> {
        self.rt.take_reference(key)?;
        let guest = self.guest.as_ref();
        guest.map_or(Ok(()), |guest| self.memory.lock_by(&guest.held.0).add(&self.rt, key, 0))
    }

    /// Has this process references to `key`?
    pub fn holds(&self, key: u64) -> bool {
        match &self.guest {
            Some(guest) => self.memory.lock_by(&guest.held.0).by_key.get(&key).is_some_and(|(_, count)| *count > 0),
            None => self.rt.holds(self.rt.me(), key),
        }
    }

    /// Gives back `n` references; returns how many this process has left.
    #[inline]
    pub fn release(&self, key: u64, n: u32) -> u32 {
        let Some(refs) = self.rt.refs(self.rt.me(), key) else { return 0 };
        match &self.guest {
            Some(guest) => {
                let (taken, left) = self.memory.lock_by(&guest.held.0).take_back(&self.rt, key, n);
                refs.remove(taken);
                left
            }
            None => refs.remove(n),
        }
    }

    /// Does any attached process hold a reference to `key`, when nothing else does? A sweep then follows its death.
    pub fn is_referenced(&self, key: u64) -> bool {
        let holds = |s: u32| self.rt.holds(s, key);
        let mut referenced = false;
        if holds(COMMON) {
            self.rt.note_guests_hold_last();
            referenced = holds(COMMON);
        }
        for s in self.rt.full().filter(|s| holds(*s)) {
            self.rt.set_holds_last(s);
            // The process may be dead and its cleanup may have looked before the mark: then its references are gone by now.
            referenced |= holds(s);
        }
        referenced
    }

    /// Does another attached process hold a reference to `key`? For who is no guest.
    pub fn is_referenced_by_others(&self, key: u64) -> bool {
        let me = self.rt.me();
        self.rt.holds(COMMON, key) || self.rt.full().any(|s| s != me && self.rt.holds(s, key))
    }

    /// Notes that this process holds the last reference to an object, or is about to.
    pub fn note_last_reference(&self) {
        self.rt.set_holds_last(self.rt.me());
    }

    /// Until the result is dropped, a sweep follows the death of this process: for work that ends piece by piece, each
    /// in an operation of its own.
    pub fn unfinished(&self) -> Unfinished<'_> {
        self.rt.begin_unfinished();
        Unfinished(&self.rt)
    }
}
