//! Stories: operations, and other steps between, beside and during them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use backing::log::MIN_CAPACITY;
use conquest_fs::{Fs, Ino};
use pram::marks::SETS;

use crate::fault::Faults;
use crate::history::{Boundary, History, Promise};
use crate::ledger::Sabotage;
use crate::model::Model;
use crate::op::{Done, Op, Runner};
use crate::tape::{Still, Tape};
use crate::world::{bytes_of, Setup, Stored, World};

#[derive(Clone, Debug)]
pub enum Step {
    Op(Op),
    /// During the next step: at its `nth` write to a disk, from 0 on.
    During(usize, Op),
    /// `fsync`.
    Wait,
    /// A commit, as at the commit interval.
    Commit,
    Checkpoint,
    /// So many bytes of the memory count as changed, to make commits large and fill logs.
    Swell(u64),
    /// Fills the log to so many percent.
    Fill(u64),
    /// The backing proves damaged: the next commit makes it anew.
    Damage,
    /// Sabotage: clears the marks of all changes.
    Forget,
    /// Sabotage: the participant leaves out a step.
    Botch(Sabotage),
    /// So many dirty blocks go to segments.
    WriteBack(usize),
    /// So many clean ones leave the memory.
    Evict(u64),
    /// So many pages of small files go to disk.
    Demote(u64),
    /// Files follow their threshold, as far as they can.
    Follow,
    /// Frees so many more segments; the cleaner is interrupted after so many pieces.
    Clean(u64, u32),
    /// `fsync` of a caller that must not block: `Ask` requests it and goes on; `Settle` waits for the request.
    Ask,
    Settle,
    /// The sweep of maintenance after a death.
    Sweep,
    /// Another session of a process that has one attaches, waits, and detaches.
    Join,
    /// The process attaches, and detaches.
    Come,
    Go,
}

impl From<Op> for Step {
    fn from(op: Op) -> Step {
        Step::Op(op)
    }
}

/// Steps and operations, in a list that is laid out as it reads best.
macro_rules! steps {
    ($($step:expr),* $(,)?) => { vec![$($crate::story::Step::from($step)),*] };
}
pub(crate) use steps;

#[derive(Clone, Debug)]
pub struct Story {
    pub name: String,
    pub setup: Setup,
    /// The steps before the recording. Everything is durable at their end.
    pub prologue: Vec<Step>,
    pub steps: Vec<Step>,
    /// Sabotage: flushes of this file do nothing.
    pub lie: Option<usize>,
}

pub const KIB: u64 = 1 << 10;
/// Longer than any large file of a story.
const WHOLE: usize = 4 << 20;

/// Runs a story and records it.
pub fn tell(story: &Story) -> Result<History, String> {
    let world = World::format(story.setup, &Faults::with(None))?;
    let fs = world.fs.clone();
    let mut teller = Teller::new(&world, &fs);
    for step in &story.prologue {
        teller.step(step)?;
    }
    // No operation is armed any more.
    world.tape.stop();
    world.wait().map_err(|e| e.to_string())?;
    world.tape.lie_about(story.lie);
    teller.recording(|teller| story.steps.iter().try_for_each(|step| teller.step(step)))
}

/// Takes steps, and notes instants and promises.
pub struct Teller<'w> {
    world: &'w World,
    runner: Runner<'w>,
    shared: Arc<Mutex<Shared>>,
    acknowledged: Vec<Promise>,
}

#[derive(Default)]
struct Shared {
    /// The model of the visible state, if that is known.
    model: Option<Model>,
    /// The memory may be full, which the model cannot foresee.
    full: bool,
    boundaries: Vec<Boundary>,
    /// A failure of an operation during another step.
    failure: Option<String>,
}

impl Shared {
    fn apply(&mut self, op: &Op, done: &Done) -> Result<(), String> {
        self.model.as_mut().map_or(Ok(()), |model| model.apply_in(op, done, self.full))
    }

    /// Notes an instant.
    fn note(&mut self, at: usize, fs: &Fs) {
        let elsewhere = fs.union().is_some();
        let bytes = if elsewhere { Vec::new() } else { bytes_of(fs) };
        let tree = self.model.as_ref().map(Model::tree).unwrap_or_default();
        self.boundaries.push(Boundary::modelled(at, bytes, tree));
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(|e| e.into_inner())
}

impl<'w> Teller<'w> {
    pub fn new(world: &'w World, fs: &'w Fs) -> Self {
        let model = (world.setup.stored == Stored::Segments).then(Model::default);
        let shared = Arc::new(Mutex::new(Shared { model, ..Shared::default() }));
        Teller { world, runner: Runner::new(fs), shared, acknowledged: Vec::new() }
    }

    /// From here on the model predicts each operation, except that the memory may be full.
    pub fn expect_all(&mut self, full: bool) {
        let mut shared = lock(&self.shared);
        (shared.model, shared.full) = (Some(Model::default()), full);
    }

    /// Forgets all instants and promises before now.
    pub fn forget_the_past(&mut self) {
        self.acknowledged.clear();
        lock(&self.shared).boundaries.clear();
        self.note();
    }

    /// Begins with the instants of an earlier life.
    pub fn remember(&mut self, boundaries: Vec<Boundary>, acknowledged: usize) {
        lock(&self.shared).boundaries = boundaries;
        self.acknowledged = vec![(0, acknowledged)];
    }

    /// Records `done`, beginning with the instant of now.
    pub fn recording(mut self, done: impl FnOnce(&mut Self) -> Result<(), String>) -> Result<History, String> {
        let start = self.world.still()?;
        self.forget_the_past();
        self.world.record()?;
        done(&mut self)?;
        self.end(start)
    }

    /// Notes an instant.
    pub fn note(&self) {
        let at = self.world.tape.len();
        lock(&self.shared).note(at, &self.world.fs);
    }

    /// Promises all operations so far.
    pub fn promise(&mut self) {
        self.acknowledged.push((self.world.tape.len(), self.last()));
    }

    fn last(&self) -> usize {
        lock(&self.shared).boundaries.len().saturating_sub(1)
    }

    /// The history since `start`.
    pub fn end(self, start: Still) -> Result<History, String> {
        self.world.tape.rest();
        let moments = self.world.tape.stop();
        let mut shared = lock(&self.shared);
        let boundaries = std::mem::take(&mut shared.boundaries);
        let (setup, acknowledged) = (self.world.setup, self.acknowledged);
        let history = History { setup, start, moments, boundaries, acknowledged };
        shared.failure.take().map_or(Ok(history), Err)
    }

    pub fn step(&mut self, step: &Step) -> Result<(), String> {
        let before = self.last();
        let durable = match step {
            Step::Op(op) => {
                let done = self.op(op)?;
                // Without a model it may fail: the memory may be full.
                let may_fail = lock(&self.shared).model.is_none();
                done.map(drop).or_else(|e| if may_fail { Ok(()) } else { Err(format!("{op:?}: {e}")) })?;
                Ok(false)
            }
            Step::During(nth, op) => {
                let (world, open) = (self.world, &self.runner.open);
                arm(&world.fs, &world.tape, &self.shared, open, *nth, op.clone());
                Ok(false)
            }
            step => self.tend(step).map_err(|e| format!("{step:?}: {e}")),
        }?;
        if durable {
            self.acknowledged.push((self.world.tape.len(), before));
        }
        self.world.tape.rest();
        Ok(())
    }

    /// Runs an operation, and notes the instant after it.
    pub fn op(&mut self, op: &Op) -> Result<Done, String> {
        let done = self.runner.run(op)?;
        lock(&self.shared).apply(op, &done)?;
        // In the prologue no instant is needed.
        if !lock(&self.shared).boundaries.is_empty() {
            self.note();
        }
        Ok(done)
    }

    /// Takes a step that is no operation; returns whether everything before it is durable.
    fn tend(&self, step: &Step) -> conquest_fs::Result<bool> {
        let (world, fs, session) = (self.world, &self.world.fs, self.world.fs.session());
        match step {
            Step::Op(_) | Step::During(..) => {}
            Step::Ask | Step::Settle | Step::Sweep | Step::Join | Step::Come | Step::Go => {
                return Err(pram::Error::Unusable("this takes several processes".into()).into());
            }
            Step::Wait => return Ok(world.wait().map(|()| world.backing().is_some())?),
            Step::Commit => return Ok(world.commit()?),
            Step::Checkpoint => world.checkpoint()?,
            Step::Swell(bytes) => self.swell(*bytes)?,
            Step::Fill(percent) => return Ok(self.fill(*percent).map(|()| true)?),
            Step::Damage => session.runtime().damage_backing("it was damaged"),
            Step::Forget => self.forget()?,
            Step::Botch(sabotage) => world.ledger().sabotage(*sabotage),
            Step::WriteBack(most) => _ = world.union().write_back(&**fs, *most, None)?,
            Step::Evict(most) => _ = world.union().evict(&**fs, *most, None)?,
            Step::Demote(pages) => _ = world.union().demote(fs, *pages)?,
            Step::Follow => {
                // Reading notes the files that are on the wrong side of their threshold.
                for ino in ["/a", "/b", "/c"].iter().filter_map(|name| self.runner.find(name).ok()) {
                    fs.read(ino, 0, &mut vec![0; WHOLE])?;
                }
                while world.union().follow(fs, true, &|| false)? {}
            }
            Step::Clean(more, pieces) => {
                let (mut left, free) = (*pieces, world.union().status(session)?.log.free);
                let mut go_on = || {
                    left = left.saturating_sub(1);
                    left > 0
                };
                world.union().free_segments(fs, free + more, true, &mut go_on)?;
            }
        }
        Ok(false)
    }

    /// Marks memory that has not changed, which is always allowed.
    fn swell(&self, bytes: u64) -> pram::Result<()> {
        swell(&self.world.fs, bytes)
    }

    fn fill(&self, percent: u64) -> pram::Result<()> {
        let wanted = MIN_CAPACITY / 100 * percent;
        for _ in 0..8 {
            let missing = wanted.saturating_sub(self.world.tape.log_end());
            if missing < 16 * KIB {
                break;
            }
            self.swell(missing / 4096 * 4096 - 8 * KIB)?;
            self.world.wait()?;
        }
        Ok(())
    }

    /// Clears all marks.
    fn forget(&self) -> pram::Result<()> {
        let marks = self.world.fs.session().memory().marks().expect("there is a backing");
        (0..SETS).try_for_each(|set| marks.clear(set))
    }
}

/// Marks memory that has not changed, which is always allowed.
pub fn swell(fs: &Fs, bytes: u64) -> pram::Result<()> {
    let memory = fs.session().memory();
    let at = memory.geo.heap();
    memory.marks().expect("there is a backing").mark(at, bytes.min(memory.size() - at))
}

/// Runs `op` at the `nth` write from now on.
fn arm(fs: &Arc<Fs>, tape: &Arc<Tape>, shared: &Arc<Mutex<Shared>>, open: &BTreeMap<String, Ino>, nth: usize, op: Op) {
    let (fs, of, shared, open) = (fs.clone(), tape.clone(), shared.clone(), open.clone());
    tape.at_next_write(Box::new(move || {
        if nth > 0 {
            return arm(&fs, &of, &shared, &open, nth - 1, op);
        }
        let done = Runner { fs: &fs, open }.run(&op);
        let mut shared = lock(&shared);
        let applied = done.and_then(|done| shared.apply(&op, &done));
        shared.note(of.len(), &fs);
        if let Err(e) = applied {
            shared.failure = Some(format!("during something, {op:?}: {e}"));
        }
    }));
}
