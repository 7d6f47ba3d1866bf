//! Content of large files: written to segments, taken out of memory, and its segments cleaned (see [`conquest_fs::ubj`]).
//!
//! Every process that may write has this thread, and writes and evicts; the one with the role of maintenance cleans. It sleeps until
//! somebody rings, or for a tick.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use conquest_fs::error::{Error, Result};
use conquest_fs::node::Fs;
use conquest_fs::ubj::Union;

/// How often it looks by itself.
const TICK: Duration = Duration::from_millis(200);
/// How long it rests after a failure.
const REST: Duration = Duration::from_secs(1);

/// The thread; dropping it ends it.
pub struct Segments {
    union: Arc<Union>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Segments {
    /// None where the pool has no disks.
    pub fn start(fs: &Arc<Fs>) -> Result<Option<Segments>> {
        let Some(union) = fs.union().cloned() else { return Ok(None) };
        let stop = Arc::new(AtomicBool::new(false));
        let (fs, of, stopped) = (fs.clone(), union.clone(), stop.clone());
        let work = move || run(&fs, &of, &stopped);
        let thread = std::thread::Builder::new().name("segments".into()).spawn(work);
        let thread = thread.map_err(|e| Error::Host {
            what: "starting a thread".into(),
            errno: e.raw_os_error().map_or(rustix::io::Errno::AGAIN, rustix::io::Errno::from_raw_os_error),
        })?;
        Ok(Some(Segments { union, stop, thread: Some(thread) }))
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.union.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(fs: &Fs, union: &Union, stop: &AtomicBool) {
    let stopped = || stop.load(Ordering::SeqCst);
    let mut written = Instant::now();
    union.set_thread(true);
    while !stopped() {
        let cleans = fs.session().try_maintenance();
        let rest = match union.work(fs, &mut written, cleans, &stopped) {
            Ok(true) => continue,
            Ok(false) => TICK,
            Err(e) => {
                tracing::error!("writing and cleaning segments: {e}");
                REST
            }
        };
        union.wait(rest);
    }
    union.set_thread(false);
}
