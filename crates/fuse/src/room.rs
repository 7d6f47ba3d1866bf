//! Room that is on its way: what a removed file held is free once the kernel has forgotten the file, a little after the
//! call that removed it has returned. Whoever finds no room waits for that, so that on a full pool a write that follows
//! a deletion finds what the deletion gave. A queue of io_uring has one thread only, for all who work on its CPU: it puts
//! such a request aside meanwhile, and serves others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::dev;

/// Longest wait after a removal. The kernel gives up a large file's pages first, and is busy.
const PATIENCE: Duration = Duration::from_millis(500);
/// From one attempt to the next.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(16));

/// What the mount has removed.
#[derive(Default)]
pub struct Room {
    removals: AtomicU64,
    /// Removals after which somebody has waited in vain: no more comes of them.
    spent: AtomicU64,
    /// What is to be done when.
    calls: Arc<Mutex<Vec<(Instant, Call)>>>,
}

type Call = Box<dyn FnOnce() + Send>;

/// One request's wait.
pub struct Wait {
    start: Instant,
    /// Removals before it.
    removals: u64,
    patience: Duration,
    pause: Duration,
}

impl Room {
    /// A name was removed.
    pub fn note(&self) {
        self.removals.fetch_add(1, Ordering::Relaxed);
    }

    /// A wait for room begins. `alone`: no other process removes files.
    pub fn wait(&self, alone: bool) -> Wait {
        let removals = self.removals.load(Ordering::Relaxed);
        let patience = match self.spent.load(Ordering::Relaxed) == removals {
            true if alone => Duration::ZERO,
            true => dev::PAUSE * 2,
            false => PATIENCE,
        };
        Wait { start: Instant::now(), removals, patience, pause: PAUSES.0 }
    }

    /// Another attempt is due after this pause. `None`: no more can be hoped for.
    pub fn next_pause(&self, wait: &mut Wait) -> Option<Duration> {
        if wait.start.elapsed() >= wait.patience {
            self.spent.store(wait.removals, Ordering::Relaxed);
            return None;
        }
        let pause = wait.pause;
        wait.pause = (pause * 2).min(PAUSES.1);
        Some(pause)
    }

    /// Tries what has answered `full` again until it does not, or no more can be hoped for.
    pub fn retry<T: PartialEq>(&self, full: T, alone: bool, mut attempt: impl FnMut() -> T) -> T {
        let mut wait = self.wait(alone);
        while let Some(pause) = self.next_pause(&mut wait) {
            std::thread::sleep(pause);
            let answer = attempt();
            if answer != full {
                return answer;
            }
        }
        full
    }

    /// Makes `call` after a pause, on another thread.
    pub fn call_after(&self, pause: Duration, call: impl FnOnce() + Send + 'static) {
        let mut calls = lock(&self.calls);
        calls.push((Instant::now() + pause, Box::new(call)));
        if calls.len() == 1 {
            let kept = self.calls.clone();
            if std::thread::Builder::new().name("room".into()).spawn(move || make_calls(&kept)).is_err() {
                let alone = calls.pop();
                drop(calls);
                std::thread::sleep(pause);
                alone.into_iter().for_each(|(_, call)| call());
            }
        }
    }
}

/// Makes calls when they are due, until there are no more.
fn make_calls(calls: &Mutex<Vec<(Instant, Call)>>) {
    loop {
        std::thread::sleep(PAUSES.0);
        let now = Instant::now();
        let mut waiting = lock(calls);
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut *waiting).into_iter().partition(|(at, _)| *at <= now);
        *waiting = later;
        // Whoever adds the next call starts another thread.
        let is_last = waiting.is_empty();
        drop(waiting);
        due.into_iter().for_each(|(_, call)| call());
        if is_last {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    const FULL: Result<(), Errno> = Err(Errno::NOSPC);

    #[test]
    fn room_is_waited_for_after_a_removal_only() {
        let room = Room::default();
        let count = |most: u32, alone: bool| {
            let mut tries = 0;
            let answer = room.retry(FULL, alone, || {
                tries += 1;
                match tries > most {
                    true => Ok(()),
                    false => FULL,
                }
            });
            (answer, tries)
        };
        assert_eq!(count(1000, true).1, 0, "nothing was removed");
        assert!((1..=4).contains(&count(1000, false).1), "nothing was removed here");
        room.note();
        assert_eq!(count(10, true), (Ok(()), 11));
        let (answer, tries) = count(1000, true);
        assert!(answer == FULL && tries > 10, "{tries}");
        assert_eq!(count(1000, true).1, 0, "once in vain is enough");
    }

    #[test]
    fn calls_are_made_when_they_are_due() {
        let room = Room::default();
        let (tell, told) = std::sync::mpsc::channel();
        for round in 0..2 {
            let start = Instant::now();
            for pause in [40, 0, 15].map(Duration::from_millis) {
                let tell = tell.clone();
                room.call_after(pause, move || tell.send((pause, start.elapsed())).unwrap());
            }
            let order: Vec<_> = told.iter().take(3).collect();
            assert!(order.is_sorted() && order.iter().all(|(pause, after)| after >= pause), "round {round}: {order:?}");
        }
    }
}
