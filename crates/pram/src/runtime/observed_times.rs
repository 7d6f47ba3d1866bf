//! Times that were looked at, for the layer above: the latest time of each key that a caller got. And the latest time
//! that was given out ahead of a coarse clock: every later one is to be after it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Runtime, H_LATEST};

/// Keys are equal modulo this.
const LOOKS: u64 = 1 << 12;
pub(super) const BYTES: u64 = LOOKS * 8;

impl Runtime {
    fn look(&self, key: u64) -> &AtomicU64 {
        self.word(self.at.looks + key % LOOKS * 8)
    }

    /// Notes that a caller gets `time` of `key`. True if none got it before: then the caller reads everything else of
    /// the key again, since a process that did not know of the look may have changed it.
    #[inline(always)]
    pub fn note_look(&self, key: u64, time: u64) -> bool {
        let look = self.look(key);
        look.load(Ordering::SeqCst) < time && look.fetch_max(time, Ordering::SeqCst) < time
    }

    /// Did a caller get `time`, or a later one, of `key`, or by chance of another key? For the holder of the lock of `key`.
    #[inline(always)]
    pub fn was_looked_at(&self, key: u64, time: u64) -> bool {
        self.look(key).load(Ordering::SeqCst) >= time
    }

    /// The latest time that was given out ahead of the clock.
    #[inline(always)]
    pub fn latest(&self) -> u64 {
        self.header(H_LATEST).load(Ordering::SeqCst)
    }

    /// Gives out `time`, or one later than all before; unless those are ahead by more than `most`: then the clock was
    /// set back.
    pub fn give_out(&self, time: u64, most: u64) -> u64 {
        let next = |latest: u64| if latest.saturating_sub(time) > most { time } else { time.max(latest + 1) };
        let before =
            self.header(H_LATEST).fetch_update(Ordering::SeqCst, Ordering::SeqCst, |latest| Some(next(latest)));
        next(before.unwrap_or_default())
    }
}
