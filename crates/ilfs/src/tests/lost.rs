//! Reading lost blocks fails at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use exraid::{Aligned, Buffers};

use super::super::checksums::Sums;
use super::super::place::{Place, Run, BLOCK};
use super::super::table::{Segment, SlotState};
use super::super::Head;
use super::replicas::{file, world, MOST};
use super::rig::{block, content, session_of, snapshot, Rig, MIB, SEGMENT};
use super::world::World;

fn bytes_read(world: &World) -> u64 {
    world.rig.log.regions().iter().map(|region| region.performance().read.bytes).sum()
}

/// Regression: each page of a segment without summaries had the whole segment searched again.
#[test]
fn what_is_known_to_be_lost_is_not_looked_for_again() {
    let world = world(1, &[]);
    world.write(&file(1, 0..MOST)).expect("there is room");
    // Overwrites the summary, and some content.
    let places: Vec<Place> = world.pages.lock().expect("not poisoned").iter().map(|(_, (place, _))| *place).collect();
    world.rig.disk.overwrite(MIB, &vec![0xd5; MIB as usize / 2]);
    let world = World::with(world.rig.reopened(), Default::default(), 1, 0);
    let fails = |place: Place| {
        let memory = Buffers::whole(&Aligned::zeroed(BLOCK as usize));
        let reading = world.rig.log.read(&world.rig.session, Run::one(place), memory);
        reading.and_then(|reading| reading.wait(&world.rig.log, &world.rig.session)).is_err()
    };
    assert!(fails(places[0]));
    let once = bytes_read(&world);
    assert!(places[1..].iter().all(|place| fails(*place)));
    // The page itself, and the first summary.
    let each = (bytes_read(&world) - once) / (places.len() as u64 - 1);
    assert!(each <= 16 * BLOCK, "{each} bytes for each page, of a segment of {MIB}");
}

/// Two parts of one segment, whose summaries are in no cache any more, and a page of each.
fn parts() -> (World, [Place; 2]) {
    let world = world(1, &[]);
    let places = [1, 2].map(|ino| world.rig.write(Head::Hot, &[block(ino, 0, ino)]).expect("there is room")[0]);
    assert_eq!(places[0].sequence(), places[1].sequence());
    (World::with(world.rig.reopened(), Default::default(), 1, 0), places)
}

fn hide_summary(world: &World, place: Place) {
    let at = MIB + u64::from(place.block() - 1) * BLOCK;
    world.rig.disk.overwrite(at, &vec![0xd5; BLOCK as usize]);
}

fn is_right(world: &World, place: Place, seed: u64) -> bool {
    world.rig.read(Run::one(place)).is_ok_and(|found| found == content(seed))
}

/// Regression: after one wrong answer of a disk all content of the segment was lost for a while, and a check could have
/// called it lost for good.
#[test]
fn what_was_hidden_once_is_not_known_to_be_lost() {
    let (world, [first, second]) = parts();
    let good = world.rig.disk.content();
    hide_summary(&world, first);
    let only_first = world.rig.disk.content();
    hide_summary(&world, second);
    assert!(!is_right(&world, first, 1));
    // The part behind the one that is really lost.
    world.rig.disk.replace(only_first);
    assert!(is_right(&world, second, 2) && !is_right(&world, first, 1) && !is_right(&world, first, 1));
    // The part that another process was writing meanwhile.
    world.rig.disk.replace(good);
    assert!(is_right(&world, first, 1));
}

/// A summary beside a lost one had been found, and its checksums were forgotten.
#[test]
fn what_is_beside_what_is_lost_is_read_when_its_checksums_were_forgotten() {
    let (world, [first, second]) = parts();
    hide_summary(&world, first);
    assert!((0..3).all(|_| !is_right(&world, first, 1)));
    assert!(is_right(&world, second, 2));
    *world.rig.log.sums() = Sums::new(10);
    assert!(is_right(&world, second, 2) && !is_right(&world, first, 1));
}

/// Regression: on a disk that was hardly used all slots were read, 42 s for a TiB.
#[test]
fn content_is_sought_below_the_high_water_mark() {
    let rig = Rig::new(1 << 12);
    rig.write(Head::Hot, &[block(1, 0, 1)]).expect("there is room");
    let before = snapshot(&rig.session);
    // The last slot below the mark, and the first one above.
    let last = (rig.log.regions()[0].high_water() / SEGMENT) as u32 - 1;
    let full = Segment { sequence: 1 << 20, state: SlotState::Full, parts: 1, used: 2, ..Segment::FREE };
    rig.log.change(&rig.session, |change| change.adopt(last - 1, full)).expect("room");
    let blocks: Vec<_> = (0..2 * u64::from(rig.log.content_of_segment())).map(|page| block(2, page, page)).collect();
    let places = rig.write(Head::Hot, &blocks).expect("there is room");
    let slots: BTreeSet<u32> =
        places.iter().map(|place| rig.log.find(&rig.session, *place).expect("it is there").0).collect();
    assert_eq!(slots, [0, last, last + 1].into());
    let rig = Rig::of(Arc::new(session_of(&before)), rig.disk.clone(), rig.faults.clone());
    let read = || rig.log.regions()[0].performance().read.bytes;
    let first = read();
    assert_eq!(rig.log.recover(&rig.session, true).expect("in order").segments, 2);
    let (read, mark) = (read() - first, rig.log.regions()[0].high_water() / SEGMENT);
    assert!(places
        .iter()
        .zip(0..)
        .all(|(place, seed)| rig.read(Run::one(*place)).is_ok_and(|found| found == content(seed))));
    assert!(mark < 256 && read < (1 << 12) * BLOCK / 4, "{read} bytes read for {mark} slots");
    rig.check();
}
