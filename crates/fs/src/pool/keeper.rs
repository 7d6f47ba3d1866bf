//! Background work (decision 17): one attached process at a time has the role; another takes over when it
//! detaches or dies.
//!
//! It notices processes that died, and sweeps what they left. What a process alone knows of, the unused
//! tails of files it appended to, each process's own thread sees to.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::node::Fs;

/// How often it looks.
const TICK: Duration = Duration::from_secs(1);

/// The keeper's thread; dropping it ends it.
pub struct Keeper {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    now: Mutex<bool>,
    bell: Condvar,
}

impl Keeper {
    pub fn start(fs: &Arc<Fs>) -> Result<Keeper> {
        let stop = Arc::new(Stop::default());
        let (fs, told) = (fs.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("keeper".into())
            .spawn(move || {
                let mut chosen = false;
                while told.wait() {
                    if let Err(e) = fs.trim_tails() {
                        tracing::warn!("giving back unused tails: {e}");
                    }
                    chosen = chosen || fs.session().try_keeper();
                    if chosen {
                        work(&fs);
                    }
                }
            })
            .map_err(|e| Error::Pool(format!("starting the keeper: {e}")))?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

impl Stop {
    /// Waits for the next tick; false if it is time to stop.
    fn wait(&self) -> bool {
        let now = self.now.lock().unwrap_or_else(|e| e.into_inner());
        let (now, _) = self.bell.wait_timeout_while(now, TICK, |stop| !*stop).unwrap_or_else(|e| e.into_inner());
        !*now
    }
}

fn work(fs: &Fs) {
    if let Err(e) = fs.session().reap() {
        tracing::error!("looking for processes that died: {e}");
    }
    if fs.session().runtime().leaks_pending() {
        match fs.sweep() {
            Ok((0, _)) => {}
            Ok((objects, bytes)) => tracing::info!("swept {objects} objects ({bytes} bytes) that a crash had left"),
            Err(e) => tracing::error!("sweeping: {e}"),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.stop.now.lock().unwrap_or_else(|e| e.into_inner()) = true;
        self.stop.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
