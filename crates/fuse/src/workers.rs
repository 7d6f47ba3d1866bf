//! Threads for requests that take long, or found no space and are to be tried again. The threads that take requests
//! from the kernel never wait, so that no request waits for another.
//!
//! The workers are few. Requests beyond their number wait parked, and delay no callers but their own. All are answered,
//! since none waits for another.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::answer_later::Parked;
use crate::enospc::Retry;

/// The number of threads.
pub const WORKERS: usize = 4;

/// Requests that may wait for space at a time; those beyond are refused at once.
const RETRIES: usize = 192;

/// The queue of jobs.
#[derive(Default)]
pub struct Workers {
    todo: Mutex<Todo>,
    wakeup: Condvar,
}

#[derive(Default)]
struct Todo {
    jobs: BinaryHeap<Reverse<Job>>,
    /// Jobs that wait for space.
    retries: usize,
    added: u64,
    stopped: bool,
}

pub struct Job {
    due: Instant,
    /// Orders jobs that are due at the same time.
    number: u64,
    /// It has found no space; its wait so far.
    pub retry: Option<Retry>,
    pub request: Parked,
}

impl PartialEq for Job {
    fn eq(&self, other: &Job) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Job {}

impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Job) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Job {
    fn cmp(&self, other: &Job) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

impl Workers {
    /// Adds a request, to be served as soon as a thread is free.
    pub fn add(&self, request: Parked) {
        self.push(Duration::ZERO, None, request);
    }

    /// Adds a request, to be served again after a pause.
    pub fn add_after(&self, pause: Duration, retry: Retry, request: Parked) {
        if self.lock().retries >= RETRIES {
            return request.reply(Err(Errno::NOSPC));
        }
        self.push(pause, Some(retry), request);
    }

    fn push(&self, pause: Duration, retry: Option<Retry>, request: Parked) {
        let mut todo = self.lock();
        // After the stop a request is answered by being dropped, outside of the lock.
        if todo.stopped {
            return drop(todo);
        }
        todo.added += 1;
        todo.retries += usize::from(retry.is_some());
        let number = todo.added;
        todo.jobs.push(Reverse(Job { due: Instant::now() + pause, number, retry, request }));
        self.wakeup.notify_one();
    }

    /// Lets the threads end. Jobs not yet begun fail.
    pub fn stop(&self) {
        let mut todo = self.lock();
        todo.stopped = true;
        let left = std::mem::take(&mut todo.jobs);
        drop(todo);
        self.wakeup.notify_all();
        drop(left);
    }

    /// The next job that is due. Waits until there is one; `None` after the stop.
    pub fn next(&self) -> Option<Job> {
        let mut todo = self.lock();
        loop {
            if todo.stopped {
                return None;
            }
            let now = Instant::now();
            let due = todo.jobs.peek().map(|Reverse(job)| job.due);
            todo = match due {
                Some(due) if due <= now => break,
                Some(due) => self.wakeup.wait_timeout(todo, due - now).unwrap_or_else(|e| e.into_inner()).0,
                None => self.wakeup.wait(todo).unwrap_or_else(|e| e.into_inner()),
            };
        }
        let Reverse(job) = todo.jobs.pop()?;
        todo.retries -= usize::from(job.retry.is_some());
        if !todo.jobs.is_empty() {
            // Another thread that waits for this job shall look at the next one.
            self.wakeup.notify_one();
        }
        Some(job)
    }

    fn lock(&self) -> MutexGuard<'_, Todo> {
        self.todo.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::answer_later::tests::Answering;
    use crate::enospc::Removals;
    use crate::request::Answer;

    fn parked(sender: &mpsc::Sender<Answer>) -> Parked {
        Parked::new(Answering { data: Vec::new(), sender: sender.clone() })
    }

    #[test]
    fn jobs_come_in_the_order_in_which_they_are_due() {
        let (sender, _answers) = mpsc::channel();
        let (workers, removals, start) = (Workers::default(), Removals::default(), Instant::now());
        for pause in [40, 15].map(Duration::from_millis) {
            workers.add_after(pause, removals.retry(false), parked(&sender));
        }
        workers.add(parked(&sender));
        workers.add(parked(&sender));
        let pauses = [0, 0, 15, 40];
        for pause in pauses {
            let job = workers.next().expect("a job");
            assert!(start.elapsed() >= Duration::from_millis(pause));
            assert_eq!(job.retry.is_some(), pause > 0);
        }
    }

    #[test]
    fn what_is_too_much_or_too_late_is_answered_at_once() {
        let (sender, answers) = mpsc::channel();
        let (workers, removals) = (Workers::default(), Removals::default());
        for _ in 0..=RETRIES {
            workers.add_after(Duration::from_secs(60), removals.retry(false), parked(&sender));
        }
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [Err(Errno::NOSPC)]);
        workers.stop();
        workers.add(parked(&sender));
        assert!(workers.next().is_none());
        assert_eq!(answers.try_iter().filter(|answer| *answer == Err(Errno::IO)).count(), RETRIES + 1);
    }
}
