//! One request that became several: answered when the last of them is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{Answer, Done};
use crate::error::{Error, Result};
use crate::sys::memory::Buffers;

/// What came of the parts: by number, the error of those that failed.
pub type Failures = Vec<(usize, Error)>;

type Last = Box<dyn FnOnce(Failures, Option<Buffers>) + Send>;

struct State {
    left: usize,
    failures: Failures,
    /// A part's memory was not given back.
    is_held: bool,
    last: Option<(Last, Option<Buffers>)>,
}

/// Counts the parts.
pub struct Join(Mutex<State>);

impl Join {
    /// Of so many parts; `memory` is that of the whole request, given to `last` unless a part still uses it.
    pub fn new(
        parts: usize,
        memory: Option<Buffers>,
        last: impl FnOnce(Failures, Option<Buffers>) + Send + 'static,
    ) -> Arc<Join> {
        let last: Last = Box::new(last);
        let state = State { left: parts, failures: Vec::new(), is_held: false, last: Some((last, memory)) };
        Arc::new(Join(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called with the answer of part `number`.
    pub fn part(self: &Arc<Join>, number: usize, moves: bool) -> Done {
        let join = self.clone();
        Box::new(move |Answer { result, buffers }| {
            let is_held = moves && buffers.is_none();
            // Its share in the memory goes first: whoever gets the last answer may want the memory for himself.
            drop(buffers);
            join.ended(number, result, is_held);
        })
    }

    fn ended(&self, number: usize, result: Result<()>, is_held: bool) {
        let mut state = self.lock();
        state.is_held |= is_held;
        state.failures.extend(result.err().map(|e| (number, e)));
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let (failures, is_held) = (std::mem::take(&mut state.failures), state.is_held);
        let last = state.last.take();
        drop(state);
        if let Some((last, memory)) = last {
            last(failures, memory.filter(|_| !is_held));
        }
    }
}
