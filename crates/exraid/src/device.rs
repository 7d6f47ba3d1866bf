//! The base of this crate: a device that is read, written, flushed and discarded, many requests at a time.
//!
//! Words that carry a guarantee:
//! - a request is *under way* from [`Device::submit`] until the device will touch its memory no more. It has been
//!   *answered* when its [`Done`] was called. Nearly always the two coincide; after a timeout, the answer comes first.
//! - a write is *complete* when it is answered without an error: reads see it. It is *durable* when a later flush is
//!   answered without an error. A failed write may have happened, in part or in whole, and still may as long as it is
//!   under way.
//!
//! Contract of a device:
//! - D1. Each request is answered exactly once, by any thread, perhaps before `submit` returns.
//! - D2. Requests under way at the same time happen in any order; overlapping ones give any mixture of sectors.
//! - D3. A flush makes durable all writes that were complete when it was submitted. Nothing else does.
//! - D4. A failed flush may have lost these writes, and the host reports that only once. So all later flushes fail too,
//!   until the device is opened anew, or [begun anew](Device::begin_anew): acknowledged writes must be verified.
//! - D5. A discarded stretch reads as anything until it is written again.
//! - D6. The device holds the memory of a request until the request is no longer under way, and gives it back with the
//!   answer. If the answer came before (a timeout), the device drops the memory when the transfer ends.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Class, Error, Result};
use crate::sys::memory::{Aligned, Buffers};

/// The abilities of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Bytes that can be addressed.
    pub size: u64,
    /// Offsets and lengths are multiples of this: a power of two, 512 to 65536, as a rule the logical sector.
    pub block: u32,
    /// Memory begins at a multiple of this: a power of two, up to 4096.
    pub memory: u32,
    /// The best size and alignment of a request, in bytes.
    pub preferred: u32,
    /// Requests at a time beyond which it gains nothing.
    pub depth: u32,
    /// Transfers pass the host's page cache.
    pub direct: bool,
    pub read_only: bool,
    /// Discarding gives storage back.
    pub discards: bool,
    /// A write to a stretch that is not [reserved](Op::Reserve) may fail for lack of storage: a sparse file on a host.
    pub sparse: bool,
    /// A disk that turns.
    pub rotates: bool,
}

/// An operation on a device. `at` and ranges count bytes from its start.
#[derive(Clone, Debug)]
pub enum Op {
    Read {
        at: u64,
        into: Buffers,
    },
    Write {
        at: u64,
        from: Buffers,
    },
    /// See D3.
    Flush,
    /// The content is needed no more (D5). Nothing happens where [`Properties::discards`] is false.
    Discard(Range<u64>),
    /// The stretch gets storage of its own, so that a write to it does not find the host full.
    Reserve(Range<u64>),
}

/// The kinds of [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    Reserve,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Discard => "discard",
            Kind::Reserve => "reserve",
        })
    }
}

impl Op {
    pub fn kind(&self) -> Kind {
        match self {
            Op::Read { .. } => Kind::Read,
            Op::Write { .. } => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Discard(_) => Kind::Discard,
            Op::Reserve(_) => Kind::Reserve,
        }
    }

    /// The bytes it concerns; none for a flush.
    pub fn range(&self) -> Range<u64> {
        match self {
            Op::Read { at, into: memory } | Op::Write { at, from: memory } => *at..at.saturating_add(memory.len()),
            Op::Flush => 0..0,
            Op::Discard(range) | Op::Reserve(range) => range.clone(),
        }
    }

    pub fn buffers(&self) -> Option<&Buffers> {
        match self {
            Op::Read { into: memory, .. } | Op::Write { from: memory, .. } => Some(memory),
            _ => None,
        }
    }

    /// Its memory alone.
    pub fn into_buffers(self) -> Option<Buffers> {
        match self {
            Op::Read { into: memory, .. } | Op::Write { from: memory, .. } => Some(memory),
            _ => None,
        }
    }

    /// The same at another place.
    pub fn at(self, start: u64) -> Op {
        let len = self.range().end - self.range().start;
        match self {
            Op::Read { into, .. } => Op::Read { at: start, into },
            Op::Write { from, .. } => Op::Write { at: start, from },
            Op::Flush => Op::Flush,
            Op::Discard(_) => Op::Discard(start..start + len),
            Op::Reserve(_) => Op::Reserve(start..start + len),
        }
    }

    /// The same at `start` bytes further on.
    pub fn moved(self, start: u64) -> Op {
        let at = self.range().start + start;
        self.at(at)
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let range = self.range();
        match self {
            Op::Flush => write!(f, "flush"),
            _ => write!(f, "{} of {} bytes at {}", self.kind(), range.end.saturating_sub(range.start), range.start),
        }
    }
}

/// A device with requests that has answered none for this long is *late*: callers that can do without it use others.
/// Its requests go on, and a late answer counts.
pub const LATE: Duration = Duration::from_secs(1);
/// A member that has answered nothing for this long is put out, if the region can do without it, until somebody puts it
/// back.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Runs once when a device is late with a request, on the thread that answers, like [`Done`].
#[derive(Clone)]
pub struct Late {
    /// How long the device must have answered nothing.
    pub after: Duration,
    report: Arc<dyn Fn() + Send + Sync>,
}

impl Late {
    pub fn new(report: impl Fn() + Send + Sync + 'static) -> Late {
        Late { after: LATE, report: Arc::new(report) }
    }

    #[must_use]
    pub fn after(self, time: Duration) -> Late {
        Late { after: time, ..self }
    }

    pub fn report(&self) {
        (self.report)();
    }
}

impl std::fmt::Debug for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Late after {:?}", self.after)
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    pub op: Op,
    /// Any number: [`Device::pending`] shows it, so that an owner of memory or of segments knows what still happens
    /// there.
    pub tag: u64,
    /// After this time the answer is [`Class::Timeout`], if the device has not answered before.
    pub within: Option<Duration>,
    /// Runs when the device is late with it.
    pub late: Option<Late>,
}

impl From<Op> for Request {
    fn from(op: Op) -> Request {
        Request { op, tag: 0, within: None, late: None }
    }
}

impl Request {
    pub fn read(at: u64, into: Buffers) -> Request {
        Op::Read { at, into }.into()
    }

    pub fn write(at: u64, from: Buffers) -> Request {
        Op::Write { at, from }.into()
    }

    pub fn flush() -> Request {
        Op::Flush.into()
    }

    pub fn tagged(self, tag: u64) -> Request {
        Request { tag, ..self }
    }

    pub fn within(self, time: Duration) -> Request {
        Request { within: Some(time), ..self }
    }

    pub fn with_late(self, late: Late) -> Request {
        Request { late: Some(late), ..self }
    }
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub result: Result<()>,
    /// The memory of a read or write, unless the transfer is still under way (D6). Use this memory for the content
    /// read: a region that has read a second copy may give back other memory than it got.
    pub buffers: Option<Buffers>,
}

/// Called with the answer. It may submit further requests, but must not wait for requests of the same device: it may
/// run on the thread that answers them.
pub type Done = Box<dyn FnOnce(Answer) + Send>;

/// A request under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub tag: u64,
    pub kind: Kind,
    /// Where on the device.
    pub range: Range<u64>,
    /// Since it was submitted.
    pub age: Duration,
    /// It was answered (by a timeout) and may still read or write its memory and the device.
    pub answered: bool,
}

/// Where the path of a device leads now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    There,
    /// Elsewhere, or nowhere: the device may come back.
    Away,
    /// A deleted file: it ends with its last open descriptor.
    Deleted,
}

/// A device; see the [module](self) for its contract.
pub trait Device: Send + Sync {
    /// Its name in messages: a path, or a list of its parts.
    fn name(&self) -> &Arc<str>;

    fn properties(&self) -> Properties;

    /// Takes a request. Never waits for the device.
    fn submit(&self, request: Request, done: Done);

    /// Requests under way. After the death of a process its transfers go on, and are not listed here: the host ends
    /// them in its own time.
    fn pending(&self) -> Vec<Pending>;

    /// Bytes that a sparse device can still get from its host, beyond the host's reserve; `None`: it has all its
    /// storage.
    fn left(&self) -> Option<u64> {
        None
    }

    /// Whether the next process that opens its path finds it.
    fn whereabouts(&self) -> Whereabouts {
        Whereabouts::There
    }

    /// Forgets failed flushes (D4): no content of the device counts any more, and all of it is about to be written.
    fn begin_anew(&self) {}

    /// Is a request under way [late](LATE), with no answer since?
    fn is_late(&self) -> bool {
        false
    }

    /// The first stretch from `at` on that may hold content: the bytes between `at` and its start were never written,
    /// or were discarded. If that is unknown, all bytes from `at` on. May wait for the host.
    fn written(&self, at: u64) -> Range<u64> {
        at..u64::MAX
    }

    /// Submits a request and returns a ticket for its answer.
    fn start(&self, request: Request) -> Ticket {
        let (done, ticket) = Ticket::new();
        self.submit(request.with_late(ticket.late()), done);
        ticket
    }

    /// Submits a request and waits for the answer, until the device has answered nothing for `patience`: then the
    /// answer is [`Class::Timeout`], and the request goes on.
    fn ask(&self, request: Request, patience: Duration) -> Answer {
        let op = request.op.to_string();
        let (done, ticket) = Ticket::new();
        self.submit(request.with_late(Late { after: patience, ..ticket.late() }), done);
        ticket.wait_unless_late().unwrap_or_else(|_| late(self.name(), &op))
    }

    /// Submits a request and waits for the answer.
    fn run(&self, request: Request) -> Answer {
        self.start(request).wait()
    }

    /// Fills `to` with the content at `at`; any length, any alignment.
    fn read_at(&self, to: &mut [u8], at: u64) -> Result<()> {
        let whole = blocks_around(&self.properties(), at, to.len());
        let memory = Aligned::zeroed((whole.end - whole.start) as usize);
        let answer = self.run(Request::read(whole.start, Buffers::whole(&memory)));
        answer.result?;
        let from = at - whole.start;
        answer.buffers.unwrap_or_default().slice(from..from + to.len() as u64).copy_to(to);
        Ok(())
    }

    /// Writes whole blocks.
    fn write_at(&self, from: &[u8], at: u64) -> Result<()> {
        self.run(Request::write(at, Buffers::whole(&Aligned::of(from)))).result
    }

    fn flush(&self) -> Result<()> {
        self.run(Request::flush()).result
    }

    fn discard(&self, range: Range<u64>) -> Result<()> {
        self.run(Op::Discard(range).into()).result
    }

    fn reserve(&self, range: Range<u64>) -> Result<()> {
        self.run(Op::Reserve(range).into()).result
    }
}

/// The answer for a device that is late with a request.
pub(crate) fn late(name: &Arc<str>, op: &str) -> Answer {
    let what = format!("{op}: it does not answer");
    Answer { result: Err(Error::new(Class::Timeout, name, what)), buffers: None }
}

/// The blocks in which `len` bytes at `at` lie.
pub(crate) fn blocks_around(properties: &Properties, at: u64, len: usize) -> Range<u64> {
    let block = u64::from(properties.block);
    at / block * block..at.saturating_add(len as u64).div_ceil(block).saturating_mul(block)
}

/// Refuses requests that no device takes: beyond the end, not aligned, a change of a read-only device.
pub fn check(name: &Arc<str>, properties: &Properties, op: &Op) -> Result<()> {
    let refuse = |class, why: &str| Err(Error::new(class, name, format!("{op}: {why}")));
    let (range, block) = (op.range(), u64::from(properties.block));
    if properties.read_only && !matches!(op, Op::Read { .. } | Op::Flush) {
        return refuse(Class::ReadOnly, "it is read-only");
    }
    if range.start > range.end || range.end > properties.size {
        return refuse(Class::Invalid, &format!("it has {} bytes", properties.size));
    }
    if range.start % block != 0 || range.end % block != 0 {
        return refuse(Class::Invalid, &format!("it has blocks of {block} bytes"));
    }
    let memory = properties.memory as usize;
    let fits = |(at, len): (usize, usize)| at % memory == 0 && len as u64 % block == 0;
    match op.buffers() {
        Some(buffers) if !buffers.layout().all(fits) => {
            refuse(Class::Invalid, &format!("memory begins at multiples of {memory} in parts of {block} bytes"))
        }
        _ => Ok(()),
    }
}

/// An answer that can be waited for.
#[must_use = "the answer is lost"]
pub struct Ticket(Arc<Place>);

#[derive(Default)]
struct Place {
    state: Mutex<State>,
    there: Condvar,
}

#[derive(Default)]
struct State {
    answer: Option<Answer>,
    is_late: bool,
}

impl Place {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    pub fn new() -> (Done, Ticket) {
        let place = Arc::new(Place::default());
        let theirs = place.clone();
        let done = move |answer| {
            theirs.lock().answer = Some(answer);
            theirs.there.notify_one();
        };
        (Box::new(done), Ticket(place))
    }

    /// Tells the waiting thread that the device is late.
    pub fn late(&self) -> Late {
        let theirs = self.0.clone();
        Late::new(move || {
            theirs.lock().is_late = true;
            theirs.there.notify_one();
        })
    }

    pub fn wait(self) -> Answer {
        let mut state = self.0.lock();
        loop {
            match state.answer.take() {
                Some(answer) => return answer,
                None => state = self.0.there.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Waits for the answer, or until the device is late; `Err` gives the ticket back.
    pub fn wait_unless_late(self) -> Result<Answer, Ticket> {
        let mut state = self.0.lock();
        loop {
            match (state.answer.take(), state.is_late) {
                (Some(answer), _) => return Ok(answer),
                (None, true) => break,
                (None, false) => state = self.0.there.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
        drop(state);
        Err(self)
    }

    /// Waits for at most `time`; `Err` gives the ticket back. The request goes on; its own timeout is another matter.
    pub fn wait_for(self, time: Duration) -> Result<Answer, Ticket> {
        let until = Instant::now() + time;
        let mut state = self.0.lock();
        loop {
            if let Some(answer) = state.answer.take() {
                return Ok(answer);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                return Err(self);
            }
            state = self.0.there.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties() -> Properties {
        Properties {
            size: 1 << 20,
            block: 512,
            memory: 512,
            preferred: 1 << 20,
            depth: 32,
            direct: true,
            read_only: false,
            discards: true,
            sparse: true,
            rotates: false,
        }
    }

    fn class_of(properties: &Properties, op: Op) -> Option<Class> {
        check(&"disk".into(), properties, &op).err().map(|e| e.class)
    }

    #[test]
    fn what_no_device_takes_is_refused_before_it_is_sent() {
        let (disk, memory) = (properties(), Aligned::zeroed(8192));
        let write = |at, range| Op::Write { at, from: Buffers::part(&memory, range) };
        assert_eq!(class_of(&disk, write(512, 0..1024)), None);
        assert_eq!(class_of(&disk, write(disk.size - 512, 0..512)), None);
        assert_eq!(class_of(&disk, write(disk.size - 512, 0..1024)), Some(Class::Invalid));
        assert_eq!(class_of(&disk, write(u64::MAX - 511, 0..1024)), Some(Class::Invalid));
        assert_eq!(class_of(&disk, write(100, 0..512)), Some(Class::Invalid));
        assert_eq!(class_of(&disk, write(0, 0..100)), Some(Class::Invalid));
        assert_eq!(class_of(&disk, write(0, 8..520)), Some(Class::Invalid), "memory not aligned");
        assert_eq!(class_of(&disk, Op::Discard(Range { start: 512, end: 100 })), Some(Class::Invalid));
        assert_eq!(class_of(&disk, Op::Flush), None);
        let read_only = Properties { read_only: true, ..disk };
        assert_eq!(class_of(&read_only, write(512, 0..1024)), Some(Class::ReadOnly));
        assert_eq!(class_of(&read_only, Op::Read { at: 0, into: Buffers::whole(&memory) }), None);
    }

    #[test]
    fn parts_of_a_block_are_refused_even_where_they_add_up() {
        let memory = Aligned::zeroed(8192);
        let mut from = Buffers::part(&memory, 0..256);
        from.push(&memory, 4096..4352);
        assert_eq!(class_of(&properties(), Op::Write { at: 0, from }), Some(Class::Invalid));
    }

    #[test]
    fn a_ticket_can_be_waited_for_again() {
        let (done, ticket) = Ticket::new();
        let ticket = ticket.wait_for(Duration::from_millis(1)).expect_err("not yet");
        done(Answer { result: Ok(()), buffers: None });
        ticket.wait().result.expect("answered");
    }
}
