//! The scenarios: every operation on the states that matter to it, and pairs of operations, on names and on content.

use conquest_fs::codec::Codec;
use conquest_fs::node::{Atime, Fallocate, Rename};
use conquest_fs::Kind;

use crate::explore::costs;
use crate::op::Op;
use rng::Rng;

/// Operations that have been acknowledged, and one that is under way.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    /// Bytes of the region.
    pub size: u64,
    pub setup: Vec<Op>,
    pub op: Op,
    /// The model knows what must be seen.
    pub modelled: bool,
    /// The region is full: afterwards, deleting is what must work.
    pub full: bool,
    /// The operation changes a file in pieces, from its start: any number of its pages may be there.
    pub by_page: bool,
    /// What a file loses may still be its memory.
    pub frees_later: bool,
    /// What it changes is compressed, and may be plain already though nothing else is changed yet.
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

// Short forms.

fn create(path: &str) -> Op {
    Op::Create(path.into(), 0o644)
}
fn mkdir(path: &str) -> Op {
    Op::Mkdir(path.into(), 0o755)
}
fn symlink(len: usize, path: &str) -> Op {
    Op::Symlink { target: "t".repeat(len), path: path.into() }
}
fn link(old: &str, new: &str) -> Op {
    Op::Link(old.into(), new.into())
}
fn unlink(path: &str) -> Op {
    Op::Unlink(path.into())
}
fn rmdir(path: &str) -> Op {
    Op::Rmdir(path.into())
}
fn rename(from: &str, to: &str, how: Rename) -> Op {
    Op::Rename(from.into(), to.into(), how)
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
fn setxattr(path: &str, name: &str, len: usize) -> Op {
    Op::SetXattr(path.into(), name.into(), vec![0xa7; len])
}
fn open(path: &str) -> Op {
    Op::Open(path.into(), "@h".into())
}
fn close() -> Op {
    Op::Close("@h".into())
}

/// A file with `len` bytes at `/f`.
fn file(len: usize) -> Vec<Op> {
    if len == 0 {
        return vec![create("/f")];
    }
    vec![create("/f"), write("/f", 0, len, 42)]
}

/// One of each kind, and a file below a directory: with so many bytes in `/a` and `/d/x`, and in the target of `/s`.
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

/// Every operation that makes or removes names.
fn names() -> Vec<Scenario> {
    use Rename::{Exchange, NoReplace, Replace, Whiteout};
    let tree = small_tree(700, 40_000, 50);
    let t = || tree.clone();
    let with = |more: &[Op]| [&tree[..], more].concat();
    vec![
        scenario("create-first", [], create("/a")),
        scenario("create", t(), create("/n")),
        scenario("create-mode", t(), Op::Create("/n".into(), 0o600)),
        scenario("create-exists", t(), create("/a")),
        scenario("create-fifo", t(), Op::Mknod("/n".into(), Kind::Fifo, 0)),
        scenario("create-device", t(), Op::Mknod("/n".into(), Kind::CharDevice, 0x0103)),
        scenario("mkdir", t(), mkdir("/n")),
        scenario("mkdir-below", t(), mkdir("/d/n")),
        scenario("symlink", t(), symlink(3, "/n")),
        scenario("symlink-long", t(), symlink(4000, "/n")),
        scenario("link", t(), link("/a", "/d/n")),
        scenario("link-symlink", t(), link("/s", "/n")),
        scenario("unlink", t(), unlink("/a")),
        scenario("unlink-large", t(), unlink("/d/x")),
        scenario("unlink-symlink", t(), unlink("/s")),
        scenario("unlink-one-of-two", with(&[link("/a", "/n")]), unlink("/a")),
        scenario("unlink-open", with(&[open("/a")]), unlink("/a")),
        scenario("close-unlinked", with(&[open("/d/x"), unlink("/d/x")]), close()),
        scenario("write-unlinked", with(&[open("/a"), unlink("/a")]), append("@h", 3000, 9)),
        scenario("rmdir", t(), rmdir("/e")),
        scenario("rmdir-not-empty", t(), rmdir("/d")),
        scenario("rmdir-once-full", with(&[unlink("/d/x")]), rmdir("/d")),
        scenario("tmpfile", t(), Op::Tmpfile("/d".into(), "@h".into())),
        scenario("tmpfile-close", [Op::Tmpfile("/".into(), "@h".into()), append("@h", 5000, 1)], close()),
        scenario("tmpfile-link", [Op::Tmpfile("/".into(), "@h".into()), append("@h", 500, 1)], link("@h", "/n")),
        scenario("rename-in-place", t(), rename("/a", "/n", Replace)),
        scenario("rename-away", t(), rename("/a", "/d/n", NoReplace)),
        scenario("rename-over", t(), rename("/a", "/d/x", Replace)),
        scenario("rename-over-large", t(), rename("/d/x", "/a", Replace)),
        scenario("rename-over-open", with(&[open("/d/x")]), rename("/a", "/d/x", Replace)),
        scenario("rename-over-same-inode", with(&[link("/a", "/n")]), rename("/a", "/n", Replace)),
        scenario("rename-to-self", t(), rename("/a", "/a", Replace)),
        scenario("rename-longer", t(), rename("/a", &format!("/{}", "n".repeat(255)), Replace)),
        scenario("rename-dir", t(), rename("/d", "/n", Replace)),
        scenario("rename-dir-away", t(), rename("/d", "/e/n", Replace)),
        scenario("rename-dir-over-empty", t(), rename("/d", "/e", Replace)),
        scenario("rename-dir-into-itself", t(), rename("/d", "/d/n", Replace)),
        scenario("exchange-files", t(), rename("/a", "/d/x", Exchange)),
        scenario("exchange-kinds", t(), rename("/a", "/e", Exchange)),
        scenario("exchange-dirs", with(&[mkdir("/d/i"), create("/d/i/y")]), rename("/d/i", "/e", Exchange)),
        scenario("exchange-missing", t(), rename("/a", "/n", Exchange)),
        scenario("whiteout", t(), rename("/a", "/n", Whiteout { replace: false })),
        scenario("whiteout-over", t(), rename("/a", "/d/x", Whiteout { replace: true })),
        scenario("whiteout-exists", t(), rename("/a", "/d/x", Whiteout { replace: false })),
        scenario("whiteout-dir", t(), rename("/d", "/e/n", Whiteout { replace: true })),
        scenario("whiteout-same-inode", with(&[link("/a", "/n")]), rename("/a", "/n", Whiteout { replace: true })),
    ]
}

/// Attributes, extended attributes, ACLs.
fn attributes() -> Vec<Scenario> {
    // Version 2; owner rw-, user 1000 rwx, group r--, mask rwx, others r--.
    let acl: Vec<u8> = [(1u16, 6u16, u32::MAX), (2, 7, 1000), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 4, u32::MAX)]
        .iter()
        .flat_map(|(tag, perm, id)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat())
        .collect();
    let acl = [&2u32.to_le_bytes()[..], &acl].concat();
    let access = |path: &str| Op::SetXattr(path.into(), "system.posix_acl_access".into(), acl.clone());
    let default = |path: &str| Op::SetXattr(path.into(), "system.posix_acl_default".into(), acl.clone());
    let remove = |name: &str| Op::RemoveXattr("/f".into(), name.into());
    let f = file(100);
    let with = |more: &[Op]| [&f[..], more].concat();
    let many: Vec<Op> = (0..30).map(|i| setxattr("/f", &format!("user.attribute-{i}"), 40 + i)).collect();
    let mut all = vec![
        scenario("chmod", f.clone(), Op::Chmod("/f".into(), 0o4755)),
        scenario("chmod-again", with(&[Op::Chmod("/f".into(), 0o600)]), Op::Chmod("/f".into(), 0o644)),
        scenario("chown", f.clone(), Op::Chown("/f".into(), 1000, 1001)),
        scenario("set-times", f.clone(), Op::SetTimes("/f".into(), 1_234_567_890_123_456_789)),
        scenario("xattr-first", f.clone(), setxattr("/f", "user.a", 10)),
        scenario("xattr-replace", with(&[setxattr("/f", "user.a", 10)]), setxattr("/f", "user.a", 11)),
        scenario("xattr-grow", with(&[setxattr("/f", "user.a", 10)]), setxattr("/f", "user.a", 900)),
        scenario("xattr-shrink", with(&[setxattr("/f", "user.a", 900)]), setxattr("/f", "user.a", 1)),
        scenario("xattr-large", with(&[setxattr("/f", "user.a", 10)]), setxattr("/f", "user.b", 20_000)),
        scenario("xattr-another", with(&many), setxattr("/f", "user.z", 77)),
        scenario("xattr-remove", with(&many), remove("user.attribute-7")),
        scenario("xattr-remove-last", with(&[setxattr("/f", "user.a", 10)]), remove("user.a")),
        scenario("xattr-remove-missing", f.clone(), remove("user.a")),
        scenario("xattr-directory", [mkdir("/d")], setxattr("/d", "user.a", 100)),
    ];
    let unmodelled = [
        scenario("acl-access", f.clone(), access("/f")),
        scenario("acl-remove", with(&[access("/f")]), remove("system.posix_acl_access")),
        scenario("acl-chmod", with(&[access("/f")]), Op::Chmod("/f".into(), 0o640)),
        scenario("acl-default", [mkdir("/d")], default("/d")),
        scenario("acl-inherit-file", [mkdir("/d"), default("/d")], create("/d/n")),
        scenario("acl-inherit-dir", [mkdir("/d"), default("/d")], mkdir("/d/n")),
        scenario("acl-unlink", with(&[access("/f")]), unlink("/f")),
    ];
    all.extend(unmodelled.map(|s| Scenario { modelled: false, ..s }));
    all.push(Scenario { atime: Atime::Always, ..scenario("read", f, Op::Read("/f".into())) });
    all
}

/// Content: every way to change it, in every form that it has.
fn contents() -> Vec<Scenario> {
    let keep = Fallocate::Allocate { keep_size: true };
    let extend = Fallocate::Allocate { keep_size: false };
    let zero = Fallocate::ZeroRange { keep_size: false };
    let (punch, collapse, insert) = (Fallocate::PunchHole, Fallocate::CollapseRange, Fallocate::InsertRange);
    let sparse = || [&file(0)[..], &[write("/f", 300_000, 100, 7), write("/f", 3_000_000, 5000, 8)]].concat();
    let with = |len: usize, more: &[Op]| [&file(len)[..], more].concat();
    let mut all = vec![
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
        scenario("close-keeps", with(300, &[fallocate("/f", keep, 0, 9000), open("/f")]), close()),
    ];
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
        add("allocate", fallocate("/f", extend, 0, 2 * size));
        add("allocate-keep", fallocate("/f", keep, size, size));
        add("punch-inside", fallocate("/f", punch, 100, 500));
        add("punch-pages", fallocate("/f", punch, 4000, 5000));
        add("punch-all", fallocate("/f", punch, 0, size));
        add("zero", fallocate("/f", zero, 300, 5000));
        add("zero-beyond", fallocate("/f", zero, size - 100, 5000));
        add("collapse", fallocate("/f", collapse, 4096, 4096));
        add("insert", fallocate("/f", insert, 4096, 8192));
    }
    all.extend([
        scenario("truncate-up-then-down", with(10_000, &[truncate("/f", 200_000)]), truncate("/f", 5000)),
        scenario("truncate-sparse", sparse(), truncate("/f", 400_000)),
        scenario("punch-sparse", sparse(), fallocate("/f", punch, 290_000, 2_800_000)),
        scenario("allocate-empty", file(0), fallocate("/f", extend, 0, 20_000)),
        scenario("collapse-sparse", sparse(), fallocate("/f", collapse, 8192, 1 << 20)),
        scenario("insert-sparse", sparse(), fallocate("/f", insert, 0, 1 << 20)),
    ]);
    // What is reserved, beyond the end and in holes, where earlier content lay.
    let garbage = [create("/g"), write("/g", 0, 600_000, 3), unlink("/g")];
    let reserved = |more: &[Op]| {
        let f = [create("/f"), write("/f", 0, 50_000, 42), fallocate("/f", keep, 0, 400_000)];
        [&garbage[..], &f, more].concat()
    };
    let grown = || reserved(&[truncate("/f", 300_000)]);
    all.extend([
        scenario("truncate-up-over-reserved", reserved(&[]), truncate("/f", 350_000)),
        scenario("write-beyond-reserved", reserved(&[]), write("/f", 390_000, 30_000, 1)),
        scenario("append-into-reserved", reserved(&[]), append("/f", 20_000, 1)),
        scenario("append-byte-into-reserved", reserved(&[append("/f", 3248, 1)]), append("/f", 1, 1)),
        scenario("overwrite-reserved", grown(), write("/f", 100_000, 150_000, 1)),
        scenario("overwrite-reserved-byte", grown(), write("/f", 200_000, 1, 1)),
        scenario("punch-reserved", grown(), fallocate("/f", punch, 40_000, 200_000)),
        scenario("zero-reserved", grown(), fallocate("/f", zero, 40_000, 50_000)),
        scenario("collapse-reserved", grown(), fallocate("/f", collapse, 40_960, 40_960)),
        scenario("insert-reserved", grown(), fallocate("/f", insert, 8192, 40_960)),
        scenario("truncate-reserved", grown(), truncate("/f", 60_000)),
        scenario("allocate-in-holes", [&garbage[..], &sparse()].concat(), fallocate("/f", extend, 290_000, 100_000)),
    ]);
    // Atomic up to a mebibyte.
    let large = |name: &str, setup: Vec<Op>, op: Op| Scenario { size: 8 * MIB, ..scenario(name, setup, op) };
    all.push(large("write-mebibyte", file(0), write("/f", 0, 1 << 20, 1)));
    all.push(large("overwrite-mebibyte", file(1 << 20), write("/f", 100, (1 << 20) - 200, 1)));
    all.push(large("unlink-mebibyte", file(1 << 20), unlink("/f")));
    // Long ones, which end their operation piece by piece. What is freed so is one change nevertheless.
    let len = 2500 << 10;
    let cut = [
        ("truncate-cut-to-0", with(len, &[]), truncate("/f", 0)),
        ("truncate-cut-in-page", with(len, &[]), truncate("/f", 5000)),
        ("truncate-cut-short", with(len, &[fallocate("/f", keep, 0, 3 * MIB)]), truncate("/f", len as u64)),
        ("unlink-cut", with(len, &[]), unlink("/f")),
        ("close-unlinked-cut", with(len, &[open("/f"), unlink("/f")]), close()),
        ("rename-over-cut", with(len, &[create("/g")]), rename("/g", "/f", Rename::Replace)),
    ];
    all.extend(cut.map(|(name, setup, op)| Scenario { frees_later: true, ..large(name, setup, op) }));
    let pieces = [
        ("punch-pieces", fallocate("/f", punch, 5000, 2 * MIB + 300_000)),
        ("zero-pieces", fallocate("/f", zero, 5000, 2 * MIB)),
        ("overwrite-pieces", write("/f", 0, 2 * MIB as usize + 100, 1)),
    ];
    all.extend(pieces.map(|(name, op)| Scenario { by_page: true, ..large(name, with(len, &[]), op) }));
    // Numbers of many pages, by an index that is built beside.
    let shift = [
        ("collapse-many", fallocate("/f", collapse, 1 << 20, 300 << 10)),
        ("collapse-many-from-start", fallocate("/f", collapse, 0, 2 * MIB)),
        ("insert-many", fallocate("/f", insert, 4096, 64 << 10)),
    ];
    let long = || with(len, &[fallocate("/f", keep, 0, 3 * MIB)]);
    all.extend(shift.map(|(name, op)| large(name, long(), op)));
    // The size moves over any amount of what is reserved at once.
    let much = || [&file(100_000)[..], &[fallocate("/f", keep, 0, 3 * MIB)]].concat();
    all.push(large("truncate-up-over-much-reserved", much(), truncate("/f", 3 * MIB - 1)));
    all.push(large("write-beyond-much-reserved", much(), write("/f", 3 * MIB - 10, 100, 1)));
    all
}

fn copy(from: (&str, u64), to: (&str, u64), len: u64) -> Op {
    Op::Copy { from: (from.0.into(), from.1), to: (to.0.into(), to.1), len }
}

/// Directories and inode tables at the moments when they grow and shrink: found by what an operation costs.
fn growth() -> Vec<Scenario> {
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
    let costs = costs(SIZE, ops).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut order: Vec<usize> = range.collect();
    order.sort_by_key(|i| std::cmp::Reverse((costs[*i], *i)));
    order.truncate(n);
    order.into_iter().map(|i| scenario(format!("{name}-{i}"), &ops[..i], ops[i].clone())).collect()
}

/// A full region: an operation either works or fails and leaves nothing; what frees always works.
fn full() -> Vec<Scenario> {
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

/// Compressing, making plain again, whatever changes compressed content, and dictionaries.
pub fn compression() -> Vec<Scenario> {
    use Codec::{Lz4, Zstd};
    let text = |path: &str, len: usize| [create(path), Op::Text(path.into(), len, 42)];
    let compress = |codec| Op::Compress("/f".into(), codec);
    let mut all = Vec::new();
    for (form, len) in [("short", 3000), ("long", 60_000), ("chunks", 150_000)] {
        let plain = text("/f", len);
        let with = |more: &[Op]| [&plain[..], more].concat();
        let size = len as u64;
        let mut add = |name: &str, setup: Vec<Op>, op: Op| {
            let expands = name.starts_with("compressed");
            all.push(Scenario { expands, ..scenario(format!("{name}-{form}"), setup, op) });
        };
        add("compress-warm", with(&[]), compress(Lz4));
        add("compress-cold", with(&[]), compress(Zstd));
        add("compress-colder", with(&[compress(Lz4)]), compress(Zstd));
        add("compress-with-dictionary", with(&[Op::AddDictionary(1)]), compress(Zstd));
        add("expand", with(&[compress(Lz4)]), Op::Expand("/f".into()));
        add("compress-again", with(&[compress(Zstd), Op::Expand("/f".into())]), compress(Lz4));
        let compressed = with(&[compress(Lz4)]);
        let ops = [
            ("write", write("/f", 100, 3000, 1)),
            ("append", append("/f", 5000, 5)),
            ("truncate-to-0", truncate("/f", 0)),
            ("truncate-down", truncate("/f", size / 3)),
            ("truncate-up", truncate("/f", size + 10_000)),
            ("punch", fallocate("/f", Fallocate::PunchHole, 300, 2000)),
            ("zero", fallocate("/f", Fallocate::ZeroRange { keep_size: false }, 300, 5000)),
            ("allocate", fallocate("/f", Fallocate::Allocate { keep_size: true }, 0, 2 * size)),
            ("insert", fallocate("/f", Fallocate::InsertRange, 0, 8192)),
            ("read", Op::Read("/f".into())),
            ("unlink", unlink("/f")),
            ("chmod", Op::Chmod("/f".into(), 0o600)),
        ];
        for (name, op) in ops {
            add(&format!("compressed-{name}"), compressed.clone(), op);
        }
        let other = |more: &[Op]| [&compressed[..], &[create("/g"), write("/g", 0, 700, 3)], more].concat();
        add("compressed-rename-over", other(&[]), rename("/g", "/f", Rename::Replace));
        add("compressed-rename", other(&[]), rename("/f", "/g", Rename::Replace));
        add("compressed-copy", other(&[]), copy(("/f", 10), ("/g", 100), 2000));
        add("compressed-copy-into", other(&[]), copy(("/g", 10), ("/f", 100), 500));
        add("compressed-unlink-open", other(&[open("/f")]), unlink("/f"));
        add("compressed-close-unlinked", other(&[open("/f"), unlink("/f")]), close());
    }
    let plain = text("/f", 3000);
    let with = |more: &[Op]| [&plain[..], more].concat();
    // Nobody sees which of the two it is.
    let mut unseen =
        |name: &str, setup: Vec<Op>, op: Op| all.push(Scenario { by_page: true, ..scenario(name, setup, op) });
    unseen("dictionary-first", with(&[]), Op::AddDictionary(1));
    unseen("dictionary-next", with(&[Op::AddDictionary(1), compress(Zstd)]), Op::AddDictionary(2));
    let used = [Op::AddDictionary(1), Op::AddDictionary(2), compress(Zstd), Op::AddDictionary(3), Op::AddDictionary(4)];
    unseen("dictionaries-drop", with(&used), Op::DropDictionaries);
    unseen("dictionaries-drop-last", with(&[Op::AddDictionary(1), Op::AddDictionary(2)]), Op::DropDictionaries);
    all
}

/// Every single operation.
pub fn singles() -> Vec<Scenario> {
    [names(), attributes(), contents(), growth(), full()].concat()
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

/// Every pair of operations on content, over a file in one block and over one in a tree.
pub fn content_pairs() -> Vec<Scenario> {
    let mut all = Vec::new();
    for (form, len) in [("direct", 10_000), ("tree", 120_000)] {
        let size = len as u64;
        let allocate = Fallocate::Allocate { keep_size: true };
        let zero = Fallocate::ZeroRange { keep_size: false };
        let ops = [
            ("write", write("/f", 100, 3000, 1)),
            ("write-page", write("/f", 4096, 4096, 2)),
            ("write-over-end", write("/f", size - 50, 9000, 3)),
            ("write-far", write("/f", 4 * size, 100, 4)),
            ("append", append("/f", 5000, 5)),
            ("truncate-to-0", truncate("/f", 0)),
            ("truncate-down", truncate("/f", size / 3)),
            ("truncate-up", truncate("/f", 2 * size)),
            ("punch", fallocate("/f", Fallocate::PunchHole, 3000, 6000)),
            ("zero", fallocate("/f", zero, 300, 5000)),
            ("allocate", fallocate("/f", allocate, 0, 3 * size)),
            ("collapse", fallocate("/f", Fallocate::CollapseRange, 4096, 4096)),
            ("insert", fallocate("/f", Fallocate::InsertRange, 4096, 8192)),
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

/// Every operation on inodes that are all packed, packing itself, and again with what has changed and been read since.
pub fn packed() -> Vec<Scenario> {
    let tree = small_tree(700, 40_000, 50);
    let many: Vec<Op> = (0..40).map(|i| create(&format!("/d/{i}"))).collect();
    let with = |more: &[Op]| [&tree[..], more].concat();
    let read = || Op::Read("/a".into());
    let mut all = vec![
        scenario("pack", with(&[]), Op::PackInodes),
        scenario("pack-many", with(&many), Op::PackInodes),
        scenario(
            "pack-some-again",
            with(&[&many[..], &[Op::PackInodes, unlink("/d/3"), create("/new")]].concat()),
            Op::PackInodes,
        ),
        scenario("pack-large", [&file(2500 << 10)[..]].concat(), Op::PackInodes),
        Scenario { atime: Atime::Always, ..scenario("pack-read", with(&[Op::PackInodes, read()]), Op::PackInodes) },
        Scenario { atime: Atime::Always, ..scenario("read-again", with(&[Op::PackInodes, read()]), read()) },
        Scenario {
            atime: Atime::Always,
            ..scenario("change-read", with(&[Op::PackInodes, read()]), append("/a", 9, 9))
        },
        scenario("create-in-packed", with(&[&many[..], &[unlink("/d/3"), Op::PackInodes]].concat()), create("/n")),
    ];
    all[3].size = 8 * MIB;
    let singles = [names(), attributes(), contents()].concat().into_iter().filter(|s| !s.full && s.size <= SIZE);
    all.extend(singles.map(|s| Scenario {
        name: format!("packed-{}", s.name),
        setup: [&s.setup[..], &[Op::PackInodes]].concat(),
        ..s
    }));
    // Whatever is drawn, each operation on inodes that are packed again after the one before.
    let eager = |s: Scenario| Scenario {
        name: s.name.replace("random", "packed-random"),
        setup: s.setup.iter().flat_map(|op| [op.clone(), Op::PackInodes]).collect(),
        ..s
    };
    all.extend(random(0..60).into_iter().map(eager));
    all
}

/// Packing inodes whose times are kept in seconds, one block of them, and changing what is packed so: all times are exact or none is.
pub fn packed_in_seconds() -> Vec<Scenario> {
    let set = Op::SetXattr("/".into(), "user.conquest.times".into(), b"seconds".into());
    let tree = [&[set][..], &small_tree(700, 4000, 50)].concat();
    let with = |more: &[Op]| [&tree[..], more].concat();
    let read = || Op::Read("/a".into());
    let unmodelled = |s| Scenario { modelled: false, ..s };
    let noting = |s| Scenario { atime: Atime::Always, ..s };
    vec![
        unmodelled(scenario("seconds-pack", with(&[]), Op::PackInodes)),
        unmodelled(scenario("seconds-append", with(&[Op::PackInodes]), append("/a", 9, 9))),
        unmodelled(scenario("seconds-create", with(&[Op::PackInodes]), create("/d/n"))),
        unmodelled(scenario(
            "seconds-unset",
            with(&[Op::PackInodes]),
            Op::RemoveXattr("/d".into(), "user.conquest.times".into()),
        )),
        noting(unmodelled(scenario("seconds-read", with(&[Op::PackInodes]), read()))),
        noting(unmodelled(scenario("seconds-pack-read", with(&[Op::PackInodes, read()]), Op::PackInodes))),
    ]
}

/// Operations drawn by a seed on a few names: what nobody thought of.
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
