//! Slots that a dead process was giving back to the disk.

use super::super::leave::Course;
use super::super::table::SlotState;
use super::replicas::{file, world, MOST};
use super::world::World;

/// The number of no process.
const DEAD: u64 = 1 << 40;

/// Makes an orphan: a freed slot that a dead process took out of the list. Returns its number.
fn with_orphan(world: &World) -> u32 {
    let (log, session) = (&world.rig.log, &world.rig.session);
    world.write(&file(1, 0..4 * MOST)).expect("there is room");
    world.remove(&file(1, 0..4 * MOST));
    world.write(&file(2, 0..MOST)).expect("there is room");
    world.clean(u64::MAX).expect("it works");
    world.commit();
    let taken = log.change(session, |change| change.take_freed(world.durable.get(), DEAD, 0)).expect("it works");
    let Some((slot, SlotState::Discarding)) = taken else { panic!("{taken:?}: something was freed") };
    slot
}

#[test]
fn a_slot_that_was_being_discarded_by_the_dead_is_free_again() {
    let world = world(1, &[]);
    let (log, session) = (&world.rig.log, &world.rig.session);
    let slot = with_orphan(&world);
    assert_eq!(log.orphans(session).expect("an answer"), [(slot, DEAD)]);
    let free = log.counts(session).expect("an answer").free;
    // As the first reclaim does.
    world.rig.log.reclaim(session, 0, 1).expect("it works");
    assert_eq!(
        (log.orphans(session).expect("an answer").len(), log.counts(session).expect("an answer").free),
        (0, free + 1)
    );
    world.rig.check();
}

#[test]
fn whoever_dies_later_leaves_nothing_either() {
    let world = world(1, &[]);
    let (log, session) = (&world.rig.log, &world.rig.session);
    log.reclaim(session, 0, 1).expect("it works");
    let slot = with_orphan(&world);
    log.reclaim(session, 0, 1).expect("it works");
    assert_eq!(log.orphans(session).expect("an answer"), [(slot, DEAD)], "nobody has said that somebody died");
    log.look_for_orphans();
    log.reclaim(session, 0, 1).expect("it works");
    assert_eq!(log.orphans(session).expect("an answer"), []);
    world.rig.check();
}

#[test]
fn a_region_with_such_a_slot_can_be_removed() {
    let world = world(2, &[]);
    let (log, session) = (&world.rig.log, &world.rig.session);
    log.reclaim(session, 0, 1).expect("it works");
    let slot = with_orphan(&world);
    let number = log.area_of(session, slot).expect("known").number;
    log.set_leaving(session, &[number], Course::Leave).expect("there is room");
    super::leaving::move_all(&world);
    assert!(log.remove_region(session, number).expect("looked"), "it is empty");
    world.rig.check();
}

#[test]
fn what_is_being_discarded_is_left_alone() {
    let world = world(1, &[]);
    let (log, session) = (&world.rig.log, &world.rig.session);
    let slot = with_orphan(&world);
    let mut discarding = super::super::discard::Discarding::of(session);
    discarding.begin(slot);
    let taken = log.change(session, |change| change.take_orphan(slot, DEAD, discarding.by())).expect("it works");
    assert!(taken && log.adopt_orphans(session).expect("it works") == 0, "this process does it");
    drop(discarding);
    assert_eq!(log.adopt_orphans(session).expect("it works"), 1, "it has given up");
    world.rig.check();
}
