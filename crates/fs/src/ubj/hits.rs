//! Hits of readers in memory: a use, for the hand of the clock, and a count by state.
//!
//! A reader pays a load for each block, and a store where its use was not noted: no count that is shared, no lock. Of one block in
//! [`SAMPLE`] that a thread reads it is looked at the state, and that counts for all of them.

use std::cell::Cell;

use pram::memory::BLOCK;
use pram::Session;

use super::{count, Count};

/// Blocks of which one is looked at.
const SAMPLE: u64 = 32;

thread_local! {
    /// Blocks that this thread has read.
    static READ: Cell<u64> = const { Cell::new(0) };
}

/// Bytes of a large file were read where they lie. `caller_caches`: the caller caches them, and will not come again.
#[inline]
pub(crate) fn note_hit(session: &Session, at: u64, len: u64, caller_caches: bool) {
    let (first, end) = (at / BLOCK, (at + len).div_ceil(BLOCK));
    if !caller_caches {
        let heap = session.heap();
        (first..end).for_each(|n| heap.note_use(n * BLOCK));
    }
    let before = READ.get();
    READ.set(before + (end - first));
    let samples = (before + (end - first)) / SAMPLE - before / SAMPLE;
    if samples > 0 {
        sample(session, first * BLOCK, samples * SAMPLE);
    }
}

/// The state of this block counts for so many.
#[cold]
fn sample(session: &Session, block: u64, blocks: u64) {
    // A torn look may lead to no block, or another's: it is only a count.
    let Ok(descriptor) = session.memory().descriptor(block) else { return };
    let state = match session.epoch() {
        _ if descriptor.place != 0 => Count::FromClean,
        Ok(running) if descriptor.epoch >= running && backing::of(session).is_some() => Count::FromRunning,
        _ => Count::FromFrozen,
    };
    count(session, state, blocks);
}
