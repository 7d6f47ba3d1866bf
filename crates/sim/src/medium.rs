//! The recording medium, and the sabotaged ones that test the tester.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use pram::{Mapping, Medium, MediumKind, Needs};

use crate::trace::{Event, Recorder, Thread};

/// When stores become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// At once, in program order.
    Battery,
    /// When flushed and fenced; before, each word independently or not at all.
    Dax,
}

impl Discipline {
    pub const ALL: [Discipline; 2] = [Discipline::Battery, Discipline::Dax];

    pub fn name(self) -> &'static str {
        match self {
            Discipline::Battery => "battery",
            Discipline::Dax => "dax",
        }
    }
}

/// Memory that records what it is told.
pub struct CrashMedium {
    pub discipline: Discipline,
    pub recorder: Arc<Recorder>,
}

impl Medium for CrashMedium {
    fn kind(&self) -> MediumKind {
        match self.discipline {
            Discipline::Battery => MediumKind::Battery,
            Discipline::Dax => MediumKind::Dax,
        }
    }

    fn needs(&self) -> Needs {
        Needs { stores: true, flush: self.discipline == Discipline::Dax }
    }

    fn flush(&self, _: &Mapping, off: u64, len: u64) {
        self.recorder.note(|| Event::Flush { off, len, by: Thread::current() });
    }

    fn stream(&self, map: &Mapping, off: u64, bytes: &[u8]) -> pram::Result<bool> {
        map.write(off, bytes)?;
        self.stored(off, bytes);
        self.flush(map, off, bytes.len() as u64);
        Ok(true)
    }

    fn fence(&self, _: &Mapping) {
        self.recorder.note(|| Event::Fence { by: Thread::current() });
    }

    fn stored(&self, off: u64, bytes: &[u8]) {
        self.recorder.note(|| Event::Store { off, bytes: bytes.to_vec() });
    }
}

/// Which offsets.
pub type Places = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// What a [`Faulty`] medium does wrong, as code would that forgot it.
pub enum Fault {
    /// Swallows flushes of these offsets.
    DropFlush(Places),
    /// Swallows fences that follow a flush of these offsets: what was flushed may become durable later.
    DropFence(Places),
    /// A store into these offsets that the next store outside follows takes place after that one. With the undo log as
    /// range, it is the store that validates a record: the change comes before its way back.
    DelayStore(Range<u64>),
}

/// A recording medium with a fault.
pub struct Faulty {
    inner: CrashMedium,
    fault: Fault,
    /// Is the next fence swallowed?
    spoiled: AtomicBool,
    /// The store that is delayed.
    held: Mutex<Option<(u64, Vec<u8>)>>,
}

impl Faulty {
    pub fn new(inner: CrashMedium, fault: Fault) -> Faulty {
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
