//! The figures and settings for comparisons with other caches.

use super::super::policy::{BlockState, Scheme};
use super::rig::Rig;
use crate::file;
use crate::node::Fallocate;

const PAGE: u64 = 4096;

#[test]
fn a_page_is_frozen_clean_and_on_disk_in_turn() {
    let rig = Rig::new(64 << 20, 64, 8 << 10);
    let ino = rig.create("file");
    let state = |page| rig.union().state(&*rig.fs, ino, page).expect("it can be read");
    rig.write(ino, 0, &vec![1; 16 * PAGE as usize]);
    assert_eq!((state(0), state(16)), (Some(BlockState::Frozen), None));
    assert_eq!(rig.union().write_back(&*rig.fs, usize::MAX, None).expect("there is room"), 16);
    assert_eq!(state(0), Some(BlockState::Clean));
    rig.evict_all();
    assert_eq!(state(0), None);
    let before = rig.union().capacity(rig.fs.session());
    rig.write(ino, 0, &vec![2; PAGE as usize]);
    assert_eq!((state(0), state(1)), (Some(BlockState::Frozen), None));
    assert!(rig.union().capacity(rig.fs.session()).abs_diff(before) <= 64, "blocks in use count as room");
}

#[test]
fn a_buffer_cache_changes_dirty_blocks_where_they_are_and_the_union_does_not() {
    let rig = Rig::new(64 << 20, 64, 8 << 10);
    let ino = rig.create("file");
    let mut bytes = vec![1; 16 * PAGE as usize];
    rig.write(ino, 0, &bytes);
    let block = || file::block_of(rig.fs.memory(), &rig.content(ino), 3).expect("it can be read").expect("in memory");
    let mut change = |at: u64, len: usize, with: u8| {
        let before = block();
        rig.write(ino, at, &vec![with; len]);
        bytes[at as usize..at as usize + len].fill(with);
        assert!(rig.read(ino) == bytes, "{len} bytes at {at}");
        before == block()
    };
    assert!(!change(3 * PAGE, PAGE as usize, 2));
    rig.union().choose(Scheme::Buffer);
    assert!(change(3 * PAGE, PAGE as usize, 3));
    assert!(change(3 * PAGE + 100, 7, 4));
    assert!(rig.union().write_back(&*rig.fs, usize::MAX, None).expect("there is room") > 0);
    assert!(!change(3 * PAGE + 50, 100, 5), "what a segment has does not change");
    rig.union().choose(Scheme::Union);
    assert!(!change(3 * PAGE, 9, 6));
    rig.fs.fallocate(ino, Fallocate::PunchHole, 0, PAGE).expect("it needs nothing");
    assert_eq!(rig.union().state(&*rig.fs, ino, 0).expect("it can be read"), None);
    rig.check(&[ino], true, "after all of it");
}
