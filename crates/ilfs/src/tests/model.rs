//! Random operations, compared with a model.

use std::collections::BTreeSet;

use exraid::fault::{FaultDisk, Faults};
use rng::Rng;

use super::super::error::Error;
use super::super::place::Run;
use super::super::replicas::Replicated;
use super::super::storage_class::Class;
use super::rig::Rig;
use super::world::World;

/// Pages that there can be: two thirds of the log.
const INODES: u64 = 12;
const PAGES: u64 = 300;

/// Failures that the faulty disk may cause.
fn may(e: &Error) -> bool {
    matches!(e, Error::Device(_) | Error::Failed(_) | Error::NoSpace | Error::Damaged { .. })
}

fn run(seed: u64, faults: &Faults) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(Rig::new(30));
    let (mut failures, mut unreadable) = (0, 0);
    world.rig.faults.set(|now| *now = faults.clone());
    for _ in 0..150 {
        let ino = 1 + rng.below(INODES);
        let done = match rng.below(12) {
            0..=5 => {
                let (first, count) = (rng.below(PAGES), rng.within(1, 120));
                let pages: Vec<_> = (first..(first + count).min(PAGES)).map(|page| (ino, page)).collect();
                world.write(&pages)
            }
            6 | 7 => {
                let pages: BTreeSet<_> = (0..rng.within(1, 30)).map(|_| (ino, rng.below(PAGES))).collect();
                world.write(&pages.into_iter().collect::<Vec<_>>())
            }
            8 => {
                let first = rng.below(PAGES);
                world.remove(&(first..PAGES).map(|page| (ino, page)).collect::<Vec<_>>());
                Ok(())
            }
            9 => {
                world.commit();
                world.reclaim().map(drop)
            }
            10 => world.clean(30).map(drop),
            _ => {
                // Some of the content becomes dirty in memory.
                let pages = world.pages.lock().expect("not poisoned").clone();
                for (page, _) in pages.iter().take(20).skip(rng.below(15) as usize) {
                    let seed = world.next_seed();
                    world.newer.lock().expect("not poisoned").insert(*page, seed);
                }
                Ok(())
            }
        };
        match done {
            Err(Error::NoSpace) => drop(world.make_room(6)),
            Err(e) => {
                assert!(may(&e), "seed {seed}: {e}");
                failures += 1;
            }
            Ok(()) => {}
        }
        // A flush failed, or the process ended.
        if world.rig.log.check_failed().is_err() || rng.below(40) == 0 {
            // Opening reads the labels, which a disk that fails now does not allow.
            world.rig.faults.set(|now| *now = Faults::default());
            world.rig = world.rig.reopened();
            world.rig.faults.set(|now| *now = faults.clone());
        }
        unreadable += world.verify();
        world.rig.check();
    }
    world.rig.faults.set(|now| *now = Faults::default());
    let kept = world.verify();
    assert_eq!(kept, 0, "seed {seed}: what failed was not damaged");
    (failures, unreadable)
}

/// On three disks, one of which fails at times, or is gone for a while. Content with another replica is never out of reach,
/// and when all disks are well again nothing is lost.
fn run_on_three(seed: u64, faults: &Faults) -> u64 {
    let mut rng = Rng::new(seed);
    let mut world = World::new(Rig::on(3, 24));
    let all = [Class::None, Class::Mirror(2), Class::Lazy(0), Class::Mirror(3), Class::Whole(1)];
    *world.classes.lock().expect("not poisoned") = (1..=INODES).map(|ino| (ino, all[ino as usize % 5])).collect();
    world.rig.others[0].set(|now| *now = faults.clone());
    let mut unreadable = 0;
    for step in 0..120 {
        let ino = 1 + rng.below(INODES);
        let (log, session) = (&world.rig.log, &world.rig.session);
        let done = match rng.below(12) {
            0..=3 => {
                let (first, count) = (rng.below(100), rng.within(1, 60));
                world.write(&(first..(first + count).min(100)).map(|page| (ino, page)).collect::<Vec<_>>())
            }
            4 => {
                let first = rng.below(100);
                world.remove(&(first..100).map(|page| (ino, page)).collect::<Vec<_>>());
                Ok(())
            }
            5 => {
                world.commit();
                world.reclaim().map(drop)
            }
            6 => world.clean(60).map(drop),
            7 | 8 => log.make_next_replica(session, &world, &mut |_| true).map(drop),
            9 => log.balance_next(session, &world, &mut |_| true).map(drop),
            10 => {
                let gone = rng.below(2) == 0;
                world.rig.others[0].set(|now| now.gone = gone);
                match gone {
                    true => Ok(()),
                    false => put_back(&mut world, faults),
                }
            }
            _ => log.segments_to_scrub(session).and_then(|slots| match slots.first() {
                Some((_, slot)) => log.scrub(session, &world, *slot).map(drop),
                None => Ok(()),
            }),
        };
        match done {
            Err(Error::NoSpace) => drop(world.make_room(6)),
            Err(e) => assert!(may(&e), "seed {seed}, step {step}: {e}"),
            Ok(()) => {}
        }
        world.rig.check();
        let (log, session) = (&world.rig.log, &world.rig.session);
        for (page, (place, content)) in world.pages.lock().expect("not poisoned").iter() {
            let replicas = log.replicas_of(session, *place).expect("replicas");
            match world.rig.read(Run::one(*place)) {
                Ok(found) => assert!(found == super::rig::content(*content), "seed {seed}, step {step}: {page:?}"),
                Err(e) => {
                    assert!(replicas < 2 && may(&e), "seed {seed}, step {step}: {page:?}, {replicas} replicas: {e}");
                    unreadable += 1;
                }
            }
        }
    }
    put_back(&mut world, &Faults::default()).expect("it is ours");
    let (log, session) = (&world.rig.log, &world.rig.session);
    while let Replicated::Made { .. } | Replicated::Dropped { .. } =
        log.make_next_replica(session, &world, &mut |_| true).expect("well")
    {}
    assert_eq!(world.verify(), 0, "seed {seed}");
    world.rig.check();
    unreadable
}

/// The second disk is opened anew, which it has to be after a failed flush, and takes content again.
fn put_back(world: &mut World, faults: &Faults) -> super::super::error::Result<()> {
    let mut rig = std::mem::replace(&mut world.rig, Rig::new(14));
    rig.others[0] = FaultDisk::over(rig.rams[0].clone(), 5, Faults::default());
    world.rig = rig.reopened();
    let (log, session) = (&world.rig.log, &world.rig.session);
    let done = log.regions().iter().try_for_each(|region| log.readmit(session, &**region));
    world.rig.others[0].set(|now| *now = faults.clone());
    done
}

#[test]
fn what_has_replicas_is_there_whatever_a_disk_does() {
    for seed in 200..206 {
        run_on_three(seed, &Faults::default());
    }
    let faults = Faults { error: 40, torn: 60, ..Faults::default() };
    (206..214).for_each(|seed| _ = run_on_three(seed, &faults));
}

#[test]
fn what_was_written_is_there_whatever_is_done() {
    for seed in 0..12 {
        assert_eq!(run(seed, &Faults::default()), (0, 0), "seed {seed}");
    }
}

#[test]
fn on_a_disk_that_fails_what_was_acknowledged_is_there() {
    let faults = Faults { error: 500, torn: 100, flipped: 300, ..Faults::default() };
    let results: Vec<_> = (100..112).map(|seed| run(seed, &faults)).collect();
    assert!(
        results.iter().any(|(failures, _)| *failures > 0) && results.iter().any(|(_, unreadable)| *unreadable > 0),
        "{results:?}"
    );
}
