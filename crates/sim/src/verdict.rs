//! What was found: failures, each with an id that finds it again, and how much was looked at.

use std::panic::{catch_unwind, AssertUnwindSafe};

use rng::Rng;

/// A state that is not what was promised.
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

/// What an exploration covered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub stories: u64,
    pub events: u64,
    /// Crashes that memory survives, and of these: recovered again after a crash at each store of the recovery; with two or
    /// more transactions open; the most that were open in one.
    pub states: u64,
    pub again: u64,
    pub several: u64,
    pub most: u64,
    /// States that recovered to before and to after the operation.
    pub before: u64,
    pub after: u64,
    /// Power cuts, and of these: that left the newest instant, and an older one.
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
    /// Memory that was left behind, taken up again and refused; of those that were refused: something was promised elsewhere.
    pub taken_up: u64,
    pub refused: u64,
    pub promised: u64,
}

/// What was found.
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

    /// The same of what is needed to go on.
    pub fn made<T>(&mut self, made: Result<T, String>, id: impl FnOnce() -> String) -> Option<T> {
        made.map_err(|text| self.take(Err(text), id)).ok()
    }

    pub fn enough(&self) -> bool {
        self.failures.len() >= 10
    }

    /// Tells what was covered; panics with the ids of what failed.
    fn conclude(self) -> Stats {
        eprintln!("{:?}", self.stats);
        let wrong: Vec<String> = self.failures.iter().map(Failure::to_string).collect();
        assert!(wrong.is_empty(), "{} states are wrong:\n{}", wrong.len(), wrong.join("\n"));
        self.stats
    }
}

/// What an exploration finds wrong.
pub fn failures(explore: impl FnOnce(&mut Verdicts)) -> Vec<Failure> {
    let mut verdicts = Verdicts::default();
    explore(&mut verdicts);
    verdicts.failures
}

/// What to look at: everything, or the one state that an id names.
#[derive(Clone, Copy, Default)]
pub struct Filter<'a> {
    pub kind: Option<&'a str>,
    pub point: Option<&'a str>,
    pub choice: Option<&'a str>,
}

impl Filter<'_> {
    /// An id in its parts: the story's name, and what to look at of it.
    pub fn parse(id: &str) -> Option<(&str, Filter<'_>)> {
        let parts: Vec<&str> = id.rsplitn(4, ':').collect();
        let [choice, point, kind, name] = parts[..] else { return None };
        if kind == "run" {
            // It failed before any state was looked at.
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

/// Explores each story, or the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of what failed.
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

/// What `f` comes to, a panic being one of its errors.
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

/// What samples are drawn by.
pub fn seed() -> u64 {
    std::env::var("CONQUEST_SIM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// One in `part` of what there is, drawn by the seed in `CONQUEST_SIM_SEED` (1 if there is none); all of it with
/// `CONQUEST_SIM=full` and for a replay.
pub fn sample<T>(mut all: Vec<T>, part: usize) -> Vec<T> {
    if full() || replays() {
        return all;
    }
    Rng::new(seed()).shuffle(&mut all);
    all.truncate(all.len().div_ceil(part));
    all
}

/// A seed that a name stands for.
pub fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}
