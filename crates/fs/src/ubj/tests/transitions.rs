//! The transitions of a block's states (UBJ, Figure 3), each by itself. On memory that is kept each write commits, so a block is
//! dirty and frozen from its birth; that of a running transaction there is on `logged` alone, where the state follows from the epoch.

use super::super::policy::BlockState;
use super::rig::Rig;
use crate::attr::Ino;
use crate::file;

const PAGE: u64 = 4096;

/// A large file of 16 pages.
fn rig() -> (Rig, Ino) {
    let rig = Rig::new(64 << 20, 64, 8 << 10);
    let ino = rig.create("file");
    rig.write(ino, 0, &vec![1; 16 * PAGE as usize]);
    (rig, ino)
}

fn state(rig: &Rig, ino: Ino) -> Option<BlockState> {
    rig.union().state(&*rig.fs, ino, 3).expect("it can be read")
}

fn block(rig: &Rig, ino: Ino) -> Option<u64> {
    file::block_of(rig.fs.memory(), &rig.content(ino), 3).expect("it can be read")
}

fn write_back(rig: &Rig) -> u64 {
    rig.union().write_back(&*rig.fs, usize::MAX, None).expect("there is room")
}

/// Requests that the disk has got.
fn requests(rig: &Rig) -> usize {
    rig.disk.disk.tape().len()
}

#[test]
fn what_is_written_is_dirty() {
    let (rig, ino) = rig();
    assert_eq!((state(&rig, ino), rig.blocks_of(ino), requests(&rig)), (Some(BlockState::Frozen), 16, 0));
}

/// Normal to frozen, in place: no data is written, nothing moves.
#[test]
fn a_commit_freezes_blocks_where_they_are() {
    let (rig, ino) = rig();
    let before = block(&rig, ino);
    rig.commit();
    assert_eq!((state(&rig, ino), block(&rig, ino), requests(&rig)), (Some(BlockState::Frozen), before, 0));
}

/// Frozen and up to date to frozen and out of date: the new content is in a copy. The old commit is released with the new one.
#[test]
fn a_write_to_a_frozen_block_goes_to_a_copy_and_the_old_one_is_released() {
    let (rig, ino) = rig();
    let before = block(&rig, ino);
    rig.write(ino, 3 * PAGE + 5, &[2; 10]);
    assert!(block(&rig, ino) != before && state(&rig, ino) == Some(BlockState::Frozen));
    assert_eq!(rig.blocks_of(ino), 16, "one for each page");
    rig.check(&[ino], true, "written to");
}

/// While a checkpoint is at the old commit that stays as it is, and is free when that has ended.
#[test]
fn what_is_out_of_date_stays_as_long_as_it_is_written_and_is_free_then() {
    let (rig, ino) = rig();
    let (old, heap) = (block(&rig, ino).expect("it is in memory"), rig.fs.session().heap());
    let transfer = rig.fs.session().transfer(old, 1).expect("it works").expect("nobody else is at it");
    rig.write(ino, 3 * PAGE, &[2; PAGE as usize]);
    assert!(heap.is_put_off(old));
    let bytes: &[std::sync::atomic::AtomicU8] = (*transfer).as_ref();
    assert!(bytes.iter().all(|byte| byte.load(std::sync::atomic::Ordering::Relaxed) == 1), "what was committed");
    drop(transfer);
    assert_eq!((rig.fs.session().free_ended().expect("it works"), heap.is_put_off(old)), (1, false));
    rig.check(&[ino], true, "ended");
}

/// Frozen and up to date to normal and clean.
#[test]
fn a_checkpoint_makes_what_is_up_to_date_clean_where_it_is() {
    let (rig, ino) = rig();
    let before = block(&rig, ino);
    assert_eq!(write_back(&rig), 16);
    assert_eq!((state(&rig, ino), block(&rig, ino)), (Some(BlockState::Clean), before));
    assert_eq!(write_back(&rig), 0, "what is clean is not written again");
}

/// Frozen and out of date to free: of several committed versions the last one is written.
#[test]
fn a_checkpoint_writes_the_last_commit_alone() {
    let (rig, ino) = rig();
    write_back(&rig);
    for version in 2..6 {
        rig.write(ino, 3 * PAGE, &[version; PAGE as usize]);
        rig.commit();
    }
    assert_eq!((write_back(&rig), state(&rig, ino)), (1, Some(BlockState::Clean)));
    rig.evict_all();
    assert_eq!(rig.read(ino)[3 * PAGE as usize], 5);
    rig.check(&[ino], true, "written back");
}

/// Clean to dirty: the block on disk stays until the new one is committed, and its place is given up with that.
#[test]
fn a_write_to_a_clean_block_makes_the_page_dirty() {
    let (rig, ino) = rig();
    write_back(&rig);
    let before = block(&rig, ino);
    rig.write(ino, 3 * PAGE, &[2; 100]);
    assert!(state(&rig, ino) == Some(BlockState::Frozen) && block(&rig, ino) != before);
    rig.check(&[ino], true, "written to");
    assert_eq!(write_back(&rig), 1);
}

/// Clean to free, and back by a read that is repeated or a write of a part.
#[test]
fn what_is_clean_leaves_the_memory_and_what_is_dirty_does_not() {
    let (rig, ino) = rig();
    rig.evict_all();
    assert_eq!((state(&rig, ino), rig.blocks_of(ino)), (Some(BlockState::Frozen), 16));
    write_back(&rig);
    rig.evict_all();
    assert_eq!((state(&rig, ino), rig.blocks_of(ino)), (None, 0));
    rig.write(ino, 3 * PAGE + 1, &[2]);
    assert_eq!((state(&rig, ino), rig.blocks_of(ino)), (Some(BlockState::Frozen), 1));
}

/// Reads are served in any state and change none.
#[test]
fn a_read_changes_no_state() {
    let (rig, ino) = rig();
    let mut seen = Vec::new();
    let steps: [fn(&Rig); 4] = [|_| (), |rig| _ = rig.commit(), |rig| _ = write_back(rig), |rig| rig.evict_all()];
    for step in steps {
        step(&rig);
        let before = (state(&rig, ino), block(&rig, ino));
        assert!(rig.read(ino).iter().all(|byte| *byte == 1));
        assert_eq!((state(&rig, ino), block(&rig, ino)), before);
        seen.push(before.0);
    }
    assert_eq!(seen, [Some(BlockState::Frozen), Some(BlockState::Frozen), Some(BlockState::Clean), None]);
}

/// Any state to none: truncation, a hole, the end of the file.
#[test]
fn what_is_cut_off_is_free_whatever_its_state() {
    for clean in [false, true] {
        let (rig, ino) = rig();
        if clean {
            write_back(&rig);
        }
        rig.fs.fallocate(ino, crate::node::Fallocate::PunchHole, 3 * PAGE, PAGE).expect("it needs nothing");
        assert_eq!((state(&rig, ino), rig.blocks_of(ino)), (None, 15));
        rig.fs.unlink(crate::ROOT, b"file", &crate::attr::Caller::root()).expect("it is there");
        assert_eq!(rig.blocks_of(ino), 0);
        rig.check(&[], true, "gone");
    }
}
