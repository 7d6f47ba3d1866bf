//! The threads that serve a mount, and the end of one of them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use conquest_fs::poll::poll_until;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::OwnedFd;

use crate::error::{Context, Result};

/// How long the end of a mount waits for threads; those left end with the process.
const PATIENCE: Duration = Duration::from_secs(2);

/// The threads of a mount. Each is needed: the end of one ends the mount.
pub struct Threads {
    pub ended: Arc<Ended>,
    all: Vec<JoinHandle<()>>,
}

/// Whether a thread has ended, and how.
pub struct Ended {
    pub wakeup: OwnedFd,
    /// A thread ended that should not have: by an error or a panic.
    pub failed: AtomicBool,
}

/// Reports the end of its thread when it is dropped.
struct Tells(Arc<Ended>);

impl Drop for Tells {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::SeqCst);
        }
        // The write fails only if the counter is full: then it is readable anyhow.
        let _ = rustix::io::write(&self.0.wakeup, &1u64.to_ne_bytes());
    }
}

impl Threads {
    pub fn new() -> Result<Threads> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC).context("make an eventfd")?;
        Ok(Threads { ended: Arc::new(Ended { wakeup, failed: AtomicBool::new(false) }), all: Vec::new() })
    }

    pub fn spawn(&mut self, name: &str, serve: impl FnOnce() -> io::Result<()> + Send + 'static) -> Result<()> {
        let (thread, tells) = (name.to_string(), Tells(self.ended.clone()));
        let body = move || {
            if let Err(e) = serve() {
                tracing::error!(thread, "a thread of the mount has failed: {e}");
                tells.0.failed.store(true, Ordering::SeqCst);
            }
            drop(tells);
        };
        let builder = std::thread::Builder::new().name(name.into());
        self.all.push(builder.spawn(body).context("start a thread")?);
        Ok(())
    }

    /// Waits for a while for them to end. Threads that still run then end with the process.
    pub fn join(&mut self) {
        let _ = poll_until(PATIENCE, || self.all.iter().all(JoinHandle::is_finished));
        for thread in self.all.drain(..).filter(JoinHandle::is_finished) {
            if thread.join().is_err() {
                tracing::error!("a thread of the mount has panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_fails_is_distinguished_from_one_that_ends() {
        for (how, fails) in [("ends", false), ("has an error", true), ("panics", true)] {
            let serve = move || match how {
                "ends" => Ok(()),
                "panics" => panic!("a defect"),
                error => Err(io::Error::other(error)),
            };
            let mut threads = Threads::new().unwrap();
            threads.spawn("fuse-test", serve).unwrap();
            rustix::io::read(&threads.ended.wakeup, &mut [0; 8]).unwrap();
            assert_eq!(threads.ended.failed.load(Ordering::SeqCst), fails, "one that {how}");
            threads.join();
        }
    }
}
