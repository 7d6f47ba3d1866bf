//! One commit for all waiters (group commit).
//!
//! A thread that needs a commit that begins after now either leads it or waits for its leader; the next commit serves
//! all threads that came while one was under way. Leaders exclude each other by a word in the runtime file, which the
//! cleanup after a dead process resets, and inside a process by a mutex.
//!
//! Ordered steps of a commit:
//! 1. Participants prepare. The number of commits begun goes up. (A thread that comes later must not take this commit
//!    for one that holds its work.)
//! 2. The changed lines go to the log, until few are left, and those while all operations stand still. (See
//!    [`rounds`].) There the epoch ends. (See [`pram::session::epoch`].)
//! 3. Participants write. The last record, flush: durable.
//! 4. The logs' state in memory. (Before 5: else the next commit would overwrite this one and not hold its lines.)
//! 5. The marks are cleared, participants run.
//! 6. The number of commits done goes up, waiters wake.
//!
//! After a failure in 2 to 4 the backing is made anew from memory, which is whole: see [`remake`](super::remake). If
//! that fails too, or a participant failed, the failure is final: the pool turns read-only for all processes, and says
//! why. But a full disk is noticed before anything leads to the new bytes: changes fail until a later commit has found
//! room.

mod beside;
mod logs;

use std::any::Any;
use std::path::PathBuf;
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::rounds::Put;
use super::state::State;
use super::vote::{self, Acknowledged};
use super::{rounds, Disks, Loaded, SharedDisk};
use crate::image::Image;
use crate::log::{self, Identity, Log, Position, MIN_CAPACITY};
use pram::budget::{self, Budget};
use pram::error::{Error, Result};
use pram::marks::Marks;
use pram::memory::{BackingPosition, Memory, EPOCH_ROOT};
use pram::runtime::control::{self, ControlBlock};
use pram::runtime::{self, Runtime};
use pram::session::{self, assert_may_wait, Frozen, Session};

/// Longest wait for more threads that want a commit.
const GATHER: Duration = Duration::from_millis(2);
/// The time between looks for them.
const GLANCE: Duration = Duration::from_micros(20);
/// The time between looks whether another process has ended its checkpoint or commit.
const CHECKPOINTING: Duration = Duration::from_millis(2);
/// How soon a throttled write notices that somebody waits for it.
const AWAITED: Duration = Duration::from_millis(1);
/// Attempts to compare the disks with the state in memory, while others change both.
const LOOKS: u32 = 100;
/// Attempts of a commit with a smaller log, after a log of more than all of the memory found no room.
const TRIES: u32 = 3;
/// A log that takes over for a commit has room for so many times the lines that are marked: more change while the commit
/// waits for the image, and a commit that fills the log begins anew.
const CHANGE: u64 = 4;
/// How long a waiter sleeps before it looks whether the leader is alive.
const PATIENCE: i64 = 10_000_000;

/// A commit that somebody needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Both logs, in the hands of the leader.
pub(crate) type Logs<'a> = &'a mut [Log<SharedDisk>; 2];

/// A process's hold on the backing.
pub struct Backing {
    disks: Disks,
    id: Identity,
    logs: Mutex<[Log<SharedDisk>; 2]>,
    /// The image as this process last left it.
    pages: Mutex<Option<Image<SharedDisk>>>,
    /// Epochs before this one were durable when the backing was taken up; `None`: all of the memory was.
    durable: Option<u64>,
    /// Operations wait for the backing.
    awaited: bool,
    /// Most bytes per second of writes that nobody waits for.
    rate: Option<u64>,
    /// This process leaves: its threads must not be throttled any more.
    hurried: AtomicBool,
    /// The file of the marks, if it goes when the memory is closed.
    marks: Option<PathBuf>,
    /// Others write it.
    is_beside: bool,
}

impl session::Backing for Backing {
    /// Stores the state of the backing in the new runtime file. The commit that the image holds stays 0: the image may
    /// not be durable yet, see [`checkpoint_image`](Backing::checkpoint_image).
    fn enter(&self, memory: &Memory, rt: &Runtime) -> Result<()> {
        let words = rt.backing();
        words.note_time(self.last().time, u64::MAX);
        rt.note_durable(self.durable.map_or_else(|| memory.load(memory.root(EPOCH_ROOT)), Ok)?);
        Ok(())
    }

    /// After a commit, notes in the memory that the backing holds all of it.
    /// 1. The word. 2. The file of the marks goes, if it is to. (A death in between leaves marks that mark nothing.)
    fn close(&self, session: &Session) -> Result<()> {
        self.wait(session)?;
        if self.pending(session)? == 0 {
            let memory = session.memory();
            let end = self.end();
            let (closed, tail) = (end.last.commit, end.before);
            memory.note_backing_position(BackingPosition { closed, tail, ..memory.backing_position()? })?;
            self.marks.iter().for_each(|marks| _ = std::fs::remove_file(marks));
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The backing that a session works with.
#[inline(always)]
pub fn of(session: &Session) -> Option<&Backing> {
    session.backing()
}

impl Backing {
    /// Takes up a backing that was made, read back, or compared with the memory: it lacks the marked lines.
    pub fn begin(disks: Disks, marks: &Marks, id: Identity, loaded: &Loaded) -> Result<Backing> {
        loaded.settle(&disks, id)?;
        loaded.state.write(marks, id)?;
        let durable = if loaded.whole { None } else { Some(0) };
        Ok(Backing { durable, ..Backing::over(disks, id, loaded.state) })
    }

    /// Goes on with a backing where the last process left it; `None` if the marks do not say where that was. Checks
    /// that the disks are the ones that the memory knows.
    pub fn resume(disks: Disks, marks: &Marks, id: Identity) -> Result<Option<Backing>> {
        let mut state = State::read(marks, id)?;
        for _ in 0..LOOKS {
            let Some(seen) = state else { break };
            let backing = Backing::over(disks.clone(), id, seen);
            let Err(e) = backing.check(&seen) else { return Ok(Some(backing)) };
            // Other processes may have gone on in between: then the two do not contradict each other.
            state = State::read(marks, id)?;
            if state == Some(seen) {
                return Err(e);
            }
        }
        Ok(None)
    }

    /// Do the marks say how far the logs have come? Else the marks have not been set yet, and mean nothing.
    pub fn is_known(marks: &Marks, id: Identity) -> Result<bool> {
        Ok(State::read(marks, id)?.is_some())
    }

    /// The instant that the backing is of, nanoseconds since the epoch.
    pub fn time(&self) -> i64 {
        self.last().time
    }

    /// Bytes that the backing lacks, as these marks say.
    pub fn marked(marks: &Marks) -> Result<u64> {
        Ok(marks.marked()? * log::LINE)
    }

    /// Fails unless the disks are as `state` says.
    fn check(&self, state: &State) -> Result<()> {
        Image::peek(&self.disks.image)?;
        let logs = lock(&self.logs);
        let (active, next) = (&logs[state.active], &logs[1 - state.active]);
        // First: until then nothing says that disks and memory have a history in common.
        active.check()?;
        active.check_end()?;
        next.check_next(state.swapping)
    }

    /// Takes up a commit that a process of this memory wrote before it died without noting it: another memory that was
    /// made from the backing meanwhile has found the commit, and may have acknowledged it. With nobody else attached.
    /// 1. The commit is made durable, and no unfinished one is left behind it. (Else, after a power cut, the next
    ///    commit could be there without it, or the unfinished one in the next one's place.)
    /// 2. The logs' state says that it is done. (Else the next commit would be written over it.)
    pub fn take_up_unnoted(&self, marks: &Marks) -> Result<()> {
        let Some(mut state) = State::read(marks, self.id)? else { return Ok(()) };
        vote::put_away_old(&self.disks, self.id, Acknowledged::of(&state.logs, state.active))?;
        let log = &mut lock(&self.logs)[state.active];
        let (noted, found) = (log.position(), log.check_end()?);
        if found != noted || log.is_begun_behind(found.end)? {
            Log::settle(&self.disks.logs[state.active], self.id, noted.end..found.end)?;
            log.catch_up(found);
            state.logs[state.active] = found;
            state.write(marks, self.id)?;
        }
        Ok(())
    }

    fn over(disks: Disks, id: Identity, state: State) -> Backing {
        let (logs, pages) = (Mutex::new(resumed(&disks, id, &state)), Mutex::new(None));
        let (durable, hurried) = (Some(state.durable), AtomicBool::new(false));
        Backing { disks, id, logs, pages, durable, awaited: false, rate: None, hurried, marks: None, is_beside: false }
    }

    /// Limits writes that nobody waits for to `rate` bytes per second: those of periodic commits, and where changes do
    /// not wait for the backing also those of checkpoints. (Where they do, a slow checkpoint would make them wait for
    /// room in the logs.)
    pub fn limited(self, rate: Option<u64>) -> Backing {
        Backing { rate, ..self }
    }

    /// Writes of this process to the backing go at full speed from now on.
    pub fn unthrottle(&self) {
        self.hurried.store(true, Ordering::SeqCst);
    }

    /// Sets whether a change is durable only when the backing holds it.
    pub fn awaited(self, awaited: bool) -> Backing {
        Backing { awaited, ..self }
    }

    pub fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// Sets the file of the marks, which is removed when the memory is closed and the backing holds all of it: for a
    /// memory that survives and says so itself.
    pub fn with_marks_in(self, marks: PathBuf) -> Backing {
        Backing { marks: Some(marks), ..self }
    }

    fn last(&self) -> log::Instant {
        self.end().last
    }

    /// The end of the log that has the last commit.
    fn end(&self) -> Position {
        let [first, second] = lock(&self.logs).each_ref().map(Log::position);
        if first.last.commit > second.last.commit {
            first
        } else {
            second
        }
    }

    /// Notes in a memory which backing it is used with from now on. With nobody else attached.
    pub fn note_in(&self, memory: &Memory) -> Result<()> {
        let (lineage, last) = (super::lineage(&self.disks, self.id)?, self.last().commit);
        let before = memory.backing_position()?;
        let begun = if before.lineage == lineage { before.begun.max(last) } else { last };
        memory.note_backing_position(BackingPosition { lineage, begun, ..before })
    }

    /// Is everything durable that was done before, for certain? Then no commit has to come.
    /// 1. No commit is under way, and none has failed. (One moves marks from set to set.) 2. Nothing is marked. 3. None has begun meanwhile.
    pub fn has_everything(&self, session: &Session) -> Result<bool> {
        let words = session.runtime().backing();
        let begun = words.begun.load(Ordering::SeqCst);
        let is_at_rest = words.done.load(Ordering::SeqCst) == begun && words.is_usable() && !words.is_damaged();
        if !is_at_rest || session.is_due() || !marks_of(session.memory())?.is_empty()? {
            return Ok(false);
        }
        fence(Ordering::SeqCst);
        Ok(words.begun.load(Ordering::SeqCst) == begun)
    }

    /// The commit that will hold everything that was done before.
    pub fn ticket(&self, session: &Session) -> Ticket {
        let words = session.runtime().backing();
        let ticket = Ticket(words.begun.load(Ordering::SeqCst) + 1);
        session.memory().step();
        words.wanted.fetch_add(1, Ordering::SeqCst);
        ticket
    }

    /// Waits until everything that was done before is durable.
    pub fn wait(&self, session: &Session) -> Result<()> {
        self.wait_for(session, self.ticket(session))
    }

    /// Waits until a commit is done; leads it if nobody else does.
    pub fn wait_for(&self, session: &Session, Ticket(need): Ticket) -> Result<()> {
        assert_may_wait();
        let words = session.runtime().backing();
        loop {
            let (seen, done) = (words.wakeup.load(Ordering::SeqCst), words.done.load(Ordering::SeqCst));
            if done >= need {
                return Ok(());
            }
            control::refuse_failed(&words)?;
            session.memory().step();
            if self.is_beside {
                self.ask(session, need, seen)?;
                continue;
            }
            match self.lead(session)? {
                Some(mut lead) => {
                    gather(session.memory(), &words);
                    self.commit(session, &mut lead, Budget::unlimited(), &mut |_, _| Ok(()))?;
                }
                None => _ = session.memory().wait_by(|| _ = runtime::wait(words.wakeup, seen, PATIENCE)),
            }
        }
    }

    /// Leads a commit now; returns its instant. Calls `before` when no other commit is or can be under way, and `see`
    /// with each line that the commit writes, some several times: the last is right.
    pub(crate) fn lead_seen(&self, session: &Session, before: &mut dyn FnMut() -> Result<()>, see: Put) -> Result<i64> {
        assert_may_wait();
        let words = session.runtime().backing();
        loop {
            control::refuse_failed(&words)?;
            let seen = words.wakeup.load(Ordering::SeqCst);
            let Some(mut lead) = self.lead(session)? else {
                session.memory().wait_by(|| _ = runtime::wait(words.wakeup, seen, PATIENCE));
                continue;
            };
            before()?;
            return self.commit(session, &mut lead, Budget::unlimited(), see);
        }
    }

    /// Commits if the last commit's instant is at least `nanos` ago and nobody else does; true if it did.
    pub fn commit_if_due(&self, session: &Session, nanos: u64) -> Result<bool> {
        let words = session.runtime().backing();
        let due = || words.is_due(nanos);
        if !due() || control::refuse_failed(&words).is_err() {
            return Ok(false);
        }
        match self.lead(session)? {
            Some(mut lead) if due() => {
                let waits = || words.wanted.load(Ordering::SeqCst) > 0;
                self.commit(session, &mut lead, self.budget(session, waits), &mut |_, _| Ok(())).map(|_| true)
            }
            _ => Ok(false),
        }
    }

    /// How long a commit takes, from the last ones.
    pub fn takes(&self, session: &Session) -> Duration {
        Duration::from_nanos(session.runtime().backing().takes.load(Ordering::Relaxed))
    }

    /// Bytes that a commit now would hold.
    pub fn pending(&self, session: &Session) -> Result<u64> {
        Backing::marked(marks_of(session.memory())?)
    }

    /// Lines that a commit can hold even if the logs cannot get longer; `None`: that is unknown.
    pub fn reserved_lines(&self) -> Option<u64> {
        let bytes = self.disks.logs.iter().filter_map(|log| log.reserved()).min()?;
        Some(Log::<SharedDisk>::lines_in(bytes.saturating_sub(log::RECORDS)))
    }

    /// The right to commit, unless somebody else has it.
    fn lead<'a>(&'a self, session: &'a Session) -> Result<Option<Lead<'a>>> {
        if self.is_beside {
            return Err(Error::Unusable("this process leaves commits to another one".into()));
        }
        let logs = match self.logs.try_lock() {
            Ok(logs) => logs,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        let (memory, words) = (session.memory(), session.runtime().backing());
        // Only when the role is ours: dropping a lead resets it, even if another process has it.
        Ok(session.take_role(words.committer)?.then(|| Lead { logs: Some(logs), words, memory }))
    }

    pub(crate) fn disks(&self) -> &Disks {
        &self.disks
    }

    pub(crate) fn id(&self) -> Identity {
        self.id
    }

    /// The position of a log, as the state in memory says.
    pub(crate) fn position(&self, session: &Session, n: usize) -> Result<Option<Position>> {
        Ok(State::read(marks_of(session.memory())?, self.id)?.map(|state| state.logs[n]))
    }

    pub(crate) fn resumed(&self, state: &State) -> [Log<SharedDisk>; 2] {
        resumed(&self.disks, self.id, state)
    }

    /// Calls `work` while nobody commits.
    pub(crate) fn while_committing<R>(&self, session: &Session, work: impl FnOnce() -> Result<R>) -> Result<R> {
        loop {
            if let Some(_lead) = self.lead(session)? {
                return work();
            }
            session.memory().wait_by(|| std::thread::sleep(CHECKPOINTING));
        }
    }

    /// The budget of writes that nobody waits for yet: all processes of a pool share it, for commits and checkpoints.
    fn budget<'a>(&'a self, session: &'a Session, waits: impl Fn() -> bool + 'a) -> Budget<'a> {
        let is_free = move || !waits() && !self.hurried.load(Ordering::SeqCst);
        let paid = session.runtime().backing().paid;
        match self.rate {
            Some(rate) => Budget::shared(rate, paid, session.clock(), budget::looking(AWAITED, is_free)),
            None => Budget::unlimited(),
        }
    }

    /// Steps 1 to 6; returns the commit's time.
    fn commit(&self, session: &Session, lead: &mut Lead, mut budget: Budget, see: Put) -> Result<i64> {
        let (words, Some(logs)) = (lead.words, &mut lead.logs) else { return Ok(pram::clock::precise()) };
        control::refuse_failed(&words)?;
        let step = || session.memory().step();
        // This commit serves everybody who has come by now.
        budget.rest(Duration::ZERO);
        let (start, served) = (Instant::now(), words.wanted.swap(0, Ordering::SeqCst));
        if served > 0 {
            budget.lift();
        }
        step();
        let number = words.begun.fetch_add(1, Ordering::SeqCst) + 1;
        step();
        session.prepare_epoch(served > 0);
        let time = self
            .write_or_make_anew(session, logs, &mut budget, see)
            .inspect_err(|e| control::note_failure(session.runtime(), e))?;
        session.runtime().unfill_backing();
        step();
        words.note_time(time, start.elapsed().as_nanos() as u64);
        words.done.store(number, Ordering::SeqCst);
        step();
        words.crowd.store(served + words.wanted.load(Ordering::SeqCst), Ordering::Relaxed);
        if !budget.has_rested() {
            let (took, before) = (start.elapsed().as_nanos() as u64, words.takes.load(Ordering::Relaxed));
            words.takes.store((before * 7 + took) / 8, Ordering::Relaxed);
        }
        Ok(time)
    }

    /// Steps 2 to 5, if need be by making the backing anew; returns the commit's time.
    fn write_or_make_anew(&self, session: &Session, logs: Logs, budget: &mut Budget, see: Put) -> Result<i64> {
        let (runtime, words) = (session.runtime(), session.runtime().backing());
        if !words.is_damaged() {
            match self.write(session, logs, budget, see) {
                Err(Error::DiskFull(what)) => return Err(Error::DiskFull(what)),
                // If a participant failed, all processes know already.
                Err(e) if words.is_usable() => runtime.damage_backing(&e.to_string()),
                done => return done,
            }
        }
        let (_, why) = runtime.backing_anew();
        self.make_anew(session, logs, budget, see).map_err(|e| {
            let why = why.unwrap_or_default();
            Error::Unusable(format!("{why}, and the backing cannot be made anew from memory: {e}"))
        })
    }

    /// Steps 2 to 5; returns the commit's time.
    fn write(&self, session: &Session, logs: Logs, budget: &mut Budget, see: Put) -> Result<i64> {
        let marks = marks_of(session.memory())?;
        let mut state = State::read(marks, self.id)?
            .ok_or_else(|| Error::Unusable("the memory that says what has changed is damaged".into()))?;
        logs.iter_mut().zip(state.logs).for_each(|(log, at)| log.catch_up(at));
        if session.runtime().backing_full() {
            // The beginning of a commit that found no room goes: the next one has its number.
            let end = state.logs[state.active].end;
            Log::settle(&self.disks.logs[state.active], self.id, end..end)?;
        }
        // A throttled commit takes longer, and more lines change meanwhile.
        let rounds = if budget.is_lifted() { 1 } else { 2 };
        let whole = session.memory().size() / log::LINE;
        let (mut room, mut tries) = ((marks.marked()? * rounds).min(whole), 0);
        loop {
            // If swapping, a process has died in a swap; nothing has been written to either log since.
            if state.swapping || !logs[state.active].has_room(room) {
                match self.swap_for_about(session, logs, &mut state, (room * CHANGE).min(whole.max(room)), budget) {
                    // Lines that change again meanwhile are written again: with some luck there are fewer the next
                    // time.
                    Err(Error::DiskFull(_)) if room > whole && tries < TRIES => {
                        (room, tries) = (whole, tries + 1);
                        continue;
                    }
                    done => done?,
                }
            }
            // Not before: if the image has gone ahead, the log that takes over follows the image.
            session.memory().note_begun(logs[state.active].position().last.commit + 1)?;
            let start = logs[state.active].used();
            let (ended, time) = match append(session, marks, self.takes(session), &mut logs[state.active], budget, see)
            {
                // More lines changed meanwhile than there was room for; more than all lines only if some changed again.
                Err(Error::RedoFull) => {
                    let more = room.max(MIN_CAPACITY / log::LINE) * CHANGE;
                    room = if room < whole { more.min(whole) } else { more };
                    continue;
                }
                done => done?,
            };
            let Some(epoch) = ended else {
                break self.swap_if_due(session, logs, &mut state, budget).map(|()| time);
            };
            let logged = logs[state.active].used() - start;
            session.runtime().backing().logged.fetch_add(logged, Ordering::Relaxed);
            state.logs[state.active] = logs[state.active].position();
            state.durable = epoch + 1;
            session.memory().step();
            state.write(marks, self.id)?;
            session.memory().step();
            marks.clear_written()?;
            session.note_durable(epoch);
            break self.swap_if_due(session, logs, &mut state, budget).map(|()| time);
        }
    }

    /// Makes the backing anew if a part of it is damaged and nobody else commits; true if it did.
    pub fn mend_if_damaged(&self, session: &Session) -> Result<bool> {
        let words = session.runtime().backing();
        match self.lead(session)? {
            Some(mut lead) if words.is_damaged() => {
                self.commit(session, &mut lead, Budget::unlimited(), &mut |_, _| Ok(())).map(|_| true)
            }
            _ => Ok(false),
        }
    }
}

/// The logs at the positions of the state in memory.
fn resumed(disks: &Disks, id: Identity, state: &State) -> [Log<SharedDisk>; 2] {
    [0, 1].map(|n| Log::resume(disks.logs[n].clone(), id, state.logs[n]))
}

/// Steps 2 and 3: the marked lines go to `log`; returns the epoch that has ended, if there was anything to write, and
/// the time.
fn append(
    session: &Session,
    marks: &Marks,
    takes: Duration,
    log: &mut Log<SharedDisk>,
    budget: &mut Budget,
    see: Put,
) -> Result<(Option<u64>, i64)> {
    let (looked, mut commit) = (pram::clock::precise(), log.begin()?);
    let put = &mut |off: u64, bytes: &[u8]| see(off, bytes).and_then(|()| commit.push(off, bytes));
    let at_rest = |still: &Frozen| Ok((session.end_epoch(still)?, pram::clock::precise()));
    let Some((epoch, time)) = rounds::write(session, marks, session.is_due(), takes, budget, put, at_rest)? else {
        return Ok((None, looked));
    };
    session.write_epoch(epoch)?;
    commit.finish(time)?;
    Ok((Some(epoch), time))
}

pub(crate) fn marks_of(memory: &Memory) -> Result<&Marks> {
    memory.marks().ok_or_else(|| Error::Unusable("the memory has no marks".into()))
}

/// Waits, for a fraction of a commit's time, until as many threads want one as lately. The threads that the last commit
/// served are on their way back. Without them two halves would alternate for ever, each waiting for two flushes.
fn gather(memory: &Memory, words: &ControlBlock) {
    let (crowd, takes) = (words.crowd.load(Ordering::Relaxed), words.takes.load(Ordering::Relaxed));
    let most = Duration::from_nanos(takes / 4).min(GATHER);
    let start = Instant::now();
    while !most.is_zero() && words.wanted.load(Ordering::Relaxed) < crowd {
        let waited = memory.wait_by(|| std::thread::sleep(GLANCE));
        if waited || start.elapsed() >= most {
            break;
        }
    }
}

/// The right to commit. Given up before the waiters are woken: one of them takes it next.
struct Lead<'a> {
    logs: Option<MutexGuard<'a, [Log<SharedDisk>; 2]>>,
    words: ControlBlock<'a>,
    memory: &'a Memory,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        resign(self.words.committer);
        self.memory.step();
        self.logs = None;
        self.memory.step();
        self.words.wakeup.fetch_add(1, Ordering::SeqCst);
        runtime::wake(self.words.wakeup);
    }
}

fn resign(role: &AtomicU64) {
    role.store(0, Ordering::SeqCst);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
