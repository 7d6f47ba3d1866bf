//! Noticing processes that died, and sweeping what they left; and permission triples before they run out.

use super::task::Run;
use conquest_fs::node::Fs;

/// Most ticks from one vain attempt to sweep to the next.
const SWEEP_REST: u32 = 300;
/// Ticks from one look for unused permission triples to the next.
const TRIPLES_REST: u32 = 30;

/// What is remembered from tick to tick.
#[derive(Default)]
pub struct Reaper {
    /// Ticks until a sweep is tried again, and how many it was the last time.
    rest: u32,
    rested: u32,
    /// Ticks until unused permission triples are looked for again.
    triples: u32,
}

impl Reaper {
    pub fn work(&mut self, fs: &Fs, run: &Run) {
        if let Err(e) = fs.session().reap() {
            run.failed("looking for processes that died", &e);
        }
        self.sweep(fs, run);
        self.free_triples(fs, run);
    }

    /// Where most are in use, the next one that is added asks for it again.
    fn free_triples(&mut self, fs: &Fs, run: &Run) {
        self.triples = self.triples.saturating_sub(1);
        if self.triples > 0 || !fs.session().runtime().is_crowded() {
            return;
        }
        self.triples = TRIPLES_REST;
        match fs.free_unused_triples() {
            Ok(freed) => tracing::info!("freed {freed} permission triples that nothing names"),
            Err(e) => run.failed("looking for permission triples that nothing names", &e),
        }
    }

    fn sweep(&mut self, fs: &Fs, run: &Run) {
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
                run.failed("sweeping", &e);
                self.rested = (self.rested * 2).clamp(1, SWEEP_REST);
                self.rest = self.rested;
            }
        }
    }
}
