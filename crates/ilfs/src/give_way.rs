//! Giving way: threads of the [background](Background) use regions in pieces, and let others go first between these.
//!
//! Each region decides by its load how large a piece is, and how long the thread waits before it
//! ([`exraid::region::throttle`]). Programs that use files in memory need processors, also while disks are idle: while
//! any process uses files, such a thread gives way too.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use exraid::{Background, Region};
use pram::Session;

use super::place::BLOCK;
use super::Log;

/// How often this process looks whether files are used.
const GLANCE: Duration = Duration::from_millis(200);
/// How long no thread gives way after a program has to wait for room.
const UNTHROTTLED: Duration = Duration::from_millis(1500);

/// The last look at other processes.
#[derive(Default)]
pub struct Beside {
    looked: Option<Instant>,
    /// The sum of all processes' counters then.
    used: u64,
    others: bool,
}

impl Log {
    /// Waits until this thread may ask so many bytes of a region; true if others use the region, so that it is to ask
    /// for one piece at a time.
    pub(super) fn give_way(&self, session: &Session, region: &dyn Region, bytes: u64) -> bool {
        if !Background::is() {
            return false;
        }
        self.look_beside(session);
        region.give_way(bytes)
    }

    /// Blocks that this thread is to read or write at a time, for a segment with replicas in these slots.
    pub(super) fn piece(&self, session: &Session, slots: &[u32]) -> u32 {
        let of = |slot: &u32| Some(self.known_area_of(session, *slot).ok()?.region.as_ref()?.piece());
        let least = slots.iter().filter_map(of).min().unwrap_or(super::replicas::MOST_PIECE);
        (least.min(super::replicas::MOST_PIECE) / BLOCK).max(1) as u32
    }

    /// To be called when a program waits for background work: that does not give way for a moment.
    pub fn unthrottle(&self) {
        self.regions().iter().for_each(|region| region.unthrottle(UNTHROTTLED));
    }

    /// Tells this thread whether files are used.
    fn look_beside(&self, session: &Session) {
        let mut seen = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.looked.is_none_or(|looked| self.clock.since(looked) >= GLANCE) {
            let used = session.runtime().sum_of_counts(self.options.activity);
            let others = seen.looked.is_some() && used != seen.used;
            *seen = Beside { looked: Some(self.clock.instant()), used, others };
        }
        Background::set_beside(seen.others);
    }
}
