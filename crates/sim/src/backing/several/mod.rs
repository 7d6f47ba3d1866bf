//! Several processes on one pool, with several threads, of which processes die. Any of them leads a commit, checkpoints,
//! or swaps logs; the others clean up after the dead, and all promises are kept.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | exploring: orders of turns, deaths, power cuts |
//! | [`perform`] | a performance from beginning to end, and its judgement |
//! | [`pool`] | shared memory, disks, and the processes attached to them |
//! | [`play`] | the steps of each thread |
//! | [`oracle`] | the states that a power cut may leave |
//!
//! An id is `play:several:seed.death:live`, or for a power cut `play:several:seed.death:events/choice`. A death is the
//! victim; `e`, `w` or `s` and the number of the event, wait or step; and how much of that is done, or that it fails.
//! Two deaths are joined by `+`; `none` means no death.

mod oracle;
mod perform;
mod play;
mod pool;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use rng::Rng;

use crate::check::{check, work_with};
use crate::choice::Choice;
use crate::history::History;
use crate::stage::{At, Counts, How, Mishap};
use crate::tree::look;
use crate::verdict::{caught, each, full, seed_of, Filter, Stats, Verdicts};
use crate::world::{reload, World};
use perform::{perform, Performance};

pub use play::{Base, Company, Part, Play, Scene};

/// A step that is left out, to test the explorers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Nothing,
    /// No process notices a death and cleans up.
    Unnoticed,
    /// The transaction of the dead process is not undone.
    NotUndone,
    /// The changes of the dead process are not marked.
    Unmarked,
    /// One thread does not flush the logs.
    NoFlush,
    /// A promise is asked for before the operation is done.
    EarlyTicket,
    /// A disk that fails does not report it.
    Silent,
}

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Orders in which threads take turns: seeds from `first` on.
    pub first: u64,
    pub seeds: u64,
    /// Most deaths for each order; and with more than two processes, further deaths after each of these.
    pub deaths: usize,
    pub further: usize,
    /// Most power cuts for each order without a death, and with one.
    pub cuts: usize,
    pub mixed: usize,
    /// Seeds per cut, beside none and all.
    pub choices: u64,
}

impl Depth {
    pub fn from_env() -> Depth {
        let first = crate::verdict::seed() * 1000;
        match full() {
            true => Depth { first, seeds: 16, deaths: 150, further: 2, cuts: usize::MAX, mixed: 2, choices: 2 },
            false => Depth { first, seeds: 6, deaths: 24, further: 0, cuts: 12, mixed: 1, choices: 1 },
        }
    }

    /// For companies of more than two.
    pub fn of_many() -> Depth {
        match full() {
            true => Depth { seeds: 12, deaths: 90, ..Depth::from_env() },
            false => Depth { seeds: 3, deaths: 9, further: 1, ..Depth::from_env() },
        }
    }
}

/// The deaths that were explored: by the action of the dead thread, and how many others waited.
pub type Roles = BTreeMap<String, u64>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Explores a play.
pub fn explore(play: &Play, depth: Depth, filter: &Filter, verdicts: &mut Verdicts, roles: &mut Roles) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in shared memory");
    let made = verdicts.made(caught(|| play.base()), || format!("{}:run::", play.name));
    let Some(base) = made else { return };
    let explorer = Explorer { play, base: &base, depth, filter, dir: dir.path() };
    match filter.point {
        Some(point) => match parse(point) {
            Some((seed, deaths)) => _ = explorer.one(seed, &deaths, verdicts, roles),
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
        let Some(whole) = self.one(seed, &[], verdicts, roles) else { return };
        let processes = self.play.processes();
        let mut rng = Rng::new(seed_of(&self.play.name) ^ seed);
        // One process must be left.
        let first = draw(&whole.counts, None, processes > 1, self.depth.deaths, &mut rng);
        for death in first {
            if verdicts.enough() {
                return;
            }
            let Some(performed) = self.one(seed, &[death], verdicts, roles) else { continue };
            let further = if processes < 3 { 0 } else { self.depth.further };
            for second in draw(&performed.counts, Some(death.victim), true, further, &mut rng) {
                self.one(seed, &[death, second], verdicts, roles);
            }
        }
    }

    /// One performance, and power cuts in it.
    fn one(&self, seed: u64, deaths: &[Mishap], verdicts: &mut Verdicts, roles: &mut Roles) -> Option<Performance> {
        let id = |what: &str| format!("{}:several:{}:{what}", self.play.name, name(seed, deaths));
        verdicts.stats.deaths += deaths.len() as u64;
        let performed = caught(|| perform(self.play, self.base, seed, deaths, self.dir));
        let performance = verdicts.made(performed, || id("live"))?;
        verdicts.stats.events += performance.history.moments.len() as u64;
        performance.roles.iter().for_each(|role| *roles.entry(role.clone()).or_default() += 1);
        self.cuts(&performance.history, !deaths.is_empty(), seed, &id, verdicts);
        Some(performance)
    }

    fn cuts(&self, history: &History, died: bool, seed: u64, id: &dyn Fn(&str) -> String, verdicts: &mut Verdicts) {
        let most = if died { self.depth.mixed } else { self.depth.cuts };
        let disks = || history.start.files.over(&history.moments);
        let mut places: Vec<usize> = disks().map(|(at, _)| at).collect();
        let end = places.last().copied();
        Rng::new(seed ^ history.moments.len() as u64).shuffle(&mut places);
        places.truncate(most);
        for (at, files) in disks() {
            for choice in files.choices(self.depth.choices) {
                let text = format!("{at}/{}", choice.name());
                // An operation that has returned holds, also if all in doubt is lost.
                let last = Some(at) == end && choice == Choice::None;
                let here = match self.filter.choice {
                    Some(wanted) => wanted == text,
                    None => self.filter.point.is_none() && (places.contains(&at) || last),
                };
                if !here || verdicts.enough() {
                    continue;
                }
                *(if died { &mut verdicts.stats.mixed } else { &mut verdicts.stats.cuts }) += 1;
                let deep = self.filter.choice.is_some() || verdicts.stats.cuts % 16 == 1;
                let judged = caught(|| {
                    let left = files.cut(choice);
                    oracle::judge(history, at, &reload(&left, history.setup.size)?)?;
                    if deep {
                        go_on(World::load(history.setup, left)?)
                    } else {
                        Ok(())
                    }
                });
                verdicts.take(judged, || id(&text));
            }
        }
    }
}

/// The state after a cut opens, is sound, and works.
fn go_on(world: World) -> Result<(), String> {
    check(&world.fs, false)?;
    let found = look(&world.fs)?;
    work_with(&world.fs, &found)?;
    world.wait().map_err(|e| e.to_string())
}

/// Some points where a process other than `but` can die, if it may: equally many in stores, at disks and in other steps,
/// and in waits; and half as many where a disk can fail it. If it may not die, only the latter.
fn draw(counts: &[Counts], but: Option<usize>, may_die: bool, most: usize, rng: &mut Rng) -> Vec<Mishap> {
    let (mut stores, mut others, mut waits, mut failing) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (victim, there) in counts.iter().enumerate().filter(|(victim, _)| Some(*victim) != but) {
        for (n, disk) in (0..).zip(&there.events) {
            let at = At::Event(n);
            match disk {
                true => {
                    others.extend([How::Before, How::Half, How::After].map(|how| Mishap { victim, at, how }));
                    failing.push(Mishap { victim, at, how: How::Fails });
                }
                false => stores.push(Mishap { victim, at, how: How::After }),
            }
        }
        others.extend((0..there.steps).map(|n| Mishap { victim, at: At::Step(n), how: How::Before }));
        waits.extend((0..there.waits).map(|n| Mishap { victim, at: At::Wait(n), how: How::Before }));
    }
    [&mut others, &mut stores, &mut waits, &mut failing].into_iter().for_each(|part| rng.shuffle(part));
    if !may_die {
        [&mut others, &mut stores, &mut waits].into_iter().for_each(Vec::clear);
    }
    let part = (most / 7).max(1);
    failing.truncate(if may_die { part } else { most });
    // One of each in turn.
    let mut parts = [others.into_iter(), stores.into_iter(), waits.into_iter(), failing.into_iter()];
    let mut drawn = Vec::new();
    while drawn.len() < most {
        let before = drawn.len();
        drawn.extend(parts.iter_mut().filter_map(Iterator::next));
        if drawn.len() == before {
            break;
        }
    }
    drawn.truncate(most);
    drawn
}

fn name(seed: u64, deaths: &[Mishap]) -> String {
    let names = deaths.iter().map(|Mishap { victim, at, how }| {
        let at = match at {
            At::Event(n) => format!("e{n}"),
            At::Wait(n) => format!("w{n}"),
            At::Step(n) => format!("s{n}"),
        };
        format!("{victim}.{at}.{}", *how as u8)
    });
    match names.collect::<Vec<_>>().join("+") {
        none if none.is_empty() => format!("{seed}.none"),
        names => format!("{seed}.{names}"),
    }
}

fn parse(point: &str) -> Option<(u64, Vec<Mishap>)> {
    let (seed, text) = point.split_once('.')?;
    let deaths = match text {
        "none" => Vec::new(),
        text => text.split('+').map(parse_death).collect::<Option<Vec<Mishap>>>()?,
    };
    Some((seed.parse().ok()?, deaths))
}

fn parse_death(text: &str) -> Option<Mishap> {
    let parts: Vec<&str> = text.split('.').collect();
    let [victim, at, how] = parts[..] else { return None };
    let n = at.get(1..)?.parse().ok()?;
    let at = match at.get(..1)? {
        "e" => At::Event(n),
        "w" => At::Wait(n),
        "s" => At::Step(n),
        _ => return None,
    };
    let how = How::ALL.into_iter().find(|h| (*h as u8).to_string() == how)?;
    Some(Mishap { victim: victim.parse().ok()?, at, how })
}

/// The events of a play when it is performed, in order: stores and requests to disks, without content.
pub fn outline(play: &Play, seed: u64) -> Result<Vec<String>, String> {
    let dir = tempfile::tempdir_in("/dev/shm").map_err(|e| e.to_string())?;
    let performance = perform(play, &play.base()?, seed, &[], dir.path())?;
    Ok(performance.history.moments.iter().map(|moment| moment.event.shape()).collect())
}

/// Explores plays, or the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of the failures.
pub fn explore_all(plays: &[Play], depth: Depth) -> (Stats, Roles) {
    let mut roles = Roles::new();
    let stats = each(
        plays,
        |play| &play.name,
        |play, filter, verdicts| {
            if filter.wants("several") {
                explore(play, depth, filter, verdicts, &mut roles);
            }
        },
    );
    eprintln!("{roles:?}");
    (stats, roles)
}
