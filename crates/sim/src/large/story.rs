//! Stories of large files: operations, and what goes on beside them.

use std::sync::{Arc, Mutex, MutexGuard};

use conquest_fs::codec::Codec;
use conquest_fs::node::{Fallocate, Rename};
use pram::MediumKind;
use rng::Rng;

use super::history::{Boundary, History};
use super::world::{World, SEGMENTS};
use crate::copy::history::Still;
use crate::model::Model;
use crate::op::{Op, Runner};

#[derive(Clone, Debug)]
pub enum Step {
    Op(Op),
    /// In the middle of what comes next: at its `nth` write to a disk, from 0 on.
    During(usize, Op),
    /// `fsync`.
    Wait,
    /// What the commit interval does.
    Commit,
    Checkpoint,
    /// So many dirty blocks go to segments.
    WriteBack(usize),
    /// So many clean ones leave the memory.
    Evict(u64),
    /// So many pages of small files go to disk.
    Demote(u64),
    /// Files follow their threshold, as far as they can.
    Follow,
    /// So many segments more are made free; the cleaner is interrupted after so many pieces.
    Clean(u64, u32),
}

#[derive(Clone, Debug)]
pub struct Story {
    pub name: String,
    /// What is not explored. All of it is durable at its end.
    pub prologue: Vec<Step>,
    pub steps: Vec<Step>,
    /// Sabotage: flushes of the disk do nothing.
    pub lie: bool,
}

/// Tells a story, recording.
pub fn tell(story: &Story, kind: MediumKind) -> Result<History, String> {
    let world = World::format(kind)?;
    let fs = world.fs.clone();
    let shared = Arc::<Mutex<Shared>>::default();
    let mut teller =
        Teller { world: &world, runner: Runner::new(&fs), shared: shared.clone(), acknowledged: Vec::new() };
    for step in &story.prologue {
        teller.step(step)?;
    }
    // Nothing more comes in the midst of it.
    world.tape.stop();
    teller.step(&Step::Wait)?;
    teller.acknowledged.clear();
    lock(&shared).boundaries.clear();
    teller.note();
    let start = Still { region: world.bytes(), marks: world.marks()?, files: world.tape.files() };
    world.tape.lie_about(story.lie.then_some(SEGMENTS));
    world.record()?;
    for step in &story.steps {
        teller.step(step)?;
    }
    let (moments, acknowledged) = (world.tape.stop(), teller.acknowledged);
    let mut shared = lock(&shared);
    match shared.failure.take() {
        Some(failure) => Err(failure),
        None => Ok(History { kind, start, moments, boundaries: std::mem::take(&mut shared.boundaries), acknowledged }),
    }
}

#[derive(Default)]
struct Shared {
    model: Model,
    boundaries: Vec<Boundary>,
    /// What went wrong in the middle of something.
    failure: Option<String>,
}

impl Shared {
    fn note(&mut self, at: usize) {
        self.boundaries.push(Boundary { at, tree: self.model.tree() });
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(|e| e.into_inner())
}

struct Teller<'w> {
    world: &'w World,
    runner: Runner<'w>,
    shared: Arc<Mutex<Shared>>,
    acknowledged: Vec<(usize, usize)>,
}

impl Teller<'_> {
    fn note(&self) {
        let at = self.world.tape.len();
        lock(&self.shared).note(at);
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let (fs, session) = (&self.world.fs, self.world.fs.session());
        let before = lock(&self.shared).boundaries.len().saturating_sub(1);
        let union = self.world.union();
        let told = |e: String| format!("{step:?}: {e}");
        let mut durable = false;
        match step {
            Step::Op(op) => {
                let done = self.runner.run(op)?;
                lock(&self.shared).model.apply(op, &done)?;
                done.map_err(|e| told(e.to_string()))?;
                self.note();
            }
            Step::During(nth, op) => self.arm(*nth, op.clone()),
            Step::Wait => match backing::of(session) {
                Some(copy) => {
                    copy.wait(session).map_err(|e| told(e.to_string()))?;
                    durable = true;
                }
                None => _ = session.move_on().map_err(|e| told(e.to_string()))?,
            },
            Step::Commit => match backing::of(session) {
                Some(copy) => durable = copy.commit_if_due(session, 0).map_err(|e| told(e.to_string()))?,
                None => _ = session.move_on().map_err(|e| told(e.to_string()))?,
            },
            Step::Checkpoint => {
                let checkpoint = backing::of(session).map(|copy| copy.checkpoint_if_due(session));
                checkpoint.transpose().map_err(|e| told(e.to_string()))?;
            }
            Step::WriteBack(most) => _ = union.write_back(&**fs, *most, None).map_err(|e| told(e.to_string()))?,
            Step::Evict(most) => _ = union.evict(&**fs, *most, None).map_err(|e| told(e.to_string()))?,
            Step::Demote(pages) => _ = union.demote(fs, *pages).map_err(|e| told(e.to_string()))?,
            Step::Follow => {
                // Reading has those noted that have come to be on the wrong side.
                for ino in NAMES.iter().filter_map(|name| self.runner.find(name).ok()) {
                    fs.read(ino, 0, &mut vec![0; WHOLE]).map_err(|e| told(e.to_string()))?;
                }
                while union.follow(fs, true, &|| false).map_err(|e| told(e.to_string()))? {}
            }
            Step::Clean(more, pieces) => {
                let (mut left, free) = (*pieces, union.status(session).map_err(|e| told(e.to_string()))?.log.free);
                let mut go_on = || {
                    left = left.saturating_sub(1);
                    left > 0
                };
                union.free_segments(fs, free + more, true, &mut go_on).map_err(|e| told(e.to_string()))?;
            }
        }
        if durable {
            self.acknowledged.push((self.world.tape.len(), before));
        }
        self.world.tape.rest();
        Ok(())
    }

    fn arm(&self, nth: usize, op: Op) {
        arm(&self.world.fs, &self.world.tape, &self.shared, &self.runner.open, nth, op);
    }
}

/// At the `nth` write from now on `op` is done.
fn arm(
    fs: &Arc<conquest_fs::Fs>,
    tape: &Arc<crate::copy::tape::Tape>,
    shared: &Arc<Mutex<Shared>>,
    open: &std::collections::BTreeMap<String, conquest_fs::Ino>,
    nth: usize,
    op: Op,
) {
    let (fs, of, shared, open) = (fs.clone(), tape.clone(), shared.clone(), open.clone());
    tape.at_next_write(Box::new(move || {
        if nth > 0 {
            return arm(&fs, &of, &shared, &open, nth - 1, op);
        }
        let done = Runner { fs: &fs, open }.run(&op);
        let mut shared = lock(&shared);
        let applied = done.and_then(|done| shared.model.apply(&op, &done));
        shared.note(of.len());
        if let Err(e) = applied {
            shared.failure = Some(format!("during something, {op:?}: {e}"));
        }
    }));
}

fn create(path: &str) -> Step {
    Step::Op(Op::Create(path.into(), 0o644))
}

fn write(path: &str, off: u64, len: usize, seed: u64) -> Op {
    Op::Write(path.into(), off, len, seed)
}

fn append(path: &str, len: usize, seed: u64) -> Op {
    Op::Append(path.into(), len, seed)
}

fn truncate(path: &str, size: u64) -> Op {
    Op::Truncate(path.into(), size)
}

fn fallocate(path: &str, how: Fallocate, off: u64, len: u64) -> Op {
    Op::Fallocate(path.into(), how, off, len)
}

fn set_threshold(path: &str, value: &str) -> Op {
    Op::SetXattr(path.into(), "user.conquest.threshold".into(), value.into())
}

const ALL: usize = usize::MAX;
/// More than any file of a story has.
const WHOLE: usize = 4 << 20;
/// Files of stories.
const NAMES: [&str; 3] = ["/a", "/b", "/c"];
const PAGE: u64 = 4096;

/// What the issue asks for by name.
pub fn named() -> Vec<Story> {
    use Step::{Checkpoint, Clean, Commit, Demote, During, Evict, Follow, Op as Do, Wait, WriteBack};
    let file = |len| vec![create("/a"), Do(write("/a", 0, len, 1))];
    let story =
        |name: &str, prologue: Vec<Step>, steps: Vec<Step>| Story { name: name.into(), prologue, steps, lie: false };
    // On disk alone.
    let cold = |len| [file(len), vec![WriteBack(ALL), Evict(u64::MAX)]].concat();
    let mut all = vec![
        story(
            "write",
            vec![create("/a")],
            vec![Do(write("/a", 0, 300_000, 1)), Wait, Do(write("/a", 300_000, 500_000, 2)), Wait],
        ),
        story(
            "overwrite",
            file(400_000),
            vec![
                Do(write("/a", 5000, 30_000, 2)),
                Wait,
                WriteBack(ALL),
                Do(write("/a", 8192, 4096, 3)),
                Wait,
                Do(write("/a", 8192, 4096, 4)),
                Evict(u64::MAX),
                Wait,
                Do(write("/a", 9000, 10, 5)),
                Commit,
                WriteBack(ALL),
                Wait,
            ],
        ),
        story(
            "overwrite-cold",
            cold(400_000),
            vec![
                Do(write("/a", 5000, 30_000, 2)),
                Wait,
                Do(write("/a", 10, 10, 3)),
                WriteBack(3),
                Commit,
                Evict(50),
                Wait,
            ],
        ),
        // Between two fsyncs, to the block in which the first ended; also while that is being written.
        story(
            "append",
            file(100_000),
            vec![
                Do(append("/a", 1000, 2)),
                Wait,
                Do(append("/a", 1000, 3)),
                Wait,
                WriteBack(ALL),
                Do(append("/a", 500, 4)),
                Wait,
                Do(append("/a", 5000, 5)),
                WriteBack(1),
                Do(append("/a", 100, 6)),
                Evict(u64::MAX),
                Do(append("/a", 100, 7)),
                Commit,
                Wait,
            ],
        ),
        story(
            "append-during",
            [file(600_000), vec![create("/b"), Do(write("/b", 0, 500_000, 9))]].concat(),
            vec![
                During(0, append("/a", 1000, 2)),
                WriteBack(ALL),
                During(1, append("/a", 1000, 3)),
                Wait,
                Do(append("/a", 700, 4)),
                During(0, append("/a", 1000, 5)),
                Wait,
                During(0, append("/a", 3000, 6)),
                WriteBack(ALL),
                Evict(u64::MAX),
                Wait,
            ],
        ),
        story(
            "threshold",
            vec![create("/a"), Do(write("/a", 0, 20_000, 1)), create("/b"), Do(write("/b", 0, 30_000, 2))],
            vec![
                Do(append("/a", 15_000, 2)),
                Wait,
                Do(append("/a", 15_000, 3)),
                Do(append("/b", 60_000, 3)),
                Wait,
                WriteBack(ALL),
                Do(append("/a", 5000, 4)),
                Commit,
                Evict(u64::MAX),
                Do(write("/a", 100, 100, 5)),
                Wait,
            ],
        ),
        story(
            "truncate",
            file(500_000),
            vec![
                Do(truncate("/a", 200_100)),
                Wait,
                Do(truncate("/a", 300_000)),
                Do(append("/a", 1000, 2)),
                Wait,
                WriteBack(ALL),
                Do(truncate("/a", 150_100)),
                Do(append("/a", 3000, 3)),
                Wait,
                WriteBack(ALL),
                Evict(u64::MAX),
                Do(truncate("/a", 100_100)),
                Do(truncate("/a", 100_200)),
                Commit,
                Do(truncate("/a", 0)),
                Wait,
                Do(write("/a", 0, 100_000, 4)),
                Wait,
            ],
        ),
        // Small ones of each form, also written while they go; and on their way back.
        story(
            "demote",
            vec![
                create("/a"),
                Do(write("/a", 0, 20_000, 1)),
                create("/b"),
                Do(write("/b", 0, 39_000, 2)),
                create("/c"),
                Do(Op::Text("/c".into(), 35_000, 3)),
                Do(Op::Compress("/c".into(), Codec::Lz4)),
            ],
            vec![
                During(0, write("/b", 4000, 5000, 4)),
                Demote(10),
                Wait,
                Demote(100),
                Do(write("/a", 100, 100, 5)),
                Demote(100),
                Commit,
                Do(append("/c", 300, 6)),
                Follow,
                Do(write("/a", 5000, 9000, 7)),
                Wait,
                Demote(100),
                Do(truncate("/b", 10_000)),
                WriteBack(ALL),
                Clean(100, 100),
                Wait,
                Follow,
                Wait,
            ],
        ),
        story(
            "downward",
            [file(900_000), vec![WriteBack(ALL), Evict(100), create("/b"), Do(write("/b", 0, 200_000, 2))]].concat(),
            vec![
                Do(truncate("/a", 38_000)),
                Do(truncate("/b", 30_000)),
                Do(write("/a", 100, 100, 3)),
                Follow,
                Wait,
                Do(write("/a", 200, 5000, 4)),
                Do(append("/b", 50_000, 5)),
                Commit,
                Clean(100, 100),
                Wait,
                Do(truncate("/b", 20_000)),
                WriteBack(ALL),
                Evict(u64::MAX),
                Follow,
                Checkpoint,
                Wait,
            ],
        ),
        // More pages than one transaction takes, in both directions.
        story(
            "follow",
            vec![create("/a"), Do(set_threshold("/a", "none")), Do(write("/a", 0, 1_700_000, 1))],
            vec![
                Do(set_threshold("/a", "65536")),
                During(1, write("/a", 800_000, 9000, 2)),
                Follow,
                Wait,
                Do(write("/a", 5000, 5000, 3)),
                Do(set_threshold("/a", "none")),
                Follow,
                Do(write("/a", 1_000_000, 7000, 4)),
                Wait,
                Do(set_threshold("/a", "65536")),
                Commit,
                Follow,
                Clean(100, 100),
                Wait,
            ],
        ),
        // What was cut off between two fsyncs, and written again: neither is to come back.
        story(
            "truncate-and-append",
            file(102_000),
            vec![
                Wait,
                Do(truncate("/a", 100_500)),
                Do(append("/a", 800, 2)),
                Wait,
                During(0, truncate("/a", 100_000)),
                WriteBack(ALL),
                During(0, append("/a", 900, 3)),
                Wait,
                Do(truncate("/a", 99_000)),
                During(0, append("/a", 2000, 4)),
                Commit,
                Wait,
            ],
        ),
        story(
            "unlink",
            [cold(700_000), vec![create("/b"), Do(write("/b", 0, 300_000, 2))]].concat(),
            vec![
                Do(Op::Unlink("/a".into())),
                Wait,
                Clean(100, 100),
                Do(Op::Unlink("/b".into())),
                create("/c"),
                Do(write("/c", 0, 800_000, 3)),
                WriteBack(ALL),
                Commit,
                Clean(100, 100),
                Do(write("/c", 0, 500_000, 4)),
                Wait,
                WriteBack(ALL),
                Clean(100, 100),
                Wait,
            ],
        ),
        story(
            "rename-over",
            [file(300_000), vec![WriteBack(ALL)]].concat(),
            vec![
                create("/n"),
                Do(write("/n", 0, 310_000, 2)),
                Wait,
                Do(Op::Rename("/n".into(), "/a".into(), Rename::Replace)),
                Wait,
                Evict(u64::MAX),
            ],
        ),
        story(
            "write-back-interrupted",
            [file(1_000_000), vec![create("/b"), Do(write("/b", 0, 900_000, 2))]].concat(),
            vec![
                During(2, write("/a", 100_000, 50_000, 3)),
                WriteBack(ALL),
                During(0, truncate("/b", 400_000)),
                WriteBack(ALL),
                During(1, Op::Unlink("/b".into())),
                Wait,
                Evict(u64::MAX),
            ],
        ),
    ];
    // The cleaner, with changes between its steps.
    let scattered = || {
        let mut steps = Vec::new();
        for n in 0..4u64 {
            steps.extend([create(&format!("/f{n}")), Do(write(&format!("/f{n}"), 0, 700_000, n))]);
            steps.push(WriteBack(ALL));
        }
        for n in 0..4u64 {
            let path = format!("/f{n}");
            steps.extend((0..40).map(|i| Do(write(&path, (i * 4 + n) * PAGE, 4096, 100 + i))));
        }
        steps.extend([WriteBack(ALL), Evict(300), Wait]);
        steps
    };
    for nth in 0..4 {
        all.push(story(
            &format!("clean-{nth}"),
            scattered(),
            vec![
                During(nth, write("/f0", 10 * PAGE, 30_000, 7)),
                Clean(2, 1 + nth as u32),
                During(nth, Op::Unlink("/f1".into())),
                Clean(2, 100),
                Wait,
                During(nth, truncate("/f2", 100_000)),
                Clean(100, 100),
                Do(write("/f3", 0, 600_000, 8)),
                WriteBack(ALL),
                Clean(100, 100),
                Checkpoint,
                Wait,
            ],
        ));
    }
    let (punch, collapse, insert) = (Fallocate::PunchHole, Fallocate::CollapseRange, Fallocate::InsertRange);
    let (zero, keep) = (Fallocate::ZeroRange { keep_size: false }, Fallocate::Allocate { keep_size: true });
    for (name, how) in
        [("punch", punch), ("collapse", collapse), ("insert", insert), ("zero", zero), ("allocate", keep)]
    {
        all.push(story(
            name,
            [file(300_000), vec![WriteBack(40), Evict(20)]].concat(),
            vec![
                Do(fallocate("/a", how, 8 * PAGE, 20 * PAGE)),
                Wait,
                WriteBack(ALL),
                Clean(100, 100),
                Do(fallocate("/a", how, 3 * PAGE, 5 * PAGE)),
                Do(write("/a", 2 * PAGE, 30_000, 3)),
                Commit,
                Evict(u64::MAX),
                Wait,
            ],
        ));
    }
    all
}

/// Drawn by a seed: what nobody thought of.
pub fn random(seeds: std::ops::Range<u64>) -> Vec<Story> {
    seeds
        .map(|seed| {
            let mut rng = Rng::new(seed);
            let mut prologue: Vec<Step> = Vec::new();
            for name in NAMES {
                prologue.extend([create(name), Step::Op(write(name, 0, 30_000 + rng.below(500_000) as usize, seed))]);
            }
            prologue.extend((0..rng.below(15)).map(|_| draw(&mut rng)));
            let steps = (0..12 + rng.below(20)).map(|_| draw(&mut rng)).collect();
            Story { name: format!("random-{seed}"), prologue, steps, lie: false }
        })
        .collect()
}

fn draw(rng: &mut Rng) -> Step {
    let name = NAMES[rng.below(3) as usize];
    let (off, seed) = (rng.below(400_000), rng.next());
    let pages = PAGE * (1 + rng.below(4));
    let op = match rng.below(9) {
        0..=2 => write(name, off, 1 + rng.below(60_000) as usize, seed),
        3 | 4 => append(name, 1 + rng.below(9000) as usize, seed),
        5 if rng.below(3) == 0 => truncate(name, 20_000 + off / 20),
        5 => truncate(name, 50_000 + off),
        6 => fallocate(name, Fallocate::PunchHole, off, 1 + rng.below(50_000)),
        7 => fallocate(name, Fallocate::InsertRange, PAGE, pages),
        _ => write(name, off / PAGE * PAGE, pages as usize, seed),
    };
    match rng.below(19) {
        0..=5 => Step::Op(op),
        // Not what may fail: the model is that of now.
        6 | 7 => match op {
            Op::Fallocate(..) => Step::Wait,
            op => Step::During(rng.below(3) as usize, op),
        },
        8 | 9 => Step::Wait,
        10 => Step::Commit,
        11 | 12 => Step::WriteBack(1 + rng.below(300) as usize),
        13 => Step::Evict(1 + rng.below(300)),
        16 | 17 => Step::Demote(1 + rng.below(40)),
        18 => Step::Follow,
        14 => Step::Clean(1 + rng.below(4), 1 + rng.below(6) as u32),
        _ => Step::Checkpoint,
    }
}
