//! Clean blocks in memory that are the last copy of their pages.

use std::sync::Arc;

use exraid::fault::RamDisk;
use exraid::region::make;
use exraid::{Layout, Region, Uuid};
use rng::Rng;

use super::super::{Options, Union};
use super::rig::Rig;
use crate::attr::{Caller, Ino, Kind};
use crate::node::{Fs, Policy, WriteFlags};
use ilfs::Log;
use pram::budget::Budget;

const MIB: u64 = 1 << 20;
const LEN: u64 = 3 * MIB;

fn scrub(fs: &Fs, union: &Union) -> Vec<ilfs::scrub::Wrong> {
    let slots = union.log().segments_to_scrub(fs.session()).expect("the table can be read");
    let mut budget = Budget::unlimited();
    let mut scrub = |(sequence, slot)| union.scrub_one(fs, sequence, slot, &mut budget, 0).expect("it works");
    let scrubbed = slots.into_iter().map(&mut scrub);
    scrubbed.flat_map(|one| one.wrong).collect()
}

/// A pool with a file that is clean in memory, and its content.
fn with_clean_file() -> (Rig, Ino, Vec<u8>) {
    let rig = Rig::new(64 * MIB, 24, MIB);
    let file = rig.create("file");
    let content = Rng::new(1).bytes(LEN as usize);
    rig.write(file, 0, &content);
    rig.union().write_all(&rig.fs).expect("there is room");
    assert_eq!(rig.blocks_of(file), LEN / 4096);
    (rig, file, content)
}

/// Writes all dirty blocks, and evicts everything.
fn write_and_evict(fs: &Fs, union: &Union) {
    union.write_all(fs).expect("there is room");
    (0..3).for_each(|_| _ = union.evict(fs, u64::MAX, None).expect("it works"));
}

/// Damaged blocks of a disk are in memory: scrubbing has them written anew.
#[test]
fn scrubbing_saves_what_memory_holds() {
    let (rig, file, content) = with_clean_file();
    // Behind the first summary.
    rig.disk.disk.overwrite(MIB + MIB / 2, &vec![0xd5; MIB as usize / 4]);
    let wrong = scrub(&rig.fs, rig.union());
    assert!(wrong.len() > 10 && wrong.iter().all(|one| one.repaired && one.from_memory), "{wrong:?}");
    rig.check(&[file], true, "after scrubbing");
    write_and_evict(&rig.fs, rig.union());
    assert_eq!(rig.blocks_of(file), 0);
    assert!(rig.read(file) == content);
    assert_eq!(scrub(&rig.fs, rig.union()), []);
    rig.check(&[file], true, "after it was written anew");
    let rig = rig.reopened();
    assert!(rig.read(file) == content);
}

/// It does so also if the summary of the blocks is damaged.
#[test]
fn scrubbing_saves_what_no_summary_tells_of() {
    let (rig, file, content) = with_clean_file();
    rig.disk.disk.overwrite(MIB, &vec![0xd5; 2 * MIB as usize]);
    // Blocks that this process has read lately are known to it.
    let rig = rig.reopened();
    let wrong = scrub(&rig.fs, rig.union());
    assert!(wrong.len() > 10 && wrong.iter().all(|one| one.repaired && one.from_memory), "{wrong:?}");
    write_and_evict(&rig.fs, rig.union());
    assert!(rig.read(file) == content);
    rig.check(&[file], true, "after it was written anew");
}

/// Content that memory does not hold is lost, and reported so, also if no summary tells its file.
#[test]
fn what_memory_does_not_hold_is_reported_as_lost() {
    for at in [MIB, MIB + MIB / 2] {
        let (rig, file, _) = with_clean_file();
        rig.evict_all();
        assert_eq!(rig.blocks_of(file), 0);
        rig.disk.disk.overwrite(at, &vec![0xd5; MIB as usize / 4]);
        let rig = rig.reopened();
        let wrong = scrub(&rig.fs, rig.union());
        assert!(wrong.iter().any(|one| one.owner.ino == file && !one.repaired), "at {at}: {wrong:?}");
        rig.check(&[file], true, "after scrubbing");
    }
}

/// A pool of two disks with a file that is clean in memory, on both of them.
fn with_two_disks() -> (Arc<Fs>, Ino, Vec<u8>) {
    let region = |number| -> Arc<dyn Region> {
        let disk = RamDisk::new(&format!("disk {number}"), 26 * MIB);
        make(Uuid([7; 16]), number, Layout::Single, vec![disk]).expect("a region")
    };
    let (regions, session) = ([region(0), region(1)], pram::Session::in_memory(64 * MIB).unwrap());
    Fs::format(&session, (0, 0, 0o755), 1).expect("a file system");
    Log::format(&session, &regions, MIB).expect("a log");
    let options = Options { threshold: MIB, ..Options::default() };
    let union = Union::open(&session, &regions, options).expect("the log is opened");
    let fs = Arc::new(Fs::over(session, Policy::default()).expect("a file system").with_union(union));
    let content = Rng::new(2).bytes(12 * MIB as usize);
    let file = fs.create(crate::ROOT, b"file", Kind::Regular, 0o644, 0, &Caller::root()).expect("a file").ino;
    let union = fs.union().expect("it has one").clone();
    // Where the segments go is decided by how fast the regions seem to be: on a busy machine one may get next to nothing for a while.
    for round in 0.. {
        for (n, some) in content.chunks(MIB as usize).enumerate() {
            fs.write(file, n as u64 * MIB, some, WriteFlags::default()).expect("there is room");
        }
        union.write_all(&fs).expect("there is room");
        let has = |number| union.log().held_in(fs.session(), number).expect("it is there").live > MIB;
        if has(0) && has(1) {
            break;
        }
        assert!(round < 20, "one region gets nothing");
    }
    (fs, file, content)
}

fn is_right(fs: &Fs, file: Ino, content: &[u8]) {
    let mut bytes = vec![0xee; content.len()];
    assert_eq!(fs.read(file, 0, &mut bytes).expect("it can be read"), bytes.len());
    assert!(bytes == content);
}

/// A region is gone: blocks that it had and memory holds are not evicted, but written to the other.
#[test]
fn what_a_missing_region_had_is_written_elsewhere_before_it_is_evicted() {
    let (fs, file, content) = with_two_disks();
    let union = fs.union().expect("it has one").clone();
    union.log().ignore(fs.session(), 1).expect("it works");
    assert_eq!(union.log().fence_missing(fs.session()).expect("it works"), [1]);
    write_and_evict(&fs, &union);
    is_right(&fs, file, &content);
    write_and_evict(&fs, &union);
    is_right(&fs, file, &content);
    assert_eq!(fs.lost().expect("it runs"), []);
    assert_eq!(union.log().held_in(fs.session(), 1).expect("it is there").live, 0);
}

/// It becomes dirty at once when that is found, without any eviction.
#[test]
fn what_a_missing_region_had_is_dirty_when_that_is_found() {
    let (fs, file, content) = with_two_disks();
    let union = fs.union().expect("it has one").clone();
    assert_eq!(union.redirty_doubtful(&fs).expect("it works"), 0);
    union.log().ignore(fs.session(), 0).expect("it works");
    let redirtied = union.redirty_doubtful(&fs).expect("it works");
    assert!(redirtied > MIB / 4096);
    assert_eq!(union.redirty_doubtful(&fs).expect("it works"), 0, "once");
    assert_eq!(union.status(fs.session()).expect("it works").dirty, redirtied);
    assert!(union.log().give_up_region(fs.session(), 0).is_ok());
    write_and_evict(&fs, &union);
    is_right(&fs, file, &content);
}

/// Where no other region takes content, blocks in memory stay there.
#[test]
fn what_can_go_nowhere_stays_in_memory() {
    let (fs, file, content) = with_two_disks();
    let union = fs.union().expect("it has one").clone();
    (0..2).for_each(|number| union.log().ignore(fs.session(), number).expect("it works"));
    (0..3).for_each(|_| assert_eq!(union.evict(&*fs, u64::MAX, None).expect("it works"), 0));
    is_right(&fs, file, &content);
}
