//! Files between memory and disk: demoted where memory is short, and on the side of their threshold otherwise.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use exraid::Op;

use super::rig::Rig;
use crate::attr::{Caller, Ino, SetAttr};
use crate::codec::Method;
use crate::node::{Fallocate, SetXattr, WriteFlags};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

fn pattern(ino: Ino, len: u64) -> Vec<u8> {
    (0..len).map(|at| ((at + ino * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn filled(rig: &Rig, name: &str, len: u64) -> Ino {
    let ino = rig.create(name);
    rig.write(ino, 0, &pattern(ino, len));
    ino
}

fn cut(rig: &Rig, ino: Ino, size: u64) {
    let how = SetAttr { size: Some(size), ..SetAttr::default() };
    rig.fs.setattr(ino, &how, &Caller::root()).expect("it is cut");
}

fn set(rig: &Rig, ino: Ino, value: &str) {
    let name = b"user.conquest.threshold";
    rig.fs.setxattr(ino, name, value.as_bytes(), SetXattr::Any, &Caller::root()).expect("it can be set");
}

/// All that can go to disk goes.
fn demote_all(rig: &Rig) -> u64 {
    let (mut all, mut idle) = (0, 0);
    while idle < 2 {
        let pages = rig.union().demote(&rig.fs, 1000).expect("it works");
        all += pages;
        idle = if pages == 0 { idle + 1 } else { 0 };
    }
    all
}

/// The work of the threads of processes.
fn follow(rig: &Rig) {
    while rig.union().follow(&rig.fs, true, &|| false).expect("it works") {}
}

fn is_large(rig: &Rig, ino: Ino) -> bool {
    rig.content(ino).is_large()
}

#[test]
fn small_files_go_to_disk_and_come_back() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    follow(&rig);
    let sizes = [4096, 4097, 5000, 20_000, 32 * KIB, 33 * KIB, 64 * KIB, 300_000, MIB];
    let mut files: Vec<Ino> = sizes.iter().map(|len| filled(&rig, &len.to_string(), *len)).collect();
    // With holes, and with memory that is reserved behind the end.
    let sparse = rig.create("sparse");
    rig.write(sparse, 500_000, &pattern(sparse, 10_000));
    let reserved = filled(&rig, "reserved", 6000);
    let keep = Fallocate::Allocate { keep_size: true };
    rig.fs.fallocate(reserved, keep, 0, 20_000).expect("there is room");
    let wide = filled(&rig, "wide", 50_000);
    rig.fs.fallocate(wide, keep, 0, 200_000).expect("there is room");
    files.extend([sparse, reserved, wide]);
    // These stay.
    let kept = [filled(&rig, "none", 100_000), filled(&rig, "less than a page", 4000), rig.create("program")];
    set(&rig, kept[0], "none");
    rig.write(kept[2], 0, &[b"\x7fELF".as_slice(), &pattern(kept[2], 100_000)].concat());
    let all: Vec<Ino> = files.iter().chain(&kept).copied().collect();
    let before: Vec<Vec<u8>> = all.iter().map(|ino| rig.read(*ino)).collect();
    let times: Vec<_> = all.iter().map(|ino| rig.fs.getattr(*ino).expect("it is there")).collect();

    // A threshold that is set has all files looked at.
    follow(&rig);
    assert!(demote_all(&rig) > 400);
    let rig = rig.reopened();
    for (ino, was) in all.iter().zip(&before) {
        assert_eq!(is_large(&rig, *ino), files.contains(ino), "{ino}");
        assert!(rig.read(*ino) == *was, "{ino}");
    }
    for (ino, was) in all.iter().zip(&times) {
        let is = rig.fs.getattr(*ino).expect("it is there");
        assert_eq!((is.size, is.mtime, is.ctime, is.generation), (was.size, was.mtime, was.ctime, was.generation));
    }
    rig.check(&all, true, "after they went");
    let survey = rig.union().survey(&rig.fs).expect("it works");
    assert_eq!(survey.demoted_files, files.len() as u64);

    // Reading them had them noted.
    follow(&rig);
    for (ino, was) in all.iter().zip(&before) {
        assert!(!is_large(&rig, *ino), "{ino}");
        assert!(rig.read(*ino) == *was, "{ino}");
    }
    rig.check(&all, true, "after they came back");
    let counts = rig.union().log().counts(rig.fs.session()).expect("it works");
    assert_eq!((counts.live, counts.promised), (0, 0));
    rig.fs.write(reserved, 6000, &[1; 10_000], WriteFlags::default()).expect("it is reserved");
    rig.check(&all, true, "at last");
}

#[test]
fn the_coldest_go_first() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    let files: Vec<Ino> = (0..40).map(|n| filled(&rig, &n.to_string(), 40_000)).collect();
    let changed = |ino: Ino| rig.fs.getattr(ino).expect("it is there").mtime;
    let last = changed(files[files.len() - 1]);
    // Every third has not been used for long; the clock goes in ticks.
    for ino in files.iter().enumerate().filter(|(n, _)| n % 3 != 0).map(|(_, ino)| *ino) {
        while changed(ino) <= last {
            rig.write(ino, 0, b"!");
        }
    }
    let wanted = 10 * files.iter().step_by(3).count() as u64;
    assert_eq!(rig.union().demote(&rig.fs, wanted).expect("it works"), wanted);
    for (n, ino) in files.iter().enumerate() {
        assert_eq!(is_large(&rig, *ino), n % 3 == 0, "{n}");
    }
}

/// At its first write to a disk from now on `act` is done.
fn at_next_write(rig: &Rig, act: impl FnOnce() + Send + 'static) -> Arc<AtomicBool> {
    let (done, mut act) = (Arc::new(AtomicBool::new(false)), Some(act));
    let changed = done.clone();
    rig.disk.before(move |op| {
        if matches!(op, Op::Write { .. }) {
            if let Some(act) = act.take() {
                act();
                changed.store(true, Ordering::SeqCst);
            }
        }
    });
    done
}

#[test]
fn what_is_written_while_a_file_goes_stays() {
    for (n, (len, at)) in [(30_000, 5000), (30_000, 30_000), (200_000, 0), (200_000, 199_999)].into_iter().enumerate() {
        let rig = Rig::new(64 * MIB, 64, MIB);
        let ino = filled(&rig, "file", len);
        let fs = rig.fs.clone();
        let done = at_next_write(&rig, move || _ = fs.write(ino, at, b"new", WriteFlags::default()).expect("it works"));
        rig.union().demote(&rig.fs, 1000).expect("it works");
        assert!(done.load(Ordering::SeqCst));
        let mut expected = pattern(ino, len);
        expected.resize(len.max(at + 3) as usize, 0);
        expected[at as usize..][..3].copy_from_slice(b"new");
        assert!(rig.read(ino) == expected, "{n}");
        assert!(!is_large(&rig, ino), "it is not cold");
        rig.check(&[ino], true, "written meanwhile");
        assert!(demote_all(&rig) > 0 && rig.read(ino) == expected);
        rig.check(&[ino], true, "then");
    }
}

#[test]
fn a_file_that_ends_while_it_goes_leaves_nothing() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    let ino = filled(&rig, "file", 100_000);
    let fs = rig.fs.clone();
    let done = at_next_write(&rig, move || fs.unlink(crate::ROOT, b"file", &Caller::root()).expect("it works"));
    assert_eq!(rig.union().demote(&rig.fs, 1000).expect("it works"), 0);
    assert!(done.load(Ordering::SeqCst));
    assert!(rig.fs.getattr(ino).is_err());
    rig.check(&[], true, "after it ended");
}

#[test]
fn a_file_that_was_cut_becomes_small() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    let mut files = Vec::new();
    // All on disk, all in blocks, written and dirty, with holes; one that is large still.
    for (name, evicts) in [("on disk", true), ("in blocks", false)] {
        let ino = filled(&rig, name, 3 * MIB);
        rig.union().write_back(&*rig.fs, usize::MAX, None).expect("it works");
        if evicts {
            rig.evict_all();
        }
        files.push(ino);
    }
    files.push(filled(&rig, "dirty", 2 * MIB));
    let holes = filled(&rig, "holes", 2 * MIB);
    rig.fs.fallocate(holes, Fallocate::PunchHole, 10_000, MIB / 2).expect("it works");
    files.push(holes);
    let still = filled(&rig, "still", 2 * MIB);
    files.iter().for_each(|ino| cut(&rig, *ino, 700_001));
    cut(&rig, still, MIB + 1);
    files.push(still);
    let before: Vec<Vec<u8>> = files.iter().map(|ino| rig.read(*ino)).collect();
    assert!(files.iter().all(|ino| is_large(&rig, *ino)));
    follow(&rig);
    for (ino, was) in files.iter().zip(&before) {
        assert_eq!(is_large(&rig, *ino), *ino == still);
        assert!(rig.read(*ino) == *was, "{ino}");
    }
    rig.check(&files, true, "after they followed");
    // And up again, in one write.
    rig.write(files[0], 700_001, &pattern(1, MIB));
    assert!(is_large(&rig, files[0]));
    rig.check(&files, true, "after one grew");
}

#[test]
fn a_file_whose_copy_cannot_be_read_stays_as_it_is() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    let ino = filled(&rig, "file", 2 * MIB);
    rig.union().write_back(&*rig.fs, usize::MAX, None).expect("it works");
    rig.evict_all();
    // Other bytes where its content was.
    rig.disk.spoil(4 * MIB);
    cut(&rig, ino, MIB);
    follow(&rig);
    assert!(is_large(&rig, ino));
    assert!(rig.fs.read(ino, 0, &mut vec![0; MIB as usize]).is_err());
    rig.check(&[ino], true, "after it stayed");
}

#[test]
fn files_follow_a_threshold_that_was_changed() {
    let rig = Rig::new(64 * MIB, 100, MIB);
    let sizes = [50_000, 70_000, 200_000, 900_000, MIB + 5, 5 * MIB, 9 * MIB];
    let files: Vec<Ino> = sizes.iter().map(|len| filled(&rig, &len.to_string(), *len)).collect();
    let program = rig.create("program");
    rig.write(program, 0, &[b"\x7fELF".as_slice(), &pattern(program, 200_000)].concat());
    follow(&rig);
    let right = |rig: &Rig, threshold: u64| {
        for (ino, len) in files.iter().zip(sizes) {
            assert_eq!(is_large(rig, *ino), len > threshold, "{len} of {threshold}");
            assert!(rig.read(*ino) == pattern(*ino, len), "{len} of {threshold}");
        }
        assert!(!is_large(rig, program));
        rig.check(&[files.as_slice(), &[program]].concat(), true, &threshold.to_string());
        assert_eq!(rig.union().survey(&rig.fs).expect("it works").left, 0);
    };
    right(&rig, MIB);
    assert!(!rig.union().follow(&rig.fs, true, &|| false).expect("it works"), "nothing is to do");
    let mut rig = rig;
    for threshold in [64 * KIB, 4 * MIB, 256 * KIB, MIB] {
        rig = rig.with_threshold(threshold);
        assert!(rig.union().survey(&rig.fs).expect("it works").left > 0);
        follow(&rig);
        right(&rig, threshold);
    }
}

#[test]
fn a_file_follows_its_own_threshold() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    let ino = filled(&rig, "file", 3 * MIB);
    for (value, large) in [("none", false), ("64K", true), ("4M", false), ("2M", true)] {
        set(&rig, ino, value);
        follow(&rig);
        assert_eq!(is_large(&rig, ino), large, "{value}");
        assert!(rig.read(ino) == pattern(ino, 3 * MIB), "{value}");
        rig.check(&[ino], true, value);
    }
    // Also where the process that set it is no more.
    set(&rig, ino, "none");
    let rig = rig.reopened();
    follow(&rig);
    assert!(!is_large(&rig, ino));
    rig.check(&[ino], true, "by another process");
}

/// Pages that lie in memory of a file that is large go to disk too.
#[test]
fn the_rest_of_a_file_follows() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    let ino = rig.create("file");
    set(&rig, ino, "none");
    rig.write(ino, 0, &pattern(ino, 8 * MIB));
    rig.fs.removexattr(ino, b"user.conquest.threshold", &Caller::root()).expect("it is set");
    let mut expected = pattern(ino, 8 * MIB);
    rig.write(ino, 4 * MIB, b"new");
    expected[4 * MIB as usize..][..3].copy_from_slice(b"new");
    assert!(is_large(&rig, ino), "with more pages than one transaction takes");
    let free = super::super::free_memory(rig.fs.session());
    follow(&rig);
    assert!(super::super::free_memory(rig.fs.session()) > free + 7 * MIB);
    assert!(rig.read(ino) == expected);
    rig.check(&[ino], true, "the rest");
}

#[test]
fn more_small_files_than_memory_holds_fit_where_there_is_a_disk() {
    let rig = Rig::new(16 * MIB, 100, MIB);
    for len in [64 * KIB, 20 * KIB, 4 * KIB] {
        let count = 40 * MIB / len;
        let files: Vec<Ino> = (0..count.min(4000)).map(|n| filled(&rig, &format!("{len}-{n}"), len)).collect();
        for ino in &files {
            assert!(rig.read(*ino) == pattern(*ino, len), "{ino} of {len}");
        }
        rig.check(&files, true, &len.to_string());
        for n in 0..files.len() {
            rig.fs.unlink(crate::ROOT, format!("{len}-{n}").as_bytes(), &Caller::root()).expect("it works");
        }
    }
}

/// Half of it repeats, so that about half of it is left once it is compressed.
fn text(ino: Ino, len: u64) -> Vec<u8> {
    let mut text = pattern(ino, len);
    text.chunks_mut(64).for_each(|line| line.iter_mut().skip(32).for_each(|byte| *byte = b' '));
    text
}

fn compressed(rig: &Rig, name: &str, content: impl Fn(Ino) -> Vec<u8>) -> Ino {
    let ino = rig.create(name);
    rig.write(ino, 0, &content(ino));
    let method = if ino % 2 == 0 { Method::Lz4 } else { Method::Zstd(None) };
    rig.fs.compress(ino, &method).expect("it works");
    assert!(crate::file::is_compressed(&rig.content(ino)), "{name}");
    ino
}

/// Compressed files stayed in memory for ever, and new ones went to disk.
#[test]
fn compressed_files_go_to_disk_too_and_come_back() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    follow(&rig);
    let sizes = [100_000, 100_001, 300_000, 500_000, MIB - 1, MIB];
    let files: Vec<Ino> = sizes.iter().map(|len| compressed(&rig, &len.to_string(), |ino| text(ino, *len))).collect();
    let program = compressed(&rig, "program", |ino| [b"\x7fELF".as_slice(), &text(ino, 300_000)].concat());
    let all: Vec<Ino> = files.iter().chain([&program]).copied().collect();
    let before: Vec<Vec<u8>> = all.iter().map(|ino| rig.read(*ino)).collect();
    let free = rig.fs.session().runtime().free_chunks();
    assert!(demote_all(&rig) > 400);
    assert!(rig.fs.session().runtime().free_chunks() > free);
    assert!(!is_large(&rig, program), "programs stay");
    let rig = rig.reopened();
    for (ino, was) in files.iter().zip(&before) {
        assert!(is_large(&rig, *ino), "{ino}");
        assert!(rig.read(*ino) == *was, "{ino}");
    }
    rig.check(&all, true, "after they went");
    assert_eq!(rig.fs.fsck(false, &mut |_, _| {}).expect("it runs").leaked_objects, 0);
    follow(&rig);
    for (ino, was) in all.iter().zip(&before) {
        assert!(!is_large(&rig, *ino) && rig.read(*ino) == *was, "{ino}");
    }
    rig.check(&all, true, "after they came back");
}

#[test]
fn a_compressed_file_that_changes_while_it_goes_stays() {
    let rig = Rig::new(64 * MIB, 64, MIB);
    let ino = compressed(&rig, "file", |ino| text(ino, 300_000));
    let fs = rig.fs.clone();
    let act = move || {
        // To other bytes, compressed again: perhaps to where the first ones lay.
        fs.write(ino, 7, b"new", WriteFlags::default()).expect("it works");
        fs.compress(ino, &Method::Zstd(None)).expect("it works");
    };
    let done = at_next_write(&rig, act);
    assert_eq!(rig.union().demote(&rig.fs, 1000).expect("it works"), 0);
    assert!(done.load(Ordering::SeqCst));
    let mut expected = text(ino, 300_000);
    expected[7..10].copy_from_slice(b"new");
    assert!(rig.read(ino) == expected && !is_large(&rig, ino));
    rig.check(&[ino], true, "written meanwhile");
    assert!(demote_all(&rig) > 0 && rig.read(ino) == expected);
    rig.check(&[ino], true, "then");
}
