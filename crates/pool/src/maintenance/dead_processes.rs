//! Noticing dead processes, and sweeping what they left; and freeing permission triples before they run out.

use super::task::Run;
use conquest_fs::node::Fs;

/// Most ticks between two failed attempts to sweep.
const SWEEP_REST: u32 = 300;
/// Ticks between two searches for unused permission triples.
const TRIPLES_REST: u32 = 30;

/// The state of this work from tick to tick.
#[derive(Default)]
pub struct Reaper {
    /// Ticks until a sweep is tried again, and the number of ticks the last time.
    rest: u32,
    rested: u32,
    /// Ticks until the next search for unused permission triples.
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

    /// Frees unused triples if the table is crowded. If most stay in use, adding the next one asks for this again.
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
