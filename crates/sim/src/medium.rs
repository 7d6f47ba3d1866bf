//! The recording medium, and the sabotaged ones that test the tester.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use pram::{Mapping, Medium, MediumKind, Needs};

use crate::trace::{Event, Recorder};

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
        self.recorder.note(|| Event::Flush { off, len });
    }

    fn stream(&self, map: &Mapping, off: u64, bytes: &[u8]) -> pram::Result<bool> {
        map.write(off, bytes)?;
        self.stored(off, bytes);
        self.flush(map, off, bytes.len() as u64);
        Ok(true)
    }

    fn fence(&self, _: &Mapping) {
        self.recorder.note(|| Event::Fence);
    }

    fn stored(&self, off: u64, bytes: &[u8]) {
        self.recorder.note(|| Event::Store { off, bytes: bytes.to_vec() });
    }
}

/// Sabotage: swallows the flushes whose offset it is not to keep, as code would that forgot them.
pub struct DropFlush<M> {
    pub inner: M,
    pub keep: Box<dyn Fn(u64) -> bool + Send + Sync>,
}

impl<M: Medium> Medium for DropFlush<M> {
    fn kind(&self) -> MediumKind {
        self.inner.kind()
    }
    fn needs(&self) -> Needs {
        self.inner.needs()
    }
    fn flush(&self, map: &Mapping, off: u64, len: u64) {
        if (self.keep)(off) {
            self.inner.flush(map, off, len);
        }
    }
    fn fence(&self, map: &Mapping) {
        self.inner.fence(map);
    }
    fn stored(&self, off: u64, bytes: &[u8]) {
        self.inner.stored(off, bytes);
    }
}

/// Sabotage: a store into `range` that the next store outside follows takes place after that one. With the
/// undo log as range, it is the store that validates a record: the change comes before its way back.
pub struct DelayStore<M> {
    pub inner: M,
    pub range: Range<u64>,
    held: Mutex<Option<(u64, Vec<u8>)>>,
}

impl<M: Medium> DelayStore<M> {
    pub fn new(inner: M, range: Range<u64>) -> Self {
        DelayStore { inner, range, held: Mutex::new(None) }
    }
}

impl<M: Medium> Medium for DelayStore<M> {
    fn kind(&self) -> MediumKind {
        self.inner.kind()
    }
    fn needs(&self) -> Needs {
        self.inner.needs()
    }
    fn flush(&self, map: &Mapping, off: u64, len: u64) {
        self.inner.flush(map, off, len);
    }
    fn fence(&self, map: &Mapping) {
        self.inner.fence(map);
    }
    fn stored(&self, off: u64, bytes: &[u8]) {
        let mut held = self.held.lock().unwrap_or_else(|e| e.into_inner());
        let before = held.take();
        if self.range.contains(&off) {
            if let Some((off, bytes)) = before {
                self.inner.stored(off, &bytes);
            }
            *held = Some((off, bytes.to_vec()));
            return;
        }
        self.inner.stored(off, bytes);
        if let Some((off, bytes)) = before {
            self.inner.stored(off, &bytes);
        }
    }
}
