//! A region with the same content on each of its disks.
//!
//! A write goes to all members and counts when it is on all that are used; one that misses it is
//! [excluded](super::keeper).
//!
//! A member that is being rebuilt is written like the others and read where it has been rebuilt. Rebuilding copies piece
//! by piece; the piece that is being copied is not written meanwhile (*window*).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::join::{Failures, Join};
use super::keeper::Keeper;
use super::rebuild::{begin, finish, note, reached, run, NOTED, OWN, PIECE};
use super::set::{Manner, Set};
use super::Map;
use crate::device::{Answer, Device, Done, Kind, Op, Ticket};
use crate::error::{Class, Error, Result};
use crate::label::{MemberState, Uuid};
use crate::sys::memory::{Aligned, Buffers};

/// Reads of which one goes to the second best member.
const TRIED: u64 = 64;

pub struct Mirror {
    inner: Arc<Inner>,
}

struct Inner {
    reads: AtomicU64,
    writes: Mutex<Writes>,
    /// A write has ended.
    ended: Condvar,
    keeper: Keeper,
}

#[derive(Default)]
struct Writes {
    turn: u64,
    under_way: BTreeMap<u64, Range<u64>>,
    /// What is being copied: writes of it wait.
    window: Option<Range<u64>>,
    waiting: Vec<(Op, Manner, Done)>,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Mirror {
    pub fn new() -> std::io::Result<Mirror> {
        let (writes, ended) = (Mutex::default(), Condvar::new());
        let inner = Inner { reads: AtomicU64::new(1), writes, ended, keeper: Keeper::new("mirror")? };
        Ok(Mirror { inner: Arc::new(inner) })
    }

    /// Members that are read where `range` lies, the one that will answer first before the others.
    fn readable(set: &Set, range: &Range<u64>) -> Vec<usize> {
        let states = set.states().clone();
        let can = |state: &MemberState| match state {
            MemberState::Whole => true,
            MemberState::Out => false,
            MemberState::Rebuilding { rebuilt } => range.end <= *rebuilt,
        };
        let mut roles: Vec<usize> = (0..states.len()).filter(|role| can(&states[*role])).collect();
        roles.sort_by_cached_key(|role| set.part(*role).map(|part| part.expected_read()));
        roles
    }

    fn read(&self, set: &Arc<Set>, op: Op, manner: Manner, done: Done) {
        let mut roles = Mirror::readable(set, &op.range());
        // Or nobody would see that a slow one is well again.
        if roles.len() > 1 && self.inner.reads.fetch_add(1, Ordering::Relaxed) % TRIED == 0 {
            roles.swap(0, 1);
        }
        try_read(set.clone(), self.inner.clone(), roles, op, manner, done);
    }

    fn write(&self, set: &Arc<Set>, op: Op, manner: Manner, done: Done) {
        let range = op.range();
        let mut writes = self.inner.lock();
        if writes.window.as_ref().is_some_and(|window| overlap(window, &range)) {
            return writes.waiting.push((op, manner, done));
        }
        let turn = writes.turn;
        writes.turn += 1;
        writes.under_way.insert(turn, range);
        let view = self.inner.keeper.view(set);
        drop(writes);
        let (targets, misses) = (view.used(), view.misses);
        let (inner, theirs, all, kind) = (self.inner.clone(), set.clone(), targets.len(), op.kind());
        let memory = op.buffers().cloned();
        let moves = memory.is_some();
        let join = Join::new(targets.len(), memory, move |failures, buffers| {
            inner.lock().under_way.remove(&turn);
            inner.ended.notify_all();
            let is_all = failures.len() == all;
            match kind == Kind::Discard {
                true => done(Answer { result: first_if(is_all, failures), buffers }),
                false => {
                    inner.keeper.settle(&theirs, misses, failures, |result| done(Answer { result, buffers }));
                }
            }
        });
        for role in targets {
            set.send(role, op.clone(), manner, join.part(role, moves));
        }
    }
}

/// From one member, and from the next where that fails.
fn try_read(set: Arc<Set>, inner: Arc<Inner>, mut roles: Vec<usize>, op: Op, manner: Manner, done: Done) {
    if roles.is_empty() {
        let e = Error::new(Class::Gone, &set.name, format!("{op}: no member has it"));
        return done(Answer { result: Err(e), buffers: op.into_buffers() });
    }
    let role = roles.remove(0);
    let (then, again, range) = (set.clone(), op.buffers().map(Buffers::len), op.range());
    let next = move |answer: Answer| {
        let Err(e) = &answer.result else { return done(answer) };
        if roles.is_empty() || e.class == Class::Invalid {
            return done(answer);
        }
        if e.class == Class::Gone {
            inner.keeper.out(&then, role, &e.to_string());
        }
        // Memory that a member still has is not given to the next one: what comes late would be written over what came.
        let into = answer.buffers.unwrap_or_else(|| Buffers::whole(&Aligned::zeroed(again.unwrap_or(0) as usize)));
        try_read(then, inner, roles, Op::Read { at: range.start, into }, manner, done);
    };
    set.send(role, op, manner, Box::new(next));
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Writes> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A discard that some have not done is done.
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

    fn submit(&self, set: &Arc<Set>, op: Op, manner: Manner, done: Done) {
        match op.kind() {
            Kind::Read => self.read(set, op, manner, done),
            _ => self.write(set, op, manner, done),
        }
    }

    fn submit_copy(&self, set: &Arc<Set>, copy: usize, op: Op, manner: Manner, done: Done) {
        let range = op.range();
        match Mirror::readable(set, &range).contains(&copy) {
            true => set.send(copy, op, manner, done),
            false => try_read(set.clone(), self.inner.clone(), Vec::new(), op, manner, done),
        }
    }

    fn rebuild(
        &self,
        set: &Arc<Set>,
        role: usize,
        spare: Option<(Arc<dyn Device>, Uuid)>,
        live: &mut dyn FnMut() -> Vec<Range<u64>>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool> {
        let Some(from) = begin(set, role, spare)? else { return Ok(true) };
        let live = live();
        let mut left: u64 = live.iter().map(|range| range.end.saturating_sub(range.start.max(from))).sum();
        let mut noted = from;
        for range in &live {
            let mut at = range.start.max(from);
            while at < range.end {
                if !go_on(left) {
                    note(set, role, at)?;
                    return Ok(false);
                }
                let end = range.end.min(at + PIECE);
                self.copy(set, role, at..end)?;
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
    /// Copies a piece, which nobody writes meanwhile.
    fn copy(&self, set: &Arc<Set>, role: usize, range: Range<u64>) -> Result<()> {
        let mut writes = self.inner.lock();
        writes.window = Some(range.clone());
        while writes.under_way.values().any(|other| overlap(other, &range)) {
            writes = self.inner.ended.wait(writes).unwrap_or_else(PoisonError::into_inner);
        }
        drop(writes);
        let mut copied = self.copy_alone(set, role, &range);
        let mut writes = self.inner.lock();
        writes.window = None;
        let waiting = std::mem::take(&mut writes.waiting);
        drop(writes);
        copied = copied.and_then(|()| reached(set, role, range.end));
        waiting.into_iter().for_each(|(op, manner, done)| self.write(set, op, manner, done));
        copied
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
