//! Stories: operations, with commits and checkpoints between and in the middle of each other.

use std::sync::{Arc, Mutex};

use backing::log::MIN_CAPACITY;
use conquest_fs::node::Atime;
use pram::marks::SETS;

use super::fault::Faults;
use super::history::{Boundary, History, Promise, Still};
use super::ledger::Sabotage;
use super::tape::words_of;
use super::world::World;
use crate::op::{Done, Op, Runner};
use crate::scenario::Scenario;

#[derive(Clone, Debug)]
pub enum Step {
    Op(Op),
    /// In the middle of what comes next: at its first write to a disk.
    During(Op),
    /// `fsync`.
    Wait,
    /// What the commit interval does.
    Commit,
    Checkpoint,
    /// So many bytes of the region count as changed: commits are large, logs fill up.
    Swell(u64),
    /// Fills the log to so many percent.
    Fill(u64),
    /// The copy has proved damaged: the next commit makes it anew.
    Damage,
    /// Sabotage: what has changed is not marked.
    Forget,
    /// Sabotage: the participant leaves out a step.
    Botch(Sabotage),
}

/// How commits and checkpoints fall between operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plot {
    /// Small commits.
    Plain,
    /// The other log takes over; the first is checkpointed.
    Swap,
    /// The log is full and the other not checkpointed yet: a commit checkpoints it.
    Full,
    /// A commit in several rounds, with operations in between, and one during a checkpoint.
    Rounds,
    /// A commit larger than a log.
    Large,
    /// A commit that turns out to be larger than the room that was left for it.
    Outgrown,
    /// The copy is made anew, by a commit that somebody waits for, and after the other log took over by a checkpoint.
    Anew,
}

impl Plot {
    pub const ALL: [Plot; 7] =
        [Plot::Plain, Plot::Swap, Plot::Full, Plot::Rounds, Plot::Large, Plot::Outgrown, Plot::Anew];
}

/// How two operations fall between, and in the middle of, commits and checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weave {
    /// Each in a commit of its own.
    Apart,
    /// Both in one commit.
    Together,
    /// The second in the middle of the commit of the first.
    InCommit,
    /// The second in the middle of the checkpoint of the first.
    InFold,
}

impl Weave {
    pub const ALL: [Weave; 4] = [Weave::Apart, Weave::Together, Weave::InCommit, Weave::InFold];
}

#[derive(Clone, Debug)]
pub struct Story {
    pub name: String,
    pub size: u64,
    pub atime: Atime,
    /// What is not explored. All of it is durable at its end.
    pub prologue: Vec<Step>,
    pub steps: Vec<Step>,
    /// Sabotage: flushes of this file do nothing.
    pub lie: Option<usize>,
}

const KIB: u64 = 1 << 10;

impl Story {
    /// A scenario's operation, and a few more, in a plot.
    pub fn of(s: &Scenario, plot: Plot) -> Story {
        let op = |n: u64| Op::Append("/zz-more".into(), 700 * n as usize, n);
        let more = |n| Step::Op(op(n));
        let first = Step::Op(s.op.clone());
        let mut prologue: Vec<Step> = s.setup.iter().cloned().map(Step::Op).collect();
        // Commits of different sizes before.
        prologue.insert(prologue.len() / 2, Step::Commit);
        prologue.extend([Step::Op(Op::Create("/zz-more".into(), 0o644)), Step::Wait]);
        use Step::{Checkpoint, Commit, Damage, During, Fill, Swell, Wait};
        let full = [Fill(45), Swell(300 * KIB), Commit];
        let steps = match plot {
            Plot::Plain => vec![first, Wait, more(1), Commit, more(2), Wait, more(3)],
            Plot::Swap => {
                prologue.push(Fill(45));
                vec![first, Swell(300 * KIB), Commit, more(1), Wait, Checkpoint, more(2), Wait]
            }
            Plot::Full => {
                prologue.extend(full.into_iter().chain([Fill(95)]));
                vec![first, Swell(300 * KIB), Wait, more(1), Wait, Checkpoint, more(2), Commit]
            }
            Plot::Rounds => {
                prologue.extend(full);
                vec![first, Swell(1300 * KIB), During(op(1)), Wait, more(2), Commit, During(op(3)), Checkpoint, Wait]
            }
            Plot::Large => vec![first, Swell(s.size), During(op(1)), Wait, more(2), Wait, Checkpoint, more(3), Wait],
            Plot::Outgrown => {
                prologue.extend(full.into_iter().chain([Fill(60)]));
                let much = Op::Write("/zz-more".into(), 0, 900 << 10, 5);
                vec![first, Swell(1200 * KIB), During(much), Wait, more(1), Commit, Checkpoint, more(2), Wait]
            }
            Plot::Anew => {
                prologue.extend(full);
                let again = [Damage, During(op(2)), Checkpoint, more(3), Wait];
                [first, Damage, During(op(1)), Wait, Swell(300 * KIB), Commit].into_iter().chain(again).collect()
            }
        };
        let name = format!("{}/{plot:?}", s.name);
        Story { name, size: s.size, atime: s.atime, prologue, steps, lie: None }
    }

    /// A scenario's operation and one before it, the last of the setup for a pair, with nothing else.
    pub fn woven(s: &Scenario, pair: bool, weave: Weave) -> Story {
        use Step::{Checkpoint, Commit, During, Fill, Op as Do, Swell, Wait};
        let before = if pair { s.setup.len().saturating_sub(1) } else { s.setup.len() };
        let (setup, first) = s.setup.split_at(before);
        let first = Do(first.first().cloned().unwrap_or(Op::Create("/zz-first".into(), 0o644)));
        let (second, during) = (Do(s.op.clone()), During(s.op.clone()));
        let mut prologue: Vec<Step> = setup.iter().cloned().map(Do).collect();
        let steps = match weave {
            Weave::Apart => vec![first, Wait, second, Wait],
            Weave::Together => vec![first, second, Wait],
            Weave::InCommit => vec![first, during, Wait, Wait],
            Weave::InFold => {
                prologue.extend([Wait, Fill(45)]);
                vec![first, Swell(300 * KIB), Commit, during, Checkpoint, Wait]
            }
        };
        let name = format!("{}/{weave:?}", s.name);
        Story { name, size: s.size, atime: s.atime, prologue, steps, lie: None }
    }
}

/// Told to the end: the file system as it then is, and what happened since the prologue.
pub struct Told {
    pub world: World,
    pub history: History,
}

/// Tells a story, recording.
pub fn tell(story: &Story) -> Result<Told, String> {
    let world = World::format(story.size, story.atime, &Faults::with(None))?;
    let fs = world.fs.clone();
    let mut teller = Teller::new(&world, &fs);
    for step in &story.prologue {
        teller.step(step)?;
    }
    world.wait().map_err(|e| e.to_string())?;
    world.tape.lie_about(story.lie);
    let marks = world.marks()?;
    let start = Still { region: world.bytes(), marks: words_of(&marks), files: world.tape.files() };
    teller.forget_the_past();
    world.tape.start(marks);
    for step in &story.steps {
        teller.step(step)?;
    }
    let moments = world.tape.stop();
    let (boundaries, acknowledged) = teller.end()?;
    Ok(Told { history: History { start, moments, boundaries, acknowledged }, world })
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
    boundaries: Vec<Boundary>,
    /// What went wrong in the middle of something.
    failure: Option<String>,
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(|e| e.into_inner())
}

fn bytes_of(fs: &conquest_fs::Fs) -> Vec<u8> {
    let region = fs.session().memory();
    let mut bytes = vec![0; region.size() as usize];
    region.read_bytes(0, &mut bytes).expect("inside the region");
    bytes
}

impl<'w> Teller<'w> {
    pub fn new(world: &'w World, fs: &'w conquest_fs::Fs) -> Self {
        Teller { world, runner: Runner::new(fs), shared: Arc::default(), acknowledged: Vec::new() }
    }

    /// Begins with the instant of now.
    pub fn forget_the_past(&mut self) {
        self.acknowledged.clear();
        lock(&self.shared).boundaries = vec![Boundary::new(0, self.world.bytes())];
    }

    /// Begins with instants of an earlier life.
    pub fn remember(&mut self, boundaries: Vec<Boundary>, acknowledged: usize) {
        lock(&self.shared).boundaries = boundaries;
        self.acknowledged = vec![(0, acknowledged)];
    }

    /// Notes an instant.
    pub fn note(&self) {
        let at = self.world.tape.len();
        lock(&self.shared).boundaries.push(Boundary::new(at, self.world.bytes()));
    }

    /// What has been done so far is promised.
    pub fn promise(&mut self) {
        self.acknowledged.push((self.world.tape.len(), self.last()));
    }

    fn last(&self) -> usize {
        lock(&self.shared).boundaries.len().saturating_sub(1)
    }

    pub fn end(self) -> Result<(Vec<Boundary>, Vec<Promise>), String> {
        let mut shared = lock(&self.shared);
        let boundaries = std::mem::take(&mut shared.boundaries);
        shared.failure.take().map_or(Ok((boundaries, self.acknowledged)), Err)
    }

    pub fn step(&mut self, step: &Step) -> Result<(), String> {
        let session = self.world.fs.session();
        let before = self.last();
        let done = match step {
            Step::Op(op) => {
                let _ = self.op(op)?;
                Ok(false)
            }
            Step::During(op) => {
                self.arm(op.clone());
                Ok(false)
            }
            Step::Wait => self.world.wait().map(|()| true),
            Step::Commit => self.world.copy().commit_if_due(session, 0),
            Step::Checkpoint => self.world.copy().checkpoint_if_due(session).map(|_| false),
            Step::Swell(bytes) => self.swell(*bytes).map(|()| false),
            Step::Fill(percent) => self.fill(*percent),
            Step::Damage => {
                session.runtime().damage_backing("it was damaged");
                Ok(false)
            }
            Step::Forget => self.forget(),
            Step::Botch(sabotage) => {
                self.world.ledger.sabotage(*sabotage);
                Ok(false)
            }
        };
        if done.map_err(|e| format!("{step:?}: {e}"))? {
            self.acknowledged.push((self.world.tape.len(), before));
        }
        self.world.tape.rest();
        Ok(())
    }

    /// Runs an operation; afterwards is an instant.
    pub fn op(&mut self, op: &Op) -> Result<Done, String> {
        let done = self.runner.run(op)?;
        // Those of the prologue are never asked for.
        if !lock(&self.shared).boundaries.is_empty() {
            self.note();
        }
        Ok(done)
    }

    fn arm(&self, op: Op) {
        let (fs, tape, shared) = (self.world.fs.clone(), self.world.tape.clone(), self.shared.clone());
        let open = self.runner.open.clone();
        self.world.tape.at_next_write(Box::new(move || {
            let done = Runner { fs: &fs, open }.run(&op);
            let mut shared = lock(&shared);
            shared.boundaries.push(Boundary::new(tape.len(), bytes_of(&fs)));
            shared.failure = done.err();
        }));
    }

    /// Marks what has not changed, which is always allowed.
    fn swell(&self, bytes: u64) -> pram::Result<()> {
        let region = self.world.fs.session().memory();
        let at = region.geo.heap();
        let marks = region.marks().ok_or(pram::Error::BadAddress { off: 0, len: 0 })?;
        marks.mark(at, bytes.min(region.size() - at))
    }

    fn fill(&self, percent: u64) -> pram::Result<bool> {
        let wanted = MIN_CAPACITY / 100 * percent;
        for _ in 0..8 {
            let missing = wanted.saturating_sub(self.world.tape.log_end());
            if missing < 16 * KIB {
                break;
            }
            self.swell(missing / 4096 * 4096 - 8 * KIB)?;
            self.world.wait()?;
        }
        Ok(true)
    }

    /// Clears all marks.
    fn forget(&self) -> pram::Result<bool> {
        let marks = self.world.fs.session().memory().marks().ok_or(pram::Error::BadAddress { off: 0, len: 0 })?;
        (0..SETS).try_for_each(|set| marks.clear(set))?;
        Ok(false)
    }
}
