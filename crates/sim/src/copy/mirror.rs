//! A pool on memory that survives on its own, with a mirror on a disk: either is lost, or neither, at any point; what is
//! left opens, by the code that opens pools, with everything that an operation had returned for; and a new mirror, or
//! a new region, is made that is worth as much.
//!
//! An id is `name:mirror:lost.events.cut.marks:choice`: what is lost, after so many events and so many bytes of the next
//! store, with or without the memory of the marks.

use std::path::{Path, PathBuf};

use conquest::config::Config;
use conquest::uuid;
use conquest::{MediumKind, OpenOptions, Pool};
use conquest_fs::node::Atime;
use rng::Rng;

use super::cut::choices;
use super::disk::{Files, NAMES, PARTS};
use super::fault::Faults;
use super::history::{History, Still};
use super::story::{Step, Teller};
use super::tape::{words_of, Event};
use super::world::{look, reload, World, UUID};
use super::{caught, seed_of, Filter, Verdicts};
use crate::crash::Choice;
use crate::explore::{check, name_of_choice, sweep};
use crate::op::{Op, Runner};
use crate::tree::Snapshot;

const SIZE: u64 = 2 << 20;
const KIB: u64 = 1 << 10;
/// Where the mirror lies in the pool directory.
const MIRROR: &str = "mirror";

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    Region,
    Mirror,
    /// All processes died.
    Neither,
}

impl Lost {
    const ALL: [Lost; 3] = [Lost::Region, Lost::Mirror, Lost::Neither];
}

/// A step that is left out, for tests of the tester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Nothing,
    /// Operations return without waiting for the mirror.
    NoWait,
    /// A process dies, and its memory is taken as it is: what it had begun is not undone.
    NotUndone,
}

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Most losses of each.
    pub region: usize,
    pub others: usize,
    /// Seeds per cut, beside none and all.
    pub seeds: u64,
}

impl Depth {
    pub fn from_env() -> Depth {
        match super::full() {
            true => Depth { region: usize::MAX, others: 4000, seeds: 4 },
            false => Depth { region: 24, others: 48, seeds: 1 },
        }
    }
}

/// Operations of each kind, with the other log taking over in the middle, and checkpoints.
fn steps() -> Vec<Step> {
    let path = |name: &str| format!("/{name}");
    let ops = [
        Op::Create(path("new"), 0o644),
        Op::Append(path("new"), 3000, 1),
        Op::Mkdir(path("dir/sub"), 0o755),
        Op::Rename(path("new"), path("dir/moved"), conquest_fs::node::Rename::Replace),
        Op::Write(path("large"), 1000, 70_000, 2),
        Op::Link(path("large"), path("dir/hard")),
        Op::Truncate(path("large"), 30_000),
        Op::Unlink(path("old")),
        Op::SetXattr(path("large"), "user.a".into(), vec![7; 300]),
        Op::Unlink(path("dir/moved")),
    ];
    let mut steps: Vec<Step> = ops.into_iter().map(Step::Op).collect();
    steps.insert(8, Step::Checkpoint);
    steps.insert(4, Step::Swell(300 * KIB));
    steps.push(Step::Checkpoint);
    steps
}

/// How long the clock of files' times stands still.
fn tick() -> std::time::Duration {
    let resolution = rustix::time::clock_getres(rustix::time::ClockId::RealtimeCoarse);
    std::time::Duration::new(resolution.tv_sec as u64, resolution.tv_nsec as u32)
}

/// What happened, and what was promised when: everything that has returned.
pub fn tell(sabotage: Sabotage) -> Result<History, String> {
    let world = World::format_on(pram::MediumKind::Battery, SIZE, Atime::Never, &Faults::with(None))?;
    let fs = world.fs.clone();
    let mut teller = Teller::new(&world, &fs);
    let path = |name: &str| format!("/{name}");
    let there = [
        Op::Create(path("old"), 0o644),
        Op::Append(path("old"), 9000, 3),
        Op::Create(path("large"), 0o644),
        Op::Append(path("large"), 50_000, 4),
        Op::Mkdir(path("dir"), 0o755),
    ];
    for op in there {
        teller.step(&Step::Op(op))?;
    }
    teller.step(&Step::Fill(40))?;
    if sabotage == Sabotage::NoWait {
        fs.set_policy(conquest_fs::node::Policy { durability: conquest_fs::Durability::Fsync, ..fs.policy() });
    }
    let marks = world.marks()?;
    let start = Still { region: world.bytes(), marks: words_of(&marks), files: world.tape.files() };
    teller.forget_the_past();
    world.tape.start(marks);
    for step in steps() {
        // In the same tick as the one before, it would change a time to what it was, and a point in the middle of that
        // would be none.
        std::thread::sleep(tick());
        teller.step(&step)?;
        teller.promise();
    }
    let moments = world.tape.stop();
    let (boundaries, acknowledged) = teller.end()?;
    Ok(History { start, moments, boundaries, acknowledged })
}

/// A pool directory, and all that belongs to it elsewhere; gone when it is dropped.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Result<Home, String> {
        let dir = tempfile::tempdir_in("/dev/shm").map_err(text)?;
        let mut config = Config::new(MediumKind::Battery, uuid::text(&UUID));
        (config.backing, config.mirror) = (Some(MIRROR.into()), true);
        config.write(dir.path()).map_err(text)?;
        Ok(Home { dir })
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn mirror(&self) -> PathBuf {
        self.path().join(MIRROR)
    }

    fn region(&self) -> PathBuf {
        self.path().join("nvram")
    }

    /// Puts a region there, with or without its marks.
    fn put_region(&self, bytes: &[u8], marks: Option<&[u64]>) -> Result<(), String> {
        std::fs::write(self.region(), bytes).map_err(text)?;
        for (path, words) in self.marks()?.into_iter().zip(marks) {
            std::fs::write(path, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
                .map_err(text)?;
        }
        Ok(())
    }

    fn put_mirror(&self, files: &Files) -> Result<(), String> {
        std::fs::create_dir(self.mirror()).map_err(text)?;
        (0..PARTS).try_for_each(|n| files.0[n].save(&self.mirror().join(NAMES[n]))).map_err(text)
    }

    fn marks(&self) -> Result<Vec<PathBuf>, String> {
        Pool::memory(self.path()).map_err(text)
    }

    fn open(&self) -> Result<Pool, String> {
        // Nothing goes to the copy but what operations wait for.
        let commit_interval = conquest::CommitInterval::try_from(86_400.0).ok();
        Pool::open(self.path(), &OpenOptions { noatime: true, commit_interval, ..OpenOptions::default() })
            .map_err(|e| format!("it does not open: {e}"))
    }

    /// The mirror alone, as it is now.
    fn mirror_alone(&self) -> Result<Home, String> {
        let other = Home::new()?;
        std::fs::create_dir(other.mirror()).map_err(text)?;
        for name in &NAMES[..PARTS] {
            std::fs::copy(self.mirror().join(name), other.mirror().join(name)).map_err(text)?;
        }
        Ok(other)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.marks().into_iter().flatten().for_each(|path| _ = std::fs::remove_file(path));
    }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Where something is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    events: usize,
    cut: usize,
    /// Is the memory of the marks there?
    marks: bool,
}

fn name(lost: Lost, point: Point) -> String {
    format!("{lost:?}.{}.{}.{}", point.events, point.cut, point.marks)
}

fn parse(point: &str) -> Option<(Lost, Point)> {
    let parts: Vec<&str> = point.split('.').collect();
    let [lost, events, cut, marks] = parts[..] else { return None };
    let lost = Lost::ALL.into_iter().find(|l| format!("{l:?}") == lost)?;
    Some((lost, Point { events: events.parse().ok()?, cut: cut.parse().ok()?, marks: marks.parse().ok()? }))
}

/// Explores the losses in a history.
pub fn explore(history: &History, sabotage: Sabotage, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    verdicts.stats.stories += 1;
    verdicts.stats.events += history.moments.len() as u64;
    for lost in Lost::ALL {
        let mut points = points(history, lost, depth);
        if let Some(wanted) = filter.point.and_then(parse) {
            points = if wanted.0 == lost { vec![wanted.1] } else { Vec::new() };
        }
        points.sort_unstable();
        let (mut still, mut done) = (history.start.clone(), 0);
        for point in points {
            history.moments[done..point.events].iter().for_each(|moment| still.apply(moment));
            done = point.events;
            let mut left = still.clone();
            if let Some(next) = history.moments.get(point.events).filter(|_| point.cut > 0) {
                next.marks.iter().for_each(|(n, word)| left.marks[*n] = *word);
                left.store(next, point.cut);
            }
            // A process's death leaves what the host's memory holds of the disks.
            let ways = if lost == Lost::Region { choices(&left.files, depth.seeds) } else { vec![Choice::All] };
            for choice in ways {
                if verdicts.enough() || filter.choice.is_some_and(|wanted| wanted != name_of_choice(choice)) {
                    continue;
                }
                *(match lost {
                    Lost::Region => &mut verdicts.stats.cuts,
                    Lost::Mirror => &mut verdicts.stats.mixed,
                    Lost::Neither => &mut verdicts.stats.deaths,
                }) += 1;
                let judged = caught(|| judge(history, &left, lost, point, choice, sabotage));
                verdicts.take(judged, || format!("mirrored:mirror:{}:{}", name(lost, point), name_of_choice(choice)));
            }
        }
    }
}

/// A few points, or all: the disks change at some events, the region at the others.
fn points(history: &History, lost: Lost, depth: Depth) -> Vec<Point> {
    let mut rng = Rng::new(seed_of(&format!("{lost:?}")));
    let mut all = Vec::new();
    for events in 0..=history.moments.len() {
        let before = events.checked_sub(1).map(|n| &history.moments[n].event);
        let disks = matches!(before, None | Some(Event::Write { .. } | Event::Flush { .. } | Event::Rest));
        let len = match history.moments.get(events).map(|next| &next.event) {
            Some(Event::Store { bytes, .. }) => bytes.len(),
            _ => 0,
        };
        if lost == Lost::Region {
            all.extend(disks.then_some(Point { events, cut: 0, marks: false }));
            continue;
        }
        let cut = rng.below(len as u64 / 8 + 1) as usize * 8;
        all.push(Point { events, cut: 0, marks: rng.below(2) == 0 });
        all.push(Point { events, cut, marks: rng.below(2) == 0 });
    }
    rng.shuffle(&mut all);
    all.truncate(if lost == Lost::Region { depth.region } else { depth.others });
    all.dedup();
    all
}

/// Opens what is left, looks, works, and loses the rest.
fn judge(
    history: &History,
    left: &Still,
    lost: Lost,
    point: Point,
    choice: Choice,
    sabotage: Sabotage,
) -> Result<(), String> {
    let home = Home::new()?;
    let mut region = left.region.clone();
    if sabotage == Sabotage::NotUndone {
        // A transaction that counts as committed is not undone.
        let geo = pram::memory::Geometry::of(SIZE).map_err(text)?;
        (0..geo.slots as u32).for_each(|slot| region[geo.slot(slot) as usize + 2] ^= 0x40);
    }
    let reached = history.reached(point.events);
    // By instants: which may be seen.
    let allowed = match lost {
        Lost::Region => {
            let files = left.files.cut(choice);
            home.put_mirror(&files)?;
            // The mirror may hold what is about to return.
            let next = (reached + 1).min(history.boundaries.len() - 1);
            let n = history.which_of(*history.allowed(point.events).start()..=next, &reload(&files, SIZE)?)?;
            n..=n
        }
        Lost::Mirror => {
            home.put_region(&region, Some(&left.marks).filter(|_| point.marks).map(Vec::as_slice))?;
            reached..=reached + 1
        }
        Lost::Neither => {
            home.put_region(&region, Some(&left.marks).filter(|_| point.marks).map(Vec::as_slice))?;
            home.put_mirror(&left.files)?;
            reached..=reached + 1
        }
    };
    let pool = home.open()?;
    check(&pool, false)?;
    let found = look(&pool)?;
    let mut instants = history.boundaries.iter().enumerate().filter(|(n, _)| allowed.contains(n));
    if !instants.any(|(_, b)| b.seen().is_ok_and(|seen| *seen == found)) {
        let wanted = history.boundaries[*allowed.start()].seen()?;
        return Err(format!(
            "opened, it is none of the instants {allowed:?}: {}",
            found.difference(wanted).unwrap_or_default()
        ));
    }
    lose_the_rest(&home, pool)
}

/// Whatever returned from here on is in either.
fn lose_the_rest(home: &Home, pool: Pool) -> Result<(), String> {
    let work = |pool: &Pool, n: u64| -> Result<Snapshot, String> {
        let path = format!("/zz-{n}");
        for op in [Op::Create(path.clone(), 0o644), Op::Append(path, 3000, n)] {
            Runner::new(pool).run(&op)?.map_err(|e| format!("{op:?}: {e:?}"))?;
        }
        look(pool)
    };
    let same = |pool: &Pool, wanted: &Snapshot, when: &str| -> Result<(), String> {
        check(pool, false)?;
        look(pool)?.difference(wanted).map_or(Ok(()), |told| Err(format!("{when}: {told}")))
    };
    let worked = work(&pool, 1)?;
    // At this very moment, with the pool at work.
    same(&home.mirror_alone()?.open()?, &worked, "the region is lost at work")?;
    sweep(&pool)?;
    drop(pool);
    std::fs::remove_dir_all(home.mirror()).map_err(text)?;
    let pool = home.open()?;
    same(&pool, &worked, "the mirror is lost later")?;
    let worked = work(&pool, 2)?;
    drop(pool);
    std::fs::remove_file(home.region()).map_err(text)?;
    same(&home.open()?, &worked, "then the region")
}

/// Explores, or looks at the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of what failed.
pub fn explore_all(depth: Depth) -> super::Stats {
    let mut verdicts = Verdicts::default();
    let replay = std::env::var("CONQUEST_SIM_REPLAY").ok();
    let wanted = replay.as_deref().and_then(super::parse).map(|(_, filter)| filter);
    let filter = wanted.filter(|filter| filter.kind == Some("mirror"));
    if replay.is_none() || filter.is_some() {
        let filter = filter.unwrap_or_default();
        match caught(|| tell(Sabotage::Nothing)) {
            Ok(history) => explore(&history, Sabotage::Nothing, depth, &filter, &mut verdicts),
            Err(text) => verdicts.take(Err(text), || "mirrored:mirror::".into()),
        }
    }
    eprintln!("{:?}", verdicts.stats);
    verdicts.assert_none();
    verdicts.stats
}
