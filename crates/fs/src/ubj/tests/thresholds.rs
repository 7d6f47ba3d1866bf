//! Beyond which size a file's content goes to disk.

use super::rig::Rig;
use crate::attr::{Caller, Ino, SetAttr};
use crate::node::{Fallocate, SetXattr};
use crate::path::View;

const MIB: u64 = 1 << 20;
const SET: &[u8] = b"user.conquest.threshold";
const EFFECTIVE: &[u8] = b"user.conquest.effective.threshold";

fn set(rig: &Rig, ino: Ino, value: &str) {
    rig.fs.setxattr(ino, SET, value.as_bytes(), SetXattr::Any, &Caller::root()).expect("it can be set");
}

fn xattr(rig: &Rig, ino: Ino, name: &[u8]) -> Option<String> {
    rig.fs.getxattr(ino, name).ok().map(|value| String::from_utf8(value).expect("text"))
}

/// Lets it reach to `end`; is it large then?
fn grows(rig: &Rig, ino: Ino, end: u64) -> bool {
    let from = rig.content(ino).size;
    rig.write(ino, from, &pattern(from, end));
    assert_eq!(rig.read(ino), pattern(0, end));
    rig.content(ino).is_large()
}

fn pattern(from: u64, end: u64) -> Vec<u8> {
    (from..end).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn a_file_goes_to_disk_beyond_its_own_threshold() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    let usual = rig.create("usual");
    assert_eq!((xattr(&rig, usual, SET), xattr(&rig, usual, EFFECTIVE)), (None, Some(MIB.to_string())));
    assert!(!grows(&rig, usual, MIB));
    assert!(grows(&rig, usual, MIB + 1));

    let low = rig.create("low");
    set(&rig, low, "64K");
    assert_eq!((xattr(&rig, low, SET), xattr(&rig, low, EFFECTIVE)), (Some("65536".into()), Some("65536".into())));
    assert!(!grows(&rig, low, 65536));
    assert!(grows(&rig, low, 65537));

    let high = rig.create("high");
    set(&rig, high, "4M");
    assert!(!grows(&rig, high, 4 * MIB));
    assert!(grows(&rig, high, 4 * MIB + 1));

    let kept = rig.create("kept");
    set(&rig, kept, "none");
    assert_eq!(xattr(&rig, kept, EFFECTIVE).as_deref(), Some("none"));
    assert!(!grows(&rig, kept, 9 * MIB));
    rig.fs.fallocate(kept, Fallocate::Allocate { keep_size: false }, 9 * MIB, MIB).expect("there is room");
    assert!(!rig.content(kept).is_large());
    rig.check(&[usual, low, high, kept], true, "after growing");
}

#[test]
fn a_threshold_counts_when_a_file_grows() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    let file = rig.create("file");
    set(&rig, file, "none");
    assert!(!grows(&rig, file, 3 * MIB));
    rig.fs.removexattr(file, SET, &Caller::root()).expect("it is set");
    assert!(!rig.content(file).is_large(), "nothing was written to it since");
    assert!(grows(&rig, file, 3 * MIB + 5));
    // It stays large, with any setting and at any length, until nothing is left of it.
    set(&rig, file, "none");
    assert!(grows(&rig, file, 4 * MIB));
    let cut = |size| {
        let how = SetAttr { size: Some(size), ..SetAttr::default() };
        rig.fs.setattr(file, &how, &Caller::root()).expect("it is cut");
    };
    cut(5000);
    assert!(grows(&rig, file, 6000));
    rig.evict_all();
    assert_eq!(rig.read(file), pattern(0, 6000));
    cut(0);
    assert!(!grows(&rig, file, 2 * MIB));
    rig.check(&[file], true, "after it was cut");
}

#[test]
fn a_threshold_is_inherited() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    let view = View::new(&rig.fs, Caller::root());
    let dir = view.mkdir(b"dir", 0o755).expect("a directory").ino;
    set(&rig, dir, "none");
    rig.fs.setxattr(dir, b"user.conquest.durability", b"strict", SetXattr::Any, &Caller::root()).expect("set");
    let below = view.mkdir(b"dir/below", 0o755).expect("a directory").ino;
    set(&rig, dir, "128k");
    let (old, new) = (view.mkdir(b"dir/below/old", 0o755), view.mkdir(b"dir/new", 0o755));
    for (ino, value) in [(below, "none"), (old.expect("made").ino, "none"), (new.expect("made").ino, "131072")] {
        assert_eq!(xattr(&rig, ino, SET).as_deref(), Some(value));
        assert_eq!(xattr(&rig, ino, b"user.conquest.durability").as_deref(), Some("strict"), "both are inherited");
        let names = rig.fs.listxattr(ino).expect("names");
        assert_eq!(names, b"user.conquest.durability\0user.conquest.threshold\0");
    }
    rig.fs.removexattr(below, b"user.conquest.durability", &Caller::root()).expect("it is set");
    assert_eq!(xattr(&rig, below, SET).as_deref(), Some("none"), "each by itself");
}

/// The same bytes, as a program begins.
fn program(end: u64) -> Vec<u8> {
    let mut bytes = pattern(0, end);
    bytes[..4].copy_from_slice(b"\x7fELF");
    bytes
}

fn is_large_with(rig: &Rig, name: &str, bytes: &[u8], piece: usize) -> bool {
    let ino = rig.create(name);
    for (n, piece_of) in bytes.chunks(piece).enumerate() {
        rig.write(ino, (n * piece) as u64, piece_of);
    }
    assert_eq!(rig.read(ino), bytes, "{name}");
    rig.check(&[ino], false, name);
    rig.content(ino).is_large()
}

#[test]
fn programs_stay_in_memory_by_how_they_begin() {
    let rig = Rig::new(64 * MIB, 64, 128 << 10);
    let size = 3 * MIB;
    for piece in [4096, 100_000, 1 << 20, 4 << 20] {
        assert!(!is_large_with(&rig, &format!("in pieces of {piece}"), &program(size), piece));
    }
    assert!(is_large_with(&rig, "other content", &pattern(0, size), 1 << 20));
    let mut almost = program(size);
    almost[3] = b'G';
    assert!(is_large_with(&rig, "almost", &almost, 1 << 20));
    // It begins so byte by byte, and the first write beyond the threshold is a hole away.
    let slow = rig.create("slow");
    for (at, byte) in (0u64..).zip(b"\x7fELF") {
        rig.write(slow, at, &[*byte]);
    }
    rig.write(slow, 2 * MIB, b"far away");
    assert!(!rig.content(slow).is_large());
    // One that is none any more goes with the next write, and one that only becomes one later stays where it is.
    rig.write(slow, 0, b"\0");
    rig.write(slow, 2 * MIB, b"far away");
    assert!(rig.content(slow).is_large());
    rig.write(slow, 0, &program(4096));
    assert!(rig.content(slow).is_large());
    rig.check(&[slow], false, "slow");
}

#[test]
fn programs_stay_in_memory_as_long_as_there_is_room() {
    let rig = Rig::new(32 * MIB, 128, 128 << 10);
    // Twice as much as memory holds, all of which is accepted.
    let large = (0..32).filter(|n| is_large_with(&rig, &format!("program {n}"), &program(2 * MIB), 1 << 20)).count();
    assert!((16..28).contains(&large), "{large} of 32 went to disk");
}
