//! What lies on disk alone: fetching it for readers and changes, and ahead of who reads in order.
//!
//! Fetched content is kept for a while in memory of this process, by its place, where it does not change: so it needs to be told of
//! nothing. It is little, and goes in the order in which it came.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use exraid::{Aligned, Buffers};
use pram::Session;
use rustix::io::Errno;

use super::Union;
use crate::file::{FetchedPage, Fetching};
use crate::ilfs::ahead::Ahead;
use crate::ilfs::place::BLOCK;
use crate::ilfs::read::Reading;
use crate::ilfs::{Error, Log, Place, Run};
use crate::node::Fs;

/// Bytes that are kept.
const KEPT: u64 = 32 << 20;
/// Blocks of one read.
const MOST: u32 = 256;
/// Files whose readers are watched.
const STREAMS: usize = 256;

/// What was fetched lately, and who reads in order.
#[derive(Default)]
pub(super) struct Reads {
    kept: Mutex<Kept>,
    streams: Mutex<HashMap<u64, Ahead>>,
}

#[derive(Default)]
struct Kept {
    /// By their first place.
    chunks: BTreeMap<Place, Arc<Chunk>>,
    order: VecDeque<Place>,
    bytes: u64,
}

/// A run that is being read, or was.
struct Chunk {
    run: Run,
    memory: Buffers,
    state: Mutex<State>,
}

enum State {
    Reading(Reading),
    Done(Result<(), Errno>),
}

impl Chunk {
    fn begin(log: &Log, session: &Session, run: Run) -> Arc<Chunk> {
        let memory = Buffers::whole(&Aligned::zeroed(run.blocks as usize * BLOCK as usize));
        let state = match log.read(session, run, memory.clone()) {
            Ok(reading) => State::Reading(reading),
            Err(e) => State::Done(Err(told(run, &e))),
        };
        Arc::new(Chunk { run, memory, state: Mutex::new(state) })
    }

    fn has(&self, place: Place) -> bool {
        let (first, place) = (self.run.first, place);
        place.sequence() == first.sequence()
            && (first.block()..first.block() + self.run.blocks).contains(&place.block())
    }

    /// Waits until it was read.
    fn wait(&self, log: &Log, session: &Session) -> Result<(), Errno> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Reading(_) = *state {
            if let State::Reading(reading) = std::mem::replace(&mut *state, State::Done(Err(Errno::IO))) {
                *state = State::Done(reading.wait(log, session).map_err(|e| told(self.run, &e)));
            }
        }
        match *state {
            State::Done(done) => done,
            State::Reading(_) => Err(Errno::IO),
        }
    }
}

/// What cannot be read is told once, where it lies; who wanted it gets the number.
fn told(run: Run, e: &Error) -> Errno {
    match e {
        // Whoever looks again finds another place, or that it is so.
        Error::Lost(_) => tracing::debug!("reading {} blocks from {}: {e}", run.blocks, run.first),
        e => tracing::error!("reading {} blocks from {}: {e}", run.blocks, run.first),
    }
    e.errno()
}

impl Kept {
    fn find(&self, place: Place) -> Option<Arc<Chunk>> {
        let (_, chunk) = self.chunks.range(..=place).next_back()?;
        chunk.has(place).then(|| chunk.clone())
    }

    fn keep(&mut self, chunk: &Arc<Chunk>) {
        let first = chunk.run.first;
        if let Some(before) = self.chunks.insert(first, chunk.clone()) {
            self.bytes -= before.memory.len();
        } else {
            self.order.push_back(first);
        }
        self.bytes += chunk.memory.len();
        while self.bytes > KEPT {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(gone) = self.chunks.remove(&oldest) {
                self.bytes -= gone.memory.len();
            }
        }
    }
}

/// A page in a chunk.
struct Page {
    chunk: Arc<Chunk>,
    at: u64,
    result: Result<(), Errno>,
}

impl FetchedPage for Page {
    fn copy_to(&self, skip: usize, to: &mut [u8]) -> Result<(), Errno> {
        self.result?;
        let from = self.at + skip as u64;
        self.chunk.memory.slice(from..from + to.len() as u64).copy_to(to);
        Ok(())
    }
}

impl Union {
    fn fetch(&self, session: &Session, places: &[Place]) -> Vec<Box<dyn FetchedPage>> {
        let chunks = self.begin_reads(session, places);
        let mut fetched: Vec<Box<dyn FetchedPage>> = Vec::with_capacity(places.len());
        for place in places {
            let Some(chunk) = chunks.iter().find(|chunk| chunk.has(*place)) else {
                fetched.push(Box::new(crate::file::Unfetched(Errno::IO)));
                continue;
            };
            let mut page = Page { chunk: chunk.clone(), at: 0, result: chunk.wait(&self.log, session) };
            if page.result.is_err() && chunk.run.blocks > 1 {
                // Others of the run can be read, perhaps.
                page.chunk = Chunk::begin(&self.log, session, Run::one(*place));
                page.result = page.chunk.wait(&self.log, session);
            }
            page.at = u64::from(place.block() - page.chunk.run.first.block()) * BLOCK;
            fetched.push(Box::new(page));
        }
        self.counters.fetched.fetch_add(places.len() as u64, Ordering::Relaxed);
        fetched
    }

    /// Begins to read what is not being read or kept; the chunks in which these places are.
    fn begin_reads(&self, session: &Session, places: &[Place]) -> Vec<Arc<Chunk>> {
        let mut sorted = places.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut kept = self.reads.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chunks: Vec<Arc<Chunk>> = Vec::new();
        sorted.retain(|place| {
            if chunks.last().is_some_and(|chunk| chunk.has(*place)) {
                return false;
            }
            match kept.find(*place) {
                Some(chunk) => {
                    chunks.push(chunk);
                    false
                }
                None => true,
            }
        });
        for run in Run::of(sorted, MOST) {
            let chunk = Chunk::begin(&self.log, session, run);
            kept.keep(&chunk);
            chunks.push(chunk);
        }
        chunks
    }

    /// A file is being read: these pages. Which to fetch besides.
    pub(crate) fn note_read(&self, ino: u64, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut streams = self.reads.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.len() >= STREAMS && !streams.contains_key(&ino) {
            streams.clear();
        }
        streams.entry(ino).or_default().note(pages)
    }

    /// Begins to read what somebody will want, and waits for nothing.
    pub(crate) fn read_ahead(&self, session: &Session, places: &[Place]) {
        self.counters.ahead.fetch_add(places.len() as u64, Ordering::Relaxed);
        self.begin_reads(session, places);
    }
}

impl Fetching for Fs {
    fn fetch(&self, places: &[Place]) -> Vec<Box<dyn FetchedPage>> {
        match self.union() {
            Some(union) => union.fetch(self.session(), places),
            None => crate::file::fetch_without(places),
        }
    }
}
