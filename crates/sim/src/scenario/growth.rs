//! Structures that grow and shrink, and a memory that is full.

use conquest_fs::node::{Atime, Fallocate, Rename};
use pram::MediumKind;
use rustix::io::Errno;

use super::{file, scenario, Scenario, MIB, SIZE};
use crate::fault::Faults;
use crate::op::*;
use crate::world::{Setup, World};

/// Directories and inode tables at the moments when they grow and shrink, which are the costliest operations.
pub(super) fn growth() -> Vec<Scenario> {
    let path = |i: usize| format!("/d/entry-{i:04}{}", "-".repeat(i % 23));
    let count = 420;
    let fill: Vec<Op> = std::iter::once(mkdir("/d")).chain((0..count).map(|i| link("/f", &path(i)))).collect();
    let fill = [&file(5)[..], &fill].concat();
    // Removed in another order than added.
    let drain: Vec<Op> = (0..count).map(|i| unlink(&path(i * 101 % count))).collect();
    let whole = [&fill[..], &drain].concat();
    let mut all = Vec::new();
    all.extend(costly("dir-grow", &whole, fill.len() - count..fill.len(), 10));
    all.extend(costly("dir-shrink", &whole, fill.len()..whole.len(), 10));
    let creates: Vec<Op> = (0..70).map(|i| create(&format!("/c{i:03}"))).collect();
    all.extend(costly("inode-block", &creates, 0..creates.len(), 6));
    let refill: Vec<Op> = (0..40).map(|i| unlink(&format!("/c{i:03}"))).collect();
    all.push(scenario("inode-reuse", [&creates[..], &refill].concat(), create("/again")));
    let modes: Vec<Op> = (0..300).map(|i| Op::Chmod("/f".into(), 0o400 + i % 256)).collect();
    let owners: Vec<Op> = (0..300).map(|i| Op::Chown("/f".into(), 1000 + i, 7)).collect();
    let perms = [&file(1)[..], &modes, &owners].concat();
    all.extend(costly("permission-chunk", &perms, 303..perms.len(), 2));
    all.push(scenario("free-triples", [&file(1)[..], &modes[..80]].concat(), Op::FreeTriples));
    let appends: Vec<Op> = (0..130).map(|i| append("/f", 900, i)).collect();
    let appends = [&file(0)[..], &appends].concat();
    all.extend(costly("file-grow", &appends, 1..appends.len(), 6));
    all
}

/// A scenario for each of the `n` costliest operations of a range, with all before as setup.
fn costly(name: &str, ops: &[Op], range: std::ops::Range<usize>, n: usize) -> Vec<Scenario> {
    let costs = costs(ops).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut order: Vec<usize> = range.collect();
    order.sort_by_key(|i| std::cmp::Reverse((costs[*i], *i)));
    order.truncate(n);
    order.into_iter().map(|i| scenario(format!("{name}-{i}"), &ops[..i], ops[i].clone())).collect()
}

/// Runs operations one by one; returns the number of events of each.
fn costs(ops: &[Op]) -> Result<Vec<usize>, String> {
    let setup = Setup { atime: Atime::default(), ..Setup::alone(MediumKind::Battery, SIZE) };
    let world = World::format(setup, &Faults::with(None))?;
    let mut runner = Runner::new(&world.fs);
    let mut costs = Vec::new();
    for op in ops {
        world.tape.start(None);
        let done = runner.run(op)?;
        costs.push(world.tape.stop().len());
        if !matches!(done, Ok(_) | Err(Errno::NOSPC)) {
            return Err(format!("{op:?}: {done:?}"));
        }
    }
    Ok(costs)
}

/// A full memory: an operation works, or fails without any change; operations that free memory always work.
pub(super) fn full() -> Vec<Scenario> {
    let keep = Fallocate::Allocate { keep_size: true };
    let base = [&file(3000)[..], &[mkdir("/d"), create("/d/x"), write("/d/x", 0, 60_000, 1), create("/fill")]].concat();
    let entries: Vec<Op> = (0..60).map(|i| create(&format!("/d/e{i:02}"))).collect();
    let setup = [&base[..], &entries, &[Op::Fill("/fill".into(), 4096)]].concat();
    let ops = [
        ("create", create("/d/some-new-name")),
        ("mkdir", mkdir("/n")),
        ("symlink", symlink(3000, "/n")),
        ("write", write("/f", 2900, 9000, 1)),
        ("overwrite", write("/f", 0, 3000, 1)),
        ("overwrite-tree", write("/d/x", 0, 60_000, 2)),
        ("append", append("/d/x", 100_000, 1)),
        ("xattr", setxattr("/f", "user.a", 5000)),
        ("allocate", fallocate("/d/x", keep, 0, 200_000)),
        ("punch", fallocate("/d/x", Fallocate::PunchHole, 5000, 30_000)),
        ("truncate", truncate("/d/x", 30_000)),
        ("unlink", unlink("/d/x")),
        ("unlink-entry", unlink("/d/e30")),
        ("rename", rename("/f", "/d/x", Rename::Replace)),
        ("whiteout", rename("/f", "/d/x", Rename::Whiteout { replace: true })),
        ("rename-long", rename("/f", &format!("/{}", "n".repeat(250)), Rename::Replace)),
        ("chown", Op::Chown("/f".into(), 77, 78)),
    ];
    let full = |(name, op)| {
        let by_page = name == "overwrite-tree";
        Scenario { size: 2 * MIB, full: true, by_page, ..scenario(format!("full-{name}"), setup.clone(), op) }
    };
    ops.map(full).into()
}
