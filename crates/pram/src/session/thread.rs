//! A number for each thread: the slot that it takes first.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static NEXT_HINT: AtomicUsize = AtomicUsize::new(0);
thread_local!(static MY_HINT: Cell<usize> = Cell::new(NEXT_HINT.fetch_add(1, Ordering::Relaxed)));

/// The calling thread's number of its own: cheap, stable, dense enough to index by.
pub(super) fn thread_hint() -> usize {
    MY_HINT.get()
}

/// Gives the calling thread another number: for tests that are to run the same way again.
pub fn set_thread_hint(hint: usize) {
    MY_HINT.set(hint);
}
