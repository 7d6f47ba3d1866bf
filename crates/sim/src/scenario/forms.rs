//! Inodes and content in their other forms: compressed, and packed.

use conquest_fs::codec::Codec;
use conquest_fs::node::{Atime, Fallocate, Rename};

use super::contents::contents;
use super::names::{attributes, names};
use super::{file, random, scenario, small_tree, Scenario, MIB, SIZE};
use crate::op::*;

/// Compressing, making plain again, all changes of compressed content, and dictionaries.
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
    // The two forms look the same.
    let mut unseen =
        |name: &str, setup: Vec<Op>, op: Op| all.push(Scenario { by_page: true, ..scenario(name, setup, op) });
    unseen("dictionary-first", with(&[]), Op::AddDictionary(1));
    unseen("dictionary-next", with(&[Op::AddDictionary(1), compress(Zstd)]), Op::AddDictionary(2));
    let used = [Op::AddDictionary(1), Op::AddDictionary(2), compress(Zstd), Op::AddDictionary(3), Op::AddDictionary(4)];
    unseen("dictionaries-drop", with(&used), Op::DropDictionaries);
    unseen("dictionaries-drop-last", with(&[Op::AddDictionary(1), Op::AddDictionary(2)]), Op::DropDictionaries);
    all
}

/// Every operation on inodes that are all packed; packing itself; packing again after changes and reads.
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
    // Random operations, each on inodes that are packed again after the one before.
    let eager = |s: Scenario| Scenario {
        name: s.name.replace("random", "packed-random"),
        setup: s.setup.iter().flat_map(|op| [op.clone(), Op::PackInodes]).collect(),
        ..s
    };
    all.extend(random(0..60).into_iter().map(eager));
    all
}

/// Packing inodes whose times are stored in seconds, one block of them, and changing packed ones: all times are exact or
/// none is.
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
