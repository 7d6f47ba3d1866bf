//! Threads that ask the members of a duplex at once: some for each, made when they are needed first.
//!
//! A request changes threads once on its way, and once on its way back. (Through the queue of a disk it would twice, for each of a write and
//! the flush behind it: half of what an `fsync` takes.)

use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use super::raw::MEMBERS;
use crate::error::Result;
use crate::region::Region;

/// What a member is to do.
pub type Work = Box<dyn FnOnce(&dyn Region) -> Result<()> + Send>;
type Job = Box<dyn FnOnce() + Send>;

/// Threads for each member: a commit, a checkpoint, and one that may hang.
const THREADS: usize = 3;

/// They end when this is dropped, each after what it is doing.
#[derive(Default)]
pub struct Workers([Mutex<Option<Sender<Job>>>; MEMBERS]);

impl Workers {
    /// Does it in a thread of member `n`; here, where there can be none.
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
