//! Several operations at once when the crash comes: threads of one process, of which one has its turn, and where it
//! passes on, and to whom, a seed decides (see [`stage`](crate::stage)).
//!
//! Each works on names of its own in a directory of all, so that whatever their order they come to the same. What may be
//! found: of each thread's operations all that had returned, none that had not begun, and of the one under way all or
//! nothing, in any combination.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use conquest_fs::node::{Atime, Policy, Rename};
use conquest_fs::Fs;
use pram::memory::{Geometry, SLOT};
use pram::{Mapping, MediumKind, Needs};
use rng::Rng;

use super::{
    assert_none, bytes_of, check, explore_each, format_on, guarded, medium, name_of, name_of_choice, open, sweep,
    Depth, Failure, Filter, Sabotage,
};
use crate::crash::{Medium, Point};
use crate::medium::Discipline;
use crate::model::Model;
use crate::op::{Op, Runner};
use crate::stage::Stage;
use crate::trace::{Event, Recorder};
use crate::tree::{difference, normalise, snapshot, Tree};

const SIZE: u64 = 4 << 20;

/// What several threads do at the same time.
#[derive(Clone, Debug)]
pub struct Together {
    pub name: String,
    seed: u64,
    setup: Vec<Op>,
    /// By thread.
    ops: Vec<Vec<Op>>,
}

/// What an exploration covered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub states: u64,
    /// Of these, with two or more transactions open.
    pub several: u64,
    /// Most that were open in one.
    pub most: usize,
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

/// Operations that can be done in any order with each other, and with those of others.
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

/// Passes turns on between stores.
struct Turns {
    inner: Box<dyn pram::Medium>,
    stage: Arc<Stage>,
}

impl pram::Medium for Turns {
    fn kind(&self) -> MediumKind {
        self.inner.kind()
    }
    fn needs(&self) -> Needs {
        self.inner.needs()
    }
    fn flush(&self, map: &Mapping, off: u64, len: u64) {
        self.inner.flush(map, off, len);
    }
    fn stream(&self, map: &Mapping, off: u64, bytes: &[u8]) -> pram::Result<bool> {
        let done = self.inner.stream(map, off, bytes);
        self.stage.pass();
        done
    }
    fn fence(&self, map: &Mapping) {
        self.inner.fence(map);
    }
    fn stored(&self, off: u64, bytes: &[u8]) {
        self.inner.stored(off, bytes);
        self.stage.pass();
    }
    fn waits(&self) -> bool {
        self.stage.waits()
    }
    fn stepped(&self) {
        self.stage.step();
    }
}

/// When an operation began and returned, in events.
#[derive(Clone, Copy, Debug)]
struct Span {
    began: usize,
    returned: usize,
}

/// A performance: what was there, and what happened.
struct Performance {
    base: Vec<u8>,
    events: Vec<Event>,
    /// By thread.
    spans: Vec<Vec<Span>>,
    geo: Geometry,
}

fn perform(t: &Together, discipline: Discipline, sabotage: Sabotage) -> Result<Performance, String> {
    let recorder = Arc::<Recorder>::default();
    let stage = Stage::new(t.seed, &[], vec![0; t.ops.len()]);
    let inner = medium(SIZE, discipline, sabotage, &recorder)?;
    let session = format_on(SIZE, Box::new(Turns { inner, stage: stage.clone() }))?;
    let policy = Policy { atime: Atime::Never, ..Policy::default() };
    let fs = Fs::over(session, policy).map_err(|e| e.to_string())?;
    let mut runner = Runner::new(&fs);
    for op in &t.setup {
        runner.run(op)?.map_err(|e| format!("{op:?}: {e:?}"))?;
    }
    let base = bytes_of(&fs);
    recorder.start();
    stage.begin(Box::new(|_| {}));
    let spans = Mutex::new(vec![Vec::new(); t.ops.len()]);
    let watched = std::thread::scope(|scope| {
        for (me, ops) in t.ops.iter().enumerate() {
            let (fs, stage, recorder, spans) = (&fs, &stage, &recorder, &spans);
            scope.spawn(move || {
                stage.enter(me);
                let done = guarded(|| act(fs, ops, recorder));
                spans.lock().unwrap_or_else(|e| e.into_inner())[me] = vec![done];
                stage.finish(me);
            });
        }
        stage.watch()
    });
    watched?;
    let spans = spans.into_inner().unwrap_or_else(|e| e.into_inner());
    let spans = spans.into_iter().flatten().collect::<Result<Vec<_>, String>>()?;
    Ok(Performance { base, events: recorder.stop(), spans, geo: fs.session().memory().geo })
}

/// What one thread does.
fn act(fs: &Fs, ops: &[Op], recorder: &Recorder) -> Result<Vec<Span>, String> {
    let mut runner = Runner::new(fs);
    let mut spans = Vec::new();
    for op in ops {
        let began = recorder.len();
        runner.run(op)?.map_err(|e| format!("{op:?}: {e:?}"))?;
        spans.push(Span { began, returned: recorder.len() });
    }
    Ok(spans)
}

impl Performance {
    /// Of each thread, how many of its operations must be there, and how many may be.
    fn allowed(&self, point: Point) -> Vec<(usize, usize)> {
        let of = |spans: &Vec<Span>| {
            let must = spans.iter().filter(|s| s.returned <= point.events).count();
            let may = spans.iter().filter(|s| s.began < point.events + usize::from(point.cut > 0)).count();
            (must, may)
        };
        self.spans.iter().map(of).collect()
    }

    /// What the crash may leave, one for each combination.
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

    fn judge(&self, t: &Together, point: Point, left: Mapping, discipline: Discipline) -> Result<(), String> {
        let fs = open(left, discipline)?;
        check(&fs, false)?;
        let mut found = snapshot(&fs)?;
        normalise(&mut found.tree);
        sweep(&fs)?;
        let trees = self.trees(t, point)?;
        let told: Vec<String> = trees.iter().filter_map(|tree| difference(&found.tree, tree)).collect();
        match told.len() < trees.len() {
            true => Ok(()),
            false => Err(format!("none of {} allowed states: {}", trees.len(), told.join("; or "))),
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

/// Explores crashes of several operations at once, some `most` of them for each discipline.
pub fn explore_together(t: &Together, sabotage: Sabotage, depth: Depth, most: usize) -> Result<Stats, Vec<Failure>> {
    let mut stats = Stats::default();
    for discipline in Discipline::ALL {
        let explorer = Explorer { discipline, sabotage, depth, most };
        explorer.explore(t, &Filter::default(), &mut stats)?;
    }
    Ok(stats)
}

/// The same for all, or for the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of what failed.
pub fn explore_togethers(all: &[Together], most: usize) -> Stats {
    let (depth, mut stats) = (Depth::from_env(), Stats::default());
    let failures = explore_each(
        all,
        |t| &t.name,
        |t, discipline, filter| {
            let explorer = Explorer { discipline, sabotage: Sabotage::Nothing, depth, most };
            explorer.explore(t, filter, &mut stats)
        },
    );
    eprintln!("{stats:?}");
    assert_none(&failures);
    stats
}

struct Explorer {
    discipline: Discipline,
    sabotage: Sabotage,
    depth: Depth,
    /// Crashes, about; the one at the end is always among them.
    most: usize,
}

impl Explorer {
    /// Stops at the first failure.
    fn explore(&self, t: &Together, filter: &Filter, stats: &mut Stats) -> Result<(), Vec<Failure>> {
        let discipline = self.discipline;
        let fail = |at: String, text| vec![Failure { id: format!("{}:{}:{at}", t.name, discipline.name()), text }];
        let performance =
            guarded(|| perform(t, discipline, self.sabotage)).map_err(|text| fail("run:".into(), text))?;
        let Performance { base, events, geo, .. } = &performance;
        let mut medium = Medium::new(discipline, base);
        let mut open = Open { geo, slots: BTreeSet::new() };
        let mut applied = 0;
        for point in self.some(filter.points(events, self.depth), events.len(), t.seed) {
            for event in &events[applied..point.events] {
                medium.apply(event, None);
                open.apply(event);
            }
            applied = point.events;
            // Of a point that was passed over, the store is applied whole with the events.
            if point.cut > 0 {
                medium.apply(&events[point.events], Some(point.cut));
            }
            for choice in filter.choices(&medium, discipline, self.depth) {
                stats.states += 1;
                stats.several += u64::from(open.slots.len() > 1);
                stats.most = stats.most.max(open.slots.len());
                let judged = guarded(|| performance.judge(t, point, medium.crash(choice), discipline));
                judged.map_err(|text| fail(format!("{}:{}", name_of(point), name_of_choice(choice)), text))?;
            }
        }
        Ok(())
    }

    fn some(&self, all: Vec<Point>, end: usize, seed: u64) -> Vec<Point> {
        let step = (all.len() / self.most).max(1);
        let picked = |n: usize, point: Point| n % step == seed as usize % step || point.events == end;
        all.into_iter().enumerate().filter(|(n, point)| picked(*n, *point)).map(|(_, point)| point).collect()
    }
}
