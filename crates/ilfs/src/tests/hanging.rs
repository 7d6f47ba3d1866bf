//! Disks that do not answer: a request that can do without one uses another, other requests wait, and no content is lost
//! or given up.

use std::time::{Duration, Instant};

use exraid::fault::FaultDisk;
use exraid::Device;

use super::super::place::Run;
use super::super::table::Cause;
use super::super::{Error, Head};
use super::rig::{block, content, Rig};

/// Ends the hang when dropped, also after a failure.
struct Hung<'d>(&'d FaultDisk);

impl<'d> Hung<'d> {
    fn new(disk: &'d FaultDisk) -> Hung<'d> {
        disk.set(|faults| faults.hang = 1);
        Hung(disk)
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.0.set(|faults| faults.hang = 0);
        self.0.release();
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_only_disk_is_waited_for_and_nothing_fails() {
    let rig = Rig::new(20);
    let places = rig.write(Head::Hot, &[block(5, 0, 1)]).expect("it is written");
    let hung = Hung::new(&rig.faults);
    let written = std::thread::scope(|scope| {
        let read = scope.spawn(|| rig.read(Run::one(places[0])));
        let written = scope.spawn(|| rig.write(Head::Hot, &[block(5, 1, 2)]));
        wait_until("the disk is late", || rig.faults.is_late());
        std::thread::sleep(Duration::from_millis(200));
        assert!(!read.is_finished() && !written.is_finished(), "nobody else has it");
        drop(hung);
        assert!(read.join().expect("a thread").expect("it is read") == content(1));
        written.join().expect("a thread").expect("it is written")
    });
    assert!(rig.read(Run::one(written[0])).expect("it is read") == content(2));
    let counts = rig.log.counts(&rig.session).expect("the table");
    assert_eq!((counts.bad, rig.log.out_of_use(&rig.session).expect("the table").len()), (0, 0));
    rig.check();
}

/// The late writes there are no content, and the segment is used again.
#[test]
fn one_of_two_is_gone_round_until_it_answers() {
    let rig = Rig::on(2, 20);
    rig.write(Head::Hot, &[block(5, 0, 1)]).expect("it is written");
    let disks = [&rig.faults, &rig.others[0]];
    let hung = Hung::new(disks[1]);
    // Until a part was to go there.
    let since = Instant::now();
    let mut all = Vec::new();
    while rig.log.out_of_use(&rig.session).expect("the table").is_empty() {
        let n = all.len() as u64;
        let blocks: Vec<_> = (0..300).map(|page| block(5, page, n)).collect();
        all.push((rig.write(Head::Hot, &blocks).expect("it is written elsewhere"), n));
        assert!(since.elapsed() < Duration::from_secs(40), "each takes a second at most");
        rig.unlink(&all.last().expect("one").0[1..]);
    }
    let out = rig.log.out_of_use(&rig.session).expect("the table");
    assert_eq!((out[0].number, out[0].cause), (1, Cause::Late));
    assert_eq!(rig.log.take_back(&rig.session).expect("the table"), [0; 0], "it does not answer");
    drop(hung);
    wait_until("what hung is done", || disks[1].pending().is_empty());
    assert_eq!(rig.log.take_back(&rig.session).expect("the table"), [1]);
    rig.log.end_late(&rig.session).expect("the table");
    for (places, n) in &all {
        assert!(rig.read(Run::one(places[0])).expect("it is read") == content(*n));
    }
    let epoch = rig.session.epoch().expect("an epoch");
    rig.log.reclaim(&rig.session, epoch + 10, 100).expect("the table");
    assert_eq!(rig.log.counts(&rig.session).expect("the table").bad, 0);
    rig.check();
}

/// An administrator gives up its region meanwhile.
#[test]
fn a_waiter_returns_when_the_only_replica_is_given_up() {
    let rig = Rig::on(2, 20);
    let places = rig.write(Head::Hot, &[block(5, 0, 1)]).expect("it is written");
    let number = rig.log.region_of(&rig.session, places[0]).expect("the table").expect("a region");
    let hung = Hung::new([&rig.faults, &rig.others[0]][number as usize]);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| rig.read(Run::one(places[0])));
        wait_until("the disk is late", || hung.0.is_late());
        rig.log.ignore(&rig.session, number).expect("the table");
        let e = read.join().expect("a thread").expect_err("nobody has it");
        assert!(matches!(e, Error::Missing(one) if one == number), "{e}");
    });
}
