//! A disk with seeded failures.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rng::Rng;

use super::timer::{Again, Timer};
use crate::device::{Answer, Device, Done, Kind, Op, Pending, Properties, Request};
use crate::error::{Class, Error};
use crate::in_flight::Flights;
use crate::sys::memory::{Aligned, Buffers};

/// A failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with an error, and nothing was done.
    Error(Class),
    /// A write of which some sectors are done; it fails with an error.
    Torn,
    /// A write that is done elsewhere; it reports success.
    Misdirected,
    /// A write that is not done at all; it reports success.
    Lost,
    /// A read with one bit wrong; it reports success.
    Flipped,
    /// A flush that is not done; it reports success.
    LostFlush,
    /// No answer, until [`FaultDisk::release`].
    Hang,
}

/// The frequency of failures: one in so many requests that can fail in this way; 0 is never.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub error: u32,
    pub torn: u32,
    pub misdirected: u32,
    pub lost: u32,
    pub flipped: u32,
    pub lost_flush: u32,
    pub hang: u32,
    /// If set, only requests of this kind get an error or no answer.
    pub only: Option<Kind>,
    /// The delay of each answer.
    pub delay: Duration,
    /// Bytes per second, at most.
    pub rate: Option<u64>,
    /// Every answer is [`Class::Gone`].
    pub gone: bool,
    /// Reads of these bytes fail, until they are written.
    pub bad: Vec<Range<u64>>,
}

/// A failure that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected {
    /// The number of the request.
    pub request: u64,
    pub fault: Fault,
    pub kind: Kind,
    pub range: Range<u64>,
}

/// A failing disk over another device; see the [module](self).
pub struct FaultDisk {
    inner: Arc<dyn Device>,
    shared: Arc<Shared>,
    timer: Timer,
}

struct Shared {
    name: Arc<str>,
    flights: Flights,
    state: Mutex<State>,
    /// The time of the next check for timeouts.
    looks: Mutex<Option<Instant>>,
}

struct State {
    rng: Rng,
    faults: Faults,
    requests: u64,
    injected: Vec<Injected>,
    /// Hanging requests: they are done on release.
    hanging: Vec<Box<dyn FnOnce() + Send>>,
    /// By its rate, the disk is busy until then.
    busy: Instant,
}

impl FaultDisk {
    pub fn over(inner: Arc<dyn Device>, seed: u64, faults: Faults) -> Arc<FaultDisk> {
        let state = State {
            rng: Rng::new(seed),
            faults,
            requests: 0,
            injected: Vec::new(),
            hanging: Vec::new(),
            busy: Instant::now(),
        };
        let shared = Shared {
            name: inner.name().clone(),
            flights: Flights::default(),
            state: Mutex::new(state),
            looks: Mutex::default(),
        };
        Arc::new(FaultDisk { inner, shared: Arc::new(shared), timer: Timer::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the failures from now on.
    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.lock().faults);
    }

    /// The failures so far.
    pub fn injected(&self) -> Vec<Injected> {
        self.lock().injected.clone()
    }

    /// The number of hanging requests.
    pub fn hanging(&self) -> usize {
        self.lock().hanging.len()
    }

    /// Lets the hanging requests be done.
    pub fn release(&self) {
        let hanging = std::mem::take(&mut self.lock().hanging);
        hanging.into_iter().for_each(|go| go());
    }

    /// Answers at `time`, through the table of requests under way.
    fn answer_at(&self, time: Option<Instant>, number: usize, answer: Answer) {
        let shared = self.shared.clone();
        let end = move || shared.flights.end(number, &shared.name.clone(), answer);
        match time {
            Some(time) => self.timer.at(time, end),
            None => end(),
        }
    }
}

impl State {
    /// The failure of this request, if any, and the time of its answer.
    fn draw(&mut self, op: &Op) -> (Option<Fault>, Option<Instant>) {
        self.requests += 1;
        let range = op.range();
        let kind = op.kind();
        if kind == Kind::Write {
            self.faults.bad.retain(|bad| bad.end <= range.start || range.end <= bad.start);
        }
        let fault = self.fault(kind, &range);
        if let Some(fault) = fault {
            self.injected.push(Injected { request: self.requests, fault, kind, range: range.clone() });
        }
        let moves = matches!(kind, Kind::Read | Kind::Write);
        let mut when = (!self.faults.delay.is_zero()).then(|| Instant::now() + self.faults.delay);
        if let Some(rate) = self.faults.rate.filter(|_| moves) {
            let takes = Duration::from_secs_f64((range.end - range.start) as f64 / rate as f64);
            self.busy = self.busy.max(Instant::now()) + takes;
            when = when.max(Some(self.busy));
        }
        (fault, when)
    }

    fn fault(&mut self, kind: Kind, range: &Range<u64>) -> Option<Fault> {
        let faults = &self.faults;
        let is_bad = |bad: &Range<u64>| bad.start < range.end && range.start < bad.end;
        if faults.gone {
            return Some(Fault::Error(Class::Gone));
        }
        if kind == Kind::Read && faults.bad.iter().any(is_bad) {
            return Some(Fault::Error(Class::Media));
        }
        let odds: &[(u32, Fault)] = match kind {
            Kind::Read => &[(faults.flipped, Fault::Flipped)],
            Kind::Write => {
                &[(faults.torn, Fault::Torn), (faults.misdirected, Fault::Misdirected), (faults.lost, Fault::Lost)]
            }
            Kind::Flush => &[(faults.lost_flush, Fault::LostFlush)],
            Kind::Discard | Kind::Reserve => &[],
        };
        let class = [Class::Media, Class::Transient][self.rng.below(2) as usize];
        let any = match faults.only.is_none_or(|only| only == kind) {
            true => &[(faults.hang, Fault::Hang), (faults.error, Fault::Error(class))][..],
            false => &[],
        };
        let mut hit = |odds: &&(u32, Fault)| odds.0 > 0 && self.rng.below(odds.0.into()) == 0;
        any.iter().chain(odds).find(|odds| hit(odds)).map(|(_, fault)| *fault)
    }
}

impl Device for FaultDisk {
    fn name(&self) -> &Arc<str> {
        &self.shared.name
    }

    fn begin_anew(&self) {
        self.shared.flights.begin_anew();
        self.inner.begin_anew();
    }

    fn properties(&self) -> Properties {
        self.inner.properties()
    }

    fn submit(&self, request: Request, done: Done) {
        let late = request.late.clone();
        let number = self.shared.flights.begin(&request.op, request.tag, request.within, late, done);
        look_in_time(&self.timer.for_later(), &self.shared);
        let (fault, when) = self.lock().draw(&request.op);
        let Request { op, .. } = request;
        let failed = |class, what: &str| Err(Error::new(class, &self.shared.name, format!("{op}: {what}, as planned")));
        match fault {
            Some(Fault::Error(class)) => {
                let result = failed(class, "it fails");
                self.answer_at(when, number, Answer { result, buffers: op.into_buffers() });
            }
            Some(Fault::LostFlush | Fault::Lost) => {
                self.answer_at(when, number, Answer { result: Ok(()), buffers: op.into_buffers() });
            }
            Some(Fault::Torn) => {
                let result = failed(Class::Media, "it is torn");
                self.tear(&op);
                self.answer_at(when, number, Answer { result, buffers: op.into_buffers() });
            }
            Some(Fault::Misdirected) => self.misdirect(op, number, when),
            Some(Fault::Hang) => {
                let (inner, shared) = (self.inner.clone(), self.shared.clone());
                let go = move || {
                    let name = shared.name.clone();
                    inner.submit(op.into(), Box::new(move |answer| shared.flights.end(number, &name, answer)));
                };
                self.lock().hanging.push(Box::new(go));
            }
            Some(Fault::Flipped) => {
                let answer = self.inner.run(op.into());
                if let Some(buffers) = answer.buffers.as_ref().filter(|buffers| !buffers.is_empty()) {
                    self.flip(buffers);
                }
                self.answer_at(when, number, answer);
            }
            None if when.is_some() => {
                let answer = self.inner.run(op.into());
                self.answer_at(when, number, answer);
            }
            None => {
                let shared = self.shared.clone();
                let done = move |answer| shared.flights.end(number, &shared.name.clone(), answer);
                self.inner.submit(op.into(), Box::new(done));
            }
        }
    }

    fn pending(&self) -> Vec<Pending> {
        self.shared.flights.pending()
    }

    fn is_late(&self) -> bool {
        self.shared.flights.is_late()
    }
}

/// Sets the timer for the next timeout, unless it is set.
fn look_in_time(timer: &Again, shared: &Arc<Shared>) {
    let Some(at) = shared.flights.next_timeout() else { return };
    {
        let mut looks = shared.looks.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.is_some_and(|looks| looks <= at) {
            return;
        }
        *looks = Some(at);
    }
    let (then, theirs) = (timer.clone(), shared.clone());
    timer.at(at, move || {
        *theirs.looks.lock().unwrap_or_else(PoisonError::into_inner) = None;
        theirs.flights.expire(&theirs.name);
        look_in_time(&then, &theirs);
    });
}

impl FaultDisk {
    fn flip(&self, buffers: &Buffers) {
        let mut bytes = buffers.to_vec();
        let bit = self.lock().rng.below(bytes.len() as u64 * 8);
        bytes[bit as usize / 8] ^= 1 << (bit % 8);
        buffers.copy_from(&bytes);
    }

    /// Writes some of the sectors.
    fn tear(&self, op: &Op) {
        let Op::Write { at, from } = op else { return };
        let block = u64::from(self.properties().block);
        for n in 0..from.len() / block {
            if self.lock().rng.below(2) == 0 {
                let cut = from.slice(n * block..(n + 1) * block);
                let _ = self.inner.run(Request::write(at + n * block, cut)).result;
            }
        }
    }

    /// Writes to another place of the same length.
    fn misdirect(&self, op: Op, number: usize, when: Option<Instant>) {
        let Properties { size, block, .. } = self.properties();
        let block = u64::from(block);
        let buffers = match op {
            Op::Write { from, .. } => {
                let at = self.lock().rng.below((size - from.len()) / block + 1) * block;
                if let Some(injected) = self.lock().injected.last_mut() {
                    injected.range = at..at + from.len();
                }
                let copy = Buffers::whole(&Aligned::of(&from.to_vec()));
                let _ = self.inner.run(Request::write(at, copy)).result;
                Some(from)
            }
            op => op.into_buffers(),
        };
        self.answer_at(when, number, Answer { result: Ok(()), buffers });
    }
}
