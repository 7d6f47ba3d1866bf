//! Reports of content whose place on disk is gone.

use std::sync::atomic::Ordering;

use rng::Rng;

use super::rig::Rig;
use crate::attr::{Caller, Ino, Kind, SetAttr};
use crate::fsck::Lost;
use ilfs::table::{Change, Where};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const LEN: u64 = 4 * MIB + 100;

/// A pool with a file of 4 MiB and 100 bytes, `/dir/file`, on segments that were used again since, and that file.
fn with_older_memory(keeps: bool, others: u64) -> (Rig, Ino) {
    let rig = Rig::new(64 * MIB, 24, MIB);
    rig.disk.keeps.store(keeps, Ordering::Relaxed);
    let caller = Caller::root();
    let dir = rig.fs.create(crate::ROOT, b"dir", Kind::Directory, 0o755, 0, &caller).expect("a directory").ino;
    let file = rig.fs.create(dir, b"file", Kind::Regular, 0o644, 0, &caller).expect("a file").ino;
    // In many parts.
    let content = Rng::new(1).bytes(LEN as usize);
    for (n, some) in content.chunks(100 * PAGE as usize).enumerate() {
        rig.write(file, n as u64 * 100 * PAGE, some);
        rig.union().write_all(&rig.fs).expect("there is room");
    }
    rig.union().move_to_disk(&rig.fs, file).expect("there is room");
    assert_eq!(rig.fs.lost().expect("it runs"), []);
    let older = rig.commit();
    // The file goes, and its segments are used for others.
    let forget = |ino| {
        rig.fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }, &caller).expect("it is cut");
        rig.commit();
        rig.union().free_segments(&rig.fs, 20, true, &mut || true).expect("it works");
    };
    forget(file);
    for n in 0..others {
        let other = rig.create(&format!("other {n}"));
        rig.write(other, 0, &Rng::new(2 + n).bytes((MIB + MIB / 2) as usize));
        rig.union().move_to_disk(&rig.fs, other).expect("there is room");
        rig.commit();
        forget(other);
    }
    (rig.put_back(&older), file)
}

/// The report of the file names exactly its unreadable pages.
fn is_reported_rightly(rig: &Rig, file: Ino) -> Vec<Lost> {
    let lost = rig.fs.lost().expect("it runs");
    assert!(!lost.is_empty());
    let mut buf = [0; PAGE as usize];
    let is_lost = |at: u64| lost.iter().any(|lost| (lost.first..=lost.last).contains(&at));
    for at in (0..LEN).step_by(PAGE as usize) {
        assert_eq!(rig.fs.read(file, at, &mut buf).is_err(), is_lost(at), "byte {at}");
    }
    for lost in &lost {
        assert_eq!((lost.ino, lost.path.as_deref()), (file, Some("/dir/file")), "{lost:?}");
        assert!(lost.first % PAGE == 0 && lost.last < LEN && lost.why.contains("used again"), "{lost:?}");
    }
    assert_eq!(rig.fs.fsck(false, &mut |_, _| {}).expect("it runs").lost, lost);
    lost
}

/// Memory that is put back leads to segments that were used again since.
#[test]
fn content_of_older_memory_is_reported_by_path_and_range() {
    let (rig, file) = with_older_memory(false, 9);
    is_reported_rightly(&rig, file);
}

/// A disk that gives nothing back has older content after the parts that were written to a segment since.
#[test]
fn what_was_not_overwritten_yet_is_not_reported_as_lost() {
    let (rig, file) = with_older_memory(true, 1);
    let lost = is_reported_rightly(&rig, file);
    let ends_within = |lost: &Lost| lost.last + 1 < LEN;
    assert!(lost.iter().any(ends_within), "something is there yet: {lost:?}");
}

/// Content that is lost for good reads as zeros once a user has confirmed that; nothing else changes.
#[test]
fn what_is_lost_for_good_becomes_zeros() {
    let (rig, file) = with_older_memory(false, 9);
    let lost = is_reported_rightly(&rig, file);
    assert!(lost.iter().all(|lost| lost.for_good), "{lost:?}");
    // One page of it has been written since.
    let at = lost[0].first;
    rig.write(file, at, &[7; PAGE as usize]);
    let zeroed = rig.fs.zero_lost().expect("it works");
    let bytes = |ranges: &[Lost]| ranges.iter().map(|one| one.last - one.first + 1).sum::<u64>();
    assert_eq!(bytes(&zeroed), bytes(&lost) - PAGE, "{zeroed:?}");
    assert_eq!(zeroed[0].path.as_deref(), Some("/dir/file"));
    assert_eq!(rig.fs.lost().expect("it runs"), []);
    let (found, written) = (rig.read(file), Rng::new(1).bytes(LEN as usize));
    for (n, page) in found.chunks(PAGE as usize).enumerate() {
        let start = n as u64 * PAGE;
        let is_zeroed = zeroed.iter().any(|lost| (lost.first..=lost.last).contains(&start));
        match start == at {
            true => assert!(page.iter().all(|byte| *byte == 7), "what was written"),
            false if is_zeroed => assert!(page.iter().all(|byte| *byte == 0), "byte {start}"),
            false => assert!(page == &written[start as usize..][..page.len()], "byte {start}"),
        }
    }
    rig.check(&[file], false, "after it was made zeros");
    assert_eq!(rig.fs.zero_lost().expect("it works"), []);
}

/// A slot that is in no list, since the process that was giving it back to the disk has died: a check reports that a crash has
/// left it, which is no problem, and repair makes it free.
#[test]
fn a_slot_that_nobody_gives_back_is_reported_and_mended() {
    let rig = Rig::new(64 * MIB, 24, MIB);
    let file = rig.create("file");
    rig.write(file, 0, &Rng::new(1).bytes(LEN as usize));
    rig.union().move_to_disk(&rig.fs, file).expect("there is room");
    rig.fs.setattr(file, &SetAttr { size: Some(0), ..SetAttr::default() }, &Caller::root()).expect("it is cut");
    rig.union().free_segments(&rig.fs, 20, false, &mut || true).expect("it works");
    let session = rig.fs.session();
    let mut op = session.begin().expect("begun");
    op.lock(&[ilfs::KEY]).expect("locked");
    let mut tx = op.tx().expect("begun");
    let (at, _) = Where::find(session.memory()).expect("read").expect("there is a log");
    let taken = Change::new(&mut tx, at).take_freed(u64::MAX, 1 << 40, 0).expect("taken");
    tx.commit().expect("committed");
    drop(op);
    assert!(taken.is_some(), "something was freed");
    let check = |repair| {
        let report = rig.fs.fsck(repair, &mut |_, _| {}).expect("it runs");
        (report.problems, report.leaked_slots)
    };
    let free = || rig.union().log().counts(session).expect("an answer").free;
    let before = free();
    assert_eq!((check(false), free()), ((Vec::new(), 1), before), "looking changes nothing");
    assert_eq!((check(true), free()), ((Vec::new(), 1), before + 1));
    assert_eq!(check(false), (Vec::new(), 0));
    rig.check(&[file], true, "after it was mended");
}
