//! What everything here is built of: a device that is read, written, flushed and discarded, many requests at a time.
//!
//! Words that carry a guarantee:
//! - a request is *under way* from [`Device::submit`] until the device will touch its memory no more. It has been
//!   *answered* when its [`Done`] was called. Nearly always that is the same; after a timeout, it is answered first.
//! - a write is *complete* when it is answered without an error: reads see it. It is *durable* when a flush that was
//!   submitted after that is answered without an error. A write that failed may have happened, in part or in whole, also
//!   later, as long as it is under way.
//!
//! Contract of a device:
//! - D1. Each request is answered exactly once, by any thread, perhaps before `submit` returns.
//! - D2. Requests under way at the same time happen in any order; overlapping ones give any mixture of sectors.
//! - D3. A flush makes durable what was complete when it was submitted. Nothing else does.
//! - D4. A flush that failed may have lost what it was to make durable, and the host tells that once only. So all later
//!   flushes fail too, until the device is opened anew, or [begun anew](Device::begin_anew): what was acknowledged before must be looked at.
//! - D5. What was discarded reads as anything until it is written again.
//! - D6. Memory of a request is held until it is no longer under way, and given back with the answer unless the answer
//!   came before (a timeout): then it is let go when the transfer ends.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Class, Error, Result};
use crate::sys::memory::{Aligned, Buffers};

/// What a device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Bytes that can be addressed.
    pub size: u64,
    /// Offsets and lengths are multiples of this: a power of two, 512 to 65536, as a rule the logical sector.
    pub block: u32,
    /// Memory begins at a multiple of this: a power of two, up to 4096.
    pub memory: u32,
    /// Bytes of a request, and their alignment, that the device does best with.
    pub preferred: u32,
    /// Requests at a time beyond which it gains nothing.
    pub depth: u32,
    /// Transfers pass the host's page cache.
    pub direct: bool,
    pub read_only: bool,
    /// Discarding gives something back.
    pub discards: bool,
    /// What is not [reserved](Op::Reserve) may find no room: a file on a host, sparse.
    pub sparse: bool,
    /// A disk that turns.
    pub rotates: bool,
}

/// What is asked of a device. `at` and ranges count bytes from its start.
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
    /// The content is needed no more (D5). Where [`Properties::discards`] is false it does nothing.
    Discard(Range<u64>),
    /// What lies there is from now on backed by room of its own, so that a write does not find the host full.
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

    /// Where it works; nowhere for a flush.
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

    /// The memory alone.
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

/// A device that has answered nothing for so long, while something is asked of it, is *late*: who can do without it goes round it. What
/// it was asked goes on, and a late answer is as good as any.
pub const LATE: Duration = Duration::from_secs(1);
/// Who has answered nothing for so long, and is one of several that can do without it, is done without for good: until it is put back.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Runs once when a device is late with a request, on the thread that answers, like [`Done`].
#[derive(Clone)]
pub struct Late {
    /// When the device has answered nothing for so long.
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
    /// Anything: [`Device::pending`] shows it, so that an owner of memory or of segments knows what still happens
    /// there.
    pub tag: u64,
    /// The time after which it is answered by [`Class::Timeout`] where the device has not answered before.
    pub within: Option<Duration>,
    /// What runs when the device is late with it.
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
    /// The memory of a read or write, unless the transfer is still under way (D6). What was read is here: a region that
    /// has read a second copy may give back other memory than it was given.
    pub buffers: Option<Buffers>,
}

/// Called with the answer. It must not wait for other requests of the same device: it may run on the thread that
/// answers them. Submitting further ones is what it is for.
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
    /// It was answered (by a timeout) and still may read or write its memory, and the device.
    pub answered: bool,
}

/// Where what a device was opened by leads by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    There,
    /// Elsewhere, or nowhere: it may come back.
    Away,
    /// It is a file that was deleted: it ends with the last who has it open.
    Deleted,
}

/// A device; see the [module](self) for its contract.
pub trait Device: Send + Sync {
    /// What it is called in messages: a path, or what it is made of.
    fn name(&self) -> &Arc<str>;

    fn properties(&self) -> Properties;

    /// Takes a request. Never waits for the device.
    fn submit(&self, request: Request, done: Done);

    /// Requests under way. After the death of a process its transfers go on and this does not show them: the host ends them
    /// in its own time.
    fn pending(&self) -> Vec<Pending>;

    /// Bytes that a sparse one can have from its host yet, beyond what is to stay free there; `None`: all of it is there.
    fn left(&self) -> Option<u64> {
        None
    }

    /// Will whoever opens it next find it?
    fn whereabouts(&self) -> Whereabouts {
        Whereabouts::There
    }

    /// Nothing that it holds counts, and all that is to be there is about to be written: that a flush has failed before is forgotten (D4).
    fn begin_anew(&self) {}

    /// Has it been [late](LATE) with something that is under way, and answered nothing since?
    fn is_late(&self) -> bool {
        false
    }

    /// The first stretch from `at` on in which anything may lie: what comes before, from `at` on, was never written, or was discarded.
    /// Where that is not known, all there is. This may wait for the host.
    fn written(&self, at: u64) -> Range<u64> {
        at..u64::MAX
    }

    /// Takes a request; the answer can be waited for.
    fn start(&self, request: Request) -> Ticket {
        let (done, ticket) = Ticket::new();
        self.submit(request.with_late(ticket.late()), done);
        ticket
    }

    /// Takes a request and waits for the answer, but for no device that answers nothing for so long: then it is [`Class::Timeout`], and the
    /// request goes on.
    fn ask(&self, request: Request, patience: Duration) -> Answer {
        let op = request.op.to_string();
        let (done, ticket) = Ticket::new();
        self.submit(request.with_late(Late { after: patience, ..ticket.late() }), done);
        ticket.wait_unless_late().unwrap_or_else(|_| late(self.name(), &op))
    }

    /// Takes a request and waits for the answer.
    fn run(&self, request: Request) -> Answer {
        self.start(request).wait()
    }

    /// Fills `to` with what lies at `at`; any length, any alignment.
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

/// What is answered for a device that is late with what it was asked.
pub(crate) fn late(name: &Arc<str>, op: &str) -> Answer {
    let what = format!("{op}: it does not answer");
    Answer { result: Err(Error::new(Class::Timeout, name, what)), buffers: None }
}

/// The blocks in which `len` bytes at `at` lie.
pub(crate) fn blocks_around(properties: &Properties, at: u64, len: usize) -> Range<u64> {
    let block = u64::from(properties.block);
    at / block * block..at.saturating_add(len as u64).div_ceil(block).saturating_mul(block)
}

/// Refuses what no device takes: beyond the end, not aligned, a write where nothing is written.
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

    /// Tells who waits that the device is late.
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

    /// Waits until the answer is there, or the device is late; `Err` gives the ticket back.
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

    /// Waits for some time; `Err` gives the ticket back. The request goes on, unlike after a timeout of its own.
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
