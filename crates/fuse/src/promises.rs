//! Replies that wait until what they acknowledge is durable: made by the threads that serve requests, which go on
//! with others, and kept by a thread that waits for commits.
//!
//! All who are served while one commit is under way are answered by the next: that is the group commit of the
//! mount.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, MutexGuard};

use fs::{Fs, Ticket};
use rustix::io::Errno;

use crate::rhythm::Standing;
use crate::server::errno;

type Reply = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Replies that wait.
#[derive(Default)]
pub struct Promises {
    waiting: Mutex<Waiting>,
    bell: Condvar,
}

#[derive(Default)]
struct Waiting {
    replies: Vec<(Ticket, Reply)>,
    stopped: bool,
}

impl Promises {
    /// `reply` is called when what `ticket` stands for is durable, or can never be.
    pub fn add(&self, ticket: Ticket, reply: impl FnOnce(Result<(), Errno>) + Send + 'static) {
        self.lock().replies.push((ticket, Box::new(reply)));
        self.bell.notify_one();
    }

    /// No more will be added.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.bell.notify_one();
    }

    /// Keeps promises until there are no more.
    pub fn keep(&self, fs: &Fs) {
        let mut standing = Standing::default();
        self.keep_by(|ticket| {
            standing.review();
            fs.wait_for(ticket).map_err(errno)
        });
    }

    /// A panic below is a defect; it fails those who wait, and does not leave them waiting.
    fn keep_by(&self, mut wait_for: impl FnMut(Ticket) -> Result<(), Errno>) {
        while let Some(ticket) = self.next() {
            let outcome = catch_unwind(AssertUnwindSafe(|| wait_for(ticket))).unwrap_or(Err(Errno::IO));
            for (_, reply) in self.take(ticket) {
                let _ = catch_unwind(AssertUnwindSafe(|| reply(outcome)));
            }
        }
    }

    /// Those that a commit serves.
    fn take(&self, done: Ticket) -> Vec<(Ticket, Reply)> {
        let mut waiting = self.lock();
        let (now, later) = std::mem::take(&mut waiting.replies).into_iter().partition(|(ticket, _)| *ticket <= done);
        waiting.replies = later;
        now
    }

    /// The commit that is needed first; waits until one is.
    fn next(&self) -> Option<Ticket> {
        let until = |w: &mut Waiting| w.replies.is_empty() && !w.stopped;
        let waiting = self.bell.wait_while(self.lock(), until).unwrap_or_else(|e| e.into_inner());
        waiting.replies.iter().map(|(ticket, _)| *ticket).min()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{mpsc, Arc};

    use fs::pool::FormatOptions;
    use fs::{OpenOptions, Pool};

    use super::*;

    /// Whoever waited for the thread that had panicked waited for ever.
    #[test]
    fn who_waits_is_answered_whatever_panics() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let how = FormatOptions { copy: Some(".".into()), ..FormatOptions::sized(8 << 20) };
        Pool::format(dir.path(), &how).unwrap();
        let pool = Pool::open(dir.path(), &OpenOptions::default()).unwrap();
        let ticket = pool.session().copy().unwrap().ticket(pool.session());
        let promises = Arc::new(Promises::default());
        let (told, answers) = mpsc::channel();
        let mut rounds = 0;
        for _ in 0..2 {
            promises.add(ticket, |_| panic!("a reply that fails"));
            let told = told.clone();
            promises.add(ticket, move |outcome| told.send(outcome).unwrap());
        }
        promises.stop();
        promises.keep_by(|_| {
            rounds += 1;
            panic!("a commit that fails")
        });
        assert_eq!((rounds, answers.try_iter().collect::<Vec<_>>()), (1, vec![Err(Errno::IO); 2]));
    }
}
