//! Work on a pool that may have to wait for other processes with the pool open, but does not wait for ever for a
//! stopped one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;
use std::thread::Builder;

use conquest::Pool;

use crate::failure::{Context, Failure, Result};
use crate::stopped_processes::{Stopped, LENIENCE};

/// Does `work` on `pool`. Gives up if it makes no progress, as [`Steps`] count it, while a process with the pool open
/// is stopped: that process probably holds the lock that the work waits for.
pub fn watched<T: Send + 'static>(pool: &Path, work: impl FnOnce(&Steps) -> Result<T> + Send + 'static) -> Result<T> {
    work_beside(|| others(pool), pool, work)
}

fn work_beside<T: Send + 'static>(
    others: impl Fn() -> Vec<u32>,
    pool: &Path,
    work: impl FnOnce(&Steps) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, done) = mpsc::channel();
    let steps = Steps::default();
    let counted = steps.clone();
    let started = Builder::new().spawn(move || sender.send(work(&counted)));
    started.context(|| "cannot start a thread".into())?;
    loop {
        let before = steps.taken();
        match done.recv_timeout(LENIENCE) {
            Err(RecvTimeoutError::Timeout) => {}
            result => return result.unwrap_or_else(|_| Err(Failure::new("a thread has ended before its work"))),
        }
        let stopped = Stopped::among(&others());
        match (done.try_recv(), stopped) {
            (Ok(result), _) => return result,
            (_, Some(stopped)) if !steps.are_alone() && steps.taken() == before => {
                return Err(given_up(pool, &stopped))
            }
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

/// The progress of some work.
#[derive(Clone, Default)]
pub struct Steps(Arc<Progress>);

#[derive(Default)]
struct Progress {
    taken: AtomicU64,
    alone: AtomicBool,
}

impl Steps {
    /// Counts the calls of `progress`.
    pub fn count(&self, mut progress: impl FnMut(u64, u64)) -> impl FnMut(u64, u64) {
        let steps = self.clone();
        move |done, total| {
            steps.0.taken.fetch_add(1, Ordering::Relaxed);
            progress(done, total);
        }
    }

    /// For work that waits for no other process, from the first call of `progress` until the closure is dropped.
    /// Meanwhile it may take any time: a disk may be slow.
    pub fn alone(&self, mut progress: impl FnMut(u64, u64)) -> impl FnMut(u64, u64) {
        let alone = Alone(self.clone());
        move |done, total| {
            alone.set(true);
            progress(done, total);
        }
    }

    fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }

    fn are_alone(&self) -> bool {
        self.0.alone.load(Ordering::Relaxed)
    }
}

/// Dropping it means that the work may wait for others again.
struct Alone(Steps);

impl Alone {
    fn set(&self, alone: bool) {
        self.0 .0.alone.store(alone, Ordering::Relaxed);
        self.0 .0.taken.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.set(false);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use rustix::process::{kill_process, Pid, Signal};

    use super::*;

    /// A slow disk is not the fault of a process that happens to be stopped.
    #[test]
    fn work_is_given_up_only_where_it_may_wait_for_others() {
        let mut sleeper = Command::new("sleep").arg("600").spawn().expect("sleep");
        let pid = sleeper.id();
        kill_process(Pid::from_child(&sleeper), Signal::STOP).expect("it is there");
        let idle = |alone: bool, then: Duration| {
            let work = move |steps: &Steps| {
                let mut progress = steps.alone(|_, _| {});
                alone.then(|| progress(1, 2));
                std::thread::sleep(LENIENCE * 8);
                drop(progress);
                std::thread::sleep(then);
                Ok(())
            };
            work_beside(|| vec![pid], "pool".as_ref(), work)
        };
        let (alone, waits, at_last) =
            (idle(true, Duration::ZERO), idle(false, Duration::ZERO), idle(true, Duration::from_secs(600)));
        sleeper.kill().and_then(|()| sleeper.wait()).expect("it ends");
        assert!(alone.is_ok(), "{alone:?}");
        for given_up in [waits, at_last] {
            assert!(given_up.is_err_and(|e| e.to_string().contains(&format!("process {pid}"))));
        }
    }
}
