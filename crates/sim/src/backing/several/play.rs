//! Plays: steps of several threads of one or more processes at the same time, on names of their own in a directory of
//! all.
//!
//! Any order of their operations has the same result, so that a model can predict it.

use backing::log::MIN_CAPACITY;
use conquest_fs::node::Rename;

use super::Sabotage;
use crate::fault::Faults;
use crate::model::Model;
use crate::op::*;
use crate::story::Step::{self, Ask, Checkpoint, Come, Commit, Fill, Go, Join, Settle, Sweep, Swell, Wait};
use crate::story::{steps, Teller, KIB};
use crate::tape::Still;
use crate::world::{Setup, World};

const MIB: u64 = 1 << 20;

/// The task of commits and checkpoints.
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
    /// One thread sweeps objects that a crash has leaked.
    Sweep,
    /// One more session comes and goes, while the other process commits and swaps logs.
    Join,
}

/// The processes and threads of a play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Two processes, in scenes of any kind.
    Two,
    /// Three processes that all work.
    Three,
    /// Two processes that work, and a third one that comes, works, goes, and comes again.
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

    /// The process of each thread.
    fn cast(self) -> &'static [usize] {
        match self {
            Company::Two => &[0, 1],
            Company::Three | Company::Coming => &[0, 1, 2],
            Company::Threads => &[0, 0, 0],
            Company::Pairs => &[0, 0, 1, 1],
        }
    }
}

/// The steps of one thread.
#[derive(Clone, Debug)]
pub struct Part {
    pub process: usize,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Play {
    pub name: String,
    pub scene: Scene,
    pub parts: Vec<Part>,
    pub sabotage: Sabotage,
}

/// The state at the beginning of a play.
pub struct Base {
    pub still: Still,
    pub model: Model,
}

/// The names of the threads, which begin their paths.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn mine(me: &str, name: &str) -> String {
    format!("/{me}/{name}")
}

fn shared(me: &str, name: &str) -> String {
    format!("/both/{me}-{name}")
}

/// A bit of everything; each thread does at its end what another does at its beginning.
fn work(me: &str, turn: usize) -> Vec<Step> {
    let (file, large) = (mine(me, "file"), mine(me, "large"));
    let mut steps = steps! {
        create(&shared(me, "new")), append(&file, 3000, 1), Wait,
        rename(&file, &shared(me, "moved"), Rename::Replace), write(&large, 5000, 30_000, 2), Commit,
        mkdir(&shared(me, "dir")), unlink(&shared(me, "old")), Wait, Checkpoint,
        link(&large, &shared(me, "hard")), truncate(&large, 100), Wait,
    };
    steps.rotate_left(turn);
    steps
}

/// Few steps between one wait and the next.
fn crowd(me: &str) -> Vec<Step> {
    let (file, large) = (mine(me, "file"), mine(me, "large"));
    steps! {
        create(&shared(me, "new")), Wait, append(&file, 100, 1), Ask, Op::Chmod(large, 0o600), Settle, Wait,
        rename(&file, &shared(me, "moved"), Rename::Replace), Wait, unlink(&shared(me, "old")), Wait,
    }
}

/// The steps of a process that comes and goes.
fn guest(me: &str) -> Vec<Step> {
    let file = mine(me, "file");
    steps! {
        Come, Wait, Go, Come, create(&shared(me, "new")), append(&file, 3000, 1), Wait, Go, Come,
        rename(&file, &shared(me, "moved"), Rename::Replace), Wait, Checkpoint, unlink(&shared(me, "old")), Wait,
    }
}

/// Makes every other wait one of a front end that must not block.
fn deferring(steps: Vec<Step>) -> Vec<Step> {
    let (mut made, mut asked) = (Vec::new(), false);
    for step in steps {
        match step {
            Wait if asked => made.extend([Settle, Wait]),
            Wait => made.push(Ask),
            other => {
                made.push(other);
                continue;
            }
        }
        asked = !asked;
    }
    made.extend(asked.then_some(Settle));
    made
}

impl Play {
    /// Two processes.
    pub fn of(scene: Scene) -> Play {
        Play::by(Company::Two, scene)
    }

    pub fn by(company: Company, scene: Scene) -> Play {
        let cast = company.cast().iter().enumerate();
        let parts = cast.map(|(n, process)| Part { process: *process, steps: part(company, scene, n) });
        let name = format!("{}/{scene:?}", format!("{company:?}").to_lowercase());
        Play { name, scene, parts: parts.collect(), sabotage: Sabotage::Nothing }
    }

    /// All plays of a company.
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
        let mut acts = self.parts.iter().filter(|part| part.process == process).flat_map(|part| &part.steps);
        let first = acts.find(|act| matches!(act, Step::Come | Step::Go));
        !matches!(first, Some(Step::Come))
    }

    fn prologue(&self) -> (Vec<Op>, Vec<Step>) {
        let names = &NAMES[..self.parts.len()];
        let mut ops: Vec<Op> = names.iter().copied().chain(["both"]).map(|dir| mkdir(&format!("/{dir}"))).collect();
        for me in names {
            let files = [(mine(me, "file"), 700, 3), (mine(me, "large"), 40_000, 4), (shared(me, "old"), 5000, 5)];
            ops.extend(files.iter().flat_map(|(path, len, seed)| [create(path), append(path, *len, *seed)]));
        }
        let steps = match self.scene {
            Scene::Plain | Scene::Crowd | Scene::Sweep | Scene::Rounds => vec![Wait],
            Scene::Swap | Scene::Join => vec![Wait, Fill(45)],
            Scene::Full => vec![Wait, Fill(45), Swell(300 * KIB), Commit, Fill(95)],
        };
        (ops, steps)
    }

    /// Makes the state at the beginning; all of it is durable.
    pub fn base(&self) -> Result<Base, String> {
        const { assert!(MIN_CAPACITY > 4 * MIB) };
        let world = World::format(Setup::logged(2 * MIB), &Faults::with(None))?;
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
        Ok(Base { still: world.still()?, model })
    }
}

/// The steps of the `n`th thread of a company.
fn part(company: Company, scene: Scene, n: usize) -> Vec<Step> {
    let me = NAMES[n];
    if (company, n) == (Company::Coming, 2) {
        return guest(me);
    }
    let mut steps = match scene {
        Scene::Sweep if n == 0 => return vec![Sweep, Wait, Sweep, Wait],
        Scene::Join if n == 0 => return vec![Join, Join, Join, Wait],
        Scene::Crowd => crowd(me),
        _ => work(me, [0, 7, 10, 4][n]),
    };
    match scene {
        Scene::Swap | Scene::Full | Scene::Join => steps.insert(1, Swell(300 * KIB)),
        Scene::Rounds => steps.insert(1, Swell(1300 * KIB)),
        Scene::Plain | Scene::Crowd | Scene::Sweep => {}
    }
    match company {
        Company::Threads | Company::Pairs if n % 2 == 1 && scene != Scene::Crowd => deferring(steps),
        _ => steps,
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
