//! Plays: what several threads of one or more processes do at the same time, on names of their own in a directory of all.
//!
//! Whatever the order of their operations, all together come to the same, so that a model tells what must be seen.

use backing::log::MIN_CAPACITY;
use conquest_fs::node::{Atime, Rename};

use super::super::fault::Faults;
use super::super::history::Still;
use super::super::story::{Step, Teller};
use super::super::tape::words_of;
use super::super::world::World;
use super::Sabotage;
use crate::model::Model;
use crate::op::Op;

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// What commits and checkpoints have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Small commits.
    Plain,
    /// Small commits for which all wait again and again.
    Crowd,
    /// The other log takes over; the first is checkpointed.
    Swap,
    /// The log is full and the other not checkpointed yet: a commit checkpoints it.
    Full,
    /// Commits in several rounds.
    Rounds,
    /// One gives back what a crash has leaked.
    Sweep,
    /// One more comes and goes, while the other commits and swaps logs.
    Join,
}

/// Who plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Two processes, in scenes of any kind.
    Two,
    /// Three processes that all work.
    Three,
    /// Two that work, and a third one that comes, works, goes, and comes again.
    Coming,
    /// Three threads of one process.
    Threads,
    /// Two processes of two threads each.
    Pairs,
}

impl Company {
    pub fn scenes(self) -> &'static [Scene] {
        use Scene::{Crowd, Full, Join, Plain, Rounds, Swap, Sweep};
        match self {
            Company::Two => &[Plain, Swap, Full, Rounds, Sweep, Join],
            Company::Three | Company::Threads | Company::Pairs => &[Plain, Crowd, Swap, Full, Rounds],
            Company::Coming => &[Plain, Crowd, Swap, Full],
        }
    }

    /// Of each thread, its process.
    fn cast(self) -> &'static [usize] {
        match self {
            Company::Two => &[0, 1],
            Company::Three | Company::Coming => &[0, 1, 2],
            Company::Threads => &[0, 0, 0],
            Company::Pairs => &[0, 0, 1, 1],
        }
    }
}

/// What a thread does next.
#[derive(Clone, Debug)]
pub enum Act {
    Op(Op),
    /// `fsync`.
    Wait,
    /// `fsync` by whoever must not block: asks for it, and goes on.
    Ask,
    /// Waits for what it has asked for.
    Settle,
    /// What the commit interval does.
    Commit,
    Checkpoint,
    /// So many bytes of the region count as changed.
    Swell(u64),
    /// What maintenance does when somebody has died.
    Sweep,
    /// One more session, of a process that has one, attaches, waits, and detaches.
    Join,
    /// The process attaches, and detaches.
    Come,
    Go,
}

/// What one thread does.
#[derive(Clone, Debug)]
pub struct Part {
    pub process: usize,
    pub acts: Vec<Act>,
}

#[derive(Clone, Debug)]
pub struct Play {
    pub name: String,
    pub scene: Scene,
    pub parts: Vec<Part>,
    pub sabotage: Sabotage,
}

/// What is there when a play begins.
pub struct Base {
    pub still: Still,
    pub model: Model,
}

/// What the threads call themselves.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn mine(me: &str, name: &str) -> String {
    format!("/{me}/{name}")
}

fn shared(me: &str, name: &str) -> String {
    format!("/both/{me}-{name}")
}

/// A bit of everything; each does at its end what another does at its beginning.
fn work(me: &str, turn: usize) -> Vec<Act> {
    use Act::{Checkpoint, Commit, Wait};
    let mut acts: Vec<Act> = vec![
        Act::Op(Op::Create(shared(me, "new"), 0o644)),
        Act::Op(Op::Append(mine(me, "file"), 3000, 1)),
        Wait,
        Act::Op(Op::Rename(mine(me, "file"), shared(me, "moved"), Rename::Replace)),
        Act::Op(Op::Write(mine(me, "large"), 5000, 30_000, 2)),
        Commit,
        Act::Op(Op::Mkdir(shared(me, "dir"), 0o755)),
        Act::Op(Op::Unlink(shared(me, "old"))),
        Wait,
        Checkpoint,
        Act::Op(Op::Link(mine(me, "large"), shared(me, "hard"))),
        Act::Op(Op::Truncate(mine(me, "large"), 100)),
        Wait,
    ];
    acts.rotate_left(turn);
    acts
}

/// Little between one wait and the next.
fn crowd(me: &str) -> Vec<Act> {
    use Act::{Ask, Settle, Wait};
    vec![
        Act::Op(Op::Create(shared(me, "new"), 0o644)),
        Wait,
        Act::Op(Op::Append(mine(me, "file"), 100, 1)),
        Ask,
        Act::Op(Op::Chmod(mine(me, "large"), 0o600)),
        Settle,
        Wait,
        Act::Op(Op::Rename(mine(me, "file"), shared(me, "moved"), Rename::Replace)),
        Wait,
        Act::Op(Op::Unlink(shared(me, "old"))),
        Wait,
    ]
}

/// One who comes and goes.
fn guest(me: &str) -> Vec<Act> {
    use Act::{Checkpoint, Come, Go, Wait};
    vec![
        Come,
        Wait,
        Go,
        Come,
        Act::Op(Op::Create(shared(me, "new"), 0o644)),
        Act::Op(Op::Append(mine(me, "file"), 3000, 1)),
        Wait,
        Go,
        Come,
        Act::Op(Op::Rename(mine(me, "file"), shared(me, "moved"), Rename::Replace)),
        Wait,
        Checkpoint,
        Act::Op(Op::Unlink(shared(me, "old"))),
        Wait,
    ]
}

/// Every other wait as a front end does it that must not block.
fn deferring(acts: Vec<Act>) -> Vec<Act> {
    let mut made = Vec::new();
    let mut asked = false;
    for act in acts {
        match act {
            Act::Wait if asked => made.extend([Act::Settle, Act::Wait]),
            Act::Wait => made.push(Act::Ask),
            other => {
                made.push(other);
                continue;
            }
        }
        asked = !asked;
    }
    if asked {
        made.push(Act::Settle);
    }
    made
}

impl Play {
    /// Two processes.
    pub fn of(scene: Scene) -> Play {
        Play::by(Company::Two, scene)
    }

    pub fn by(company: Company, scene: Scene) -> Play {
        let cast = company.cast().iter().enumerate();
        let parts = cast.map(|(n, process)| Part { process: *process, acts: part(company, scene, n) });
        let name = format!("{}/{scene:?}", format!("{company:?}").to_lowercase());
        Play { name, scene, parts: parts.collect(), sabotage: Sabotage::Nothing }
    }

    /// All of a company's.
    pub fn all(company: Company) -> Vec<Play> {
        company.scenes().iter().map(|scene| Play::by(company, *scene)).collect()
    }

    /// The process of each thread.
    pub fn cast(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.process).collect()
    }

    pub fn processes(&self) -> usize {
        self.parts.iter().map(|part| part.process + 1).max().unwrap_or(0)
    }

    /// Is this process attached when the play begins?
    pub fn is_there(&self, process: usize) -> bool {
        let mut acts = self.parts.iter().filter(|part| part.process == process).flat_map(|part| &part.acts);
        let first = acts.find(|act| matches!(act, Act::Come | Act::Go));
        !matches!(first, Some(Act::Come))
    }

    fn prologue(&self) -> (Vec<Op>, Vec<Step>) {
        use Step::{Commit, Fill, Swell, Wait};
        let names = &NAMES[..self.parts.len()];
        let dirs = names.iter().copied().chain(["both"]);
        let mut ops: Vec<Op> = dirs.map(|dir| Op::Mkdir(format!("/{dir}"), 0o755)).collect();
        for me in names {
            ops.push(Op::Create(mine(me, "file"), 0o644));
            ops.push(Op::Append(mine(me, "file"), 700, 3));
            ops.push(Op::Create(mine(me, "large"), 0o644));
            ops.push(Op::Append(mine(me, "large"), 40_000, 4));
            ops.push(Op::Create(shared(me, "old"), 0o644));
            ops.push(Op::Append(shared(me, "old"), 5000, 5));
        }
        let steps = match self.scene {
            Scene::Plain | Scene::Crowd | Scene::Sweep | Scene::Rounds => vec![Wait],
            Scene::Swap | Scene::Join => vec![Wait, Fill(45)],
            Scene::Full => vec![Wait, Fill(45), Swell(300 * KIB), Commit, Fill(95)],
        };
        (ops, steps)
    }

    /// Makes what is there at the beginning; all of it is durable.
    pub fn base(&self) -> Result<Base, String> {
        const { assert!(MIN_CAPACITY > 4 * MIB) };
        let world = World::format(2 * MIB, Atime::Never, &Faults::with(None))?;
        let (fs, mut model) = (world.fs.clone(), Model::default());
        let mut teller = Teller::new(&world, &fs);
        let (ops, steps) = self.prologue();
        for op in &ops {
            model.apply(op, &teller.op(op)?)?;
        }
        if self.scene == Scene::Sweep {
            leak(&fs).map_err(|e| e.to_string())?;
        }
        steps.iter().try_for_each(|step| teller.step(step))?;
        world.wait().map_err(|e| e.to_string())?;
        let marks = words_of(&world.marks()?);
        Ok(Base { still: Still { region: world.bytes(), marks, files: world.tape.files() }, model })
    }
}

/// What the `n`th thread of a company does.
fn part(company: Company, scene: Scene, n: usize) -> Vec<Act> {
    let me = NAMES[n];
    if (company, n) == (Company::Coming, 2) {
        return guest(me);
    }
    let mut acts = match scene {
        Scene::Sweep if n == 0 => return vec![Act::Sweep, Act::Wait, Act::Sweep, Act::Wait],
        Scene::Join if n == 0 => return vec![Act::Join, Act::Join, Act::Join, Act::Wait],
        Scene::Crowd => crowd(me),
        _ => work(me, [0, 7, 10, 4][n]),
    };
    match scene {
        Scene::Swap | Scene::Full => acts.insert(1, Act::Swell(300 * KIB)),
        Scene::Join => acts.insert(1, Act::Swell(300 * KIB)),
        Scene::Rounds => acts.insert(1, Act::Swell(1300 * KIB)),
        Scene::Plain | Scene::Crowd | Scene::Sweep => {}
    }
    match company {
        Company::Threads | Company::Pairs if n % 2 == 1 && scene != Scene::Crowd => deferring(acts),
        _ => acts,
    }
}

/// Objects that nothing refers to, as a crash leaves them.
fn leak(fs: &conquest_fs::Fs) -> pram::Result<()> {
    let mut op = fs.session().begin()?;
    let mut tx = op.tx()?;
    for size in [100, 700, 3000, 3000, 100, 700, 1500, 9000] {
        tx.alloc(conquest_fs::layout::tag::DATA, size)?;
    }
    tx.commit()
}
