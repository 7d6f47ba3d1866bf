//! What has changed in a memory, handed out while operations go on, as of one instant nevertheless.
//!
//! Round by round another set of marks becomes the active one, and the lines of the set before are copied when every
//! operation has ended that may still mark it. What changes meanwhile is the next round's. When little is left, all is held up
//! for a moment, in which that is copied: this is the instant. How little is found out before, with operations running: if it
//! turns out to be more, it is one more round. So nothing stands still for long, whatever has changed.
//!
//! Who changes as much as can be written, or more, would never leave little enough. So when the first rounds have not
//! come closer to an end, operations may begin in a part of the time only, a smaller one after each round that did not
//! leave half of the one before: by pauses that end by themselves, since a disk may take its time meanwhile.

use std::time::{Duration, Instant};

use pram::budget::Budget;
use pram::error::Result;
use pram::marks::{Extent, Marks};
use pram::memory::Memory;
use pram::session::{Frozen, Session};

/// Most that is copied while everything stands still: lines, and pages that they are in, each of which may not be in the
/// processor's caches. Some 100 us.
const STILL: (u32, u32) = (4096, 512);
/// Bytes read at a time from a memory that is at work.
const PIECE: u64 = 64 << 10;
/// Rounds in which everybody works as fast as they can, and which are held to a rate if there is one.
const FREE: u32 = 4;
/// From pause to pause; and the first pause's length.
const GAP: Duration = Duration::from_micros(500);

/// Where lines go.
pub(crate) type Put<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// Hands all marked lines to `put`, some of them several times: the last is right. `still` is called at the instant that
/// they are of, at which nothing stands still for longer than it takes; what it changes is handed out too. What was handed out is in the sets of marks
/// that are not active then.
///
/// If nothing is marked nothing happens, unless it is `wanted`: `None`.
pub(crate) fn write<R>(
    session: &Session,
    marks: &Marks,
    wanted: bool,
    budget: &mut Budget,
    put: Put,
    still: impl FnOnce(&Frozen) -> Result<R>,
) -> Result<Option<R>> {
    let memory = session.memory();
    let mut throttle = Throttle { session, pause: Duration::ZERO, next: Instant::now() };
    // What a commit that never ended has left; with what has changed since, once.
    let [mut left, mut spare] = marks.gather()?;
    if marks.few(left, 0, 0)?.is_none() {
        marks.switch(spare)?;
        session.drain()?;
        [left, spare] = marks.gather()?;
    }
    let mut before = copy(memory, marks, left, budget, &mut throttle, put)?;
    for round in 0.. {
        if let Some(few) = marks.few(marks.active()?, STILL.0, STILL.1)? {
            if few.is_empty() && before == 0 && round == 0 && !wanted {
                return Ok(None);
            }
            few.iter().try_for_each(|(off, _)| memory.touch(*off))?;
            throttle.end();
            let frozen = session.freeze()?;
            if marks.few(marks.active()?, STILL.0, STILL.1)?.is_some() {
                let result = still(&frozen)?;
                let lines = at_rest(memory, marks, spare)?;
                drop(frozen);
                for ((off, len), bytes) in lines {
                    budget.spend(len);
                    put(off, &bytes)?;
                }
                return Ok(Some(result));
            }
        }
        if round == FREE {
            budget.lift();
        }
        let written = marks.switch(spare)?;
        session.drain()?;
        let bytes = copy(memory, marks, written, budget, &mut throttle, put)?;
        throttle.adjust(round, before, bytes);
        before = bytes;
        [_, spare] = marks.gather()?;
    }
    unreachable!("the last round returns")
}

/// The marked lines, as they are while everything stands still; from then on `spare` is marked.
fn at_rest(memory: &Memory, marks: &Marks, spare: u64) -> Result<Vec<(Extent, Vec<u8>)>> {
    let mut lines = Vec::new();
    marks.extents(marks.switch(spare)?, &mut |(off, len)| {
        let mut bytes = vec![0; len as usize];
        memory.read_bytes(off, &mut bytes)?;
        lines.push(((off, len), bytes));
        Ok(())
    })?;
    Ok(lines)
}

/// Hands out the lines of a set that is not active; how many bytes they are.
fn copy(
    memory: &Memory,
    marks: &Marks,
    set: u64,
    budget: &mut Budget,
    throttle: &mut Throttle,
    put: Put,
) -> Result<u64> {
    let (mut all, mut piece) = (0, vec![0; PIECE as usize]);
    marks.extents(set, &mut |(off, len)| {
        all += len;
        for at in (off..off + len).step_by(PIECE as usize) {
            let bytes = &mut piece[..PIECE.min(off + len - at) as usize];
            budget.spend(bytes.len() as u64);
            throttle.between_pieces();
            memory.read_bytes(at, bytes)?;
            put(at, bytes)?;
        }
        Ok(())
    })?;
    Ok(all)
}

/// Holds operations up for a part of the time.
struct Throttle<'a> {
    session: &'a Session,
    /// How long, from gap to gap.
    pause: Duration,
    next: Instant,
}

impl Throttle<'_> {
    /// After a round of so many bytes, and one before.
    fn adjust(&mut self, round: u32, before: u64, bytes: u64) {
        if round >= FREE && bytes > before / 2 {
            self.pause = (self.pause * 2).max(GAP);
        }
    }

    /// Between two pieces.
    fn between_pieces(&mut self) {
        if self.pause.is_zero() {
            return;
        }
        let now = Instant::now();
        if now >= self.next {
            self.next = now + self.pause + GAP;
            self.session.runtime().pause(self.pause);
        } else if now + GAP >= self.next {
            self.end();
        }
    }

    fn end(&self) {
        self.session.runtime().end_pause();
    }
}

impl Drop for Throttle<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
