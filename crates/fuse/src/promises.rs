//! Replies that wait until what they acknowledge is durable: made by the threads that serve requests, which go on
//! with others, and kept by a thread that waits for commits.
//!
//! All who are served while one commit is under way are answered by the next: that is the group commit of the
//! mount.

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
        while let Some(ticket) = self.next() {
            standing.review();
            let outcome = fs.wait_for(ticket).map_err(errno);
            self.take(ticket).into_iter().for_each(|(_, reply)| reply(outcome));
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
