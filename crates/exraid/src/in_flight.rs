//! Requests under way on one device, with their start and time limits.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::device::{Answer, Done, Kind, Late, Op, Pending, LATE};
use crate::error::{Class, Error, Result};

/// The table of a device.
#[derive(Default)]
pub(crate) struct Flights {
    table: Mutex<Table>,
    /// A flush has failed (D4).
    flush_failed: AtomicBool,
}

#[derive(Default)]
struct Table {
    flights: Vec<Option<Flight>>,
    free: Vec<Number>,
    /// Before this, no request times out and the device is not reported as late.
    next: Option<Instant>,
    /// The time of the last answer.
    last: Option<Instant>,
    /// The number of requests so far.
    begun: u64,
}

struct Flight {
    kind: Kind,
    range: Range<u64>,
    tag: u64,
    since: Instant,
    until: Option<Instant>,
    /// None once it was answered.
    done: Option<Done>,
    /// Runs when the device is late; none once it ran.
    late: Option<Late>,
    /// The number of the request among all.
    generation: u64,
}

/// A place in the table.
pub(crate) type Number = usize;

/// A request that may have ended already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Which {
    pub number: Number,
    generation: u64,
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(&self, op: &Op, tag: u64, within: Option<Duration>, late: Option<Late>, done: Done) -> Number {
        self.begin_which(op, tag, within, late, done).number
    }

    pub fn begin_which(&self, op: &Op, tag: u64, within: Option<Duration>, late: Option<Late>, done: Done) -> Which {
        let since = Instant::now();
        let until = within.and_then(|time| since.checked_add(time));
        let mut table = self.lock();
        table.begun += 1;
        let generation = table.begun;
        table.next = earlier(table.next, earlier(until, late.as_ref().map(|late| since + late.after)));
        let flight =
            Flight { kind: op.kind(), range: op.range(), tag, since, until, done: Some(done), late, generation };
        let number = match table.free.pop() {
            Some(number) => {
                table.flights[number] = Some(flight);
                number
            }
            None => {
                table.flights.push(Some(flight));
                table.flights.len() - 1
            }
        };
        Which { number, generation }
    }

    /// Tells the client of a request that it is late, if it is still under way.
    pub fn tell_late(&self, which: Which) {
        let mut table = self.lock();
        let flight = table.flights.get_mut(which.number).and_then(Option::as_mut);
        let late = flight.filter(|flight| flight.generation == which.generation).and_then(|flight| flight.late.take());
        drop(table);
        late.into_iter().for_each(|late| late.report());
    }

    /// The device has ended it: answers, unless that has happened.
    pub fn end(&self, number: Number, device: &Arc<str>, mut answer: Answer) {
        let mut table = self.lock();
        let Some(flight) = table.flights.get_mut(number).and_then(Option::take) else { return };
        table.free.push(number);
        table.last = Some(Instant::now());
        drop(table);
        if flight.kind == Kind::Flush {
            answer.result = self.flushed(device, answer.result);
        }
        if let Some(done) = flight.done {
            done(answer);
        }
    }

    /// D4. A flush that succeeds after its timeout has lost nothing.
    fn flushed(&self, device: &Arc<str>, result: Result<()>) -> Result<()> {
        let failed = self.flush_failed.fetch_or(result.is_err(), Ordering::SeqCst);
        match result {
            Ok(()) if failed => Err(Error::new(
                Class::Media,
                device,
                "flush: one before it failed, and what it was to keep may be lost",
            )),
            result => result,
        }
    }

    /// Forgets failed flushes.
    pub fn begin_anew(&self) {
        self.flush_failed.store(false, Ordering::SeqCst);
    }

    /// Has it no answer yet?
    pub fn is_wanted(&self, number: Number) -> bool {
        self.lock().flights.get(number).and_then(Option::as_ref).is_some_and(|flight| flight.done.is_some())
    }

    /// Answers requests that have timed out, and reports late ones; returns the time of the next check.
    pub fn expire(&self, device: &Arc<str>) -> Option<Instant> {
        let mut table = self.lock();
        let next = table.next?;
        let now = Instant::now();
        if next > now {
            return Some(next);
        }
        let (mut over, mut late_ones, mut next, last) = (Vec::new(), Vec::new(), None, table.last);
        for flight in table.flights.iter_mut().flatten().filter(|flight| flight.done.is_some()) {
            let quiet = flight.since.max(last.unwrap_or(flight.since));
            match flight.late.as_ref().map(|late| quiet + late.after) {
                Some(due) if due <= now => late_ones.extend(flight.late.take()),
                due => next = earlier(next, due),
            }
            let Some(until) = flight.until else { continue };
            if until > now {
                next = earlier(next, Some(until));
            } else if let Some(done) = flight.done.take() {
                let what =
                    format!("{} at {}: no answer after {:?}", flight.kind, flight.range.start, now - flight.since);
                over.push((done, Error::new(Class::Timeout, device, what)));
            }
        }
        table.next = next;
        drop(table);
        late_ones.into_iter().for_each(|late| late.report());
        over.into_iter().for_each(|(done, e)| done(Answer { result: Err(e), buffers: None }));
        next
    }

    /// No request times out before this.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.lock().next
    }

    /// Is a request under way, with no answer of the device for [`LATE`]?
    pub fn is_late(&self) -> bool {
        let table = self.lock();
        let is_quiet = table.last.is_none_or(|last| last.elapsed() >= LATE);
        is_quiet && table.flights.iter().flatten().any(|flight| flight.since.elapsed() >= LATE)
    }

    /// Answers all of them: they will not end any more, or without notice.
    pub fn give_up(&self, error: &Error) {
        let all: Vec<Done> = self.lock().flights.iter_mut().flatten().filter_map(|flight| flight.done.take()).collect();
        all.into_iter().for_each(|done| done(Answer { result: Err(error.clone()), buffers: None }));
    }

    pub fn pending(&self) -> Vec<Pending> {
        let tell = |flight: &Flight| Pending {
            tag: flight.tag,
            kind: flight.kind,
            range: flight.range.clone(),
            age: flight.since.elapsed(),
            answered: flight.done.is_none(),
        };
        self.lock().flights.iter().flatten().map(tell).collect()
    }
}
