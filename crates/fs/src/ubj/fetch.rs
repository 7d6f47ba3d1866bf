//! Fetching pages that lie on disk alone, for readers and changes, and ahead of sequential readers.
//!
//! Fetched content stays for a while in memory of this process, by its place, where it does not change: so it needs to learn of
//! nothing. It is little, and goes in the order in which it came. Its places are remembered for longer ([`super::ghosts`]), so
//! that a page that is read again is distinguished from a scan's, and comes into the union cache ([`super::admit`]).
//!
//! An unreadable page is forgotten: the next reader tries again.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use exraid::{Aligned, Buffers};
use pram::Session;
use rustix::io::Errno;

use super::ghosts::Ghosts;
use super::{count, Count, Union};
use crate::file::{self, FetchedPage};
use ilfs::place::BLOCK;
use ilfs::read::Reading;
use ilfs::read_ahead::Ahead;
use ilfs::{Error, Log, Place, Run};

/// Most bytes of it.
const FETCHED_MAX: u64 = 32 << 20;
/// Blocks of one read.
const MOST: u32 = 256;
/// Files whose readers are watched.
const STREAMS: usize = 256;

/// How long no second report says that a file cannot be read, and how many files are remembered for that.
const SILENCE: Duration = Duration::from_secs(60);
const REPORTED: usize = 1024;

/// The pages that were fetched lately, and sequential readers.
#[derive(Default)]
pub(super) struct Reads {
    fetched: Mutex<Fetched>,
    streams: Mutex<HashMap<u64, Ahead>>,
    /// Files that were reported as unreadable.
    reported: Mutex<HashMap<u64, Unreported>>,
}

/// The pages of a file that could not be read since the last report.
struct Unreported {
    last: Instant,
    /// Pages, and the first bytes of the first and the last of them.
    pages: u64,
    range: std::ops::RangeInclusive<u64>,
}

impl Unreported {
    /// In words, if there is anything.
    fn text(&self, ino: u64) -> Option<String> {
        let (first, last) = (self.range.start(), self.range.end() + BLOCK - 1);
        (self.pages > 0).then(|| {
            format!("inode {ino}: {} more pages between bytes {first} and {last} could not be read", self.pages)
        })
    }
}

#[derive(Default)]
struct Fetched {
    /// By their first place.
    chunks: BTreeMap<Place, Arc<Chunk>>,
    order: VecDeque<Place>,
    bytes: u64,
    ghosts: Ghosts,
}

/// A run that is being read, or was.
struct Chunk {
    run: Run,
    state: Mutex<State>,
    /// For each page, the end of its last reading; 0: it was not read; [`AGAIN`].
    ends: Vec<AtomicU16>,
}

/// In place of an end: it was read lately, before it was fetched this time.
const AGAIN: u16 = u16::MAX;

enum State {
    Reading(Reading),
    /// The memory in which it is.
    Done(Result<Buffers, Error>),
}

impl Chunk {
    fn begin(log: &Log, session: &Session, run: Run, again: impl FnMut(Place) -> bool) -> Arc<Chunk> {
        let memory = Buffers::whole(&Aligned::zeroed(run.blocks as usize * BLOCK as usize));
        let state = match log.read(session, run, memory) {
            Ok(reading) => State::Reading(reading),
            Err(e) => State::Done(Err(e)),
        };
        let again = (0..run.blocks).map(|n| run.place(n)).map(again);
        let ends = again.map(|again| AtomicU16::new(if again { AGAIN } else { 0 })).collect();
        Arc::new(Chunk { run, state: Mutex::new(state), ends })
    }

    fn has(&self, place: Place) -> bool {
        let (first, place) = (self.run.first, place);
        place.sequence() == first.sequence()
            && (first.block()..first.block() + self.run.blocks).contains(&place.block())
    }

    fn bytes(&self) -> u64 {
        u64::from(self.run.blocks) * BLOCK
    }

    /// Waits until it was read.
    fn wait(&self, log: &Log, session: &Session) -> Result<Buffers, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done =
            match std::mem::replace(&mut *state, State::Done(Err(Error::Unusable("reading it was given up".into())))) {
                State::Reading(reading) => reading.wait(log, session),
                State::Done(done) => done,
            };
        *state = State::Done(done.clone());
        done
    }

    /// The places of it that were read.
    fn were_read(&self) -> impl Iterator<Item = Place> + '_ {
        let ends = (0..).zip(&self.ends).filter(|(_, end)| end.load(Ordering::Relaxed) != 0);
        ends.map(|(n, _)| self.run.place(n))
    }
}

impl Fetched {
    fn find(&self, place: Place) -> Option<Arc<Chunk>> {
        let (_, chunk) = self.chunks.range(..=place).next_back()?;
        chunk.has(place).then(|| chunk.clone())
    }

    fn insert(&mut self, chunk: &Arc<Chunk>) {
        let first = chunk.run.first;
        if let Some(before) = self.chunks.insert(first, chunk.clone()) {
            self.bytes -= before.bytes();
        } else {
            self.order.push_back(first);
        }
        self.bytes += chunk.bytes();
        while self.bytes > FETCHED_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(gone) = self.chunks.remove(&oldest) {
                self.bytes -= gone.bytes();
                gone.were_read().for_each(|place| self.ghosts.add(place));
            }
        }
    }

    /// It could not be read.
    fn forget(&mut self, chunk: &Arc<Chunk>) {
        let first = chunk.run.first;
        if self.chunks.get(&first).is_some_and(|fetched| Arc::ptr_eq(fetched, chunk)) {
            self.chunks.remove(&first);
            self.order.retain(|other| *other != first);
            self.bytes -= chunk.bytes();
        }
    }
}

/// A page in a chunk.
struct Page {
    chunk: Arc<Chunk>,
    /// Which of it.
    n: u32,
    memory: Result<Buffers, Error>,
    /// Where the reading before this one ended, and where this one begins.
    before: u16,
    begins: Cell<Option<u16>>,
}

impl Page {
    fn of(chunk: Arc<Chunk>, place: Place, memory: Result<Buffers, Error>) -> Page {
        let n = place.block() - chunk.run.first.block();
        let before = chunk.ends[n as usize].load(Ordering::Relaxed);
        Page { chunk, n, memory, before, begins: Cell::new(None) }
    }
}

impl FetchedPage for Page {
    fn copy_to(&self, skip: usize, to: &mut [u8]) -> Result<(), Errno> {
        let memory = self.memory.as_ref().map_err(Error::errno)?;
        let from = u64::from(self.n) * BLOCK + skip as u64;
        memory.slice(from..from + to.len() as u64).copy_to(to);
        self.begins.set(Some(skip as u16));
        self.chunk.ends[self.n as usize].store((skip + to.len()) as u16, Ordering::Relaxed);
        Ok(())
    }

    /// A read that goes on where the last one has ended reads the page for the first time yet.
    fn is_read_again(&self) -> bool {
        self.before != 0 && self.begins.get().is_some_and(|begins| begins != self.before)
    }

    fn failure(&self) -> Option<&Error> {
        self.memory.as_ref().err()
    }
}

impl Reads {
    /// Remembers about so many places that were read, and were dropped.
    pub fn new(ghosts: u64) -> Reads {
        let fetched = Fetched { ghosts: Ghosts::new(ghosts), ..Fetched::default() };
        Reads { fetched: Mutex::new(fetched), ..Reads::default() }
    }

    /// The report of a file of which the page at `at` cannot be read: at once where there was none for a while, else it is
    /// counted.
    fn note_unreadable(&self, ino: u64, at: u64, now: Instant) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let page = at / BLOCK * BLOCK;
        if let Some(known) = reported.get_mut(&ino) {
            known.range = match known.pages {
                0 => page..=page,
                _ => *known.range.start().min(&page)..=*known.range.end().max(&page),
            };
            known.pages += 1;
            return false;
        }
        // With so many unreadable files, reports are of no use to anyone.
        if reported.len() >= REPORTED {
            return false;
        }
        reported.insert(ino, Unreported { last: now, pages: 0, range: 0..=0 });
        true
    }

    /// Reports of files that could not be read, some time after the last report of each.
    fn take_unreported(&self, now: Instant) -> Vec<String> {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let mut texts = Vec::new();
        reported.retain(|ino, unreported| {
            if now.saturating_duration_since(unreported.last) < SILENCE {
                return true;
            }
            let text = unreported.text(*ino);
            *unreported = Unreported { last: now, pages: 0, range: 0..=0 };
            let is_reported = text.is_some();
            texts.extend(text);
            is_reported
        });
        texts
    }

    fn fetched(&self) -> std::sync::MutexGuard<'_, Fetched> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Union {
    pub(crate) fn fetch(&self, session: &Session, places: &[Place]) -> Vec<Box<dyn FetchedPage>> {
        let (chunks, begun) = self.begin_reads(session, places);
        let mut fetched: Vec<Box<dyn FetchedPage>> = Vec::with_capacity(places.len());
        for place in places {
            let Some(chunk) = chunks.iter().find(|chunk| chunk.has(*place)) else {
                fetched.push(Box::new(file::Unfetched(Errno::IO)));
                continue;
            };
            let mut page = Page::of(chunk.clone(), *place, chunk.wait(&self.log, session));
            if page.memory.is_err() {
                self.reads.fetched().forget(chunk);
                // Others of the run can be read, perhaps, or it can be read by now.
                let alone = Chunk::begin(&self.log, session, Run::one(*place), |_| false);
                let memory = alone.wait(&self.log, session);
                page = Page::of(alone, *place, memory);
            }
            fetched.push(Box::new(page));
        }
        let (all, missed) = (places.len() as u64, begun.min(places.len() as u64));
        count(session, Count::Fetched, missed);
        count(session, Count::FromFetched, all - missed);
        fetched
    }

    /// Begins to read places that are neither being read nor fetched; returns their chunks, and the number of blocks that are read anew.
    fn begin_reads(&self, session: &Session, places: &[Place]) -> (Vec<Arc<Chunk>>, u64) {
        let mut sorted = places.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut fetched = self.reads.fetched();
        let mut chunks: Vec<Arc<Chunk>> = Vec::new();
        sorted.retain(|place| {
            if chunks.last().is_some_and(|chunk| chunk.has(*place)) {
                return false;
            }
            match fetched.find(*place) {
                Some(chunk) => {
                    chunks.push(chunk);
                    false
                }
                None => true,
            }
        });
        let begun = sorted.len() as u64;
        for run in Run::of(sorted, MOST) {
            let chunk = Chunk::begin(&self.log, session, run, |place| fetched.ghosts.take(place));
            fetched.insert(&chunk);
            chunks.push(chunk);
        }
        (chunks, begun)
    }

    /// This page of a file could not be read: said once of a file; later ones, once a minute ([`Union::report_unreported`]).
    pub(crate) fn tell_unreadable(&self, ino: u64, at: u64, e: &Error) {
        if self.reads.note_unreadable(ino, at, Instant::now()) {
            tracing::error!(
                "inode {ino}: the page with byte {at} cannot be read: {e}; `conquest fsck` and `conquest scrub` tell the files and ranges"
            );
        }
    }

    /// Says how much more of files could not be read, now and then.
    pub(crate) fn report_unreported(&self) {
        self.reads.take_unreported(Instant::now()).iter().for_each(|text| tracing::error!("{text}"));
    }

    /// A file is being read: these pages. Which to fetch besides.
    pub(crate) fn note_read(&self, ino: u64, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut streams = self.reads.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.len() >= STREAMS && !streams.contains_key(&ino) {
            streams.clear();
        }
        streams.entry(ino).or_default().note(pages)
    }

    /// Begins to read content that will be wanted, and waits for nothing.
    pub(crate) fn read_ahead(&self, session: &Session, places: &[Place]) {
        count(session, Count::Ahead, places.len() as u64);
        self.begin_reads(session, places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_file_cannot_be_read_is_logged_once_and_the_rest_once_a_minute() {
        let (reads, now) = (Reads::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        assert!(reads.note_unreadable(7, 5000, now) && reads.note_unreadable(8, 0, now));
        for page in [9, 3, 5] {
            assert!(!reads.note_unreadable(7, page * BLOCK + 1, at(page)));
        }
        assert!(reads.take_unreported(at(59)).is_empty());
        let reports = reads.take_unreported(at(60));
        assert_eq!(reports, ["inode 7: 3 more pages between bytes 12288 and 40959 could not be read"]);
        // The other one is forgotten, and reported anew.
        assert!(reads.note_unreadable(8, 0, at(61)) && !reads.note_unreadable(7, 0, at(61)));
        assert_eq!(reads.take_unreported(at(119)), Vec::<String>::new());
        assert_eq!(reads.take_unreported(at(130)).len(), 1);
        (0..2 * REPORTED as u64).for_each(|ino| _ = reads.note_unreadable(100 + ino, 0, at(131)));
        assert!(reads.reported.lock().unwrap().len() <= REPORTED);
    }
}
