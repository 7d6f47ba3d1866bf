//! Requests done by threads with ordinary calls: where io_uring is forbidden, and for operations that it lacks.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::job::{Job, Shared};

/// The longest wait for closing when a disk is dropped.
const CLOSING: Duration = Duration::from_secs(1);

thread_local! {
    static DIRECT: Cell<bool> = const { Cell::new(false) };
}

/// While `work` runs, requests of this thread to a disk with threads are done by this thread before `submit` returns,
/// however long that takes.
pub fn directly<R>(work: impl FnOnce() -> R) -> R {
    let before = DIRECT.replace(true);
    let done = work();
    DIRECT.set(before);
    done
}

/// Threads that take jobs from one queue.
pub struct Threads {
    queue: Arc<Queue>,
    /// Closed when all have ended.
    ended: Mutex<Receiver<()>>,
}

struct Queue {
    shared: Arc<Shared>,
    state: Mutex<State>,
    more: Condvar,
    /// The thread for timeouts waits here.
    soon: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closing: bool,
}

impl Threads {
    /// `patience`: whether a further thread answers requests that time out.
    pub fn new(shared: Arc<Shared>, threads: usize, patience: bool) -> io::Result<Threads> {
        let queue = Arc::new(Queue { shared, state: Mutex::default(), more: Condvar::new(), soon: Condvar::new() });
        let (alive, ended) = sync_channel(0);
        let pool = Threads { queue, ended: Mutex::new(ended) };
        for _ in 0..threads {
            pool.spawn("disk", alive.clone(), Queue::work)?;
        }
        if patience {
            pool.spawn("disk time", alive, Queue::watch)?;
        }
        Ok(pool)
    }

    fn spawn(&self, name: &str, alive: SyncSender<()>, work: fn(&Queue)) -> io::Result<()> {
        let queue = self.queue.clone();
        let run = move || {
            work(&queue);
            drop(queue);
            drop(alive);
        };
        Builder::new().name(name.into()).spawn(run).map(drop)
    }

    pub fn submit(&self, job: Job) {
        if self.queue.shared.flights.next_timeout().is_some() {
            // The watching thread either sees it after getting the lock, or waits already.
            drop(self.queue.lock());
            self.queue.soon.notify_one();
        }
        if DIRECT.get() {
            return job.run(&self.queue.shared);
        }
        self.queue.lock().jobs.push_back(job);
        self.queue.more.notify_one();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queue.lock().closing = true;
        self.queue.more.notify_all();
        self.queue.soon.notify_all();
        // One of the threads may be the one that drops the disk: then this waits until the time limit.
        let _ = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(CLOSING);
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends with the queue, when all jobs are done.
    fn work(&self) {
        loop {
            let mut state = self.lock();
            let job = loop {
                match state.jobs.pop_front() {
                    Some(job) => break job,
                    None if state.closing => return,
                    None => state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(state);
            job.run(&self.shared);
        }
    }

    /// Answers requests that take too long.
    fn watch(&self) {
        loop {
            let next = self.shared.flights.expire(&self.shared.name);
            let state = self.lock();
            if state.closing {
                return;
            }
            match next {
                // A thread that submits after this check gets the lock first, hence wakes this thread.
                None if self.shared.flights.next_timeout().is_none() => {
                    drop(self.soon.wait(state).unwrap_or_else(PoisonError::into_inner));
                }
                None => {}
                Some(next) => {
                    let left = next.saturating_duration_since(Instant::now());
                    drop(self.soon.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }
}
