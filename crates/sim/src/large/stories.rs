//! Stories of large files.

use conquest_fs::codec::Codec;
use conquest_fs::node::{Fallocate, Rename};
use pram::MediumKind;
use rng::Rng;

use crate::op::*;
use crate::story::Step::{self, Checkpoint, Clean, Commit, Demote, During, Evict, Follow, Wait, WriteBack};
use crate::story::{steps, Story};
use crate::world::Setup;

fn story(name: impl Into<String>, prologue: Vec<Step>, steps: Vec<Step>) -> Story {
    // Each runs on every medium.
    Story { name: name.into(), setup: Setup::large(MediumKind::Battery), prologue, steps, lie: None }
}

fn set_threshold(path: &str, value: &str) -> Op {
    Op::SetXattr(path.into(), "user.conquest.threshold".into(), value.into())
}

const ALL: usize = usize::MAX;
/// Files of stories.
const NAMES: [&str; 3] = ["/a", "/b", "/c"];
const PAGE: u64 = 4096;

/// Stories: a name, the steps before the recording, and the recorded steps.
macro_rules! stories {
    ($($name:literal: $prologue:expr => $($step:expr),+;)+) => {
        vec![$(story($name, $prologue, steps! { $($step),+ })),+]
    };
}

/// A file in memory.
fn file(len: usize) -> Vec<Step> {
    steps! { create("/a"), write("/a", 0, len, 1) }
}

/// A file on disk alone.
fn cold(len: usize) -> Vec<Step> {
    [file(len), steps! { WriteBack(ALL), Evict(u64::MAX) }].concat()
}

/// Each way in which content changes and moves.
pub fn named() -> Vec<Story> {
    let all: Vec<Story> = stories! {
        "write": steps! { create("/a") } =>
            write("/a", 0, 300_000, 1), Wait, write("/a", 300_000, 500_000, 2), Wait;
        "overwrite": file(400_000) =>
            write("/a", 5000, 30_000, 2), Wait, WriteBack(ALL), write("/a", 8192, 4096, 3), Wait,
            write("/a", 8192, 4096, 4), Evict(u64::MAX), Wait, write("/a", 9000, 10, 5), Commit, WriteBack(ALL), Wait;
        "overwrite-cold": cold(400_000) =>
            write("/a", 5000, 30_000, 2), Wait, write("/a", 10, 10, 3), WriteBack(3), Commit, Evict(50), Wait;
        // Between two fsyncs, to the block in which the first ended; also while that block is being written.
        "append": file(100_000) =>
            append("/a", 1000, 2), Wait, append("/a", 1000, 3), Wait, WriteBack(ALL), append("/a", 500, 4), Wait,
            append("/a", 5000, 5), WriteBack(1), append("/a", 100, 6), Evict(u64::MAX), append("/a", 100, 7), Commit,
            Wait;
        "append-during": [file(600_000), steps! { create("/b"), write("/b", 0, 500_000, 9) }].concat() =>
            During(0, append("/a", 1000, 2)), WriteBack(ALL), During(1, append("/a", 1000, 3)), Wait,
            append("/a", 700, 4), During(0, append("/a", 1000, 5)), Wait, During(0, append("/a", 3000, 6)),
            WriteBack(ALL), Evict(u64::MAX), Wait;
        "threshold": steps! { create("/a"), write("/a", 0, 20_000, 1), create("/b"), write("/b", 0, 30_000, 2) } =>
            append("/a", 15_000, 2), Wait, append("/a", 15_000, 3), append("/b", 60_000, 3), Wait, WriteBack(ALL),
            append("/a", 5000, 4), Commit, Evict(u64::MAX), write("/a", 100, 100, 5), Wait;
        "truncate": file(500_000) =>
            truncate("/a", 200_100), Wait, truncate("/a", 300_000), append("/a", 1000, 2), Wait, WriteBack(ALL),
            truncate("/a", 150_100), append("/a", 3000, 3), Wait, WriteBack(ALL), Evict(u64::MAX),
            truncate("/a", 100_100), truncate("/a", 100_200), Commit, truncate("/a", 0), Wait,
            write("/a", 0, 100_000, 4), Wait;
        // Small files of each form, also written while they are demoted; and on their way back.
        "demote": steps! {
            create("/a"), write("/a", 0, 20_000, 1), create("/b"), write("/b", 0, 39_000, 2), create("/c"),
            Op::Text("/c".into(), 35_000, 3), Op::Compress("/c".into(), Codec::Lz4),
        } =>
            During(0, write("/b", 4000, 5000, 4)), Demote(10), Wait, Demote(100), write("/a", 100, 100, 5), Demote(100),
            Commit, append("/c", 300, 6), Follow, write("/a", 5000, 9000, 7), Wait, Demote(100), truncate("/b", 10_000),
            WriteBack(ALL), Clean(100, 100), Wait, Follow, Wait;
        "downward": [
            file(900_000), steps! { WriteBack(ALL), Evict(100), create("/b"), write("/b", 0, 200_000, 2) },
        ].concat() =>
            truncate("/a", 38_000), truncate("/b", 30_000), write("/a", 100, 100, 3), Follow, Wait,
            write("/a", 200, 5000, 4), append("/b", 50_000, 5), Commit, Clean(100, 100), Wait, truncate("/b", 20_000),
            WriteBack(ALL), Evict(u64::MAX), Follow, Checkpoint, Wait;
        // More pages than one transaction takes, in both directions.
        "follow": steps! { create("/a"), set_threshold("/a", "none"), write("/a", 0, 1_700_000, 1) } =>
            set_threshold("/a", "65536"), During(1, write("/a", 800_000, 9000, 2)), Follow, Wait,
            write("/a", 5000, 5000, 3), set_threshold("/a", "none"), Follow, write("/a", 1_000_000, 7000, 4), Wait,
            set_threshold("/a", "65536"), Commit, Follow, Clean(100, 100), Wait;
        // Content that was cut off between two fsyncs, and written again: neither is to come back.
        "truncate-and-append": file(102_000) =>
            Wait, truncate("/a", 100_500), append("/a", 800, 2), Wait, During(0, truncate("/a", 100_000)),
            WriteBack(ALL), During(0, append("/a", 900, 3)), Wait, truncate("/a", 99_000),
            During(0, append("/a", 2000, 4)), Commit, Wait;
        "unlink": [cold(700_000), steps! { create("/b"), write("/b", 0, 300_000, 2) }].concat() =>
            unlink("/a"), Wait, Clean(100, 100), unlink("/b"), create("/c"), write("/c", 0, 800_000, 3), WriteBack(ALL),
            Commit, Clean(100, 100), write("/c", 0, 500_000, 4), Wait, WriteBack(ALL), Clean(100, 100), Wait;
        "rename-over": [file(300_000), steps! { WriteBack(ALL) }].concat() =>
            create("/n"), write("/n", 0, 310_000, 2), Wait, rename("/n", "/a", Rename::Replace), Wait, Evict(u64::MAX);
        "write-back-interrupted": [file(1_000_000), steps! { create("/b"), write("/b", 0, 900_000, 2) }].concat() =>
            During(2, write("/a", 100_000, 50_000, 3)), WriteBack(ALL), During(0, truncate("/b", 400_000)),
            WriteBack(ALL), During(1, unlink("/b")), Wait, Evict(u64::MAX);
    };
    all.into_iter().chain((0..4).map(cleaned)).chain(ranges()).collect()
}

/// The cleaner, with changes between its steps.
fn cleaned(nth: usize) -> Story {
    let mut scattered = Vec::new();
    for n in 0..4 {
        let path = format!("/f{n}");
        scattered.extend(steps! { create(&path), write(&path, 0, 700_000, n), WriteBack(ALL) });
    }
    for n in 0..4 {
        let path = format!("/f{n}");
        scattered.extend((0..40).map(|i| write(&path, (i * 4 + n) * PAGE, 4096, 100 + i).into()));
    }
    scattered.extend(steps! { WriteBack(ALL), Evict(300), Wait });
    let steps = steps! {
        During(nth, write("/f0", 10 * PAGE, 30_000, 7)), Clean(2, 1 + nth as u32), During(nth, unlink("/f1")),
        Clean(2, 100), Wait, During(nth, truncate("/f2", 100_000)), Clean(100, 100), write("/f3", 0, 600_000, 8),
        WriteBack(ALL), Clean(100, 100), Checkpoint, Wait,
    };
    story(format!("clean-{nth}"), scattered, steps)
}

/// Ranges of a file that are punched, moved and reserved.
fn ranges() -> Vec<Story> {
    let (zero, keep) = (Fallocate::ZeroRange { keep_size: false }, Fallocate::Allocate { keep_size: true });
    let (collapse, insert) = (Fallocate::CollapseRange, Fallocate::InsertRange);
    let all = [
        ("punch", Fallocate::PunchHole),
        ("collapse", collapse),
        ("insert", insert),
        ("zero", zero),
        ("allocate", keep),
    ];
    let of = |(name, how)| {
        let prologue = [file(300_000), steps! { WriteBack(40), Evict(20) }].concat();
        let steps = steps! {
            fallocate("/a", how, 8 * PAGE, 20 * PAGE), Wait, WriteBack(ALL), Clean(100, 100),
            fallocate("/a", how, 3 * PAGE, 5 * PAGE), write("/a", 2 * PAGE, 30_000, 3), Commit, Evict(u64::MAX), Wait,
        };
        story(name, prologue, steps)
    };
    all.map(of).into()
}

/// Random stories, one for each seed.
pub fn random(seeds: std::ops::Range<u64>) -> Vec<Story> {
    seeds
        .map(|seed| {
            let mut rng = Rng::new(seed);
            let mut prologue: Vec<Step> = Vec::new();
            for name in NAMES {
                prologue.extend(steps! { create(name), write(name, 0, 30_000 + rng.below(500_000) as usize, seed) });
            }
            prologue.extend((0..rng.below(15)).map(|_| draw(&mut rng)));
            let steps = (0..12 + rng.below(20)).map(|_| draw(&mut rng)).collect();
            story(format!("random-{seed}"), prologue, steps)
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
        0..=5 => op.into(),
        // Not an operation that may fail: the model has the state of now.
        6 | 7 => match op {
            Op::Fallocate(..) => Wait,
            op => During(rng.below(3) as usize, op),
        },
        8 | 9 => Wait,
        10 => Commit,
        11 | 12 => WriteBack(1 + rng.below(300) as usize),
        13 => Evict(1 + rng.below(300)),
        16 | 17 => Demote(1 + rng.below(40)),
        18 => Follow,
        14 => Clean(1 + rng.below(4), 1 + rng.below(6) as u32),
        _ => Checkpoint,
    }
}
