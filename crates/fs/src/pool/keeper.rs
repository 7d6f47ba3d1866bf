//! Background work (decision 17): one attached process at a time has the role; another takes over when it
//! detaches or dies.
//!
//! It notices processes that died, sweeps what they left, and gives the memory of freed inodes back. What a
//! process alone knows of, the unused tails of files it appended to, each process's own thread sees to.

use std::sync::Arc;
use std::time::Duration;

use super::ticker::Ticker;
use crate::error::Result;
use crate::node::Fs;

/// How often it looks.
const TICK: Duration = Duration::from_secs(1);

/// Freed inodes after which empty inode blocks are looked for at once; fewer wait for a quiet tick.
const MANY_FREED: u64 = 4096;

/// Most ticks from one vain attempt to sweep to the next.
const SWEEP_REST: u32 = 300;

/// The keeper's thread; dropping it ends it.
pub struct Keeper {
    _thread: Ticker,
}

impl Keeper {
    pub fn start(fs: &Arc<Fs>) -> Result<Keeper> {
        let fs = fs.clone();
        let mut tasks = None;
        let thread = Ticker::start(
            "keeper",
            || TICK,
            move || {
                if let Err(e) = fs.trim_tails() {
                    tracing::warn!("giving back unused tails: {e}");
                }
                if tasks.is_none() && fs.session().try_keeper() {
                    tasks = Some(Tasks::default());
                }
                if let Some(tasks) = &mut tasks {
                    tasks.work(&fs);
                }
            },
        )?;
        Ok(Keeper { _thread: thread })
    }
}

/// What the keeper remembers from tick to tick.
#[derive(Default)]
struct Tasks {
    /// Inodes freed in the pool: when blocks were given back, and at the last tick.
    given_at: u64,
    freed: u64,
    /// Ticks until a sweep is tried again, and how many it was the last time.
    rest: u32,
    rested: u32,
}

impl Tasks {
    fn work(&mut self, fs: &Fs) {
        if let Err(e) = fs.session().reap() {
            tracing::error!("looking for processes that died: {e}");
        }
        self.sweep(fs);
        self.give_back(fs);
    }

    fn sweep(&mut self, fs: &Fs) {
        if !fs.session().runtime().leaks_pending() {
            return;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        match fs.sweep() {
            Ok((objects, bytes)) => {
                self.rested = 0;
                if objects > 0 {
                    tracing::info!("swept {objects} objects ({bytes} bytes) that a crash had left");
                }
            }
            // A damaged pool stays so until it is repaired: try again ever more seldom.
            Err(e) => {
                tracing::error!("sweeping: {e}");
                self.rested = (self.rested * 2).clamp(1, SWEEP_REST);
                self.rest = self.rested;
            }
        }
    }

    /// Empty inode blocks go back after many files were deleted, or when nobody deletes any more.
    fn give_back(&mut self, fs: &Fs) {
        let freed = fs.session().runtime().counted();
        let since = freed.wrapping_sub(self.given_at);
        let quiet = freed == self.freed;
        self.freed = freed;
        if since == 0 || (since < MANY_FREED && !quiet) {
            return;
        }
        self.given_at = freed;
        if let Err(e) = fs.give_back() {
            tracing::error!("giving back inode blocks: {e}");
        }
    }
}
