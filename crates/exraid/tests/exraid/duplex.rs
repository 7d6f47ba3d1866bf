//! Streams in two regions at once: written, grown, excluded and filled; power cuts at every write and flush of that on
//! both disks, and then openings from both and from each alone.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use exraid::duplex::{Completeness, Duplex, Refusal, Spans, Supply};
use exraid::fault::{Cut, FaultDisk, Faults, RamDisk};
use exraid::{region, Class, Device, Layout, Region, Uuid};

const POOL: Uuid = Uuid([7; 16]);
const SEGMENT: u64 = 1 << 20;
const SIZE: u64 = 24 << 20;

/// Hands out segments in order, and remembers those given back.
#[derive(Default)]
struct Segments(Mutex<Vec<(u32, u32)>>, Mutex<Vec<(u32, Range<u32>)>>);

impl Supply for Segments {
    fn take(&self, region: u32, count: u64) -> exraid::Result<Vec<u32>> {
        let mut next = self.0.lock().expect("unpoisoned");
        if !next.iter().any(|(number, _)| *number == region) {
            next.push((region, 8));
        }
        let (_, from) = next.iter_mut().find(|(number, _)| *number == region).expect("it was added");
        *from += count as u32;
        match *from > 20 {
            true => Err(exraid::Error::new(Class::NoSpace, &"a region".into(), "full")),
            false => Ok((*from - count as u32..*from).collect()),
        }
    }
    fn has(&self, _: u32, _: &[Range<u32>]) -> bool {
        true
    }
    fn give_back(&self, region: u32, segments: &[Range<u32>]) {
        self.1.lock().expect("unpoisoned").extend(segments.iter().map(|span| (region, span.clone())));
    }
}

struct Rig {
    disks: Vec<Arc<RamDisk>>,
    faults: Vec<Arc<FaultDisk>>,
    regions: Vec<Arc<dyn Region>>,
}

fn spans() -> Spans {
    // Not in one piece, and not in order.
    [vec![4..5, 2..3], std::iter::once(0..1).collect(), std::iter::once(6..7).collect()]
}

fn rig(count: u32) -> Rig {
    let disks: Vec<_> = (0..count).map(|n| RamDisk::new(&format!("disk {n}"), SIZE)).collect();
    let over = |disk: &Arc<RamDisk>| FaultDisk::over(disk.clone(), 1, Faults::default());
    let faults: Vec<_> = disks.iter().map(over).collect();
    let make = |(n, disk): (usize, &Arc<FaultDisk>)| {
        region::make(POOL, n as u32, Layout::Single, vec![disk.clone() as Arc<dyn Device>]).expect("a region")
    };
    let regions = faults.iter().enumerate().map(make).collect();
    Rig { disks, faults, regions }
}

fn create(rig: &Rig) -> Duplex {
    let members: Vec<_> = rig.regions.iter().take(2).map(|region| (region.clone(), spans())).collect();
    let duplex = Duplex::create(&members, SEGMENT, b"more", None).expect("made");
    duplex.set_supply(Some(Arc::new(Segments::default())));
    duplex
}

fn open_disks(disks: &[Arc<RamDisk>]) -> Vec<Arc<dyn Region>> {
    disks.iter().map(|disk| region::open(vec![disk.clone() as Arc<dyn Device>]).expect("a region")).collect()
}

fn read(duplex: &Duplex, stream: usize, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    duplex.read(stream, &mut bytes, at).expect("it is there");
    bytes
}

/// All requests fail from now on.
fn fail(disk: &FaultDisk) {
    disk.set(|faults| faults.error = 1);
}

fn heal(disk: &FaultDisk) {
    disk.set(|faults| faults.error = 0);
}

fn states(duplex: &Duplex) -> Vec<Completeness> {
    duplex.members().iter().map(|member| member.state).collect()
}

#[test]
fn what_is_written_is_in_both_and_read_across_segments_and_at_any_alignment() {
    let rig = rig(2);
    let duplex = create(&rig);
    let bytes: Vec<u8> = (0..70_000u32).map(|n| (n / 7) as u8).collect();
    duplex.write(0, &bytes, SEGMENT - 30_001).expect("written");
    duplex.write(1, &[9; 80], 0).expect("written");
    duplex.write(1, &[8; 512], 512).expect("written");
    duplex.flush().expect("durable");
    for disks in [0..2, 0..1, 1..2] {
        let found = Duplex::open(&open_disks(&rig.disks[disks]), None, true).expect("each is enough");
        assert_eq!(read(&found, 0, SEGMENT - 30_001, bytes.len()), bytes);
        assert_eq!(read(&found, 1, 1, 79), [9; 79]);
        assert_eq!((read(&found, 1, 512, 512), found.extra()), (vec![8; 512], b"more".to_vec()));
        assert!(found.read(1, &mut [0; 8], SEGMENT).is_err(), "behind its end");
    }
}

#[test]
fn streams_get_longer_and_shorter_and_what_is_not_needed_is_given_back() {
    let rig = rig(2);
    let duplex = create(&rig);
    let segments = Arc::new(Segments::default());
    duplex.set_supply(Some(segments.clone()));
    duplex.write(1, &[5; 4096], 3 * SEGMENT).expect("it gets longer");
    assert_eq!(duplex.len(1), 4 * SEGMENT);
    let refused = duplex.write(2, &[5; 4096], 30 * SEGMENT).expect_err("there is no room");
    assert_eq!((refused.class, states(&duplex)), (Class::NoSpace, vec![Completeness::Whole; 2]));
    duplex.shrink(1, SEGMENT + 1).expect("shorter");
    assert_eq!(duplex.len(1), 2 * SEGMENT);
    let back = segments.1.lock().expect("unpoisoned").clone();
    assert!(back.contains(&(0, 9..11)) && back.contains(&(1, 9..11)), "{back:?}");
    let found = Duplex::open(&open_disks(&rig.disks), None, true).expect("open");
    assert_eq!(found.len(1), 2 * SEGMENT);
}

/// Segments that another process gives back before a note names them.
struct TakenBack(Segments);

impl Supply for TakenBack {
    fn take(&self, region: u32, count: u64) -> exraid::Result<Vec<u32>> {
        self.0.take(region, count)
    }
    fn has(&self, _: u32, _: &[Range<u32>]) -> bool {
        false
    }
    fn give_back(&self, region: u32, segments: &[Range<u32>]) {
        self.0.give_back(region, segments);
    }
}

#[test]
fn what_was_given_back_before_it_was_named_is_not_named() {
    let rig = rig(3);
    let duplex = create(&rig);
    duplex.set_supply(Some(Arc::new(TakenBack(Segments::default()))));
    let refused = duplex.write(1, &[5; 4096], 3 * SEGMENT).expect_err("others may have it");
    assert_eq!((refused.class, duplex.len(1)), (Class::Transient, SEGMENT));
    duplex.know(&rig.regions[2]);
    assert_eq!(duplex.begin_member(2).expect_err("the same").class, Class::Transient);
    assert_eq!(duplex.with_named(0, |named| named.len()).expect("an answer"), 4);
    duplex.set_supply(Some(Arc::new(Segments::default())));
    duplex.write(1, &[5; 4096], 3 * SEGMENT).expect("it gets longer");
    assert!(duplex.with_named(0, |named| named.iter().any(|span| span.contains(&8))).expect("an answer"));
}

#[test]
fn a_member_that_misses_a_write_is_out_and_is_filled_before_it_counts_again() {
    let rig = rig(2);
    let duplex = create(&rig);
    duplex.write(0, &[1; 4096], 0).expect("written");
    fail(&rig.faults[0]);
    duplex.write(0, &[2; 4096], 0).expect("the other has it");
    assert_eq!(states(&duplex), [Completeness::Out, Completeness::Whole]);
    heal(&rig.faults[0]);
    duplex.write(0, &[3; 4096], 4096).expect("written");
    duplex.flush().expect("durable");
    assert_eq!(read(&duplex, 0, 0, 1), [2]);

    let both = Duplex::open(&open_disks(&rig.disks), None, true).expect("the other counts");
    assert_eq!((read(&both, 0, 0, 1), states(&both)[0]), (vec![2], Completeness::Out));

    duplex.begin_member(0).expect("it may come back");
    assert_eq!(states(&duplex)[0], Completeness::Filling);
    duplex.write(1, &[4; 4096], 8192).expect("written to both");
    let half = Duplex::open(&open_disks(&rig.disks[..1]), None, true);
    assert!(matches!(half, Err(Refusal::Stale { .. })), "it lacks something, and says so");
    assert!(duplex.fill(&|_| u64::MAX, &mut |_| true).expect("filled"));
    assert_eq!(states(&duplex), [Completeness::Whole; 2]);
    let alone = Duplex::open(&open_disks(&rig.disks[..1]), None, true).expect("it has all");
    assert_eq!(
        (read(&alone, 0, 0, 1), read(&alone, 0, 4096, 1), read(&alone, 1, 8192, 1)),
        (vec![2], vec![3], vec![4])
    );
}

#[test]
fn where_no_member_is_left_a_write_fails() {
    let rig = rig(2);
    let duplex = create(&rig);
    rig.faults.iter().for_each(|disk| fail(disk));
    duplex.write(0, &[1; 4096], 0).expect_err("no member has it");
    assert_eq!(states(&duplex), [Completeness::Whole; 2], "neither is better than the other");
    heal(&rig.faults[0]);
    duplex.write(0, &[2; 4096], 0).expect("the first has it");
    assert_eq!(states(&duplex), [Completeness::Whole, Completeness::Out]);
    fail(&rig.faults[0]);
    duplex.write(0, &[3; 4096], 0).expect_err("the last one");
    duplex.flush().expect_err("the last one");
}

#[test]
fn a_member_moves_to_another_region() {
    let rig = rig(3);
    let duplex = create(&rig);
    duplex.write(2, &[6; 4096], 4096).expect("written");
    duplex.know(&rig.regions[2]);
    duplex.begin_member(2).expect("a third one");
    assert!(duplex.fill(&|_| u64::MAX, &mut |_| true).expect("filled"));
    duplex.retire(0).expect("two others have all");
    duplex.retire(1).expect("one has all");
    duplex.retire(2).expect_err("it is the last");
    let alone = Duplex::open(&open_disks(&rig.disks[2..]), None, true).expect("it has all");
    assert_eq!(read(&alone, 2, 4096, 1), [6]);
    let refused = Duplex::open(&open_disks(&rig.disks[..2]), None, true).err().expect("they are none").to_string();
    assert!(refused.contains("region 2, which is missing"), "{refused}");
}

#[test]
fn a_missing_member_is_excluded_before_anything_is_written_and_halves_are_refused() {
    let rig = rig(2);
    drop(create(&rig));
    for n in 0..2 {
        let alone = Duplex::open(&open_disks(&rig.disks[n..=n]), None, false).expect("one is enough");
        assert_eq!(states(&alone), [Completeness::Whole; 2], "who only looks changes nothing");
        alone.write(0, &[n as u8; 4096], 0).expect("written");
        assert_eq!(states(&alone)[1 - n], Completeness::Out);
    }
    let halves = Duplex::open(&open_disks(&rig.disks), None, false);
    assert!(matches!(halves, Err(Refusal::Split { .. })));
}

/// Writes numbers to a stream while the first member fails at request `n`; the power is cut after each event on either
/// disk. All content acknowledged by then must be read from both disks, and from the one that counts.
#[test]
fn a_power_cut_while_a_member_is_excluded_or_filled_loses_nothing_that_was_acknowledged() {
    let mut cuts = 0;
    for (fails_at, seed) in [(1u64, 1u64), (3, 2), (4, 3)] {
        let rig = rig(2);
        let duplex = create(&rig);
        duplex.write(0, &[0; 512], 0).expect("written");
        duplex.flush().expect("durable");
        rig.disks.iter().for_each(|disk| disk.record());
        // Instant and number: acknowledged from then on.
        let mut promised = vec![(0, 0u8)];
        for number in 1..6u64 {
            if number == fails_at {
                fail(&rig.faults[0]);
            }
            match seed % 2 {
                0 => duplex.write_through(0, &[number as u8; 512], 0).expect("durable in one"),
                _ => {
                    duplex.write(0, &[number as u8; 512], 0).expect("one has it");
                    duplex.flush().expect("durable in one");
                }
            }
            promised.push((RamDisk::now(), number as u8));
            heal(&rig.faults[0]);
        }
        assert_eq!(states(&duplex), [Completeness::Out, Completeness::Whole]);
        duplex.begin_member(0).expect("it may come back");
        duplex.write(0, &[6; 512], 0).expect("both have it");
        duplex.flush().expect("durable");
        promised.push((RamDisk::now(), 6));
        assert!(duplex.fill(&|_| 8192, &mut |_| true).expect("filled"));
        duplex.write_through(0, &[7; 512], 0).expect("both have it");
        promised.push((RamDisk::now(), 7));
        let end = RamDisk::now();
        let start = promised[1].0.saturating_sub(200);
        for instant in start..=end {
            let left: Vec<_> = rig
                .disks
                .iter()
                .enumerate()
                .map(|(n, disk)| {
                    let cut = Cut { event: disk.at(instant), seed: seed * 1000 + instant + n as u64 };
                    RamDisk::with(&format!("disk {n}"), disk.after(cut))
                })
                .collect();
            let least = promised.iter().rev().find(|(at, _)| *at <= instant).map_or(0, |(_, number)| *number);
            let both = Duplex::open(&open_disks(&left), None, false).expect("both are there");
            let found = read(&both, 0, 0, 1)[0];
            assert!(
                found >= least,
                "fails at {fails_at}, cut at {instant} of {end}: {found}, and {least} was promised"
            );
            // The member that is read is the one that counts; alone it has as much.
            for (n, state) in states(&both).iter().enumerate().filter(|(_, state)| **state == Completeness::Whole) {
                let alone = Duplex::open(&open_disks(&left[n..=n]), None, true).expect("it counts");
                assert!(read(&alone, 0, 0, 1)[0] >= least, "{n} {state:?} at {instant}");
            }
            cuts += 1;
        }
    }
    assert!(cuts > 100, "{cuts}");
}

#[test]
fn processes_agree_on_who_is_a_member() {
    let dir = tempfile::tempdir().expect("a directory");
    let common = || {
        let path = dir.path().join("common");
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path);
        region::Common::of(file.expect("a file"))
    };
    let rig = rig(3);
    let members: Vec<_> = rig.regions.iter().take(2).map(|region| (region.clone(), spans())).collect();
    let one = Duplex::create(&members, SEGMENT, b"", Some(&common())).expect("made");
    let other = Duplex::open(&open_disks(&rig.disks), Some(&common()), false).expect("open");
    one.set_supply(Some(Arc::new(Segments::default())));
    one.write(0, &[1; 512], 0).expect("written");
    fail(&rig.faults[1]);
    one.write(0, &[2; 512], 0).expect("the first has it");
    heal(&rig.faults[1]);
    assert_eq!(states(&other), [Completeness::Whole, Completeness::Out], "the other process finds out");
    other.write(0, &[3; 512], 512).expect("written");
    one.begin_member(1).expect("it may come back");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 0..500u64 {
                other.write(0, &[n as u8; 512], 1024 + n * 512).expect("written");
            }
        });
        assert!(one.fill(&|_| SEGMENT, &mut |_| true).expect("filled"));
        writer.join().expect("it wrote");
    });
    other.write(1, &[1; 512], 2 * SEGMENT).expect_err("it has nobody who gives it segments");
    one.write(1, &[1; 512], 2 * SEGMENT).expect("longer");
    assert_eq!(other.len(1), 3 * SEGMENT);
    let both: Vec<_> =
        (0..2).map(|n| Duplex::open(&open_disks(&rig.disks[n..=n]), None, true).expect("each has all")).collect();
    let all = |duplex: &Duplex| read(duplex, 0, 0, 1024 + 500 * 512);
    assert_eq!(all(&both[0]), all(&both[1]));
}

#[test]
fn the_note_of_a_mirror_is_on_a_disk_that_was_put_in_place_of_another() {
    let making: Vec<_> = (0..3).map(|n| RamDisk::new(&format!("disk {n}"), SIZE)).collect();
    let devices = |which: &[usize]| which.iter().map(|n| making[*n].clone() as Arc<dyn Device>).collect::<Vec<_>>();
    let mirror = region::make(POOL, 0, Layout::Mirror, devices(&[0, 1])).expect("a mirror");
    let duplex = Duplex::create(&[(mirror.clone(), spans())], SEGMENT, b"note", None).expect("made");
    duplex.write(1, &[3; 512], 0).expect("written");
    let live = &mut || std::iter::once(0..16 * SEGMENT).collect();
    let spare = Some((making[2].clone() as Arc<dyn Device>, Uuid([3; 16])));
    assert!(mirror.rebuild(0, spare, live, &mut |_| true).expect("rebuilt"));
    drop((duplex, mirror));
    let alone: Arc<dyn Region> = region::open(devices(&[2])).expect("one is enough");
    let found = Duplex::open(&[alone], None, true).expect("it is found there");
    assert_eq!((read(&found, 1, 0, 1), found.extra()), (vec![3], b"note".to_vec()));
}
