//! Several processes on one pool, of which one dies: any of them leads a commit, folds, swaps logs; the other cleans up after
//! it, and what was promised to either is kept.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | a performance from beginning to end, and its judgement |
//! | [`stage`] | whose turn it is; deaths |
//! | [`pool`] | shared memory, disks, and two processes attached to them |
//! | [`play`] | what the two do |
//! | [`oracle`] | what a power cut may leave |
//!
//! An id is `play:several:seed.death:live`, or of a power cut `play:several:seed.death:events/choice`; a death is `victim`,
//! `e` or `w` and the number of the event or wait, and how much of it is done, or `none`.

mod oracle;
mod play;
mod pool;
mod stage;

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Mutex};

use fs::Fs;
use rng::Rng;

use super::cut::choices;
use super::tape::Event;
use super::world::{look, reload, World};
use super::{caught, seed_of, Filter, Verdicts};
use crate::crash::Choice;
use crate::explore::{check, name_of_choice, panic_text, sweep, work_with};
use crate::model::Model;
use crate::op::{Done, Op, Runner};
use crate::tree::difference;
use oracle::{Promise, Timeline};
use stage::{At, Death, How, Stage, PLAYERS};

pub use play::{Act, Base, Play, Scene};

/// A step that is left out, for tests of the tester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Nothing,
    /// A death goes unnoticed: nobody cleans up.
    Unnoticed,
    /// What the dead one had begun is not undone.
    NotUndone,
    /// What the dead one changed is not marked.
    Unmarked,
    /// One of them does not flush the logs.
    NoFlush,
}

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Orders in which the two take turns: seeds from `first` on.
    pub first: u64,
    pub seeds: u64,
    /// Most deaths for each.
    pub deaths: usize,
    /// Most power cuts for each without a death, and with one.
    pub cuts: usize,
    pub mixed: usize,
    /// Seeds per cut, beside none and all.
    pub choices: u64,
}

impl Depth {
    pub fn from_env() -> Depth {
        let first = super::seed() * 1000;
        match super::full() {
            true => Depth { first, seeds: 16, deaths: 150, cuts: usize::MAX, mixed: 2, choices: 2 },
            false => Depth { first, seeds: 6, deaths: 24, cuts: 12, mixed: 1, choices: 1 },
        }
    }
}

/// What deaths were explored: by what the dead one was doing.
pub type Roles = BTreeMap<&'static str, u64>;

/// What became of a play.
struct Performance {
    timeline: Timeline,
    events: [Vec<bool>; PLAYERS],
    waits: [u64; PLAYERS],
    role: Option<&'static str>,
}

/// What one of them has done so far.
#[derive(Default)]
struct Script {
    /// Operations and what came of them.
    done: Vec<(Op, Done)>,
    /// What it is doing.
    now: Option<Act>,
    promises: Vec<Promise>,
    failure: Option<String>,
}

type Scripts = [Mutex<Script>; PLAYERS];

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Explores a play.
pub fn explore(play: &Play, depth: Depth, filter: &Filter, verdicts: &mut Verdicts, roles: &mut Roles) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in shared memory");
    let base = match caught(|| play.base()) {
        Ok(base) => base,
        Err(text) => return verdicts.take(Err(text), || format!("{}:several::", play.name)),
    };
    let explorer = Explorer { play, base: &base, depth, filter, dir: dir.path() };
    match filter.point {
        Some(point) => match parse(point) {
            Some((seed, death)) => _ = explorer.one(seed, death, verdicts, roles),
            None => verdicts.take(Err("not an id".into()), || point.into()),
        },
        None => (depth.first..depth.first + depth.seeds).for_each(|seed| explorer.seed(seed, verdicts, roles)),
    }
    verdicts.stats.stories += 1;
}

struct Explorer<'a> {
    play: &'a Play,
    base: &'a Base,
    depth: Depth,
    filter: &'a Filter<'a>,
    dir: &'a Path,
}

impl Explorer<'_> {
    /// One order of turns: without a death, then with some.
    fn seed(&self, seed: u64, verdicts: &mut Verdicts, roles: &mut Roles) {
        let Some(whole) = self.one(seed, None, verdicts, roles) else { return };
        let mut deaths: Vec<Death> = (0..PLAYERS)
            .filter(|victim| self.play.scene.can_die(*victim))
            .flat_map(|victim| deaths_of(&whole, victim))
            .collect();
        let mut rng = Rng::new(seed_of(&self.play.name) ^ seed);
        rng.shuffle(&mut deaths);
        // Most events are stores: as many deaths elsewhere.
        let at_store = |death: &Death| matches!(death.at, At::Event(n) if !whole.events[death.victim][n as usize]);
        let (stores, others): (Vec<Death>, Vec<Death>) = deaths.into_iter().partition(at_store);
        let half = self.depth.deaths.div_ceil(2);
        for death in others.into_iter().take(half).chain(stores.into_iter().take(half)) {
            if verdicts.enough() {
                return;
            }
            self.one(seed, Some(death), verdicts, roles);
        }
    }

    /// One performance, and power cuts in it.
    fn one(&self, seed: u64, death: Option<Death>, verdicts: &mut Verdicts, roles: &mut Roles) -> Option<Performance> {
        let id = |what: &str| format!("{}:several:{}:{what}", self.play.name, name(seed, death));
        let performed = caught(|| perform(self.play, self.base, seed, death, self.dir));
        verdicts.stats.deaths += u64::from(death.is_some());
        let performance = match performed {
            Ok(performance) => performance,
            Err(text) => {
                verdicts.take(Err(text), || id("live"));
                return None;
            }
        };
        verdicts.stats.events += performance.timeline.moments.len() as u64;
        performance.role.iter().for_each(|role| *roles.entry(*role).or_default() += 1);
        self.cuts(&performance.timeline, death.is_some(), seed, &id, verdicts);
        Some(performance)
    }

    fn cuts(&self, timeline: &Timeline, died: bool, seed: u64, id: &dyn Fn(&str) -> String, verdicts: &mut Verdicts) {
        let most = if died { self.depth.mixed } else { self.depth.cuts };
        let mut places: Vec<usize> = timeline.disks().map(|(at, _)| at).collect();
        let end = places.last().copied();
        Rng::new(seed ^ timeline.moments.len() as u64).shuffle(&mut places);
        places.truncate(most);
        for (at, files) in timeline.disks() {
            for choice in choices(&files, self.depth.choices) {
                let told = format!("{at}/{}", name_of_choice(choice));
                // What has returned is kept, whatever is lost.
                let last = Some(at) == end && choice == Choice::None;
                let here = match self.filter.choice {
                    Some(wanted) => wanted == told,
                    None => self.filter.point.is_none() && (places.contains(&at) || last),
                };
                if !here || verdicts.enough() {
                    continue;
                }
                *(if died { &mut verdicts.stats.mixed } else { &mut verdicts.stats.cuts }) += 1;
                let deep = self.filter.choice.is_some() || verdicts.stats.cuts % 16 == 1;
                let judged = caught(|| {
                    let left = files.cut(choice);
                    let size = timeline.start.region.len() as u64;
                    timeline.judge(at, &reload(&left, size)?)?;
                    if deep {
                        go_on(World::load(left, size)?)
                    } else {
                        Ok(())
                    }
                });
                verdicts.take(judged, || id(&told));
            }
        }
    }
}

/// What a cut left opens, is sound, and works.
fn go_on(world: World) -> Result<(), String> {
    check(&world.fs, false)?;
    let found = look(&world.fs)?;
    work_with(&world.fs, &found)?;
    world.wait().map_err(|e| e.to_string())
}

/// Where one of them can die.
fn deaths_of(whole: &Performance, victim: usize) -> Vec<Death> {
    let events = (0..).zip(&whole.events[victim]).flat_map(|(n, disk)| {
        let ways = if *disk { &[How::Before, How::Half, How::After][..] } else { &[How::After] };
        ways.iter().map(move |how| Death { victim, at: At::Event(n), how: *how })
    });
    let waits = (0..whole.waits[victim]).map(|n| Death { victim, at: At::Wait(n), how: How::Before });
    events.chain(waits).collect()
}

fn name(seed: u64, death: Option<Death>) -> String {
    match death {
        None => format!("{seed}.none"),
        Some(Death { victim, at, how }) => {
            let at = match at {
                At::Event(n) => format!("e{n}"),
                At::Wait(n) => format!("w{n}"),
            };
            format!("{seed}.{victim}.{at}.{}", how as u8)
        }
    }
}

fn parse(point: &str) -> Option<(u64, Option<Death>)> {
    let parts: Vec<&str> = point.split('.').collect();
    match parts[..] {
        [seed, "none"] => Some((seed.parse().ok()?, None)),
        [seed, victim, at, how] => {
            let n = at.get(1..)?.parse().ok()?;
            let at = if at.starts_with('e') { At::Event(n) } else { At::Wait(n) };
            let how = [How::Before, How::Half, How::After].into_iter().find(|h| (*h as u8).to_string() == how)?;
            let victim = victim.parse().ok().filter(|victim| *victim < PLAYERS)?;
            Some((seed.parse().ok()?, Some(Death { victim, at, how })))
        }
        _ => None,
    }
}

/// Performs a play to its end, in which whoever is left shows that nothing is lost.
fn perform(play: &Play, base: &Base, seed: u64, death: Option<Death>, dir: &Path) -> Result<Performance, String> {
    let stage = Stage::new(seed, death);
    let mut pool = pool::Pool::over(&base.still, stage.clone(), play.sabotage)?;
    // Slots are taken by the thread's number.
    pram::mem::set_thread_hint(0);
    let all = (0..PLAYERS).map(|me| pool.attach(me, dir)).collect::<Result<Vec<_>, _>>()?;
    let start = super::history::Still { region: pool.bytes()?, marks: Vec::new(), files: pool.tape.files() };
    pool.tape.start_without_marks();
    stage.begin(pool.undertaker()?);
    let scripts: Scripts = Default::default();
    let finale = std::thread::scope(|scope| {
        for (me, fs) in all.iter().enumerate() {
            let (stage, script, acts) = (&stage, &scripts[me], &play.parts[me]);
            let pool = &pool;
            scope.spawn(move || {
                pram::mem::set_thread_hint(me);
                let played = catch_unwind(AssertUnwindSafe(|| {
                    stage.enter(me);
                    act_all(fs, (pool, me, dir), acts, script);
                }));
                // The dead ones end without a word.
                if let Err(payload) = played {
                    if payload.is::<String>() || payload.is::<&str>() {
                        lock(script).failure = Some(panic_text(payload));
                    }
                }
                stage.finish(me);
            });
        }
        let played = stage.watch();
        let finale = caught(|| played.and_then(|()| finale(&pool, &stage, &all, &scripts, &base.model)));
        stage.end();
        finale
    });
    let moments = pool.tape.stop();
    let role = stage.dead().map(|dead| role_of(lock(&scripts[dead]).now.as_ref(), &death));
    let (events, waits) = stage.counts();
    let mut promises = finale?;
    promises.extend(scripts.iter().flat_map(|script| lock(script).promises.clone()));
    let timeline = Timeline::new(start, moments, &stage.stores(), promises);
    if timeline.instants() < 2 {
        return Err("there are no instants between operations".into());
    }
    Ok(Performance { timeline, events, waits, role })
}

/// What the dead one was doing.
fn role_of(now: Option<&Act>, death: &Option<Death>) -> &'static str {
    let waited = death.is_some_and(|death| matches!(death.at, At::Wait(_)));
    match (now, waited) {
        (Some(Act::Op(_) | Act::Sweep | Act::Join), false) => "operating",
        (Some(Act::Op(_) | Act::Sweep | Act::Join), true) => "waiting for a lock or a thaw",
        (Some(Act::Wait | Act::Commit), false) => "leading a commit",
        (Some(Act::Wait | Act::Commit), true) => "waiting for a commit or operations",
        (Some(Act::Fold), _) => "folding",
        _ => "resting",
    }
}

/// Does what is in a part.
fn act_all(fs: &Arc<Fs>, place: (&pool::Pool, usize, &Path), acts: &[Act], script: &Mutex<Script>) {
    let (mut runner, tape) = (Runner::new(fs), &place.0.tape);
    for act in acts {
        lock(script).now = Some(act.clone());
        let called = tape.len();
        let done = act_one(&mut runner, place, act);
        let mut script = lock(script);
        match done {
            Ok(Outcome::Did(op, done)) => script.done.push((op, done)),
            Ok(Outcome::Durable) => script.promises.push((tape.len(), called)),
            Ok(Outcome::Nothing) => {}
            Err(e) => script.failure = Some(format!("{act:?}: {e}")),
        }
        script.now = None;
    }
}

enum Outcome {
    Did(Op, Done),
    Durable,
    Nothing,
}

fn act_one(runner: &mut Runner, (pool, me, dir): (&pool::Pool, usize, &Path), act: &Act) -> Result<Outcome, String> {
    let session = runner.fs.session();
    let copy = session.copy().ok_or("there is no copy")?;
    let text = |e: pram::Error| e.to_string();
    match act {
        Act::Op(op) => Ok(Outcome::Did(op.clone(), runner.run(op)?)),
        Act::Wait => copy.wait(session).map(|()| Outcome::Durable).map_err(text),
        Act::Commit => match copy.commit_if_due(session, 0).map_err(text)? {
            true => Ok(Outcome::Durable),
            false => Ok(Outcome::Nothing),
        },
        Act::Fold => copy.fold_if_due(session).map(|_| Outcome::Nothing).map_err(text),
        Act::Sweep => runner.fs.sweep().map(|_| Outcome::Nothing).map_err(|e| e.to_string()),
        Act::Join => {
            let third = pool.join(me, dir).map_err(text)?;
            let copy = third.copy().ok_or("there is no copy")?;
            copy.wait(&third).map(|()| Outcome::Durable).map_err(text)
        }
        Act::Swell(bytes) => {
            let region = session.region();
            let marks = region.marks().ok_or("there are no marks")?;
            let at = region.geo.table;
            marks.mark(at, (*bytes).min(region.geo.size - at)).map(|()| Outcome::Nothing).map_err(text)
        }
    }
}

/// Whoever is left cleans up, finds what must be there, works, and waits; what that promises.
fn finale(
    pool: &pool::Pool,
    stage: &Stage,
    all: &[Arc<Fs>],
    scripts: &Scripts,
    model: &Model,
) -> Result<Vec<Promise>, String> {
    for script in scripts {
        lock(script).failure.take().map_or(Ok(()), Err)?;
    }
    let dead = stage.dead();
    let fs = &all[dead.map_or(0, |dead| 1 - dead)];
    let session = fs.session();
    let reaped = session.reap().map_err(|e| format!("cleaning up: {e}"))?;
    let (copy, mut promises) = (session.copy().ok_or("there is no copy")?, Vec::new());
    let mut wait = |when: &str| -> Result<(), String> {
        let called = pool.tape.len();
        copy.wait(session).map_err(|e| format!("{when}: {e}"))?;
        promises.push((pool.tape.len(), called));
        Ok(())
    };
    wait("after the death")?;
    let attached = session.runtime().sessions().len();
    if attached != PLAYERS - usize::from(dead.is_some()) {
        return Err(format!("{attached} are attached, of whom {reaped} were just cleaned up after"));
    }
    check(fs, false)?;
    seen(fs, scripts, dead, model)?;
    copy.fold_if_due(session).map_err(|e| format!("folding after the death: {e}"))?;
    if let Err(e) = Runner::new(fs).run(&Op::Create("/after".into(), 0o644))? {
        return Err(format!("an operation after the death: {e:?}"));
    }
    sweep(fs)?;
    wait("at the end")?;
    Ok(promises)
}

/// All operations that were done are seen, and that of the dead one wholly or not at all.
fn seen(fs: &Fs, scripts: &Scripts, dead: Option<usize>, model: &Model) -> Result<(), String> {
    let found = look(fs)?;
    let mut without = model.clone();
    for script in scripts {
        lock(script).done.iter().try_for_each(|(op, done)| without.apply(op, done))?;
    }
    let Some(told) = difference(&found.tree, &without.tree()) else { return Ok(()) };
    let last = dead.and_then(|dead| lock(&scripts[dead]).now.clone());
    if let Some(Act::Op(op)) = last {
        without.apply(&op, &Ok(0))?;
        if difference(&found.tree, &without.tree()).is_none() {
            return Ok(());
        }
    }
    Err(format!("after the death: {told}"))
}

/// What happens, in order, when a play is performed: whether it is a store, and what the disks are told.
pub fn outline(play: &Play, seed: u64) -> Result<Vec<String>, String> {
    let dir = tempfile::tempdir_in("/dev/shm").map_err(|e| e.to_string())?;
    let performance = perform(play, &play.base()?, seed, None, dir.path())?;
    let told = performance.timeline.moments.iter().map(|moment| match &moment.event {
        Event::Store { off, bytes } => format!("store {off} {}", bytes.len()),
        Event::Write { file, at, bytes } => format!("write {file} {at} {}", bytes.len()),
        Event::Flush { file } => format!("flush {file}"),
        Event::Rest => "rest".into(),
    });
    Ok(told.collect())
}

/// Explores plays, or the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of what failed.
pub fn explore_all(plays: &[Play], depth: Depth) -> (super::Stats, Roles) {
    let (mut verdicts, mut roles) = (Verdicts::default(), Roles::new());
    let replay = std::env::var("CONQUEST_SIM_REPLAY").ok();
    let wanted = replay.as_deref().and_then(super::parse);
    for play in plays {
        match wanted {
            Some((name, filter)) if name == play.name && filter.kind == Some("several") => {
                explore(play, depth, &filter, &mut verdicts, &mut roles);
            }
            Some(_) => {}
            None if replay.is_some() || verdicts.enough() => {}
            None => explore(play, depth, &Filter::default(), &mut verdicts, &mut roles),
        }
    }
    eprintln!("{:?}, {roles:?}", verdicts.stats);
    verdicts.assert_none();
    (verdicts.stats, roles)
}
