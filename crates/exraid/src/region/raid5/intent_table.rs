//! What all processes that have the region open know of its log of intents: in the words that they [share](Between), or, of a
//! region that is one process's own, in words of that.
//!
//! | word | |
//! | --- | --- |
//! | next | the sequence number of the next intent |
//! | copy | that copy of the head is written next: whose last bit says |
//! | slot, each | free; *busy*: the members are being written; *done*: they have been, and it is not retired yet; with its stripe |
//! | floor, each | what has a lower sequence number is retired, and the members know it |
//!
//! Who makes a slot busy has the lock on its stripe, and makes it done before the lock ends. So who has the lock on the stripe of
//! a slot that is busy knows that its owner has died.
//!
//! The next number is taken after the slot. So whoever retires reads the number first and then the slots: one that is free then has
//! nothing below that number that counts, now or later.

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
    /// They have been; not retired yet.
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

    /// Of an intent that is not retired.
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

    /// Takes the next sequence number.
    pub fn take_next(&self) -> u64 {
        self.word(NEXT).fetch_add(1, Ordering::SeqCst)
    }

    /// What the members said, for who has found nobody else.
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

    /// False where it was something else.
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

    /// For who has the log, or is alone.
    pub fn set_floors(&self, floors: &[u64]) {
        for (slot, floor) in floors.iter().enumerate() {
            self.word(FIRST_FLOOR + slot).store(*floor, Ordering::SeqCst);
        }
    }

    /// Has one of these stripes an intent that is not retired?
    pub fn has_intents_of(&self, stripes: &Range<u64>) -> bool {
        self.all().any(|slot| slot.stripe().is_some_and(|stripe| stripes.contains(&stripe)))
    }

    /// Slots of these stripes that are busy.
    pub fn busy(&self, stripes: &Range<u64>) -> Vec<(usize, u64)> {
        let is_busy = |slot: usize| match self.slot(slot) {
            Slot::Busy { stripe } if stripes.contains(&stripe) => Some((slot, stripe)),
            _ => None,
        };
        (0..self.slots).filter_map(is_busy).collect()
    }
}
