//! The explorer for the medium `logged`: memory, marks, redo logs and image together.
//!
//! A story runs once, on memory and disks that record. Then the power is cut after each thing that the disks were
//! told, and the copy must load as an instant between two operations ([`history`]); and all processes die, at stores
//! and at writes, the next one goes on from the memory, all or a part of it, and the power is cut while it does.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`disk`] | disks: what is durable, what a cut can leave |
//! | [`tape`] | what reached memory and disks, in one order |
//! | [`fault`] | disks that fail at one call |
//! | [`world`] | a file system with its copy: made, taken up after a death, loaded after a cut |
//! | [`story`] | operations, with commits and checkpoints between and in the middle of each other |
//! | [`history`] | what happened, and what may therefore be found |
//! | [`cut`] | power cuts, and power cuts afterwards |
//! | [`death`] | deaths of all processes, and power cuts afterwards |
//! | `later` | the life after a crash, and power cuts in it |
//! | [`away`] | memory that its copy leaves behind, and that is taken up again |
//! | [`ledger`] | a participant in commits, and what it must have written |
//! | [`failing`] | a disk that fails at any call |
//! | [`mirror`] | memory that survives on its own, with a mirror: either is lost |
//! | [`several`] | several processes and threads at once, of which some die and the others go on |
//!
//! Failures print an id, `story:cut:…`, `story:death:…`, `story:loss:…`, `story:away:…` or `play:several:…`; `CONQUEST_SIM_REPLAY=id` explores that state alone.

pub mod away;
pub mod cut;
pub mod death;
pub mod disk;
pub mod failing;
pub mod fault;
pub mod history;
mod later;
pub mod ledger;
pub mod mirror;
pub mod several;
pub mod story;
pub mod tape;
pub mod world;

use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::explore::{panic_text, Failure};
use away::Other;
use death::Left;
use story::{tell, Story};

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Most events after which the power is cut.
    pub cuts: usize,
    /// Seeds per cut, beside none and all.
    pub seeds: u64,
    /// Most deaths.
    pub deaths: usize,
    /// Power cuts after each death.
    pub mixed: u64,
    /// One cut in so many is also worked with after recovery.
    pub aftermath: u64,
}

impl Depth {
    const ALL: Depth = Depth { cuts: usize::MAX, seeds: 8, deaths: 200, mixed: 4, aftermath: 4 };

    /// For many stories: what the environment asks for.
    pub fn wide() -> Depth {
        match full() {
            true => Depth::ALL,
            false => Depth { cuts: 3, seeds: 1, deaths: 1, mixed: 1, aftermath: 12 },
        }
    }

    /// For very many that are short.
    pub fn short() -> Depth {
        match full() {
            true => Depth { cuts: usize::MAX, seeds: 2, deaths: 12, mixed: 1, aftermath: 8 },
            false => Depth::wide(),
        }
    }

    /// For a few.
    pub fn deep() -> Depth {
        match full() {
            true => Depth { seeds: 32, deaths: 500, ..Depth::ALL },
            false => Depth { cuts: usize::MAX, seeds: 5, deaths: 40, mixed: 2, aftermath: 10 },
        }
    }
}

pub fn full() -> bool {
    std::env::var("CONQUEST_SIM").as_deref() == Ok("full")
}

/// What an exploration covered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub stories: u64,
    pub events: u64,
    pub cuts: u64,
    /// Cuts that left the newest instant, and an older one.
    pub newest: u64,
    pub older: u64,
    pub deaths: u64,
    pub mixed: u64,
}

/// What was found.
#[derive(Default)]
pub struct Verdicts {
    pub stats: Stats,
    pub failures: Vec<Failure>,
}

impl Verdicts {
    fn take(&mut self, judged: Result<(), String>, id: impl FnOnce() -> String) {
        if let Err(text) = judged {
            let failure = Failure { id: id(), text };
            // At once: a long exploration may be ended early.
            eprintln!("{failure}");
            self.failures.push(failure);
        }
    }

    /// Panics with the ids of what failed.
    fn assert_none(&self) {
        let told: Vec<String> = self.failures.iter().map(Failure::to_string).collect();
        assert!(told.is_empty(), "{} states are wrong:\n{}", told.len(), told.join("\n"));
    }

    fn enough(&self) -> bool {
        self.failures.len() >= 10
    }
}

/// What to look at: everything, or the one state that an id names.
#[derive(Clone, Copy, Default)]
pub struct Filter<'a> {
    kind: Option<&'a str>,
    point: Option<&'a str>,
    choice: Option<&'a str>,
}

/// An id in its parts: the story's name, and what to look at of it.
pub fn parse(id: &str) -> Option<(&str, Filter<'_>)> {
    let parts: Vec<&str> = id.rsplitn(4, ':').collect();
    let [choice, point, kind, name] = parts[..] else { return None };
    Some((name, Filter { kind: Some(kind), point: Some(point), choice: Some(choice).filter(|c| *c != "live") }))
}

/// Explores a story.
pub fn explore(story: &Story, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    let told = match caught(|| tell(story)) {
        Ok(told) => told,
        Err(text) => return verdicts.take(Err(text), || format!("{}:run::", story.name)),
    };
    verdicts.stats.stories += 1;
    verdicts.stats.events += told.history.moments.len() as u64;
    if filter.kind.is_none_or(|kind| kind == "cut") {
        cut::explore(&story.name, &told.history, depth, filter, verdicts);
    }
    let fewer = Depth { deaths: depth.deaths.div_ceil(4), ..depth };
    for (memory, depth) in [(Left::Everything, depth), (Left::Region, fewer)] {
        if filter.kind.is_none_or(|kind| kind == memory.name()) {
            death::explore(&story.name, &told.history, memory, depth, filter, verdicts);
        }
    }
}

/// Explores stories, or the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of what failed.
pub fn explore_all(stories: &[Story], depth: Depth) -> Stats {
    each(stories, |story, filter, verdicts| explore(story, depth, filter, verdicts))
}

/// Explores what becomes of memory that the stories' copies leave behind, or the one state; see [`away`].
pub fn explore_away(stories: &[Story], depth: Depth) -> away::Stats {
    let mut stats = away::Stats::default();
    each(stories, |story, filter, verdicts| stats += away::explore(story, Other::New, depth, filter, verdicts));
    eprintln!("{stats:?}");
    stats
}

/// Panics with the ids of what failed.
fn each(stories: &[Story], mut explore: impl FnMut(&Story, &Filter, &mut Verdicts)) -> Stats {
    let mut verdicts = Verdicts::default();
    let replay = std::env::var("CONQUEST_SIM_REPLAY").ok();
    let wanted = replay.as_deref().map(|id| parse(id).expect("story:kind:point:choice"));
    for story in stories.iter().filter(|s| wanted.is_none_or(|(name, _)| name == s.name)) {
        explore(story, &wanted.map(|(_, filter)| filter).unwrap_or_default(), &mut verdicts);
        if verdicts.enough() {
            break;
        }
    }
    eprintln!("{:?}", verdicts.stats);
    verdicts.assert_none();
    verdicts.stats
}

pub(crate) fn caught<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| Err(panic_text(p)))
}

/// What samples are drawn by.
fn seed() -> u64 {
    std::env::var("CONQUEST_SIM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// One in `part` of what there is, drawn by the seed in `CONQUEST_SIM_SEED` (1 if there is none); all of it with
/// `CONQUEST_SIM=full` and for a replay.
pub fn sample<T>(mut all: Vec<T>, part: usize) -> Vec<T> {
    if full() || std::env::var_os("CONQUEST_SIM_REPLAY").is_some() {
        return all;
    }
    rng::Rng::new(seed()).shuffle(&mut all);
    all.truncate(all.len().div_ceil(part));
    all
}

/// A seed that a name stands for.
pub(crate) fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}
