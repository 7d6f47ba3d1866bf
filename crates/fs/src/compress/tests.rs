//! Which files are due.

use zerocopy::FromZeros;

use crate::node::{Fallocate, Policy, ReadFlags, WriteFlags};
use crate::{Caller, ROOT};

use super::*;
use crate::layout::Root;
use crate::setting::Setting;

const DAY: i64 = 86_400_000_000_000;

fn file(quiet: i64, size: u64, setting: Option<&str>) -> RawInode {
    let mut raw = RawInode::new_zeroed();
    (raw.kind, raw.nlink, raw.size) = (Kind::Regular as u8, 1, size);
    raw.content = Root { off: 4096, form: 1, depth: 0 }.pack();
    raw.ctime = 10 * DAY - quiet;
    if let Some(value) = setting {
        let set = Setting::Compression.parse(value.as_bytes()).unwrap();
        Setting::Compression.set(&mut raw, set);
    }
    raw
}

fn is_due(raw: &RawInode, plan: &Plan) -> Due {
    due(raw, &content_of(5, raw), 10 * DAY, plan)
}

#[test]
fn age_and_setting_decide() {
    let (second, minute) = (1_000_000_000, 60_000_000_000);
    use Codec::{Lz4, Zstd};
    let usual = Plan::default();
    for (setting, quiet, is) in [
        (None, 9 * minute, None),
        (None, 11 * minute, Some(Lz4)),
        (None, 2 * DAY, Some(Zstd)),
        (Some("auto"), 11 * minute, Some(Lz4)),
        (Some("never"), 9 * DAY, None),
        (Some("always"), 9 * second, None),
        (Some("always"), 11 * second, Some(Zstd)),
        (Some("warm"), 9 * DAY, Some(Lz4)),
        (Some("cold"), 9 * minute, None),
        (Some("cold"), 11 * minute, Some(Zstd)),
    ] {
        let due = is_due(&file(quiet, 4096, setting), &usual);
        let otherwise = if setting == Some("never") { Due::Nothing } else { Due::Later };
        assert_eq!(due, is.map_or(otherwise, Due::Compress), "{setting:?}, {quiet}");
    }
    assert_eq!(is_due(&file(0, 4096, None), &Plan::now(Zstd)), Due::Compress(Zstd));
    assert_eq!(is_due(&file(0, 4096, None), &Plan::now(Lz4)), Due::Compress(Lz4));
    assert_eq!(is_due(&file(0, 4096, Some("never")), &Plan::now(Zstd)), Due::Nothing);
    let pressed = usual.under_pressure();
    assert_eq!(is_due(&file(5 * second, 4096, None), &pressed), Due::Later);
    assert_eq!(is_due(&file(11 * second, 4096, None), &pressed), Due::Compress(Lz4));
    assert_eq!(is_due(&file(11 * minute, 4096, None), &pressed), Due::Compress(Zstd));
}

#[test]
fn what_cannot_gain_is_left_alone() {
    let plan = Plan::default();
    for size in [0, LEAST - 1, codec::MOST + 1] {
        assert_eq!(is_due(&file(2 * DAY, size, None), &plan), Due::Nothing);
    }
    for depth in [1 << 6, 1 << 7] {
        let mut raw = file(2 * DAY, 4096, None);
        raw.content = Root { off: 4096, form: 2, depth: depth | 1 }.pack();
        assert_eq!(is_due(&raw, &plan), Due::Nothing);
    }
    let mut raw = file(2 * DAY, 4096, None);
    raw.nlink = 0;
    assert_eq!(is_due(&raw, &plan), Due::Nothing);
    let mut raw = file(2 * DAY, 4096, None);
    raw.kind = Kind::Symlink as u8;
    assert_eq!(is_due(&raw, &plan), Due::Nothing);
    // A time to come says nothing.
    let mut raw = file(2 * DAY, 4096, None);
    raw.atime = 11 * DAY;
    assert_eq!(is_due(&raw, &plan), Due::Compress(Codec::Zstd));
    raw.atime = 10 * DAY - 1;
    assert_eq!(is_due(&raw, &plan), Due::Later, "it was read");
}

#[test]
fn what_is_known_counts() {
    let (old, recent) = (2 * DAY, DAY / 2);
    let with = |quiet, trial| {
        let mut raw = file(quiet, 4096, None);
        let mut c = content_of(5, &raw);
        c.note_trial(trial);
        assert_eq!(c.trial(), trial);
        raw.content = c.root;
        raw
    };
    let plan = Plan::default();
    assert_eq!(is_due(&with(recent, Trial::NotQuickly), &plan), Due::Nothing);
    assert_eq!(is_due(&with(old, Trial::NotQuickly), &plan), Due::Compress(Codec::Zstd));
    assert_eq!(is_due(&with(old, Trial::NotAtAll), &plan), Due::Nothing);
    assert_eq!(is_due(&with(old, Trial::NotAtAll), &Plan::now(Codec::Zstd)), Due::Compress(Codec::Zstd));
    assert_eq!(is_due(&with(old, Trial::Hot), &plan), Due::Cool);
    let compressed = |codec: Codec| {
        let mut raw = file(old, 4096, None);
        raw.content = Root { off: 4096, form: 3, depth: codec as u8 }.pack();
        raw
    };
    assert_eq!(is_due(&compressed(Codec::Lz4), &plan), Due::Compress(Codec::Zstd));
    assert_eq!(is_due(&compressed(Codec::Zstd), &plan), Due::Nothing);
}

fn small_pool() -> Fs {
    let session = pram::Session::in_memory(6 << 20).unwrap();
    session.clock().jump();
    Fs::format(&session, (0, 0, 0o755), 1).unwrap();
    Fs::over(session, Policy::default()).unwrap()
}

fn add(fs: &Fs, n: usize, content: &[u8]) -> Result<Ino> {
    let attr = fs.create(ROOT, format!("f{n}").as_bytes(), Kind::Regular, 0o644, 0, &Caller::root())?;
    fs.write(attr.ino, 0, content, WriteFlags::default()).map(|_| attr.ino)
}

/// A pool takes several times as much as it has memory for, however young it is, and is full in the end.
#[test]
fn a_nearly_full_pool_finds_room() {
    let fs = small_pool();
    let text: Vec<u8> = b"all of these lines are much the same\n".iter().copied().cycle().take(9000).collect();
    let mut inos = Vec::new();
    let full = loop {
        match add(&fs, inos.len(), &text) {
            Ok(ino) => inos.push(ino),
            Err(e) => break e,
        }
    };
    assert_eq!(full.errno(), Errno::NOSPC);
    assert!(inos.len() * 9000 > 3 * (6 << 20), "{} files", inos.len());
    let mut buf = vec![0; 9000];
    for ino in inos {
        assert_eq!(fs.read_as(ino, 0, &mut buf, ReadFlags { unnoted: true, caller_caches: true }).unwrap(), 9000);
        assert!(buf == text);
    }
    assert!(fs.fsck(false, &mut |_, _| {}).unwrap().problems.is_empty());
}

/// Even a few files that are being written make room, and again once they were: a call was refused for lack of it.
#[test]
fn little_that_is_young_makes_room() {
    let fs = small_pool();
    let rest = fs.create(ROOT, b"rest", Kind::Regular, 0o644, 0, &Caller::root()).unwrap().ino;
    let left = 600 << 10;
    let reserved = fs.statfs().available_blocks * 4096 - left;
    fs.fallocate(rest, Fallocate::Allocate { keep_size: false }, 0, reserved).unwrap();
    let text: Vec<u8> = b"all of these lines are much the same\n".iter().copied().cycle().take(9000).collect();
    let count = 3 * left as usize / text.len();
    for n in 0..count {
        add(&fs, n, &text).unwrap_or_else(|e| panic!("file {n} of {count}: {e}"));
    }
}

/// Files with compression forbidden stay plain, and incompressible ones are tried once.
#[test]
fn a_full_pool_is_full() {
    for (forbidden, random) in [(true, false), (false, true)] {
        let fs = small_pool();
        if forbidden {
            fs.shortage.forbid();
        }
        let mut rng = rng::Rng::new(1);
        let text: Vec<u8> = (0..9000).map(|n| if random { rng.next() as u8 } else { n as u8 / 64 }).collect();
        let count = (0..).take_while(|n| add(&fs, *n, &text).is_ok()).count();
        assert!(count * 9000 < 6 << 20, "{count} files");
        assert!(!shortage::free_memory(&fs, fs.shortage.freed()).unwrap());
    }
}

/// Files that are due for zstd wait until it is decided whether to make a dictionary.
#[test]
fn cold_files_can_be_put_off() {
    let fs = small_pool();
    let ino = fs.create(ROOT, b"f", Kind::Regular, 0o644, 0, &Caller::root()).unwrap().ino;
    fs.write(ino, 0, &[b'x'; 5000], WriteFlags::default()).unwrap();
    let mut compressor = Compressor::new(&fs, Plan::now(Codec::Zstd)).unwrap();
    compressor.puts_off = true;
    compressor.see(ino).unwrap();
    assert_eq!((compressor.put_off, compressor.done.compressed), (1, 0));
    compressor.puts_off = false;
    compressor.see(ino).unwrap();
    assert_eq!(compressor.done.compressed, 1);
}

/// The same by several threads at once: none is refused content that the pool has room for.
#[test]
fn several_fill_a_pool_beyond_its_memory() {
    let session = pram::Session::in_memory(64 << 20).unwrap();
    Fs::format(&session, (0, 0, 0o755), 1).unwrap();
    let fs = Fs::over(session, Policy::default()).unwrap();
    std::thread::scope(|s| {
        for t in 0..4 {
            let fs = &fs;
            s.spawn(move || {
                for n in 0..2000 {
                    let text = vec![t as u8; 1 + n * 61 % 60_000];
                    add(fs, t * 10_000 + n, &text).unwrap_or_else(|e| panic!("file {n} of thread {t}: {e}"));
                }
            });
        }
    });
    assert!(fs.fsck(false, &mut |_, _| {}).unwrap().problems.is_empty());
}

/// A file of several pieces finds room between them.
#[test]
fn long_changes_of_a_nearly_full_pool_find_room() {
    let session = pram::Session::in_memory(24 << 20).unwrap();
    Fs::format(&session, (0, 0, 0o755), 1).unwrap();
    let fs = Fs::over(session, Policy::default()).unwrap();
    let text: Vec<u8> = b"all of these lines are much the same\n".iter().copied().cycle().take(9000).collect();
    (0..2000).for_each(|n| _ = add(&fs, n, &text).unwrap());
    let long = |name: &[u8]| fs.create(ROOT, name, Kind::Regular, 0o644, 0, &Caller::root()).unwrap().ino;
    let noise = rng::Rng::new(1).bytes(8 << 20);
    let written = long(b"written");
    fs.write(written, 0, &noise, WriteFlags::default()).unwrap();
    fs.fallocate(long(b"allocated"), crate::node::Fallocate::Allocate { keep_size: false }, 0, 6 << 20).unwrap();
    let mut found = vec![0; noise.len()];
    assert_eq!(fs.read(written, 0, &mut found).unwrap(), found.len());
    assert!(found == noise);
    assert!(fs.fsck(false, &mut |_, _| {}).unwrap().problems.is_empty());
}
