//! What reached memory and disks, in one order; the medium and the disks that record it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use backing::log::Disk;
use backing::{Disks, SharedDisk};
use pram::{Mapping, Medium, MediumKind, Needs};

use super::disk::{Files, FILES};

/// One thing that memory or a disk was told.
#[derive(Clone, Debug)]
pub enum Event {
    Store {
        off: u64,
        bytes: Vec<u8>,
    },
    Write {
        file: usize,
        at: u64,
        bytes: Vec<u8>,
    },
    Flush {
        file: usize,
    },
    /// A flush that failed.
    Failed {
        file: usize,
    },
    /// Nothing: a step ends here, or the recording.
    Rest,
}

impl Event {
    pub fn reaches_a_disk(&self) -> bool {
        matches!(self, Event::Write { .. } | Event::Flush { .. } | Event::Failed { .. })
    }
}

/// An event, and what of the marks has changed from the event before to this one: number and value of words.
#[derive(Clone, Debug)]
pub struct Moment {
    pub marks: Vec<(usize, u64)>,
    pub event: Event,
}

/// Holds the disks, and records while it is switched on.
#[derive(Default)]
pub struct Tape(Mutex<State>);

#[derive(Default)]
struct State {
    files: Files,
    on: bool,
    moments: Vec<Moment>,
    /// The memory of the marks, and its words as of the last event.
    marks: Option<Mapping>,
    words: Vec<u64>,
    /// To be called at the next write to a disk.
    during: Option<Box<dyn FnOnce() + Send>>,
    /// Sabotage: flushes of this file do nothing.
    lie: Option<usize>,
    /// Where the last write to a log ended.
    log_end: u64,
}

impl Tape {
    pub fn over(files: Files) -> Arc<Tape> {
        Arc::new(Tape(Mutex::new(State { files, ..State::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Begins to record; `marks` is the memory of the marks.
    pub fn start(&self, marks: Mapping) {
        let mut state = self.lock();
        state.words = words_of(&marks);
        (state.marks, state.on) = (Some(marks), true);
    }

    /// Begins to record, all but marks.
    pub fn start_without_marks(&self) {
        self.lock().on = true;
    }

    /// Ends the recording; what was recorded.
    pub fn stop(&self) -> Vec<Moment> {
        let mut state = self.lock();
        state.note(Event::Rest);
        (state.on, state.during) = (false, None);
        std::mem::take(&mut state.moments)
    }

    /// Notes what of the marks has changed: a commit that finds nothing to write changes only them.
    pub fn rest(&self) {
        self.lock().note(Event::Rest);
    }

    /// Events so far.
    pub fn len(&self) -> usize {
        self.lock().moments.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn files(&self) -> Files {
        self.lock().files.clone()
    }

    pub fn log_end(&self) -> u64 {
        self.lock().log_end
    }

    pub fn at_next_write(&self, during: Box<dyn FnOnce() + Send>) {
        self.lock().during = Some(during);
    }

    pub fn lie_about(&self, file: Option<usize>) {
        self.lock().lie = file;
    }

    /// A flush of `file` that fails.
    pub fn fail_flush(&self, file: usize) {
        let mut state = self.lock();
        state.note(Event::Failed { file });
        state.files.0[file].fail_flush();
    }

    /// Disks that record here.
    pub fn disks(self: &Arc<Self>) -> [SharedDisk; FILES] {
        std::array::from_fn(|file| Arc::new(TapeDisk { tape: self.clone(), file }) as SharedDisk)
    }
}

/// Disks as a copy wants them.
pub fn disks_of([image, first, second, _]: [SharedDisk; FILES]) -> Disks {
    Disks { image, logs: [first, second] }
}

pub fn words_of(map: &Mapping) -> Vec<u64> {
    (0..map.len() / 8).map(|n| map.read(n * 8).expect("inside the marks")).collect()
}

impl State {
    fn note(&mut self, event: Event) {
        if !self.on {
            return;
        }
        let mut marks = Vec::new();
        if let Some(map) = &self.marks {
            for (n, word) in self.words.iter_mut().enumerate() {
                let now = map.read(n as u64 * 8).expect("inside the marks");
                if *word != now {
                    marks.push((n, now));
                    *word = now;
                }
            }
        }
        self.moments.push(Moment { marks, event });
    }
}

struct TapeDisk {
    tape: Arc<Tape>,
    file: usize,
}

impl Disk for TapeDisk {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.tape.lock().files.0[self.file].read(buf, at)
    }

    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut state = self.tape.lock();
        state.note(Event::Write { file: self.file, at, bytes: bytes.to_vec() });
        state.files.0[self.file].write(bytes, at);
        if [1, 2].contains(&self.file) {
            state.log_end = at + bytes.len() as u64;
        }
        let during = state.during.take();
        drop(state);
        during.into_iter().for_each(|during| during());
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.tape.lock();
        if state.lie != Some(self.file) {
            state.note(Event::Flush { file: self.file });
            state.files.0[self.file].flush();
        }
        Ok(())
    }
}

/// RAM that records its stores: ordinary RAM, or such as survives on its own.
pub struct TapeMedium(pub Arc<Tape>, pub MediumKind);

impl Medium for TapeMedium {
    fn kind(&self) -> MediumKind {
        self.1
    }
    fn needs(&self) -> Needs {
        Needs { stores: true, flush: false }
    }
    fn flush(&self, _: &Mapping, _: u64, _: u64) {}
    fn fence(&self, _: &Mapping) {}
    fn stored(&self, off: u64, bytes: &[u8]) {
        self.0.lock().note(Event::Store { off, bytes: bytes.to_vec() });
    }
}
