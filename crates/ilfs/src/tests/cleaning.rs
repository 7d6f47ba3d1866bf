//! The cleaner, and salvage from the disk alone.

use std::collections::BTreeMap;
use std::time::Duration;

use exraid::Region;
use rng::Rng;

use super::super::bad_slots::REST;
use super::super::clean::{Cleaned, Obstacle, Reason};
use super::super::error::Error;
use super::super::place::{Run, BLOCK};
use super::super::salvage::Salvage;
use super::super::table::SlotState;
use super::rig::{content, region_of, Rig, MIB, POOL, SEGMENT};
use super::world::World;

/// Blocks of content of a segment of 1 MiB that is one part.
const MOST: u64 = 253;

fn file(ino: u64, pages: std::ops::Range<u64>) -> Vec<(u64, u64)> {
    pages.map(|page| (ino, page)).collect()
}

#[test]
fn it_moves_what_is_live_and_frees_the_rest() {
    let world = World::new(Rig::new(20));
    for ino in 1..=8 {
        world.write(&file(ino, 0..MOST)).expect("there is room");
    }
    // One that is nearly dead, and one that is half dead.
    world.remove(&file(3, 0..MOST - 10));
    world.remove(&file(5, 0..MOST / 2));
    let free = world.rig.log.counts(&world.rig.session).expect("counts").free;
    assert_eq!(world.clean(free).expect("it works"), Cleaned::Asleep(Reason::Enough));
    // The younger one has lost so many more blocks that it is first.
    let sequence_of = |ino| world.pages.lock().expect("not poisoned")[&(ino, MOST - 1)].0.sequence();
    let (third, fifth) = (sequence_of(3), sequence_of(5));
    assert_eq!(world.clean(free + 9).expect("it works"), Cleaned::Freed { sequence: third, moved: 10, newer: 0 });
    assert_eq!(
        world.clean(free + 9).expect("it works"),
        Cleaned::Freed { sequence: fifth, moved: (MOST - MOST / 2) as u32, newer: 0 }
    );
    assert_eq!(world.clean(free + 9).expect("it works"), Cleaned::Asleep(Reason::NothingToGain));
    assert_eq!(world.verify(), 0);
    world.rig.check();
    // The slots are used again when the commit is durable and the disk has the room back.
    assert_eq!(world.reclaim().expect("it works"), 0);
    world.rig.disk.record();
    world.commit();
    assert_eq!(world.reclaim().expect("it works"), 2);
    let discards = world.rig.disk.tape();
    assert!(
        matches!(discards[..], [exraid::fault::Event::Discard(_), exraid::fault::Event::Discard(_)]),
        "{discards:?}"
    );
    world.rig.check();
    // One more went to the cold head.
    assert_eq!(world.rig.log.counts(&world.rig.session).expect("counts").free, free + 1);
}

#[test]
fn a_newer_version_in_memory_is_written_instead() {
    let world = World::new(Rig::new(20));
    world.write(&file(1, 0..MOST)).expect("there is room");
    world.write(&file(2, 0..MOST)).expect("there is room");
    world.remove(&file(1, 0..200));
    for page in 200..210 {
        world.newer.lock().expect("not poisoned").insert((1, page), 5000 + page);
    }
    let done = world.clean(100).expect("it works");
    assert!(matches!(done, Cleaned::Freed { moved: 43, newer: 10, .. }), "{done:?}");
    assert!(world.newer.lock().expect("not poisoned").is_empty(), "they have places now");
    assert_eq!(world.pages.lock().expect("not poisoned")[&(1, 205)].1, 5205);
    assert_eq!(world.verify(), 0);
}

#[test]
fn it_gives_way_and_goes_on() {
    let world = World::new(Rig::new(20));
    world.write(&file(1, 0..2 * MOST)).expect("there is room");
    world.remove(&file(1, 0..100));
    let stop = |world: &World| world.rig.log.clean(&world.rig.session, world, 100, &mut || false).expect("it works");
    assert_eq!(stop(&world), Cleaned::Interrupted);
    let first = world.pages.lock().expect("not poisoned")[&(1, 2 * MOST - 1)].0;
    assert!(world.rig.log.find(&world.rig.session, first).is_ok());
    // Nothing was moved, and the segment takes no links any more; another process goes on.
    let world = World::with(world.rig.reopened(), world.pages.lock().expect("not poisoned").clone(), 10_000, 0);
    assert!(matches!(world.clean(100).expect("it works"), Cleaned::Freed { moved: 153, .. }));
    assert_eq!(world.verify(), 0);
    world.rig.check();
}

#[test]
fn what_was_written_and_not_yet_linked_is_to_be_written_again() {
    let world = World::new(Rig::new(20));
    let blocks: Vec<_> = (0..MOST).map(|page| super::rig::block(1, page, page)).collect();
    let places = world.rig.write(super::super::Head::Hot, &blocks).expect("there is room");
    world.write(&file(2, 0..10)).expect("there is room");
    let can_link = |place| world.rig.log.change(&world.rig.session, |change| world.rig.log.can_link(change.tx, place));
    assert!(can_link(places[3]).expect("the table"));
    // Nothing can be gained from a segment that is all live, as far as is known.
    assert_eq!(world.clean(100).expect("it works"), Cleaned::Asleep(Reason::NothingToGain));
    world.rig.unlink(&places[100..]);
    assert!(matches!(world.clean(100).expect("it works"), Cleaned::Freed { moved: 0, newer: 0, .. }));
    assert!(!can_link(places[3]).expect("the table"));
    world.rig.unlink(&places[..100]);
    world.rig.check();
}

/// A block that is live and cannot be read keeps its segment, and harms nothing else.
#[test]
fn unreadable_content_is_kept_and_reported() {
    for in_summary in [false, true] {
        let world = World::new(Rig::new(20));
        world.write(&file(1, 0..MOST)).expect("there is room");
        world.write(&file(2, 0..10)).expect("there is room");
        world.remove(&file(1, 0..200));
        let place = world.pages.lock().expect("not poisoned")[&(1, 220)].0;
        let at = MIB + if in_summary { 4096 } else { u64::from(place.block()) * BLOCK };
        world.rig.disk.overwrite(at + 50, &[0xff; 3]);
        let world = World::with(world.rig.reopened(), world.pages.lock().expect("not poisoned").clone(), 10_000, 0);
        let why = if in_summary { Obstacle::Unknown } else { Obstacle::Unreadable(1) };
        assert_eq!(world.clean(100).expect("it works"), Cleaned::NotFreed { sequence: place.sequence(), why });
        // Others are cleaned all the same.
        loop {
            match world.clean(100).expect("it works") {
                Cleaned::Freed { sequence, .. } => assert_ne!(sequence, place.sequence()),
                Cleaned::Asleep(reason) => break assert_eq!(reason, Reason::NothingToGain),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(world.rig.log.obstacles(), [(place.sequence(), why)]);
        let lost = if in_summary { MOST - 200 } else { 1 };
        assert_eq!(world.verify(), lost);
        let carried =
            world.rig.log.carry(&world.rig.session, &world, &mut |_| Ok(()), &mut |_, _| {}).expect("it works");
        assert_eq!((carried.unread, carried.blocks), (lost, MOST + 10 - 200 - lost));
        world.rig.check();
    }
}

/// A world of 14 segments with a bad slot.
fn with_bad_slot() -> World {
    let world = World::new(Rig::new(14));
    world.write(&file(1, 0..50)).expect("there is room");
    let sequence = world.pages.lock().expect("not poisoned")[&(1, 0)].0.sequence();
    world.rig.log.set_failed(&world.rig.session, sequence).expect("the table");
    world.rig.check();
    assert!(matches!(world.clean(100).expect("it works"), Cleaned::Freed { moved: 50, .. }));
    world.commit();
    world.reclaim().expect("it works");
    let table = world.rig.log.at.table(world.rig.session.memory());
    let bad = (0..14).filter(|slot| table.get(*slot).expect("a slot").state == SlotState::Bad).count();
    assert_eq!((bad, world.verify()), (1, 0));
    world.rig.check();
    world
}

#[test]
fn a_segment_that_could_not_be_written_is_emptied_and_not_used_again() {
    let world = with_bad_slot();
    assert_eq!(world.rig.log.counts(&world.rig.session).expect("counts").bad, 1);
    world.rig.log.test_bad(&world.rig.session).expect("it works");
    assert_eq!(world.rig.log.counts(&world.rig.session).expect("counts").bad, 1, "it has failed just now");
}

/// A disk that failed for a moment again and again once lost a slot each time, for ever.
#[test]
fn a_bad_slot_is_tested_after_a_while_and_used_again_where_the_disk_is_well() {
    let world = with_bad_slot();
    let Rig { log, session, faults, .. } = &world.rig;
    let rest = || session.clock().advance(Duration::from_secs(REST + 1));
    let test = || log.test_bad(session).expect("it works");
    faults.set(|now| now.error = 1);
    rest();
    assert_eq!(test(), 0, "the disk fails");
    faults.set(|now| now.error = 0);
    assert_eq!(test(), 0, "it rests");
    let free = log.counts(session).expect("counts").free;
    rest();
    assert_eq!(test(), 1);
    let counts = log.counts(session).expect("counts");
    assert_eq!((counts.bad, counts.free, world.verify()), (0, free + 1, 0));
    world.rig.check();
    world.write(&file(2, 0..MOST)).expect("there is room");
    assert_eq!(world.verify(), 0);
}

/// Overwriting a log that is four fifths full can go on for ever: cleaning frees enough for the blocks that it moves.
#[test]
fn it_makes_room_for_ever() {
    let world = World::new(Rig::new(24));
    let mut rng = Rng::new(4);
    let pages = 18 * MOST;
    for page in 0..pages {
        if page % 100 == 0 {
            world.write(&file(1, page..(page + 100).min(pages))).expect("there is room");
        }
    }
    for round in 0..300 {
        let some: Vec<_> =
            (0..60).map(|_| (1, rng.below(pages))).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
        loop {
            match world.write(&some) {
                Ok(()) => break,
                Err(Error::NoSpace) => assert_eq!(world.make_room(4).expect("it works"), Reason::Enough, "{round}"),
                Err(e) => panic!("{e}"),
            }
        }
    }
    world.rig.check();
    assert_eq!(world.verify(), 0);
}

fn found(region: std::sync::Arc<dyn Region>) -> (Salvage, BTreeMap<(u64, u64), Vec<u8>>) {
    let salvage = Salvage::scan(&[region], POOL, &mut |_, _| ()).expect("it is read");
    let mut pages = BTreeMap::new();
    for inode in salvage.inodes() {
        salvage.recover(inode.ino, inode.generation, &mut |page, content| {
            pages.insert((inode.ino, page), content.expect("it is whole").to_vec());
        });
    }
    (salvage, pages)
}

/// From the disk alone, after overwriting and cleaning, also where the cleaner moved versions that were outdated by
/// then.
#[test]
fn the_disk_alone_tells_the_newest_version_of_each_page() {
    let world = World::new(Rig::new(24));
    let mut rng = Rng::new(9);
    for ino in 1..5 {
        world.write(&file(ino, 0..2 * MOST)).expect("there is room");
    }
    for _ in 0..30 {
        let some: Vec<_> = (0..40).map(|n| (1 + n % 4, rng.below(2 * MOST))).collect();
        world
            .write(&some.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>())
            .expect("room");
        world.race.set(rng.below(2) == 0);
        world.clean(100).expect("it works");
        world.race.set(false);
        world.make_room(8).expect("it works");
    }
    let (salvage, pages) = found(region_of(world.rig.faults.clone()));
    assert_eq!(salvage.inodes().len(), 4);
    assert!(salvage.inodes().iter().all(|inode| (inode.pages, inode.end) == (2 * MOST, 2 * MOST) && inode.written > 0));
    for (page, (_, seed)) in world.pages.lock().expect("not poisoned").iter() {
        assert!(pages[page] == content(*seed), "page {page:?}");
    }
    // Damage is reported for that page alone.
    let place = world.pages.lock().expect("not poisoned")[&(2, 7)].0;
    let slot = world.rig.log.find(&world.rig.session, place).expect("it is there").0;
    world.rig.disk.overwrite(MIB + u64::from(slot) * SEGMENT + u64::from(place.block()) * BLOCK, &[1; 64]);
    let mut bad = Vec::new();
    salvage.recover(2, 1, &mut |page, content| bad.extend(content.err().map(|e| (page, e.to_string()))));
    assert_eq!((bad.len(), bad[0].0), (1, 7));
    assert!(bad[0].1.contains("checksum"), "{bad:?}");
    let _ = world.rig.read(Run::one(place)).expect_err("the log says so too");
}
