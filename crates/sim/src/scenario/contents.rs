//! Content: every way to change it, in every form that it has.

use conquest_fs::node::{Fallocate, Rename};

use super::{file, scenario, Scenario, MIB};
use crate::op::*;

const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };
const EXTEND: Fallocate = Fallocate::Allocate { keep_size: false };
const ZERO: Fallocate = Fallocate::ZeroRange { keep_size: false };
const PUNCH: Fallocate = Fallocate::PunchHole;
const COLLAPSE: Fallocate = Fallocate::CollapseRange;
const INSERT: Fallocate = Fallocate::InsertRange;

pub(super) fn contents() -> Vec<Scenario> {
    [written(), resized(), reserved(), long()].concat()
}

fn sparse() -> Vec<Op> {
    [&file(0)[..], &[write("/f", 300_000, 100, 7), write("/f", 3_000_000, 5000, 8)]].concat()
}

fn with(len: usize, more: &[Op]) -> Vec<Op> {
    [&file(len)[..], more].concat()
}

/// Writes and copies.
fn written() -> Vec<Scenario> {
    vec![
        scenario("write-first", file(0), write("/f", 0, 1, 1)),
        scenario("write-first-page", file(0), write("/f", 0, 4096, 1)),
        scenario("write-first-large", file(0), write("/f", 0, 100_000, 1)),
        scenario("write-hole", file(0), write("/f", 5000, 10, 1)),
        scenario("write-far", file(100), write("/f", 4 << 20, 10, 1)),
        scenario("overwrite-byte", file(100), write("/f", 50, 1, 1)),
        scenario("overwrite-small", file(1000), write("/f", 0, 1000, 1)),
        scenario("overwrite-over-end", file(1000), write("/f", 990, 300, 1)),
        scenario("overwrite-direct-copy", file(20_000), write("/f", 0, 15_000, 1)),
        scenario("overwrite-tree-part", file(100_000), write("/f", 5000, 100, 1)),
        scenario("overwrite-tree-page", file(100_000), write("/f", 8192, 4096, 1)),
        scenario("overwrite-tree-many", file(200_000), write("/f", 1000, 150_000, 1)),
        scenario("overwrite-tree-over-end", file(100_000), write("/f", 99_000, 9000, 1)),
        scenario("append-fits", with(1000, &[append("/f", 100, 2)]), append("/f", 10, 1)),
        scenario("append-doubles", file(1000), append("/f", 100, 1)),
        scenario("append-converts", file(32_700), append("/f", 200, 1)),
        scenario("append-converts-at-page", file(32_768), append("/f", 1, 1)),
        scenario("append-tree", file(100_000), append("/f", 10_000, 1)),
        scenario("append-raises", file(8 * 4096), append("/f", 3, 1)),
        scenario("write-sparse", sparse(), write("/f", 1_000_000, 9000, 1)),
        scenario("write-nothing", file(10), write("/f", 5, 0, 1)),
        scenario("copy-small", with(500, &[create("/g")]), copy(("/f", 0), ("/g", 100), 500)),
        scenario("copy-large", with(100_000, &[create("/g")]), copy(("/f", 10), ("/g", 0), 90_000)),
        scenario("close-trims", [create("/f"), open("/f"), append("@h", 1000, 1), append("@h", 100, 2)], close()),
        scenario("close-keeps", with(300, &[fallocate("/f", KEEP, 0, 9000), open("/f")]), close()),
    ]
}

/// Longer and shorter files, with holes and without.
fn resized() -> Vec<Scenario> {
    let mut all = Vec::new();
    let sizes = [("direct", 10_000), ("tree", 120_000)];
    for (form, len) in sizes {
        let size = len as u64;
        let mut add = |name: &str, op: Op| all.push(scenario(format!("{name}-{form}"), file(len), op));
        add("truncate-to-0", truncate("/f", 0));
        add("truncate-same", truncate("/f", size));
        add("truncate-down", truncate("/f", size - 1));
        add("truncate-down-far", truncate("/f", size / 3));
        add("truncate-to-page", truncate("/f", 8192));
        add("truncate-up", truncate("/f", size + 10));
        add("truncate-up-far", truncate("/f", 10 * size));
        add("allocate", fallocate("/f", EXTEND, 0, 2 * size));
        add("allocate-keep", fallocate("/f", KEEP, size, size));
        add("punch-inside", fallocate("/f", PUNCH, 100, 500));
        add("punch-pages", fallocate("/f", PUNCH, 4000, 5000));
        add("punch-all", fallocate("/f", PUNCH, 0, size));
        add("zero", fallocate("/f", ZERO, 300, 5000));
        add("zero-beyond", fallocate("/f", ZERO, size - 100, 5000));
        add("collapse", fallocate("/f", COLLAPSE, 4096, 4096));
        add("insert", fallocate("/f", INSERT, 4096, 8192));
    }
    all.extend([
        scenario("truncate-up-then-down", with(10_000, &[truncate("/f", 200_000)]), truncate("/f", 5000)),
        scenario("truncate-sparse", sparse(), truncate("/f", 400_000)),
        scenario("punch-sparse", sparse(), fallocate("/f", PUNCH, 290_000, 2_800_000)),
        scenario("allocate-empty", file(0), fallocate("/f", EXTEND, 0, 20_000)),
        scenario("collapse-sparse", sparse(), fallocate("/f", COLLAPSE, 8192, 1 << 20)),
        scenario("insert-sparse", sparse(), fallocate("/f", INSERT, 0, 1 << 20)),
    ]);
    all
}

/// Reserved ranges, beyond the end and in holes, in memory that had other content before.
fn reserved() -> Vec<Scenario> {
    let garbage = [create("/g"), write("/g", 0, 600_000, 3), unlink("/g")];
    let reserved = |more: &[Op]| {
        let f = [create("/f"), write("/f", 0, 50_000, 42), fallocate("/f", KEEP, 0, 400_000)];
        [&garbage[..], &f, more].concat()
    };
    let grown = || reserved(&[truncate("/f", 300_000)]);
    vec![
        scenario("truncate-up-over-reserved", reserved(&[]), truncate("/f", 350_000)),
        scenario("write-beyond-reserved", reserved(&[]), write("/f", 390_000, 30_000, 1)),
        scenario("append-into-reserved", reserved(&[]), append("/f", 20_000, 1)),
        scenario("append-byte-into-reserved", reserved(&[append("/f", 3248, 1)]), append("/f", 1, 1)),
        scenario("overwrite-reserved", grown(), write("/f", 100_000, 150_000, 1)),
        scenario("overwrite-reserved-byte", grown(), write("/f", 200_000, 1, 1)),
        scenario("punch-reserved", grown(), fallocate("/f", PUNCH, 40_000, 200_000)),
        scenario("zero-reserved", grown(), fallocate("/f", ZERO, 40_000, 50_000)),
        scenario("collapse-reserved", grown(), fallocate("/f", COLLAPSE, 40_960, 40_960)),
        scenario("insert-reserved", grown(), fallocate("/f", INSERT, 8192, 40_960)),
        scenario("truncate-reserved", grown(), truncate("/f", 60_000)),
        scenario("allocate-in-holes", [&garbage[..], &sparse()].concat(), fallocate("/f", EXTEND, 290_000, 100_000)),
    ]
}

/// Long operations.
fn long() -> Vec<Scenario> {
    let mut all = Vec::new();
    // Atomic up to a mebibyte.
    let large = |name: &str, setup: Vec<Op>, op: Op| Scenario { size: 8 * MIB, ..scenario(name, setup, op) };
    all.push(large("write-mebibyte", file(0), write("/f", 0, 1 << 20, 1)));
    all.push(large("overwrite-mebibyte", file(1 << 20), write("/f", 100, (1 << 20) - 200, 1)));
    all.push(large("unlink-mebibyte", file(1 << 20), unlink("/f")));
    // Longer ones, which take several operations. Freeing is one change nevertheless.
    let len = 2500 << 10;
    let cut = [
        ("truncate-cut-to-0", with(len, &[]), truncate("/f", 0)),
        ("truncate-cut-in-page", with(len, &[]), truncate("/f", 5000)),
        ("truncate-cut-short", with(len, &[fallocate("/f", KEEP, 0, 3 * MIB)]), truncate("/f", len as u64)),
        ("unlink-cut", with(len, &[]), unlink("/f")),
        ("close-unlinked-cut", with(len, &[open("/f"), unlink("/f")]), close()),
        ("rename-over-cut", with(len, &[create("/g")]), rename("/g", "/f", Rename::Replace)),
    ];
    all.extend(cut.map(|(name, setup, op)| Scenario { frees_later: true, ..large(name, setup, op) }));
    let pieces = [
        ("punch-pieces", fallocate("/f", PUNCH, 5000, 2 * MIB + 300_000)),
        ("zero-pieces", fallocate("/f", ZERO, 5000, 2 * MIB)),
        ("overwrite-pieces", write("/f", 0, 2 * MIB as usize + 100, 1)),
    ];
    all.extend(pieces.map(|(name, op)| Scenario { by_page: true, ..large(name, with(len, &[]), op) }));
    // Renumbering many pages, by an index that is built beside the old one.
    let shift = [
        ("collapse-many", fallocate("/f", COLLAPSE, 1 << 20, 300 << 10)),
        ("collapse-many-from-start", fallocate("/f", COLLAPSE, 0, 2 * MIB)),
        ("insert-many", fallocate("/f", INSERT, 4096, 64 << 10)),
    ];
    let long = || with(len, &[fallocate("/f", KEEP, 0, 3 * MIB)]);
    all.extend(shift.map(|(name, op)| large(name, long(), op)));
    // The size grows over any amount of reserved pages at once.
    let much = || [&file(100_000)[..], &[fallocate("/f", KEEP, 0, 3 * MIB)]].concat();
    all.push(large("truncate-up-over-much-reserved", much(), truncate("/f", 3 * MIB - 1)));
    all.push(large("write-beyond-much-reserved", much(), write("/f", 3 * MIB - 10, 100, 1)));
    all
}

/// Every pair of operations on content, over a file in one block and over one in a tree.
pub fn content_pairs() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (form, len) in [("direct", 10_000), ("tree", 120_000)] {
        let size = len as u64;
        let ops = [
            ("write", write("/f", 100, 3000, 1)),
            ("write-page", write("/f", 4096, 4096, 2)),
            ("write-over-end", write("/f", size - 50, 9000, 3)),
            ("write-far", write("/f", 4 * size, 100, 4)),
            ("append", append("/f", 5000, 5)),
            ("truncate-to-0", truncate("/f", 0)),
            ("truncate-down", truncate("/f", size / 3)),
            ("truncate-up", truncate("/f", 2 * size)),
            ("punch", fallocate("/f", PUNCH, 3000, 6000)),
            ("zero", fallocate("/f", ZERO, 300, 5000)),
            ("allocate", fallocate("/f", KEEP, 0, 3 * size)),
            ("collapse", fallocate("/f", COLLAPSE, 4096, 4096)),
            ("insert", fallocate("/f", INSERT, 4096, 8192)),
            ("copy", copy(("/f", 100), ("/f", 8000), 1500)),
            ("unlink", unlink("/f")),
        ];
        for (first_name, first) in &ops {
            for (second_name, second) in &ops {
                let setup = [&file(len)[..], std::slice::from_ref(first)].concat();
                all.push(scenario(format!("{form}-{first_name}+{second_name}"), setup, second.clone()));
            }
        }
    }
    all
}
