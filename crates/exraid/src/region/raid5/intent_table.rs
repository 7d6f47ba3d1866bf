//! The log of intents as all processes of the region know it: in the words that they
//! [share](crate::region::shared_state::SharedState), or, for a region of one process, in its own.
//!
//! | word | |
//! | --- | --- |
//! | next | the sequence number of the next intent |
//! | copy | its last bit tells the copy of the head that is written next |
//! | slot, each | free; *busy*: the members are being written; *done*: they have been, and the intent is not retired yet; with its stripe |
//! | floor, each | intents of lower sequence numbers are retired, and the members record that |
//!
//! A process makes a slot busy under the lock on its stripe, and makes it done before it releases the lock. So if
//! another process gets that lock and the slot is busy, its owner has died.
//!
//! A process takes the slot first and the number afterwards. To retire, it reads the number first and then the slots: a
//! slot that is free then has no intent below that number, now or later.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::raw::SLOTS;
use crate::region::shared_state::SharedState;
use crate::sys::shared::Words;

const NEXT: usize = 0;
const COPY: usize = 1;
const FIRST_SLOT: usize = 8;
// In the second page: its first half, so that the last word of neither is used.
const FIRST_FLOOR: usize = 512;
const COUNT: usize = FIRST_FLOOR + SLOTS;
const _: () = assert!(FIRST_SLOT + SLOTS < 495);

const FREE: u64 = 0;
const BUSY: u64 = 1;
const DONE: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Free,
    /// The members are being written.
    Busy {
        stripe: u64,
    },
    /// They have been written; the intent is not retired yet.
    Done {
        stripe: u64,
    },
}

impl Slot {
    fn of(word: u64) -> Slot {
        match word & 3 {
            BUSY => Slot::Busy { stripe: word >> 2 },
            DONE => Slot::Done { stripe: word >> 2 },
            _ => Slot::Free,
        }
    }

    fn word(self) -> u64 {
        match self {
            Slot::Free => FREE,
            Slot::Busy { stripe } => stripe << 2 | BUSY,
            Slot::Done { stripe } => stripe << 2 | DONE,
        }
    }

    /// The stripe of an intent that is not retired.
    pub fn stripe(self) -> Option<u64> {
        match self {
            Slot::Free => None,
            Slot::Busy { stripe } | Slot::Done { stripe } => Some(stripe),
        }
    }
}

pub struct IntentTable {
    own: Box<[AtomicU64]>,
    shared: Option<Arc<SharedState>>,
    slots: usize,
}

impl IntentTable {
    pub fn new(slots: usize, shared: Option<Arc<SharedState>>) -> IntentTable {
        let count = if shared.is_some() { 0 } else { COUNT };
        IntentTable { own: Words::own(count), shared, slots }
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        match &self.shared {
            Some(shared_state) => &shared_state.log_words()[n],
            None => &self.own[n],
        }
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    pub fn next(&self) -> u64 {
        self.word(NEXT).load(Ordering::SeqCst)
    }

    pub fn take_next(&self) -> u64 {
        self.word(NEXT).fetch_add(1, Ordering::SeqCst)
    }

    /// Initial values from the members' logs, set by the process that opens the region first.
    pub fn begin(&self, next: u64, floors: &[u64]) {
        self.word(NEXT).store(next, Ordering::SeqCst);
        self.set_floors(floors);
    }

    /// The copy of the head that is to be written.
    pub fn take_copy(&self) -> usize {
        (self.word(COPY).fetch_add(1, Ordering::SeqCst) + 1) as usize & 1
    }

    pub fn slot(&self, slot: usize) -> Slot {
        Slot::of(self.word(FIRST_SLOT + slot).load(Ordering::SeqCst))
    }

    pub fn all(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.slots).map(|slot| self.slot(slot))
    }

    /// False if the slot had another state.
    pub fn set_slot(&self, slot: usize, from: Slot, to: Slot) -> bool {
        let word = self.word(FIRST_SLOT + slot);
        word.compare_exchange(from.word(), to.word(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes a free slot for an intent of this stripe, if there is one.
    pub fn take_slot(&self, stripe: u64) -> Option<usize> {
        (0..self.slots).find(|slot| self.set_slot(*slot, Slot::Free, Slot::Busy { stripe }))
    }

    pub fn floor(&self, slot: usize) -> u64 {
        self.word(FIRST_FLOOR + slot).load(Ordering::SeqCst)
    }

    /// Only under the lock on the log, or in a process that is alone.
    pub fn set_floors(&self, floors: &[u64]) {
        for (slot, floor) in floors.iter().enumerate() {
            self.word(FIRST_FLOOR + slot).store(*floor, Ordering::SeqCst);
        }
    }

    /// Is an intent of these stripes not retired?
    pub fn has_intents_of(&self, stripes: &Range<u64>) -> bool {
        self.all().any(|slot| slot.stripe().is_some_and(|stripe| stripes.contains(&stripe)))
    }

    /// The busy slots of these stripes.
    pub fn busy(&self, stripes: &Range<u64>) -> Vec<(usize, u64)> {
        let is_busy = |slot: usize| match self.slot(slot) {
            Slot::Busy { stripe } if stripes.contains(&stripe) => Some((slot, stripe)),
            _ => None,
        };
        (0..self.slots).filter_map(is_busy).collect()
    }
}
