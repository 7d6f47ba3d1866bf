//! Plays: what two processes do at the same time, on names of their own in a directory of both.
//!
//! Whatever the order of their operations, all together come to the same, so that a model tells what must be seen.

use fs::node::{Atime, Rename};
use pram::log::MIN_CAPACITY;

use super::super::fault::Faults;
use super::super::history::Still;
use super::super::story::{Step, Teller};
use super::super::tape::words_of;
use super::super::world::World;
use super::stage::PLAYERS;
use super::Sabotage;
use crate::model::Model;
use crate::op::Op;

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// What commits and folds have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Small commits.
    Plain,
    /// The other log takes over; the first is folded.
    Swap,
    /// The log is full and the other not folded yet: a commit folds it.
    Full,
    /// Commits in several rounds.
    Rounds,
    /// One gives back what a crash has leaked.
    Sweep,
    /// A third one comes and goes, while the other commits and swaps logs.
    Join,
}

impl Scene {
    pub const ALL: [Scene; 6] = [Scene::Plain, Scene::Swap, Scene::Full, Scene::Rounds, Scene::Sweep, Scene::Join];

    /// Can this one die? A third process that another one's thread plays cannot.
    pub fn can_die(self, player: usize) -> bool {
        self != Scene::Join || player == 1
    }
}

/// What one of them does next.
#[derive(Clone, Debug)]
pub enum Act {
    Op(Op),
    /// `fsync`.
    Wait,
    /// What the commit interval does.
    Commit,
    Fold,
    /// So many bytes of the region count as changed.
    Swell(u64),
    /// What the keeper does when somebody has died.
    Sweep,
    /// Another process attaches, waits, and detaches.
    Join,
}

#[derive(Clone, Debug)]
pub struct Play {
    pub name: String,
    pub scene: Scene,
    pub parts: [Vec<Act>; PLAYERS],
    pub sabotage: Sabotage,
}

/// What is there when a play begins.
pub struct Base {
    pub still: Still,
    pub model: Model,
}

fn p(dir: &str, name: &str) -> String {
    format!("/{dir}/{name}")
}

impl Play {
    pub fn of(scene: Scene) -> Play {
        use Act::{Commit, Fold, Wait};
        let parts = ["a", "b"].map(|me| {
            let mine = |name: &str| p(me, name);
            let shared = |name: &str| p("both", &format!("{me}-{name}"));
            let mut acts: Vec<Act> = vec![
                Act::Op(Op::Create(shared("new"), 0o644)),
                Act::Op(Op::Append(mine("file"), 3000, 1)),
                Wait,
                Act::Op(Op::Rename(mine("file"), shared("moved"), Rename::Replace)),
                Act::Op(Op::Write(mine("large"), 5000, 30_000, 2)),
                Commit,
                Act::Op(Op::Mkdir(shared("dir"), 0o755)),
                Act::Op(Op::Unlink(shared("old"))),
                Wait,
                Fold,
                Act::Op(Op::Link(mine("large"), shared("hard"))),
                Act::Op(Op::Truncate(mine("large"), 100)),
                Wait,
            ];
            if me == "b" {
                // Each does at its end what the other does at its beginning.
                acts.rotate_left(7);
            }
            match scene {
                Scene::Plain => {}
                Scene::Swap | Scene::Full => acts.insert(1, Act::Swell(300 * KIB)),
                Scene::Rounds => acts.insert(1, Act::Swell(1300 * KIB)),
                Scene::Sweep if me == "a" => acts = vec![Act::Sweep, Wait, Act::Sweep, Wait],
                Scene::Join if me == "a" => acts = vec![Act::Join, Act::Join, Act::Join, Wait],
                Scene::Sweep => {}
                Scene::Join => acts.insert(1, Act::Swell(300 * KIB)),
            }
            acts
        });
        Play { name: format!("two/{scene:?}"), scene, parts, sabotage: Sabotage::Nothing }
    }

    fn prologue(&self) -> (Vec<Op>, Vec<Step>) {
        use Step::{Commit, Fill, Swell, Wait};
        let mut ops: Vec<Op> = ["/a", "/b", "/both"].map(|dir| Op::Mkdir(dir.into(), 0o755)).into();
        for me in ["a", "b"] {
            ops.push(Op::Create(p(me, "file"), 0o644));
            ops.push(Op::Append(p(me, "file"), 700, 3));
            ops.push(Op::Create(p(me, "large"), 0o644));
            ops.push(Op::Append(p(me, "large"), 40_000, 4));
            ops.push(Op::Create(p("both", &format!("{me}-old")), 0o644));
            ops.push(Op::Append(p("both", &format!("{me}-old")), 5000, 5));
        }
        let steps = match self.scene {
            Scene::Plain | Scene::Sweep | Scene::Rounds => vec![Wait],
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

/// Objects that nothing refers to, as a crash leaves them.
fn leak(fs: &fs::Fs) -> pram::Result<()> {
    let mut op = fs.session().begin()?;
    let mut tx = op.tx()?;
    for size in [100, 700, 3000, 3000, 100, 700, 1500, 9000] {
        tx.alloc(fs::layout::tag::DATA, size)?;
    }
    tx.commit()
}
