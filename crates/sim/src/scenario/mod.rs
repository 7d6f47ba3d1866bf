//! The scenarios: every operation on the states that make a difference for it, and pairs of operations, on names and on
//! content.

mod contents;
mod forms;
mod growth;
mod names;

use conquest_fs::node::{Atime, Fallocate, Rename};
use conquest_fs::Kind;
use rng::Rng;

use crate::op::*;

pub use contents::content_pairs;
pub use forms::{compression, packed, packed_in_seconds};

/// Acknowledged operations, and one that is under way.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    /// Bytes of the memory.
    pub size: u64,
    pub setup: Vec<Op>,
    pub op: Op,
    /// The model predicts the result.
    pub modelled: bool,
    /// The memory is full: afterwards, deleting must work.
    pub full: bool,
    /// The operation changes a file in pieces, from its start: any number of its pages may be changed.
    pub by_page: bool,
    /// Memory that a file loses may still count as its own.
    pub frees_later: bool,
    /// The operation changes a compressed file, which may be plain already while nothing else is changed.
    pub expands: bool,
    pub atime: Atime,
}

const MIB: u64 = 1 << 20;
const SIZE: u64 = 4 * MIB;

fn scenario(name: impl Into<String>, setup: impl Into<Vec<Op>>, op: Op) -> Scenario {
    Scenario {
        name: name.into(),
        size: SIZE,
        setup: setup.into(),
        op,
        modelled: true,
        full: false,
        by_page: false,
        frees_later: false,
        expands: false,
        atime: Atime::Never,
    }
}

/// A file with `len` bytes at `/f`.
fn file(len: usize) -> Vec<Op> {
    if len == 0 {
        return vec![create("/f")];
    }
    vec![create("/f"), write("/f", 0, len, 42)]
}

/// One inode of each kind, and a file below a directory: with so many bytes in `/a` and `/d/x`, and in the target of
/// `/s`.
fn small_tree(a: usize, x: usize, s: usize) -> [Op; 7] {
    [
        create("/a"),
        write("/a", 0, a, 1),
        mkdir("/d"),
        create("/d/x"),
        write("/d/x", 0, x, 2),
        mkdir("/e"),
        symlink(s, "/s"),
    ]
}

/// Every single operation.
pub fn singles() -> Vec<Scenario> {
    [names::names(), names::attributes(), contents::contents(), growth::growth(), growth::full()].concat()
}

/// Every pair of operations on names, over a small tree.
pub fn pairs() -> Vec<Scenario> {
    use Rename::{Exchange, NoReplace, Replace, Whiteout};
    let tree = small_tree(100, 200, 20);
    let ops = [
        ("create", create("/n")),
        ("create-below", create("/d/n")),
        ("mkdir", mkdir("/n")),
        ("mkdir-below", mkdir("/e/n")),
        ("symlink", symlink(9, "/n")),
        ("link", link("/a", "/d/n")),
        ("unlink-a", unlink("/a")),
        ("unlink-x", unlink("/d/x")),
        ("unlink-n", unlink("/n")),
        ("rmdir-d", rmdir("/d")),
        ("rmdir-e", rmdir("/e")),
        ("rename", rename("/a", "/n", Replace)),
        ("rename-over", rename("/a", "/d/x", Replace)),
        ("rename-back", rename("/n", "/a", Replace)),
        ("rename-no-replace", rename("/d/x", "/e/n", NoReplace)),
        ("rename-dir", rename("/e", "/d/n", Replace)),
        ("rename-dir-over", rename("/d", "/e", Replace)),
        ("exchange-files", rename("/a", "/d/x", Exchange)),
        ("exchange-kinds", rename("/e", "/s", Exchange)),
        ("whiteout", rename("/a", "/e/n", Whiteout { replace: true })),
    ];
    let mut all = Vec::new();
    for (first_name, first) in &ops {
        for (second_name, second) in &ops {
            let setup = [&tree[..], std::slice::from_ref(first)].concat();
            let pair = scenario(format!("{first_name}+{second_name}"), setup, second.clone());
            all.push(Scenario { size: 3 * MIB, ..pair });
        }
    }
    all
}

/// Random operations on a few names, drawn by a seed.
pub fn random(seeds: std::ops::Range<u64>) -> Vec<Scenario> {
    let one = |seed: u64| {
        let mut rng = Rng::new(seed);
        let mut ops: Vec<Op> = ["/d", "/e", "/d/i"].map(mkdir).into();
        let length = 10 + rng.below(50);
        ops.extend((0..length).map(|_| draw(&mut rng)));
        let op = ops.pop().expect("at least ten operations");
        scenario(format!("random-{seed}"), ops, op)
    };
    seeds.map(one).collect()
}

fn draw(rng: &mut Rng) -> Op {
    use Rename::{Exchange, NoReplace, Replace};
    let dirs = ["", "/d", "/e", "/d/i"];
    let names = ["a", "b", "c", "i", "a-much-longer-name-that-takes-more-room-in-its-bucket"];
    let mut path = || format!("{}/{}", dirs[rng.below(4) as usize], names[rng.below(5) as usize]);
    let (p, q) = (path(), path());
    let (off, len) = (rng.below(50_000), rng.below(9000) + rng.below(4) / 3 * rng.below(60_000));
    let page = 4096 * (1 + rng.below(3));
    match rng.below(30) {
        0..=3 => create(&p),
        4..=5 => mkdir(&p),
        6 => symlink(1 + rng.below(300) as usize, &p),
        7..=8 => link(&p, &q),
        9..=10 => unlink(&p),
        11 => rmdir(&p),
        12..=13 => rename(&p, &q, Replace),
        14 => rename(&p, &q, NoReplace),
        15 => rename(&p, &q, Exchange),
        16..=17 => write(&p, off, len as usize, rng.next()),
        18..=19 => append(&p, len as usize, rng.next()),
        20..=21 => truncate(&p, off),
        22 => fallocate(&p, Fallocate::PunchHole, off, len + 1),
        23 => fallocate(&p, Fallocate::Allocate { keep_size: rng.below(2) == 0 }, off, len + 1),
        24 => fallocate(&p, Fallocate::ZeroRange { keep_size: rng.below(2) == 0 }, off, len + 1),
        25 => fallocate(&p, [Fallocate::CollapseRange, Fallocate::InsertRange][rng.below(2) as usize], page, page),
        26 => setxattr(&p, ["user.a", "user.b"][rng.below(2) as usize], rng.below(700) as usize),
        27 => Op::RemoveXattr(p, "user.a".into()),
        28 => copy((&p, off / 3), (&q, off / 2), len),
        _ => Op::Chown(p, rng.below(3) as u32, rng.below(3) as u32),
    }
}

/// A tree in which every structure of the layout occurs.
pub fn something_of_everything() -> Vec<Op> {
    let mut ops = vec![mkdir("/d"), mkdir("/d/e"), mkdir("/many"), symlink(300, "/d/s"), symlink(3, "/s")];
    ops.extend([create("/empty"), create("/small"), write("/small", 0, 300, 1), link("/small", "/d/hard")]);
    ops.extend([create("/tree"), write("/tree", 0, 200_000, 2), create("/sparse"), write("/sparse", 700_000, 50, 3)]);
    ops.extend([setxattr("/small", "user.a", 30), setxattr("/d", "user.large", 5000)]);
    ops.extend((0..300).map(|i| link("/empty", &format!("/many/entry-{i}{}", "-".repeat(i % 30)))));
    ops.extend((0..40).map(|i| create(&format!("/d/e/{i}"))));
    ops.extend((0..20).map(|i| Op::Chmod(format!("/d/e/{i}"), 0o600 + i)));
    ops.push(Op::Mknod("/d/fifo".into(), Kind::Fifo, 0));
    ops
}

/// An operation that changes much, on a tree in which every structure of the layout occurs.
pub fn rich() -> Scenario {
    let op = write("/tree", 1000, 150_000, 7);
    scenario("rich", something_of_everything(), op)
}
