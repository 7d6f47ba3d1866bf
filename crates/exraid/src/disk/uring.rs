//! Requests done by io_uring: one ring and one thread for a disk.
//!
//! The thread submits new requests, waits, and answers. Only it enters the kernel, which then need not interrupt
//! another thread for a completion. Each disk has a thread, so that a hanging disk cannot delay others: by a call that
//! blocks despite io_uring, by using up the kernel's workers of a ring, or by late answers.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Thread};
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};

use super::job::{Job, Shared, Step};
use crate::error::{Class, Error};
use crate::sys::ring::{Event, Ring};

/// Calls at a time; further ones wait in the queue.
const CALLS: usize = 256;
/// The longest wait for closing when a disk is dropped.
const CLOSING: Duration = Duration::from_secs(1);

/// The thread, and its orders.
pub struct Uring {
    queue: Arc<Queue>,
    thread: Thread,
    /// Closed when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

struct Queue {
    shared: Arc<Shared>,
    jobs: Mutex<Jobs>,
    /// The thread sleeps, or is about to: it must be woken.
    asleep: AtomicBool,
    closing: AtomicBool,
    wake: Arc<OwnedFd>,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// The kernel has refused to go on with the ring.
    broken: Option<Error>,
}

impl Uring {
    /// `held` stay open as long as the ring exists, which may outlive the process.
    pub fn new(shared: Arc<Shared>, held: Vec<Arc<OwnedFd>>) -> io::Result<Uring> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (asleep, closing) = (AtomicBool::new(false), AtomicBool::new(false));
        let queue = Arc::new(Queue { shared, jobs: Mutex::default(), asleep, closing, wake });
        let (ready, is_ready) = sync_channel(0);
        let (alive, ended) = sync_channel(0);
        let theirs = queue.clone();
        let serve = move || {
            // A ring belongs to the thread that makes it.
            let ring = Ring::new(CALLS, theirs.wake.clone(), &held);
            let _ = ready.send(ring.as_ref().map(drop).map_err(|e| e.raw_os_error()));
            if let Ok(ring) = ring {
                theirs.serve(ring);
            }
            drop(theirs);
            drop(alive);
        };
        let thread = Builder::new().name("disk".into()).spawn(serve)?.thread().clone();
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Uring { queue, thread, ended: Mutex::new(ended) }),
            Ok(Err(Some(errno))) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::Error::other("no ring")),
        }
    }

    pub fn submit(&self, job: Job) {
        let mut jobs = self.queue.lock();
        if let Some(e) = jobs.broken.clone() {
            drop(jobs);
            return job.answer(&self.queue.shared, Err(e));
        }
        jobs.waiting.push_back(job);
        drop(jobs);
        self.queue.wake();
    }
}

impl Drop for Uring {
    /// Lets requests under way end; if that takes long, goes on without them.
    fn drop(&mut self) {
        self.queue.closing.store(true, Ordering::SeqCst);
        self.queue.wake();
        if std::thread::current().id() != self.thread.id() {
            let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = ended.recv_timeout(CLOSING);
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            // Fails only at 2^64 writes without a read.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    fn serve(&self, mut ring: Ring<Job>) {
        loop {
            self.send(&mut ring);
            let next = self.shared.flights.expire(&self.shared.name);
            if self.closing.load(Ordering::SeqCst) && ring.is_empty() && self.lock().waiting.is_empty() {
                return;
            }
            self.asleep.store(true, Ordering::SeqCst);
            // A thread that submits after this check finds `asleep`.
            let is_more = ring.room() > 0 && !self.lock().waiting.is_empty();
            let time = next.map(|next| next.saturating_duration_since(Instant::now()));
            let waited = ring.wait(usize::from(!is_more), time);
            self.asleep.store(false, Ordering::SeqCst);
            while let Some(event) = ring.next() {
                self.take(&mut ring, event);
            }
            if let Err(e) = waited {
                return self.give_up(&e);
            }
        }
    }

    fn take(&self, ring: &mut Ring<Job>, event: Event<Job>) {
        match event {
            Event::Ended(job, call, came) => {
                // Drops its references to the memory before the answer: the receiver may need the memory for itself
                // alone.
                drop(call);
                self.go_on(ring, job.ended(&self.shared.name, came));
            }
            Event::Woken => {
                let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
            }
        }
    }

    /// Submits new requests.
    fn send(&self, ring: &mut Ring<Job>) {
        while ring.room() > 0 {
            let Some(job) = self.lock().waiting.pop_front() else { return };
            match self.shared.flights.is_wanted(job.number()) {
                true => self.go_on(ring, job.step()),
                false => job.unwanted(&self.shared),
            }
        }
    }

    fn go_on(&self, ring: &mut Ring<Job>, step: Step) {
        match step {
            // There is room: it was checked, or a call has just ended.
            Step::Call(job, call) => ring.send(&self.shared.file, call, job),
            Step::Answer(job, result) => job.answer(&self.shared, result),
        }
    }

    /// The kernel has refused to go on with the ring, and keeps its requests.
    fn give_up(&self, e: &io::Error) {
        tracing::error!("{}: io_uring: {e}", self.shared.name);
        let error = Error::new(Class::Gone, &self.shared.name, format!("io_uring: {e}"));
        let waiting = {
            let mut jobs = self.lock();
            jobs.broken = Some(error.clone());
            std::mem::take(&mut jobs.waiting)
        };
        for job in waiting {
            job.answer(&self.shared, Err(error.clone()));
        }
        self.shared.flights.give_up(&error);
    }
}
