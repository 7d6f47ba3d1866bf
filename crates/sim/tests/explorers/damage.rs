//! A memory with damaged bytes: with any damage, nothing panics, hangs or corrupts memory; the check answers; repair
//! leaves a file system that is clean and works.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::panic::{catch_unwind, AssertUnwindSafe};

use conquest_fs::layout::{tag, RawInode, INODE, PER_BLOCK};
use conquest_fs::{Caller, Fs, Ino, Kind, ROOT};
use pram::memory::TAGS;
use rng::Rng;
use sim::explore::damage::{cross_word, flip_bit, set_byte, zero_line, zero_lines, Damage};
use sim::explore::{damaged_base, damaged_base_packed, open_bytes, work_after_repair};
use sim::tree::{snapshot, Snapshot};

/// The results for damaged file systems.
#[derive(Debug, Default)]
struct Tally {
    refused: u64,
    unnoticed: u64,
    repaired: u64,
}

fn survive(bytes: &[u8], tally: &mut Tally) -> Result<(), String> {
    let Ok(fs) = open_bytes(bytes) else {
        tally.refused += 1;
        return Ok(());
    };
    // Reading damage gives errors at worst.
    let readable = snapshot(&fs);
    let found = fs.fsck(false, &mut |_, _| {}).map_err(|e| format!("fsck: {e}"))?;
    if found.problems.is_empty() {
        usable(&readable.map_err(|e| format!("fsck finds nothing, but {e}"))?)?;
        remove_all(&fs, ROOT).map_err(|e| format!("fsck finds nothing, but removing fails: {e}"))?;
        tally.unnoticed += 1;
        return Ok(());
    }
    fs.fsck(true, &mut |_, _| {}).map_err(|e| format!("repair: {e}"))?;
    let left = fs.fsck(false, &mut |_, _| {}).map_err(|e| format!("fsck after repair: {e}"))?;
    if let Some(p) = left.problems.first() {
        return Err(format!("not repaired: {p}; found {:?}", found.problems));
    }
    usable(&snapshot(&fs).map_err(|e| format!("after repair, {e}"))?)?;
    work_after_repair(&fs)?;
    remove_all(&fs, ROOT).map_err(|e| format!("removing after repair: {e}"))?;
    let end = fs.fsck(false, &mut |_, _| {}).map_err(|e| format!("fsck at the end: {e}"))?;
    if let Some(p) = end.problems.first() {
        return Err(format!("after everything was removed: {p}"));
    }
    tally.repaired += 1;
    Ok(())
}

/// Fails if a kernel would refuse to work with a file.
fn usable(seen: &Snapshot) -> Result<(), String> {
    for (path, attr) in &seen.attrs {
        let text = || format!("{}: {attr:?}", String::from_utf8_lossy(path));
        if attr.size > i64::MAX as u64 || attr.uid == u32::MAX || attr.gid == u32::MAX || attr.nlink == 0 {
            return Err(text());
        }
        if !matches!(attr.kind, Kind::Regular | Kind::Directory | Kind::Symlink) && attr.size > 0 {
            return Err(text());
        }
    }
    match seen.attrs.get(&b"/"[..]) {
        Some(root) if root.kind == Kind::Directory => Ok(()),
        root => Err(format!("the root: {root:?}")),
    }
}

/// Removes everything below a directory.
fn remove_all(fs: &Fs, dir: Ino) -> conquest_fs::Result<()> {
    let mut all = Vec::new();
    fs.readdir(dir, 0, &mut |e| {
        if e.name != b"." && e.name != b".." {
            all.push((e.name.to_vec(), e.ino, e.kind));
        }
        true
    })?;
    for (name, ino, kind) in all {
        if kind == Kind::Directory {
            remove_all(fs, ino)?;
            fs.rmdir(dir, &name, &Caller::root())?;
        } else {
            fs.unlink(dir, &name, &Caller::root())?;
        }
    }
    Ok(())
}

fn rounds() -> u64 {
    if sim::verdict::full() {
        20_000
    } else {
        800
    }
}

fn inflict(damage: Damage, seed: u64) -> Tally {
    inflict_on(damaged_base(&[tag::DATA]), damage, seed)
}

fn inflict_on((good, places): (Vec<u8>, Vec<(u64, u64)>), damage: Damage, seed: u64) -> Tally {
    let mut tally = Tally::default();
    let mut wrong = Vec::new();
    for round in 0..rounds() {
        let mut rng = Rng::new(seed * 1_000_000 + round);
        let mut bytes = good.clone();
        let harm = damage(&mut rng, &mut bytes, &places);
        try_it(&bytes, harm, &mut tally, &mut wrong);
    }
    conclude(tally, &wrong)
}

fn try_it(bytes: &[u8], harm: String, tally: &mut Tally, wrong: &mut Vec<String>) {
    match catch_unwind(AssertUnwindSafe(|| survive(bytes, tally))) {
        Ok(Ok(())) => {}
        Ok(Err(e)) => wrong.push(format!("{harm}: {e}")),
        Err(_) => wrong.push(format!("{harm}: panicked")),
    }
}

fn conclude(tally: Tally, wrong: &[String]) -> Tally {
    eprintln!("{tally:?}");
    assert!(wrong.is_empty(), "{} of {tally:?}:\n{}", wrong.len(), wrong[..wrong.len().min(10)].join("\n"));
    tally
}

/// The first inodes of each type, including the root: type, place of the inode, place of its length.
fn inodes(bytes: &[u8], places: &[(u64, u64)]) -> Vec<(u8, usize, usize)> {
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    // The first place is the segment table.
    for (block, _) in &places[1..] {
        for n in 0..PER_BLOCK {
            let (length, at) = ((block + n) as usize, (block + PER_BLOCK + n * INODE) as usize);
            let kind = bytes[at + offset_of!(RawInode, kind)];
            if u64::from(bytes[length]) == INODE && seen.iter().filter(|k| **k == kind).count() < 3 {
                seen.push(kind);
                found.push((kind, at, length));
            }
        }
    }
    found
}

/// The fields of an inode: name, place, bytes.
const FIELDS: [(&str, usize, usize); 15] = [
    ("content", offset_of!(RawInode, content), 8),
    ("size", offset_of!(RawInode, size), 8),
    ("extra", offset_of!(RawInode, extra), 8),
    ("mtime", offset_of!(RawInode, mtime), 8),
    ("ctime", offset_of!(RawInode, ctime), 8),
    ("atime", offset_of!(RawInode, atime), 8),
    ("btime", offset_of!(RawInode, btime), 8),
    ("xattr", offset_of!(RawInode, xattr), 8),
    ("perm", offset_of!(RawInode, perm), 4),
    ("nlink", offset_of!(RawInode, nlink), 4),
    ("generation", offset_of!(RawInode, generation), 4),
    ("kind", offset_of!(RawInode, kind), 1),
    ("delay", offset_of!(RawInode, delay), 1),
    ("settings", offset_of!(RawInode, settings), 2),
    ("all", 0, INODE as usize),
];

/// Each field of an inode: all zeros, all ones, one, its highest bit flipped, its lowest, one of each of its bytes.
#[test]
fn each_field_of_an_inode_can_be_wrong() {
    let others: Vec<_> = (1..TAGS as u8).map(pram::Tag).filter(|t| *t != tag::INODE_BLOCK).collect();
    let (good, places) = damaged_base(&others);
    let inodes = inodes(&good, &places);
    let kinds: BTreeSet<u8> = inodes.iter().map(|(kind, ..)| *kind).collect();
    assert!(kinds.len() >= 4, "{kinds:?}");
    let (mut tally, mut wrong) = (Tally::default(), Vec::new());
    for (kind, at, length) in inodes {
        for (name, from, len) in FIELDS {
            let field = at + from..at + from + len;
            let mut damages: Vec<(String, Vec<u8>)> =
                vec![("zeros".into(), vec![0; len]), ("ones".into(), vec![0xff; len])];
            let mut one = vec![0; len];
            one[0] = 1;
            damages.push(("one".into(), one));
            for bit in (0..len * 8).step_by(if len > 8 { 61 } else { 7 }).chain([len * 8 - 1]) {
                let mut value = good[field.clone()].to_vec();
                value[bit / 8] ^= 1 << (bit % 8);
                damages.push((format!("bit {bit}"), value));
            }
            for (how, value) in damages {
                let mut bytes = good.clone();
                bytes[field.clone()].copy_from_slice(&value);
                try_it(&bytes, format!("{name} of type {kind} at {at:#x}: {how}"), &mut tally, &mut wrong);
            }
        }
        for value in [0, 1, 0xff] {
            let mut bytes = good.clone();
            bytes[length] = value;
            try_it(&bytes, format!("length of type {kind} at {at:#x}: {value}"), &mut tally, &mut wrong);
        }
    }
    let tally = conclude(tally, &wrong);
    assert!(tally.repaired > 100, "{tally:?}");
}

/// Many lines of tables, inodes and directories lost at once: repair ends, and leaves nothing to repair.
#[test]
fn lost_lines_are_survived() {
    let tally = inflict(|rng, bytes, places| zero_lines(rng, bytes, places, 9), 4);
    assert!(tally.repaired > rounds() / 10, "{tally:?}");
}

#[test]
fn flipped_bits_are_survived() {
    let tally = inflict(flip_bit, 1);
    assert!(tally.repaired > rounds() / 10, "{tally:?}");
}

#[test]
fn wrong_bytes_are_survived() {
    let tally = inflict(set_byte, 2);
    assert!(tally.repaired > rounds() / 10, "{tally:?}");
}

/// Any damage of packed inodes, of the profiles for reading them, and of references to either.
#[test]
fn damage_of_packed_inodes_is_survived() {
    for (seed, damage) in (5..).zip([flip_bit as Damage, set_byte, cross_word, zero_line]) {
        let tally = inflict_on(damaged_base_packed(), damage, seed);
        assert!(tally.repaired > rounds() / 20, "{tally:?}");
    }
}

#[test]
fn crossed_words_are_survived() {
    let tally = inflict(cross_word, 3);
    assert!(tally.repaired > rounds() / 10, "{tally:?}");
}
