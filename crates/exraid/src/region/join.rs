//! One request split into several: answered with the last of them, or when it can do without the late ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{late, Answer, Done, Late, PATIENCE};
use crate::error::{Error, Result};
use crate::sys::memory::Buffers;

/// The failed parts, by number.
pub type Failures = Vec<(usize, Error)>;

type Last = Box<dyn FnOnce(Failures, Option<Buffers>) + Send>;

struct State {
    /// Parts without an answer, and those of them with a late device.
    left: Vec<usize>,
    late: Vec<usize>,
    failures: Failures,
    /// A part's memory was not given back.
    is_held: bool,
    last: Option<(Last, Option<Buffers>)>,
}

/// Counts the parts.
pub struct Join {
    state: Mutex<State>,
    /// Whether it can do without late parts.
    without: Option<Without>,
}

type Can = Box<dyn Fn(&[usize]) -> bool + Send + Sync>;

/// Can a request do without parts that are late?
pub struct Without {
    pub name: Arc<str>,
    /// May these parts, which failed or are late, be missing?
    pub can: Can,
    /// Runs if they may not, and the request waits.
    pub late: Late,
}

impl Join {
    /// Of these parts, by number; `memory` is that of the whole request, and `last` gets it unless a part still uses
    /// it.
    pub fn new(
        parts: Vec<usize>,
        memory: Option<Buffers>,
        last: impl FnOnce(Failures, Option<Buffers>) + Send + 'static,
    ) -> Arc<Join> {
        Join::make(parts, None, memory, last)
    }

    /// The same, for a request that may do without late parts: they count as failed ([`Class::Timeout`](crate::Class)).
    pub fn without_late(
        parts: Vec<usize>,
        without: Without,
        memory: Option<Buffers>,
        last: impl FnOnce(Failures, Option<Buffers>) + Send + 'static,
    ) -> Arc<Join> {
        Join::make(parts, Some(without), memory, last)
    }

    fn make(
        parts: Vec<usize>,
        without: Option<Without>,
        memory: Option<Buffers>,
        last: impl FnOnce(Failures, Option<Buffers>) + Send + 'static,
    ) -> Arc<Join> {
        let last: Last = Box::new(last);
        let (late, failures) = (Vec::new(), Vec::new());
        let state = State { left: parts, late, failures, is_held: false, last: Some((last, memory)) };
        Arc::new(Join { state: Mutex::new(state), without })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called with the answer of part `number`.
    pub fn part(self: &Arc<Join>, number: usize, moves: bool) -> Done {
        let join = self.clone();
        Box::new(move |Answer { result, buffers }| {
            let is_held = moves && buffers.is_none();
            // Drops its reference first: the receiver of the last answer may need the memory for itself alone.
            drop(buffers);
            join.ended(number, result, is_held);
        })
    }

    /// To be called when the device of part `number` is late.
    pub fn late(self: &Arc<Join>, number: usize) -> Late {
        let join = self.clone();
        let tell = move || {
            let mut state = join.lock();
            let count = |list: &[usize]| list.iter().filter(|one| **one == number).count();
            // It may have been answered since.
            if count(&state.late) < count(&state.left) {
                state.late.push(number);
            }
            let waits = state.left.len() == state.late.len();
            if let Some(late) = join.go_on(state).and_then(|without| waits.then_some(&without.late)) {
                late.report();
            }
        };
        Late::new(tell).after(PATIENCE)
    }

    fn ended(&self, number: usize, result: Result<()>, is_held: bool) {
        let mut state = self.lock();
        state.is_held |= is_held;
        state.failures.extend(result.err().map(|e| (number, e)));
        // One of several with the same number.
        if let Some(at) = state.left.iter().position(|left| *left == number) {
            state.left.swap_remove(at);
        }
        if let Some(at) = state.late.iter().position(|late| *late == number) {
            state.late.swap_remove(at);
        }
        self.go_on(state);
    }

    /// Answers, if nothing is left to wait for. Returns `without` if late parts cannot be missed.
    fn go_on(&self, mut state: MutexGuard<'_, State>) -> Option<&Without> {
        let are_late = !state.left.is_empty() && state.left.len() == state.late.len();
        if let Some(without) = self.without.as_ref().filter(|_| are_late && state.last.is_some()) {
            let failed = state.failures.iter().map(|(number, _)| *number);
            let missed: Vec<usize> = failed.chain(state.left.iter().copied()).collect();
            if !(without.can)(&missed) {
                return Some(without);
            }
            let left = std::mem::take(&mut state.left);
            let error = |number| (number, late(&without.name, "it is done without this disk").result.unwrap_err());
            state.failures.extend(left.into_iter().map(error));
            (state.is_held, state.late) = (true, Vec::new());
        }
        if !state.left.is_empty() {
            return None;
        }
        let (failures, is_held) = (std::mem::take(&mut state.failures), state.is_held);
        let last = state.last.take();
        drop(state);
        if let Some((last, memory)) = last {
            last(failures, memory.filter(|_| !is_held));
        }
        None
    }
}
