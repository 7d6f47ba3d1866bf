//! One request to a disk: its system calls, and their results.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::reserve;
use crate::device::{Answer, Op};
use crate::error::{Class, Error, Result};
use crate::in_flight::{Flights, Number};
use crate::sys::calls::{self, MOST_PARTS};
use crate::sys::memory::Buffers;
use crate::sys::ring::Call;

/// The common data of a disk's calls.
pub struct Shared {
    pub name: Arc<str>,
    pub file: Arc<File>,
    pub flights: Flights,
    /// A block device: it has its own call to discard.
    pub is_block: bool,
    /// Bytes to leave free on the host of a file; see [`Options::reserve`](super::Options::reserve).
    pub reserve: Option<u64>,
}

impl Shared {
    /// Does it need a thread, since io_uring cannot do it, or since the host has to be asked first?
    pub fn is_slow(&self, job: &Job) -> bool {
        match &job.op {
            Op::Discard(_) => self.is_block,
            Op::Reserve(range) => reserve::check(&self.file, range.end - range.start, self.reserve).is_err(),
            _ => false,
        }
    }
}

/// Retries of a call that the host could not do for the moment.
const AGAIN: u32 = 8;

/// A request, or a piece of one, and its progress.
pub struct Job {
    number: Number,
    op: Op,
    /// Set for a piece.
    whole: Option<Arc<Mutex<Whole>>>,
    /// Bytes transferred.
    moved: u64,
    again: u32,
}

/// A transfer whose pieces are under way at the same time. The last piece to end answers it.
struct Whole {
    op: Option<Op>,
    left: usize,
    /// The first failure.
    failed: Option<Error>,
}

/// The next step.
pub enum Step {
    Call(Job, Call),
    Answer(Job, Result<()>),
}

/// Frees a range of a file on the host, and keeps its length.
pub const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

impl Job {
    pub fn new(number: Number, op: Op) -> Job {
        Job { number, op, whole: None, moved: 0, again: 0 }
    }

    /// Jobs of at most `most` bytes each that together do `op`.
    pub fn pieces(number: Number, op: Op, most: u64) -> Vec<Job> {
        let range = op.range();
        let count = range.end.saturating_sub(range.start).div_ceil(most) as usize;
        let Some(memory) = op.buffers().filter(|_| count > 1).cloned() else { return vec![Job::new(number, op)] };
        let is_read = matches!(op, Op::Read { .. });
        let whole = Arc::new(Mutex::new(Whole { op: Some(op), left: count, failed: None }));
        let piece = |at: u64| {
            let part = memory.slice(at - range.start..(at + most).min(range.end) - range.start);
            let op = match is_read {
                true => Op::Read { at, into: part },
                false => Op::Write { at, from: part },
            };
            Job { whole: Some(whole.clone()), ..Job::new(number, op) }
        };
        (0..count as u64).map(|n| piece(range.start + n * most)).collect()
    }

    pub fn number(&self) -> Number {
        self.number
    }

    pub fn step(self) -> Step {
        let call = match &self.op {
            Op::Read { at, into } => Call::Read { at: at + self.moved, into: rest(into, self.moved) },
            Op::Write { at, from } => Call::Write { at: at + self.moved, from: rest(from, self.moved) },
            Op::Flush => Call::Sync,
            Op::Discard(range) => {
                Call::Allocate { at: range.start, len: range.end - range.start, mode: PUNCH.bits() as i32 }
            }
            Op::Reserve(range) => Call::Allocate { at: range.start, len: range.end - range.start, mode: 0 },
        };
        match self.op.range().is_empty() && !matches!(self.op, Op::Flush) {
            true => Step::Answer(self, Ok(())),
            false => Step::Call(self, call),
        }
    }

    pub fn ended(mut self, device: &Arc<str>, came: Result<u32, Errno>) -> Step {
        match came {
            Ok(bytes) => match self.op.buffers() {
                None => Step::Answer(self, Ok(())),
                Some(_) if bytes == 0 => {
                    let e = Error::new(Class::Media, device, format!("{}: it ends before that", self.op));
                    Step::Answer(self, Err(e))
                }
                Some(memory) => {
                    let len = memory.len();
                    self.moved += u64::from(bytes);
                    match self.moved < len {
                        true => self.step(),
                        false => Step::Answer(self, Ok(())),
                    }
                }
            },
            Err(errno) if Class::of(errno) == Class::Transient && self.again < AGAIN => {
                self.again += 1;
                self.step()
            }
            Err(errno) => {
                let e = Error::host(device, &self.op, errno);
                Step::Answer(self, Err(e))
            }
        }
    }

    /// The client has its answer already, and the device has not got the request: skips it.
    pub fn unwanted(self, shared: &Shared) {
        self.answer(shared, Ok(()));
    }

    /// Does the whole request in this thread, and answers.
    pub fn run(self, shared: &Shared) {
        if !shared.flights.is_wanted(self.number) {
            return self.unwanted(shared);
        }
        let mut step = self.step();
        loop {
            step = match step {
                Step::Call(job, call) => {
                    let came = perform(shared, &call);
                    drop(call);
                    job.ended(&shared.name, came)
                }
                Step::Answer(job, result) => return job.answer(shared, result),
            }
        }
    }

    pub fn answer(self, shared: &Shared, result: Result<()>) {
        let Some(whole) = self.whole else {
            return shared.flights.end(self.number, &shared.name, Answer { result, buffers: self.op.into_buffers() });
        };
        // Before the last piece answers, none refers to the memory any more.
        drop(self.op);
        let mut whole = whole.lock().unwrap_or_else(PoisonError::into_inner);
        whole.failed = whole.failed.take().or(result.err());
        whole.left -= 1;
        if whole.left == 0 {
            let (failed, op) = (whole.failed.take(), whole.op.take());
            drop(whole);
            let answer = Answer { result: failed.map_or(Ok(()), Err), buffers: op.and_then(Op::into_buffers) };
            shared.flights.end(self.number, &shared.name, answer);
        }
    }
}

/// The rest of the memory, as much of it as one call takes.
fn rest(memory: &Buffers, moved: u64) -> Buffers {
    let parts = memory.layout().count();
    if moved == 0 && parts <= MOST_PARTS {
        return memory.clone();
    }
    let rest = memory.slice(moved..memory.len());
    let end = rest.layout().take(MOST_PARTS).map(|(_, len)| len as u64).sum();
    match rest.len() == end {
        true => rest,
        false => rest.slice(0..end),
    }
}

fn perform(shared: &Shared, call: &Call) -> Result<u32, Errno> {
    let file = &*shared.file;
    match call {
        Call::Read { at, into } => calls::read(file, *at, into),
        Call::Write { at, from } => calls::write(file, *at, from),
        Call::Sync => rustix::fs::fdatasync(file).map(|()| 0),
        Call::Allocate { at, len, mode } if shared.is_block && *mode != 0 => {
            calls::discard(file, *at, *len).map(|()| 0)
        }
        Call::Allocate { at, len, mode } => {
            if *mode == 0 {
                reserve::check_holes(file, *at, *len, shared.reserve)?;
            }
            let mode = FallocateFlags::from_bits_retain(*mode as u32);
            rustix::fs::fallocate(file, mode, *at, *len).map(|()| 0)
        }
    }
}
