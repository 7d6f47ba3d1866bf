//! Media above the recording one: with a planted fault, to test the explorers; and for one of several processes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pram::memory::Geometry;
use pram::{Mapping, Medium, MediumKind, Needs};

use crate::stage::Stage;
use crate::tape::{Tape, TapeMedium};

/// A fault planted below the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Nothing,
    /// Undo records are not flushed.
    DropLogFlush,
    /// The words that commit are not flushed.
    DropCommitFlush,
    /// Content that transactions change, or fill in, is not flushed.
    DropDataFlush,
    /// Undo records are flushed, and the flush is not waited for.
    DropLogFence,
    /// The words that commit are flushed, and the flush is not waited for.
    DropCommitFence,
    /// Content that transactions change, or fill in, is flushed, and the flush is not waited for.
    DropDataFence,
    /// Undo records become valid after the change that they undo.
    DelayLog,
}

impl Sabotage {
    /// Makes the faulty medium of a memory of `size` bytes.
    pub fn above(self, inner: TapeMedium, size: u64) -> Box<dyn Medium> {
        let geo = Geometry::of(size).expect("a region can have this size");
        let slots = geo.undo_logs();
        let is_slot_word = move |off: u64| (0..geo.slots as u32).any(|n| geo.slot(n) == off);
        let is_data = move |off: u64| off >= geo.heap();
        let of_log = slots.clone();
        let is_log = move |off: u64| of_log.contains(&off) && !is_slot_word(off);
        let fault = match self {
            Sabotage::Nothing => return Box::new(inner),
            Sabotage::DropDataFlush => Fault::DropFlush(Box::new(is_data)),
            Sabotage::DropLogFlush => Fault::DropFlush(Box::new(is_log)),
            Sabotage::DropCommitFlush => Fault::DropFlush(Box::new(is_slot_word)),
            Sabotage::DropDataFence => Fault::DropFence(Box::new(is_data)),
            Sabotage::DropLogFence => Fault::DropFence(Box::new(is_log)),
            Sabotage::DropCommitFence => Fault::DropFence(Box::new(is_slot_word)),
            Sabotage::DelayLog => Fault::DelayStore(slots),
        };
        Box::new(Faulty::new(inner, fault))
    }
}

/// A set of offsets.
pub type Places = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// The fault of a [`Faulty`] medium, as in code that forgot a step.
pub enum Fault {
    /// Swallows flushes of these offsets.
    DropFlush(Places),
    /// Swallows the fence that follows a flush of these offsets: the flushed lines may become durable later.
    DropFence(Places),
    /// A store into these offsets takes place after the next store, if that is outside. With the undo log as range, this
    /// delays the store that validates a record behind the change that it undoes.
    DelayStore(Range<u64>),
}

/// A recording medium with a fault.
pub struct Faulty {
    inner: TapeMedium,
    fault: Fault,
    /// Is the next fence swallowed?
    spoiled: AtomicBool,
    /// The store that is delayed.
    held: Mutex<Option<(u64, Vec<u8>)>>,
}

impl Faulty {
    pub fn new(inner: TapeMedium, fault: Fault) -> Faulty {
        Faulty { inner, fault, spoiled: AtomicBool::new(false), held: Mutex::new(None) }
    }

    fn store_late(&self, late: &Range<u64>, off: u64, bytes: &[u8]) {
        let mut held = self.held.lock().unwrap_or_else(|e| e.into_inner());
        let before = held.take();
        if late.contains(&off) {
            *held = Some((off, bytes.to_vec()));
        } else {
            self.inner.stored(off, bytes);
        }
        if let Some((off, bytes)) = before {
            self.inner.stored(off, &bytes);
        }
    }
}

impl Medium for Faulty {
    fn kind(&self) -> MediumKind {
        self.inner.kind()
    }

    fn needs(&self) -> Needs {
        self.inner.needs()
    }

    fn flush(&self, map: &Mapping, off: u64, len: u64) {
        match &self.fault {
            Fault::DropFlush(lost) if lost(off) => return,
            Fault::DropFence(lost) => self.spoiled.store(lost(off), Ordering::Relaxed),
            _ => {}
        }
        self.inner.flush(map, off, len);
    }

    fn fence(&self, map: &Mapping) {
        if !self.spoiled.swap(false, Ordering::Relaxed) {
            self.inner.fence(map);
        }
    }

    fn stored(&self, off: u64, bytes: &[u8]) {
        match &self.fault {
            Fault::DelayStore(late) => self.store_late(late, off, bytes),
            _ => self.inner.stored(off, bytes),
        }
    }
}

/// The memory of one of several processes, whose threads take turns and die.
pub struct Directed {
    pub inner: Box<dyn Medium>,
    pub tape: Arc<Tape>,
    pub stage: Arc<Stage>,
    pub process: usize,
}

impl Medium for Directed {
    fn kind(&self) -> MediumKind {
        self.inner.kind()
    }

    fn needs(&self) -> Needs {
        self.inner.needs()
    }

    fn flush(&self, map: &Mapping, off: u64, len: u64) {
        self.inner.flush(map, off, len);
    }

    fn stream(&self, map: &Mapping, off: u64, bytes: &[u8]) -> pram::Result<bool> {
        let done = self.inner.stream(map, off, bytes);
        self.stage.pass();
        done
    }

    fn fence(&self, map: &Mapping) {
        self.inner.fence(map);
    }

    fn stored(&self, off: u64, bytes: &[u8]) {
        if self.stage.is_over() {
            return self.stage.leave();
        }
        let dies = self.stage.count(self.process, false);
        let number = self.tape.len();
        self.inner.stored(off, bytes);
        self.stage.note_store(self.process, number);
        match dies {
            Some(_) => self.stage.die_here(),
            None => self.stage.pass(),
        }
    }

    fn marked(&self) {
        self.stage.pass();
    }

    fn waits(&self) -> bool {
        self.stage.waits()
    }

    fn stepped(&self) {
        self.stage.step();
    }
}
