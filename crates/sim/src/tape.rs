//! The requests that reached memory and disks, in one order; the medium and the disks that record them.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use backing::log::Disk;
use backing::SharedDisk;
use pram::{Mapping, Medium, MediumKind, Needs};

use crate::disk::{Files, FILES};
use crate::stage::player;

/// One request to memory or a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Store {
        off: u64,
        bytes: Vec<u8>,
    },
    /// Lines of memory are flushed from the caches.
    LineFlush {
        off: u64,
        len: u64,
        by: Thread,
    },
    Fence {
        by: Thread,
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
    /// No request: a step, or the recording, ends here.
    Rest,
}

/// The thread of a flush or fence: a processor waits for its own flushes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread(pub Option<usize>);

impl Thread {
    /// The calling one.
    pub fn current() -> Thread {
        Thread(player())
    }
}

impl Event {
    pub fn reaches_a_disk(&self) -> bool {
        matches!(self, Event::Write { .. } | Event::Flush { .. } | Event::Failed { .. })
    }

    /// Bytes that it stores in memory.
    pub fn stored(&self) -> usize {
        match self {
            Event::Store { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    /// The event without its content: this is the same when a story runs again.
    pub fn shape(&self) -> String {
        match self {
            Event::Store { bytes, .. } => format!("store {}", bytes.len()),
            Event::LineFlush { len, .. } => format!("flush lines {len}"),
            Event::Fence { .. } => "fence".into(),
            Event::Write { file, at, bytes } => format!("write {file} {at} {}", bytes.len()),
            Event::Flush { file } => format!("flush {file}"),
            Event::Failed { file } => format!("failed flush {file}"),
            Event::Rest => "rest".into(),
        }
    }
}

/// An event, and the words of the marks that changed since the event before: number and value.
#[derive(Clone, Debug)]
pub struct Moment {
    pub marks: Vec<(usize, u64)>,
    pub event: Event,
}

/// The point of a crash: after so many events; of the next event, so many changed words of marks and bytes of its store
/// are included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    pub events: usize,
    pub marks: usize,
    pub cut: usize,
}

impl Point {
    /// After so many events.
    pub fn after(events: usize) -> Point {
        Point { events, ..Point::default() }
    }

    /// Within the store of the next event, after all its marks.
    pub fn within(moments: &[Moment], events: usize, cut: usize) -> Point {
        let marks = moments.get(events).filter(|_| cut > 0).map_or(0, |next| next.marks.len());
        Point { events, marks, cut }
    }

    pub fn name(self) -> String {
        format!("{}.{}.{}", self.events, self.marks, self.cut)
    }

    pub fn parse(name: &str) -> Option<Point> {
        let parts: Vec<usize> = name.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        let [events, marks, cut] = parts[..] else { return None };
        Some(Point { events, marks, cut })
    }
}

/// Memory and disks between two events.
#[derive(Clone)]
pub struct Still {
    pub memory: Arc<Vec<u8>>,
    pub marks: Vec<u64>,
    pub files: Files,
}

impl Still {
    /// Applies an event.
    pub fn apply(&mut self, moment: &Moment) {
        moment.marks.iter().for_each(|(n, word)| self.marks[*n] = *word);
        self.store(&moment.event, moment.event.stored());
        self.files.apply(&moment.event);
    }

    /// Applies the first bytes of a store.
    fn store(&mut self, event: &Event, len: usize) {
        if let Event::Store { off, bytes } = event {
            let at = *off as usize;
            Arc::make_mut(&mut self.memory)[at..at + len].copy_from_slice(&bytes[..len]);
        }
    }

    /// Applies a part of an event.
    fn partly(&mut self, next: &Moment, point: Point) {
        let mut words = next.marks.clone();
        words.sort_by_key(|(n, word)| rank(*n, self.marks[*n], *word));
        words.iter().take(point.marks).for_each(|(n, word)| self.marks[*n] = *word);
        self.store(&next.event, point.cut.min(next.event.stored()));
    }

    /// Memory and disks at these points, which are in ascending order.
    pub fn at<'a>(&self, moments: &'a [Moment], points: Vec<Point>) -> impl Iterator<Item = (Point, Still)> + 'a {
        let (mut still, mut done) = (self.clone(), 0);
        points.into_iter().map(move |point| {
            // The id may come from a longer story.
            let end = point.events.min(moments.len());
            moments[done.min(end)..end].iter().for_each(|moment| still.apply(moment));
            done = end;
            let mut left = still.clone();
            if let Some(next) = moments.get(point.events) {
                left.partly(next, point);
            }
            (point, left)
        })
    }
}

/// Words of the header of the marks: the generation, unused ones, and notes from byte 1024 on.
const HEADER: usize = 512;

/// The order in which changed words of the marks are stored between two events; a death may come after any of them.
/// First how far the logs have come, then marks that are set, marks that are cleared, the generation.
fn rank(n: usize, old: u64, new: u64) -> (u32, i64) {
    match n {
        0 => (4, 0),
        1..HEADER => (1, n as i64),
        _ if new & !old != 0 => (2, n as i64),
        // Lines, then the pages that they are in.
        _ => (3, -(n as i64)),
    }
}

impl Files {
    /// Applies an event; requests to memory do not change the disks.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Write { file, at, bytes } => self.0[*file].write(bytes, *at),
            Event::Flush { file } => self.0[*file].flush(),
            Event::Failed { file } => self.0[*file].fail_flush(),
            _ => {}
        }
    }

    /// The disks after each event that changes them, with the number of events so far.
    pub fn over<'a>(&self, moments: &'a [Moment]) -> impl Iterator<Item = (usize, Files)> + 'a {
        let mut files = self.clone();
        (1..).zip(moments).filter(|(_, moment)| moment.event.reaches_a_disk()).map(move |(at, moment)| {
            files.apply(&moment.event);
            (at, files.clone())
        })
    }
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
    /// Called at the next write to a disk.
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

    /// Begins to record; `marks` is the memory of the marks, if their changes are to be recorded.
    pub fn start(&self, marks: Option<Mapping>) {
        let mut state = self.lock();
        state.words = marks.as_ref().map(words_of).unwrap_or_default();
        (state.marks, state.on, state.moments) = (marks, true, Vec::new());
    }

    /// Ends the recording and returns it.
    pub fn stop(&self) -> Vec<Moment> {
        let mut state = self.lock();
        (state.on, state.during) = (false, None);
        std::mem::take(&mut state.moments)
    }

    /// Notes changes of the marks: a commit that finds nothing to write changes only them.
    pub fn rest(&self) {
        self.lock().note(|| Event::Rest);
    }

    fn note(&self, event: impl FnOnce() -> Event) {
        self.lock().note(event);
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
        state.note(|| Event::Failed { file });
        state.files.0[file].fail_flush();
    }

    /// Disks that record here.
    pub fn disks(self: &Arc<Self>) -> [SharedDisk; FILES] {
        std::array::from_fn(|file| Arc::new(TapeDisk { tape: self.clone(), file }) as SharedDisk)
    }
}

pub fn words_of(map: &Mapping) -> Vec<u64> {
    (0..map.len() / 8).map(|n| map.read(n * 8).expect("inside the marks")).collect()
}

impl State {
    fn note(&mut self, event: impl FnOnce() -> Event) {
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
        self.moments.push(Moment { marks, event: event() });
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
        state.note(|| Event::Write { file: self.file, at, bytes: bytes.to_vec() });
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
            state.note(|| Event::Flush { file: self.file });
            state.files.0[self.file].flush();
        }
        Ok(())
    }
}

/// Memory that records its requests.
#[derive(Clone)]
pub struct TapeMedium {
    pub kind: MediumKind,
    pub tape: Arc<Tape>,
}

impl Medium for TapeMedium {
    fn kind(&self) -> MediumKind {
        self.kind
    }

    fn needs(&self) -> Needs {
        Needs { stores: true, flush: self.kind == MediumKind::Dax }
    }

    fn flush(&self, _: &Mapping, off: u64, len: u64) {
        self.tape.note(|| Event::LineFlush { off, len, by: Thread::current() });
    }

    fn stream(&self, map: &Mapping, off: u64, bytes: &[u8]) -> pram::Result<bool> {
        map.write(off, bytes)?;
        self.stored(off, bytes);
        self.flush(map, off, bytes.len() as u64);
        Ok(true)
    }

    fn fence(&self, _: &Mapping) {
        self.tape.note(|| Event::Fence { by: Thread::current() });
    }

    fn stored(&self, off: u64, bytes: &[u8]) {
        self.tape.note(|| Event::Store { off, bytes: bytes.to_vec() });
    }
}
