//! Replicas of segments in several regions: written, read, lost, made anew.

use std::time::{Duration, Instant};

use exraid::fault::{FaultDisk, Faults};
use exraid::{Aligned, Buffers};

use super::super::clean::{Cleaned, Obstacle};
use super::super::leave::Course;
use super::super::place::{Place, Run, BLOCK};
use super::super::replicas::Replicated;
use super::super::storage_class::Class;
use super::super::table::Cause;
use super::super::Head;
use super::rig::{block, Rig};
use super::world::World;

/// Blocks of content of a segment of 1 MiB that is one part.
pub(super) const MOST: u64 = 253;

pub(super) fn file(ino: u64, pages: std::ops::Range<u64>) -> Vec<(u64, u64)> {
    pages.map(|page| (ino, page)).collect()
}

pub(super) fn world(disks: u32, classes: &[(u64, Class)]) -> World {
    let world = World::new(Rig::on(disks, 20));
    *world.classes.lock().expect("not poisoned") = classes.iter().map(|(ino, class)| (*ino, *class)).collect();
    world
}

/// The fewest replicas of any page of an inode.
pub(super) fn replicas(world: &World, ino: u64) -> u32 {
    let pages = world.pages.lock().expect("not poisoned");
    let of = |place: Place| world.rig.log.replicas_of(&world.rig.session, place).expect("replicas");
    pages.iter().filter(|((other, _), _)| *other == ino).map(|(_, (place, _))| of(*place)).min().unwrap_or(0)
}

fn regions(world: &World, ino: u64) -> std::collections::BTreeSet<u32> {
    let pages = world.pages.lock().expect("not poisoned");
    let of =
        |place: Place| world.rig.log.region_of(&world.rig.session, place).expect("a region").expect("there is one");
    pages.iter().filter(|((other, _), _)| *other == ino).map(|(_, (place, _))| of(*place)).collect()
}

/// Makes all replicas that can be made; returns how many, and their bytes.
pub(super) fn make_replicas(world: &World) -> (u64, u64) {
    let (mut made, mut copied) = (0, 0);
    loop {
        match world.rig.log.make_next_replica(&world.rig.session, world, &mut |_| true).expect("it works") {
            Replicated::Made { bytes, .. } => (made, copied) = (made + 1, copied + bytes),
            Replicated::Dropped { .. } => {}
            _ => return (made, copied),
        }
    }
}

#[test]
fn what_is_mirrored_outlives_any_disk() {
    for lost in 0..3u32 {
        let mut world = world(3, &[(1, Class::Mirror(2)), (2, Class::None), (3, Class::Mirror(3))]);
        for ino in 1..=3 {
            world.write(&file(ino, 0..2 * MOST)).expect("there is room");
        }
        assert_eq!([1, 2, 3].map(|ino| replicas(&world, ino)), [2, 1, 3]);
        world.rig.check();
        let rest: Vec<u32> = (0..3).filter(|n| *n != lost).collect();
        world.rig = world.rig.with_disks(&rest);
        let failed = unreadable(&world);
        assert!(failed.iter().all(|(ino, _)| *ino == 2), "{failed:?}");
        // The log still takes content, and makes the lacking replicas.
        world.rig.log.fence_missing(&world.rig.session).expect("it is fenced");
        world.write(&file(4, 0..MOST)).expect("there is room");
        let (made, copied) = make_replicas(&world);
        assert!(made > 0 && copied <= made * MOST * 4096, "{made}");
        assert_eq!([1, 3].map(|ino| replicas(&world, ino)), [2, 2], "as many as there are disks");
        world.rig.check();
        // When the disk is there again, surplus replicas are dropped.
        world.rig = world.rig.reopened();
        for region in world.rig.log.regions() {
            world.rig.log.readmit(&world.rig.session, &*region).expect("it is ours");
        }
        make_replicas(&world);
        assert_eq!([1, 2, 3, 4].map(|ino| replicas(&world, ino)), [2, 1, 3, 1]);
        assert_eq!(world.verify(), 0);
        world.rig.check();
    }
}

/// Pages that cannot be read; checks the content of the others.
fn unreadable(world: &World) -> Vec<(u64, u64)> {
    let pages = world.pages.lock().expect("not poisoned").clone();
    let read = |place: Place| world.rig.read(super::super::place::Run::one(place));
    let mut failed = Vec::new();
    for (page, (place, seed)) in pages {
        match read(place) {
            Ok(found) => assert!(found == super::rig::content(seed), "{page:?}"),
            Err(_) => failed.push(page),
        }
    }
    failed
}

#[test]
fn a_lazy_replica_is_made_when_it_is_due_and_of_what_is_live() {
    let classes = [(1, Class::Lazy(0)), (2, Class::Lazy(3600)), (3, Class::None), (4, Class::Lazy(24 * 3600))];
    let world = world(2, &classes);
    for ino in 1..=3 {
        world.write(&file(ino, 0..MOST)).expect("there is room");
    }
    assert_eq!([1, 2, 3].map(|ino| replicas(&world, ino)), [1, 1, 1]);
    world.remove(&file(1, 0..200));
    let lacking = world.rig.log.lacking(&world.rig.session).expect("an answer");
    assert_eq!((lacking.bytes, lacking.lost), ((53 + MOST) * 4096, 0));
    // Two files of one class share a segment, which is due when the first of them is.
    let (_, copied) = make_replicas(&world);
    assert!((53 * 4096..(53 + MOST + 1) * 4096).contains(&copied), "{copied}");
    assert_eq!(replicas(&world, 1), 2);
    world.write(&file(4, 0..MOST)).expect("there is room");
    let due = |hours: u64| {
        world.rig.session.clock().advance(Duration::from_secs(hours * 3600));
        make_replicas(&world);
        replicas(&world, 4)
    };
    assert_eq!([due(1), due(0), due(23)], [1, 1, 2], "it is due a day after it was written");
    assert_eq!(world.verify(), 0);
    world.rig.check();
}

#[test]
fn a_file_that_lies_in_one_region_stays_there() {
    let world = world(4, &[(1, Class::Whole(2)), (2, Class::Whole(0))]);
    for _ in 0..3 {
        world.write(&file(1, 0..MOST)).expect("there is room");
        world.write(&file(2, 0..MOST)).expect("there is room");
        world.write(&file(3, 0..MOST)).expect("there is room");
    }
    assert_eq!([1, 2].map(|ino| regions(&world, ino)), [[2].into(), [0].into()]);
    assert_eq!(world.verify(), 0);
    world.rig.check();
}

#[test]
fn a_write_that_misses_a_replica_leaves_one_less() {
    let world = world(2, &[(1, Class::Mirror(2))]);
    world.write(&file(1, 0..MOST)).expect("there is room");
    world.rig.others[0].set(|faults| *faults = Faults { gone: true, ..Faults::default() });
    world.write(&file(1, 0..MOST)).expect("the other has it");
    assert_eq!((replicas(&world, 1), world.verify()), (1, 0));
    world.rig.check();
    world.rig.others[0].set(|faults| *faults = Faults::default());
    for region in world.rig.log.regions() {
        world.rig.log.readmit(&world.rig.session, &*region).expect("it is ours");
    }
    make_replicas(&world);
    assert_eq!((replicas(&world, 1), world.verify()), (2, 0));
    world.rig.check();
}

#[test]
fn a_disk_that_was_written_with_another_memory_is_refused() {
    let mut world = world(2, &[(1, Class::Mirror(2))]);
    world.write(&file(1, 0..MOST)).expect("there is room");
    world.rig = world.rig.with_disks(&[0]);
    world.rig.log.fence_missing(&world.rig.session).expect("it is fenced");
    world.write(&file(1, 0..MOST)).expect("there is room");
    // Meanwhile a copied memory raises the mark of the other disk elsewhere.
    let away = super::rig::region_of(world.rig.others[0].clone());
    let mark = away.sequence();
    away.raise_sequence(mark + 5000).expect("raised");
    drop(away);
    world.rig = world.rig.reopened();
    let back = world.rig.log.regions().into_iter().find(|region| region.number() == 1).expect("it is there");
    let e = world.rig.log.readmit(&world.rig.session, &*back).expect_err("it is another's");
    assert!(e.to_string().contains(&format!("its epoch is {}", mark + 5000)), "{e}");
    assert_eq!(world.rig.log.out_of_use(&world.rig.session).expect("an answer").len(), 1);
    assert_eq!(world.verify(), 0);
}

#[test]
fn what_lies_on_a_lost_disk_takes_no_room_of_the_others() {
    let mut world = world(2, &[]);
    for ino in 1..=24 {
        world.write(&file(ino, 0..MOST)).expect("there is room");
    }
    world.rig = world.rig.with_disks(&[0]);
    world.rig.log.fence_missing(&world.rig.session).expect("it is fenced");
    let (log, session) = (&world.rig.log, &world.rig.session);
    let on_the_other = |place: &Place| log.region_of(session, *place).expect("a region") == Some(0);
    let pages = world.pages.lock().expect("not poisoned").clone();
    let there = pages.values().filter(|(place, _)| on_the_other(place)).count() as u64;
    // Of its twenty segments four are never filled.
    assert_eq!(log.available_about(session).expect("an answer"), (16 * MOST).saturating_sub(there));
}

/// Cleaning does not defer replicas that were due yesterday.
#[test]
fn what_is_moved_has_its_replicas_no_later_for_that() {
    let world = world(2, &[(1, Class::Lazy(0))]);
    world.write(&file(1, 0..MOST)).expect("there is room");
    world.classes.lock().expect("not poisoned").insert(1, Class::Lazy(3600));
    world.remove(&file(1, 0..200));
    world.write(&file(2, 0..10)).expect("there is room");
    world.make_room(100).expect("it is cleaned");
    assert_eq!(replicas(&world, 1), 1, "what was moved has one replica");
    make_replicas(&world);
    assert_eq!(replicas(&world, 1), 2, "and gets its other at once");
    world.write(&file(1, 0..10)).expect("there is room");
    make_replicas(&world);
    assert_eq!(replicas(&world, 1), 1, "what is new gets it when it is due");
    assert_eq!(world.verify(), 0);
    world.rig.check();
}

#[test]
fn a_region_that_leaves_and_was_missed_goes_on_leaving() {
    let world = world(3, &[]);
    world.write(&file(1, 0..5 * MOST)).expect("there is room");
    let (log, session) = (&world.rig.log, &world.rig.session);
    let away_and_back = || {
        assert!(log.fence(session, 1, Cause::Missing, &"it is away").expect("it is fenced"));
        let back = log.regions().into_iter().find(|region| region.number() == 1).expect("it is there");
        log.readmit(session, &*back).expect("it is ours");
    };
    log.set_leaving(session, &[1], Course::Leave).expect("there is room elsewhere");
    away_and_back();
    assert_eq!((log.leavers(session).expect("an answer"), log.taking()), (vec![1], vec![0, 2]));
    away_and_back();
    assert_eq!(log.leavers(session).expect("an answer"), [1], "and again");
    // Called off while it is away.
    assert!(log.fence(session, 1, Cause::Missing, &"it is away").expect("it is fenced"));
    log.set_leaving(session, &[1], Course::Stay).expect("it stays");
    away_and_back();
    assert_eq!((log.leavers(session).expect("an answer"), log.taking()), (vec![], vec![0, 1, 2]));
    assert_eq!(world.verify(), 0);
    world.rig.check();
}

/// The disk of one of two replicas does not answer. A reader that tries it waits for a moment only, and no read goes there
/// just to see whether it recovered.
#[test]
fn nobody_waits_long_for_a_replica_that_does_not_answer() {
    let world = world(2, &[(1, Class::Mirror(2))]);
    world.write(&file(1, 0..MOST)).expect("there is room");
    let place = world.pages.lock().expect("not poisoned")[&(1, 0)].0;
    let read = || {
        let (start, memory) = (Instant::now(), Buffers::whole(&Aligned::zeroed(BLOCK as usize)));
        let reading = world.rig.log.read(&world.rig.session, Run::one(place), memory);
        reading.and_then(|reading| reading.wait(&world.rig.log, &world.rig.session)).expect("the other has it");
        start.elapsed()
    };
    (0..200).for_each(|_| _ = read());
    world.rig.others[0].set(|faults| faults.hang = 1);
    let before = (0..100).map(|_| read()).max();
    std::thread::sleep(Duration::from_millis(500));
    let after = (0..200).map(|_| read()).max();
    world.rig.others[0].set(|faults| faults.hang = 0);
    world.rig.others[0].release();
    assert!(before.max(after) < Some(Duration::from_secs(1)), "{before:?}, {after:?}");
}

/// Mirrored blocks take twice the room of others. Blocks that find room get places, even if others find none.
#[test]
fn what_finds_room_is_written_where_not_all_does() {
    let rig = Rig::on(2, 14);
    let pages = 20 * MOST;
    let mut writer = rig.log.sorted(&rig.session, Head::Hot, None);
    let full = (0..pages).filter(|page| writer.push((Class::Mirror(2), 0), block(1, *page, *page)).is_err());
    assert!(full.count() > 0, "{pages} pages find room");
    let alone = writer.push((Class::None, 0), block(2, 0, 7));
    let places = writer.finish_some().expect("what has room is written");
    let with: Vec<Place> = places.iter().flatten().copied().collect();
    assert!(with.len() as u64 > pages / 2 && (with.len() as u64) < pages, "{} of {pages}", with.len());
    assert!(places.is_sorted_by_key(Option::is_none) || alone.is_ok(), "the first that came have it");
    for (page, place) in (0..).zip(places.iter().take(pages as usize)).step_by(7) {
        let Some(place) = *place else { continue };
        assert!(rig.read(Run::one(place)).expect("it is read") == super::rig::content(page), "page {page}");
    }
    // All or nothing, if that is asked for.
    let mut writer = rig.log.sorted(&rig.session, Head::Hot, None);
    (0..pages).for_each(|page| _ = writer.push((Class::None, 0), block(1, page, page)));
    assert!(matches!(writer.finish(), Err(super::super::Error::NoSpace)));
    rig.unlink(&with);
    rig.check();
}

/// A disk takes a write and does not answer; the blocks in the other replica die meanwhile. The write arrives late, in
/// whatever the slot holds by then.
#[test]
fn a_slot_to_which_something_is_under_way_is_not_used_again() {
    let world = world(2, &[]);
    let (log, session) = (&world.rig.log, &world.rig.session);
    world.write(&file(9, 0..1)).expect("there is room");
    world.rig.others[0].set(|faults| faults.hang = 1);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut writer = log.writer(session, Head::Hot, None).of(Class::Mirror(2), 0);
            writer.push(block(1, 0, 1)).and_then(|()| writer.finish())
        });
        let hanging = || {
            log.regions().iter().find(|region| region.number() == 1).is_some_and(|region| !region.pending().is_empty())
        };
        while !hanging() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(100));
        let sequence = log.head(session).expect("an answer").sequence - 1;
        let (slot, _) = log.find(session, Place::new(sequence, 0)).expect("it is there");
        log.closed(session, slot, sequence).expect("it is closed").expect("it is there");
        let done = world.clean(1000).expect("it works");
        assert_eq!(done, Cleaned::NotFreed { sequence, why: Obstacle::UnderWay });
        // And if the replica is taken from the segment all the same.
        let (slot, segment) = log.find(session, Place::new(sequence, 0)).expect("it is there");
        let homes = log.at.table(session.memory()).homes(slot, &segment).expect("an answer");
        let there = homes.iter().find(|home| home.domain == 1).expect("it has a replica there").slot;
        assert!(log.change(session, |change| change.drop_replica(sequence, there, false, 1)).expect("it is dropped"));
        world.commit();
        assert_eq!((world.reclaim().expect("it works"), log.counts(session).expect("an answer").freed), (0, 1));
        world.rig.others[0].set(|faults| faults.hang = 0);
        world.rig.others[0].release();
        writer.join().expect("it ends").expect("it is written");
    });
    world.commit();
    assert_eq!(world.reclaim().expect("it works"), 1);
    assert!(matches!(world.clean(1000).expect("it works"), Cleaned::Asleep(_)), "it is left alone for a moment");
    world.rig.session.clock().advance(Duration::from_millis(2100));
    assert!(matches!(world.clean(1000).expect("it works"), Cleaned::Freed { moved: 0, .. }));
    world.rig.check();
}

/// Raising the mark in its label fails at any request, perhaps several times; then the disk is gone, and the others
/// raise theirs further.
#[test]
fn a_disk_that_failed_while_its_mark_was_raised_is_taken_back() {
    let mut in_doubt = 0;
    for seed in 0..40 {
        let mut world = world(3, &[]);
        world.write(&file(1, 0..3)).expect("there is room");
        world.rig.others[0] = FaultDisk::over(world.rig.rams[0].clone(), seed, Faults::default());
        world.rig = world.rig.reopened();
        world.rig.others[0].set(|now| *now = Faults { error: 8, torn: 12, ..Faults::default() });
        for page in 0..4 {
            // A failed write counts as not done.
            let _ = world.write(&[(2, page)]);
        }
        world.rig.others[0].set(|now| now.gone = true);
        for page in 0..4 {
            world.write(&[(3, page)]).expect("others take it");
        }
        for disks in [&[0, 2], &[2, 0]] {
            world.rig = world.rig.with_disks(disks);
            world.rig.log.fence_missing(&world.rig.session).expect("it is fenced");
            world.write(&[(4, 0)]).expect("others take it");
        }
        world.rig.others[0] = FaultDisk::over(world.rig.rams[0].clone(), seed, Faults::default());
        world.rig = world.rig.reopened();
        let (log, session) = (&world.rig.log, &world.rig.session);
        let regions = log.at.table(session.memory()).regions().expect("an answer");
        let (_, known) = regions.iter().find(|(_, raw)| raw.number == 1).expect("it is known");
        let back = log.regions().into_iter().find(|region| region.number() == 1).expect("it is there");
        in_doubt += u32::from(back.sequence() != known.mark);
        log.readmit(session, &*back).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        world.write(&[(5, 0)]).expect("there is room");
        assert_eq!((log.taking(), world.verify()), (vec![0, 1, 2], 0), "seed {seed}");
    }
    assert!(in_doubt > 0, "some label has another mark than the table has");
}

/// The disk with the first replica of a block does not give the block `before` blocks earlier. Returns the region and the
/// disk.
fn does_not_give(world: &World, place: Place, before: u32) -> (u32, std::sync::Arc<FaultDisk>) {
    let (log, session) = (&world.rig.log, &world.rig.session);
    let (slot, _) = log.find(session, place).expect("it is there");
    let lies = log.lies(session, slot).expect("it is there");
    let number = lies.region.number();
    let disk = if number == 0 { world.rig.faults.clone() } else { world.rig.others[number as usize - 1].clone() };
    let at = exraid::label::END + lies.at + u64::from(place.block() - before) * BLOCK;
    disk.set(|now| now.bad.push(at..at + BLOCK));
    (number, disk)
}

/// A disk that does not give a block, or a summary, may give it later: a replica without that does not count.
#[test]
fn a_replica_that_lacks_what_a_disk_may_give_later_does_not_count() {
    for before in [0, 1] {
        let mut world = world(2, &[(1, Class::Lazy(0))]);
        world.write(&file(1, 0..100)).expect("there is room");
        world.write(&file(1, 100..200)).expect("there is room");
        let first_of_second = world.pages.lock().expect("not poisoned")[&(1, 100)].0;
        let (number, disk) = does_not_give(&world, first_of_second, before);
        assert_eq!((make_replicas(&world), replicas(&world, 1)), ((0, 0), 1));
        disk.set(|now| now.bad.clear());
        // The segment that was set aside is copied.
        world.rig = world.rig.reopened();
        assert_eq!((make_replicas(&world), replicas(&world, 1)), ((1, 200 * BLOCK), 2));
        world.rig = world.rig.with_disks(&[1 - number]);
        assert_eq!(world.verify(), 0);
        world.rig.check();
    }
}

/// And if it never does, the other blocks of the segment get replicas elsewhere.
#[test]
fn what_lies_beside_a_block_that_a_disk_does_not_give_gets_its_replicas() {
    let mut world = world(2, &[(1, Class::Lazy(0))]);
    world.write(&file(1, 0..200)).expect("there is room");
    let place = world.pages.lock().expect("not poisoned")[&(1, 100)].0;
    let (_, disk) = does_not_give(&world, place, 0);
    let try_to_copy = |world: &World| {
        let (log, session) = (&world.rig.log, &world.rig.session);
        let (slot, segment) = log.find(session, place).expect("it is there");
        let done = log.make_replica_in(session, world, slot, segment, None, &mut |_| true).expect("it works");
        assert_eq!(done, Replicated::Nothing);
        log.find(session, place).expect("it is there").1.live
    };
    assert_eq!([try_to_copy(&world), try_to_copy(&world)], [200, 1]);
    make_replicas(&world);
    assert_eq!((world.verify(), replicas(&world, 1)), (1, 1), "that one cannot be read, and has one replica");
    world.remove(&[(1, 100)]);
    assert_eq!((world.verify(), replicas(&world, 1)), (0, 2));
    disk.set(|now| now.bad.clear());
    world.rig = world.rig.reopened();
    assert_eq!(world.verify(), 0);
    world.rig.check();
}

/// A region whose host is full is not asked again for each replica.
#[test]
fn a_region_without_room_for_replicas_is_left_alone_for_a_while() {
    let world = world(2, &[(1, Class::Lazy(0))]);
    world.write(&file(1, 0..3 * MOST)).expect("there is room");
    let there = world.rig.log.region_of(&world.rig.session, world.pages.lock().expect("not poisoned")[&(1, 0)].0);
    let full = world
        .rig
        .log
        .regions()
        .into_iter()
        .find(|region| Some(region.number()) != there.as_ref().ok().copied().flatten());
    let full = full.expect("there are two").number();
    assert!(!world.rig.log.is_full(full));
    world.rig.log.set_full(full);
    assert_eq!(
        world.rig.log.make_next_replica(&world.rig.session, &world, &mut |_| true).expect("it works"),
        Replicated::NoRoom
    );
    world.rig.session.clock().advance(Duration::from_millis(2100));
    assert!(!world.rig.log.is_full(full), "it is asked again");
    make_replicas(&world);
    assert_eq!(world.verify(), 0);
    world.rig.check();
}

/// More of them than the undo log of one transaction holds.
#[test]
fn two_hundred_regions_raise_their_marks() {
    let world = World::new(Rig::on(200, 14));
    world.write(&file(1, 0..3)).expect("there is room");
    let numbers = |log: &super::super::Log| log.regions().iter().map(|region| region.sequence()).collect::<Vec<_>>();
    assert!(numbers(&world.rig.log).windows(2).all(|two| two[0] == two[1] && two[0] > 1));
    assert_eq!(world.verify(), 0);
    world.rig.check();
}
