//! The retirement of intents: the members have the writes durably, and replay leaves these intents out.
//!
//! | step | what | else |
//! | --- | --- | --- |
//! | 1 | flush all members, after the writes of the intents | an intent is retired whose writes are lost |
//! | 2 | write the *floors*: the lowest sequence number that counts in each slot, to all members that are whole; durable | an old intent whose slot was used again is replayed, if the disks with the newer records are lost |
//! | 3 | free the slots; stripes may be written as wholes | |
//!
//! One process at a time retires, for all that have the region open
//! ([`SharedState`](crate::region::shared_state::SharedState)).
//!
//! A head has two copies, which are written alternately: the highest floors count.

use zerocopy::IntoBytes;

use super::intent_table::Slot;
use super::raw::RawFloors;
use super::Array;
use crate::device::Op;
use crate::error::Result;
use crate::label::MemberState;
use crate::region::rebuild::OWN;
use crate::sys::memory::{Aligned, Buffers};

type Then = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
pub struct Retirement {
    is_running: bool,
    waiting: Vec<Wanted>,
}

/// A waiting caller of a retirement.
struct Wanted {
    /// This member gets the floors too, though it is not whole yet.
    also: Option<usize>,
    /// The floors are written in any case.
    is_forced: bool,
    then: Then,
}

impl Retirement {
    pub fn is_running(&self) -> bool {
        self.is_running
    }
}

impl Array {
    /// Retires all intents whose members have been written by now. With `also` the floors are written in any case, to
    /// that member too.
    pub fn retire(&self, also: Option<usize>, then: impl FnOnce(Result<()>) + Send + 'static) {
        self.retire_for(Wanted { also, is_forced: also.is_some(), then: Box::new(then) });
    }

    /// The same for intents found when the region was opened, which have no slots here.
    pub fn retire_all(&self, then: impl FnOnce(Result<()>) + Send + 'static) {
        self.retire_for(Wanted { also: None, is_forced: true, then: Box::new(then) });
    }

    fn retire_for(&self, wanted: Wanted) {
        let mut state = self.core.log.lock();
        state.retirement.waiting.push(wanted);
        if !std::mem::replace(&mut state.retirement.is_running, true) {
            drop(state);
            self.retire_next();
        }
    }

    /// Retires, when no other process does.
    fn retire_next(&self) {
        let Some(shared_state) = self.set.shared_state().cloned() else { return self.retire_alone() };
        // If locking failed, it is tried again.
        match shared_state.try_log() {
            Ok(true) => self.retire_alone(),
            _ => {
                let array = self.clone();
                self.core.range_locks.later(move || {
                    let is_ours = shared_state.try_log().unwrap_or(false);
                    if is_ours {
                        array.retire_alone();
                    }
                    is_ours
                });
            }
        }
    }

    /// For all waiting callers; no other process retires now.
    fn retire_alone(&self) {
        let wanted = std::mem::take(&mut self.core.log.lock().retirement.waiting);
        self.retire_wanted(wanted);
    }

    fn retire_wanted(&self, wanted: Vec<Wanted>) {
        let intent_table = &self.core.intent_table;
        let also: Vec<usize> = wanted.iter().filter_map(|one| one.also).collect();
        let next = intent_table.next();
        let slots: Vec<Slot> = intent_table.all().collect();
        let is_done = |slot: &usize| matches!(slots[*slot], Slot::Done { .. });
        let done: Vec<(usize, Slot)> = (0..slots.len()).filter(is_done).map(|slot| (slot, slots[slot])).collect();
        let is_busy = |slot: usize| matches!(slots[slot], Slot::Busy { .. });
        let floor = |slot: usize| if is_busy(slot) { intent_table.floor(slot) } else { next };
        let floors: Vec<u64> = (0..slots.len()).map(floor).collect();
        let array = self.clone();
        // The writes may be on a member that this process does not know to be in use.
        if !self.set.is_current() {
            return self.core.exclusion.adopt(&self.set, move |adopted| match adopted {
                Ok(()) => array.retire_wanted(wanted),
                Err(e) => array.retired(wanted, Vec::new(), None, Err(e)),
            });
        }
        if done.is_empty() && !wanted.iter().any(|one| one.is_forced) {
            return self.retired(wanted, Vec::new(), None, Ok(()));
        }
        self.tell_all(Op::Flush, OWN, move |result| match result {
            Err(e) => array.retired(wanted, done, None, Err(e)),
            Ok(()) => array.clone().write_floors(also, floors.clone(), move |result| {
                array.retired(wanted, done, Some(floors), result);
            }),
        });
    }

    /// Step 2.
    fn write_floors(&self, also: Vec<usize>, floors: Vec<u64>, then: impl FnOnce(Result<()>) + Send + 'static) {
        let copy = self.core.intent_table.take_copy();
        let view = self.core.exclusion.view(&self.set);
        let knows = |role: &usize| match view.states[*role] {
            MemberState::Whole => true,
            MemberState::Rebuilding { .. } => also.contains(role),
            MemberState::Out => false,
        };
        let roles: Vec<usize> = (0..view.states.len()).filter(knows).collect();
        let head = Aligned::of(RawFloors::new(self.set.secret, &floors).as_bytes());
        let write = || Op::Write { at: self.geometry().head_at(copy), from: Buffers::whole(&head) };
        let ops = roles.iter().map(|role| (*role, write())).collect();
        let array = self.clone();
        self.send_all(ops, OWN, move |mut failures| {
            let well = roles.into_iter().filter(|role| !failures.iter().any(|(failed, _)| failed == role));
            let flushes = well.map(|role| (role, Op::Flush)).collect();
            let next = array.clone();
            array.send_all(flushes, OWN, move |unflushed| {
                failures.extend(unflushed);
                next.finish(view.misses, failures, then);
            });
        });
    }

    /// Step 3. If it has failed, intents that wait for a slot are refused.
    fn retired(&self, wanted: Vec<Wanted>, done: Vec<(usize, Slot)>, floors: Option<Vec<u64>>, result: Result<()>) {
        let mut state = self.core.log.lock();
        let mut refused = Vec::new();
        match &result {
            Ok(()) => {
                let intent_table = &self.core.intent_table;
                intent_table.set_floors(&floors.unwrap_or_default());
                done.into_iter().for_each(|(slot, was)| _ = intent_table.set_slot(slot, was, Slot::Free));
            }
            Err(_) => refused.extend(state.waiting.drain(..)),
        }
        if let Some(shared_state) = self.set.shared_state() {
            shared_state.end_log();
        }
        state.retirement.is_running = !state.retirement.waiting.is_empty();
        let goes_on = state.retirement.is_running;
        drop(state);
        for intent in refused {
            let e = result.clone().map(|()| 0);
            (intent.then)(e, intent.changes);
        }
        wanted.into_iter().for_each(|one| (one.then)(result.clone()));
        if goes_on {
            self.retire_next();
        }
        if result.is_ok() {
            self.write_log();
        }
    }
}
