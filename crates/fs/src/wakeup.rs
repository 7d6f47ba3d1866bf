//! A wake-up call from one thread to another that rests until there is something to do.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Calls that come while no thread waits count for the next wait.
#[derive(Default)]
pub struct Wakeup {
    is_called: Mutex<bool>,
    called: Condvar,
}

impl Wakeup {
    pub fn wake(&self) {
        *self.is_called.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.called.notify_one();
    }

    /// Waits for a call, at most so long.
    pub fn wait(&self, most: Duration) {
        let is_called = self.is_called.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.called.wait_timeout_while(is_called, most, |is_called| !*is_called);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_for_the_next_wait_and_no_other() {
        let wakeup = Wakeup::default();
        wakeup.wake();
        wakeup.wake();
        wakeup.wait(Duration::MAX);
        wakeup.wait(Duration::from_millis(1));
        assert!(!*wakeup.is_called.lock().expect("a lock"));
        std::thread::scope(|scope| {
            scope.spawn(|| wakeup.wait(Duration::MAX));
            wakeup.wake();
        });
    }
}
