//! A power cut before each write, flush and discard of a story on three disks, after which one may be missing.
//! Acknowledged content with two replicas is there, and with all disks everything is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use exraid::fault::{Content, Cut, FaultDisk, Faults, RamDisk};
use exraid::region::{make, open};
use exraid::{Device, Layout, Region};
use rng::Rng;

use super::super::place::Run;
use super::super::replicas::Replicated;
use super::super::storage_class::Class;
use super::super::Log;
use super::crash::Probed;
use super::rig::{content, options, session_of, snapshot, Rig, MIB, POOL, SEGMENT};
use super::world::{Pages, World};

const DISKS: u32 = 3;
const SEGMENTS: u64 = 14;

/// The classes of the files.
fn classes() -> BTreeMap<u64, Class> {
    [(1, Class::Mirror(2)), (2, Class::Mirror(3)), (3, Class::Lazy(0)), (4, Class::None), (5, Class::Mirror(2))].into()
}

/// Memory and mapping at an instant of the disks' clock.
#[derive(Clone)]
struct Instant {
    at: u64,
    memory: Arc<Vec<u8>>,
    pages: Pages,
}

struct Played {
    disks: Vec<Arc<RamDisk>>,
    before: Vec<Instant>,
    /// Commits: the epoch that is durable then, and its memory and mapping.
    commits: Vec<(u64, Instant)>,
}

fn replicate_all(world: &World) {
    while let Replicated::Made { .. } | Replicated::Dropped { .. } =
        world.rig.log.make_next_replica(&world.rig.session, world, &mut |_| true).expect("it works")
    {}
}

fn play() -> Played {
    let disks: Vec<Arc<RamDisk>> =
        (0..DISKS).map(|n| RamDisk::new(&format!("disk{n}"), 2 * MIB + SEGMENTS * SEGMENT)).collect();
    let probed: Vec<Arc<Probed>> =
        disks.iter().map(|disk| Arc::new(Probed { disk: disk.clone(), before: Mutex::default() })).collect();
    let regions: Vec<Arc<dyn Region>> = (0..)
        .zip(&probed)
        .map(|(n, disk)| make(POOL, n, Layout::Single, vec![disk.clone() as Arc<dyn Device>]).expect("a region"))
        .collect();
    let session = Arc::new(pram::Session::in_memory(MIB).unwrap());
    Log::format(&session, &regions, SEGMENT).expect("a log");
    let log = Log::open(&session, &regions, options()).expect("the log").expect("there is one");
    let faults = FaultDisk::over(disks[0].clone(), 1, Faults::default());
    let world = World::new(Rig {
        session: session.clone(),
        disk: disks[0].clone(),
        faults,
        others: Vec::new(),
        rams: Vec::new(),
        log,
    });
    *world.classes.lock().expect("not poisoned") = classes();
    let instants = Arc::new(Mutex::new(Vec::<Instant>::new()));
    disks.iter().for_each(|disk| disk.record());
    for disk in &probed {
        let (all, theirs, pages) = (instants.clone(), session.clone(), world.pages.clone());
        *disk.before.lock().expect("not poisoned") = Some(Box::new(move || {
            let memory = Arc::new(snapshot(&theirs));
            let pages = pages.lock().expect("not poisoned").clone();
            all.lock().expect("not poisoned").push(Instant { at: RamDisk::now(), memory, pages });
        }));
    }
    let now = || Instant {
        at: RamDisk::now(),
        memory: Arc::new(snapshot(&session)),
        pages: world.pages.lock().expect("not poisoned").clone(),
    };
    let mut commits = vec![(0, now())];
    let mut commit = || {
        world.commit();
        commits.push((world.durable.get(), now()));
    };
    for ino in 1..=5 {
        world.write(&file(ino, 0..120 + ino * 20)).expect("there is room");
    }
    commit();
    replicate_all(&world);
    all_sorts(&world, &mut commit);
    commit();
    while world.reclaim().expect("it works") > 0 {}
    world.write(&file(2, 0..100)).expect("there is room");
    replicate_all(&world);
    assert_eq!(world.verify(), 0);
    world.rig.check();
    probed.iter().for_each(|disk| drop(disk.before.lock().expect("not poisoned").take()));
    let before = instants.lock().expect("not poisoned").clone();
    Played { disks, before, commits }
}

fn file(ino: u64, pages: std::ops::Range<u64>) -> Vec<(u64, u64)> {
    pages.map(|page| (ino, page)).collect()
}

/// Writes, and between them all other work of the log.
fn all_sorts(world: &World, commit: &mut dyn FnMut()) {
    let mut rng = Rng::new(7);
    for round in 0..12u64 {
        let some: std::collections::BTreeSet<_> = (0..8).map(|n| (1 + n % 5, rng.below(120))).collect();
        world.write(&some.into_iter().collect::<Vec<_>>()).expect("there is room");
        match round % 6 {
            0 => world.remove(&file(5, round * 10..round * 10 + 30)),
            1 => replicate_all(world),
            2 => drop(world.clean(100).expect("it works")),
            3 => commit(),
            4 => drop(world.reclaim().expect("it works")),
            _ => drop(world.rig.log.balance_next(&world.rig.session, world, &mut |_| true).expect("it works")),
        }
    }
}

/// The disks as a cut at that instant may leave them.
fn cut(played: &Played, at: u64, seed: u64) -> Vec<Content> {
    let one = |(n, disk): (usize, &Arc<RamDisk>)| disk.after(Cut { event: disk.at(at), seed: seed * 10 + n as u64 });
    played.disks.iter().enumerate().map(one).collect()
}

/// With this memory and all disks but `missing`.
fn opened(memory: &Instant, disks: &[Content], missing: Option<usize>) -> World {
    let rams: Vec<Arc<RamDisk>> =
        disks.iter().enumerate().map(|(n, content)| RamDisk::with(&format!("disk{n}"), content.clone())).collect();
    let regions: Vec<Arc<dyn Region>> = rams
        .iter()
        .enumerate()
        .filter(|(n, _)| Some(*n) != missing)
        .map(|(_, disk)| open(vec![disk.clone() as Arc<dyn Device>]).expect("its label is whole"))
        .collect();
    let session = Arc::new(session_of(&memory.memory));
    let log = Log::open(&session, &regions, options()).expect("the log").expect("there is one");
    let faults = FaultDisk::over(rams[0].clone(), 1, Faults::default());
    let rig = Rig { session, disk: rams[0].clone(), faults, others: Vec::new(), rams: Vec::new(), log };
    let world = World::with(rig, memory.pages.clone(), 1 << 20, 0);
    *world.classes.lock().expect("not poisoned") = classes();
    world
}

fn goes_on(memory: &Instant, disks: &[Content], lost: bool, what: &str) {
    let world = opened(memory, disks, None);
    world.rig.check();
    world.rig.log.recover(&world.rig.session, lost).unwrap_or_else(|e| panic!("{what}: {e}"));
    world.rig.check();
    assert_eq!(world.verify(), 0, "{what}");
    replicate_all(&world);
    world.rig.check();
    assert_eq!(world.verify(), 0, "{what}, with its replicas");
    let replicas = |place| world.rig.log.replicas_of(&world.rig.session, place).expect("replicas");
    for ((ino, page), (place, _)) in world.pages.lock().expect("not poisoned").iter() {
        let wanted = [2, 3, 2, 1, 2][*ino as usize - 1];
        assert_eq!(replicas(*place), wanted, "{what}: page {page} of {ino}");
    }
}

#[test]
fn a_power_cut_anywhere_leaves_replicas_that_can_be_trusted() {
    let played = play();
    assert!(played.before.len() > 150, "{}", played.before.len());
    let mut without = 0;
    for (n, instant) in played.before.iter().enumerate() {
        let (disks, what) = (cut(&played, instant.at, n as u64), format!("event {n}"));
        if n % 3 == 0 {
            goes_on(instant, &disks, false, &what);
        }
        // And a disk is lost with the power.
        let missing = n % DISKS as usize;
        let world = opened(instant, &disks, Some(missing));
        for ((ino, page), (place, seed)) in world.pages.lock().expect("not poisoned").iter() {
            let replicas = world.rig.log.replicas_of(&world.rig.session, *place).expect("replicas");
            match world.rig.read(Run::one(*place)) {
                Ok(found) => assert!(found == content(*seed), "{what}: page {page} of {ino}"),
                Err(e) => {
                    assert!(
                        replicas < 2,
                        "{what}, without disk {missing}: page {page} of {ino}, {replicas} replicas: {e}"
                    )
                }
            }
            without += u32::from(replicas >= 2);
        }
    }
    assert!(without > 1000, "{without}");
}

#[test]
fn with_the_memory_of_the_last_commit_replicas_are_found() {
    let played = play();
    for (n, instant) in played.before.iter().enumerate().step_by(2) {
        let (_, last) =
            played.commits.iter().rev().find(|(_, last)| last.at <= instant.at).expect("there is a first one");
        goes_on(last, &cut(&played, instant.at, n as u64), true, &format!("event {n}"));
    }
}
