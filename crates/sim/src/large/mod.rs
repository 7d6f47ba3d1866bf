//! The explorer for large files: memory, its copy, and the disk with their content, on one tape.
//!
//! A story runs once, recording. Then, of what reached memory and disks in one order:
//!
//! | kind | medium | what is lost | what must be found |
//! | --- | --- | --- | --- |
//! | `crash` | battery | after any store, and in the midst of it: what the disk was not told to keep, in any part and order | the operations that have returned, and of the one under way all or nothing |
//! | `death` | logged | nothing: all processes die after any event | the same |
//! | `cut` | logged | memory, and what disks were not told to keep, after any event of a disk | an instant not before the last that was acknowledged |
//! | `old` | battery | the disk is of an earlier time than the memory | nothing wrong: each page is right, or cannot be read |
//!
//! Who comes then works, writes back, cleans and evicts all that there is, and what he found is still there; also after he has lost
//! his memory too.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`world`] | a file system with its copy and its disk: made, taken up, made of the copy |
//! | [`story`] | operations, and what goes on beside them and in the midst of that |
//! | [`history`] | what happened, and what may be found |
//! | this | crashes, and what is found |
//!
//! Failures print an id, `story:kind:events.cut:choice`; `CONQUEST_SIM_REPLAY=id` explores that state alone.

pub mod history;
pub mod story;
pub mod world;

use conquest_fs::Kind;
use pram::MediumKind;
use rng::Rng;

use crate::copy::cut::choices;
use crate::copy::disk::Files;
use crate::copy::history::Still;
use crate::copy::tape::Event;
use crate::copy::world::look;
use crate::copy::{caught, full, seed_of};
use crate::crash::Choice;
use crate::explore::{check, name_of_choice, Failure};
use crate::op::{Op, Runner};
use crate::tree::{difference, Tree};
use history::History;
use story::{tell, Story};
use world::World;

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Most crashes of each kind and story.
    pub points: usize,
    /// Seeds of what a disk keeps, beside none and all.
    pub seeds: u64,
    /// One state in so many is lived on with.
    pub aftermath: u64,
}

impl Depth {
    pub fn from_env() -> Depth {
        match full() {
            true => Depth { points: 400, seeds: 4, aftermath: 3 },
            false => Depth { points: 12, seeds: 1, aftermath: 6 },
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub stories: u64,
    pub events: u64,
    pub crashes: u64,
    pub deaths: u64,
    pub cuts: u64,
    /// Of these, those that left an older instant than the newest.
    pub older: u64,
    pub olds: u64,
    /// Pages that could not be read of these.
    pub unreadable: u64,
    pub lives: u64,
}

const KINDS: [(&str, MediumKind); 4] = [
    ("crash", MediumKind::Battery),
    ("death", MediumKind::Logged),
    ("cut", MediumKind::Logged),
    ("old", MediumKind::Battery),
];

/// Explores stories, or the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of what failed.
pub fn explore_all(stories: &[Story], depth: Depth) -> Stats {
    let (stats, failures) = explore(stories, depth);
    eprintln!("{stats:?}");
    let told: Vec<String> = failures.iter().map(Failure::to_string).collect();
    assert!(told.is_empty(), "{} states are wrong:\n{}", told.len(), told.join("\n"));
    stats
}

/// The same; what failed, ten at most.
pub fn explore(stories: &[Story], depth: Depth) -> (Stats, Vec<Failure>) {
    let mut all = Exploration { depth, stats: Stats::default(), failures: Vec::new(), wanted: None };
    let replay = std::env::var("CONQUEST_SIM_REPLAY").ok();
    for story in stories {
        for medium in [MediumKind::Battery, MediumKind::Logged] {
            let history = match caught(|| tell(story, medium)) {
                Ok(history) => history,
                Err(text) => {
                    all.failed(format!("{}:{medium:?}::", story.name), text);
                    continue;
                }
            };
            all.stats.stories += 1;
            all.stats.events += history.moments.len() as u64;
            for (kind, _) in KINDS.into_iter().filter(|(_, of)| *of == medium) {
                let name = format!("{}:{kind}", story.name);
                if let Some(id) = &replay {
                    let Some(rest) = id.strip_prefix(&format!("{name}:")) else { continue };
                    all.wanted = Some(rest.to_string());
                }
                all.explore(&name, kind, &history);
            }
        }
        if all.failures.len() >= 10 {
            break;
        }
    }
    (all.stats, all.failures)
}

struct Exploration {
    depth: Depth,
    stats: Stats,
    failures: Vec<Failure>,
    /// The one state: `events.cut:choice`.
    wanted: Option<String>,
}

impl Exploration {
    fn failed(&mut self, id: String, text: String) {
        let failure = Failure { id, text };
        eprintln!("{failure}");
        self.failures.push(failure);
    }

    fn explore(&mut self, name: &str, kind: &str, history: &History) {
        let mut rng = Rng::new(seed_of(name));
        let points = self.points(history, kind, &mut rng);
        let (mut still, mut applied) = (history.start.clone(), 0);
        let mut earlier: Vec<Files> = vec![still.files.clone()];
        for (events, cut) in points {
            history.moments[applied..events].iter().for_each(|moment| still.apply(moment));
            applied = events;
            let mut left = still.clone();
            if let Some(next) = history.moments.get(events) {
                left.store(next, cut);
            }
            earlier.push(left.files.clone());
            for choice in self.choices(kind, &left.files) {
                let id = format!("{events}.{cut}:{}", name_of_choice(choice));
                if self.wanted.as_ref().is_some_and(|wanted| *wanted != id) || self.failures.len() >= 10 {
                    continue;
                }
                let files = match kind {
                    "old" => earlier[rng.below(earlier.len() as u64) as usize].cut(choice),
                    "death" => left.files.clone(),
                    _ => left.files.cut(choice),
                };
                let deep = rng.below(self.depth.aftermath) == 0 || self.wanted.is_some();
                let judged = caught(|| self.judge(history, kind, events, &left, files, deep));
                if let Err(text) = judged {
                    self.failed(format!("{name}:{id}"), text);
                }
            }
        }
    }

    /// Numbers of events, and bytes of the next one.
    fn points(&self, history: &History, kind: &str, rng: &mut Rng) -> Vec<(usize, usize)> {
        if let Some((at, _)) = self.wanted.as_ref().and_then(|wanted| wanted.split_once(':')) {
            let (events, cut) = at.split_once('.').unwrap_or((at, "0"));
            return vec![(events.parse().expect("a number of events"), cut.parse().expect("a number of bytes"))];
        }
        let end = history.moments.len();
        let (stores, disks): (Vec<usize>, Vec<usize>) =
            (0..end).partition(|n| !history.moments[*n].event.reaches_a_disk());
        let mut points = vec![(end, 0)];
        for _ in 0..self.depth.points.min(8 * end) {
            // Half of them right at what disks are told: before, and after.
            if !disks.is_empty() && (kind == "cut" || rng.below(2) == 0) {
                points.push((disks[rng.below(disks.len() as u64) as usize] + rng.below(2) as usize, 0));
            } else if !stores.is_empty() {
                let n = stores[rng.below(stores.len() as u64) as usize];
                let cut = match &history.moments[n].event {
                    Event::Store { bytes, .. } => rng.below(bytes.len() as u64 / 8 + 1) * 8,
                    _ => 0,
                };
                points.push((n, cut as usize));
            }
        }
        points.sort_unstable();
        points.dedup();
        points
    }

    fn choices(&self, kind: &str, files: &Files) -> Vec<Choice> {
        match kind {
            "death" => vec![Choice::All],
            _ => choices(files, self.depth.seeds),
        }
    }

    fn judge(
        &mut self,
        history: &History,
        kind: &str,
        events: usize,
        left: &Still,
        files: Files,
        deep: bool,
    ) -> Result<(), String> {
        let world = match kind {
            "cut" => World::load(files)?,
            _ => World::resume(history.kind, &left.region, &left.marks, files)?,
        };
        check(&world.fs, false)?;
        world.check_table()?;
        if kind == "old" {
            self.stats.olds += 1;
            self.stats.unreadable += nothing_wrong(history, events, &world)?;
            return Ok(());
        }
        let found = look(&world.fs)?.tree;
        let allowed = if kind == "cut" { history.after_loss(events) } else { history.after_death(events) };
        let n = history.which(allowed, &found)?;
        match kind {
            "cut" => {
                self.stats.cuts += 1;
                self.stats.older += u64::from(n < history.reached(events));
            }
            "death" => self.stats.deaths += 1,
            _ => self.stats.crashes += 1,
        }
        if deep {
            self.stats.lives += 1;
            live_on(world, found, history.kind).map_err(|e| format!("lived on with instant {n}: {e}"))?;
        }
        Ok(())
    }
}

/// What cannot be read is told; what can is right. Pages that could not.
fn nothing_wrong(history: &History, events: usize, world: &World) -> Result<u64, String> {
    let mut unreadable = 0;
    let allowed = history.after_death(events);
    let of = |n: usize| &history.boundaries[n].tree;
    let runner = Runner::new(&world.fs);
    for (path, seen) in of(*allowed.start()).iter().filter(|(_, seen)| seen.kind == Kind::Regular) {
        let told = String::from_utf8_lossy(path).into_owned();
        // Not there: it was the operation under way.
        let Ok(ino) = runner.find(&told) else { continue };
        let size = world.fs.getattr(ino).map_err(|e| e.to_string())?.size;
        for page in 0..size.div_ceil(4096) {
            let mut bytes = vec![0; 4096];
            let Ok(n) = world.fs.read(ino, page * 4096, &mut bytes) else {
                unreadable += 1;
                continue;
            };
            let right = allowed.clone().any(|boundary| {
                let content = of(boundary).get(path).map_or(&seen.content, |seen| &seen.content);
                let from = (page as usize * 4096).min(content.len());
                content[from..(from + 4096).min(content.len())] == bytes[..n]
            });
            if !right {
                return Err(format!("page {page} of {told} is read, and has other content"));
            }
        }
    }
    Ok(unreadable)
}

/// Works, moves all content about, and loses the memory, or the process: what was found is there.
fn live_on(world: World, found: Tree, kind: MediumKind) -> Result<(), String> {
    let same = |world: &World, wanted: &Tree, when: &str| -> Result<(), String> {
        check(&world.fs, false)?;
        world.check_table()?;
        difference(&look(&world.fs)?.tree, wanted).map_or(Ok(()), |d| Err(format!("{when}: {d}")))
    };
    let mut runner = Runner::new(&world.fs);
    let mut ops: Vec<Op> = found
        .iter()
        .filter(|(_, seen)| seen.kind == Kind::Regular)
        .map(|(path, _)| Op::Append(String::from_utf8_lossy(path).into_owned(), 300, 5))
        .collect();
    ops.extend([Op::Create("/zz-new".into(), 0o644), Op::Write("/zz-new".into(), 0, 90_000, 6)]);
    for op in &ops {
        runner.run(op)?.map_err(|e| format!("{op:?}: {e}"))?;
    }
    let now = look(&world.fs)?.tree;
    for (path, seen) in &found {
        let there = now.get(path).map(|now| now.content.get(..seen.content.len()) == Some(&seen.content[..]));
        if there != Some(true) {
            return Err(format!("{} is not as it was", String::from_utf8_lossy(path)));
        }
    }
    let union = world.union();
    let text = |e: conquest_fs::Error| e.to_string();
    union.write_all(&world.fs).map_err(text)?;
    same(&world, &now, "all written back")?;
    union.evict(&*world.fs, u64::MAX, None).map_err(text)?;
    same(&world, &now, "all evicted")?;
    while union.demote(&world.fs, 1000).map_err(text)? > 0 {}
    same(&world, &now, "small files demoted")?;
    while union.follow(&world.fs, true, &|| false).map_err(text)? {}
    same(&world, &now, "files have followed")?;
    for _ in 0..4 {
        union.free_segments(&world.fs, 100, true, &mut || true).map_err(|e| e.to_string())?;
    }
    same(&world, &now, "cleaned")?;
    let session = world.fs.session();
    match backing::of(session) {
        Some(copy) => copy.wait(session).map_err(|e| e.to_string())?,
        None => _ = session.move_on().map_err(|e| e.to_string())?,
    }
    let (bytes, marks, files) = (world.bytes(), world.marks()?, world.tape.files());
    if kind == MediumKind::Logged {
        let again = World::load(files.cut(Choice::None))?;
        same(&again, &now, "memory lost")?;
    }
    same(&World::resume(kind, &bytes, &marks, files)?, &now, "another process")
}
