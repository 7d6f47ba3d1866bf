//! Delayed calls: a thread that makes them when they are due.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

type Later = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    /// By time, and by order of submission for equal times.
    later: BTreeMap<(Instant, u64), Later>,
    order: u64,
    closing: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    sooner: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, time: Instant, call: Later) {
        let mut state = self.lock();
        state.order += 1;
        let order = state.order;
        state.later.insert((time, order), call);
        self.sooner.notify_one();
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            match state.later.first_key_value().map(|((at, _), _)| *at) {
                Some(at) if at <= now => {
                    let (_, call) = state.later.pop_first().expect("it was there");
                    drop(state);
                    call();
                    state = self.lock();
                }
                // Later calls are dropped: nothing can see their effects.
                _ if state.closing => return,
                Some(at) => {
                    state = self.sooner.wait_timeout(state, at - now).unwrap_or_else(PoisonError::into_inner).0;
                }
                None => state = self.sooner.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// The thread; it ends when this is dropped.
pub struct Timer(Arc<Shared>);

impl Default for Timer {
    fn default() -> Timer {
        let shared = Arc::<Shared>::default();
        let theirs = shared.clone();
        std::thread::spawn(move || theirs.run());
        Timer(shared)
    }
}

impl Timer {
    pub fn at(&self, time: Instant, call: impl FnOnce() + Send + 'static) {
        self.0.at(time, Box::new(call));
    }

    /// A handle for use within calls.
    pub fn for_later(&self) -> Again {
        Again(Arc::downgrade(&self.0))
    }
}

/// The timer, as long as it exists.
#[derive(Clone)]
pub struct Again(Weak<Shared>);

impl Again {
    pub fn at(&self, time: Instant, call: impl FnOnce() + Send + 'static) {
        if let Some(shared) = self.0.upgrade() {
            shared.at(time, Box::new(call));
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.lock().closing = true;
        self.0.sooner.notify_one();
    }
}
