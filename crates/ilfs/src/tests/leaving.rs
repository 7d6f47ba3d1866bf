//! Regions that leave, with content that has replicas.

use super::super::clean::{Cleaned, Reason};
use super::super::error::Error;
use super::super::leave::Course;
use super::super::place::Place;
use super::super::storage_class::Class;
use super::replicas::{file, make_replicas, replicas, world, MOST};
use super::world::World;

/// Moves all content of the regions that leave, as far as that is possible.
pub(super) fn move_all(world: &World) {
    let (log, session) = (&world.rig.log, &world.rig.session);
    loop {
        make_replicas(world);
        let cleaned = log.clean_leaving(session, world, &mut || true).expect("it works");
        if let Cleaned::Asleep(Reason::NothingToGain | Reason::NoRoom) = cleaned {
            break;
        }
        world.commit();
        world.reclaim().expect("it works");
    }
    world.commit();
    world.reclaim().expect("it works");
}

/// Regression: a file had three replicas on six disks, five of which were to leave. The plan found enough room by assuming
/// that nearly all replicas are given up; one replica was left of three, and the last disk was full.
#[test]
fn replicas_are_given_up_only_when_that_is_allowed() {
    let world = world(6, &[(1, Class::Mirror(3))]);
    let (log, session) = (&world.rig.log, &world.rig.session);
    world.write(&file(1, 0..25 * MOST)).expect("there is room");
    let leaving = log.leaving(session, &[1, 2, 3, 4, 5]).expect("an answer");
    assert_eq!((leaving.domains, leaving.fewer > 0), (1, true));
    assert!(!leaving.fits(), "a replica of all of it has no room: {leaving:?}");
    let refused = log.set_leaving(session, &[1, 2, 3, 4, 5], Course::Leave);
    assert!(matches!(refused, Err(Error::TooFewDomains { domains: 1, .. })), "{refused:?}");
    let refused = log.set_leaving(session, &[1, 2, 3, 4, 5], Course::LeaveFewer);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    // Three domains are enough, and have room for all.
    let leaving = log.leaving(session, &[5]).expect("an answer");
    assert!(leaving.fits() && leaving.fewer == 0, "{leaving:?}");
    log.set_leaving(session, &[5], Course::Leave).expect("there is room elsewhere");
    move_all(&world);
    assert!(log.remove_region(session, 5).expect("looked"), "it is empty");
    assert_eq!((replicas(&world, 1), world.verify()), (3, 0));
    world.rig.check();
}

#[test]
fn replicas_are_given_up_when_all_else_is_in_place() {
    let world = world(3, &[(1, Class::Mirror(2))]);
    let (log, session) = (&world.rig.log, &world.rig.session);
    world.write(&file(1, 0..4 * MOST)).expect("there is room");
    world.write(&file(2, 0..6 * MOST)).expect("there is room");
    log.set_leaving(session, &[1, 2], Course::LeaveFewer).expect("one replica has room");
    // The other content was not moved yet.
    make_replicas(&world);
    let held = |place: Place| {
        let (slot, segment) = log.find(session, place).expect("it is there");
        log.at.table(session.memory()).homes(slot, &segment).expect("an answer").len()
    };
    let places: Vec<Place> =
        world.pages.lock().expect("not poisoned").range((1, 0)..(2, 0)).map(|(_, (place, _))| *place).collect();
    assert!(places.into_iter().all(|place| held(place) >= 2), "nothing is given up");
    move_all(&world);
    move_all(&world);
    assert_eq!(replicas(&world, 1), 1);
    for number in [1, 2] {
        assert!(log.remove_region(session, number).expect("looked"), "region {number} is empty");
    }
    assert_eq!(world.verify(), 0);
    world.rig.check();
}

/// Two domains of two disks each: one has room for a replica of all blocks in both, or there is no room.
#[test]
fn the_plan_counts_the_room_of_each_domain() {
    let world = world(4, &[(1, Class::Mirror(2))]);
    let (log, session) = (&world.rig.log, &world.rig.session);
    log.set_domain(session, &[0, 1], 1).expect("set");
    log.set_domain(session, &[2, 3], 2).expect("set");
    world.write(&file(1, 0..22 * MOST)).expect("there is room");
    let leaving = log.leaving(session, &[3]).expect("an answer");
    assert!(!leaving.fits() && leaving.fewer == 0, "{leaving:?}");
    assert!(log.leaving(session, &[2, 3]).expect("an answer").fewer > 0);
    world.remove(&file(1, 10 * MOST..22 * MOST));
    let leaving = log.leaving(session, &[3]).expect("an answer");
    assert!(leaving.fits() && leaving.fewer == 0, "{leaving:?}");
}

/// Content with two replicas in regions that leave is not cleaned down to one where there is hardly room.
#[test]
fn what_is_moved_has_as_many_replicas_as_before() {
    let world = world(4, &[(1, Class::Mirror(2))]);
    let (log, session) = (&world.rig.log, &world.rig.session);
    world.write(&file(1, 0..9 * MOST)).expect("there is room");
    log.set_leaving(session, &[0, 1], Course::Leave).expect("there is room elsewhere");
    // Another region takes no more from now on.
    log.fence(session, 2, super::super::table::Cause::Failed, &"it has failed").expect("it is fenced");
    move_all(&world);
    assert!(!log.remove_region(session, 0).expect("looked") || !log.remove_region(session, 1).expect("looked"));
    log.set_leaving(session, &[0, 1], Course::Stay).expect("they stay");
    make_replicas(&world);
    assert_eq!((replicas(&world, 1), world.verify()), (2, 0));
    world.rig.check();
}
