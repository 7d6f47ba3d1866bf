//! How commits and checkpoints fall between operations, and in the middle of them.

use pram::MediumKind;

use crate::op::{append, create, write};
use crate::scenario::Scenario;
use crate::story::Step::{self, Checkpoint, Commit, Damage, During, Fill, Swell, Wait};
use crate::story::{steps, Story, KIB};
use crate::world::{Setup, Stored};

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
    /// A commit that turns out larger than the room that was left for it.
    Outgrown,
    /// The backing is made anew by a commit that an operation waits for; and by a checkpoint, after the other log took
    /// over.
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

impl Story {
    /// A scenario's operation, and a few more, in a plot.
    pub fn of(s: &Scenario, plot: Plot) -> Story {
        let op = |n: u64| append("/zz-more", 700 * n as usize, n);
        let (first, during) = (s.op.clone(), |n| During(0, op(n)));
        let mut prologue: Vec<Step> = s.setup.iter().cloned().map(Step::Op).collect();
        // Commits of different sizes before.
        prologue.insert(prologue.len() / 2, Commit);
        prologue.extend(steps! { create("/zz-more"), Wait });
        let full = [Fill(45), Swell(300 * KIB), Commit];
        match plot {
            Plot::Plain | Plot::Large => {}
            Plot::Swap => prologue.push(Fill(45)),
            Plot::Full => prologue.extend(full.into_iter().chain([Fill(95)])),
            Plot::Rounds | Plot::Anew => prologue.extend(full),
            Plot::Outgrown => prologue.extend(full.into_iter().chain([Fill(60)])),
        }
        let steps = match plot {
            Plot::Plain => steps! { first, Wait, op(1), Commit, op(2), Wait, op(3) },
            Plot::Swap => steps! { first, Swell(300 * KIB), Commit, op(1), Wait, Checkpoint, op(2), Wait },
            Plot::Full => steps! { first, Swell(300 * KIB), Wait, op(1), Wait, Checkpoint, op(2), Commit },
            Plot::Rounds => steps! {
                first, Swell(1300 * KIB), during(1), Wait, op(2), Commit, during(3), Checkpoint, Wait,
            },
            Plot::Large => steps! { first, Swell(s.size), during(1), Wait, op(2), Wait, Checkpoint, op(3), Wait },
            Plot::Outgrown => steps! {
                first, Swell(1200 * KIB), During(0, write("/zz-more", 0, 900 << 10, 5)), Wait, op(1), Commit, Checkpoint,
                op(2), Wait,
            },
            Plot::Anew => steps! {
                first, Damage, during(1), Wait, Swell(300 * KIB), Commit, Damage, during(2), Checkpoint, op(3), Wait,
            },
        };
        Story { name: format!("{}/{plot:?}", s.name), setup: setup_of(s), prologue, steps, lie: None }
    }

    /// A scenario's operation and one before it (for a pair, the last of the setup), with nothing else.
    pub fn woven(s: &Scenario, pair: bool, weave: Weave) -> Story {
        let before = if pair { s.setup.len().saturating_sub(1) } else { s.setup.len() };
        let (setup, first) = s.setup.split_at(before);
        let first = first.first().cloned().unwrap_or(create("/zz-first"));
        let (second, during) = (s.op.clone(), During(0, s.op.clone()));
        let mut prologue: Vec<Step> = setup.iter().cloned().map(Step::Op).collect();
        let steps = match weave {
            Weave::Apart => steps! { first, Wait, second, Wait },
            Weave::Together => steps! { first, second, Wait },
            Weave::InCommit => steps! { first, during, Wait, Wait },
            Weave::InFold => {
                prologue.extend([Wait, Fill(45)]);
                steps! { first, Swell(300 * KIB), Commit, during, Checkpoint, Wait }
            }
        };
        Story { name: format!("{}/{weave:?}", s.name), setup: setup_of(s), prologue, steps, lie: None }
    }
}

fn setup_of(s: &Scenario) -> Setup {
    Setup { kind: MediumKind::Logged, size: s.size, atime: s.atime, stored: Stored::Backing }
}
