//! Replies that wait until the change that they acknowledge is durable. Threads that serve requests add them and go on;
//! one thread waits for commits and sends them.
//!
//! All requests that are served while one commit is under way are answered after the next: this is the group commit of
//! the mount.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, MutexGuard};

use conquest_fs::{Fs, Ticket};
use pram::priority::ThreadPriority;
use rustix::io::Errno;

use crate::answer_later::Parked;
use crate::convert::errno;
use crate::request::Answer;

/// Replies that wait.
#[derive(Default)]
pub struct Deferred {
    waiting: Mutex<Waiting>,
    wakeup: Condvar,
}

#[derive(Default)]
struct Waiting {
    replies: Vec<Reply>,
    stopped: bool,
}

struct Reply {
    ticket: Ticket,
    answer: Answer,
    request: Parked,
}

impl Deferred {
    /// Answers `request` with `answer` when the change of `ticket` is durable, or with an error if it can never be.
    pub fn add(&self, ticket: Ticket, answer: Answer, request: Parked) {
        self.lock().replies.push(Reply { ticket, answer, request });
        self.wakeup.notify_one();
    }

    /// Ends the adding of replies.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.wakeup.notify_one();
    }

    /// Sends replies until `stop` was called and none is left.
    pub fn send_all(&self, fs: &Fs) {
        let mut priority = ThreadPriority::default();
        self.send_by(|ticket| {
            priority.review();
            fs.wait_for(ticket).map_err(errno)
        });
    }

    /// A panic below is a defect. It fails the waiting requests, which would else wait for ever.
    fn send_by(&self, mut wait_for: impl FnMut(Ticket) -> Result<(), Errno>) {
        while let Some(ticket) = self.next() {
            let outcome = catch_unwind(AssertUnwindSafe(|| wait_for(ticket))).unwrap_or(Err(Errno::IO));
            for reply in self.take(ticket) {
                reply.request.reply(outcome.and(reply.answer));
            }
        }
    }

    /// Takes the replies that the commit `done` makes durable.
    fn take(&self, done: Ticket) -> Vec<Reply> {
        let mut waiting = self.lock();
        let (now, later) = std::mem::take(&mut waiting.replies).into_iter().partition(|reply| reply.ticket <= done);
        waiting.replies = later;
        now
    }

    /// The ticket to wait for first. Waits until there is one; `None` after `stop`.
    fn next(&self) -> Option<Ticket> {
        let until = |w: &mut Waiting| w.replies.is_empty() && !w.stopped;
        let waiting = self.wakeup.wait_while(self.lock(), until).unwrap_or_else(|e| e.into_inner());
        waiting.replies.iter().map(|reply| reply.ticket).min()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use conquest::FormatOptions;
    use conquest::{OpenOptions, Pool};

    use super::*;
    use crate::answer_later::tests::Answering;

    /// A panic of the sending thread once left the requests that waited for it waiting for ever.
    #[test]
    fn who_waits_is_answered_whatever_panics() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let how =
            FormatOptions { backing: Some(".".into()), ..FormatOptions::on(conquest::MediumKind::Battery, 8 << 20) };
        Pool::format(dir.path(), &how).unwrap();
        let pool = Pool::open(dir.path(), &OpenOptions::default()).unwrap();
        let ticket = backing::of(pool.session()).unwrap().ticket(pool.session());
        let deferred = Deferred::default();
        let (sender, answers) = mpsc::channel();
        let mut rounds = 0;
        for _ in 0..2 {
            deferred.add(ticket, Ok(0), Parked::new(Answering { data: Vec::new(), sender: sender.clone() }));
        }
        deferred.stop();
        deferred.send_by(|_| {
            rounds += 1;
            panic!("a commit that fails")
        });
        assert_eq!((rounds, answers.try_iter().collect::<Vec<_>>()), (1, vec![Err(Errno::IO); 2]));
    }
}
