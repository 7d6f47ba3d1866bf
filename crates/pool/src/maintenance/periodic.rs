//! A thread that does something again and again until it is dropped.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use conquest_fs::error::{Error, Result};

/// Dropping it ends the thread, after what it is doing.
pub struct Periodic {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    now: Mutex<bool>,
    bell: Condvar,
}

impl Periodic {
    /// Does `work` every `tick`, as long as that is at the time.
    pub fn start(
        name: &str,
        tick: impl Fn() -> Duration + Send + 'static,
        mut work: impl FnMut() + Send + 'static,
    ) -> Result<Periodic> {
        let stop = Arc::new(Stop::default());
        let told = stop.clone();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                while told.wait(tick()) {
                    work();
                }
            })
            .map_err(|e| Error::Pool(format!("starting the {name}: {e}")))?;
        Ok(Periodic { stop, thread: Some(thread) })
    }
}

impl Stop {
    /// Waits for the next tick; false if it is time to stop.
    fn wait(&self, tick: Duration) -> bool {
        let now = self.now.lock().unwrap_or_else(|e| e.into_inner());
        let (now, _) = self.bell.wait_timeout_while(now, tick, |stop| !*stop).unwrap_or_else(|e| e.into_inner());
        !*now
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        *self.stop.now.lock().unwrap_or_else(|e| e.into_inner()) = true;
        self.stop.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
