//! The explorer for large files: memory, its backing, and the disk with their content, in one recording.
//!
//! A story runs once and is recorded. Then crashes are explored:
//!
//! | kind | medium | lost | expected |
//! | --- | --- | --- | --- |
//! | `crash` | battery | after any store, and within it: unflushed writes of the disk, in any part and order | the operations that have returned, and the one under way wholly or not at all |
//! | `death` | logged | nothing: all processes die after any event | the same |
//! | `cut` | logged | the memory, and unflushed writes of the disks, after any event of a disk | an instant not before the last that was acknowledged |
//! | `old` | battery | the disk is of an earlier time than the memory | nothing wrong: each page is right, or cannot be read |
//!
//! The next process works, writes back, cleans and evicts everything: the files that it found are still there, also
//! after the loss of its memory.
//!
//! Failures print an id, `story:kind:point:choice`.

pub mod stories;

use conquest_fs::Kind;
use pram::MediumKind;
use rng::Rng;

use crate::check::check;
use crate::choice::Choice;
use crate::disk::Files;
use crate::history::History;
use crate::op::{Op, Runner};
use crate::story::{tell, Story};
use crate::tape::{Point, Still};
use crate::tree::{difference, look, Tree};
use crate::verdict::{caught, each, full, seed_of, Filter, Stats, Verdicts};
use crate::world::{Setup, World};

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Most crashes of each kind and story.
    pub points: usize,
    /// Seeds of what a disk keeps, beside none and all.
    pub seeds: u64,
    /// The next process works with one state in so many.
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

const KINDS: [(MediumKind, [&str; 2]); 2] =
    [(MediumKind::Battery, ["crash", "old"]), (MediumKind::Logged, ["death", "cut"])];

/// Explores stories, or the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of the failures.
pub fn explore_all(stories: &[Story], depth: Depth) -> Stats {
    each(stories, |story| &story.name, |story, filter, verdicts| explore(story, depth, filter, verdicts))
}

/// Explores a story on each medium.
pub fn explore(story: &Story, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    for (medium, kinds) in KINDS {
        let run = caught(|| tell(&Story { setup: Setup::large(medium), ..story.clone() }));
        let run = verdicts.made(run, || format!("{}:run::", story.name));
        let Some(history) = run else { continue };
        verdicts.stats.stories += 1;
        verdicts.stats.events += history.moments.len() as u64;
        for kind in kinds.into_iter().filter(|kind| filter.wants(kind)) {
            explore_kind(&format!("{}:{kind}", story.name), kind, &history, depth, filter, verdicts);
        }
    }
}

fn explore_kind(name: &str, kind: &str, history: &History, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    let mut rng = Rng::new(seed_of(name));
    let points = match filter.point.and_then(Point::parse) {
        // For this kind, the disk depends on the points before.
        Some(point) if kind != "old" => vec![point],
        _ => points(history, kind, depth, &mut rng),
    };
    let mut earlier: Vec<Files> = vec![history.start.files.clone()];
    for (point, left) in history.stills(points) {
        earlier.push(left.files.clone());
        let choices = if kind == "death" { vec![Choice::All] } else { left.files.choices(depth.seeds) };
        for choice in choices {
            let files = match kind {
                "old" => earlier[rng.below(earlier.len() as u64) as usize].cut(choice),
                "death" => left.files.clone(),
                _ => left.files.cut(choice),
            };
            let deep = rng.below(depth.aftermath) == 0 || filter.is_replay();
            let names = (point.name(), choice.name());
            let wanted = (filter.point.unwrap_or(&names.0), filter.choice.unwrap_or(&names.1));
            if wanted != (&names.0, &names.1) || verdicts.enough() {
                continue;
            }
            let left = Still { files, ..left.clone() };
            let judged = caught(|| judge(history, kind, point.events, &left, deep, &mut verdicts.stats));
            verdicts.take(judged, || format!("{name}:{}:{}", names.0, names.1));
        }
    }
}

/// A few points: half of them right before or after requests to disks.
fn points(history: &History, kind: &str, depth: Depth, rng: &mut Rng) -> Vec<Point> {
    let end = history.moments.len();
    let (stores, disks): (Vec<usize>, Vec<usize>) = (0..end).partition(|n| !history.moments[*n].event.reaches_a_disk());
    let mut points = vec![Point::after(end)];
    for _ in 0..depth.points.min(8 * end) {
        if !disks.is_empty() && (kind == "cut" || rng.below(2) == 0) {
            points.push(Point::after(disks[rng.below(disks.len() as u64) as usize] + rng.below(2) as usize));
        } else if !stores.is_empty() {
            let n = stores[rng.below(stores.len() as u64) as usize];
            let cut = match history.moments[n].event.stored() {
                0 => 0,
                len => rng.below(len as u64 / 8 + 1) * 8,
            };
            points.push(Point::within(&history.moments, n, cut as usize));
        }
    }
    points.sort_unstable();
    points.dedup();
    points
}

fn judge(
    history: &History,
    kind: &str,
    events: usize,
    left: &Still,
    deep: bool,
    stats: &mut Stats,
) -> Result<(), String> {
    let world = match kind {
        "cut" => World::load(history.setup, left.files.clone())?,
        _ => World::resume(history.setup, left)?,
    };
    check(&world.fs, false)?;
    world.check_table()?;
    if kind == "old" {
        stats.olds += 1;
        stats.unreadable += nothing_wrong(history, events, &world)?;
        return Ok(());
    }
    let found = look(&world.fs)?.tree;
    let allowed = if kind == "cut" { history.after_loss(events) } else { history.after_death(events) };
    let n = history.which_tree(allowed, &found)?;
    match kind {
        "cut" => {
            stats.cuts += 1;
            stats.older += u64::from(n < history.reached(events));
        }
        "death" => stats.deaths += 1,
        _ => stats.states += 1,
    }
    if deep {
        stats.lives += 1;
        live_on(world, found).map_err(|e| format!("lived on with instant {n}: {e}"))?;
    }
    Ok(())
}

/// Checks that each page is right, or an error; returns how many pages could not be read.
fn nothing_wrong(history: &History, events: usize, world: &World) -> Result<u64, String> {
    let mut unreadable = 0;
    let allowed = history.after_death(events);
    let of = |n: usize| &history.boundaries[n].tree;
    let runner = Runner::new(&world.fs);
    for (path, seen) in of(*allowed.start()).iter().filter(|(_, seen)| seen.kind == Kind::Regular) {
        let text = String::from_utf8_lossy(path).into_owned();
        // Not there: it was the operation under way.
        let Ok(ino) = runner.find(&text) else { continue };
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
                return Err(format!("page {page} of {text} is read, and has other content"));
            }
        }
    }
    Ok(unreadable)
}

/// Works, moves all content about, and loses the memory, or the process: the files that were found are there.
fn live_on(world: World, found: Tree) -> Result<(), String> {
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
    world.wait().map_err(|e| e.to_string())?;
    let left = world.still()?;
    if world.backing().is_some() {
        let again = World::load(world.setup, left.files.cut(Choice::None))?;
        same(&again, &now, "memory lost")?;
    }
    same(&World::resume(world.setup, &left)?, &now, "another process")
}
