//! Random operations on large files whose content goes to a disk and comes back, while blocks are written back and evicted, segments
//! cleaned, epochs moved on, and the memory is lost.

use super::random::Op;
use super::*;
use crate::attr::{Caller, Ino, SetAttr};
use crate::node::{Fallocate, WriteFlags};
use crate::ubj::tests::rig::{Copy, Rig};

/// Files that reach beyond are large. (The first bytes of a new file stay in memory up to 32 KiB.)
const THRESHOLD: u64 = 8 << 10;
const FILES: u64 = 3;

/// The event that loses memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Medium {
    /// Nothing does.
    Battery,
    /// A power cut: the state of the last commit comes back.
    Logged,
}

/// The work beside the operations.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    written: u64,
    evicted: u64,
    moved: u64,
    freed: u64,
    sent: u64,
    brought: u64,
    cuts: u64,
    /// Operations on large files, and on others.
    large: u64,
    small: u64,
}

struct World {
    rig: Rig,
    files: Vec<(Ino, Model)>,
    medium: Medium,
    /// The last commit.
    kept: Option<(Copy, Vec<(Ino, Model)>)>,
    /// No process died while it wrote.
    exact: bool,
    done: Done,
}

fn run_on(rig: &Rig, ino: Ino, op: &Op) -> Result<()> {
    let fs = &rig.fs;
    let fallocate = |how, off: &u64, len: &u64| fs.fallocate(ino, how, *off, *len);
    match op {
        Op::Write(off, data) => fs.write(ino, *off, data, WriteFlags::default()).map(drop),
        Op::Truncate(size) => {
            fs.setattr(ino, &SetAttr { size: Some(*size), ..SetAttr::default() }, &Caller::root()).map(drop)
        }
        Op::Punch(off, len) => fallocate(Fallocate::PunchHole, off, len),
        Op::Zero(off, len, keep_size) => fallocate(Fallocate::ZeroRange { keep_size: *keep_size }, off, len),
        Op::Collapse(off, len) => fallocate(Fallocate::CollapseRange, off, len),
        Op::Insert(off, len) => fallocate(Fallocate::InsertRange, off, len),
        Op::Allocate(off, len, keep_size) => fallocate(Fallocate::Allocate { keep_size: *keep_size }, off, len),
        Op::Trim => Ok(()),
    }
}

impl World {
    fn new(memory: u64, medium: Medium) -> World {
        let rig = Rig::new(memory, 40, THRESHOLD);
        let files = (0..FILES).map(|n| (rig.create(&n.to_string()), Model::default())).collect();
        World { rig, files, medium, kept: None, exact: true, done: Done::default() }
    }

    fn count(&mut self) {
        let status = self.rig.union().status(self.rig.fs.session()).unwrap();
        self.done.written += status.written;
        self.done.evicted += status.evicted;
        self.done.moved += status.moved;
        self.done.freed += status.freed;
        self.done.sent += status.sent;
        self.done.brought += status.brought;
    }

    fn verify(&self, what: &str) {
        let memory = self.rig.fs.session().memory();
        for (ino, model) in &self.files {
            let content = self.rig.content(*ino);
            model.compare_by(&content, what, |off, buf| {
                self.rig.fs.read(*ino, off, buf).unwrap_or_else(|e| panic!("reading {ino} at {off} after {what}: {e}"))
            });
            model.compare_seek(memory, &content, model.size / 2, what);
        }
        let inodes: Vec<Ino> = self.files.iter().map(|(ino, _)| *ino).collect();
        self.rig.check(&inodes, self.exact, what);
    }

    /// The work beside the users of files.
    fn beside(&mut self, d: &mut Dice) -> String {
        let (fs, union) = (self.rig.fs.clone(), self.rig.union().clone());
        let one = self.files[d.below(FILES) as usize].0;
        let only = [None, None, Some(one)][d.below(3) as usize];
        match d.below(14) {
            0..=3 => match union.write_back(&*fs, 1 + d.below(600) as usize, only) {
                Ok(placed) => format!("{placed} blocks were written"),
                Err(e) if e.errno() == Errno::NOSPC => "no room for write-back".into(),
                Err(e) => panic!("write-back: {e}"),
            },
            4..=6 => format!("{} blocks were evicted", union.evict(&*fs, 1 + d.below(600), only).unwrap()),
            7 | 8 => {
                let (wanted, mut steps) =
                    (union.log().counts(fs.session()).unwrap().free + 1 + d.below(3), d.below(20));
                let mut go_on = || {
                    steps = steps.saturating_sub(1);
                    steps > 0
                };
                let commits = self.medium == Medium::Battery;
                let why = union.free_segments(&fs, wanted, commits, &mut go_on);
                let why = why.unwrap_or_else(|e| panic!("cleaning: {e}"));
                format!("cleaned until {why:?}")
            }
            9 => {
                self.kept = Some((self.rig.commit(), self.files.clone()));
                "a commit".into()
            }
            // The background work of processes; any file at hand counts as cold.
            10 => match union.demote(&fs, 1 + d.below(100)) {
                Ok(pages) => format!("{pages} pages were demoted"),
                Err(e) => panic!("demotion: {e}"),
            },
            11 => {
                self.files.iter().for_each(|(ino, _)| union.note_use(*ino, &fs.snapshot(*ino).unwrap()));
                let more = union.follow(&fs, d.below(4) == 0, &|| false).unwrap();
                format!("files followed, and {}", if more { "more are to" } else { "that is all" })
            }
            12 => {
                union.move_to_disk(&fs, one).unwrap();
                format!("{one} went to disk")
            }
            _ => {
                drop((fs, union));
                self.end(d)
            }
        }
    }

    /// The process ends, or the power is cut.
    fn end(&mut self, d: &mut Dice) -> String {
        self.count();
        let rig = std::mem::replace(&mut self.rig, Rig::new(1 << 20, 14, THRESHOLD));
        self.exact = false;
        match (self.medium, self.kept.take()) {
            (Medium::Logged, Some((copy, files))) => {
                self.files = files;
                self.rig = rig.lost(&copy, d.0.next());
                self.done.cuts += 1;
                "a power cut".into()
            }
            (_, kept) => {
                self.kept = kept;
                self.rig = rig.reopened();
                "another process".into()
            }
        }
    }
}

fn run(seed: u64, steps: u32, far: bool, memory: u64, medium: Medium) -> Done {
    let mut d = Dice(Rng::new(seed));
    let mut world = World::new(memory, medium);
    for step in 0..steps {
        let n = d.below(FILES) as usize;
        let (ino, model) = world.files[n].clone();
        let op = Op::random(&mut d, model.size, far);
        let what = format!("seed {seed} step {step}: inode {ino}: {}", op.short());
        let mut after = model;
        let expected = op.model(&mut after);
        match (run_on(&world.rig, ino, &op), expected) {
            (Ok(()), Ok(())) => world.files[n].1 = after,
            (Err(e), Err(want)) => assert_eq!(e.errno(), want, "{what}"),
            (got, want) => panic!("{what}: {got:?}, should be {want:?}"),
        }
        let is_large = world.rig.content(ino).is_large();
        *(if is_large { &mut world.done.large } else { &mut world.done.small }) += 1;
        world.verify(&what);
        for _ in 0..d.below(4) {
            let beside = world.beside(&mut d);
            world.verify(&format!("{beside}, after {what}"));
        }
    }
    // All of it can be given up, and nothing is left.
    for (ino, model) in world.files.clone() {
        run_on(&world.rig, ino, &Op::Truncate(0))
            .unwrap_or_else(|e| panic!("seed {seed}: {model:?}: {e}", model = model.size));
    }
    let counts = world.rig.union().log().counts(world.rig.fs.session()).unwrap();
    assert!(counts.promised == 0 && (!world.exact || counts.live == 0), "seed {seed}: {counts:?}");
    while world.rig.union().free_segments(&world.rig.fs, ilfs::LEAST * 100, true, &mut || true).unwrap()
        == ilfs::clean::Reason::Enough
    {}
    world.count();
    world.done
}

fn run_all(seeds: std::ops::Range<u64>, far: impl Fn(u64) -> bool, memory: u64, medium: Medium) {
    let few = if std::env::var("CONQUEST_SIM").as_deref() == Ok("full") { 1 } else { 12 };
    let mut all = Done::default();
    for seed in seeds.step_by(few) {
        let done = run(seed, 60, far(seed), memory, medium);
        all.written += done.written;
        all.evicted += done.evicted;
        all.moved += done.moved;
        all.freed += done.freed;
        all.sent += done.sent;
        all.brought += done.brought;
        all.cuts += done.cuts;
        all.large += done.large;
        all.small += done.small;
    }
    eprintln!("{all:?}");
    assert!(all.large > all.small, "most of it is tried on large files");
    assert!(all.written > 1000 && all.evicted > 1000 && all.moved > 1000 && all.freed > 10, "{all:?}");
    assert!(all.sent > 30 && all.brought > 15, "{all:?}");
    assert!(all.cuts > 10 || medium == Medium::Battery);
}

#[test]
fn random_operations_on_large_files_match_the_model() {
    run_all(4000..4360, |_| false, 16 << 20, Medium::Battery);
}

#[test]
fn random_sparse_operations_on_large_files_match_the_model() {
    run_all(5000..5360, |_| true, 16 << 20, Medium::Battery);
}

#[test]
fn random_operations_on_large_files_whose_memory_is_lost_match_the_model() {
    run_all(6000..6360, |seed| seed / 12 % 2 == 0, 16 << 20, Medium::Logged);
}

#[test]
fn random_operations_on_large_files_in_little_memory_match_the_model() {
    run_all(7000..7360, |seed| seed / 12 % 2 == 0, 4 << 20, Medium::Battery);
}
