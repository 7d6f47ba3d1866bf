//! A duplex: streams of bytes that lie in segments of up to two regions, and are written to both at once.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | opening; reading, writing, flushing |
//! | [`raw`] | the bytes of the notes that members store in their regions |
//! | [`choose_members`] | decides by the notes which members count |
//! | `change` | changes of the members, their states, and the places of the streams |
//! | [`presence`] | the clients that work with it, by locks on the disks |
//! | `view` | the members' states, as a process knows them |
//! | `stream_lock` | the lock on the streams, among threads and processes |
//! | `workers` | threads that send requests to all members at once |
//!
//! The client reserves segments of a region for it ([`Supply`]). The region's [note](crate::note) names them, so that a
//! process with only the disks finds them. The note decides: the client's own records of these segments follow it.
//!
//! A duplex adds to the contract of regions:
//! - X1. A write or flush that is answered without an error was done by all members in use; one that missed it is
//!   excluded, durably. (Else: after a power cut both halves look equal, and one of them lacks acknowledged content.)
//! - X2. A member is not read where it lacks content: one that was excluded, or comes back, is first filled, wholly.
//! - X3. Content that was never written reads as anything.
//!
//! Ordered steps of a write or a flush that a member missed:
//! 1. The others have done it.
//! 2. The notes of these others record that the member is out, in a new epoch; durable. If no whole member is left, the
//!    operation fails.
//! 3. It is answered.
//!
//! Several processes use one duplex: a process that finds that another one has changed something
//! ([`SharedState::version`]) reads the notes before it goes on.

mod change;
pub mod choose_members;
pub mod presence;
pub mod raw;
mod stream_lock;
mod view;
mod workers;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::device::{late, Answer, Request, Ticket};
use crate::disk::directly;
use crate::error::{Class, Error, Result};
use crate::label::{stamp, Epoch, Layout};
use crate::region::shared_state::{failed, SharedState};
use crate::region::{Common, Region};
use crate::sys::memory::{Aligned, Buffers};

pub use choose_members::Refusal;
use choose_members::{judge, Found};
pub use raw::{Completeness, Said, Spans, MEMBERS, STREAMS};
use stream_lock::StreamLock;
use view::{copies_of, said_of, view_of, Place, View};
pub use view::{CopyPlace, MemberStatus};
use workers::{Work, Workers};

/// The interval at which a waiting operation checks whether a member is late.
const GLANCE: Duration = Duration::from_millis(50);

/// Reserves segments for a duplex.
pub trait Supply: Send + Sync {
    /// Reserves so many segments of a region, for which its host has storage.
    fn take(&self, region: u32, count: u64) -> Result<Vec<u32>>;
    /// Takes back segments that no note names any more.
    fn give_back(&self, region: u32, segments: &[Range<u32>]);
    /// Are all of these reserved?
    fn has(&self, region: u32, segments: &[Range<u32>]) -> bool;
}

/// Finds a region that has become a member since this process opened the duplex.
pub type Finder = Box<dyn Fn(u32) -> Option<Arc<dyn Region>> + Send + Sync>;

/// Streams in two regions; see the [module](self).
pub struct Duplex {
    name: Arc<str>,
    shared_state: Option<Arc<SharedState>>,
    stream_lock: StreamLock,
    workers: Workers,
    view: RwLock<Arc<View>>,
    regions: Mutex<BTreeMap<u32, Arc<dyn Region>>>,
    finder: Mutex<Option<Finder>>,
    supply: Mutex<Option<Arc<dyn Supply>>>,
    /// The least bytes of each stream.
    least: [AtomicU64; STREAMS],
    /// One copy was wrong where another was right.
    wrong: AtomicBool,
    /// This process changes nothing.
    read_only: bool,
}

/// Evaluates the notes of these regions.
pub fn look(regions: &[Arc<dyn Region>]) -> Result<Found, Refusal> {
    judge(&notes_of(regions, &[]))
}

/// The note of a region, if it is one of a duplex.
pub fn named_by(region: &dyn Region) -> Result<Option<Said>> {
    Ok(region.note()?.and_then(|bytes| Said::from_bytes(&bytes)))
}

/// Makes a region forget any duplex: it is no member then.
pub fn forget(region: &dyn Region) -> Result<()> {
    match region.note()? {
        Some(bytes) if Said::from_bytes(&bytes).is_some() => region.set_note(&[]),
        _ => Ok(()),
    }
}

fn notes_of(regions: &[Arc<dyn Region>], without: &[u32]) -> Vec<(u32, Said)> {
    let read = |region: &Arc<dyn Region>| {
        let said = named_by(&**region).ok().flatten()?;
        Some((region.number(), said))
    };
    regions.iter().filter(|region| !without.contains(&region.number())).filter_map(read).collect()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

pub(super) fn seconds() -> u64 {
    now() / 1_000_000_000
}

/// Seconds since 1970, as text.
pub(crate) fn time(seconds: u64) -> String {
    let (days, of_day) = ((seconds / 86400) as i64 + 719_468, seconds % 86400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

impl Duplex {
    /// Makes one of these regions, with these segments of `segment` bytes; the content of the streams is undefined.
    /// Their notes name the segments when this returns, durably.
    pub fn create(
        regions: &[(Arc<dyn Region>, Spans)],
        segment: u64,
        extra: &[u8],
        common: Option<&Common>,
    ) -> Result<Duplex> {
        let name: Arc<str> = "the backing".into();
        let fail = |e: std::io::Error| Error::new(Class::Transient, &name, format!("a random number: {e}"));
        let mut places: [Option<Place>; MEMBERS] = Default::default();
        for (place, (region, spans)) in places.iter_mut().zip(regions) {
            *place = Some(Place {
                region: region.number(),
                state: Completeness::Whole,
                since: seconds(),
                spans: spans.clone(),
                handle: Some(region.clone()),
            });
        }
        let epoch = Epoch::first(stamp().map_err(fail)?);
        let (id, extra) = (stamp().map_err(fail)?, extra.to_vec());
        let view = View { version: 0, id, created: now(), epoch, segment, extra, places };
        let handles: Vec<_> = regions.iter().map(|(region, _)| region.clone()).collect();
        let duplex = Duplex::over(name, view, &handles, common, false)?;
        let _held = duplex.hold()?;
        let view = (*duplex.view()).clone();
        match duplex.publish(&view).into_iter().next() {
            Some((_, e)) => Err(e),
            None => duplex.install(view),
        }?;
        drop(_held);
        Ok(duplex)
    }

    /// Opens the one with members among these regions. A missing member is excluded, durably, before anything is
    /// written.
    pub fn open(
        regions: &[Arc<dyn Region>],
        common: Option<&Common>,
        read_only: bool,
    ) -> std::result::Result<Duplex, Refusal> {
        let found = look(regions)?;
        let view = view_of(&found, |number| regions.iter().find(|region| region.number() == number).cloned());
        let duplex = Duplex::over("the backing".into(), view, regions, common, read_only)?;
        if !read_only {
            duplex.refresh()?;
        }
        Ok(duplex)
    }

    fn over(
        name: Arc<str>,
        view: View,
        regions: &[Arc<dyn Region>],
        common: Option<&Common>,
        read_only: bool,
    ) -> Result<Duplex> {
        let joined = common.map(|common| SharedState::join(common, 0)).transpose().map_err(|e| failed(&name, &e))?;
        let shared_state = joined.map(|(shared_state, _)| shared_state);
        // The first operation finds later changes.
        let view = View { version: u64::MAX, ..view };
        Ok(Duplex {
            name,
            shared_state,
            stream_lock: StreamLock::default(),
            workers: Workers::default(),
            view: RwLock::new(Arc::new(view)),
            regions: Mutex::new(regions.iter().map(|region| (region.number(), region.clone())).collect()),
            finder: Mutex::default(),
            supply: Mutex::default(),
            least: Default::default(),
            wrong: AtomicBool::new(false),
            read_only,
        })
    }

    /// Sets the function that finds regions that become members later.
    pub fn set_finder(&self, finder: Finder) {
        *self.finder.lock().unwrap_or_else(PoisonError::into_inner) = Some(finder);
    }

    /// Sets the source of segments for a stream that gets longer.
    pub fn set_supply(&self, supply: Option<Arc<dyn Supply>>) {
        *self.supply.lock().unwrap_or_else(PoisonError::into_inner) = supply;
    }

    /// Sets the lengths below which no stream shrinks.
    pub fn set_least(&self, least: [u64; STREAMS]) {
        self.least.iter().zip(least).for_each(|(at, bytes)| at.store(bytes, Ordering::Relaxed));
    }

    fn view(&self) -> Arc<View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_current(&self, view: &View) -> bool {
        self.shared_state.as_ref().is_none_or(|shared_state| shared_state.version() == view.version)
            || self.read_only && view.version == u64::MAX
    }

    /// The present view.
    fn current(&self) -> Result<Arc<View>> {
        let view = self.view();
        match self.is_current(&view) {
            true => Ok(view),
            false => self.refresh(),
        }
    }

    fn error(&self, class: Class, what: impl Into<String>) -> Error {
        Error::new(class, &self.name, what)
    }

    /// Bytes of a stream that its segments can hold.
    pub fn len(&self, stream: usize) -> u64 {
        self.current().unwrap_or_else(|_| self.view()).len(stream)
    }

    /// The same, as this process knows it already: waits for nothing.
    pub fn known_len(&self, stream: usize) -> u64 {
        self.view().len(stream)
    }

    /// Bytes of a segment.
    pub fn segment(&self) -> u64 {
        self.view().segment
    }

    /// The client's own data in the notes.
    pub fn extra(&self) -> Vec<u8> {
        self.view().extra.clone()
    }

    pub fn members(&self) -> Vec<MemberStatus> {
        let view = self.current().unwrap_or_else(|_| self.view());
        let status = |(_, place): (usize, &Place)| MemberStatus {
            region: place.region,
            state: place.state,
            since: place.since,
            is_there: place.handle.is_some(),
            bytes: place.spans.iter().map(|spans| raw::count(spans)).sum::<u64>() * view.segment,
        };
        view.places().map(status).collect()
    }

    /// The present note for a region that is no member, to remember the states.
    pub fn for_witness(&self) -> Result<Said> {
        Ok(said_of(&*self.current()?, None))
    }

    /// The segments of a region that the duplex has.
    pub fn segments_in(&self, region: u32) -> Result<Vec<Range<u32>>> {
        let view = self.current()?;
        let spans = view.places().find(|(_, place)| place.region == region).map(|(_, place)| place.spans.clone());
        Ok(spans.into_iter().flatten().flatten().collect())
    }

    /// Notes that a copy is wrong where another is right: they need a comparison.
    pub fn note_wrong(&self) {
        self.wrong.store(true, Ordering::Relaxed);
    }

    /// Was that noted since the last call?
    pub fn take_wrong(&self) -> bool {
        self.wrong.swap(false, Ordering::Relaxed)
    }

    /// All copies of the streams: each in a region of each whole member. The numbers change with the members.
    pub fn copies(&self) -> Vec<CopyPlace> {
        copies_of(&self.current().unwrap_or_else(|_| self.view()))
    }

    /// Reads copy `n` alone: another one is wrong there.
    pub fn read_copy(&self, stream: usize, n: usize, to: &mut [u8], at: u64) -> Result<()> {
        let view = self.current()?;
        let Some(CopyPlace { region, copy }) = copies_of(&view).get(n).copied() else {
            return Err(self.error(Class::Gone, format!("there is no copy {n}")));
        };
        let place = view.places.iter().flatten().find(|place| place.region == region);
        let place = place.ok_or_else(|| self.error(Class::Gone, "a member is missing"))?;
        self.read_from(&view, place, (Some(copy), false), stream, to, at)
    }

    pub fn read(&self, stream: usize, to: &mut [u8], at: u64) -> Result<()> {
        loop {
            let view = self.current()?;
            let mut why = self.error(Class::Gone, "no member that has all is there");
            // A late member is asked last.
            let mut whole: Vec<&Place> = view.places().filter(|(_, place)| place.is_whole()).map(|(_, p)| p).collect();
            whole.sort_by_key(|place| place.handle.as_ref().is_some_and(|region| region.is_late()));
            let last = whole.len().saturating_sub(1);
            for (n, place) in whole.into_iter().enumerate() {
                match self.read_from(&view, place, (None, n == last), stream, to, at) {
                    Ok(()) if self.is_current(&view) => return Ok(()),
                    // It may have been excluded since.
                    Ok(()) => break,
                    Err(e) => why = e,
                }
            }
            if self.is_current(&view) {
                return Err(why);
            }
        }
    }

    /// Reads from one member, either copy `copy` in its region or any. `waits`: waits even where the region is late.
    fn read_from(
        &self,
        view: &View,
        place: &Place,
        (copy, waits): (Option<usize>, bool),
        stream: usize,
        to: &mut [u8],
        at: u64,
    ) -> Result<()> {
        let Some(region) = &place.handle else { return Err(self.error(Class::Gone, "a member is missing")) };
        let block = u64::from(region.properties().block);
        let (start, end) = (at / block * block, (at + to.len() as u64).next_multiple_of(block));
        let mut started: Vec<(Range<u64>, Ticket)> = Vec::new();
        for (from, within) in self.pieces(view, place, stream, start..end)? {
            let memory = Aligned::zeroed((within.end - within.start) as usize);
            let (done, ticket) = Ticket::new();
            let request = Request::read(from, Buffers::whole(&memory)).with_late(ticket.late());
            match copy {
                None => region.submit(request, done),
                Some(copy) => region.read_copy(copy, request, done),
            }
            started.push((within, ticket));
        }
        let mut result = Ok(());
        for (within, ticket) in started {
            let answer = match ticket.wait_unless_late() {
                Ok(answer) => answer,
                Err(ticket) if waits => ticket.wait(),
                Err(_) => late(&self.name, "a read"),
            };
            let (Ok(()), Some(buffers)) = (&answer.result, answer.buffers) else {
                result = answer.result.and_then(|()| Err(self.error(Class::Transient, "no memory came back")));
                continue;
            };
            let (from, until) = (within.start.max(at), within.end.min(at + to.len() as u64));
            if from < until {
                let part = buffers.slice(from - within.start..until - within.start);
                part.copy_to(&mut to[(from - at) as usize..(until - at) as usize]);
            }
        }
        result
    }

    /// Where a stretch of a stream lies in its region: addresses, and the bytes of the stream there.
    fn pieces(&self, view: &View, place: &Place, stream: usize, range: Range<u64>) -> Result<Vec<(u64, Range<u64>)>> {
        let (mut pieces, mut start) = (Vec::new(), 0);
        for span in &place.spans[stream] {
            let end = start + u64::from(span.end - span.start) * view.segment;
            let (from, until) = (range.start.max(start), range.end.min(end));
            if from < until {
                pieces.push((u64::from(span.start) * view.segment + (from - start), from..until));
            }
            start = end;
        }
        match range.end <= start {
            true => Ok(pieces),
            false => {
                let what = format!("bytes {}..{} of stream {stream}, which has {start}", range.start, range.end);
                Err(self.error(Class::Invalid, what))
            }
        }
    }

    /// Writes to all members; see the [module](self) for the steps. Lengthens a stream that is too short.
    pub fn write(&self, stream: usize, from: &[u8], at: u64) -> Result<()> {
        let block = self.current()?.block();
        let (start, end) = (at / block * block, (at + from.len() as u64).next_multiple_of(block));
        if self.len(stream) < end {
            self.grow(stream, end)?;
        }
        let memory = match (start, end) == (at, at + from.len() as u64) {
            true => Aligned::of(from),
            false => {
                let mut whole = vec![0; (end - start) as usize];
                self.read(stream, &mut whole, start)?;
                whole[(at - start) as usize..][..from.len()].copy_from_slice(from);
                Aligned::of(&whole)
            }
        };
        self.write_to_all(stream, &memory, start..end, false)
    }

    /// Writes to all members, and flushes each as soon as it has written.
    pub fn write_through(&self, stream: usize, from: &[u8], at: u64) -> Result<()> {
        let (block, end) = (self.current()?.block(), at + from.len() as u64);
        if at % block == 0 && end % block == 0 && self.len(stream) >= end {
            return self.write_to_all(stream, &Aligned::of(from), at..end, true);
        }
        self.write(stream, from, at)?;
        self.flush()
    }

    fn write_to_all(&self, stream: usize, memory: &Arc<Aligned>, range: Range<u64>, flush: bool) -> Result<()> {
        let _held = self.stream_lock.shared(self.shared_state.as_ref(), &self.name)?;
        let view = self.to_write()?;
        let mut todo: Vec<(usize, Arc<dyn Region>, Work)> = Vec::new();
        for (n, place) in view.places() {
            let Some(region) = place.used() else { continue };
            let (pieces, memory, start) =
                (self.pieces(&view, place, stream, range.clone())?, memory.clone(), range.start);
            let others = view.others(n);
            let work = move |region: &dyn Region| {
                for (to, piece) in pieces {
                    let part = (piece.start - start) as usize..(piece.end - start) as usize;
                    run_beside(region, Request::write(to, Buffers::part(&memory, part)), &others)?;
                }
                match flush {
                    true => flush_now(region, &others),
                    false => Ok(()),
                }
            };
            todo.push((n, region.clone(), Box::new(work)));
        }
        let started = self.start_all(todo);
        self.finish(&view, started)
    }

    /// Makes all writes to the streams durable, in all members.
    pub fn flush(&self) -> Result<()> {
        let _held = self.stream_lock.shared(self.shared_state.as_ref(), &self.name)?;
        let view = self.to_write()?;
        let used = view.places().filter_map(|(n, place)| Some((n, place.used()?.clone())));
        let flush = |(n, region): (usize, Arc<dyn Region>)| {
            let others = view.others(n);
            (n, region, Box::new(move |region: &dyn Region| flush_now(region, &others)) as Work)
        };
        let started = self.start_all(used.map(flush).collect());
        self.finish(&view, started)
    }

    /// Starts a request to all members at once, each in a thread of its own, so that a hanging one can be left behind.
    /// A single member cannot be replaced by others: there it is done at once.
    fn start_all(&self, todo: Vec<(usize, Arc<dyn Region>, Work)>) -> Vec<(usize, Ticket)> {
        let is_alone = todo.len() == 1;
        let start = |(n, region, work): (usize, Arc<dyn Region>, Work)| {
            let (done, ticket) = Ticket::new();
            let run = move || {
                let result = match region.layout() {
                    Layout::Single => directly(|| work(&*region)),
                    _ => work(&*region),
                };
                done(Answer { result, buffers: None });
            };
            match is_alone {
                true => run(),
                false => self.workers.start(n, Box::new(run)),
            }
            (n, ticket)
        };
        todo.into_iter().map(start).collect()
    }

    /// The view for a write: members that are missing here are out.
    fn to_write(&self) -> Result<Arc<View>> {
        let view = self.current()?;
        let is_missing = |(_, place): (usize, &Place)| place.handle.is_none() && place.state != Completeness::Out;
        let lacks = view.places().any(is_missing);
        match lacks {
            true => {
                self.exclude_missing()?;
                self.current()
            }
            false => Ok(view),
        }
    }

    /// Waits for all members, and excludes those that missed the request.
    fn finish(&self, view: &View, started: Vec<(usize, Ticket)>) -> Result<()> {
        let mut failures: Vec<(usize, Error)> = Vec::new();
        let mut waiting = started;
        while !waiting.is_empty() {
            let is_out =
                |n: usize| waiting.iter().any(|(one, _)| *one == n) || failures.iter().any(|(one, _)| *one == n);
            let has_whole = view.places().any(|(n, place)| place.is_whole() && !is_out(n));
            let mut left = Vec::new();
            for (n, ticket) in waiting {
                let region = view.places[n].as_ref().and_then(|place| place.handle.as_ref());
                match ticket.wait_for(GLANCE) {
                    Ok(answer) => {
                        failures.extend(answer.result.err().map(|e| (n, e)));
                    }
                    Err(_) if has_whole && region.is_some_and(|region| region.is_late()) => {
                        failures.push((n, self.error(Class::Timeout, "it does not answer")));
                    }
                    Err(ticket) => left.push((n, ticket)),
                }
            }
            waiting = left;
        }
        let is_ours = |e: &Error| matches!(e.class, Class::Invalid | Class::NoSpace);
        if let Some((_, e)) = failures.iter().find(|(_, e)| is_ours(e)) {
            return Err(e.clone());
        }
        let has_failed = |n: usize| failures.iter().any(|(failed, _)| *failed == n);
        let has_whole = view.places().any(|(n, place)| place.is_whole() && !has_failed(n));
        match failures.first() {
            None if has_whole => Ok(()),
            None => Err(self.error(Class::Gone, "no member that has all is there")),
            // No member is better than another.
            Some((_, e)) if !has_whole => Err(e.clone()),
            Some(_) => self.exclude(view, &failures),
        }
    }
}

/// Sends a request to a member and waits for it; gives up a late one only if another whole member answers.
fn run_beside(region: &dyn Region, request: Request, others: &[Arc<dyn Region>]) -> Result<()> {
    let what = request.op.to_string();
    let mut ticket = region.start(request);
    loop {
        ticket = match ticket.wait_for(GLANCE) {
            Ok(answer) => return answer.result,
            Err(ticket) => ticket,
        };
        if region.is_late() && others.iter().any(|other| !other.is_late()) {
            return late(region.name(), &what).result;
        }
    }
}

/// A flush without storage has lost content: unlike a write, it is not tried again.
fn flush_now(region: &dyn Region, others: &[Arc<dyn Region>]) -> Result<()> {
    run_beside(region, Request::flush(), others).map_err(|e| match e.class {
        Class::NoSpace => Error { class: Class::Media, ..e },
        _ => e,
    })
}
