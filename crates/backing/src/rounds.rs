//! The changed lines of a memory, handed out while operations go on, as of one instant nevertheless.
//!
//! Round by round another set of marks becomes the active one, and the lines of the set before are copied when every
//! operation has ended that may still mark it. Lines that change meanwhile belong to the next round. When few are left,
//! all operations stand still for a moment, in which those are copied: this is the instant. Whether few are left is
//! found out before, with operations running; if they turn out to be more, another round follows. So operations never
//! stand still for long, however much has changed.
//!
//! Operations that change lines as fast as the disk takes them would never leave few. So the longer commits take, the
//! more lines count as few: copying them holds operations up for a hundredth of that time, and another round would hold
//! up everybody who waits for the commit. And when the first rounds have not come closer to an end, operations may begin
//! in a part of the time only, a smaller one after each round that wrote more than half as much as the one before. The
//! pauses end by themselves, since a disk may be slow meanwhile.

use std::time::{Duration, Instant};

use pram::budget::Budget;
use pram::error::Result;
use pram::marks::{Extent, Marks};
use pram::memory::{Memory, CHUNK};
use pram::session::{Frozen, Session};

/// Most lines that are copied while all operations stand still, and most pages that they are in, each perhaps missing
/// in the processor's caches. Some 100 us.
const STILL: (u32, u32) = (4096, 512);
/// The same for each whole second that a commit takes: copying them takes a hundredth of it.
const STILL_PER_SECOND: (u32, u32) = (64 * STILL.0, 64 * STILL.1);
/// Longer commits copy no more than one of so many seconds.
const MOST_SECONDS: u32 = 4;
/// Rounds without pauses, which are held to a rate if there is one.
const FREE: u32 = 4;
/// The time from pause to pause; and the first pause's length.
const GAP: Duration = Duration::from_micros(500);

/// Takes an offset and the lines there.
pub(crate) type Put<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// Hands all marked lines to `put`, some of them several times: the last is right. Calls `still` at the instant of the
/// lines, when operations stand still no longer than that takes; its changes are handed out too. Afterwards the
/// inactive sets of marks have all lines that were handed out.
///
/// `None` if nothing is marked and no commit is `wanted`: then it does nothing. `takes`: how long such a commit takes.
pub(crate) fn write<R>(
    session: &Session,
    marks: &Marks,
    wanted: bool,
    takes: Duration,
    budget: &mut Budget,
    put: Put,
    still: impl FnOnce(&Frozen) -> Result<R>,
) -> Result<Option<R>> {
    let (memory, began) = (session.memory(), Instant::now());
    let mut throttle = Throttle { session, pause: Duration::ZERO, next: began };
    // The marks of an unfinished commit, together with those of changes since: each line once.
    let [mut left, mut spare] = marks.gather()?;
    if marks.few(left, 0, 0)?.is_none() {
        marks.switch(spare)?;
        session.drain()?;
        [left, spare] = marks.gather()?;
    }
    let mut before = copy(memory, marks, left, budget, &mut throttle, put)?;
    for round in 0.. {
        let most = still_after(takes + began.elapsed());
        if let Some(few) = marks.few(marks.active()?, most.0, most.1)? {
            if few.is_empty() && before == 0 && round == 0 && !wanted {
                return Ok(None);
            }
            few.iter().try_for_each(|extent| each_piece(memory, *extent, &mut |(at, _)| memory.touch(at)))?;
            throttle.end();
            let frozen = session.freeze()?;
            if marks.few(marks.active()?, most.0, most.1)?.is_some() {
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

/// Most lines and pages that may be copied while all operations stand still, in a commit that takes so long.
fn still_after(time: Duration) -> (u32, u32) {
    match (time.as_secs() as u32).min(MOST_SECONDS) {
        0 => STILL,
        seconds => (STILL_PER_SECOND.0 * seconds, STILL_PER_SECOND.1 * seconds),
    }
}

/// Calls `see` with the part of an extent in each chunk. Skips chunks without memory: nothing there matters any more, and
/// a read takes memory from the host that nobody counts.
fn each_piece(memory: &Memory, (off, len): Extent, see: &mut dyn FnMut(Extent) -> Result<()>) -> Result<()> {
    let (mut at, end) = (off, off + len);
    while at < end {
        let next = (at / CHUNK + 1) * CHUNK;
        if memory.has_memory(at)? {
            see((at, next.min(end) - at))?;
        }
        at = next;
    }
    Ok(())
}

/// The marked lines, while all operations stand still; from then on stores mark `spare`.
fn at_rest(memory: &Memory, marks: &Marks, spare: u64) -> Result<Vec<(Extent, Vec<u8>)>> {
    let mut lines = Vec::new();
    marks.extents(marks.switch(spare)?, &mut |extent| {
        each_piece(memory, extent, &mut |(at, len)| {
            let mut bytes = vec![0; len as usize];
            memory.read_bytes(at, &mut bytes)?;
            lines.push(((at, len), bytes));
            Ok(())
        })
    })?;
    Ok(lines)
}

/// Hands out the lines of an inactive set; returns how many bytes they are.
fn copy(
    memory: &Memory,
    marks: &Marks,
    set: u64,
    budget: &mut Budget,
    throttle: &mut Throttle,
    put: Put,
) -> Result<u64> {
    let (mut all, mut piece) = (0, vec![0; CHUNK as usize]);
    marks.extents(set, &mut |extent| {
        each_piece(memory, extent, &mut |(at, len)| {
            all += len;
            let bytes = &mut piece[..len as usize];
            budget.spend(len);
            throttle.between_pieces();
            memory.read_bytes(at, bytes)?;
            put(at, bytes)
        })
    })?;
    Ok(all)
}

/// Holds operations up for a part of the time.
struct Throttle<'a> {
    session: &'a Session,
    /// How long operations are held up, from gap to gap.
    pause: Duration,
    next: Instant,
}

impl Throttle<'_> {
    /// Adjusts the pause after a round of `bytes` bytes, and one of `before` bytes.
    fn adjust(&mut self, round: u32, before: u64, bytes: u64) {
        if round >= FREE && bytes > before / 2 {
            self.pause = (self.pause * 2).max(GAP);
        }
    }

    /// Called between two pieces: begins or ends a pause that is due.
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
