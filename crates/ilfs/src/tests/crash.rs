//! A power cut before each write, flush and discard, with unflushed writes kept or lost: nothing acknowledged is lost,
//! and nothing wrong is read. With the memory as it was (`battery`), and with that of the last commit (`logged`).

use std::sync::{Arc, Mutex};

use exraid::fault::{Cut, FaultDisk, Faults, RamDisk};
use exraid::region::{make, open};
use exraid::{Device, Done, Layout, Op, Pending, Properties, Request};
use rng::Rng;

use super::super::place::Run;
use super::super::{Head, Log};
use super::rig::{block, content, options, session_of, snapshot, Rig, MIB, POOL, SEGMENT};
use super::world::{Pages, World};

pub(super) type Before = Box<dyn FnMut() + Send>;

/// A disk that runs a function before each request.
pub(super) struct Probed {
    pub disk: Arc<RamDisk>,
    pub before: Mutex<Option<Before>>,
}

impl Device for Probed {
    fn name(&self) -> &Arc<str> {
        self.disk.name()
    }

    fn properties(&self) -> Properties {
        self.disk.properties()
    }

    fn submit(&self, request: Request, done: Done) {
        if matches!(request.op, Op::Write { .. } | Op::Flush | Op::Discard(_)) {
            if let Some(before) = &mut *self.before.lock().expect("not poisoned") {
                before();
            }
        }
        self.disk.submit(request, done);
    }

    fn pending(&self) -> Vec<Pending> {
        self.disk.pending()
    }
}

/// The memory and the mapping at an instant.
#[derive(Clone)]
struct Instant {
    memory: Arc<Vec<u8>>,
    pages: Pages,
}

/// Memory and mapping before each event of the disk.
type Instants = Arc<Mutex<Vec<Instant>>>;

struct Played {
    disk: Arc<RamDisk>,
    before: Vec<Instant>,
    /// For each commit: the number of events before it, its epoch, and its memory and mapping.
    commits: Vec<(usize, u64, Instant)>,
}

const SEGMENTS: u64 = 14;

/// Writes, overwrites, removals, commits, cleaning and reuse on a small log.
fn play() -> Played {
    let disk = RamDisk::new("disk", 2 * MIB + SEGMENTS * SEGMENT);
    let probed = Arc::new(Probed { disk: disk.clone(), before: Mutex::default() });
    let region = make(POOL, 0, Layout::Single, vec![probed.clone()]).expect("a region");
    let session = Arc::new(pram::Session::in_memory(MIB).unwrap());
    Log::format(&session, std::slice::from_ref(&region), SEGMENT).expect("a log");
    let log = Log::open(&session, &[region], options()).expect("the log").expect("there is one");
    let faults = FaultDisk::over(disk.clone(), 1, Faults::default());
    let world = World::new(Rig {
        session: session.clone(),
        disk: disk.clone(),
        faults,
        others: Vec::new(),
        rams: Vec::new(),
        log,
    });
    let instants = Instants::default();
    let (all, theirs, pages) = (instants.clone(), session.clone(), world.pages.clone());
    disk.record();
    *probed.before.lock().expect("not poisoned") = Some(Box::new(move || {
        let memory = Arc::new(snapshot(&theirs));
        // A relocation holds this lock, and sends the disk nothing meanwhile.
        let pages = pages.lock().expect("not poisoned").clone();
        all.lock().expect("not poisoned").push(Instant { memory, pages });
    }));
    let now =
        || Instant { memory: Arc::new(snapshot(&session)), pages: world.pages.lock().expect("not poisoned").clone() };
    let mut commits = vec![(0, 0, now())];
    let mut commit = || {
        world.commit();
        commits.push((instants.lock().expect("not poisoned").len(), world.durable.get(), now()));
    };
    let mut rng = Rng::new(2);
    let file = |ino: u64, pages: std::ops::Range<u64>| pages.map(|page| (ino, page)).collect::<Vec<_>>();
    for ino in 1..8 {
        world.write(&file(ino, 0..150 + ino * 10)).expect("there is room");
        if ino % 2 == 0 {
            commit();
        }
    }
    for round in 0..25 {
        let some: Vec<_> = (0..10).map(|n| (1 + n % 6, rng.below(150))).collect();
        world
            .write(&some.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>())
            .expect("room");
        match round % 5 {
            0 => world.remove(&file(7, round * 5..round * 5 + 25)),
            1 => commit(),
            2 => drop(world.clean(100).expect("it works")),
            3 => drop(world.reclaim().expect("it works")),
            _ => {}
        }
    }
    commit();
    while world.reclaim().expect("it works") > 0 {}
    world.write(&file(9, 0..400)).expect("what was freed is used again");
    assert_eq!(world.verify(), 0);
    drop(world);
    drop(probed.before.lock().expect("not poisoned").take());
    let before = instants.lock().expect("not poisoned").clone();
    assert_eq!(before.len(), disk.tape().len());
    Played { disk, before, commits }
}

/// The pool can be opened with this memory and this disk, has all of the mapping, and works.
fn goes_on(memory: &Instant, disk: exraid::fault::Content, durable: u64, lost: bool, what: &str) {
    let disk = RamDisk::with("disk", disk);
    let session = Arc::new(session_of(&memory.memory));
    let faults = FaultDisk::over(disk.clone(), 1, Faults::default());
    let world = World::with(Rig::of(session, disk, faults), memory.pages.clone(), 1 << 20, durable);
    world.rig.check();
    world.rig.log.recover(&world.rig.session, lost).unwrap_or_else(|e| panic!("{what}: {e}"));
    world.rig.check();
    assert_eq!(world.verify(), 0, "{what}");
    world.make_room(3).unwrap_or_else(|e| panic!("{what}: {e}"));
    world.write(&(0..300).map(|page| (20, page)).collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{what}: {e}"));
    world.rig.check();
    assert_eq!(world.verify(), 0, "{what}, later");
}

#[test]
fn a_power_cut_anywhere_loses_nothing_that_memory_names() {
    let played = play();
    assert!(played.before.len() > 80, "{}", played.before.len());
    let mut discards = 0;
    for (event, instant) in played.before.iter().enumerate() {
        for seed in 0..2 {
            let cut = Cut { event, seed: seed * 1000 + event as u64 };
            goes_on(instant, played.disk.after(cut), 0, false, &format!("{cut:?}"));
        }
        discards += usize::from(matches!(played.disk.tape()[event], exraid::fault::Event::Discard(_)));
    }
    assert!(discards > 2, "segments were used again: {discards}");
}

#[test]
fn with_the_memory_of_the_last_commit_nothing_that_it_names_is_lost() {
    let played = play();
    for event in 0..=played.before.len() {
        let last = played.commits.iter().rev().find(|(after, ..)| *after <= event).expect("there is a first one");
        let cut = Cut { event, seed: event as u64 };
        goes_on(&last.2, played.disk.after(cut), last.1, true, &format!("{cut:?}"));
    }
}

/// A commit writes its segments after the instant of its memory, and yet its mapping leads there. So this takes the
/// memory of the last commit, and the mapping of the instant of the cut.
#[test]
fn what_was_written_after_the_last_commit_is_found() {
    let played = play();
    let mut found = 0;
    for (event, instant) in played.before.iter().enumerate() {
        let last = played.commits.iter().rev().find(|(after, ..)| *after <= event).expect("there is a first one");
        let mixed = Instant { memory: last.2.memory.clone(), pages: instant.pages.clone() };
        found += usize::from(mixed.pages != last.2.pages);
        let cut = Cut { event, seed: event as u64 };
        goes_on(&mixed, played.disk.after(cut), last.1, true, &format!("{cut:?}"));
    }
    assert!(found > 30, "{found}");
}

/// With any memory older than the last commit's: the blocks of its mapping are there, or are reported as lost.
#[test]
fn older_memory_reads_what_it_names_or_reports_it_as_lost() {
    let played = play();
    let mut lost = 0;
    for (_, _, instant) in &played.commits {
        let disk = RamDisk::with("disk", played.disk.content());
        let session = Arc::new(session_of(&instant.memory));
        let faults = FaultDisk::over(disk.clone(), 1, Faults::default());
        let rig = Rig::of(session, disk, faults);
        for (page, (place, seed)) in &instant.pages {
            match rig.read(Run::one(*place)) {
                Ok(found) => assert!(found == content(*seed), "{page:?} at {place}"),
                Err(super::super::Error::Lost(_)) => lost += 1,
                // Its segment was discarded, and nothing was written there yet.
                Err(super::super::Error::Damaged { .. }) => lost += 1,
                Err(e) => panic!("{page:?}: {e}"),
            }
        }
        // And new segments get numbers that were never issued.
        let top = played
            .commits
            .iter()
            .flat_map(|(.., instant)| instant.pages.values())
            .map(|(place, _)| place.sequence())
            .max();
        let new = rig.write(Head::Hot, &[block(1, 1, 1)]).expect("there is room");
        assert!(Some(new[0].sequence()) > top);
    }
    assert!(lost > 0);
}

/// The same instants with an older disk: content that it lacks is reported.
#[test]
fn an_old_disk_under_new_memory_gives_nothing_wrong() {
    let played = play();
    let last = &played.commits.last().expect("there is one").2;
    for event in (0..played.before.len()).step_by(5) {
        let disk = RamDisk::with("disk", played.disk.after(Cut { event, seed: 1 }));
        let region = open(vec![disk.clone()]).expect("its label is whole");
        let session = Arc::new(session_of(&last.memory));
        let log = Log::open(&session, &[region], options()).expect("the log").expect("there is one");
        let rig = Rig {
            session,
            faults: FaultDisk::over(disk.clone(), 1, Faults::default()),
            disk,
            others: Vec::new(),
            rams: Vec::new(),
            log,
        };
        for (page, (place, seed)) in &last.pages {
            if let Ok(found) = rig.read(Run::one(*place)) {
                assert!(found == content(*seed), "{page:?} at {place}");
            }
        }
        let top = last.pages.values().map(|(place, _)| place.sequence()).max();
        let new = rig.write(Head::Hot, &[block(1, 1, 1)]).expect("there is room");
        assert!(Some(new[0].sequence()) > top, "no number is issued again");
    }
}
