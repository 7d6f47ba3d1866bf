//! Requests under way on one device: who has them, since when, and until when there is patience.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::device::{Answer, Done, Kind, Late, Op, Pending, LATE};
use crate::error::{Class, Error, Result};

/// All of them.
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
    /// No request's time is over before this, and the device is not reported as late before.
    next: Option<Instant>,
    /// When something was answered last.
    last: Option<Instant>,
    /// Requests that have begun.
    begun: u64,
}

struct Flight {
    kind: Kind,
    range: Range<u64>,
    tag: u64,
    since: Instant,
    until: Option<Instant>,
    /// Gone once it was answered.
    done: Option<Done>,
    /// What to run when the device is late; none once it ran.
    late: Option<Late>,
    /// Which of all requests it is.
    generation: u64,
}

/// A place in the table.
pub(crate) type Number = usize;

/// A request, whether or not it is there yet.
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

    /// Tells who asked that it comes late, if it is under way.
    pub fn tell_late(&self, which: Which) {
        let mut table = self.lock();
        let flight = table.flights.get_mut(which.number).and_then(Option::as_mut);
        let late = flight.filter(|flight| flight.generation == which.generation).and_then(|flight| flight.late.take());
        drop(table);
        late.into_iter().for_each(|late| late.report());
    }

    /// The device is done with it: answers, unless that has happened.
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

    /// D4. One that was answered by a timeout and ends well after all has lost nothing.
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

    /// That a flush has failed is forgotten.
    pub fn begin_anew(&self) {
        self.flush_failed.store(false, Ordering::SeqCst);
    }

    /// Does anybody still wait for it?
    pub fn is_wanted(&self, number: Number) -> bool {
        self.lock().flights.get(number).and_then(Option::as_ref).is_some_and(|flight| flight.done.is_some())
    }

    /// Answers those whose time is over, and tells those who wait for a device that has become late; when it is worth while to look again.
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

    /// No request's time is over before that.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.lock().next
    }

    /// Is something under way for which nothing was answered for so long?
    pub fn is_late(&self) -> bool {
        let table = self.lock();
        let is_quiet = table.last.is_none_or(|last| last.elapsed() >= LATE);
        is_quiet && table.flights.iter().flatten().any(|flight| flight.since.elapsed() >= LATE)
    }

    /// Answers all of them: nothing will come of them any more, or nobody will learn of it.
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
