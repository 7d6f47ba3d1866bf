//! A table of a TiB: the time of a pass over all its segments grows in proportion to their number.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exraid::fault::RamDisk;
use exraid::region::make;
use exraid::{Layout, Region};
use pram::Session;

use super::super::replicas::Task;
use super::super::storage_class::Class;
use super::super::table::{Segment, SlotState, KEY};
use super::super::{Log, SEGMENT};
use super::rig::{options, MIB, POOL};

/// Segments of half a TiB, of which a second replica is due.
const MANY: u32 = 1 << 17;
const FEWER: u32 = MANY / 8;

/// A log with so many segments in the first of two regions, and as much room in the other.
fn log(segments: u32) -> (Arc<Session>, Log) {
    let bytes = u64::from(segments) * SEGMENT + 2 * MIB;
    let region = |n| make(POOL, n, Layout::Single, vec![RamDisk::new(&format!("disk{n}"), bytes)]).expect("a region");
    let regions: Vec<Arc<dyn Region>> = (0..2).map(region).collect();
    let session = Arc::new(pram::Session::in_memory(64 * MIB).unwrap());
    Log::format(&session, &regions, SEGMENT).expect("a log");
    let log = Log::open(&session, &regions, options()).expect("the log").expect("there is one");
    let one = |slot: u32| Segment {
        sequence: u64::from(slot) + 1,
        live: 1 + slot % 700,
        state: SlotState::Full,
        class: Class::Lazy(0).code(),
        used: 800,
        parts: 1,
        ..Segment::FREE
    };
    for first in (0..segments).step_by(32) {
        let some = || first..(first + 32).min(segments);
        log.change(&session, |change| some().try_for_each(|slot| change.adopt(slot, one(slot)))).expect("room");
    }
    (session, log)
}

/// Checks that the pass takes each segment once; returns its time.
fn time(segments: u32, pass: fn(&Session, &Log) -> u32) -> Duration {
    let (session, log) = log(segments);
    let began = Instant::now();
    assert_eq!(pass(&session, &log), segments);
    began.elapsed()
}

fn is_linear(what: &str, pass: fn(&Session, &Log) -> u32) {
    let (fewer, many) = (time(FEWER, pass), time(MANY, pass));
    eprintln!("{what}: {FEWER} segments {fewer:?}, {MANY} segments {many:?}");
    assert!(many < fewer * 8 * 3, "{what}: {fewer:?} for {FEWER} segments, {many:?} for {MANY}");
}

#[test]
fn a_pass_of_scrubbing_is_linear() {
    is_linear("scrubbing", |session, log| {
        let mut taken = 0;
        while let Some((sequence, _)) = log.next_to_scrub(session).expect("an answer") {
            log.set_scrubbed(session, sequence + 1, 0).expect("noted");
            taken += 1;
        }
        taken
    });
}

#[test]
fn a_pass_of_copying_is_linear() {
    is_linear("copying", |session, log| {
        let (mut taken, first) = (0, log.at.table(session.memory()).region(1).expect("it is there").first);
        while let Some(task) = log.next_task(session).expect("an answer") {
            let Task::Make { slot, .. } = task else { panic!("there is nothing too much") };
            log.change(session, |change| change.adopt_replica(slot, first + taken, false)).expect("it is copied");
            taken += 1;
        }
        taken
    });
}

#[test]
fn a_pass_of_balancing_is_linear() {
    is_linear("balancing", |session, log| {
        let (mut taken, mut last) = (0, u32::MAX);
        while let Some((slot, segment)) = log.movable(session, 0, &[1]).expect("an answer") {
            assert!(segment.live <= last, "the fullest come first");
            last = segment.live;
            log.change(session, |change| change.put(slot, &Segment { state: SlotState::Cleaning, ..segment }))
                .expect("put");
            taken += 1;
        }
        taken
    });
}

#[test]
fn a_pass_of_cleaning_is_linear() {
    is_linear("cleaning", |session, log| {
        let mut taken = 0;
        while let Some((slot, segment)) = log.choose(session).expect("an answer") {
            log.change(session, |change| change.free(slot, &segment, 1)).expect("it is freed");
            taken += 1;
        }
        taken
    });
}

#[test]
fn a_pass_over_what_leaves_is_linear() {
    is_linear("leaving", |session, log| {
        log.change(session, |change| change.set_health(0, super::super::table::Health::Leaving)).expect("it leaves");
        let (mut taken, table) = (0, log.at.table(session.memory()));
        while let Some((slot, segment)) = log.next_to_leave(session).expect("an answer") {
            log.change(session, |change| change.free(slot, &segment, 1)).expect("it is freed");
            assert!(session.read(KEY, || table.get(slot)).expect("read").state == SlotState::Freed);
            taken += 1;
        }
        taken
    });
}
