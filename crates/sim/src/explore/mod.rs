//! The explorer of scenarios: runs one, and judges every crash that its memory survives.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | every crash of a scenario's operation |
//! | [`damage`] | memory for tests that damage it, and damage |
//! | [`judge`] | is a state the one before or the one after the operation? |
//! | [`again`] | a second crash, during the recovery from the first |
//! | [`repair`] | crashes during a repair |
//! | [`together`] | crashes of several operations at once |

mod again;
pub mod damage;
mod judge;
mod repair;
mod together;

use pram::MediumKind;

use crate::choice::Choice;
use crate::crash::{each_point, points, Medium, PERSISTENT};
use crate::medium::Sabotage;
use crate::scenario::Scenario;
use crate::tape::{Moment, Point};
use crate::tree::look;
use crate::verdict::{caught, each, failures, full, Failure, Filter, Stats, Verdicts};
use again::recover_twice;
use judge::{open, run, Run};

pub use damage::{damaged_base, damaged_base_on, damaged_base_packed, open_bytes, work_after_repair};
pub use repair::{explore_repair, Damaged};
pub use together::{explore_together, explore_togethers, Together};

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Most cuts inside one long store.
    pub cuts: u64,
    /// On dax, all combinations of the words in doubt are explored if they are no more than this.
    pub subsets: u64,
    /// Else so many seeds per point, beside none and all.
    pub seeds: u64,
    /// One state in so many also has to work after recovery.
    pub aftermath: usize,
    /// One state in so many is recovered again after a crash at each store of its recovery.
    pub again: usize,
}

impl Depth {
    /// The depth that the environment asks for.
    pub fn from_env() -> Depth {
        match full() {
            true => Depth { cuts: 64, subsets: 256, seeds: 16, aftermath: 1, again: 7 },
            false => Depth { cuts: 6, subsets: 4, seeds: 2, aftermath: 5, again: 101 },
        }
    }

    fn choices(&self, medium: &Medium) -> Vec<Choice> {
        medium.choices(self.subsets, self.seeds)
    }
}

impl Filter<'_> {
    // An id does not depend on the depth.

    /// The points of a recording, or the one that is wanted. If the run itself failed there is none: everything is
    /// explored again.
    fn points(&self, moments: &[Moment], depth: Depth) -> Vec<Point> {
        match self.point.map(|point| (point, Point::parse(point))) {
            Some((_, Some(point))) => vec![point],
            Some((END, None)) => Vec::new(),
            _ => points(moments, depth.cuts),
        }
    }

    fn choices(&self, medium: &Medium, depth: Depth) -> Vec<Choice> {
        self.choice.and_then(Choice::parse).map_or_else(|| depth.choices(medium), |named| vec![named])
    }
}

/// The point of an id for the state after the call has returned.
const END: &str = "end";

/// Explores scenarios under both disciplines, or the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of
/// the failures.
pub fn explore_all(scenarios: &[Scenario]) -> Stats {
    let depth = Depth::from_env();
    each(
        scenarios,
        |s| &s.name,
        |s, filter, verdicts| explore_persistent(s, Sabotage::Nothing, depth, filter, verdicts),
    )
}

fn explore_persistent(s: &Scenario, sabotage: Sabotage, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    for kind in PERSISTENT.into_iter().filter(|kind| filter.wants(kind.name())) {
        explore(s, kind, sabotage, depth, filter, verdicts);
    }
}

/// Explores every crash of one scenario. Stops at its first few failures.
pub fn explore(
    s: &Scenario,
    kind: MediumKind,
    sabotage: Sabotage,
    depth: Depth,
    filter: &Filter,
    verdicts: &mut Verdicts,
) {
    let id = |rest: String| format!("{}:{}:{rest}", s.name, kind.name());
    let Some(run) = verdicts.made(caught(|| run(s, kind, sabotage)), || id("run:".into())) else { return };
    verdicts.stats.stories += 1;
    verdicts.stats.events += run.events() as u64;
    let (base, moments) = (&run.history.start.memory, &run.history.moments);
    let before = verdicts.failures.len();
    let mut search = Search { s, run: &run, kind, depth, filter, count: 0, committed: false };
    let found = each_point(kind, base, moments, filter.points(moments, depth), |point, medium| {
        for choice in filter.choices(medium, depth) {
            let judged = caught(|| search.judge(point, medium, choice, &mut verdicts.stats));
            verdicts.take(judged, || id(format!("{}:{}", point.name(), choice.name())));
            if verdicts.failures.len() >= before + 3 {
                return Err(());
            }
        }
        Ok(())
    });
    if let (Ok(end), true) = (found, filter.point.is_none_or(|point| Point::parse(point).is_none())) {
        verdicts.take(caught(|| final_state(&run, kind, &end)), || id(format!("{END}:none")));
    }
}

/// When the call has returned, its effect is durable, also if all in doubt is lost.
fn final_state(run: &Run, kind: MediumKind, end: &Medium) -> Result<(), String> {
    let world = open(end.crash(Choice::None), kind)?;
    run.which(&look(&world.fs)?, 1..=1).map(drop)
}

/// An exploration under way.
struct Search<'a> {
    s: &'a Scenario,
    run: &'a Run,
    kind: MediumKind,
    depth: Depth,
    filter: &'a Filter<'a>,
    count: usize,
    /// A state after the operation has been found.
    committed: bool,
}

impl Search<'_> {
    fn judge(&mut self, point: Point, medium: &Medium, choice: Choice, stats: &mut Stats) -> Result<(), String> {
        let Search { s, run, kind, depth, filter, .. } = *self;
        let allowed = match point {
            _ if self.committed => 1..=1,
            // Nothing has begun.
            point if point == Point::default() && run.events() > 0 => 0..=0,
            point => run.history.after_death(point.events),
        };
        self.count += 1;
        stats.states += 1;
        let left = medium.crash(choice);
        if self.count % depth.again == 0 || filter.is_replay() {
            recover_twice(run, s, kind, depth, &left, allowed.clone())?;
            stats.again += 1;
        }
        let work = self.count % depth.aftermath == 0 || filter.is_replay();
        let after = run.judge(s, &open(left, kind)?.fs, allowed, work)?;
        *(if after { &mut stats.after } else { &mut stats.before }) += 1;
        // In program order there is no way back.
        self.committed |= after && kind == MediumKind::Battery && run.changes();
        Ok(())
    }
}

/// Explores the one state that an id names.
pub fn replay(s: &Scenario, id: &str, sabotage: Sabotage) -> Vec<Failure> {
    let (name, filter) = Filter::parse(id).expect("name:kind:point:choice");
    assert_eq!(name, s.name);
    failures(|verdicts| explore_persistent(s, sabotage, Depth::from_env(), &filter, verdicts))
}

/// The events of a scenario's last operation.
pub fn trace(s: &Scenario, kind: MediumKind) -> Result<Vec<Moment>, String> {
    run(s, kind, Sabotage::Nothing).map(|run| run.history.moments)
}
