//! A region with the same content on each of its disks.
//!
//! A write goes to all members and counts when it is on all that are used. One that misses it is excluded: it is out from
//! that moment, for reads too. The write is answered only when the labels of the others say so, durably:
//!
//! | step | what | else |
//! | --- | --- | --- |
//! | 1 | the member that failed is out, here: nothing reads or writes it | a read gives what was there before the write |
//! | 2 | the labels of the others say that it is out, in a new epoch; durable | after a power cut both look alike, and an acknowledged write is there or not |
//! | 3 | the write is answered | |
//!
//! Step 2 waits for disks, so a thread of the region does it (*keeper*), and answers what came meanwhile in order.
//!
//! A member that is being rebuilt is written like the others and read where it has been rebuilt. Rebuilding copies piece
//! by piece; the piece that is being copied is not written meanwhile (*window*).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use super::join::{Failures, Join};
use super::set::{Manner, Set};
use super::Map;
use crate::device::{Answer, Device, Done, Kind, Op, Ticket};
use crate::error::{Class, Error, Result};
use crate::events::What;
use crate::label::{MemberState, Uuid};
use crate::sys::memory::{Aligned, Buffers};

/// Bytes that a rebuild copies at a time.
const PIECE: u64 = 1 << 20;
/// Bytes of a rebuild after which labels say how far it is.
const NOTED: u64 = 1 << 30;
/// Reads of which one goes to the second best member.
const TRIED: u64 = 64;
/// A member that takes so long for a piece of a rebuild is not rebuilt.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Mirror {
    inner: Arc<Inner>,
}

struct Inner {
    reads: AtomicU64,
    writes: Mutex<Writes>,
    /// A write has ended.
    ended: Condvar,
    keeper: Mutex<Sender<Task>>,
}

#[derive(Default)]
struct Writes {
    turn: u64,
    under_way: BTreeMap<u64, Range<u64>>,
    /// What is being copied: writes of it wait.
    window: Option<Range<u64>>,
    waiting: Vec<(Op, Manner, Done)>,
    /// Members that are out here, and not yet in the labels.
    leaving: usize,
}

enum Task {
    Exclude { set: Arc<Set>, role: usize, why: String },
    Answer { set: Arc<Set>, done: Done, answer: Answer },
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Mirror {
    pub fn new() -> std::io::Result<Mirror> {
        let (keeper, tasks) = channel::<Task>();
        let (writes, ended) = (Mutex::default(), Condvar::new());
        let inner = Arc::new(Inner { reads: AtomicU64::new(1), writes, ended, keeper: Mutex::new(keeper) });
        // It ends when the region does: nobody can send it anything then.
        let theirs = Arc::downgrade(&inner);
        let keep = move || {
            let mut lost = None;
            for task in tasks {
                match task {
                    Task::Exclude { set, role, why } => {
                        lost = exclude(&set, role, why).err().or(lost);
                        if let Some(inner) = theirs.upgrade() {
                            inner.lock().leaving -= 1;
                        }
                    }
                    Task::Answer { done, mut answer, set } => {
                        if let (Ok(()), Some(e)) = (&answer.result, &lost) {
                            let what = format!("a member was lost, and the labels cannot say so: {e}");
                            answer.result = Err(Error::new(Class::Media, &set.name, what));
                        }
                        done(answer);
                    }
                }
            }
        };
        Builder::new().name("mirror".into()).spawn(keep)?;
        Ok(Mirror { inner })
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
        let misses = writes.leaving > 0;
        let targets: Vec<usize> = {
            let states = set.states();
            (0..states.len()).filter(|role| states[*role] != MemberState::Out).collect()
        };
        drop(writes);
        let (inner, theirs, roles, kind) = (self.inner.clone(), set.clone(), targets.clone(), op.kind());
        let memory = op.buffers().cloned();
        let moves = memory.is_some();
        let join = Join::new(targets.len(), memory, move |failures, buffers| {
            inner.lock().under_way.remove(&turn);
            inner.ended.notify_all();
            inner.written(&theirs, kind, &roles, failures, misses, buffers, done);
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
            inner.out(&then, role, &e.to_string());
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

    fn task(&self, task: Task) {
        // The keeper is there as long as anybody can ask it.
        let _ = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).send(task);
    }

    /// Step 1; the keeper does the others. False: it was out, or is the last that is whole.
    fn out(&self, set: &Arc<Set>, role: usize, why: &str) -> bool {
        let mut writes = self.lock();
        let mut states = set.states();
        let others = states.iter().enumerate().filter(|(other, state)| *other != role && **state == MemberState::Whole);
        if states[role] == MemberState::Out || others.count() == 0 {
            return false;
        }
        states[role] = MemberState::Out;
        writes.leaving += 1;
        drop(states);
        self.task(Task::Exclude { set: set.clone(), role, why: why.into() });
        true
    }

    /// All members have answered a write, a flush, a discard or a reservation.
    #[expect(clippy::too_many_arguments, reason = "each is one fact of one answer")]
    fn written(
        &self,
        set: &Arc<Set>,
        kind: Kind,
        roles: &[usize],
        failures: Failures,
        misses: bool,
        buffers: Option<Buffers>,
        done: Done,
    ) {
        let first = failures.first().map(|(_, e)| e.clone());
        // Nobody has it, or it is not the member's fault: no copy is better than another.
        let is_all = failures.len() == roles.len();
        let is_ours = |e: &Error| matches!(e.class, Class::Invalid | Class::NoSpace);
        if kind == Kind::Discard || is_all || failures.iter().any(|(_, e)| is_ours(e)) {
            let ignored = kind == Kind::Discard && !is_all;
            let result = first.filter(|_| !ignored).map_or(Ok(()), Err);
            return done(Answer { result, buffers });
        }
        let mut result = Ok(());
        for (role, e) in &failures {
            let is_out = self.out(set, *role, &e.to_string()) || set.states()[*role] == MemberState::Out;
            if !is_out {
                result = Err(e.clone());
            }
        }
        let answer = Answer { result, buffers };
        match misses || !failures.is_empty() {
            true => self.task(Task::Answer { set: set.clone(), done, answer }),
            false => done(answer),
        }
    }
}

/// Step 2.
fn exclude(set: &Set, role: usize, why: String) -> Result<()> {
    let changed = set.change(role, MemberState::Out);
    set.tell(What::Out { member: role, tolerated: set.tolerated(), why });
    changed
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
        self.join_in(set, role, spare)?;
        let live = live();
        let from = match set.states()[role] {
            MemberState::Rebuilding { rebuilt } => rebuilt,
            MemberState::Whole => return Ok(true),
            MemberState::Out => return Err(Error::new(Class::Gone, &set.name, format!("disk {} is out", role + 1))),
        };
        let mut left: u64 = live.iter().map(|range| range.end.saturating_sub(range.start.max(from))).sum();
        let mut noted = from;
        for range in &live {
            let mut at = range.start.max(from);
            while at < range.end {
                if !go_on(left) {
                    self.note(set, role, at)?;
                    return Ok(false);
                }
                let end = range.end.min(at + PIECE);
                self.copy(set, role, at..end)?;
                (left, at) = (left - (end - at), end);
                if at - noted >= NOTED {
                    self.note(set, role, at)?;
                    noted = at;
                }
            }
        }
        // Durable before anybody is told that it is there.
        run(set, role, Op::Flush).result?;
        set.change(role, MemberState::Whole)?;
        set.tell(What::Whole { member: role, tolerated: set.tolerated().unwrap_or(0) });
        Ok(true)
    }
}

impl Mirror {
    /// From now on the member is written.
    fn join_in(&self, set: &Arc<Set>, role: usize, spare: Option<(Arc<dyn Device>, Uuid)>) -> Result<()> {
        if spare.is_none() && set.states()[role] != MemberState::Out {
            return Ok(());
        }
        let (device, uuid) = match spare {
            Some(spare) => spare,
            None => match set.part(role) {
                Some(part) => (part.device.clone(), set.uuid(role)),
                None => return Err(Error::new(Class::Gone, &set.name, format!("disk {} is missing", role + 1))),
            },
        };
        if crate::label::data_of(device.properties().size) < set.share {
            let what = format!("{} is smaller than what it is to hold, {} bytes", device.name(), set.share);
            return Err(Error::new(Class::NoSpace, &set.name, what));
        }
        // Writes that began before are not on it; they lie where it has not been rebuilt yet.
        set.replace(role, device, uuid)
    }

    fn note(&self, set: &Arc<Set>, role: usize, at: u64) -> Result<()> {
        run(set, role, Op::Flush).result?;
        set.note_rebuilt(role, at)?;
        set.tell(What::Rebuilding { member: role, left: set.share - at });
        Ok(())
    }

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
        // What has been copied can be read there, unless a write has failed there meanwhile.
        match &mut set.states()[role] {
            MemberState::Rebuilding { rebuilt } if copied.is_ok() => *rebuilt = range.end,
            MemberState::Rebuilding { .. } => {}
            _ => copied = copied.and(Err(Error::new(Class::Gone, &set.name, format!("disk {} is out", role + 1)))),
        }
        waiting.into_iter().for_each(|(op, manner, done)| self.write(set, op, manner, done));
        copied
    }

    fn copy_alone(&self, set: &Arc<Set>, role: usize, range: &Range<u64>) -> Result<()> {
        let into = Buffers::whole(&Aligned::zeroed((range.end - range.start) as usize));
        let (done, ticket) = Ticket::new();
        let manner = Manner { tag: 0, within: Some(PATIENCE) };
        self.read(set, Op::Read { at: range.start, into }, manner, done);
        let answer = ticket.wait();
        answer.result?;
        let from = answer.buffers.unwrap_or_default();
        run(set, role, Op::Reserve(range.clone())).result?;
        run(set, role, Op::Write { at: range.start, from }).result
    }
}

fn run(set: &Arc<Set>, role: usize, op: Op) -> Answer {
    let (done, ticket) = Ticket::new();
    set.send(role, op, Manner { tag: 0, within: Some(PATIENCE) }, done);
    ticket.wait()
}
