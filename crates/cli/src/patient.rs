//! Work on a pool that may have to wait for others who have it open: not for ever for one that is stopped.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;

use fs::Pool;

use crate::failure::{Failure, Result};
use crate::stopped::{Stopped, LENIENCE};

/// Does `work` on `pool`. Gives up if it does not get on while a process that has the pool open is stopped: that has
/// locked what it waits for, as it seems. [`Steps`] tell that it gets on.
pub fn work<T: Send + 'static>(pool: &Path, work: impl FnOnce(&Steps) -> Result<T> + Send + 'static) -> Result<T> {
    let (tell, told) = mpsc::channel();
    let steps = Steps::default();
    let counted = steps.clone();
    std::thread::spawn(move || tell.send(work(&counted)));
    loop {
        let before = steps.taken();
        match told.recv_timeout(LENIENCE) {
            Err(RecvTimeoutError::Timeout) => {}
            done => return done.unwrap_or_else(|_| Err(Failure::new("a thread has ended before its work"))),
        }
        let stopped = Stopped::among(&others(pool));
        match (told.try_recv(), stopped) {
            (Ok(done), _) => return done,
            (_, Some(stopped)) if steps.taken() == before => return Err(given_up(pool, &stopped)),
            _ => {}
        }
    }
}

fn given_up(pool: &Path, stopped: &Stopped) -> Failure {
    let (pool, pid, remedy) = (pool.display(), stopped.pid, stopped.remedy());
    Failure::new(format!(
        "{pool} stands still, and process {pid}, which has it open, is stopped: {remedy}; or `kill -9 {pid}` ends it"
    ))
}

/// The other processes that have the pool open.
pub fn others(pool: &Path) -> Vec<u32> {
    let users = Pool::users(pool).unwrap_or_default();
    users.into_iter().map(|user| user.pid).filter(|pid| *pid != std::process::id()).collect()
}

/// How far some work has come.
#[derive(Clone, Default)]
pub struct Steps(Arc<AtomicU64>);

impl Steps {
    /// Counts what `progress` is told of.
    pub fn count(&self, mut progress: impl FnMut(u64, u64)) -> impl FnMut(u64, u64) {
        let steps = self.clone();
        move |done, total| {
            steps.0.fetch_add(1, Ordering::Relaxed);
            progress(done, total);
        }
    }

    fn taken(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
