//! Failures, each with an id that finds it again, and statistics of an exploration.

use std::panic::{catch_unwind, AssertUnwindSafe};

use rng::Rng;

/// A state that breaks a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// `name:kind:point:choice`
    pub id: String,
    pub text: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}\n    {}\n    again: CONQUEST_SIM_REPLAY='{}'", self.id, self.text, self.id)
    }
}

/// Statistics of an exploration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub stories: u64,
    pub events: u64,
    /// Crashes that the memory survives. Of these: recovered again after a crash at each store of the recovery; with two
    /// or more transactions open; the most that were open in one.
    pub states: u64,
    pub again: u64,
    pub several: u64,
    pub most: u64,
    /// States that recovered to before and to after the operation.
    pub before: u64,
    pub after: u64,
    /// Power cuts; those that left the newest instant; those that left an older one.
    pub cuts: u64,
    pub newest: u64,
    pub older: u64,
    pub deaths: u64,
    /// Power cuts after a death or another power cut.
    pub mixed: u64,
    /// Disks of an earlier time than the memory, and the pages that could not be read then.
    pub olds: u64,
    pub unreadable: u64,
    pub lives: u64,
    /// Memory that was left behind and then taken up again; refused; refused where something was promised elsewhere.
    pub taken_up: u64,
    pub refused: u64,
    pub promised: u64,
}

/// Failures and statistics.
#[derive(Default)]
pub struct Verdicts {
    pub stats: Stats,
    pub failures: Vec<Failure>,
}

impl Verdicts {
    pub fn take(&mut self, judged: Result<(), String>, id: impl FnOnce() -> String) {
        if let Err(text) = judged {
            let failure = Failure { id: id(), text };
            // At once: a long exploration may be ended early.
            eprintln!("{failure}");
            self.failures.push(failure);
        }
    }

    /// The same for a result that is needed to go on.
    pub fn made<T>(&mut self, made: Result<T, String>, id: impl FnOnce() -> String) -> Option<T> {
        made.map_err(|text| self.take(Err(text), id)).ok()
    }

    pub fn enough(&self) -> bool {
        self.failures.len() >= 10
    }

    /// Prints the statistics; panics with the ids of the failures.
    fn conclude(self) -> Stats {
        eprintln!("{:?}", self.stats);
        let wrong: Vec<String> = self.failures.iter().map(Failure::to_string).collect();
        assert!(wrong.is_empty(), "{} states are wrong:\n{}", wrong.len(), wrong.join("\n"));
        self.stats
    }
}

/// The failures of an exploration.
pub fn failures(explore: impl FnOnce(&mut Verdicts)) -> Vec<Failure> {
    let mut verdicts = Verdicts::default();
    explore(&mut verdicts);
    verdicts.failures
}

/// The states to explore: all, or the one with a certain id.
#[derive(Clone, Copy, Default)]
pub struct Filter<'a> {
    pub kind: Option<&'a str>,
    pub point: Option<&'a str>,
    pub choice: Option<&'a str>,
}

impl Filter<'_> {
    /// Splits an id into the name of the story and a filter.
    pub fn parse(id: &str) -> Option<(&str, Filter<'_>)> {
        let parts: Vec<&str> = id.rsplitn(4, ':').collect();
        let [choice, point, kind, name] = parts[..] else { return None };
        if kind == "run" {
            // It failed before any state was explored.
            return Some((name, Filter::default()));
        }
        Some((name, Filter { kind: Some(kind), point: Some(point), choice: Some(choice).filter(|c| *c != "live") }))
    }

    /// Are states of this kind wanted?
    pub fn wants(&self, kind: &str) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
    }

    pub fn is_replay(&self) -> bool {
        self.kind.is_some()
    }
}

/// Explores each story, or the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of the failures.
pub fn each<T>(stories: &[T], name: impl Fn(&T) -> &str, mut explore: impl FnMut(&T, &Filter, &mut Verdicts)) -> Stats {
    let mut verdicts = Verdicts::default();
    let replay = std::env::var("CONQUEST_SIM_REPLAY").ok();
    let wanted = replay.as_deref().map(|id| Filter::parse(id).expect("name:kind:point:choice"));
    for story in stories.iter().filter(|story| wanted.is_none_or(|(named, _)| named == name(story))) {
        explore(story, &wanted.map(|(_, filter)| filter).unwrap_or_default(), &mut verdicts);
        if verdicts.enough() {
            break;
        }
    }
    verdicts.conclude()
}

/// The result of `f`; a panic becomes an error.
pub fn caught<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| Err(panic_text(p)))
}

pub fn panic_text(payload: Box<dyn std::any::Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("?"))
}

/// Is everything to be explored?
pub fn full() -> bool {
    std::env::var("CONQUEST_SIM").as_deref() == Ok("full")
}

/// Is one state to be explored?
pub fn replays() -> bool {
    std::env::var_os("CONQUEST_SIM_REPLAY").is_some()
}

/// The seed for samples.
pub fn seed() -> u64 {
    std::env::var("CONQUEST_SIM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// One in `part` of all, drawn by the seed in `CONQUEST_SIM_SEED` (default 1); all of them with `CONQUEST_SIM=full` and
/// for a replay.
pub fn sample<T>(mut all: Vec<T>, part: usize) -> Vec<T> {
    if full() || replays() {
        return all;
    }
    Rng::new(seed()).shuffle(&mut all);
    all.truncate(all.len().div_ceil(part));
    all
}

/// A seed made from a name.
pub fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}
