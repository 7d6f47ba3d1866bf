//! Threads for requests to all members of a duplex at once: some for each, started on first use.
//!
//! A request changes threads once on its way, and once on its way back. (Through the queue of a disk it would do so
//! twice for each of a write and the flush behind it: half the time of an `fsync`.)

use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use super::raw::MEMBERS;
use crate::error::Result;
use crate::region::Region;

/// A member's work.
pub type Work = Box<dyn FnOnce(&dyn Region) -> Result<()> + Send>;
type Job = Box<dyn FnOnce() + Send>;

/// Threads for each member: for a commit, for a checkpoint, and for one that may hang.
const THREADS: usize = 3;

/// They end when this is dropped, each after its present job.
#[derive(Default)]
pub struct Workers([Mutex<Option<Sender<Job>>>; MEMBERS]);

impl Workers {
    /// Runs a job in a thread of member `n`, or in this one if none can be started.
    pub fn start(&self, n: usize, job: Job) {
        let mut queue = self.0[n].lock().unwrap_or_else(PoisonError::into_inner);
        if queue.is_none() {
            *queue = spawn();
        }
        let Some(queue) = queue.as_ref() else { return job() };
        if let Err(job) = queue.send(job) {
            (job.0)();
        }
    }
}

fn spawn() -> Option<Sender<Job>> {
    let (send, jobs) = channel::<Job>();
    let jobs = Arc::new(Mutex::new(jobs));
    let started = (0..THREADS).filter(|_| {
        let jobs = jobs.clone();
        Builder::new().name("copy".into()).spawn(move || work(&jobs)).is_ok()
    });
    (started.count() > 0).then_some(send)
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}
