//! Any operations, against what should be there.

use std::collections::BTreeSet;

use exraid::fault::Faults;
use rng::Rng;

use super::super::error::Error;
use super::rig::Rig;
use super::world::World;

/// Pages that there can be: two thirds of the log.
const INODES: u64 = 12;
const PAGES: u64 = 300;

/// What failed and may: the disk.
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
                // Content that is dirty in memory: some of what is there.
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
        // A flush that failed, or a process that went.
        if world.rig.log.check_failed().is_err() || rng.below(40) == 0 {
            // The labels are read anew, which a disk that fails now does not allow.
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

#[test]
fn what_was_written_is_there_whatever_is_done() {
    for seed in 0..12 {
        assert_eq!(run(seed, &Faults::default()), (0, 0), "seed {seed}");
    }
}

#[test]
fn on_a_disk_that_fails_what_was_acknowledged_is_there() {
    let faults = Faults { error: 500, torn: 100, flipped: 300, ..Faults::default() };
    let told: Vec<_> = (100..112).map(|seed| run(seed, &faults)).collect();
    assert!(
        told.iter().any(|(failures, _)| *failures > 0) && told.iter().any(|(_, unreadable)| *unreadable > 0),
        "{told:?}"
    );
}
