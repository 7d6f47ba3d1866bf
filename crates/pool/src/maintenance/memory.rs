//! Memory ahead of need: a thread of every process that changes the pool takes some when little is left, so that no
//! operation has to wait for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use conquest_fs::error::{Error, Result};
use conquest_fs::node::Fs;

/// How long it sleeps where nobody calls it, nanoseconds: a host that had no memory may have some again.
const REST: i64 = 1_000_000_000;

/// The thread; dropping it ends it.
pub struct MemoryAhead {
    fs: Arc<Fs>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryAhead {
    pub fn start(fs: &Arc<Fs>) -> Result<MemoryAhead> {
        let stop = Arc::new(AtomicBool::new(false));
        let (of, told) = (fs.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("memory".into()).spawn(move || {
            let mut seen = 0;
            while !told.load(Ordering::SeqCst) {
                if let Err(e) = of.session().supply_soon() {
                    tracing::error!("taking memory: {e}");
                }
                of.session().wait_supply(&mut seen, REST);
            }
        });
        let thread = thread.map_err(|e| Error::Pool(format!("starting the thread that takes memory: {e}")))?;
        Ok(MemoryAhead { fs: fs.clone(), stop, thread: Some(thread) })
    }
}

impl Drop for MemoryAhead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.fs.session().ring_supply();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
