//! Several operations at once when the crash comes: threads of one process, of which one runs at a time. A seed decides
//! where the turn passes, and to which thread (see [`stage`](crate::stage)).
//!
//! Each works on names of its own in a directory of all, so that any order of them has the same result. A crash may
//! leave, for each thread independently: all operations that had returned, none that had not begun, and the one under
//! way wholly or not at all.

use std::collections::BTreeSet;
use std::sync::Mutex;

use conquest_fs::node::Rename;
use conquest_fs::Fs;
use pram::memory::{Geometry, SLOT};
use pram::{Mapping, MediumKind};
use rng::Rng;

use super::{open, Depth};
use crate::check::{check, sweep};
use crate::crash::{each_point, PERSISTENT};
use crate::fault::Faults;
use crate::medium::{Directed, Sabotage};
use crate::model::Model;
use crate::op::{Op, Runner};
use crate::stage::Stage;
use crate::tape::{Event, Moment, Point, Tape};
use crate::tree::{difference, look, Tree};
use crate::verdict::{caught, each, Filter, Stats, Verdicts};
use crate::world::{Setup, World};

const SIZE: u64 = 4 << 20;

/// The operations of several threads at the same time.
#[derive(Clone, Debug)]
pub struct Together {
    pub name: String,
    seed: u64,
    setup: Vec<Op>,
    /// By thread.
    ops: Vec<Vec<Op>>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Together {
    /// Three threads with two operations each, drawn by the seed.
    pub fn of(seed: u64) -> Together {
        let mut rng = Rng::new(seed);
        let setup = std::iter::once(Op::Mkdir("/both".into(), 0o755)).chain(NAMES.into_iter().flat_map(prologue));
        let draw = |me| {
            let mut all = work(me);
            rng.shuffle(&mut all);
            all.truncate(2);
            all
        };
        let ops = NAMES.into_iter().map(draw).collect();
        Together { name: format!("together-{seed}"), seed, setup: setup.collect(), ops }
    }
}

fn prologue(me: &str) -> Vec<Op> {
    let (mine, both) = (|name: &str| format!("/{me}/{name}"), |name: &str| format!("/both/{me}-{name}"));
    vec![
        Op::Mkdir(format!("/{me}"), 0o755),
        Op::Create(mine("file"), 0o644),
        Op::Append(mine("file"), 700, 3),
        Op::Create(mine("tree"), 0o644),
        Op::Append(mine("tree"), 50_000, 4),
        Op::Create(both("old"), 0o644),
        Op::Append(both("old"), 5000, 5),
        Op::Create(both("replaced"), 0o644),
    ]
}

/// Operations that can be done in any order, also among those of other threads.
fn work(me: &str) -> Vec<Op> {
    let (mine, both) = (|name: &str| format!("/{me}/{name}"), |name: &str| format!("/both/{me}-{name}"));
    vec![
        Op::Create(both("new-with-a-name-that-takes-some-room"), 0o644),
        Op::Mkdir(both("dir"), 0o755),
        Op::Symlink { target: "t".repeat(900), path: both("symlink") },
        Op::Link(mine("tree"), both("hard")),
        Op::Unlink(both("old")),
        Op::Rename(mine("file"), both("replaced"), Rename::Replace),
        Op::Write(mine("tree"), 5000, 9000, 6),
        Op::Truncate(mine("tree"), 100),
        Op::SetXattr(mine("tree"), "user.a".into(), vec![7; 300]),
        Op::Chown(mine("tree"), 1000 + u32::from(me.as_bytes()[0]), 7),
    ]
}

/// When an operation began and returned, in events.
#[derive(Clone, Copy, Debug)]
struct Span {
    began: usize,
    returned: usize,
}

/// A recorded run: the memory at its beginning, and the events.
struct Performance {
    base: Vec<u8>,
    moments: Vec<Moment>,
    /// By thread.
    spans: Vec<Vec<Span>>,
    geo: Geometry,
}

fn perform(t: &Together, kind: MediumKind, sabotage: Sabotage) -> Result<Performance, String> {
    let stage = Stage::new(t.seed, &[], vec![0; t.ops.len()]);
    let of = stage.clone();
    let world = World::format_on(Setup::alone(kind, SIZE), &Faults::with(None), &move |medium| {
        let tape = medium.tape.clone();
        Box::new(Directed { inner: sabotage.above(medium, SIZE), tape, stage: of.clone(), process: 0 })
    })?;
    let (fs, tape) = (&world.fs, &world.tape);
    let mut runner = Runner::new(fs);
    for op in &t.setup {
        runner.run(op)?.map_err(|e| format!("{op:?}: {e:?}"))?;
    }
    let base = world.bytes();
    tape.start(None);
    stage.begin(Box::new(|_| {}));
    let spans = Mutex::new(vec![Vec::new(); t.ops.len()]);
    let watched = std::thread::scope(|scope| {
        for (me, ops) in t.ops.iter().enumerate() {
            let (stage, spans) = (&stage, &spans);
            scope.spawn(move || {
                stage.enter(me);
                let done = caught(|| act(fs, ops, tape));
                spans.lock().unwrap_or_else(|e| e.into_inner())[me] = vec![done];
                stage.finish(me);
            });
        }
        stage.watch()
    });
    watched?;
    let spans = spans.into_inner().unwrap_or_else(|e| e.into_inner());
    let spans = spans.into_iter().flatten().collect::<Result<Vec<_>, String>>()?;
    Ok(Performance { base, moments: tape.stop(), spans, geo: fs.session().memory().geo })
}

/// Runs the operations of one thread.
fn act(fs: &Fs, ops: &[Op], tape: &Tape) -> Result<Vec<Span>, String> {
    let mut runner = Runner::new(fs);
    let mut spans = Vec::new();
    for op in ops {
        let began = tape.len();
        runner.run(op)?.map_err(|e| format!("{op:?}: {e:?}"))?;
        spans.push(Span { began, returned: tape.len() });
    }
    Ok(spans)
}

impl Performance {
    /// For each thread, how many of its operations must be visible, and how many may be.
    fn allowed(&self, point: Point) -> Vec<(usize, usize)> {
        let of = |spans: &Vec<Span>| {
            let must = spans.iter().filter(|s| s.returned <= point.events).count();
            let may = spans.iter().filter(|s| s.began < point.events + usize::from(point.cut > 0)).count();
            (must, may)
        };
        self.spans.iter().map(of).collect()
    }

    /// The trees that the crash may leave, one for each combination.
    fn trees(&self, t: &Together, point: Point) -> Result<Vec<Tree>, String> {
        let mut model = Model::default();
        t.setup.iter().try_for_each(|op| model.apply(op, &Ok(0)))?;
        let mut models = vec![model];
        for ((must, may), ops) in self.allowed(point).into_iter().zip(&t.ops) {
            let mut more = Vec::new();
            for mut model in models {
                ops[..must].iter().try_for_each(|op| model.apply(op, &Ok(0)))?;
                more.push(model.clone());
                for op in &ops[must..may.max(must)] {
                    model.apply(op, &Ok(0))?;
                    more.push(model.clone());
                }
            }
            models = more;
        }
        Ok(models.iter().map(Model::tree).collect())
    }

    fn judge(&self, t: &Together, point: Point, left: Mapping, kind: MediumKind) -> Result<(), String> {
        let fs = open(left, kind)?.fs;
        check(&fs, false)?;
        let found = look(&fs)?;
        sweep(&fs)?;
        let trees = self.trees(t, point)?;
        let differences: Vec<String> = trees.iter().filter_map(|tree| difference(&found.tree, tree)).collect();
        match differences.len() < trees.len() {
            true => Ok(()),
            false => Err(format!("none of {} allowed states: {}", trees.len(), differences.join("; or "))),
        }
    }
}

/// The slots with an open transaction, as the stores go by.
struct Open<'a> {
    geo: &'a Geometry,
    slots: BTreeSet<u64>,
}

impl Open<'_> {
    fn apply(&mut self, event: &Event) {
        let Event::Store { off, .. } = event else { return };
        let logs = self.geo.undo_logs();
        let Some(within) = logs.contains(off).then(|| off - logs.start) else { return };
        match within % SLOT {
            0 => self.slots.remove(&(within / SLOT)),
            _ => self.slots.insert(within / SLOT),
        };
    }
}

/// Explores operations of several threads, or the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of the
/// failures.
pub fn explore_togethers(all: &[Together], most: usize) -> Stats {
    let depth = Depth::from_env();
    each(all, |t| &t.name, |t, filter, verdicts| explore_together(t, Sabotage::Nothing, depth, most, filter, verdicts))
}

/// Explores crashes of several operations at once, about `most` of them for each discipline, always including the one at
/// the end.
pub fn explore_together(
    t: &Together,
    sabotage: Sabotage,
    depth: Depth,
    most: usize,
    filter: &Filter,
    verdicts: &mut Verdicts,
) {
    for kind in PERSISTENT.into_iter().filter(|kind| filter.wants(kind.name())) {
        let id = |at: String| format!("{}:{}:{at}", t.name, kind.name());
        let performed = verdicts.made(caught(|| perform(t, kind, sabotage)), || id("run:".into()));
        let Some(performance) = performed else { return };
        let Performance { base, moments, geo, .. } = &performance;
        verdicts.stats.stories += 1;
        verdicts.stats.events += moments.len() as u64;
        let (mut open, mut applied) = (Open { geo, slots: BTreeSet::new() }, 0);
        let points = some(filter.points(moments, depth), most, moments.len(), t.seed);
        let found = each_point(kind, base, moments, points, |point, medium| {
            moments[applied..point.events].iter().for_each(|moment| open.apply(&moment.event));
            applied = point.events;
            for choice in filter.choices(medium, depth) {
                verdicts.stats.states += 1;
                verdicts.stats.several += u64::from(open.slots.len() > 1);
                verdicts.stats.most = verdicts.stats.most.max(open.slots.len() as u64);
                let judged = caught(|| performance.judge(t, point, medium.crash(choice), kind));
                let failed = judged.is_err();
                verdicts.take(judged, || id(format!("{}:{}", point.name(), choice.name())));
                if failed {
                    return Err(());
                }
            }
            Ok(())
        });
        if found.is_err() {
            return;
        }
    }
}

fn some(all: Vec<Point>, most: usize, end: usize, seed: u64) -> Vec<Point> {
    let step = (all.len() / most).max(1);
    let picked = |n: usize, point: Point| n % step == seed as usize % step || point.events == end;
    all.into_iter().enumerate().filter(|(n, point)| picked(*n, *point)).map(|(_, point)| point).collect()
}
