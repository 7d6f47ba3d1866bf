//! A pool on memory that survives on its own, with a mirrored backing on a disk: at any point either is lost, or
//! neither. The code that opens pools opens the rest, with everything that an operation had returned for. Then a new
//! mirror, or a new memory, is made that is as good.
//!
//! An id is `mirrored:mirror:lost.marks.point:choice`: which of the two is lost, with or without the memory of the
//! marks, and where.

use std::path::{Path, PathBuf};

use conquest::config::Config;
use conquest::uuid;
use conquest::{MediumKind, OpenOptions, Pool};
use conquest_fs::node::Rename;
use rng::Rng;

use crate::check::{check, sweep};
use crate::choice::Choice;
use crate::disk::{Files, NAMES, PARTS};
use crate::fault::Faults;
use crate::history::History;
use crate::op::*;
use crate::story::Step::{self, Checkpoint, Fill, Swell};
use crate::story::{steps, Teller, KIB};
use crate::tape::{Event, Point, Still};
use crate::tree::{look, Snapshot};
use crate::verdict::{caught, each, full, seed_of, Filter, Stats, Verdicts};
use crate::world::{reload, Setup, World, UUID};

const SIZE: u64 = 2 << 20;
/// Where the mirror lies in the pool directory.
const MIRROR: &str = "mirror";

/// The part that is lost.
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

/// A step that is left out, to test the explorers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Nothing,
    /// Operations return without waiting for the mirror.
    NoWait,
    /// A process dies, and its memory is taken as it is: its transaction is not undone.
    NotUndone,
}

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Most losses of the memory, and most of the others.
    pub memory: usize,
    pub others: usize,
    /// Seeds per cut, beside none and all.
    pub seeds: u64,
}

impl Depth {
    pub fn from_env() -> Depth {
        match full() {
            true => Depth { memory: usize::MAX, others: 4000, seeds: 4 },
            false => Depth { memory: 24, others: 48, seeds: 1 },
        }
    }
}

/// Operations of each kind, with the other log taking over in the middle, and checkpoints.
fn steps() -> Vec<Step> {
    steps! {
        create("/new"), append("/new", 3000, 1), mkdir("/dir/sub"), rename("/new", "/dir/moved", Rename::Replace),
        Swell(300 * KIB), write("/large", 1000, 70_000, 2), link("/large", "/dir/hard"), truncate("/large", 30_000),
        unlink("/old"), Checkpoint, Op::SetXattr("/large".into(), "user.a".into(), vec![7; 300]), unlink("/dir/moved"),
        Checkpoint,
    }
}

/// How long the clock of files' times stands still.
fn tick() -> std::time::Duration {
    let resolution = rustix::time::clock_getres(rustix::time::ClockId::RealtimeCoarse);
    std::time::Duration::new(resolution.tv_sec as u64, resolution.tv_nsec as u32)
}

/// The history of the steps; each that has returned is promised.
pub fn tell(sabotage: Sabotage) -> Result<History, String> {
    let world = World::format(Setup::copied(pram::MediumKind::Battery, SIZE), &Faults::with(None))?;
    let fs = world.fs.clone();
    let mut teller = Teller::new(&world, &fs);
    let there = steps! {
        create("/old"), append("/old", 9000, 3), create("/large"), append("/large", 50_000, 4), mkdir("/dir"), Fill(40),
    };
    there.iter().try_for_each(|step| teller.step(step))?;
    if sabotage == Sabotage::NoWait {
        fs.set_policy(conquest_fs::node::Policy { durability: conquest_fs::Durability::Fsync, ..fs.policy() });
    }
    teller.recording(|teller| {
        steps().iter().try_for_each(|step| {
            // In the same tick as the step before, a step would set a time to the same value, and a point within it
            // would not count as one.
            std::thread::sleep(tick());
            teller.step(step)?;
            teller.promise();
            Ok(())
        })
    })
}

/// A pool directory, and everything that belongs to it elsewhere; removed when it is dropped.
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

    fn memory(&self) -> PathBuf {
        self.path().join("nvram")
    }

    /// Writes a memory there, with or without its marks.
    fn put_memory(&self, bytes: &[u8], marks: Option<&[u64]>) -> Result<(), String> {
        std::fs::write(self.memory(), bytes).map_err(text)?;
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
        // Nothing goes to the backing except for operations that wait for it.
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

/// The point of a loss; is the memory of the marks there?
type Loss = (Point, bool);

fn name(lost: Lost, (point, marks): Loss) -> String {
    format!("{lost:?}.{marks}.{}", point.name())
}

fn parse(text: &str) -> Option<(Lost, Loss)> {
    let parts: Vec<&str> = text.splitn(3, '.').collect();
    let [lost, marks, point] = parts[..] else { return None };
    let lost = Lost::ALL.into_iter().find(|l| format!("{l:?}") == lost)?;
    Some((lost, (Point::parse(point)?, marks.parse().ok()?)))
}

/// Explores the losses in a history.
pub fn explore(history: &History, sabotage: Sabotage, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    verdicts.stats.stories += 1;
    verdicts.stats.events += history.moments.len() as u64;
    for lost in Lost::ALL {
        let losses = match filter.point.and_then(parse) {
            Some((wanted, loss)) => vec![loss].into_iter().filter(|_| wanted == lost).collect(),
            None => losses(history, lost, depth),
        };
        let points = losses.iter().map(|(point, _)| *point).collect();
        for (loss, (_, left)) in losses.iter().zip(history.stills(points)) {
            // The death of a process leaves the disks with the writes that the host's memory holds.
            let ways = if lost == Lost::Region { left.files.choices(depth.seeds) } else { vec![Choice::All] };
            for choice in ways {
                if verdicts.enough() || filter.choice.is_some_and(|wanted| wanted != choice.name()) {
                    continue;
                }
                *(match lost {
                    Lost::Region => &mut verdicts.stats.cuts,
                    Lost::Mirror => &mut verdicts.stats.mixed,
                    Lost::Neither => &mut verdicts.stats.deaths,
                }) += 1;
                let judged = caught(|| judge(history, &left, lost, *loss, choice, sabotage));
                verdicts.take(judged, || format!("mirrored:mirror:{}:{}", name(lost, *loss), choice.name()));
            }
        }
    }
}

/// A few losses, or all: the disks change at some events, the memory at the others.
fn losses(history: &History, lost: Lost, depth: Depth) -> Vec<Loss> {
    let mut rng = Rng::new(seed_of(&format!("{lost:?}")));
    let mut all = Vec::new();
    for events in 0..=history.moments.len() {
        let before = events.checked_sub(1).map(|n| &history.moments[n].event);
        if lost == Lost::Region {
            let disks = matches!(before, None | Some(Event::Write { .. } | Event::Flush { .. } | Event::Rest));
            all.extend(disks.then_some((Point::after(events), false)));
            continue;
        }
        let len = history.moments.get(events).map_or(0, |next| next.event.stored());
        let cut = rng.below(len as u64 / 8 + 1) as usize * 8;
        all.push((Point::after(events), rng.below(2) == 0));
        all.push((Point::within(&history.moments, events, cut), rng.below(2) == 0));
    }
    rng.shuffle(&mut all);
    all.truncate(if lost == Lost::Region { depth.memory } else { depth.others });
    all.sort_unstable();
    all.dedup();
    all
}

/// Opens the rest, checks it, works with it, and loses the other part.
fn judge(
    history: &History,
    left: &Still,
    lost: Lost,
    (point, marks): Loss,
    choice: Choice,
    sabotage: Sabotage,
) -> Result<(), String> {
    let home = Home::new()?;
    let mut memory = left.memory.to_vec();
    if sabotage == Sabotage::NotUndone {
        // A transaction that counts as committed is not undone.
        let geo = pram::memory::Geometry::of(SIZE).map_err(text)?;
        (0..geo.slots as u32).for_each(|slot| memory[geo.slot(slot) as usize + 2] ^= 0x40);
    }
    let mut allowed = history.after_death(point.events);
    let put_memory = || home.put_memory(&memory, marks.then_some(&left.marks[..]));
    match lost {
        Lost::Region => {
            let kept = left.files.cut(choice);
            home.put_mirror(&kept)?;
            // The mirror may have an operation that is about to return.
            let held = *history.after_loss(point.events).start()..=*allowed.end();
            let n = history.which_bytes(held, &reload(&kept, SIZE)?)?;
            allowed = n..=n;
        }
        Lost::Mirror => put_memory()?,
        Lost::Neither => put_memory().and_then(|()| home.put_mirror(&left.files))?,
    }
    let pool = home.open()?;
    check(&pool, false)?;
    history.which_seen(allowed, &look(&pool)?).map_err(|e| format!("opened, it is {e}"))?;
    lose_the_rest(&home, pool)
}

/// Every operation that returns from here on is in both.
fn lose_the_rest(home: &Home, pool: Pool) -> Result<(), String> {
    let work = |pool: &Pool, n: u64| -> Result<Snapshot, String> {
        let path = format!("/zz-{n}");
        for op in [create(&path), append(&path, 3000, n)] {
            Runner::new(pool).run(&op)?.map_err(|e| format!("{op:?}: {e:?}"))?;
        }
        look(pool)
    };
    let same = |pool: &Pool, wanted: &Snapshot, when: &str| -> Result<(), String> {
        check(pool, false)?;
        look(pool)?.difference(wanted).map_or(Ok(()), |difference| Err(format!("{when}: {difference}")))
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
    std::fs::remove_file(home.memory()).map_err(text)?;
    same(&home.open()?, &worked, "then the region")
}

/// Explores, or takes the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of the failures.
pub fn explore_all(depth: Depth) -> Stats {
    let explore = |name: &&str, filter: &Filter, verdicts: &mut Verdicts| {
        let text = verdicts.made(caught(|| tell(Sabotage::Nothing)), || format!("{name}:run::"));
        text.iter().for_each(|history| explore(history, Sabotage::Nothing, depth, filter, verdicts));
    };
    each(&["mirrored"], |name| name, explore)
}
