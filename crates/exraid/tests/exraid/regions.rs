//! Regions of each kind, whole and degraded.

use std::sync::mpsc::Receiver;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exraid::device::Kind;
use exraid::events::{Event, What};
use exraid::fault::{Cut, FaultDisk, Faults, RamDisk};
use exraid::label::{MemberState, END};
use exraid::region::{make, open};
use exraid::space::{addresses, SHIFT};
use exraid::{Aligned, Buffers, Class, Device, Label, Layout, Op, OpenError, Region, Request, Space, Ticket, Uuid};
use rng::Rng;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
const POOL: Uuid = Uuid([3; 16]);

pub fn disks(count: usize) -> Vec<Arc<RamDisk>> {
    (0..count).map(|n| RamDisk::new(&format!("disk{n}"), SIZE)).collect()
}

pub fn devices(disks: &[Arc<RamDisk>]) -> Vec<Arc<dyn Device>> {
    disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect()
}

fn refusal(devices: Vec<Arc<dyn Device>>) -> String {
    match open(devices) {
        Ok(_) => panic!("it was opened"),
        Err(e) => e.to_string(),
    }
}

fn fill(region: &dyn Region, at: u64, byte: u8) -> exraid::Result<()> {
    region.write_at(&[byte; 4096], at)
}

fn at(region: &dyn Region, at: u64) -> exraid::Result<u8> {
    let mut found = [0; 4096];
    region.read_at(&mut found, at)?;
    assert!(found.iter().all(|byte| *byte == found[0]), "a block of one byte");
    Ok(found[0])
}

/// Random requests, against a copy in memory.
#[test]
fn each_kind_keeps_what_is_written() {
    for (layout, count) in [
        (Layout::Single, 1),
        (Layout::Stripe { chunk: 4096 }, 2),
        (Layout::Stripe { chunk: 65536 }, 3),
        (Layout::Mirror, 2),
        (Layout::Mirror, 3),
        (Layout::Raid5 { chunk: 4096 }, 3),
        (Layout::Raid5 { chunk: 65536 }, 5),
    ] {
        let disks = disks(count);
        let region = make(POOL, 7, layout, devices(&disks)).expect("a region");
        let size = region.properties().size;
        let data = SIZE - 2 * END;
        let expected = match layout {
            Layout::Single | Layout::Mirror => data..data + 1,
            Layout::Stripe { .. } => data * count as u64..data * count as u64 + 1,
            // The log of intents takes some of it.
            Layout::Raid5 { .. } => (data - 5 * MIB) * (count as u64 - 1)..data * (count as u64 - 1),
        };
        assert_eq!((region.number(), region.layout()), (7, layout));
        assert!(expected.contains(&size) && size % region.stripe() == 0, "{layout}: {size}");
        let mut rng = Rng::new(count as u64);
        let mut model = vec![0u8; size as usize];
        for _ in 0..300 {
            let len = rng.within(1, 600) * 512;
            let at = rng.below((size - len) / 512 + 1) * 512;
            if rng.below(2) == 0 {
                let bytes = rng.bytes(len as usize);
                model[at as usize..][..len as usize].copy_from_slice(&bytes);
                region.write_at(&bytes, at).expect("a write");
            } else {
                let mut found = vec![0; len as usize];
                region.read_at(&mut found, at).expect("a read");
                assert!(found == model[at as usize..][..len as usize], "{layout} at {at}");
            }
        }
        region.flush().expect("a flush");
        drop(region);
        // In any order, under any name.
        let mut again = devices(&disks);
        again.reverse();
        let region = open(again).expect("a region");
        let mut all = vec![0; size as usize];
        region.read_at(&mut all, 0).expect("a read");
        assert!(all == model, "{layout}");
        assert!(region.pending().is_empty());
        let e = region.write_at(&[0; 512], size).expect_err("behind the end");
        assert_eq!(e.class, Class::Invalid);
    }
}

/// Each process has labels in memory, which become outdated.
#[test]
fn processes_raise_the_mark_of_sequence_numbers_one_after_the_other() {
    let disks = disks(2);
    let one = make(POOL, 1, Layout::Mirror, devices(&disks)).expect("a region");
    let other = open(devices(&disks)).expect("a region");
    assert_ne!(one.secret(), 0);
    for n in 1..5 {
        one.raise_sequence(n * 100).expect("it is raised");
        assert_eq!(one.sequence(), n * 100);
        other.raise_sequence(n * 100 + 50).expect("it is raised");
        assert_eq!(other.sequence(), n * 100 + 50);
    }
    one.raise_sequence(7).expect("it stays");
    let third = open(devices(&disks)).expect("a region");
    assert_eq!((one.sequence(), third.sequence(), third.secret()), (450, 450, one.secret()));
    // But it does not take over a change of the membership.
    let spare = RamDisk::new("spare", SIZE);
    let live = &mut Vec::new;
    assert!(one.rebuild(1, Some((spare, Uuid([9; 16]))), live, &mut |_| true).expect("it is put back"));
    let e = other.raise_sequence(1000).expect_err("it knows another membership");
    assert!(e.to_string().contains("changed by another process"), "{e}");
}

#[test]
fn a_stripe_uses_all_disks_at_once() {
    let slow = |disk| FaultDisk::over(disk, 1, Faults { rate: Some(40 * MIB), ..Faults::default() }) as Arc<dyn Device>;
    let region = make(POOL, 1, Layout::Stripe { chunk: 65536 }, devices(&disks(4)).into_iter().map(slow).collect());
    let region = region.expect("a region");
    assert_eq!(region.stripe(), 4 * 65536);
    let start = Instant::now();
    region.run(Request::write(0, Buffers::whole(&Aligned::zeroed(8 << 20)))).result.expect("a write");
    let took = start.elapsed().as_secs_f64();
    assert!((0.045..0.15).contains(&took), "8 MiB at four times 40 MiB/s took {took}");
    let members = region.members();
    assert!(members.iter().all(|member| member.performance.write.bytes >= 2 * MIB), "{members:?}");
    assert!(region.performance().write.speed > 60.0 * MIB as f64, "{:?}", region.performance().write);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let (one, other) = (disks(2), disks(2));
    drop(make(POOL, 1, Layout::Mirror, devices(&one)).expect("a region"));
    drop(make(Uuid([4; 16]), 1, Layout::Mirror, devices(&other)).expect("a region"));
    let mixed = vec![one[0].clone() as Arc<dyn Device>, other[1].clone()];
    let text = refusal(mixed);
    assert!(text.contains("of the pool 04040404") && text.contains("of the pool 03030303"), "{text}");
    let twice = vec![one[0].clone() as Arc<dyn Device>, one[0].clone()];
    assert!(refusal(twice).contains("it is the same disk as disk0: disk 1"));
    let striped = disks(3);
    drop(make(POOL, 1, Layout::Stripe { chunk: 4096 }, devices(&striped)).expect("a region"));
    let text = refusal(devices(&striped[..2]));
    assert!(text.contains("region 1 cannot do without its disk 3"), "{text}");
    assert!(matches!(make(POOL, 1, Layout::Mirror, devices(&disks(1))), Err(OpenError::Unusable { .. })));
    assert!(matches!(open(devices(&disks(1))), Err(OpenError::Unlabelled { .. })));
}

#[test]
fn sequence_numbers_are_never_issued_twice() {
    let disks = disks(2);
    let region = make(POOL, 1, Layout::Mirror, devices(&disks)).expect("a region");
    region.raise_sequence(1000).expect("raised");
    region.raise_sequence(10).expect("it never sinks");
    drop(region);
    // A cut between the two labels: the higher one counts.
    let mut label = Label::read(&*disks[1]).expect("a label");
    label.update(&*disks[1], |label| label.sequence = 2000).expect("an update");
    assert_eq!(open(devices(&disks)).expect("a region").sequence(), 2000);
}

#[test]
fn nothing_was_written_behind_the_high_water_mark() {
    let disks = disks(2);
    let region = make(POOL, 1, Layout::Mirror, devices(&disks)).expect("a region");
    assert_eq!((region.high_water(), region.written(MIB)), (0, MIB..u64::MAX));
    region.raise_high_water(4 * MIB).expect("raised");
    region.raise_high_water(MIB).expect("it never sinks");
    assert_eq!((region.high_water(), region.written(MIB)), (4 * MIB, MIB..4 * MIB));
    assert_eq!(region.written(4 * MIB), u64::MAX..u64::MAX);
    drop(region);
    let set = |mark| {
        let mut label = Label::read(&*disks[1]).expect("a label");
        label.update(&*disks[1], |label| label.high_water = mark).expect("an update");
        open(devices(&disks)).expect("a region")
    };
    // A cut between the two labels: the lower one limits writes; but the higher one may be lost.
    let region = set(2 * MIB);
    assert_eq!((region.high_water(), region.written(MIB)), (2 * MIB, MIB..4 * MIB));
    region.raise_high_water(3 * MIB).expect("raised");
    assert_eq!(open(devices(&disks)).expect("a region").high_water(), 3 * MIB);
    drop(region);
    // A program without such a mark.
    let region = set(0);
    assert_eq!((region.high_water(), region.written(MIB)), (0, MIB..u64::MAX));
}

#[test]
fn addresses_are_those_of_the_region() {
    let space = Space::default();
    for number in [0, 5] {
        let region = make(POOL, number, Layout::Single, devices(&disks(1))).expect("a region");
        assert!(space.add(region.clone()).is_ok());
        assert!(space.add(region).is_err(), "its number is taken");
    }
    let size = SIZE - 2 * END;
    assert_eq!(space.boundaries(), [(0, 0..size), (5, addresses(5, size))]);
    let (region, place) = space.find((5 << SHIFT) + 4096).expect("a region");
    assert_eq!((region.number(), place), (5, 4096));
    let run = |op: Op| {
        let (done, ticket) = Ticket::new();
        space.submit(op.into(), done);
        ticket.wait().result
    };
    let from = || Buffers::whole(&Aligned::of(&[8; 4096]));
    run(Op::Write { at: (5 << SHIFT) + 8192, from: from() }).expect("a write");
    assert_eq!(at(&*region, 8192).expect("a read"), 8);
    for nowhere in [size, 1 << SHIFT, (5 << SHIFT) + size, u64::MAX << 12, size - 512] {
        run(Op::Write { at: nowhere, from: from() }).expect_err("nothing is there");
    }
    drop(space.remove(0));
    assert!(space.find(0).is_none() && space.find(5 << SHIFT).is_some(), "no address moves");
}

/// A mirror over disks that fail on demand.
struct Faulty {
    ram: Vec<Arc<RamDisk>>,
    disks: Vec<Arc<FaultDisk>>,
    region: Arc<dyn Region>,
    events: Receiver<Event>,
}

impl Faulty {
    fn new(count: usize, seed: u64) -> Faulty {
        let ram = disks(count);
        drop(make(POOL, 1, Layout::Mirror, devices(&ram)).expect("a region"));
        let over = |ram: &Arc<RamDisk>| FaultDisk::over(ram.clone(), seed, Faults::default());
        let disks: Vec<_> = ram.iter().map(over).collect();
        let region = open(disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect()).expect("a region");
        let events = region.events();
        Faulty { ram, disks, region, events }
    }

    fn states(&self) -> Vec<MemberState> {
        self.region.members().iter().map(|member| member.state).collect()
    }
}

#[test]
fn a_mirror_goes_on_without_a_disk_and_says_so() {
    let mirror = Faulty::new(3, 1);
    assert_eq!((mirror.region.tolerated(), mirror.region.copies()), (Some(2), 3));
    let before = mirror.region.epoch().expect("an epoch").number();
    mirror.disks[1].set(|faults| faults.gone = true);
    fill(&*mirror.region, 0, 5).expect("the others have it");
    assert_eq!(mirror.states(), [MemberState::Whole, MemberState::Out, MemberState::Whole]);
    assert_eq!(mirror.region.tolerated(), Some(1));
    assert_eq!(mirror.region.epoch().expect("an epoch").number(), before + 1);
    let events: Vec<What> = mirror.events.try_iter().map(|event| event.what).collect();
    assert!(events.iter().any(|what| matches!(what, What::Failed { member: 1, error } if error.class == Class::Gone)));
    assert!(events.iter().any(|what| matches!(what, What::Out { member: 1, tolerated: Some(1), .. })), "{events:?}");
    mirror.disks[0].set(|faults| faults.gone = true);
    assert_eq!(at(&*mirror.region, 0).expect("one has it"), 5);
    fill(&*mirror.region, 4096, 6).expect("one is enough");
    mirror.region.flush().expect("a flush");
    assert_eq!(mirror.region.tolerated(), Some(0));
    mirror.disks[2].set(|faults| faults.gone = true);
    assert_eq!(fill(&*mirror.region, 0, 7).expect_err("none is left").class, Class::Gone);
    assert_eq!(at(&*mirror.region, 0).expect_err("none is left").class, Class::Gone);
}

#[test]
fn a_bad_place_is_read_from_another_copy() {
    let mirror = Faulty::new(2, 1);
    fill(&*mirror.region, 0, 5).expect("a write");
    for bad in [0, 1] {
        mirror.disks[bad].set(|faults| faults.bad.push(END..END + 4096));
        for _ in 0..4 {
            assert_eq!(at(&*mirror.region, 0).expect("the other one has it"), 5);
        }
        // Another write repairs it.
        fill(&*mirror.region, 0, 5).expect("a write");
    }
    assert_eq!(mirror.states(), [MemberState::Whole; 2]);
    // One copy alone, where the content of the other is wrong.
    mirror.ram[0].overwrite(END, &[9; 4096]);
    for (copy, byte) in [(0, 9), (1, 5)] {
        let memory = Aligned::zeroed(4096);
        let (done, ticket) = Ticket::new();
        mirror.region.read_copy(copy, Request::read(0, Buffers::whole(&memory)), done);
        let answer = ticket.wait();
        answer.result.expect("a read");
        assert_eq!(answer.buffers.expect("memory").to_vec(), [byte; 4096]);
    }
}

#[test]
fn a_read_of_a_disk_that_hangs_is_answered_by_another() {
    let mirror = Faulty::new(2, 1);
    fill(&*mirror.region, 0, 5).expect("a write");
    mirror.disks.iter().for_each(|disk| disk.set(|faults| faults.delay = Duration::from_millis(1)));
    mirror.disks[0].set(|faults| faults.hang = 1);
    let mut others = 0;
    for _ in 0..10 {
        let memory = Aligned::zeroed(4096);
        let request = Request::read(0, Buffers::whole(&memory)).within(Duration::from_millis(40)).tagged(6);
        let start = Instant::now();
        let answer = mirror.region.run(request);
        answer.result.expect("the other one answers");
        let took = start.elapsed();
        let found = answer.buffers.expect("memory");
        assert_eq!(found.to_vec(), [5; 4096]);
        assert!(took < Duration::from_millis(500), "{took:?}");
        if found.layout().next() != Buffers::whole(&memory).layout().next() {
            others += 1;
            assert_eq!(Buffers::whole(&memory).to_vec(), [0; 4096], "the one that hangs still has it");
            let pending = mirror.region.pending();
            assert!(pending.iter().any(|p| p.answered && p.tag == 6 && p.range == (0..4096)), "{pending:?}");
        }
    }
    assert!((1..4).contains(&others), "it was tried {others} times, and then avoided");
    mirror.disks[0].release();
    assert!(mirror.region.pending().is_empty());
    assert_eq!(mirror.states(), [MemberState::Whole; 2], "a read that hangs loses nothing");
}

/// A disk that hangs is not even tested for recovery before it answers.
#[test]
fn nobody_is_sent_to_a_disk_that_hangs() {
    let mirror = Faulty::new(2, 1);
    fill(&*mirror.region, 0, 5).expect("a write");
    (0..100).for_each(|_| drop(at(&*mirror.region, 0)));
    mirror.disks[0].set(|faults| faults.hang = 1);
    let read = || {
        let start = Instant::now();
        let memory = Buffers::whole(&Aligned::zeroed(4096));
        let answer = mirror.region.run(Request::read(0, memory).within(Duration::from_secs(2)));
        answer.result.expect("the other one answers");
        start.elapsed()
    };
    while mirror.region.pending().is_empty() {
        read();
    }
    std::thread::sleep(Duration::from_millis(100));
    let longest = (0..300).map(|_| read()).max();
    mirror.disks[0].release();
    assert!(longest < Some(Duration::from_secs(1)), "{longest:?}");
}

#[test]
fn the_faster_copy_is_read() {
    let mirror = Faulty::new(2, 1);
    mirror.disks[0].set(|faults| faults.delay = Duration::from_millis(5));
    (0..100).for_each(|_| drop(at(&*mirror.region, 0)));
    let reads: Vec<u64> = mirror.region.members().iter().map(|member| member.performance.read.requests).collect();
    assert!(reads[0] < 10 && reads[1] > 90, "{reads:?}");
    mirror.disks[0].set(|faults| faults.delay = Duration::ZERO);
    mirror.disks[1].set(|faults| faults.delay = Duration::from_millis(5));
    (0..2000).for_each(|_| drop(at(&*mirror.region, 0)));
    let later: Vec<u64> = mirror.region.members().iter().map(|member| member.performance.read.requests).collect();
    assert!(later[0] > 1000, "it is noticed that the slow one is well again: {later:?}");
}

/// R1 at every instant: a disk missed a write that was acknowledged; the power is cut; both disks come back.
#[test]
fn what_was_acknowledged_is_there_after_a_power_cut() {
    let mut missed = 0;
    for failing in 0..2usize {
        for nth in 0..6 {
            let mirror = Faulty::new(2, nth);
            mirror.ram.iter().for_each(|disk| disk.record());
            let mut acknowledged = Vec::new();
            for n in 0..6u64 {
                if n == nth {
                    mirror.disks[failing].set(|faults| (faults.torn, faults.error) = (1, 1));
                }
                if n == nth + 1 {
                    mirror.disks[failing].set(|faults| *faults = Faults::default());
                }
                fill(&*mirror.region, n * 4096, n as u8 + 1).expect("a write");
                mirror.region.flush().expect("a flush");
                acknowledged.push(RamDisk::now());
            }
            // The counter is common to all tests, which may run now.
            let ends = mirror.ram.iter().map(|disk| disk.tape().len()).max().expect("disks");
            assert!(ends > 12);
            let first = acknowledged[0] - 4;
            for instant in first..=acknowledged[5] {
                for seed in 0..8 {
                    let left: Vec<Arc<RamDisk>> = mirror
                        .ram
                        .iter()
                        .enumerate()
                        .map(|(n, disk)| {
                            RamDisk::with(
                                &format!("disk{n}"),
                                disk.after(Cut { event: disk.at(instant), seed: seed * 2 + n as u64 }),
                            )
                        })
                        .collect();
                    let region = open(devices(&left)).expect("a region");
                    let promised = acknowledged.iter().filter(|then| **then <= instant).count();
                    let out = region.members().iter().filter(|member| member.state == MemberState::Out).count();
                    missed += out;
                    for n in 0..promised as u64 {
                        for _ in 0..3 {
                            assert_eq!(
                                at(&*region, n * 4096).expect("a read"),
                                n as u8 + 1,
                                "disk {failing} failed at {nth}, cut at {instant}, block {n}"
                            );
                        }
                    }
                }
            }
        }
    }
    assert!(missed > 100, "{missed}");
}

#[test]
fn halves_that_were_used_apart_are_refused() {
    let all = disks(2);
    drop(make(POOL, 1, Layout::Mirror, devices(&all)).expect("a region"));
    for n in 0..2 {
        let region = open(devices(&all[n..=n])).expect("half of it");
        assert_eq!(region.tolerated(), Some(0));
        fill(&*region, 0, n as u8 + 1).expect("a write");
    }
    let text = refusal(devices(&all));
    assert!(text.contains("written while it was apart") && text.contains("epoch 2 here, 2 on"), "{text}");
}

#[test]
fn a_disk_that_stayed_behind_is_not_read_and_is_caught_up() {
    let all = disks(2);
    let region = make(POOL, 1, Layout::Mirror, devices(&all)).expect("a region");
    fill(&*region, 0, 1).expect("a write");
    drop(region);
    let region = open(devices(&all[1..])).expect("without the first");
    fill(&*region, 0, 2).expect("a write");
    fill(&*region, MIB, 3).expect("a write");
    drop(region);
    let region = open(devices(&all)).expect("it is back");
    assert_eq!(region.members()[0].state, MemberState::Out);
    for _ in 0..200 {
        assert_eq!(at(&*region, 0).expect("a read"), 2);
    }
    // In two runs, the second after the region was opened anew.
    let live = || vec![0..4096, MIB..2 * MIB];
    let mut calls = 0;
    let done = region.rebuild(0, None, &mut { live }, &mut |left| {
        calls += 1;
        assert!(left <= MIB + 4096);
        calls < 2
    });
    assert!(!done.expect("it was stopped"));
    drop(region);
    let region = open(devices(&all)).expect("a region");
    assert!(matches!(region.members()[0].state, MemberState::Rebuilding { rebuilt: MIB }), "{:?}", region.members()[0]);
    let mut left = Vec::new();
    assert!(region
        .rebuild(0, None, &mut { live }, &mut |bytes| {
            left.push(bytes);
            true
        })
        .expect("it is rebuilt"));
    assert_eq!(left, [MIB], "what was copied is not copied again");
    assert_eq!(region.tolerated(), Some(1));
    drop(region);
    let region = open(devices(&all[..1])).expect("without the other one");
    assert_eq!((at(&*region, 0).expect("a read"), at(&*region, MIB).expect("a read")), (2, 3));
}

/// All of its content is written again.
#[test]
fn a_member_whose_flush_has_failed_can_be_put_back() {
    let mirror = Faulty::new(2, 1);
    fill(&*mirror.region, 0, 5).expect("a write");
    mirror.disks[1].set(|faults| (faults.error, faults.only) = (1, Some(Kind::Flush)));
    mirror.region.flush().expect("the other one has it");
    assert_eq!(mirror.states()[1], MemberState::Out);
    mirror.disks[1].set(|faults| *faults = Faults::default());
    let size = mirror.region.properties().size;
    let live = &mut || std::iter::once(0..size).collect();
    assert!(mirror.region.rebuild(1, None, live, &mut |_| true).expect("it is put back"));
    mirror.region.flush().expect("a flush");
    assert_eq!(mirror.states(), [MemberState::Whole; 2]);
}

/// Writes go on while a spare takes a lost disk's place; then the others are taken away.
#[test]
fn a_spare_has_everything_in_the_end() {
    let mirror = Faulty::new(2, 1);
    let size = mirror.region.properties().size;
    let blocks = size / 4096;
    let mut rng = Rng::new(5);
    let mut model = vec![0u8; blocks as usize];
    for n in 0..blocks {
        model[n as usize] = rng.below(250) as u8 + 1;
        fill(&*mirror.region, n * 4096, model[n as usize]).expect("a write");
    }
    mirror.disks[0].set(|faults| faults.gone = true);
    fill(&*mirror.region, 0, model[0]).expect("a write");
    let spare = RamDisk::new("spare", SIZE);
    let (region, stop) = (mirror.region.clone(), std::sync::atomic::AtomicBool::new(false));
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rng = Rng::new(6);
            let mut written = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let (block, byte) = (rng.below(blocks), rng.below(250) as u8 + 1);
                fill(&*region, block * 4096, byte).expect("a write");
                assert_eq!(at(&*region, block * 4096).expect("a read"), byte);
                written.push((block, byte));
            }
            written
        });
        let name = Uuid::random().expect("random");
        let live = &mut || std::iter::once(0..size).collect();
        let done = mirror.region.rebuild(0, Some((spare.clone(), name)), live, &mut |_| {
            std::thread::sleep(Duration::from_millis(2));
            true
        });
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(done.expect("rebuilt"));
        writer.join().expect("no panic")
    });
    assert!(written.len() > 100, "{}", written.len());
    written.iter().for_each(|(block, byte)| model[*block as usize] = *byte);
    mirror.region.flush().expect("a flush");
    assert_eq!(mirror.region.tolerated(), Some(1));
    drop(mirror);
    let region = open(vec![spare as Arc<dyn Device>]).expect("the spare alone");
    for (n, byte) in model.iter().enumerate() {
        assert_eq!(at(&*region, n as u64 * 4096).expect("a read"), *byte, "block {n}");
    }
}

#[test]
fn a_disk_that_was_replaced_and_comes_back_is_not_used() {
    let all = disks(3);
    let region = make(POOL, 1, Layout::Mirror, devices(&all[..2])).expect("a region");
    let name = Uuid::random().expect("random");
    let spare: Arc<dyn Device> = all[2].clone();
    assert!(region.rebuild(0, Some((spare, name)), &mut || vec![], &mut |_| true).expect("replaced"));
    fill(&*region, 0, 7).expect("a write");
    drop(region);
    for order in [[0, 1, 2], [2, 1, 0]] {
        let region = open(order.iter().map(|n| all[*n].clone() as Arc<dyn Device>).collect()).expect("a region");
        assert_eq!((region.members()[0].device, region.tolerated()), (name, Some(1)));
        assert_eq!(at(&*region, 0).expect("a read"), 7);
    }
}

/// Seeded: a mirror of three, of which one fails at a time, in any way that it reports, under a load of four threads.
/// Acknowledged content is there, even after the others are taken away.
#[test]
fn nothing_acknowledged_is_lost_that_copies_cover() {
    for seed in 0..12 {
        let mirror = Faulty::new(3, seed);
        let mut rng = Rng::new(seed);
        let victim = rng.below(3) as usize;
        let blocks_each = 256u64;
        let models = std::thread::scope(|scope| {
            let region = &mirror.region;
            let load = |thread: u64| {
                let mut rng = Rng::new(seed * 100 + thread);
                let mut model = vec![0u8; blocks_each as usize];
                for _ in 0..400 {
                    let (block, byte) = (rng.below(blocks_each), rng.below(250) as u8 + 1);
                    let place = (thread * blocks_each + block) * 4096;
                    if rng.below(3) > 0 {
                        let from = Buffers::whole(&Aligned::of(&[byte; 4096]));
                        let request = Request::write(place, from).within(Duration::from_millis(50));
                        region.run(request).result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                        model[block as usize] = byte;
                    } else if model[block as usize] > 0 {
                        let into = Buffers::whole(&Aligned::zeroed(4096));
                        let answer = region.run(Request::read(place, into).within(Duration::from_millis(50)));
                        answer.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                        assert_eq!(
                            answer.buffers.expect("memory").to_vec(),
                            [model[block as usize]; 4096],
                            "seed {seed}"
                        );
                    }
                }
                model
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || load(thread))).collect();
            std::thread::sleep(Duration::from_millis(2));
            mirror.disks[victim].set(|faults| match seed % 4 {
                0 => faults.gone = true,
                1 => (faults.error, faults.torn) = (20, 20),
                2 => faults.hang = 30,
                _ => faults.delay = Duration::from_millis(1),
            });
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        mirror.region.flush().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let out = mirror.states()[victim] == MemberState::Out;
        // The load may be over before the first failure.
        let struck = !mirror.disks[victim].injected().is_empty();
        assert!(out || !struck || seed % 4 == 3, "seed {seed}: a slow disk alone is kept");
        mirror.disks.iter().for_each(|disk| disk.release());
        // Opened alone, each diverges: on a copy, so that the next one is unchanged.
        let copy = |n: usize| RamDisk::with("alone", mirror.ram[n].content());
        // On a busy machine a good disk may be late as well.
        let states = mirror.states();
        let is_left = |n: &usize| *n != victim && states[*n] == MemberState::Whole;
        let left: Vec<Arc<RamDisk>> = (0..3).filter(is_left).map(copy).collect();
        assert!(!left.is_empty(), "seed {seed}: {states:?}");
        drop(mirror);
        for one in left {
            let region = open(vec![one as Arc<dyn Device>]).expect("one is enough");
            for (thread, model) in models.iter().enumerate() {
                for (block, byte) in model.iter().enumerate().filter(|(_, byte)| **byte > 0) {
                    let place = (thread as u64 * blocks_each + block as u64) * 4096;
                    assert_eq!(at(&*region, place).expect("a read"), *byte, "seed {seed}, block {block}");
                }
            }
        }
    }
}
