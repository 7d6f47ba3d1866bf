//! A region with the same content on each of its disks.
//!
//! A write goes to all members and counts when it is on all in use; one that misses it is [excluded](super::exclusion).
//!
//! A member that is being rebuilt is written like the others and read where it has been rebuilt. Rebuilding copies
//! piece by piece, and excludes writes from the piece: a write shares the [range locks](super::range_locks) of its
//! pieces with other writes, a copy does not share them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::exclusion::Exclusion;
use super::join::{Failures, Join};
use super::range_locks::{Preparation, RangeLock, RangeLocks};
use super::rebuild::{begin, finish, note, reached, run, Going, NOTED, OWN, PIECE};
use super::set::{Manner, Part, Set};
use super::shared_state::SharedState;
use super::{Begin, Map};
use crate::device::{Answer, Device, Done, Kind, Op, Ticket, LATE};
use crate::error::{Class, Error, OpenError, Result};
use crate::label::{MemberState, Uuid};
use crate::sys::memory::{Aligned, Buffers};

/// The longest wait for a member where there are others: this many times the expected time, within these bounds and
/// [`LATE`].
const HEDGE: u32 = 4;
const HEDGE_LEAST: Duration = Duration::from_millis(50);
/// One read in so many goes to the second best member.
const TRIED: u64 = 64;

pub struct Mirror {
    inner: Arc<Inner>,
}

struct Inner {
    reads: AtomicU64,
    /// On pieces of a rebuild: writes share them, a copy excludes writes.
    range_locks: Arc<RangeLocks>,
    exclusion: Exclusion,
    /// For the range locks, as long as the mirror exists.
    preparation: OnceLock<Arc<Current>>,
}

/// No write uses outdated states.
struct Current(Arc<Set>);

impl Preparation for Current {
    fn is_ready(&self, _: &Range<u64>) -> bool {
        self.0.is_current()
    }

    fn prepare(&self, _: &Range<u64>) -> Result<()> {
        self.0.adopt()
    }
}

/// The pieces in which a range lies.
fn pieces(range: &Range<u64>) -> Range<u64> {
    range.start / PIECE..range.end.div_ceil(PIECE)
}

impl Mirror {
    pub fn new(shared_state: Option<Arc<SharedState>>) -> std::io::Result<Mirror> {
        let range_locks = Arc::new(RangeLocks::new("mirror", shared_state)?);
        let (reads, exclusion) = (AtomicU64::new(1), Exclusion::new("mirror")?);
        Ok(Mirror { inner: Arc::new(Inner { reads, range_locks, exclusion, preparation: OnceLock::new() }) })
    }

    /// Members that can be read in `range`, the one with the quickest answer first.
    fn readable(set: &Set, range: &Range<u64>) -> Vec<usize> {
        let states = set.states().clone();
        let can = |state: &MemberState| match state {
            MemberState::Whole => true,
            MemberState::Out => false,
            MemberState::Rebuilding { rebuilt } => range.end <= *rebuilt,
        };
        let mut roles: Vec<usize> = (0..states.len()).filter(|role| can(&states[*role])).collect();
        let key = |part: Arc<Part>| {
            let performance = part.performance();
            (performance.is_stuck(), performance.stutter.is_some(), part.expected_read())
        };
        roles.sort_by_cached_key(|role| set.part(*role).map(key));
        roles
    }

    fn read(&self, set: &Arc<Set>, op: Op, manner: Manner, done: Done) {
        let mut roles = Mirror::readable(set, &op.range());
        // Otherwise a slow member could never prove well again. A stuck one proves it by its late answer.
        if roles.len() > 1 && self.inner.reads.fetch_add(1, Ordering::Relaxed) % TRIED == 0 {
            let is_stuck = set.part(roles[1]).is_some_and(|part| part.performance().is_stuck());
            roles.swap(0, usize::from(!is_stuck));
        }
        try_read(set.clone(), self.inner.clone(), Asked::of(roles), op, manner, done);
    }

    fn write(&self, set: &Arc<Set>, op: Op, manner: Manner, done: Done) {
        let (inner, set) = (self.inner.clone(), set.clone());
        // A flush has no range.
        let pieces = pieces(&op.range());
        self.inner.range_locks.ask(pieces, true, move |lock| match lock {
            Ok(lock) => inner.write(&set, op, manner, lock, done),
            Err(e) => done(Answer { result: Err(e), buffers: op.into_buffers() }),
        });
    }
}

impl Inner {
    fn write(self: &Arc<Inner>, set: &Arc<Set>, op: Op, manner: Manner, lock: RangeLock, done: Done) {
        let view = self.exclusion.view(set);
        let (targets, misses) = (view.used(), view.misses);
        let (inner, theirs, all, kind) = (self.clone(), set.clone(), targets.len(), op.kind());
        let memory = op.buffers().cloned();
        let moves = memory.is_some();
        let without = set.without(manner);
        let join = Join::without_late(targets.clone(), without, memory, move |failures, buffers| {
            let is_all = failures.len() == all;
            // Others read by the labels: they are written before the lock ends.
            let end = move |result| {
                drop(lock);
                done(Answer { result, buffers });
            };
            match kind == Kind::Discard {
                true => end(first_if(is_all, failures)),
                false => inner.exclusion.finish(&theirs, misses, failures, end),
            }
        });
        for role in targets {
            set.send_with_late(role, op.clone(), manner, join.part(role, moves), join.late(role));
        }
    }
}

/// The members that may serve a read.
struct Asked {
    /// In the order of trying.
    roles: Vec<usize>,
    /// Those that did not answer in time; they are asked again if the others fail.
    late: Vec<usize>,
}

impl Asked {
    fn of(roles: Vec<usize>) -> Asked {
        Asked { roles, late: Vec::new() }
    }

    fn is_last(&self) -> bool {
        self.roles.is_empty() && self.late.is_empty()
    }

    /// The next, and how long to wait for it, where there are others.
    fn next(&mut self, set: &Set) -> Option<(usize, Option<Duration>)> {
        if self.roles.is_empty() {
            return Some((self.late.pop()?, None));
        }
        let role = self.roles.remove(0);
        let expected = set.part(role).map(|part| part.expected_read()).unwrap_or_default();
        let hedge = expected.saturating_mul(HEDGE).clamp(HEDGE_LEAST, LATE);
        Some((role, (!self.roles.is_empty()).then_some(hedge)))
    }
}

/// Reads from one member, and from the next if that fails or does not answer in time.
fn try_read(set: Arc<Set>, inner: Arc<Inner>, mut asked: Asked, op: Op, manner: Manner, done: Done) {
    let Some((role, hedge)) = asked.next(&set) else {
        let e = Error::new(Class::Gone, &set.name, format!("{op}: no member has it"));
        return done(Answer { result: Err(e), buffers: op.into_buffers() });
    };
    let (then, again, range) = (set.clone(), op.buffers().map(Buffers::len), op.range());
    let within = manner.within.into_iter().chain(hedge).min();
    let next = move |answer: Answer| {
        let Err(e) = &answer.result else { return done(answer) };
        if hedge.is_some() && e.class == Class::Timeout {
            asked.late.push(role);
        }
        if asked.is_last() || e.class == Class::Invalid {
            return done(answer);
        }
        if e.class == Class::Gone {
            inner.exclusion.out(&then, role, &e.to_string());
        }
        // Memory that a member still has is not given to the next one: a late answer would overwrite the content.
        let into = answer.buffers.unwrap_or_else(|| Buffers::whole(&Aligned::zeroed(again.unwrap_or(0) as usize)));
        try_read(then, inner, asked, Op::Read { at: range.start, into }, manner, done);
    };
    set.send(role, op, Manner { within, ..manner }, Box::new(next));
}

/// A discard that some members have not done counts as done.
fn first_if(is_all: bool, failures: Failures) -> Result<()> {
    failures.into_iter().next().filter(|_| is_all).map_or(Ok(()), |(_, e)| Err(e))
}

impl Map for Mirror {
    fn size(&self, set: &Set) -> u64 {
        set.share
    }

    fn copies(&self, set: &Set) -> usize {
        set.len()
    }

    fn start(&self, set: &Arc<Set>, _: Begin) -> Result<(), OpenError> {
        let preparation = self.inner.preparation.get_or_init(|| Arc::new(Current(set.clone())));
        let preparation = Arc::downgrade(preparation);
        self.inner.range_locks.prepare_by(preparation);
        Ok(())
    }

    fn submit(&self, set: &Arc<Set>, op: Op, manner: Manner, done: Done) {
        if !set.is_current() {
            return self.adopt(set, op, done, move |mirror, set, op, done| mirror.submit(set, op, manner, done));
        }
        match op.kind() {
            Kind::Read => self.read(set, op, manner, done),
            _ => self.write(set, op, manner, done),
        }
    }

    fn submit_copy(&self, set: &Arc<Set>, copy: usize, op: Op, manner: Manner, done: Done) {
        if !set.is_current() {
            let again =
                move |mirror: &Mirror, set: &Arc<Set>, op, done| mirror.submit_copy(set, copy, op, manner, done);
            return self.adopt(set, op, done, again);
        }
        let range = op.range();
        match Mirror::readable(set, &range).contains(&copy) {
            true => set.send(copy, op, manner, done),
            false => try_read(set.clone(), self.inner.clone(), Asked::of(Vec::new()), op, manner, done),
        }
    }

    fn rebuild(
        &self,
        set: &Arc<Set>,
        role: usize,
        spare: Option<(Arc<dyn Device>, Uuid)>,
        live: &mut dyn FnMut() -> Vec<Range<u64>>,
        going: &mut Going<'_>,
    ) -> Result<bool> {
        let Some(from) = begin(set, role, spare)? else { return Ok(true) };
        let live = live();
        let mut left: u64 = live.iter().map(|range| range.end.saturating_sub(range.start.max(from))).sum();
        let mut noted = from;
        for range in &live {
            let mut at = range.start.max(from);
            while at < range.end {
                if !(going.go_on)(left) {
                    note(set, role, at)?;
                    return Ok(false);
                }
                // Within one piece of the range locks.
                let end = range.end.min(at + going.piece()).min((at / PIECE + 1) * PIECE);
                going.copy(end - at, || self.copy(set, role, at..end))?;
                (left, at) = (left - (end - at), end);
                if at - noted >= NOTED {
                    note(set, role, at)?;
                    noted = at;
                }
            }
        }
        finish(set, role)?;
        Ok(true)
    }
}

impl Mirror {
    /// Goes on with a request once this process knows the members' states.
    fn adopt(
        &self,
        set: &Arc<Set>,
        op: Op,
        done: Done,
        then: impl FnOnce(&Mirror, &Arc<Set>, Op, Done) + Send + 'static,
    ) {
        let (mirror, theirs) = (Mirror { inner: self.inner.clone() }, set.clone());
        self.inner.exclusion.adopt(set, move |adopted| match adopted {
            Ok(()) => then(&mirror, &theirs, op, done),
            Err(e) => done(Answer { result: Err(e), buffers: op.into_buffers() }),
        });
    }

    /// Copies a piece under its lock.
    fn copy(&self, set: &Arc<Set>, role: usize, range: Range<u64>) -> Result<()> {
        let lock = self.inner.range_locks.wait(pieces(&range));
        let _lock = lock.unwrap_or_else(|| Err(Error::new(Class::Transient, &set.name, "waiting for a range lock")))?;
        self.copy_alone(set, role, &range)?;
        reached(set, role, range.end)
    }

    fn copy_alone(&self, set: &Arc<Set>, role: usize, range: &Range<u64>) -> Result<()> {
        let into = Buffers::whole(&Aligned::zeroed((range.end - range.start) as usize));
        let (done, ticket) = Ticket::new();
        self.read(set, Op::Read { at: range.start, into }, OWN, done);
        let answer = ticket.wait();
        answer.result?;
        let from = answer.buffers.unwrap_or_default();
        run(set, role, Op::Reserve(range.clone())).result?;
        run(set, role, Op::Write { at: range.start, from }).result
    }
}
