//! What reached the medium: stores, flushes, fences.

use std::sync::{Mutex, MutexGuard};

use crate::stage::player;

/// One thing that the medium was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Store { off: u64, bytes: Vec<u8> },
    Flush { off: u64, len: u64, by: Thread },
    Fence { by: Thread },
}

/// Whose flush or fence it is: a processor waits for its own flushes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread(pub Option<usize>);

impl Thread {
    /// The calling one.
    pub fn current() -> Thread {
        Thread(player())
    }
}

impl Event {
    /// The event without its content: what must be the same when a scenario runs again.
    pub fn shape(&self) -> (u8, u64) {
        match self {
            Event::Store { bytes, .. } => (0, bytes.len() as u64),
            Event::Flush { len, .. } => (1, *len),
            Event::Fence { .. } => (2, 0),
        }
    }
}

/// Collects events while it is switched on.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<Recording>);

#[derive(Debug, Default)]
struct Recording {
    on: bool,
    events: Vec<Event>,
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn start(&self) {
        *self.lock() = Recording { on: true, events: Vec::new() };
    }

    /// Ends the recording; what was recorded.
    pub fn stop(&self) -> Vec<Event> {
        std::mem::take(&mut *self.lock()).events
    }

    /// Events so far.
    pub fn len(&self) -> usize {
        self.lock().events.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn note(&self, event: impl FnOnce() -> Event) {
        let mut recording = self.lock();
        if recording.on {
            recording.events.push(event());
        }
    }
}
